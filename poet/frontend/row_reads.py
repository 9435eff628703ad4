"""Look-ups in a table that no op writes, read row by row where the table lies in storage.

A table at home in storage is fetched whole for a look-up, or in parts one after the other, whichever rows are
asked for. Where it is frozen, what lies in storage is its content in every step, so that one op
(`poet.runtime.kernels.tables.stored_rows`) can read the rows that are asked for and nothing else. What else
reads the table, as a head that shares it, stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import replace

from poet.calls import contiguous
from poet.frontend.packed_saves import Change
from poet.graph import STORED_ROWS, Call, Graph, Op, Ref, Symbol
from poet.kernel_allocations import KernelAllocation
from poet.kernel_facts import KernelFacts, OpFacts

_WHOLE, _PART = "aten.embedding.default", "poet.look_up"


def row_reads(graph: Graph, *, others: Container[str] = ()) -> dict[str, Change]:
    """What look-ups of ``graph`` become that read rows in storage, those in one table together.

    By the op that gives the first result. ``others``: ops that have other forms already.
    """
    index = _Index(graph)
    found: dict[tuple[str, ...], Change] = {}
    for op in graph.ops:
        chain = index.chain(op)
        if not chain or any(each.name in others for each in chain):
            continue
        table = tuple(map(index.table_of, chain))
        before = found.get(table, Change({}, ()))
        made = index.change(chain, table)
        found[table] = Change({**before.ops, **made.ops}, (), (*before.gone, *made.gone))
    return {next(op.name for op in change.ops.values() if op): change for change in found.values()}


def with_row_reads(graph: Graph, changes: Collection[Change]) -> Graph:
    """``graph`` with these of its `row_reads`."""
    if not changes:
        return graph
    ops = {name: op for change in changes for name, op in change.ops.items()}
    gone = {name for change in changes for name in change.gone}
    kept = (ops.get(op.name, op) for op in graph.ops)
    return replace(
        graph,
        ops=tuple(op for op in kept if op is not None),
        values=tuple(value for value in graph.values if value.buffer not in gone),
        buffers=tuple(item for item in graph.buffers if item.name not in gone),
    )


def row_read_facts(graph: Graph, kernels: KernelFacts, changes: Iterable[Change]) -> dict[str, OpFacts]:
    """What the kernels of ``changes`` to ``graph`` need, storage apart.

    That is memory for the result, and as long as the look-ups that they take the place of.
    """
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    made: dict[str, OpFacts] = {}
    for change in changes:
        ops = [op for op in change.ops.values() if op is not None]
        seconds = kernels.step_seconds(change.ops)
        each_seconds = None if seconds is None else sum(seconds.values()) / len(ops)
        for op in ops:
            (result,) = graph.writes(op)
            is_known = kernels.of(op.name).allocations is not None
            allocated = (KernelAllocation(sizes_bytes[result], born=0, output=0),) if is_known else None
            made[op.name] = OpFacts(op.name, seconds=each_seconds, allocations=allocated)
    return made


class _Index:
    """Who reads what in a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types = {value.name: value.type for value in graph.values}
        self.sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
        self.readers: dict[str, list[Op]] = {}
        for op in graph.ops:
            again = () if op.recall is None else graph.reads(op.recall)
            for buffer in {*graph.reads(op.call), *again}:
                self.readers.setdefault(buffer, []).append(op)
        self.kept = {graph.buffer_of(name) for name in (graph.loss, *graph.predictions)}
        updated = {name for op in graph.ops for name in op.updates}
        parameters = (item for item in graph.parameters if item.gradient is None)
        self.frozen = {graph.buffer_of(item.value) for item in parameters} - updated

    def chain(self, op: Op) -> list[Op]:
        """The look-ups of one table from ``op`` on, each of which goes on from what the one before found.

        Empty where ``op`` is not the first look-up in a table that no op writes, or not all parts follow.
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
        """Whether it has no other form, and reads rows of a table that no op writes, in C order."""
        table, numbers = op.call.args[:2]
        if not (isinstance(table, Ref) and isinstance(numbers, Ref)) or op.call.kwargs:
            return False
        kind, result = self.types[table.value], op.outputs[0]
        buffer = self.graph.buffer_of(table.value)
        return (
            op.strip is None
            and op.repeat_call is None
            and buffer in self.frozen
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

    def change(self, chain: list[Op], table: tuple[str, ...]) -> Change:
        """One op in the place of ``chain``; its results tell that all parts are of one width and type."""
        *before, last = chain
        assert last.outputs[0] is not None
        result = self.types[last.outputs[0]]
        element = Symbol("dtype", result.dtype)
        call = Call(STORED_ROWS, (last.call.args[1], self.count_of(last), result.shape[-1], element))
        op = Op(last.name, call, last.outputs, stored=table)
        gone = (name for each in before for name in self.graph.writes(each))
        return Change({**{each.name: None for each in before}, last.name: op}, (), tuple(gone))
