"""Float32 numbers in fewer bytes, as pages that may be rounded have them (`poet.problem.PageForm`).

By NumPy, some thousand numbers at a time: what that takes of RAM is small beside the stretch of a page that
is on its way, and comes from no arena.

bf16: the nearest number whose lower 16 bits are zero, ties to even. int8: a float32 ``scale``, the largest
magnitude over 127, then each number over ``scale``, rounded to the nearest integer, ties to even. Where a
number is not finite, the scale is NaN, and so is all that comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poet.problem import PageForm

_BLOCK = 4096
"""Numbers that are converted at a time."""
_LEVELS = np.float32(127)
_SCALE_BYTES = 4

Numbers = NDArray[np.float32]


def coded(data: memoryview, form: PageForm, stretch_bytes: int) -> Iterator[memoryview]:
    """``data``, float32 numbers, in ``form``: stretches of that size, the last one shorter.

    Each lies where the next one will.
    """
    room, filled = np.empty(min(stretch_bytes, form.coded_bytes(len(data))), np.uint8), 0
    for block in _coded(np.frombuffer(data, np.float32), form):
        rest = block.view(np.uint8)
        while len(rest):
            taken = rest[: len(room) - filled]
            room[filled : filled + len(taken)] = taken
            filled, rest = filled + len(taken), rest[len(taken) :]
            if filled == len(room):
                yield room.data
                filled = 0
    if filled:
        yield room.data[:filled]


def _coded(numbers: Numbers, form: PageForm) -> Iterator[NDArray[Any]]:
    blocks = [numbers[first : first + _BLOCK] for first in range(0, len(numbers), _BLOCK)]
    if form is PageForm.BF16:
        for block in blocks:
            bits = block.view(np.uint32)
            nearest = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
            yield np.where(np.isnan(block), np.uint32(0x7FC0), nearest).astype(np.uint16)
        return
    largest = np.float32(0)
    for block in blocks:
        largest = np.maximum(largest, np.abs(block).max())  # NaN, where one is
    scale = largest / _LEVELS if np.isfinite(largest) else np.float32(np.nan)
    yield np.array([scale], np.float32)
    for block in blocks:
        steps = np.rint(block / scale) if scale > 0 else np.zeros_like(block)
        yield np.clip(steps, -_LEVELS, _LEVELS).astype(np.int8)


def decode(stretches: Iterable[memoryview], form: PageForm, target: memoryview) -> None:
    """Fill ``target`` with the numbers of a page in ``form``, of which no stretch cuts a number."""
    numbers, done, scale = np.frombuffer(target, np.float32), 0, np.float32(1)
    for stretch in stretches:
        if form is PageForm.INT8 and not done:
            scale = np.frombuffer(stretch[:_SCALE_BYTES], np.float32)[0]
            stretch = stretch[_SCALE_BYTES:]
        whole = np.frombuffer(stretch, np.uint16 if form is PageForm.BF16 else np.int8)
        for first in range(0, len(whole), _BLOCK):
            part = whole[first : first + _BLOCK]
            place = numbers[done : done + len(part)]
            if form is PageForm.BF16:
                np.left_shift(part, 16, out=place.view(np.uint32), dtype=np.uint32)
            else:
                np.multiply(part, scale, out=place, dtype=np.float32)
            done += len(part)
