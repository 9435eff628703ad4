"""Parameters in parts: a large weight is several tensors, and what is done with it is done part by part.

A plan that has the weight in storage between steps fetches, uses and updates one part after the other.
Products that read it run once for each part, its gradient is made and used in parts, and each part has its
own update: for the planner they are tensors and ops like any other. In parts are those parameters that decide
the least RAM of a step, in about as many parts as leave little of them beside what else an op holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from poet.errors import ModelError
from poet.ir.calls import contiguous
from poet.ir.graph import (
    Argument,
    Buffer,
    Call,
    Graph,
    Op,
    Parameter,
    Ref,
    Role,
    TensorType,
    Value,
    Whole,
    lasting_of,
)
from poet.ir.named import Bounds, bounds_of
from poet.ir.wholes import Axis, PartedCall, cuts_of, narrowed, result_dim, run_of
from poet.passes.part_uses import ACCUMULATE, IsExact, found_uses, uses_of
from poet.passes.rewrite import GraphUses, with_updates_placed
from poet.runtime.trials.forms import is_exact_in_parts
from poet.runtime.trials.trial import recalled

LEAST_BYTES = 4 * 1024 * 1024
"""Of a parameter: each part costs some calls."""

LEAST_SHARE = 1 / 8
"""Of what the hungriest op holds: a parameter below decides no bound."""

_MOST_PARTS = 16  # about so many: more save little beside what else an op holds
_LEAST_PART_BYTES = 1024 * 1024
_STEPS = (64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Rows at which kernels' own stretches of a sum were seen to end; and all multiples of the next."""
_LONG_STEP = 1536


def with_parts(graph: Graph, is_exact: IsExact = is_exact_in_parts) -> Graph:
    """``graph`` with those parameters in parts that decide its bound and can be, bit for bit.

    Args:
        graph: as traced, with no strips.
        is_exact: tries them.
    """
    with recalled():
        return divided(graph, _chosen(graph, is_exact))


def _chosen(graph: Graph, is_exact: IsExact) -> dict[str, Bounds]:
    """The parameters in parts, by name, and where their parts begin and end."""
    index = GraphUses(graph)
    bytes_of = index.sizes_bytes
    shares: dict[str, float] = {}  # of what each buffer of a parameter in parts takes, that is there at once
    chosen: dict[str, Bounds] = {}
    for parameter in sorted(graph.parameters, key=lambda item: -bytes_of[graph.buffer_of(item.value)]):
        size_bytes = bytes_of[graph.buffer_of(parameter.value)]
        hungriest = max(
            sum(bytes_of[name] * shares.get(name, 1.0) for name in {*graph.reads(op.call), *graph.writes(op)})
            for op in graph.ops
        )
        if size_bytes < max(LEAST_BYTES, LEAST_SHARE * hungriest):
            break
        uses = uses_of(index, parameter)
        bounds = None if uses is None else _exact_bounds(index, parameter, uses.calls, is_exact)
        if bounds is None:
            continue
        chosen[parameter.name] = bounds
        share = (bounds[0][1] - bounds[0][0]) / bounds[-1][1]
        own = [value for _, value in lasting_of(parameter)]
        own += [] if parameter.gradient is None else [parameter.gradient]
        shares |= {graph.buffer_of(value): share for value in own}
    return chosen


def _exact_bounds(
    index: GraphUses,
    parameter: Parameter,
    calls: Iterable[PartedCall],
    is_exact: IsExact,
) -> Bounds | None:
    """The parts nearest to what is wanted with which every call is exact."""
    type_ = index.types[parameter.value]
    rows = type_.shape[0]
    row_bytes = type_.extent_bytes // rows
    wanted = max(rows / _MOST_PARTS, _LEAST_PART_BYTES / row_bytes)
    steps = {*_STEPS, *range(_LONG_STEP, rows, _LONG_STEP)}
    offered = [step for step in steps if wanted / 2 <= step <= max(wanted * 4, rows / 2) and step < rows]
    sums_first = sorted(calls, key=lambda item: item.axis is not Axis.SUM)
    for step in sorted(offered, key=lambda item: abs(math.log(item / wanted)))[:6]:
        bounds = tuple((start, min(start + step, rows)) for start in range(0, rows, step))
        if all(is_exact(parted, bounds) for parted in sums_first):
            return bounds
    return None


