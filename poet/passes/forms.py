"""The rewrites of a training step, in order, and the forms of its ops that a plan takes any of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from poet.ir.graph import Graph
from poet.ir.kernel_facts import KernelFacts, OpFacts
from poet.ir.packed import BaseSpec
from poet.ir.strips import Gradients
from poet.passes.base import Weights, packable, with_base, with_packed_tensors, with_weights
from poet.passes.block_choice import finer_blocks, with_strips
from poet.passes.compressed import compressible, with_compressed
from poet.passes.fused import (
    HasKernel,
    with_norms_and_relus,
    with_packed_operands,
    with_padded_windows,
    with_updates_fused,
)
from poet.passes.in_place import (
    Overwrites,
    Takeovers,
    chosen_takeovers,
    copied_takeovers,
    with_results_in_place,
    with_takeovers,
)
from poet.passes.layouts import WantsDense, with_dense_operands
from poet.passes.logits import with_logits_in_strips
from poet.passes.parts import tensors_in_parts, with_parts
from poet.passes.rewrite import Rewrite, Technique, rewritten
from poet.passes.stored_rows import row_reads
from poet.runtime.trials.measure import Findings, measured
from poet.util.brief import brief


@dataclass(frozen=True, slots=True)
class Forms:
    """A training step with other forms of its ops, of which a plan takes any.

    Attributes:
        plain: the step with nothing written over an operand, and no other form.
        taken_over: what is written over an operand, in every form.
        facts: what the kernels of ``plain`` need, with ``taken_over``.
        rewrites: what a plan may choose, by the name of the first op that each changes; no two change the
            same op.
        apart: what an op of ``taken_over`` needs that makes its result apart, for those that would copy it.
        long, long_kernels: the step with none of ``rewrites``.
        short, short_kernels: with all activations compressed that can be, and nothing else of them.
    """

    plain: Graph
    taken_over: Takeovers
    facts: KernelFacts
    rewrites: Mapping[str, Rewrite]
    apart: Mapping[str, OpFacts] = field(default_factory=dict)
    long: Graph = field(init=False, repr=False, compare=False)
    long_kernels: KernelFacts = field(init=False, repr=False, compare=False)
    short: Graph = field(init=False, repr=False, compare=False)
    short_kernels: KernelFacts = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, taken in (("long", ()), ("short", self.of(Technique.COMPRESSED))):
            graph = self.graph(taken)
            object.__setattr__(self, name, graph)
            object.__setattr__(self, f"{name}_kernels", self._kernels(graph, taken))

    __repr__ = brief

    def of(self, technique: Technique) -> dict[str, Rewrite]:
        """Those of ``rewrites`` that are of one technique."""
        return {name: each for name, each in self.rewrites.items() if each.technique is technique}

    def graph(self, taken: Collection[str]) -> Graph:
        """The step with those of ``rewrites`` that are named in ``taken``."""
        chosen = [each for name, each in self.rewrites.items() if name in taken]
        compressed = [each for each in chosen if each.technique is Technique.COMPRESSED]
        made = with_takeovers(with_compressed(self.plain, compressed), self.taken_over)
        return rewritten(made, (each for each in chosen if each.technique is not Technique.COMPRESSED))

    def kernels(self, taken: Collection[str]) -> KernelFacts:
        """What the kernels need that run it."""
        return self._kernels(self.graph(taken), taken)

    def _kernels(self, graph: Graph, taken: Collection[str]) -> KernelFacts:
        own = {name: facts for name, facts in self.apart.items() if name not in self.taken_over}
        for name, each in self.rewrites.items():
            own |= each.facts if name in taken else {}
        return replace(self.facts, ops=tuple(own.get(op.name) or self.facts.of(op.name) for op in graph.ops))

    def with_apart(self, names: Collection[str]) -> Forms:
        """These forms with the results of the ops ``names``, some of ``apart``, in memory of their own."""
        kept = {name: operand for name, operand in self.taken_over.items() if name not in names}
        return replace(self, taken_over=kept)


@dataclass(frozen=True, slots=True)
class Passes:
    """Which rewrites a step has, by the library that will run it.

    Attributes:
        gradients: what becomes of weight gradients.
        uses_elements: of the library: which gradients it uses as it makes them; ``None``: PyTorch runs it.
        overwrites: of that library: which operands a result may be written over.
        wants_dense: likewise, which operands are to be copied side by side.
        measure: whether kernels are run here, to try forms and to time them.
        in_parts: whether large weights may be in parts, and rows of tables be read in storage.
        in_short_forms: whether activations may be compressed, and gradients be written over what they are
            made from.
        has_choice: whether a plan chooses forms of ops.
        known: what runs of kernels showed already.
        base: the format of frozen weights; ``None``: they stay as they are.
    """

    gradients: Gradients
    uses_elements: HasKernel | None = None
    overwrites: Overwrites | None = None
    wants_dense: WantsDense | None = None
    measure: bool = True
    in_parts: bool = False
    in_short_forms: bool = True
    has_choice: bool = True
    known: Findings = field(default_factory=dict)
    base: BaseSpec | None = None

    @property
    def takes_blocks(self) -> bool:
        """Whether gradients may be made and used in blocks that were tried here, by PyTorch's kernels."""
        return self.measure and self.gradients.are_streamed and self.uses_elements is None

    def with_logits(self, graph: Graph) -> Graph:
        """``graph`` with the last layer in strips, where that was asked for."""
        if self.gradients is not Gradients.LOGITS:
            return graph
        return with_logits_in_strips(graph, in_blocks=self.base is not None)

    def divided(
        self, graph: Graph, tensors: dict[str, Tensor], weights: Weights
    ) -> tuple[Graph, dict[str, Tensor]]:
        """``graph`` with its last layer in strips, large weights in parts, the base packed; and its tensors.

        ``weights``: contents of parameters in place of the module's.
        """
        graph = self.with_logits(graph)
        packed = {} if self.base is None else packable(graph, self.base)
        unlike = {
            name: item for name, item in weights.items() if item[1] is None or packed.get(name) != item[1]
        }
        tensors = with_weights(graph, tensors, unlike)
        if self.takes_blocks and (self.in_parts or packed):
            in_parts = with_parts(graph)
            graph, tensors = in_parts, tensors_in_parts(graph, in_parts, tensors)
        made = with_base(graph, packed, by_row=self.uses_elements is None)
        return made, with_packed_tensors(graph, made, tensors, weights)

    def fitted(self, graph: Graph) -> tuple[Graph, KernelFacts, Forms | None]:
        """``graph`` as the library's kernels run it, what they need, and other forms, if there are any."""
        for rewrite in self._by_library():
            graph = rewrite(graph)
        graph, facts = measured(graph, times=self.measure, known=self.known)
        if self.takes_blocks:
            graph, facts = measured(with_strips(graph, facts), known=self.known)
        if not (self.takes_blocks and self.in_short_forms):
            return graph, facts, None
        forms = self._forms(graph, facts)
        return forms.short, forms.short_kernels, forms if forms.rewrites or forms.apart else None

    def _by_library(self) -> Iterator[Callable[[Graph], Graph]]:
        """The rewrites that nothing measured decides."""
        if self.wants_dense is not None:
            yield partial(with_dense_operands, wants=self.wants_dense)
        if self.uses_elements is not None:
            yield with_padded_windows
            yield with_norms_and_relus
            if self.gradients.are_streamed:
                yield partial(with_updates_fused, has_kernel=self.uses_elements)
        if self.overwrites is not None:
            yield partial(with_results_in_place, overwrites=self.overwrites)
        if self.uses_elements is not None and self.base is not None:
            yield partial(with_packed_operands, has_kernel=self.uses_elements)

    def _forms(self, plain: Graph, facts: KernelFacts) -> Forms:
        """The forms of a measured step in strips."""
        compressed = compressible(plain)
        short = with_compressed(plain, [*compressed.values()])
        taken = chosen_takeovers(plain, short)
        apart = {name: facts.of(name) for name in copied_takeovers(plain, taken)} if self.has_choice else {}
        long, facts = measured(with_takeovers(plain, taken), known=self.known)
        short, short_facts = measured(with_takeovers(short, taken), known=self.known)
        rewrites = {name: _measured(each, short, short_facts) for name, each in compressed.items()}
        changed = {name for each in rewrites.values() for name in each.ops}
        if self.has_choice:
            finer = finer_blocks(long, facts, measure=self._measured, others=changed)
            changed |= {name for each in finer.values() for name in each.ops}
            by_row = row_reads(long, facts, others=changed) if self.in_parts else {}
            rewrites |= finer | by_row
        return Forms(plain, taken, facts, rewrites, apart)

    def _measured(self, graph: Graph, told: KernelFacts) -> tuple[Graph, KernelFacts]:
        return measured(graph, known=self.known, told=told)


def _measured(rewrite: Rewrite, graph: Graph, kernels: KernelFacts) -> Rewrite:
    """``rewrite``, which ``graph`` has, with what its kernels gave and need."""
    values = {value.name: value for value in graph.values}
    return replace(
        rewrite,
        added=tuple(values[value.name] for value in rewrite.added),
        facts={op.name: kernels.of(op.name) for op in rewrite.made},
    )
