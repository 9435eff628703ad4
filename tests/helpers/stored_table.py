"""A table in place of one that lies in storage."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class InRam:
    """A `StoredTable` of ``rows``; ``asked``: for which."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.asked = rows, list[int]()

    def read(self, row: int, memory: memoryview) -> None:
        self.asked.append(row)
        memory[:] = self.rows[row].view(torch.uint8).numpy().data

    def change(self, row: int, change: Callable[[memoryview], None]) -> None:
        self.asked.append(row)
        change(self.rows[row].view(torch.uint8).numpy().data)
