"""Arrays in npy and npz files, and columns of samples whose rows are read when they are asked for.

numpy and zipfile read what a file claims before they check whether it can be: an array of 2**60 elements
is asked for, a zip that unpacks to a thousand times its size is unpacked, and a damaged one ends in one of
a dozen kinds of error. Here sizes are held against the file first, and whatever fails is one sentence.
Rows are read with the file's own calls, not mapped: a file that is cut while it is mapped ends the process.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import weakref
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from poet.errors import InputError
from poet.util.reading import MOST_DIMENSIONS, open_regular
from poet.util.units import format_bytes

MOST_HELD_BYTES = 64 * 1024 * 1024
"""An array up to this size is read whole; larger ones stay in their file."""

Array = npt.NDArray[Any]


class Column(Protocol):
    """One array of all samples.

    Attributes:
        shape: samples first.
        dtype: of the elements, as rows are given.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def rows(self, numbers: Sequence[int]) -> Array:
        """The samples with these numbers, in this order.

        Raises:
            InputError: they cannot be read.
        """


def unnamed_file(folder: Path) -> IO[bytes]:
    """A file for samples, which vanishes when it is closed.

    Raises:
        OSError: it cannot be made; ``strerror`` says where, and the way out.
    """
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        where = f"samples are unpacked in {folder.absolute()}, which cannot be written: {error.strerror}"
        raise OSError(error.errno, f"{where}; start in another folder") from None


class ArrayColumn:
    """An array in memory."""

    def __init__(self, array: Array) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    def rows(self, numbers: Sequence[int]) -> Array:
        found: Array = self.array[list(numbers)]
        return found


class StoredColumn:
    """An array in the order of C in a file, which the column keeps open as long as it is there."""

    def __init__(
        self, file: IO[bytes], name: str, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        """Of ``file``, which is closed, the array begins at byte ``start``; ``name`` is for messages."""
        file.flush()
        self._descriptor = os.dup(file.fileno())
        file.close()
        weakref.finalize(self, os.close, self._descriptor)
        self._name, self._start = name, start
        self.shape, self.dtype = shape, dtype
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize

    def rows(self, numbers: Sequence[int]) -> Array:
        found = np.empty((len(numbers), *self.shape[1:]), dtype=self.dtype)
        if not self._row_bytes or not len(numbers):
            return found
        memory = found.reshape(-1).view(np.uint8).data
        for place, number in enumerate(numbers):
            target = memory[place * self._row_bytes : (place + 1) * self._row_bytes]
            self._fill(target, self._start + int(number) * self._row_bytes)
        return found

    def _fill(self, target: memoryview, start: int) -> None:
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._descriptor, [target[done:]], start + done)
            except OSError as cause:
                raise InputError(f"{self._name}: cannot be read ({cause.strerror})") from None
            if count == 0:
                raise InputError(f"{self._name}: it ends too early; was it written to meanwhile?")
            done += count


MEMORY_SHARE = 0.8
"""Of the machine's memory that a file's arrays may take together."""

_MOST_MEMBERS = 10_000
_SUFFIX = ".npy"
_ENCRYPTED = 0x1  # flag of a zip's member


@contextlib.contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """What cannot be read is told in one line: a ``kind`` of file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: not a readable .{kind} file ({error})") from None
    except Exception as error:  # zlib, zipfile and numpy raise a dozen kinds; each means the same here
        if isinstance(error, OSError) and error.strerror:
            raise InputError(f"{path}: cannot be opened ({error.strerror})") from None
        raise InputError(f"{path}: not a readable .{kind} file ({_said(error)})") from None


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of a ``.npz`` file, by name.

    Raises:
        InputError: it is no such file, damaged, encrypted, holds objects, or unpacks to more than fits.
    """
    with _reading(path, "npz"), open_regular(path) as file, zipfile.ZipFile(file) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(_SUFFIX)]
        _check_members(members)
        return {member.filename.removesuffix(_SUFFIX): _read_member(archive, member) for member in members}


def read_npy(path: Path) -> Array:
    """The array of a ``.npy`` file.

    Raises:
        InputError: it is no such file, is damaged, or holds objects.
    """
    with _reading(path, "npy"), open_regular(path) as file:
        return _read_array(file, os.fstat(file.fileno()).st_size)


