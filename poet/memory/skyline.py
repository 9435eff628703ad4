"""Places for thousands of blocks in a twentieth of a second: the block that can lie lowest comes next.

Every block has a height, the top of what is placed at its times so far; the lowest is placed at its height.
Nothing is ever put into a gap below (compare the best-fit heuristic for strip packing: Burke, Kendall and
Whitwell, "A new placement heuristic for the orthogonal stock-cutting problem", 2004). Among blocks of nearly
the same height a key decides, as the time for which they stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


def lowest_first(
    sizes_bytes: Numbers,
    alignments_bytes: Numbers,
    conflicts: Sequence[Numbers],
    keys: npt.NDArray[np.float64],
    *,
    slack_bytes: int = 0,
) -> Numbers:
    """Offsets of blocks, in bytes.

    Args:
        sizes_bytes: of the blocks.
        alignments_bytes: of which their offsets are to be multiples.
        conflicts: per block, those that are needed at a time at which it is.
        keys: of blocks that could lie equally low, the one of the least comes first.
        slack_bytes: by which a block may lie higher and counts as equally low.
    """
    count = len(sizes_bytes)
    rank = np.empty(count, dtype=np.int64)
    rank[np.argsort(keys, kind="stable")] = np.arange(count)
    heights = np.zeros(count, dtype=np.int64)
    offsets = np.full(count, -1, dtype=np.int64)
    placed = np.iinfo(np.int64).max
    open_heights = heights.copy()  # those of blocks without a place
    for _ in range(count):
        lowest = np.flatnonzero(open_heights <= open_heights.min() + slack_bytes)
        block = lowest[rank[lowest].argmin()]
        offsets[block] = heights[block]
        top = heights[block] + sizes_bytes[block]
        open_heights[block] = placed
        others = conflicts[block]
        others = others[offsets[others] < 0]
        alignments = alignments_bytes[others]
        raised = np.maximum(heights[others], -(-top // alignments) * alignments)
        heights[others] = open_heights[others] = raised
    return offsets
