"""A training step with the other forms of its ops, of which a plan takes any.

Backward may read what plain training saves, or a compressed activation, tensor by tensor; and ops that decide
in how little RAM the step can run may do so in more blocks (`poet.frontend.finer_blocks`). A gradient that is
copied over its operand, block by block, may be made apart instead (`poet.frontend.in_place_choice`). A
look-up may read rows of its table in storage, and what trains it update them (`poet.frontend.row_reads`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from poet.brief import brief
from poet.frontend.finer_blocks import Finer
from poet.frontend.in_place import Takeovers, with_takeovers
from poet.frontend.packed_saves import Change, packable, with_packed_saves
from poet.frontend.row_reads import row_read_facts, with_row_reads
from poet.frontend.strip_candidates import with_candidates
from poet.graph import Graph
from poet.kernel_facts import KernelFacts, OpFacts


@dataclass(frozen=True, slots=True)
class SaveForms:
    """Both ends of the choice, with the facts of their kernels; what lies between follows from them.

    Attributes:
        long, long_kernels: nothing is saved compressed.
        short, short_kernels: all is that can be.
        plain: ``long`` before anything is written over an operand; ``None``: nothing is.
        taken_over: what is, in every form.
        apart: what an op of ``taken_over`` needs that makes its result apart, for those that would copy it.
        finer: ops in more blocks, by name; none of them is of ``changes``. ``long`` and ``short`` have none.
        by_row: likewise, look-ups in one table that read its rows in storage, and what updates them there, by
            the first of them.
        changes: what may be saved compressed, by the op that makes the full tensor.
    """

    long: Graph
    long_kernels: KernelFacts
    short: Graph
    short_kernels: KernelFacts
    plain: Graph | None = None
    taken_over: Takeovers = field(default_factory=dict)
    finer: Mapping[str, Finer] = field(default_factory=dict)
    apart: Mapping[str, OpFacts] = field(default_factory=dict)
    by_row: Mapping[str, Change] = field(default_factory=dict)
    changes: Mapping[str, Change] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "changes", packable(self.plain or self.long))

    __repr__ = brief

    def graph(self, taken: Collection[str]) -> Graph:
        """The step with what the ops in ``taken`` make saved compressed, these in more blocks or by row."""
        packed = [name for name in taken if name in self.changes]
        made = with_takeovers(with_packed_saves(self.plain or self.long, packed), self.taken_over)
        new = {value.name for name in packed for value in self.changes[name].packed}
        values = {value.name: value for value in self.short.values if value.name in new}
        buffers = {item.name: item for item in self.short.buffers if item.name in new}
        made = replace(
            made,
            values=tuple(values.get(value.name, value) for value in made.values),
            buffers=tuple(buffers.get(item.name, item) for item in made.buffers),
        )
        made = with_candidates(made, (each.candidate for name, each in self.finer.items() if name in taken))
        return with_row_reads(made, [change for name, change in self.by_row.items() if name in taken])

    def kernels(self, taken: Collection[str]) -> KernelFacts:
        """The facts of the kernels that run it."""
        changed = {op for name in taken if name in self.changes for op in self.changes[name].ops}
        own = {name: facts for name, facts in self.apart.items() if name not in self.taken_over}
        own |= {name: each.facts for name, each in self.finer.items() if name in taken}
        by_row = [change for name, change in self.by_row.items() if name in taken]
        own |= row_read_facts(self.long, self.long_kernels, by_row)

        def facts_of(name: str) -> OpFacts:
            forms = self.short_kernels if name in changed else self.long_kernels
            return own[name] if name in own else forms.of(name)

        ops = (facts_of(op.name) for op in self.graph(taken).ops)
        return replace(self.long_kernels, ops=tuple(ops))

    def with_apart(self, names: Collection[str]) -> SaveForms:
        """These forms with the results of the ops ``names``, some of ``apart``, in memory of their own."""
        kept = {name: operand for name, operand in self.taken_over.items() if name not in names}
        made = replace(self, taken_over=kept)
        return replace(
            made,
            long=made.graph(()),
            long_kernels=made.kernels(()),
            short=made.graph(self.changes),
            short_kernels=made.kernels(self.changes),
        )
