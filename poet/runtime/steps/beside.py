"""Auxiliary schedules of an open plan, on its tensors: steps for other shapes and for micro-batches.

Also where they page to, and the random numbers that all of them draw.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from poet.errors import PlanError
from poet.ir.micro import IS_FIRST
from poet.plans.page_slots import SLOT_ALIGNMENT_BYTES
from poet.plans.plan_parts import PageSlot
from poet.plans.training_plan import ACCUMULATION, Plan
from poet.problem import Place
from poet.runtime.kernels.cells import Cells, Padded, Repeated
from poet.runtime.steps.instructions import Tap
from poet.runtime.steps.lasting import LastingTensors
from poet.runtime.steps.replay import StepReplay
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


class StepBeside:
    """The compiled auxiliary schedule; its outputs lie where other steps need the room."""

    def __init__(
        self,
        plan: Plan,
        tensors: LastingTensors,
        *,
        called: str,
        pager: Pager | None,
        generator: torch.Generator | None,
        sums_gradients: bool = False,
    ) -> None:
        """Compile it.

        Args:
            plan: of the auxiliary schedule.
            tensors: of the plan that is open.
            called: what begins the names of its page slots.
            pager: of the open plan.
            generator: that random ops draw from.
            sums_gradients: see `StepReplay`.
        """
        self._plan, self._tensors = plan, tensors
        self._cells = Cells(plan.graph)
        pages = None if pager is None else companion_pages(called, plan, pager)
        self._replay = StepReplay(
            plan,
            self._cells,
            tensors,
            pager=pages,
            generator=generator,
            sums_gradients=sums_gradients,
        )

    def run(
        self,
        number: int | None,
        given: Sequence[torch.Tensor | Padded | Repeated],
        scalars: Mapping[str, float],
        *,
        on_gradient: Tap | None = None,
        on_instruction: Callable[[int], object] | None = None,
    ) -> tuple[float, tuple[torch.Tensor, ...]]:
        """Its loss and the model's outputs; arguments and errors as of `StepReplay.step`."""
        placed = self._tensors.placed
        place = contextlib.nullcontext() if placed is None else placed.beside(self._plan)
        with place as mark, self._tensors.lent_to(self._cells):
            result = self._replay.step(
                number,
                given,
                scalars,
                mark=mark,
                on_gradient=on_gradient,
                on_instruction=on_instruction,
            )
        self._replay.done()
        return result


class Accumulation:
    """The accumulating step of an open plan.

    Attributes:
        count: of micro-batches since the last update, whose gradients are summed.
    """

    def __init__(
        self, plan: Plan, tensors: LastingTensors, pager: Pager | None, generator: torch.Generator | None
    ) -> None:
        self._plan = plan
        self.count = 0
        self._step: StepBeside | None = None
        if plan.accumulation is not None:
            self._step = StepBeside(
                plan.accumulation,
                tensors,
                called=ACCUMULATION,
                pager=pager,
                generator=generator,
                sums_gradients=True,
            )

    @property
    def scalars(self) -> dict[str, float]:
        """Whether the next micro-batch begins the sums."""
        return {IS_FIRST: float(self.count == 0)}

    def check(self) -> None:
        """Do nothing if the plan takes micro-batches one by one.

        Raises:
            PlanError: it does not.
        """
        if self._step is not None:
            return
        name = self._plan.model.name
        raise PlanError(f"{name}: the plan has no micro-batches; plan with micro=4 (--micro 4)")

    def run(
        self, number: int, given: Sequence[torch.Tensor], scalars: Mapping[str, float]
    ) -> tuple[float, tuple[torch.Tensor, ...]]:
        """Add the gradients of one micro-batch of step ``number``; gives its loss and the model's outputs.

        Raises:
            PlanError: the plan has no micro-batches.
            ReplayError: as of `StepReplay.step`.
        """
        self.check()
        assert self._step is not None
        result = self._step.run(number, given, {**scalars, **self.scalars})
        self.count += 1
        return result
