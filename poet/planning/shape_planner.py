"""A plan for batches of a shape that a plan file has none for, made between two steps of a training.

    with Trainer.open("plan.poet") as trainer:
        trainer.shape_planner = ShapePlanner()

The plan needs steps for a few shapes: its graph for another follows from theirs (`poet.ir.reshaping`).
Kernels that are new run once, for their workspaces; the search has a moment. The step stays inside the plan's
RAM and arena, on its tensors.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import Infeasible, InputError, InvalidSchedule, ModelError, OutOfTime, PoetError
from poet.ir.calls import TensorType
from poet.ir.graph import Graph, Op
from poet.ir.kernel_facts import KernelFacts
from poet.ir.reshaping import Reshaping
from poet.planning.beside import at_home, costed_beside, limits_beside
from poet.planning.shape_bytes import LARGEST_SIZE, Foreseen, ShapeBytes
from poet.plans.training_plan import Plan, Shape, shape_words
from poet.problem.homes import DecidedProblem
from poet.problem.simulator import judge
from poet.problem.solution import SolveOptions, Start
from poet.solvers.heuristics.policies import keep_everything
from poet.util.units import format_bytes

if TYPE_CHECKING:
    from poet.runtime import Trainer

SEARCH_SECONDS = 0.1
IMPROVING_SECONDS = 10.0
_NEIGHBOURS = 6  # shapes nearest in size whose schedules are tried


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


class ShapePlanner:
    """Plans a step for other shapes; a `poet.runtime.Trainer` asks it.

    Attributes:
        timed: seconds that each plan took to make.
    """

    def __init__(
        self, *, device: Profile | str | None = None, time_limit_seconds: float = SEARCH_SECONDS
    ) -> None:
        """Keep what is asked.

        Args:
            device: whose costs decide; ``None``: the profile of the plan's name that poet has.
            time_limit_seconds: of the search; there is none where everything fits.
        """
        self._device, self._time_limit_seconds = device, time_limit_seconds
        self._reshaping: Reshaping | None = None
        self._bytes: ShapeBytes | None = None
        self._of: Graph | None = None
        self._profile: Profile | None = None
        self.timed: list[float] = []
        self._settled: list[Shape] = []  # a longer search was made for them

    def __call__(self, plan: Plan, types: Sequence[TensorType]) -> Shape:
        """A step for inputs and targets of these ``types``, beside that of ``plan``.

        Raises:
            InputError: no step follows from those that the plan has.
            Infeasible: there is no room for it in the plan's RAM and arena.
        """
        return self._planned(plan, types, self._time_limit_seconds)

    def foresee(self, plan: Plan, types: Sequence[TensorType]) -> Foreseen:
        """What a step for these ``types`` takes, at once: by laws that the plan's shapes follow.

        Raises:
            InputError: no step follows from those that the plan has, or the plan has no RAM budget.
        """
        sizes, known = self._reshaping_of(plan).sizes(types), self._bytes_of(plan)
        return Foreseen(known.kept_bytes(sizes), known.least_bytes(sizes), _within_bytes(plan))

    def largest(self, plan: Plan, *, dim: int, tensor: int = 0, multiple_of: int = 1) -> Largest:
        """The largest size of a dim that has a step inside the plan's RAM and arena, others as in its own.

        Each size that is tried is planned, so that the answer holds: first the largest that may fit by the
        laws, then the largest that fits with everything kept; the rest is bisected. A larger one is taken to
        need more.

        Args:
            plan: that runs.
            dim: whose size varies between the plan's shapes.
            tensor: its number among the inputs and targets.
            multiple_of: what sizes the model takes, such as resolutions it halves three times: 8.

        Raises:
            InputError: the size does not vary between the plan's shapes, none of the plan's sizes is a
                multiple, or the plan has no RAM budget.
        """
        reshaping, known = self._reshaping_of(plan), self._bytes_of(plan)
        number = next((n for n, places in enumerate(reshaping.places) if (tensor, dim) in places), None)
        if number is None:
            raise InputError(
                f"{plan.model.name}: dim {dim} of tensor {tensor} has one size in all of the plan's shapes, "
                "so that no other follows; plan a second one"
            )
        own, within_bytes = reshaping.sizes(plan.given_types), _within_bytes(plan)

        def types(count: int) -> tuple[TensorType, ...]:
            return reshaping.types((*own[:number], count * multiple_of, *own[number + 1 :]))

        planned = known.sizes_like(own, number)
        low = max((size // multiple_of for size in planned if size % multiple_of == 0), default=0)
        if low == 0:
            sizes = ", ".join(map(str, sorted(planned)))
            raise InputError(f"none of the sizes that are planned ({sizes}) is a multiple of {multiple_of}")
        high, shape, why, tried, further = LARGEST_SIZE // multiple_of + 1, None, "", 0, 1
        near = [known.largest(own, number, within_bytes, kept=kept) // multiple_of for kept in (False, True)]
        while high - low > 1:
            count = next((each for each in near if low < each < high), None)
            if count is None:
                count = (low + high) // 2 if why else min(low + further, high - 1)
                further *= 2
            tried += 1
            try:
                low, shape = count, self(plan, types(count))
            except (Infeasible, InputError, OutOfTime) as error:
                high, why = count, str(error)
        return Largest(low * multiple_of, types(low), shape, why, tried)

    def improve(self, plan: Plan, *, time_limit_seconds: float = IMPROVING_SECONDS) -> Shape | None:
        """A better step for the shape of ``plan`` that is furthest from its bound; ``None``: none was found.

        Args:
            plan: that runs.
            time_limit_seconds: of the search.
        """
        open_ended = [
            item for item in plan.shapes if item.step.outcome.gap > 0.0 and item not in self._settled
        ]
        if not open_ended:
            return None
        shape = max(open_ended, key=lambda item: item.step.outcome.gap)
        step, options = shape.step, SolveOptions(time_limit_seconds=time_limit_seconds)
        problem = at_home(step.problem, plan)
        options, near = _begun(plan, step.graph, problem, options)
        found = costed_beside(
            plan, step.graph, step.kernels, step.replayed_kernels, problem, options, near=near
        )
        if found is None or found.prediction.joules >= step.prediction.joules:
            self._settled.append(shape)
            return None
        better = Shape(replace(found, model=step.model), shape.evaluation)
        self._settled.append(better)
        return better

    def _planned(self, plan: Plan, types: Sequence[TensorType], limit_seconds: float) -> Shape:
        from poet.runtime.trials.measure import measured

        began = time.perf_counter()
        graph = self._reshaping_of(plan).graph(types)
        try:
            graph, facts = measured(graph, known={}, told=_alike(plan, graph), is_timed=False)
        except ModelError as error:  # what torch says where a kernel does not take the sizes
            raise InputError(f"{plan.model.name}: these sizes do not fit its kernels ({error})") from None
        profile = self._profile_of(plan)
        kernels = kernels_on(profile, graph, facts)
        problem = at_home(build_problem(graph, profile, kernels), plan)
        options, near = _begun(plan, graph, problem, SolveOptions(time_limit_seconds=limit_seconds))
        found = costed_beside(plan, graph, kernels, facts, problem, options, near=near)
        self.timed.append(time.perf_counter() - began)
        model = replace(plan.model, binding=())
        if found is None:
            raise Infeasible(
                f"no schedule was found for {shape_words(graph, model)} inside "
                f"{format_bytes(_within_bytes(plan))}, where the plan has its tensors; plan this shape "
                f"before, or give smaller batches{self._room(plan, types)}"
            )
        return Shape(replace(found, model=model))

    def _room(self, plan: Plan, types: Sequence[TensorType]) -> str:
        """How large each size of ``types`` may be beside the others, in words."""
        reshaping, known, within_bytes = self._reshaping_of(plan), self._bytes_of(plan), _within_bytes(plan)
        sizes, said = reshaping.sizes(types), []
        for number, places in enumerate(reshaping.places):
            most, kept = (known.largest(sizes, number, within_bytes, kept=each) for each in (False, True))
            if 0 < most < sizes[number]:
                index, dim = places[0]
                said.append(f"{most} in dim {dim} of {plan.graph.inputs[index]}, {kept} with everything kept")
        return f" (at most {'; or '.join(said)}, by what its shapes take)" if said else ""

    def _reshaping_of(self, plan: Plan) -> Reshaping:
        if self._reshaping is None or self._of is not plan.graph:
            self._reshaping = Reshaping([plan.graph, *(item.step.graph for item in plan.shapes)])
            self._of, self._bytes = plan.graph, None
        return self._reshaping

    def _bytes_of(self, plan: Plan) -> ShapeBytes:
        reshaping = self._reshaping_of(plan)
        if self._bytes is None:
            self._bytes = ShapeBytes(reshaping, plan)
        self._bytes.learn(plan)
        return self._bytes

    def _profile_of(self, plan: Plan) -> Profile:
        if self._profile is None:
            device = plan.device.name if self._device is None else self._device
            try:
                self._profile = device if isinstance(device, Profile) else load_profile(device)
            except PoetError as error:
                raise InputError(f"a plan for another shape needs the costs of {device}: {error}") from None
        return self._profile


class ShapeImprovement:
    """Searches longer for shapes that were planned in haste: between steps, for a share of the time.

        improvement = ShapeImprovement(trainer, planner)
        for inputs, targets in batches:
            trainer.step(inputs, targets)
            improvement.look()

    A search begins when its time has been earned, so that the share holds at every moment. The bits stay.
    """

    def __init__(
        self,
        trainer: Trainer,
        planner: ShapePlanner,
        *,
        share: float = 0.1,
        search_seconds: float = 1.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin to count.

        Args:
            trainer: whose shapes are improved.
            planner: that planned them.
            share: of the time that training takes, for searches.
            search_seconds: of each search.
            clock: in seconds.

        Raises:
            InputError: no such share or search can be.
        """
        if not (0.0 < share < 1.0 and search_seconds > 0.0):
            raise InputError(
                f"a share of {share} in searches of {search_seconds} s cannot be had; the share lies between "
                "0 and 1, and a search takes some time"
            )
        self._trainer, self._planner, self._clock = trainer, planner, clock
        self._share, self._search_seconds = share, search_seconds
        self._earned_seconds, self._since_seconds = 0.0, clock()

    def look(self) -> bool:
        """Between steps: search, if the time for it has been earned; whether some shape got a better step.

        Raises:
            ReplayError, PageFileError: as of `poet.runtime.Trainer.improve_shapes`.
        """
        began = self._clock()
        self._earned_seconds += self._share * (began - self._since_seconds)
        self._earned_seconds = min(self._earned_seconds, self._search_seconds)  # idle times are not saved up
        self._since_seconds = began
        if self._earned_seconds < self._search_seconds:
            return False
        search = functools.partial(self._planner.improve, time_limit_seconds=self._search_seconds)
        improved = self._trainer.improve_shapes(search)
        self._since_seconds = self._clock()
        self._earned_seconds -= self._since_seconds - began
        return improved


