"""Whether rows of a table that are updated one by one get the bits of an update of all.

Sums and updates go element by element, but a kernel may treat the last elements of a tensor, which fill no
vector, in another way than the others. So an update by row is tried against that of a whole table: when a
model is imported, and when a plan is opened, on the machine that will train.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from poet.errors import ReplayError
from poet.graph import Graph
from poet.graph_parts import STORED_ROWS_SGD
from poet.runtime.kernels import tables
from poet.runtime.system.process import likely_thread_counts, torch_threads
from poet.runtime.trials.trial_bench import same_bits

_COUNT, _NUMBERS, _RATE = 67, 96, 0.0371


def is_exact_by_row(width: int) -> bool:
    """Whether it is for rows of so many elements, with one thread, torch's number and that of all cores."""
    return all(_is_exact(width, threads) for threads in likely_thread_counts())


def check_row_updates(graph: Graph) -> None:
    """Refuse a graph with updates by row that give other bits on this machine, at torch's threads.

    Raises:
        ReplayError: names the op.
    """
    for op in graph.ops:
        width = op.call.args[2] if op.call.target == STORED_ROWS_SGD else None
        if isinstance(width, int) and not _is_exact(width, torch.get_num_threads()):
            raise ReplayError(
                f"op {op.name} updates rows of {width} numbers by themselves, which gives other bits here "
                "than an update of the whole table; plan on this machine"
            )


@cache
def _is_exact(width: int, threads: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(_COUNT, width, generator=generator)
    gradient = torch.randn(_NUMBERS, width, generator=generator)
    numbers = torch.randint(_COUNT, (_NUMBERS,), generator=generator)
    by_row = _InRam(table.clone())
    with torch_threads(threads):
        whole = torch.ops.aten.embedding_dense_backward.default(gradient, numbers, _COUNT, 0, False)
        table.add_(whole, alpha=-_RATE)
        tables.stored_rows_sgd(by_row, numbers, _COUNT, width, torch.float32, gradient, _RATE, 0)
    return same_bits(table, by_row.table)


class _InRam:
    """A `StoredTable` that lies in RAM."""

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self._rows = table.view(torch.uint8).numpy()

    def read(self, row: int, memory: memoryview) -> None:
        memory[:] = self._rows[row].data

    def change(self, row: int, change: Callable[[memoryview], None]) -> None:
        change(self._rows[row].data)
