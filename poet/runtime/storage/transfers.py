"""How bytes go between RAM and a file, piece by piece too, and how they leave the kernel's page cache."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterator

import torch

from poet.ir.calls import TensorType, contiguous
from poet.ir.graph import ITEM_BYTES
from poet.plans.page_slots import SLOT_ALIGNMENT_BYTES
from poet.runtime.kernels import arguments

_CHUNK_BYTES = 4 * 1024 * 1024  # of the page cache at a time
_SYNC_WRITTEN = 7  # sync_file_range(2): wait before, write, wait after

ChangeRow = Callable[[memoryview], None]
"""Changes the bytes of a row where they lie."""


class Transfers:
    """Copies whole byte ranges between RAM and a file, or raises OSError.

    With a ``buffer`` past the page cache: aligned offsets, sizes and memory, by way of it. Without one
    through the page cache, a chunk at a time, each flushed to the device and dropped.
    """

    def __init__(self, file: int, buffer: memoryview | None) -> None:
        self._file, self._buffer = file, buffer
        self._sync_range = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)

    def write(self, offset: int, data: memoryview) -> None:
        step = _CHUNK_BYTES if self._buffer is None else len(self._buffer)
        for start in range(0, len(data), step):
            part, place = data[start : start + step], offset + start
            if self._buffer is None:
                _write_whole(self._file, part, place)
                self._flush(place, len(part))
                os.posix_fadvise(self._file, place, len(part), os.POSIX_FADV_DONTNEED)
            else:
                self._buffer[: len(part)] = part
                _write_whole(self._file, self._buffer[: aligned(len(part))], place)

    def read(self, offset: int, target: memoryview) -> None:
        done = 0
        while done < len(target):
            rest, place = target[done:], offset + done
            if self._buffer is None:
                part = rest[:_CHUNK_BYTES]
                _read_whole(self._file, part, place)
                os.posix_fadvise(self._file, place, len(part), os.POSIX_FADV_DONTNEED)
            else:
                part = _loaded(self._file, self._buffer, place, len(rest))
                rest[: len(part)] = part
            done += len(part)

    def change(self, offset: int, size_bytes: int, change: ChangeRow) -> None:
        """Write bytes again as ``change`` leaves them."""
        if self._buffer is None:
            target = memoryview(bytearray(size_bytes))
            self.read(offset, target)
            change(target)
            self.write(offset, target)
            return
        target = _loaded(self._file, self._buffer, offset, size_bytes)
        if len(target) < size_bytes:
            raise OSError("larger than the page buffer")
        change(target)
        before = offset % SLOT_ALIGNMENT_BYTES
        _write_whole(self._file, self._buffer[: aligned(before + size_bytes)], offset - before)

    def piece(self, offset: int, size_bytes: int, unit_bytes: int) -> memoryview:
        """The next bytes, as many as the memory for them takes, whole units unless they are the last."""
        room_bytes = (
            PIECE_BYTES if self._buffer is None else len(self._buffer) - offset % SLOT_ALIGNMENT_BYTES
        )
        count = size_bytes if size_bytes <= room_bytes else room_bytes // unit_bytes * unit_bytes
        if self._buffer is not None:
            return _loaded(self._file, self._buffer, offset, count)
        target = memoryview(bytearray(count))
        self.read(offset, target)
        return target

    def _flush(self, offset: int, size_bytes: int) -> None:
        """Hand the range to the device; what is paged need not outlive a power cut."""
        if self._sync_range is None:
            os.fdatasync(self._file)
            return
        place = (ctypes.c_int64(offset), ctypes.c_int64(size_bytes), ctypes.c_uint(_SYNC_WRITTEN))
        if self._sync_range(ctypes.c_int(self._file), *place) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _loaded(file: int, buffer: memoryview, offset: int, size_bytes: int) -> memoryview:
    """Bytes of ``file`` in ``buffer``, as many as it takes; they may begin anywhere, as in another file."""
    before = offset % SLOT_ALIGNMENT_BYTES
    end = min(before + size_bytes, len(buffer))
    _read_whole(file, buffer[: aligned(end)], offset - before, wanted_bytes=end)
    return buffer[before:end]


def _write_whole(file: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        count = os.pwrite(file, data[done:], offset + done)
        if count == 0:
            raise OSError("the device takes no more bytes")
        done += count


def _read_whole(file: int, target: memoryview, offset: int, *, wanted_bytes: int | None = None) -> None:
    """Fill ``target``; or, where a file may end within it, at least the ``wanted_bytes`` at its start."""
    done = 0
    while done < (len(target) if wanted_bytes is None else wanted_bytes):
        count = os.preadv(file, [target[done:]], offset + done)
        if count == 0:
            raise OSError("the file ends too early")
        done += count


def aligned(size_bytes: int) -> int:
    """``size_bytes`` rounded up to whole pages, as direct transfers ask for."""
    return -(-size_bytes // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES


Pieces = Callable[[str], Iterator[torch.Tensor]]
"""Gives of one of a graph's values the elements in C order, in contiguous tensors of one dimension, each of
which is gone when the next is asked for."""

PIECE_BYTES = 64 * 1024
"""The most that is copied at a time: rows that lie in another order, and transfers through the page cache."""


def pieces_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements of ``tensor``, in contiguous tensors of one dimension; its own memory where that does."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        yield tensor.reshape(-1)
        return
    count = max(1, PIECE_BYTES // max(1, tensor[0].nbytes))
    for start in range(0, len(tensor), count):
        yield tensor[start : start + count].contiguous().reshape(-1)


def unit_bytes(kind: TensorType, size_bytes: int) -> int | None:
    """Where bytes of a buffer may be cut so that each stretch has elements that follow each other in C order.

    Args:
        kind: of the one value that takes the buffer.
        size_bytes: of the buffer.

    Returns:
        At multiples of this: of an element, or of a row; ``None``: nowhere.
    """
    if kind.offset or not kind.elements or kind.extent_bytes != size_bytes:
        return None
    if kind == contiguous(kind.dtype, kind.shape):
        return ITEM_BYTES[kind.dtype]
    row = kind.strides[0]
    inner = 1 + sum(
        (size - 1) * stride for size, stride in zip(kind.shape[1:], kind.strides[1:], strict=True)
    )
    row_bytes = row * ITEM_BYTES[kind.dtype]
    return row_bytes if inner <= row and row_bytes <= PIECE_BYTES // 2 else None


def elements_of(stretch: memoryview, kind: TensorType) -> torch.Tensor:
    """The elements in bytes of a buffer that were cut at multiples of `unit_bytes`, in C order."""
    flat = torch.frombuffer(stretch, dtype=arguments.dtype(kind.dtype))
    if kind == contiguous(kind.dtype, kind.shape):
        return flat
    rows = math.ceil(len(flat) / kind.strides[0])
    return flat.as_strided((rows, *kind.shape[1:]), kind.strides).contiguous().reshape(-1)
