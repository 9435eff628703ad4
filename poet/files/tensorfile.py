"""Files in the safetensors format, written and read as a stream.

A device that trains has no room for a second copy of the weights, so tensors are read straight into
memory that the caller already has, and written from where they are. The format
(https://github.com/huggingface/safetensors): the header's length as 8 bytes little-endian, the
header as JSON, then the tensors' bytes without gaps. A file is written under a temporary name in
its own folder, flushed to the device and renamed, so that a power cut leaves the old file or the
new one.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import math
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from poet.errors import InputError, PoetError
from poet.ir.graph import ITEM_BYTES
from poet.util.brief import brief
from poet.util.reading import (
    MOST_DIMENSIONS,
    Closing,
    check_is_file,
    flush_folder,
    is_whole,
    lock,
    open_regular,
    parse_json,
)

_WORDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_DTYPES = {word: dtype for dtype, word in _WORDS.items()}
_HEADER_LIMIT_BYTES = 1 << 26  # the header of a plan of 1,000 ops has a hundredth of it
_DATA_ALIGNMENT_BYTES = 64
_CHUNK_BYTES = 1 << 20


class TensorKind(Protocol):
    """What a header says about a tensor."""

    @property
    def dtype(self) -> str:
        """Of its elements."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""


K = TypeVar("K", bound=TensorKind)


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as bytes: ``data`` holds its elements in C order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview | bytes

    __repr__ = brief

    def __post_init__(self) -> None:
        expected = math.prod(self.shape) * ITEM_BYTES[self.dtype]
        if memoryview(self.data).nbytes != expected:
            raise InputError(f"{self.dtype}{list(self.shape)} takes {expected} bytes, not {len(self.data)}")


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies in a file: bytes ``start`` to ``end``, counted from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return self.end - self.start


