"""Calls that kernels would not survive: a plan of somebody else is held against what they trust.

Whatever a traced plan has passes. `poet.runtime.kernels.signatures` says what each kernel must be given.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from poet.errors import PlanError
from poet.ir.graph import Argument, Blank, Call, Graph, Op, Ref, Strip, TensorType
from poet.ir.operators import WRITES
from poet.ir.strips import cut_type
from poet.runtime.kernels.signatures import MADE_BY, SIGNATURES, Given, signature_missed

_LARGEST = 1 << 40
"""No size, stride or padding comes near it; sums and products of some must have 64 bits."""


def check_calls(graph: Graph) -> None:
    """Refuse calls that kernels would not survive.

    Raises:
        PlanError: names the op and what its operator must be given.
    """
    known = _Known(graph)
    for op in graph.ops:
        if op.strip is not None:
            known.check_strip(op, op.strip)
        else:
            known.check(op, op.call)
            if op.repeat_call is not None:
                known.check(op, op.repeat_call)
        _check_written(op, known.types)


class _Known:
    """What is known of a graph's values before anything runs."""

    def __init__(self, graph: Graph) -> None:
        self.types = {value.name: value.type for value in graph.values}
        strips = (op.strip for op in graph.ops if op.strip is not None)
        self.types |= {value.name: value.type for strip in strips for value in strip.inner}
        self._buffer_of = graph.buffer_of
        self._made_by = {
            name: (op, place) for op in graph.ops for place, name in enumerate(op.outputs) if name
        }
        self._written = {buffer for op in graph.ops for buffer in op.updates}

    def given(self, argument: Argument) -> Given:
        """``argument``, or the type of the tensor that it is."""
        if isinstance(argument, Blank):
            return argument.type
        return self.types[argument.value] if isinstance(argument, Ref) else argument

    def check(self, op: Op, call: Call) -> None:
        """A call on whole values."""
        for argument in (*call.args, *(item for _, item in call.kwargs)):
            for item in argument if isinstance(argument, tuple) else ():
                if isinstance(item, int) and abs(item) >= _LARGEST:
                    raise PlanError(f"op {op.name} calls {call.target} with {argument}, which no memory has")
        if call.target == "poet.with_rng_state" and len(call.args) > 1:
            call = Call(str(call.args[1]), call.args[2:], call.kwargs)
        if call.target not in SIGNATURES:
            return
        args, named = map(self.given, call.args), {key: self.given(item) for key, item in call.kwargs}
        missed = signature_missed(call.target, *args, **named)
        if missed is not None:
            given = ", ".join(str(self.given(item)) for item in call.args)
            raise PlanError(f"op {op.name} calls {call.target} with {given}; its kernel takes {missed}")
        self._check_made(op, call)

    def _check_made(self, op: Op, call: Call) -> None:
        """What is trusted was made by the one operator that may, of the same shapes, and is as it was."""
        row = MADE_BY.get(call.target)
        if row is None:
            return
        trusted = call.args[row.place]
        name = trusted.value if isinstance(trusted, Ref) else ""
        maker, output = self._made_by.get(name, (None, 0))
        if (
            maker is None
            or (maker.call.target, output) != (row.target, row.output)
            or (maker.repeat_call is not None and maker.repeat_call.target != row.target)
            or self._buffer_of(name) in self._written
            or any(self._shape(maker.call, one) != self._shape(call, other) for one, other in row.alike)
        ):
            raise PlanError(
                f"op {op.name} calls {call.target} without what {row.target} made of the same tensor"
            )

    def _shape(self, call: Call, place: int) -> tuple[int, ...] | None:
        type_ = self.given(call.args[place])
        return type_.shape if isinstance(type_, TensorType) else None

    def check_strip(self, op: Op, strip: Strip) -> None:
        """Calls on the first and the last block: the others are as large as the first."""
        for link, (start, stop) in itertools.product(strip.links, {strip.bounds[0], strip.bounds[-1]}):
            if link.call.target in MADE_BY and not strip.is_whole:
                raise PlanError(f"op {op.name} calls {link.call.target} in blocks, which poet does not")
            args = list(link.call.args)
            for place, dim in link.cuts:
                args[place] = self._block(args[place], dim, stop - start)
            self.check(op, replace(link.call, args=tuple(args)))

    def _block(self, argument: Argument, dim: int, length: int) -> Argument:
        if isinstance(argument, tuple):
            return (*argument[:dim], length, *argument[dim + 1 :])
        type_ = self.given(argument)
        return Blank(cut_type(type_, dim, length)) if isinstance(type_, TensorType) else length


def _check_written(op: Op, types: Mapping[str, TensorType]) -> None:
    """What is written in place has a place of its own for each element."""
    links = () if op.strip is None else op.strip.links
    for call in (op.call, op.recall, *(link.call for link in links)):
        places = () if call is None else WRITES.get(call.target, ())
        for argument in (call.args[place] for place in places if call and place < len(call.args)):
            name = argument.value if isinstance(argument, Ref) else ""
            kind = types.get(name)
            if kind is not None and kind.overlaps_itself:
                raise PlanError(
                    f"op {op.name} writes {name}, which is {kind} with strides {kind.strides}: its elements "
                    "overlap"
                )
