"""The largest size that has a step inside a plan: tried where laws of bytes say, and planned to be sure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from poet.calls import TensorType
from poet.errors import Infeasible, InputError, OutOfTime
from poet.planning.shape_bytes import LARGEST_SIZE, ShapeBytes
from poet.plans.training_plan import Plan, Shape
from poet.reshaping import Reshaping

ShapeMaker = Callable[[Plan, Sequence[TensorType]], Shape]


@dataclass(frozen=True, slots=True)
class Largest:
    """A size that has a step, and the next one, that has none.

    Attributes:
        size: the largest that has one.
        types: of the inputs and targets then.
        shape: the step that was planned; ``None``: the plan has it already.
        why: the next size has none.
        tried: how many sizes were planned.
    """

    size: int
    types: tuple[TensorType, ...]
    shape: Shape | None
    why: str
    tried: int


@dataclass(frozen=True, slots=True)
class SizeSearch:
    """Finds the largest size; a larger one is taken to need more.

    Attributes:
        make: plans a step, as `poet.ShapePlanner` does.
        plan: that runs.
        reshaping: of its graphs.
        known: of its shapes.
        within_bytes: that the plan has.
    """

    make: ShapeMaker
    plan: Plan
    reshaping: Reshaping
    known: ShapeBytes
    within_bytes: int

    def largest(self, number: int, multiple_of: int) -> Largest:
        """The largest of the size ``number``, others as in the plan's own step.

        The first size tried is the largest that may fit, by the laws: where it has a step, the next one is
        left to try. Else the largest that fits with everything kept, and the rest is bisected.

        Raises:
            InputError: none of the plan's sizes is a multiple.
        """
        own = self.reshaping.sizes(self.plan.given_types)

        def types(count: int) -> tuple[TensorType, ...]:
            return self.reshaping.types((*own[:number], count * multiple_of, *own[number + 1 :]))

        planned = self.known.sizes_like(own, number)
        low = max((size // multiple_of for size in planned if size % multiple_of == 0), default=0)
        if low == 0:
            sizes = ", ".join(map(str, sorted(planned)))
            raise InputError(f"none of the sizes that are planned ({sizes}) is a multiple of {multiple_of}")
        high = LARGEST_SIZE // multiple_of + 1
        guesses = (
            self.known.largest(own, number, self.within_bytes, kept=kept) // multiple_of
            for kept in (False, True)
        )
        near, shape, why, tried, further = tuple(guesses), None, "", 0, 1
        while high - low > 1:
            count = next((each for each in near if low < each < high), None)
            if count is None:
                count = (low + high) // 2 if why else min(low + further, high - 1)
                further *= 2
            tried += 1
            try:
                low, shape = count, self.make(self.plan, types(count))
            except (Infeasible, InputError, OutOfTime) as error:
                high, why = count, str(error)
        return Largest(low * multiple_of, types(low), shape, why, tried)