class TensorFile(Closing):
    """An open file, its header checked: every tensor lies where and is as large as it says.

    Attributes:
        path: for messages.
        metadata: the header's free text, by key.
        entries: the tensors, by name, in the file's order.
    """

    def __init__(self, path: Path, *, error: type[InputError] = InputError) -> None:
        self.path, self._error = path, error
        try:
            self._file: BinaryIO = open_regular(path, buffering=0)
        except OSError as cause:
            raise error(f"{path}: cannot be opened ({cause.strerror})") from None
        try:
            self.metadata, self.entries = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def read_into(self, name: str, target: memoryview) -> None:
        """Fill ``target`` with the tensor's bytes.

        Raises:
            InputError: (or the class given) ``target`` is of another size, or the file cannot be read.
        """
        entry = self.entries[name]
        if target.nbytes != entry.size_bytes:
            raise self._error(f"{self.path.name}: {name} has {entry.size_bytes} bytes, not {target.nbytes}")
        self._fill(target.cast("B"), entry.start)

    def read_part_into(self, name: str, target: memoryview, start_bytes: int) -> None:
        """Fill ``target`` with as many of the tensor's bytes, from ``start_bytes`` on.

        Raises:
            InputError: (or the class given) the tensor ends before, or the file cannot be read.
        """
        entry = self.entries[name]
        if start_bytes + target.nbytes > entry.size_bytes:
            raise self._error(f"{self.path.name}: {name} has only {entry.size_bytes} bytes")
        self._fill(target.cast("B"), entry.start + start_bytes)

    def stretches(self, name: str, start_bytes: int, size_bytes: int) -> Iterator[memoryview]:
        """``size_bytes`` of the tensor from ``start_bytes`` on; each stretch lies where the last did."""
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, size_bytes)))
        for start in range(0, size_bytes, _CHUNK_BYTES):
            stretch = buffer[: min(_CHUNK_BYTES, size_bytes - start)]
            self.read_part_into(name, stretch, start_bytes + start)
            yield stretch

    def place_of(self, name: str) -> tuple[int, int]:
        """The open file's number, and where in it the tensor's bytes begin."""
        return self._file.fileno(), self.entries[name].start

    def read(self, name: str) -> bytes:
        """The tensor's bytes."""
        target = bytearray(self.entries[name].size_bytes)
        self.read_into(name, memoryview(target))
        return bytes(target)

    def digest(self) -> str:
        """SHA-256 of the tensors' names, types and bytes, as `digest` gives it for what was written."""
        total = hashlib.sha256()
        buffer = memoryview(bytearray(_CHUNK_BYTES))
        for name, entry in self.entries.items():
            total.update(_label(name, entry.dtype, entry.shape))
            for start in range(entry.start, entry.end, _CHUNK_BYTES):
                chunk = buffer[: min(_CHUNK_BYTES, entry.end - start)]
                self._fill(chunk, start)
                total.update(chunk)
        return total.hexdigest()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def _fill(self, target: memoryview, start: int) -> None:
        done = 0
        while done < len(target):
            try:
                count = os.preadv(self._file.fileno(), [target[done:]], start + done)
            except OSError as cause:
                raise self._error(f"{self.path}: cannot be read ({cause.strerror})") from None
            if count == 0:
                raise self._damaged("it ends too early")
            done += count

    def _damaged(self, why: str) -> InputError:
        return self._error(f"{self.path.name}: not a usable safetensors file ({why}); get it again")

    def _read_header(self) -> tuple[dict[str, str], dict[str, Entry]]:
        file_bytes = os.fstat(self._file.fileno()).st_size
        if file_bytes < 8:
            raise self._damaged("it is shorter than a header")
        prefix = bytearray(8)
        self._fill(memoryview(prefix), 0)
        header_bytes = int.from_bytes(prefix, "little")
        if header_bytes > min(_HEADER_LIMIT_BYTES, file_bytes - 8):
            most = f", at most {_HEADER_LIMIT_BYTES} are read" if header_bytes <= file_bytes - 8 else ""
            raise self._damaged(f"its header would take {header_bytes} of {file_bytes} bytes{most}")
        raw = bytearray(header_bytes)
        self._fill(memoryview(raw), 8)
        try:
            header = parse_json(raw, unique=True)
        except ValueError as cause:
            raise self._damaged(f"its header is not JSON: {cause}") from None
        if not isinstance(header, dict):
            raise self._damaged("its header is not an object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
            raise self._damaged("its metadata is not text")
        entries = {name: self._entry(name, item, 8 + header_bytes) for name, item in header.items()}
        return metadata, self._in_order(entries, 8 + header_bytes, file_bytes)

    def _entry(self, name: str, item: Any, base: int) -> Entry:
        if not isinstance(item, dict) or item.keys() != {"dtype", "shape", "data_offsets"}:
            raise self._damaged(f"{name!r} is not described by dtype, shape and data_offsets")
        dtype, shape, offsets = item["dtype"], item["shape"], item["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise self._damaged(f"{name!r} has the unknown type {str(dtype)[:20]!r}")
        for numbers in (shape, offsets):
            if not isinstance(numbers, list) or not all(is_whole(n) and n >= 0 for n in numbers):
                raise self._damaged(f"{name!r} has a shape or place that is not a list of whole numbers")
        if len(shape) > MOST_DIMENSIONS:
            raise self._damaged(f"{name!r} has {len(shape)} dimensions, at most {MOST_DIMENSIONS} are read")
        if len(offsets) != 2 or offsets[1] - offsets[0] != math.prod(shape) * ITEM_BYTES[_DTYPES[dtype]]:
            raise self._damaged(f"{name!r} has another size than its shape says")
        return Entry(_DTYPES[dtype], tuple(shape), base + offsets[0], base + offsets[1])

    def _in_order(self, entries: dict[str, Entry], base: int, file_bytes: int) -> dict[str, Entry]:
        ordered = dict(sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)))
        expected = base
        for name, entry in ordered.items():
            if entry.start != expected:
                raise self._damaged(f"{name!r} does not begin where the tensor before it ends")
            expected = entry.end
        if expected != file_bytes:
            raise self._damaged(f"it has {file_bytes} bytes, its header says {expected}")
        return ordered


