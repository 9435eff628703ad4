"""Counts over a batch in small pieces, which ask torch for no memory: a full arena leaves none beside it.

A piece is some samples, or places of one, as NumPy sees them where they lie. What NumPy makes of it is the
interpreter's memory, as its numbers and names are: eight bytes for each of `PIECE_ELEMENTS` at most, or for
the scores of one place where those are more.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

PIECE_ELEMENTS = 4096


def class_pieces(
    output: Tensor, targets: Tensor, dim: int, ignored: int | None = None
) -> Iterator[tuple[Array, Array]]:
    """Scores (n, C) and classes (n,) of places that have a class; ``output`` has scores along ``dim``.

    A number that is no class, or the ``ignored`` one, stands where there is none.
    """
    for scores, wanted in _pieces(output.detach().movedim(dim, -1), targets):
        found, classes = _array(scores), _array(wanted)
        counted = (classes >= 0) & (classes < found.shape[-1])
        if ignored is not None:
            counted &= classes != ignored
        if counted.all():  # where they lie: a row of many classes may be larger than all that is left
            yield found.reshape(-1, found.shape[-1]), classes.reshape(-1)
        elif counted.any():
            yield found[counted], classes[counted]


def number_pieces(output: Tensor, targets: Tensor) -> Iterator[tuple[Array, Array]]:
    """Numbers of the output with those of the targets."""
    for found, wanted in _pieces(output.detach().unsqueeze(-1), targets):
        yield _array(found)[..., 0], _array(wanted)


def right_classes(
    output: Tensor, targets: Tensor, dim: int, top: int = 1, ignored: int | None = None
) -> tuple[int, int]:
    """How many targets are among the ``top`` classes of the highest scores, and how many there are.

    Targets that are no class are not counted, see `class_pieces`. Of equal scores the first class's is the
    higher one; NaN is above all.
    """
    right = judged = 0
    for scores, classes in class_pieces(output, targets, dim, ignored):
        judged += len(classes)
        if top == 1:
            right += int(np.count_nonzero(scores.argmax(axis=-1) == classes))
        else:
            right += sum(_rank(row, int(wanted)) < top for row, wanted in zip(scores, classes, strict=True))
    return right, judged


def weight_of_classes(targets: Tensor, ignored: int, weights: Sequence[float] | None) -> float:
    """How many targets are not the ``ignored`` number, or the sum of their classes' ``weights``."""
    total = 0.0
    for piece, _ in _pieces(targets.detach(), targets):
        classes = _array(piece).reshape(-1).astype(np.int64)
        counted = classes[classes != ignored]
        total += len(counted) if weights is None else float(np.asarray(weights)[counted].sum())
    return total


def fingerprint(tensor: Tensor) -> int:
    """The same for the same bits."""
    found = 0
    for piece, _ in _pieces(tensor.detach(), tensor):
        found = zlib.crc32(_array(piece).tobytes(), found)
    return found


def least_and_largest(tensor: Tensor) -> tuple[float, float]:
    """Of all numbers, at least one; NaN where one is."""
    if tensor.dtype == torch.bfloat16:
        low, high = torch.aminmax(tensor)
        return low.item(), high.item()
    array = _array(tensor.detach())
    return array.min().item(), array.max().item()


def _rank(scores: Array, place: int) -> int:
    """How many of ``scores`` are above that at ``place``."""
    unknown = np.isnan(scores)
    if unknown[place]:
        return int(np.count_nonzero(unknown[:place]))
    above = np.count_nonzero(scores > scores[place]) + np.count_nonzero(unknown)
    return int(above + np.count_nonzero(scores[:place] == scores[place]))


def _pieces(output: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of (..., C) numbers and of (...) targets, each of few elements."""
    if not targets.dim() or output.numel() <= PIECE_ELEMENTS:
        yield output, targets
        return
    step = max(1, PIECE_ELEMENTS * len(targets) // output.numel())
    for start in range(0, len(targets), step):
        if step == 1:
            yield from _pieces(output[start], targets[start])
        else:
            yield output[start : start + step], targets[start : start + step]


def _array(tensor: Tensor) -> Array:
    """The numbers where they lie; NumPy has no bfloat16, whose numbers are copied."""
    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.tolist(), dtype=np.float32)
    made: Array = tensor.numpy()
    return made
