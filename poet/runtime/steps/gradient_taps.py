"""Gradients for callers who ask to see them: those that exist whole, those that strips make in blocks, and
those of tables whose rows are updated in storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from poet.ir.graph import Graph, Op, Parameter, Symbol, stored_row_of
from poet.plans.training_plan import Plan
from poet.problem.schedule import Compute
from poet.runtime.kernels.cells import Cells, new_buffer, view_of
from poet.runtime.kernels.strips import StripRun
from poet.runtime.kernels.tables import look_up_backward


class GradientTap(Protocol):
    """Gives one gradient to a caller who asked to see it.

    Attributes:
        name: of the parameter.
    """

    @property
    def name(self) -> str: ...

    def open(self) -> None:
        """To be called before the step that makes it; what is allocated is not the step's."""

    def take(self) -> torch.Tensor:
        """The gradient, after that step."""


@dataclass(frozen=True, slots=True)
class _CellTap:
    """Of a gradient that exists whole."""

    name: str
    contents: list[Any]
    cell: int

    def open(self) -> None:
        pass

    def take(self) -> torch.Tensor:
        gradient: torch.Tensor = self.contents[self.cell]
        return gradient


@dataclass(frozen=True, slots=True)
class _BlockTap:
    """Of a gradient that exists one block at a time: it is put together beside the step."""

    name: str
    strip: BoundStrip
    value: str

    def open(self) -> None:
        self.strip.gather(self.value)

    def take(self) -> torch.Tensor:
        return self.strip.gathered(self.value)


@dataclass(frozen=True, slots=True)
class _RowsTap:
    """Of some rows of a table that ``op`` updates in storage: it is made beside the step, as for all rows."""

    name: str
    op: Op
    cells: Cells
    first: int
    count: int

    def open(self) -> None:
        pass

    def take(self) -> torch.Tensor:
        numbers, _, _, _, looked_up, _, padding = self.op.call.args
        given, asked = (self.cells.contents[self.cells.argument(item)] for item in (looked_up, numbers))
        assert isinstance(padding, int)
        return look_up_backward(given, asked, self.first, self.count, padding)


class BoundStrip:
    """A strip with its kernels and cells; `bound` makes it once."""

    def __init__(self, op: Op, cells: Cells) -> None:
        assert op.strip is not None
        self._run = StripRun(op.strip, op.outputs, cells.types)
        self._cells = {name: cells.value(name) for name in op.strip.call.refs()}
        self._scalars = {
            argument.name: cells.argument(argument)
            for link in op.strip.links
            for argument in (*link.call.args, *(item for _, item in link.call.kwargs))
            if isinstance(argument, Symbol) and argument.kind == "hyperparameter"
        }
        self._contents = cells.contents
        self._inner = {value.name: value for value in op.strip.inner}
        self._targets: dict[str, torch.Tensor] = {}  # by inner output

    def bound(self) -> tuple[torch.Tensor | None, ...]:
        """Run every block."""
        see = self._see if self._targets else None
        return self._run.run(self._tensor, self._scalar, see)

    def gather(self, value: str) -> None:
        """Make memory for all of an inner value, which the next run fills."""
        whole = self._inner[self._inner[value].buffer]
        raw = new_buffer(whole.type.extent_bytes)
        self._targets[whole.name] = view_of(raw.untyped_storage(), whole.type)

    def gathered(self, value: str) -> torch.Tensor:
        """What was gathered of it since; it is released here."""
        wanted = self._inner[value]
        whole = self._targets.pop(wanted.buffer)
        return view_of(whole.untyped_storage(), wanted.type)

    def _see(self, name: str, dim: int, block: torch.Tensor, start: int) -> None:
        if name in self._targets:
            self._targets[name].narrow(dim, start, block.shape[dim]).copy_(block)

    def _tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._contents[self._cells[name]]
        return tensor

    def _scalar(self, name: str) -> float:
        amount: float = self._contents[self._scalars[name]]
        return amount


class BoundStrips:
    """The bound strips of a graph, each made once."""

    def __init__(self, graph: Graph, cells: Cells) -> None:
        self._bound = {op.name: BoundStrip(op, cells) for op in graph.ops if op.strip is not None}

    def of(self, op: Op) -> BoundStrip:
        return self._bound[op.name]


def _rows_tap(parameter: Parameter, op: Op, graph: Graph, cells: Cells) -> _RowsTap:
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    (row_bytes, _), buffer = stored_row_of(op), graph.buffer_of(parameter.value)
    before = op.stored[: op.stored.index(buffer)]
    first_bytes = sum(sizes_bytes[name] for name in before)
    return _RowsTap(parameter.name, op, cells, first_bytes // row_bytes, sizes_bytes[buffer] // row_bytes)


def gradient_taps(plan: Plan, cells: Cells, strips: BoundStrips) -> dict[int, tuple[GradientTap, ...]]:
    """A tap per gradient by the index of the step that first makes it."""
    graph = plan.graph
    inner = {value.name: op for op in graph.ops if op.strip is not None for value in op.strip.inner}
    by_row = {name: op for op in graph.ops if op.stored for name in op.updates}
    tapped: dict[str, list[GradientTap]] = {}
    within: dict[str, list[GradientTap]] = {}
    summed: dict[str, list[GradientTap]] = {}
    for parameter in graph.parameters:
        if parameter.gradient is None:
            continue
        if parameter.accumulator is not None:  # what a loop of one's own finds in .grad before its step
            tap = _CellTap(parameter.name, cells.contents, cells.value(parameter.accumulator))
            summed.setdefault(graph.buffer_of(parameter.accumulator), []).append(tap)
        elif (op := by_row.get(graph.buffer_of(parameter.value))) is not None:
            within.setdefault(op.name, []).append(_rows_tap(parameter, op, graph, cells))
        elif parameter.gradient in inner:
            op = inner[parameter.gradient]
            within.setdefault(op.name, []).append(
                _BlockTap(parameter.name, strips.of(op), parameter.gradient)
            )
        else:
            tap = _CellTap(parameter.name, cells.contents, cells.value(parameter.gradient))
            tapped.setdefault(graph.buffer_of(parameter.gradient), []).append(tap)
    first_runs: dict[str, int] = {}
    for index, step in enumerate(plan.schedule):
        if isinstance(step, Compute):
            first_runs.setdefault(step.op, index)
    taps = {}
    for op in graph.ops:
        made = [tap for name in graph.writes(op) for tap in tapped.get(name, ())]
        made += within.get(op.name, ())
        made += [tap for name in op.updates for tap in summed.get(name, ())]
        if made:
            taps[first_runs[op.name]] = tuple(made)
    return taps