def digest(tensors: Mapping[str, RawTensor]) -> str:
    """SHA-256 of the tensors' names, types and bytes, in the order in which they are written."""
    total = hashlib.sha256()
    for name, tensor in _file_order(tensors).items():
        total.update(_label(name, tensor.dtype, tensor.shape))
        total.update(tensor.data)
    return total.hexdigest()


def write(path: Path, tensors: Mapping[str, RawTensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file at ``path``, whole or not at all.

    Raises:
        PoetError: the folder cannot be written or is full; what was at ``path`` is still there.
    """
    ordered = _file_order(tensors)
    text = _header(ordered, metadata)
    with replaced(path) as file:
        file.write(text)
        for tensor in ordered.values():
            file.write(tensor.data)


def write_streamed(
    path: Path,
    kinds: Mapping[str, TensorKind],
    fetch: Callable[[str], Iterable[memoryview]],
    metadata: Mapping[str, str],
    *,
    digest_key: str | None = None,
) -> None:
    """`write`, fetching one piece of a tensor at a time, for those that are not all in RAM.

    Args:
        path: of the file.
        kinds: of the tensors, by name.
        fetch: of a name the pieces whose bytes, one after the other, are the tensor's; each is let go before
            the next is asked for.
        metadata: of the file.
        digest_key: under which the tensors' `digest` is added to the metadata; ``None``: it is not.

    Raises:
        PoetError: the folder cannot be written or is full; what was at ``path`` is still there.
    """
    ordered = _file_order(kinds)
    unknown = "0" * hashlib.sha256().digest_size * 2
    text = _header(ordered, {**metadata, **({} if digest_key is None else {digest_key: unknown})})
    total = hashlib.sha256()
    with replaced(path) as file:
        file.write(text)
        for name, kind in ordered.items():
            total.update(_label(name, kind.dtype, kind.shape))
            for piece in fetch(name):
                total.update(piece)
                file.write(piece)
                del piece
        if digest_key is not None:
            key = json.dumps(digest_key)
            file.seek(text.index(f"{key}:".encode()) + len(key) + 2)
            file.write(total.hexdigest().encode())


def _header(ordered: Mapping[str, TensorKind], metadata: Mapping[str, str]) -> bytes:
    """The file's beginning, up to the first tensor."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, kind in ordered.items():
        start, end = end, end + math.prod(kind.shape) * ITEM_BYTES[kind.dtype]
        header[name] = {"dtype": _WORDS[kind.dtype], "shape": list(kind.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _DATA_ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes ``path``'s place once the block ends without an error.

    Raises:
        PoetError: the folder cannot be written or is full; what was at ``path`` is still there.
    """
    check_is_file(path)
    try:
        _remove_abandoned(path)
        with _locked_temporary(path) as (temporary, file):
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        flush_folder(path.parent)
    except OSError as cause:
        raise PoetError(f"{path}: cannot be written ({cause.strerror or cause})") from None


@contextlib.contextmanager
def _locked_temporary(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside ``path``, locked until the block ends: it is to be renamed there, else it is removed.

    Another process that saves to the same path may meet the file before it is locked, take it for
    abandoned and remove it: then the lock is that of a file without a name, and the next one is tried.
    """
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        is_ours = False
        with contextlib.ExitStack() as undo:
            undo.callback(temporary.unlink, missing_ok=True)
            file = undo.enter_context(temporary.open("xb"))
            lock(file, wait=True)
            with contextlib.suppress(FileNotFoundError):
                is_ours = os.path.samestat(os.fstat(file.fileno()), temporary.stat())
            if is_ours:
                yield temporary, file
                return


def _remove_abandoned(path: Path) -> None:
    """Temporary files that a process left when it was killed: nobody holds their lock any more."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"):
        with contextlib.suppress(OSError), left.open("rb") as file:
            if lock(file, wait=False):
                left.unlink()


def _file_order(tensors: Mapping[str, K]) -> dict[str, K]:
    """Larger elements first, then by name: every tensor is aligned to its element."""
    return dict(sorted(tensors.items(), key=lambda item: (-ITEM_BYTES[item[1].dtype], item[0])))


def _label(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    return json.dumps([name, dtype, list(shape)]).encode()