def divided(graph: Graph, chosen: Mapping[str, Bounds]) -> Graph:
    """``graph`` with each of some parameters, all of whose uses can be divided, in parts of these bounds."""
    for name, bounds in chosen.items():
        graph = _Division(graph, name, bounds, lambda parted, bounds: True).graph()
    return graph


def in_parts_of(training: Graph, graph: Graph, is_exact: IsExact = is_exact_in_parts) -> Graph:
    """``graph``, of a schedule auxiliary to ``training``, with the same parameters in the same parts.

    What cannot be divided there, or is not exact, reads the parts joined for it.
    """
    for whole in training.wholes:
        graph = _Division(graph, whole.name, bounds_of(training, whole), is_exact).graph()
    return graph


def tensors_in_parts(before: Graph, after: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of ``after``, which is ``before`` with parameters in parts: views of those given."""
    made, whole_of = dict(tensors), {item.name: item for item in before.parameters}
    parts = {item.name: item for item in after.parameters}
    for whole in after.wholes:
        for what, value in lasting_of(whole_of[whole.name]):
            tensor = made.pop(value, None)
            if tensor is None:
                continue  # sums of gradients have no content yet
            for name, (start, stop) in zip(whole.parts, bounds_of(after, whole), strict=True):
                made[dict(lasting_of(parts[name]))[what]] = tensor[start:stop]
    return made


class _Division:
    """A graph while one of its parameters is put into parts."""

    def __init__(self, graph: Graph, name: str, bounds: Bounds, is_exact: IsExact) -> None:
        self._graph, self._bounds = graph, bounds
        self._index = GraphUses(graph)
        self._whole = next(item for item in graph.parameters if item.name == name)
        uses = found_uses(self._index, self._whole)
        if uses is None:
            raise ModelError(f"parameter {name} cannot be in parts here as it is in training")
        self._uses = uses.with_joined(graph, bounds, is_exact)
        self._roles = {buffer.name: buffer.role for buffer in graph.buffers}
        self._added: dict[str, Value] = {}
        self._new_bytes: dict[str, tuple[int, Role]] = {}
        own = [value for _, value in lasting_of(self._whole)]
        own += [name for maker in self._uses.makers for name in self._index.op(maker).outputs if name]
        self._parts = {graph.buffer_of(value): self._parts_of(value) for value in own}

    def graph(self) -> Graph:
        graph, parameters = self._graph, []
        for item in graph.parameters:
            parameters += [item] if item is not self._whole else [*self._parameters()]
        ops = self._ops()
        gone = self._parts.keys() - ({self._joined} if self._uses.undivided else set())
        buffers = [
            replace(item, role=Role.ACTIVATION) if item.name == self._joined else item
            for item in graph.buffers
            if item.name not in gone
        ]
        buffers += [Buffer(name, size, role) for name, (size, role) in self._new_bytes.items()]
        values = [item for item in graph.values if item.buffer not in gone]
        there = {item.name for item in values}
        values += [item for item in self._added.values() if item.name not in there]
        labels = tuple(self._label(bounds, self._whole.name) for bounds in self._bounds)
        whole = Whole(self._whole.name, self._index.types[self._whole.value], labels, self._uses.calls)
        return replace(
            graph,
            buffers=tuple(buffers),
            values=tuple(values),
            ops=tuple(ops),
            parameters=tuple(parameters),
            wholes=(*graph.wholes, whole),
        )

    @property
    def _joined(self) -> str:
        return self._graph.buffer_of(self._whole.value)

    # --- values ---

    @staticmethod
    def _label(bounds: tuple[int, int], name: str) -> str:
        return f"{name}[{bounds[0]}:{bounds[1]}]"

    def _parts_of(self, value: str) -> tuple[str, ...]:
        """New values, each on a buffer of its own, in place of ``value``."""
        type_ = self._index.types[value]
        role = self._roles[self._graph.buffer_of(value)]
        return tuple(
            self._new(
                self._label((start, stop), value),
                contiguous(type_.dtype, (stop - start, *type_.shape[1:])),
                role,
            )
            for start, stop in self._bounds
        )

    def _new(self, name: str, type_: TensorType, role: Role) -> str:
        self._added[name] = Value(name, name, type_)
        self._new_bytes[name] = (type_.extent_bytes, role)
        return name

    def _view(self, name: str, buffer: str, type_: TensorType) -> str:
        self._added[name] = Value(name, buffer, type_)
        return name

    def _cut(self, value: str, dim: int, part: int) -> str:
        """What a run on a part is given in place of ``value``, which is cut along ``dim``."""
        start, stop = self._bounds[part]
        type_, buffer = self._index.types[value], self._graph.buffer_of(value)
        label = f"{value}[{':,' * dim}{start}:{stop}]"
        if buffer not in self._parts:
            return self._view(label, buffer, narrowed(type_, dim, start, stop))
        own = self._parts[buffer][part]
        if type_ == self._index.types[self._whole.value]:
            return own
        kind = narrowed(type_, dim, start, stop)
        return self._view(label, own, replace(kind, offset=0))

    # --- ops ---

    def _parameters(self) -> Iterator[Parameter]:
        whole, parts = self._whole, self._parts
        for number, bounds in enumerate(self._bounds):

            def part_of(value: str, number: int = number) -> str:
                return parts[self._graph.buffer_of(value)][number]

            yield replace(
                whole,
                name=self._label(bounds, whole.name),
                value=part_of(whole.value),
                gradient=None if whole.gradient is None else part_of(whole.gradient),
                optimizer_state=tuple((state, part_of(value)) for state, value in whole.optimizer_state),
                accumulator=None if whole.accumulator is None else part_of(whole.accumulator),
            )

    def _ops(self) -> list[Op]:
        """All ops, each divided one as its runs; the gradient's with those that last read the parameter."""
        uses, ops = self._uses, list[Op]()
        beside = self._beside()
        sums, updates = list[Op](), list[Op]()
        undivided, is_joined = {op.name for op in uses.undivided}, False
        for op in self._graph.ops:
            if op.name in undivided and not is_joined:
                is_joined = True
                ops.append(self._join())
            if op.name in uses.ends:
                divided = self._runs(op, uses.ends[op.name])
                (sums if op.call.target == ACCUMULATE else updates).extend(divided)
            elif op.name in uses.products:
                runs = self._runs(op, uses.products[op.name])
                if op is beside:
                    made = self._made()
                    ops += [
                        item for run, of_part in zip(runs, made, strict=False) for item in (run, *of_part)
                    ]
                    ops += runs[len(made) :]
                else:
                    ops += runs
            elif op.name not in uses.makers:
                ops.append(op)
            elif beside is None and op.name == [*uses.makers][-1]:
                ops += [item for of_part in self._made() for item in of_part]
        buffers = {value.name: value.buffer for value in (*self._graph.values, *self._added.values())}
        for ends in (sums, updates):
            ops = with_updates_placed(ops, ends, buffers.__getitem__)
        return ops

    def _made(self) -> list[tuple[Op, ...]]:
        """Per part what makes its gradient."""
        each = [self._runs(self._index.op(name), parted) for name, parted in self._uses.makers.items()]
        return [*zip(*each, strict=True)]

    def _beside(self) -> Op | None:
        """The last op that reads the parameter, where its gradient can be made part by part with it."""
        if not self._uses.makers or not self._uses.products:
            return None
        last = max(self._uses.products, key=self._index.places.__getitem__)
        place = self._index.places[last]
        makers = [self._index.op(name) for name in self._uses.makers]
        made = {self._graph.buffer_of(name) for op in makers for name in op.outputs if name}
        for buffer in {buffer for op in makers for buffer in self._graph.reads(op.call)} - made:
            made_by = self._index.makers.get(buffer)
            if made_by is not None and self._index.places[made_by.name] >= place:
                return None
            if any(buffer in op.updates for op in self._graph.ops):
                return None
        return self._graph.ops[place]

    def _join(self) -> Op:
        """The parameter whole, for what cannot be divided: a copy that is there while it is read."""
        parts = tuple(map(Ref, self._parts[self._joined]))
        return Op(f"{self._whole.name}.joined", Call("aten.cat.default", (parts, 0)), (self._whole.value,))

    def _runs(self, op: Op, parted: PartedCall) -> list[Op]:
        """``op`` once for each part, and what joins the results."""
        cuts, given = dict(cuts_of(parted)), list[list[Argument]]()
        for part in range(len(self._bounds)):
            args = list(op.call.args)
            for place, dim in cuts.items():
                item = args[place]
                assert isinstance(item, Ref)
                args[place] = Ref(self._cut(item.value, dim, part))
            given.append(args)
        dim_joined = result_dim(parted.axis)
        if dim_joined is None and parted.axis is not Axis.ELEMENTS:
            return self._added_up(op, parted, given)
        calls = [run_of(parted, args, bounds, None) for bounds, args in zip(self._bounds, given, strict=True)]
        if dim_joined is None:
            return [self._updating(op, call, part) for part, call in enumerate(calls)]
        (output,) = op.outputs
        assert output is not None
        if self._graph.buffer_of(output) in self._parts:  # a gradient, of which parts are wanted
            made = self._parts[self._graph.buffer_of(output)]
            return [
                Op(self._label(bounds, op.name), call, (name,))
                for bounds, call, name in zip(self._bounds, calls, made, strict=True)
            ]
        return self._joined_up(op, output, calls, dim_joined)

    def _updating(self, op: Op, call: Call, part: int) -> Op:
        updates = tuple(self._parts[name][part] for name in op.updates)
        return replace(op, name=self._label(self._bounds[part], op.name), call=call, updates=updates)

    def _added_up(self, op: Op, parted: PartedCall, given: list[list[Argument]]) -> list[Op]:
        """Each goes on from what the runs before it gave; the last one gives the op's output."""
        (output,) = op.outputs
        assert output is not None
        ops, so_far = list[Op](), None
        for bounds, args in zip(self._bounds, given, strict=True):
            call = run_of(parted, args, bounds, so_far)
            is_last = bounds == self._bounds[-1]
            label = f"{output}.sum[:{bounds[1]}]"
            made = output if is_last else self._new(label, self._index.types[output], Role.ACTIVATION)
            ops.append(Op(op.name if is_last else self._label(bounds, op.name), call, (made,)))
            so_far = Ref(made)
        return ops

    def _joined_up(self, op: Op, output: str, calls: list[Call], dim: int) -> list[Op]:
        """Each gives its part of the result; one more op puts them together."""
        ops, made, type_ = [], [], self._index.types[output]
        for bounds, call in zip(self._bounds, calls, strict=True):
            shape = narrowed(type_, dim, *bounds).shape
            label = self._label(bounds, f"{output}.part")
            made.append(self._new(label, contiguous(type_.dtype, shape), Role.ACTIVATION))
            ops.append(Op(self._label(bounds, op.name), call, (made[-1],)))
        joined = Call("aten.cat.default", (tuple(map(Ref, made)), dim))
        return [*ops, replace(op, call=joined)]
