"""What the kernels of one library allocate and take: facts beside a training step, not part of it.

The same graph has other facts with another library of kernels, on another machine and with another number of
threads. A second library is one more `KernelFacts`: measured op by op (`poet.runtime.trials.measure`), stated
by a device's profile (`stated`), or read from JSON. Counting workspaces and laying out memory use such a
record, whichever library it is of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from poet.errors import KernelFactsError
from poet.util import codec
from poet.util.brief import brief

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


FORMAT, FORMAT_VERSION = "poet-kernel-facts", 1
PYTORCH = "pytorch-cpu"
"""The library of PyTorch's kernels for processors, by its name in profiles and records."""

_MOST_ALIGNMENT_BYTES = 1 << 21


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What the kernel behind one op allocates and takes.

    Attributes:
        name: of the op.
        workspace_bytes: hidden temporaries while it runs, beyond inputs and outputs.
        seconds: of one run; ``None``: not measured.
        allocations: of the first run, outputs included, by birth; an ``output`` counts among the buffers that
            the op allocates. ``None``: not known.
        repeat_allocations: of a recomputation; ``None``: those of the first run.
    """

    name: str
    workspace_bytes: int = 0
    seconds: float | None = None
    allocations: tuple[KernelAllocation, ...] | None = None
    repeat_allocations: tuple[KernelAllocation, ...] | None = None

    def __post_init__(self) -> None:
        if self.workspace_bytes < 0:
            raise KernelFactsError(f"op {self.name}: workspace of {self.workspace_bytes} bytes is negative")
        if self.seconds is not None and not 0.0 <= self.seconds < math.inf:
            raise KernelFactsError(f"op {self.name}: a run of {self.seconds} seconds; expected 0 or more")
        for run in (self.allocations or (), self.repeat_allocations or ()):
            made = [item.output for item in run if item.output is not None]
            if len(made) > len(set(made)):
                raise KernelFactsError(f"op {self.name}: two of its allocations become one output")

    def of_run(self, *, is_repeat: bool) -> tuple[KernelAllocation, ...] | None:
        """The allocations of the first run, or of a recomputation; ``None``: not known."""
        if is_repeat and self.repeat_allocations is not None:
            return self.repeat_allocations
        return self.allocations

    @property
    def outputs(self) -> int:
        """How many outputs its allocations belong to: one more than the largest number."""
        every = (*(self.allocations or ()), *(self.repeat_allocations or ()))
        return max((item.output + 1 for item in every if item.output is not None), default=0)


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """The facts of one library of kernels about the ops of one training step.

    Attributes:
        library: whose kernels, as a device's profile names them.
        ops: at most one record per op; of an op without one nothing is known.
        alignment_bytes: each allocation is a multiple of this.
        threads: that kernels ran with when they were measured; ``None``: they were not.
    """

    library: str
    ops: tuple[OpFacts, ...] = ()
    alignment_bytes: int = 1
    threads: int | None = None
    _by_name: dict[str, OpFacts] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._by_name.update({op.name: op for op in self.ops})
        if len(self._by_name) < len(self.ops):
            raise KernelFactsError(f"kernels {self.library}: two records of one op")
        if not 1 <= self.alignment_bytes <= _MOST_ALIGNMENT_BYTES:
            raise KernelFactsError(
                f"kernels {self.library}: an alignment of {self.alignment_bytes} bytes; "
                f"expected 1 to {_MOST_ALIGNMENT_BYTES}"
            )
        if self.threads is not None and self.threads < 1:
            raise KernelFactsError(f"kernels {self.library}: measured with {self.threads} threads")

    __repr__ = brief

    def of(self, op: str) -> OpFacts:
        """What is known about ``op``."""
        return self._by_name.get(op) or OpFacts(op)

    def step_seconds(self, ops: Iterable[str]) -> dict[str, float] | None:
        """The seconds of each of ``ops``; ``None`` where one was not measured."""
        found = {op: self.of(op).seconds for op in ops}
        measured = {op: seconds for op, seconds in found.items() if seconds is not None}
        return measured if len(measured) == len(found) else None

    def workspaces_as(self, library: str) -> KernelFacts:
        """The same workspaces, assumed of another ``library`` that nothing else is known about."""
        return KernelFacts(library, tuple(OpFacts(op.name, op.workspace_bytes) for op in self.ops))

    def to_json(self) -> dict[str, object]:
        """JSON-ready form; `from_json` gives equal facts back."""
        return {"format": FORMAT, "version": FORMAT_VERSION, **codec.encode(self)}

    @staticmethod
    def from_json(data: object, *, where: str = "kernel profile") -> KernelFacts:
        """The facts that `to_json` wrote.

        Raises:
            KernelFactsError: another format or version, a field too many or missing, or facts that cannot be.
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise KernelFactsError(f'{where}: not a kernel profile (its "format" must be {FORMAT!r})')
        if data.get("version") != FORMAT_VERSION:
            raise KernelFactsError(
                f"{where}: version {data.get('version')!r}, this poet reads {FORMAT_VERSION}"
            )
        fields = {key: item for key, item in data.items() if key not in ("format", "version")}
        return codec.decode(KernelFacts, fields, where=where, error=KernelFactsError)


def stated(library: str, ops: Mapping[str, int], *, workspace_bytes: int) -> KernelFacts:
    """The facts of a ``library`` that is said to need one workspace, whichever op runs.

    Args:
        library: whose kernels.
        ops: by name, the bytes that it holds beside that in any library: a strip's block.
        workspace_bytes: of each.
    """
    return KernelFacts(library, tuple(OpFacts(name, workspace_bytes + own) for name, own in ops.items()))
