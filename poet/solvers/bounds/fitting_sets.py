"""Every set of tensor versions that fits into RAM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int32]
Masks = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class FittingSets:
    """Every set of tracked versions that fits into RAM.

    Attributes:
        masks, bytes: per state; masks ascend.
        without, having: per bit, the states that lack it and have room for it, and the same with it.
    """

    masks: Masks
    bytes: Masks
    without: tuple[Positions, ...]
    having: tuple[Positions, ...]


def fitting_sets(sizes: Sequence[int], budget: int, most: int = 1 << 40) -> FittingSets | None:
    """Every set of ``sizes`` that fits, by doubling: the sets without a bit, then those with it.

    ``None`` where there are more than ``most``.
    """
    masks, total = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    without: list[Positions] = []
    having: list[Positions] = []
    for bit, size in enumerate(sizes):
        fits = total + size <= budget
        position = (len(masks) + np.cumsum(fits) - 1).astype(np.int32)
        for other in range(bit):
            both = fits[having[other]]
            lacking, there = without[other][both], having[other][both]
            without[other] = np.concatenate([without[other], position[lacking]])
            having[other] = np.concatenate([having[other], position[there]])
        old = np.flatnonzero(fits).astype(np.int32)
        if len(masks) + len(old) > most:
            return None
        without.append(old)
        having.append(position[old])
        masks = np.concatenate([masks, masks[old] | (1 << bit)])
        total = np.concatenate([total, total[old] + size])
    return FittingSets(masks, total, tuple(without), tuple(having))