def npy_column(path: Path) -> Column:
    """The array of a ``.npy`` file, read row by row where it lies in the order of C.

    Raises:
        InputError: as of `read_npy`.
    """
    with _reading(path, "npy"), open_regular(path) as file:
        shape, in_columns, dtype = _header(file, os.fstat(file.fileno()).st_size)
        start = file.tell()
    if in_columns or not shape:
        return ArrayColumn(read_npy(path))
    return StoredColumn(open_regular(path, buffering=0), path.name, start, shape, dtype)


def npz_columns(path: Path, folder: Path) -> dict[str, Column]:
    """The arrays of a ``.npz`` file by name; large ones are unpacked into an unnamed file in ``folder``.

    Raises:
        InputError: as of `read_npz`, or ``folder`` has no room.
    """
    with _reading(path, "npz"), open_regular(path) as file, zipfile.ZipFile(file) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(_SUFFIX)]
        _check_members(members, held=False)
        return {
            member.filename.removesuffix(_SUFFIX): _member_column(archive, member, folder)
            for member in members
        }


def _member_column(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> Column:
    if member.file_size <= MOST_HELD_BYTES:
        return ArrayColumn(_read_member(archive, member))
    with archive.open(member) as file:
        shape, in_columns, dtype = _header(file, member.file_size)
        if in_columns or not shape:
            raise InputError(f"{member.filename!r} in it is too large to be stored column by column")
        unpacked = unnamed_file(folder)
        done, needed = 0, math.prod(shape) * dtype.itemsize
        while chunk := file.read(1 << 20):  # to the end, so that the zip's checksum is checked
            unpacked.write(chunk)
            done += len(chunk)
    if done != needed:
        raise InputError(f"{member.filename!r} in it has {done} bytes, its shape takes {needed}")
    return StoredColumn(unpacked, member.filename, 0, shape, dtype)


def _said(error: Exception) -> str:
    return (
        "it needs more memory than there is"
        if isinstance(error, MemoryError)
        else " ".join(str(error).split())
    )


def _most_bytes() -> int:
    return int(MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _check_members(members: Sequence[zipfile.ZipInfo], *, held: bool = True) -> None:
    if len(members) > _MOST_MEMBERS:
        raise InputError(f"it has {len(members)} members")
    for member in members:
        if member.flag_bits & _ENCRYPTED:
            raise InputError(f"{member.filename!r} in it is encrypted; save it without a password")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise InputError(
                f"{member.filename!r} in it is packed by method {member.compress_type}; numpy.savez and "
                "numpy.savez_compressed write what can be read"
            )
    if len({member.filename for member in members}) < len(members):
        raise InputError("two arrays in it have the same name")
    needed, most = sum(member.file_size for member in members), _most_bytes()
    if held and needed > most:
        raise InputError(
            f"it unpacks to {format_bytes(needed)}, this machine has room for {format_bytes(most)}"
        )


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        return _read_array(file, member.file_size)


def _header(file: IO[bytes], size_bytes: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns lie together, and element type of the array that begins in ``file``."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise InputError(f"it is in version {version[0]}.{version[1]} of numpy's format; save it again")
    shape, in_columns, dtype = readers[version](file)
    if dtype.hasobject:
        raise InputError("it holds Python objects, which are never read")
    if len(shape) > MOST_DIMENSIONS or any(size < 0 for size in shape):
        raise InputError("it has a shape that no array has")
    count = math.prod(shape)
    needed = count * dtype.itemsize
    if needed > size_bytes:
        raise InputError(f"its shape {list(shape)} takes {needed} bytes, it has {size_bytes}")
    if dtype.itemsize == 0 and count:
        raise InputError("its elements take no bytes")
    return shape, in_columns, dtype


def _read_array(file: IO[bytes], size_bytes: int) -> Array:
    """The array in ``file``, which has ``size_bytes`` from its beginning on."""
    shape, in_columns, dtype = _header(file, size_bytes)
    needed = math.prod(shape) * dtype.itemsize
    if needed > _most_bytes():
        raise InputError(f"its shape {list(shape)} takes {needed} bytes, it has {size_bytes}")
    data = bytearray(needed)
    view, done = memoryview(data), 0
    while done < needed:
        chunk = file.read(min(needed - done, 1 << 20))
        if not chunk:
            raise InputError("it ends too early")
        view[done : done + len(chunk)] = chunk
        done += len(chunk)
    if file.read(1):  # reading to the end also has a zip's member checked against its checksum
        raise InputError("it goes on after its last element")
    return np.ndarray(shape, dtype, buffer=data, order="F" if in_columns else "C")
