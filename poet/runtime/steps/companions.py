"""A plan's auxiliary schedules, on the training step's tensors, and their places in the page file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

from poet.plans.page_slots import SLOT_ALIGNMENT_BYTES
from poet.plans.plan_parts import PageSlot
from poet.plans.training_plan import Plan
from poet.problem import Place
from poet.runtime.storage.background import Pager


def slots_of(plan: Plan) -> tuple[PageSlot, ...]:
    """The plan's page slots, and behind them those that only its auxiliary schedules have."""
    slots = list(plan.slots)
    for other in plan.auxiliaries:
        slots += slots_beside(other.name, other.plan, slots)
    return tuple(slots)


def slots_beside(called: str, companion: Plan, before: Iterable[PageSlot]) -> tuple[PageSlot, ...]:
    """The page slots that an auxiliary schedule alone has, behind those ``before``."""
    end = max((slot.offset_bytes + slot.size_bytes for slot in before), default=0)
    begin = -(-end // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES
    shared = _shared(companion)
    return tuple(
        PageSlot(called + slot.tensor, begin + slot.offset_bytes, slot.size_bytes)
        for slot in companion.slots
        if slot.tensor not in shared
    )


def _shared(companion: Plan) -> frozenset[str]:
    """Tensors whose copy in storage is the training step's."""
    return frozenset(
        tensor.name for tensor in companion.problem.tensors if tensor.initially in (Place.STORAGE, Place.BOTH)
    )


def companion_pages(called: str, companion: Plan, pager: Pager) -> Pager:
    """``pager`` where an auxiliary schedule's tensors have their own slots, but for what training stores."""
    shared = _shared(companion)
    names = (tensor.name for tensor in companion.problem.tensors)
    return pager.renamed({name: name if name in shared else called + name for name in names})


class Draws:
    """What the random ops of a plan draw from.

    Attributes:
        generator: of the training; ``None``: that of the process, which every thread that draws shares.
    """

    def __init__(self, plan: Plan, random_state: torch.Tensor | None) -> None:
        self.generator: torch.Generator | None = None
        if random_state is not None:
            self.generator = torch.Generator()
            self.generator.set_state(random_state)
        graphs = [plan.graph, *(other.plan.graph for other in plan.auxiliaries)]
        self._is_random = any(op.random for graph in graphs for op in graph.ops)

    def state(self) -> torch.Tensor | None:
        """The generator's state; ``None`` where nothing draws."""
        if not self._is_random:
            return None
        return torch.get_rng_state() if self.generator is None else self.generator.get_state()

    @contextlib.contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """A block that fails takes nothing from the training's own generator."""
        if not self._is_random or self.generator is None:
            yield
            return
        before = self.generator.clone_state()  # no tensor, for which a full arena has no room
        try:
            yield
        except BaseException:
            self.generator.set_state(before.get_state())
            raise
