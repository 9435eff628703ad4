"""Gradients for callers who ask to see them: those that exist whole, those that strips make in blocks, and
those of tables whose rows are updated in storage.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from poet.ir.graph import Graph, Op, Parameter, Symbol, stored_row_of
from poet.plans.training_plan import Plan
from poet.problem.schedule import Compute
from poet.runtime.kernels.cells import Cells, new_buffer, view_of
from poet.runtime.kernels.strips import StripRun
from poet.runtime.kernels.tables import look_up_backward


def _nothing() -> None:
    """What is to be done before a gradient that exists whole."""


@dataclass(frozen=True, slots=True)
class GradientTap:
    """Gives one gradient to a caller who asked to see it.

    Attributes:
        name: of the parameter.
        take: gives the gradient, after the step that makes it.
        open: to be called before that step; what is allocated is not the step's.
    """

    name: str
    take: Callable[[], torch.Tensor]
    open: Callable[[], None] = _nothing


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


def _whole(cells: Cells, name: str) -> torch.Tensor:
    """A gradient that exists whole."""
    gradient: torch.Tensor = cells.contents[cells.value(name)]
    return gradient


def _of_rows(op: Op, cells: Cells, first: int, count: int) -> torch.Tensor:
    """That of some rows of a table that ``op`` updates in storage: made beside the step, as for all rows."""
    numbers, _, _, _, looked_up, _, padding = op.call.args
    given, asked = (cells.contents[cells.argument(item)] for item in (looked_up, numbers))
    assert isinstance(padding, int)
    return look_up_backward(given, asked, first, count, padding)


def _rows_tap(parameter: Parameter, op: Op, graph: Graph, cells: Cells) -> GradientTap:
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    (row_bytes, _), buffer = stored_row_of(op), graph.buffer_of(parameter.value)
    first_bytes = sum(sizes_bytes[name] for name in op.stored[: op.stored.index(buffer)])
    first, count = first_bytes // row_bytes, sizes_bytes[buffer] // row_bytes
    return GradientTap(parameter.name, functools.partial(_of_rows, op, cells, first, count))


def gradient_taps(plan: Plan, cells: Cells, strips: BoundStrips) -> dict[int, tuple[GradientTap, ...]]:
    """A tap per gradient by the index of the step that first makes it."""
    graph = plan.graph
    inner = {value.name: op for op in graph.ops if op.strip is not None for value in op.strip.inner}
    by_row = {name: op for op in graph.ops if op.stored for name in op.updates}
    tapped: dict[str, list[GradientTap]] = {}  # by what makes it: a buffer, that an op writes or updates
    within: dict[str, list[GradientTap]] = {}  # or an op
    summed: dict[str, list[GradientTap]] = {}
    for parameter in graph.parameters:
        name, gradient, sums = parameter.name, parameter.gradient, parameter.accumulator
        if gradient is None:
            continue
        if sums is not None:  # what a loop of one's own finds in .grad before its step
            tap = GradientTap(name, functools.partial(_whole, cells, sums))
            summed.setdefault(graph.buffer_of(sums), []).append(tap)
        elif (op := by_row.get(graph.buffer_of(parameter.value))) is not None:
            within.setdefault(op.name, []).append(_rows_tap(parameter, op, graph, cells))
        elif gradient in inner:  # it exists one block at a time, and is put together beside the step
            strip = strips.of(inner[gradient])
            take, gather = (
                functools.partial(strip.gathered, gradient),
                functools.partial(strip.gather, gradient),
            )
            within.setdefault(inner[gradient].name, []).append(GradientTap(name, take, gather))
        else:
            tap = GradientTap(name, functools.partial(_whole, cells, gradient))
            tapped.setdefault(graph.buffer_of(gradient), []).append(tap)
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
