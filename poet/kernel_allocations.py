"""The allocations of one run of a kernel: its outputs and its hidden temporaries, with their lifetimes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from poet.errors import KernelFactsError

_NONE = -1
_MOST_TICKS, _MOST_BYTES = 1 << 20, 1 << 48


@dataclass(frozen=True, slots=True)
class KernelAllocation:
    """One request of a kernel for memory.

    Attributes:
        size_bytes: as asked for.
        born: when, in ticks: requests and releases since the run began.
        died: the tick of the release; ``None``: with the run's end, or after it.
        output: which of the op's outputs it becomes; ``None``: a temporary.
    """

    size_bytes: int
    born: int
    died: int | None = None
    output: int | None = None

    def __post_init__(self) -> None:
        end = self.born + 1 if self.died is None else self.died
        if not 0 < self.size_bytes <= _MOST_BYTES or not 0 <= self.born < end <= _MOST_TICKS:
            when = f"from {self.born} to {self.died}"
            raise KernelFactsError(f"an allocation of {self.size_bytes} bytes {when} cannot be")
        if self.output is not None and (self.output < 0 or self.died is not None):
            raise KernelFactsError(f"an allocation that becomes output {self.output} lasts to the run's end")

    def to_data(self) -> list[int]:
        """JSON-ready form, read back by `from_data`."""
        ends = (_NONE if value is None else value for value in (self.died, self.output))
        return [self.size_bytes, self.born, *ends]

    @staticmethod
    def from_data(data: Any, where: str) -> KernelAllocation:
        """The allocation that `to_data` wrote.

        Raises:
            KernelFactsError: ``data`` is not of that form.
        """
        if not isinstance(data, list) or len(data) != 4 or any(type(item) is not int for item in data):
            raise KernelFactsError(f"{where}: an allocation is four whole numbers")
        size_bytes, born = data[:2]
        died, output = (None if item == _NONE else item for item in data[2:])
        return KernelAllocation(size_bytes, born, died, output)


def ticks(allocations: Iterable[KernelAllocation]) -> int:
    """How many ticks a run lasts at least."""
    return 1 + max((max(item.born, item.died or 0) for item in allocations), default=0)


def peak_bytes(allocations: Iterable[KernelAllocation], *, alignment_bytes: int) -> int:
    """The most that is held at once, each allocation rounded up to the alignment."""
    changes = []
    for item in allocations:
        size_bytes = -(-item.size_bytes // alignment_bytes) * alignment_bytes
        changes += [(item.born, size_bytes)]
        changes += [(item.died, -size_bytes)] if item.died is not None else []
    return max(accumulate(change for _, change in sorted(changes)), default=0)