def _begun(
    plan: Plan, graph: Graph, problem: DecidedProblem, options: SolveOptions
) -> tuple[SolveOptions, Plan | None]:
    """``options`` with a start: of the steps nearest in size the cheapest schedule that ``problem`` allows.

    The plan's own step is one of them. Steps of other shapes have the same ops and tensors, so that a
    schedule of one is most often one of the other, and the better the longer it was searched for. The
    simulator decides, with what their own places ask to move; without one that it accepts, and where
    everything fits, ``options`` are as they were.

    Returns:
        And the step whose schedule it is, if there is one.
    """
    limits = limits_beside(plan)
    if keep_everything(problem, limits) is not None:
        return options, None
    size = _elements(graph)
    known = [plan, *(item.step for item in plan.shapes)]
    near = sorted(known, key=lambda item: abs(_elements(item.graph) - size))
    found: tuple[float, Plan] | None = None
    for step in near[:_NEIGHBOURS]:
        try:
            moved = None if step.places is None else step.places.moved()
            joules = judge(problem, step.schedule, limits, moved).joules
        except InvalidSchedule:  # other blocks of gradients, or it is for a smaller shape
            continue
        if found is None or joules < found[0]:
            found = joules, step
    if found is None:
        return options, None
    _, step = found
    return replace(options, start=Start(step.schedule, step.outcome.solver)), step


