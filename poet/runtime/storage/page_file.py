"""The page file: where tensors go that are paged out.

One preallocated file with a fixed slot per tensor. Transfers bypass the kernel's page cache
(``O_DIRECT``) through an aligned bounce buffer where the file system can do that and the plan leaves
RAM for the buffer; otherwise they go through the cache, which is flushed and dropped after each, so
that paged bytes are really out of RAM. Every tensor is read back against a checksum. What lies in another
file of the same storage, and is never written, is read there. Of a tensor that is read by row each row has a
checksum of its own, of 4 bytes; a row that changes is written with what else is in its pages.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import stat
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from poet.errors import PageFileError
from poet.plans.page_slots import SLOT_ALIGNMENT_BYTES
from poet.plans.plan_parts import PageSlot
from poet.problem import PageForm
from poet.runtime.storage import rough_pages
from poet.runtime.storage.transfers import PIECE_BYTES, ChangeRow, Transfers, aligned
from poet.util.reading import lock
from poet.util.units import format_bytes

MAGIC = b"poet page file, version 1\n"
_HEADER_BYTES = SLOT_ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True)
class _Written:
    """What is in storage for a tensor: bytes, and a checksum of each row; it is one row if none is read."""

    size_bytes: int
    row_bytes: int
    checksums: array[int]


class PageFile:
    """The slots of a plan on storage.

    Attributes:
        path: of the file, where links end.
        buffer_bytes: RAM of the bounce buffer; 0 where transfers go through the page cache.
        mode: for reports, which of the two it is.
        coded, decode: what rounds numbers, as `poet.runtime.storage.rough_pages` does.
    """

    def __init__(
        self,
        slots: Iterable[PageSlot],
        *,
        path: Path | None,
        folder: Path,
        buffer_bytes: int,
        row_bytes: Mapping[str, int] | None = None,
    ) -> None:
        """Open and preallocate the file.

        Args:
            slots: the plan's.
            path: of the file, new, empty, or left by an earlier run; ``None``: an unnamed file in
                ``folder`` that vanishes when closed.
            folder: for unnamed files.
            buffer_bytes: RAM for the bounce buffer, whole pages; 0: use the page cache.
            row_bytes: of the tensors that are read by row, by name; ``None``: there are none.

        Raises:
            PageFileError: there is no room, no permission, or something else at ``path``.
        """
        self.coded, self.decode = rough_pages.coded, rough_pages.decode
        self._slots = {slot.tensor: slot for slot in slots}
        self._written: dict[str, _Written] = {}  # per tensor
        self._row_bytes = dict(row_bytes or {})
        self._elsewhere: dict[str, tuple[Transfers, int]] = {}  # per tensor that lies in another file: where
        self._others: dict[int, tuple[int, Transfers]] = {}  # such files, by their number
        self._named = path is not None
        self.path = path if path is not None else folder / f".poet-pages-{secrets.token_hex(8)}"
        if self.path.is_symlink():  # what is made, and removed at the end, is the file that it leads to
            self.path = Path(os.path.realpath(self.path))
        self._file, is_direct = self._open(wants_direct=buffer_bytes > 0)
        try:
            self._claim()
            private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # which a limit of the process counts
            self._buffer = memoryview(mmap.mmap(-1, buffer_bytes, private)) if is_direct else None
            self._transfers = Transfers(self._file, self._buffer)
            self._transfers.write(0, memoryview(MAGIC.ljust(_HEADER_BYTES, b"\0")))
        except OSError as cause:
            self.close()
            raise self._failed("cannot be prepared", cause) from None
        except BaseException:
            self.close()
            raise
        self.buffer_bytes = buffer_bytes if is_direct else 0
        self.mode = "direct" if is_direct else "through the page cache, flushed and dropped"

    @property
    def slots(self) -> tuple[PageSlot, ...]:
        """All that it has."""
        return tuple(self._slots.values())

    def extend(self, slots: Iterable[PageSlot]) -> None:
        """Have these slots as well; the others keep what they hold.

        Raises:
            PageFileError: there is no room.
        """
        added = {slot.tensor: slot for slot in slots}
        self._reserve({**self._slots, **added})
        self._slots |= added

    def write(self, tensor: str, data: memoryview, form: PageForm | None = None) -> None:
        """Copy ``data``, in ``form`` at most the slot's size, to the slot of ``tensor``.

        Raises:
            PageFileError: the storage refused it.
        """
        slot = self._slots[tensor]
        self._written.pop(tensor, None)
        self._elsewhere.pop(tensor, None)
        size_bytes = len(data) if form is None else form.coded_bytes(len(data))
        row_bytes, done = self._row_bytes.get(tensor, size_bytes), 0
        found = _Checksums(row_bytes)
        try:
            for stretch in [data] if form is None else self.coded(data, form, PIECE_BYTES):
                self._transfers.write(_HEADER_BYTES + slot.offset_bytes + done, stretch)
                found.add(stretch)
                done += len(stretch)
        except OSError as cause:
            raise self._failed(f"{tensor} cannot be written", cause) from None
        self._written[tensor] = _Written(size_bytes, row_bytes, found.rows)

    def read_into(self, tensor: str, target: memoryview, form: PageForm | None = None) -> None:
        """Fill ``target``, from its start, with what was last written for ``tensor``, in ``form``.

        Raises:
            PageFileError: nothing was, the storage failed, or other bytes came back.
        """
        if form is not None:
            self.decode(self.pieces(tensor, 2), form, target)
            return
        transfers, offset = self._place_of(tensor)
        written = self._written_of(tensor)
        data = target[: written.size_bytes]
        try:
            transfers.read(offset, data)
        except OSError as cause:
            raise self._failed(f"{tensor} cannot be read", cause) from None
        if _checksums(data, written.row_bytes) != written.checksums:
            raise self._changed(tensor)

    def read_row(self, tensor: str, row: int, target: memoryview) -> None:
        """Fill ``target`` with one row of what was last written for ``tensor``, which is read by row.

        Raises:
            PageFileError: as of `read_into`.
        """
        transfers, offset = self._place_of(tensor)
        written = self._written_of(tensor)
        try:
            transfers.read(offset + row * len(target), target)
        except OSError as cause:
            raise self._failed(f"row {row} of {tensor} cannot be read", cause) from None
        if zlib.crc32(target) != written.checksums[row]:
            raise self._changed(f"row {row} of {tensor}")

    def change_row(self, tensor: str, row: int, change: ChangeRow) -> None:
        """Write one row of ``tensor``, which is read by row and lies here, as ``change`` leaves it.

        The pages that it lies in are read and written whole.

        Raises:
            PageFileError: as of `read_into` and `write`.
        """
        transfers, offset = self._place_of(tensor)
        written = self._written_of(tensor)

        def checked(memory: memoryview) -> None:
            if zlib.crc32(memory) != written.checksums[row]:
                raise self._changed(f"row {row} of {tensor}")
            change(memory)
            written.checksums[row] = zlib.crc32(memory)

        try:
            transfers.change(offset + row * written.row_bytes, written.row_bytes, checked)
        except OSError as cause:
            raise self._failed(f"row {row} of {tensor} cannot be changed", cause) from None

    def pieces(self, tensor: str, unit_bytes: int) -> Iterator[memoryview]:
        """What was last written for ``tensor``, in stretches that end at multiples of ``unit_bytes``.

        Each lies where the next one will. No memory is taken but the bounce buffer, or 64 KiB of the page
        buffer's where transfers go through the page cache. The caller may use nothing of it for good
        before the last one has come: then the checksum is known.

        Raises:
            PageFileError: as of `read_into`.
        """
        transfers, offset = self._place_of(tensor)
        written = self._written_of(tensor)
        size_bytes, found = written.size_bytes, _Checksums(written.row_bytes)
        done = 0
        while done < size_bytes:
            try:
                piece = transfers.piece(offset + done, size_bytes - done, unit_bytes)
            except OSError as cause:
                raise self._failed(f"{tensor} cannot be read", cause) from None
            found.add(piece)
            done += len(piece)
            yield piece
        if found.rows != written.checksums:
            raise self._changed(tensor)

    def _place_of(self, tensor: str) -> tuple[Transfers, int]:
        slot = self._slots[tensor]
        return self._elsewhere.get(tensor, (self._transfers, _HEADER_BYTES + slot.offset_bytes))

    def _written_of(self, tensor: str) -> _Written:
        if tensor not in self._written:
            raise PageFileError(f"page file {self.path}: {tensor} was never written whole")
        return self._written[tensor]

    def _changed(self, tensor: str) -> PageFileError:
        return PageFileError(
            f"page file {self.path}: {tensor} came back with other bytes than were written; "
            "another process wrote to the file, or the storage is failing"
        )

    def find_in(self, file: int, offset_bytes: int, tensor: str, data: memoryview) -> bool:
        """Read ``tensor`` from now on where it lies in another file, until it is written here.

        Args:
            file: that is open; it is opened once more, so that it may be closed or replaced.
            offset_bytes: of the tensor in it.
            tensor: that has a slot here.
            data: its bytes, which are there.

        Returns:
            ``False`` where nothing was done: it is on other storage, or cannot be opened so.
        """
        try:
            there, here = os.fstat(file), os.fstat(self._file)
            if there.st_dev != here.st_dev:
                return False
            if there.st_ino not in self._others:
                flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if self._buffer is not None else 0)
                again = os.open(f"/proc/self/fd/{file}", flags)
                self._others[there.st_ino] = again, Transfers(again, self._buffer)
        except OSError:
            return False
        self._elsewhere[tensor] = self._others[there.st_ino][1], offset_bytes
        self._note(tensor, data)
        return True

    def _note(self, tensor: str, data: memoryview) -> None:
        """``data`` is what lies in storage for ``tensor``."""
        row_bytes = self._row_bytes.get(tensor, len(data))
        self._written[tensor] = _Written(len(data), row_bytes, _checksums(data, row_bytes))

    def close(self) -> None:
        """Close and remove the file; a second call does nothing."""
        while self._others:
            os.close(self._others.popitem()[1][0])
        if self._file >= 0:
            ours = os.fstat(self._file)
            os.close(self._file)
            self._file = -1
            with contextlib.suppress(OSError):
                if os.path.samestat(ours, self.path.stat()):  # else another file has taken its place
                    self.path.unlink()

    def _open(self, *, wants_direct: bool) -> tuple[int, bool]:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | (0 if self._named else os.O_EXCL)
        try:
            if wants_direct and hasattr(os, "O_DIRECT"):
                with contextlib.suppress(OSError):
                    return os.open(self.path, flags | os.O_DIRECT, 0o600), True
                flags &= ~os.O_EXCL  # some file systems create the file and then refuse the flag
            return os.open(self.path, flags, 0o600), False
        except OSError as cause:
            way = "" if self._named else "; name a place that can be written (--page-file, page_file)"
            raise self._failed("cannot be opened", cause, way) from None

    def _claim(self) -> None:
        """Lock the file, make sure that it is ours to overwrite, and reserve its bytes."""
        status = os.fstat(self._file)
        if not stat.S_ISREG(status.st_mode) or (status.st_size and not self._is_ours()):
            self._release()
            raise PageFileError(
                f"{self.path} exists and is not a page file; it was left as it is, give another path"
            )
        try:
            lock(self._file, wait=False)
        except BlockingIOError:
            self._release()
            raise PageFileError(
                f"page file {self.path} is in use by another trainer; give each its own"
            ) from None
        if not self._named:
            self.path.unlink()  # it lives on as long as it is open, whatever happens to this process
        self._reserve(self._slots)

    def _reserve(self, slots: Mapping[str, PageSlot]) -> None:
        """Make the file as large as the slots need."""
        size_bytes = _HEADER_BYTES + max(
            (aligned(slot.offset_bytes + slot.size_bytes) for slot in slots.values()), default=0
        )
        try:
            os.ftruncate(self._file, size_bytes)
            os.posix_fallocate(self._file, 0, size_bytes)
        except OSError as cause:
            raise self._failed(f"no room for {format_bytes(size_bytes)}", cause) from None

    def _is_ours(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC

    def _release(self) -> None:
        """Release a file that is not ours, without removing it."""
        os.close(self._file)
        self._file = -1

    def _failed(self, what: str, cause: OSError, way: str = "") -> PageFileError:
        return PageFileError(f"page file {self.path}: {what} ({cause.strerror or cause}){way}")


class _Checksums:
    """Of the rows of bytes that come in stretches of any length."""

    def __init__(self, row_bytes: int) -> None:
        self.rows = array("I")
        self._row_bytes, self._left_bytes, self._begun = row_bytes, row_bytes, 0

    def add(self, stretch: memoryview) -> None:
        start = 0
        while start < len(stretch):
            part = stretch[start : start + self._left_bytes]
            self._begun, start = zlib.crc32(part, self._begun), start + len(part)
            self._left_bytes -= len(part)
            if not self._left_bytes:
                self.rows.append(self._begun)
                self._left_bytes, self._begun = self._row_bytes, 0


def _checksums(data: memoryview, row_bytes: int) -> array[int]:
    if row_bytes == len(data):
        return array("I", [zlib.crc32(data)] if row_bytes else [])
    found = _Checksums(row_bytes)
    found.add(data)
    return found.rows
