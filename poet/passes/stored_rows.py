"""Look-ups in a table, read row by row where the table lies in storage, and updated there.

A table in storage between steps is fetched whole for a look-up, or in parts one after the other, whichever
rows are asked for. Where it is frozen, what lies in storage is its content in every step, so that one op
(`poet.runtime.kernels.tables.stored_rows`) can read the rows that are asked for and nothing else. What else
reads the table, as a head that shares it, stays as it is.

Where it is trained by SGD without momentum and decay, rows that were not looked up stay as they are. If one
look-up is all that reads it, one more op (`stored_rows_sgd`) takes the place of its gradient and its updates,
and changes the rows that were looked up where they lie. What was looked up is then not looked up again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

from poet.ir.calls import Argument, contiguous
from poet.ir.graph import (
    LARGEST_WRITTEN_ROW_BYTES,
    STORED_ROWS,
    STORED_ROWS_SGD,
    Call,
    Graph,
    Op,
    Parameter,
    Ref,
    Symbol,
    stored_row_of,
)
from poet.ir.kernel_facts import KernelAllocation, KernelFacts, OpFacts, peak_bytes
from poet.passes.rewrite import GraphUses, Rewrite, Technique
from poet.runtime.trials.forms import row_trial
from poet.runtime.trials.trial import is_exact

_WHOLE, _PART = "aten.embedding.default", "poet.look_up"
_WHOLE_BACK, _PART_BACK = "aten.embedding_dense_backward.default", "poet.look_up_backward"
_NUMBER_BYTES = 8


def row_reads(
    graph: Graph, kernels: KernelFacts | None = None, *, others: Container[str] = ()
) -> dict[str, Rewrite]:
    """What look-ups of ``graph`` become that read rows in storage, those in one table together.

    By the op that gives the first result.

    Args:
        graph: a training step or an evaluation.
        kernels: of its ops.
        others: ops that have other forms already.
    """
    index = _Index(graph)
    found: dict[tuple[str, ...], Rewrite] = {}
    for op in graph.ops:
        chain = index.chain(op)
        ends = index.ends_of(chain)
        if not chain or ends is None or any(name in others for name in _named(chain, ends)):
            continue
        table = tuple(map(index.table_of, chain))
        before = found.get(table, Rewrite({}))
        made = index.rewrite(chain, table, ends)
        gradients = {**before.gradients, **made.gradients}
        found[table] = Rewrite(
            {**before.ops, **made.ops}, (), (*before.gone, *made.gone), gradients, Technique.STORED_ROWS
        )
    return {
        each.made[0].name: each if kernels is None else replace(each, facts=_facts(index, kernels, each))
        for each in found.values()
    }


def _facts(index: _Index, kernels: KernelFacts, rewrite: Rewrite) -> dict[str, OpFacts]:
    """What the kernels of ``rewrite`` need, storage apart.

    Look-ups need memory for the result, and as long as those that they take the place of; updates need it for
    sums of gradients, and of the time of all rows what is due to as many as are looked up.
    """
    look_ups = {name for name in rewrite.ops if index.op(name).call.target in (_WHOLE, _PART)}
    made: dict[str, OpFacts] = {}
    allocations: tuple[KernelAllocation, ...]
    seconds = kernels.step_seconds(rewrite.ops)
    readers = sum(not op.updates for op in rewrite.made)
    for op in rewrite.made:
        is_known = kernels.of(op.name).allocations is not None
        if op.updates:
            numbers, gradient = op.call.args[0], op.call.args[4]
            assert isinstance(numbers, Ref)
            assert isinstance(gradient, Ref)
            count = index.types[numbers.value].elements
            allocations = (
                KernelAllocation(_NUMBER_BYTES * count, born=0),
                KernelAllocation(index.types[gradient.value].extent_bytes, born=1),
            )
            share = min(1.0, count / stored_row_of(op)[1])
        else:
            (result,) = index.graph.writes(op)
            allocations = (KernelAllocation(index.sizes_bytes[result], born=0, output=0),)
            share = 1.0 / readers
        own = (name for name in rewrite.ops if (name in look_ups) != bool(op.updates))
        made[op.name] = OpFacts(
            op.name,
            peak_bytes(allocations, alignment_bytes=kernels.alignment_bytes) if op.updates else 0,
            seconds=None if seconds is None else share * sum(seconds[name] for name in own),
            allocations=allocations if is_known else None,
        )
    return made


@dataclass(frozen=True, slots=True)
class _End:
    """How a part of a table is trained, or all of it.

    Attributes:
        gradient: the op that makes its gradient; ``looked_up``: from the gradient of what was looked up.
        update: by that gradient; ``rate``: its learning rate.
        numbers, first, rows, padding: as of `poet.runtime.kernels.tables.look_up_backward`.
    """

    gradient: Op
    looked_up: Argument
    update: Op
    rate: Argument
    numbers: Argument
    first: Argument
    rows: Argument
    padding: Argument

    @property
    def shared(self) -> tuple[Argument, ...]:
        """What is one for all parts of a table."""
        return self.looked_up, self.numbers, self.rate, self.padding


def _named(chain: Iterable[Op], ends: Iterable[_End]) -> list[str]:
    own = [op.name for op in chain]
    return own + [op.name for end in ends for op in (end.gradient, end.update)]


class _Index(GraphUses):
    """Which tables are frozen, and how others are trained."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        parameters = (item for item in graph.parameters if item.gradient is None)
        self.frozen = {graph.buffer_of(item.value) for item in parameters} - self.updaters.keys()
        ends = ((graph.buffer_of(item.value), self._end(item)) for item in graph.parameters)
        self.ends = {buffer: end for buffer, end in ends if end is not None}

    def _end(self, parameter: Parameter) -> _End | None:
        """How ``parameter`` is trained, if by plain SGD and with one other reader; else ``None``."""
        if parameter.gradient not in self.types or parameter.optimizer_state or parameter.accumulator:
            return None
        buffer, gradient = map(self.graph.buffer_of, (parameter.value, parameter.gradient))
        readers, maker = self.readers.get(buffer, []), self.makers.get(gradient)
        update = next((op for op in readers if op.updates == (buffer,)), None)
        if maker is None or update is None or len(readers) != 2 or {buffer, gradient} & self.kept:
            return None
        own = (Ref(parameter.value), Ref(parameter.gradient))
        is_plain_sgd = update.call.target == "poet.sgd" and update.call.args[:2] == own
        is_whole, args = maker.call.target == _WHOLE_BACK, maker.call.args
        if (
            not is_plain_sgd
            or type(update.call.args[3]) is not float
            or update.call.args[3] != 0.0
            or self.readers.get(gradient) != [update]
            or not (maker.call.target == _PART_BACK or (is_whole and args[4] is False))
            or any(op.strip or op.call.kwargs for op in (maker, update))
            or len(maker.outputs) != 1
        ):
            return None
        looked_up, numbers, *others = args
        first, rows, padding = (0, *others[:2]) if is_whole else others[:3]
        return _End(maker, looked_up, update, update.call.args[2], numbers, first, rows, padding)

    def ends_of(self, chain: list[Op]) -> list[_End] | None:
        """How the parts that ``chain`` reads are trained: none where they are frozen, ``None`` where rows
        cannot be updated in storage with the same bits.
        """
        tables = [self.table_of(op) for op in chain]
        if self.frozen.issuperset(tables):
            return []
        ends, first = [self.ends[name] for name in tables if name in self.ends], 0
        if len(ends) < len(chain) or len({end.shared for end in ends}) > 1:
            return None
        result, looked_up = chain[-1].outputs[0], ends[0].looked_up
        assert result is not None
        read = {self.graph.buffer_of(name) for name in ends[0].gradient.call.refs()}
        if not isinstance(looked_up, Ref) or read & self.updaters.keys():
            return None
        for op, end in zip(chain, ends, strict=True):
            if (end.numbers, end.first, end.rows) != (op.call.args[1], first, self.rows_of(op)):
                return None
            first += self.rows_of(op)
        kind = self.types[result]
        row_bytes = kind.extent_bytes * kind.shape[-1] // kind.elements
        fits = kind.dtype == "float32" and row_bytes <= LARGEST_WRITTEN_ROW_BYTES
        fits = fits and self.types[looked_up.value] == kind
        return ends if fits and is_exact(row_trial(kind.shape[-1])) else None

    def chain(self, op: Op) -> list[Op]:
        """The look-ups of one table from ``op`` on, each of which goes on from what the one before found.

        Empty where ``op`` is not the first look-up in a table that is frozen or trained by row, or not all
        parts follow.
        """
        if op.call.target == _WHOLE and self.is_plain(op):
            return [op]
        if op.call.target != _PART or op.call.args[4] is not None or not self.is_plain(op):
            return []
        chain, rows = [op], self.rows_of(op)
        while rows < self.count_of(op):
            (result,) = chain[-1].outputs
            assert result is not None
            buffer = self.graph.buffer_of(result)
            readers = self.readers.get(buffer, [])
            if len(readers) != 1 or buffer in self.kept:
                return []
            (then,) = readers
            goes_on = then.call.target == _PART and then.call.args[1:] == (
                op.call.args[1], rows, op.call.args[3], Ref(result),
            )  # fmt: skip
            if not goes_on or not self.is_plain(then):
                return []
            chain.append(then)
            rows += self.rows_of(then)
        return chain if rows == self.count_of(op) else []

    def is_plain(self, op: Op) -> bool:
        """Whether it has no other form, and reads rows of such a table, in C order."""
        table, numbers = op.call.args[:2]
        if not (isinstance(table, Ref) and isinstance(numbers, Ref)) or op.call.kwargs:
            return False
        kind, result = self.types[table.value], op.outputs[0]
        buffer = self.graph.buffer_of(table.value)
        return (
            op.strip is None
            and op.repeat_call is None
            and (buffer in self.frozen or buffer in self.ends)
            and len(kind.shape) == 2
            and kind == contiguous(kind.dtype, kind.shape)
            and kind.extent_bytes == self.sizes_bytes[buffer] > 0
            and self.types[numbers.value].elements > 0
            and result is not None
            and self.types[result]
            == contiguous(kind.dtype, (*self.types[numbers.value].shape, kind.shape[1]))
            and self.sizes_bytes[self.graph.buffer_of(result)] == self.types[result].extent_bytes
        )

    def table_of(self, op: Op) -> str:
        """The buffer of the rows that ``op`` looks numbers up in."""
        table = op.call.args[0]
        assert isinstance(table, Ref)
        return self.graph.buffer_of(table.value)

    def rows_of(self, op: Op) -> int:
        """Of the part of the table that ``op`` reads."""
        table = op.call.args[0]
        assert isinstance(table, Ref)
        return self.types[table.value].shape[0]

    def count_of(self, op: Op) -> int:
        """Of the whole table."""
        count = self.rows_of(op) if op.call.target == _WHOLE else op.call.args[3]
        assert isinstance(count, int)
        return count

    def rewrite(self, chain: list[Op], table: tuple[str, ...], ends: list[_End]) -> Rewrite:
        """One op in the place of ``chain``; its results tell that all parts are of one width and type.

        Another in the place of what makes the last gradient, where the table is trained.
        """
        *before, last = chain
        assert last.outputs[0] is not None
        result = self.types[last.outputs[0]]
        element = Symbol("dtype", result.dtype)
        rows = (last.call.args[1], self.count_of(last), result.shape[-1], element)
        op = Op(last.name, Call(STORED_ROWS, rows), last.outputs, stored=table, repeatable=not ends)
        ops: dict[str, Op | None] = {**{each.name: None for each in before}, last.name: op}
        gone = [name for each in before for name in self.graph.writes(each)]
        gradients: dict[str, str] = {}
        if ends:
            ops |= dict.fromkeys(_named((), ends))
            place = max((end.gradient.name for end in ends), key=self.places.__getitem__)
            call = Call(STORED_ROWS_SGD, (*rows, ends[0].looked_up, ends[0].rate, ends[0].padding))
            ops[place] = Op(place, call, (), updates=table, repeatable=False, stored=table)
            looked_up = ends[0].looked_up
            assert isinstance(looked_up, Ref)
            own = (item.name for item in self.graph.parameters if self.graph.buffer_of(item.value) in table)
            gradients = dict.fromkeys(own, looked_up.value)
            gone += [name for end in ends for name in self.graph.writes(end.gradient)]
        return Rewrite(ops, (), tuple(gone), gradients)