def _within_bytes(plan: Plan) -> int:
    """What a step beside the plan's own may take.

    Raises:
        InputError: it has no bound.
    """
    if plan.has_fitting_arena and plan.arena is not None:
        return plan.arena.size_bytes
    budget_bytes = plan.request.limits.ram_budget_bytes
    if budget_bytes is None:
        raise InputError(f"{plan.model.name}: any size fits a plan without a RAM budget; plan it with ram=")
    return budget_bytes


def _elements(graph: Graph) -> int:
    """Of all inputs together."""
    types = {value.name: value.type for value in graph.values}
    return sum(math.prod(types[name].shape) for name in graph.inputs)


def _alike(plan: Plan, graph: Graph) -> KernelFacts:
    """What is known already of ops of ``graph`` that make the call of ``plan`` on the same types."""
    ours, theirs = ({value.name: value for value in each.values} for each in (graph, plan.graph))
    by_name = {op.name: op for op in plan.graph.ops if op.strip is None}

    def is_alike(op: Op) -> bool:
        other = by_name.get(op.name)
        if other != op or plan.replayed_kernels.of(op.name).allocations is None:
            return False
        calls = (op.call, op.repeat_call)
        names = {name for call in calls if call is not None for name in call.refs()}
        names |= {name for name in op.outputs if name is not None}
        return all(ours[name] == theirs.get(name) for name in names)

    facts = tuple(plan.replayed_kernels.of(op.name) for op in graph.ops if is_alike(op))
    return KernelFacts(plan.replayed_kernels.library, facts)
