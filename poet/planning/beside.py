"""Auxiliary schedules of a plan's training step: in the same RAM and arena, on the same tensors.

What lives across steps stays what it is and where it is. A tensor that the training step never moves is not
moved here either; one that it moves may be, and comes back to its place.

Where a search has no plan in time, an online eviction policy makes one at once. DELTA pages or recomputes
what was not used for long, DTR recomputes it, each when room is needed; where both run out of memory,
everything is paged, or recomputed. The simulator accepts what is taken, and it is laid out like any plan. Its
bound is that every op runs once, so that its gap shows what a search may still save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from poet.baselines.nothing_kept import page_everything, recompute_all
from poet.baselines.online import delta, dtr
from poet.devices.device_problem import build_problem, kernels_on
from poet.errors import InputError, InvalidSchedule
from poet.ir.graph import Graph
from poet.ir.kernel_facts import KernelFacts
from poet.memory.demand import BEFORE, Demand, demand_of, replayed
from poet.memory.layout import lay_out_around, lower_bound_bytes
from poet.planning.arena import ENOUGH_SHARE, in_its_arena, with_moves
from poet.planning.planned import Planned, outcome_of
from poet.plans.page_slots import is_paged
from poet.plans.plan_parts import Arena, Request
from poet.plans.planned_step import LARGEST_BYTES
from poet.plans.training_plan import Plan, make_plan
from poet.problem import Limits, Objective, Place, Problem, Tensor
from poet.problem.homes import DecidedProblem, as_decided
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace, judge
from poet.problem.solution import Solution, SolveOptions, Status, amount_of
from poet.solvers import solve
from poet.solvers.heuristics.policies import keep_everything
from poet.util.clock import WALL, Clock

SEARCH_SECONDS = 10.0
_LEAST_SECONDS = 0.2  # as without a plan beside it there is no evaluation, or no micro-batches
FIRST_COUNTS = 2.0
"""As many searches beside it, that the search for the plan itself takes as long as: it decides most."""
_ROUNDS = 6
_SHRINK = 0.93  # of the bytes, where a schedule leaves too large gaps
_POLICIES: dict[str, Callable[[Problem, Limits], Schedule | None]] = {
    "keep-everything": keep_everything,
    "delta": delta,
    "dtr": dtr,
}
_LAST: dict[str, Callable[[Problem, Limits], Schedule | None]] = {
    "page-everything": page_everything,
    "recompute-all": recompute_all,
}


def check_comes_first(planned: Planned, what: str) -> None:
    """Do nothing if ``planned`` has no plans for other budgets, each of which would lack ``what``.

    Raises:
        InputError: it has.
    """
    if planned.plan.budgets:
        raise InputError(
            f"{what} are planned before other budgets, whose plans have them too: with_evaluation, "
            "with_shapes, then with_budgets"
        )


class TimeShares:
    """A time limit that the search for a plan and those for its auxiliary schedules share.

    They run one after the other; what one leaves is there for the others.

    Args:
        limit_seconds: for all; ``None``: the first has no limit, and each other `SEARCH_SECONDS`.
        others: searches that follow the first.
        clock: by which seconds are counted.
    """

    def __init__(self, limit_seconds: float | None, others: int, clock: Clock = WALL) -> None:
        self.limit_seconds, self.others, self.clock = limit_seconds, others, clock
        self._began: float | None = None

    def first(self) -> float | None:
        """For the search for the plan: as much as `FIRST_COUNTS` others have. It begins now."""
        self._began = self.clock.now() if self._began is None else self._began
        if self.limit_seconds is None:
            return None
        return self.limit_seconds * FIRST_COUNTS / (FIRST_COUNTS + self.others)

    def each(self, count: int) -> float:
        """For each of the next ``count`` searches; little is left where those before took long."""
        left_seconds = SEARCH_SECONDS
        if self.limit_seconds is not None:
            left_seconds = self.limit_seconds - (self.clock.now() - (self._began or 0.0))
            left_seconds /= max(self.others, count, 1)
        self.others -= count
        return min(SEARCH_SECONDS, max(_LEAST_SECONDS, left_seconds))


def planned_beside(
    planned: Planned, graph: Graph, host_kernels: KernelFacts, options: SolveOptions
) -> Plan | None:
    """A schedule inside the plan's budget, and in its arena if it has one; ``None``: there is no room.

    Args:
        planned: what `poet.planning.planned.plan_with` gave.
        graph: on the same tensors across steps as the training step.
        host_kernels: what torch's kernels need for it on this machine.
        options: of the search, and of all further ones for arenas together; there is none where everything
            fits. Where it finds nothing in time, or with a limit of 0, an online policy decides (`guard`).
    """
    prepared, plan = planned.prepared, planned.plan
    kernels = kernels_on(prepared.profile, graph, host_kernels)
    problem = at_home(build_problem(graph, prepared.profile, kernels), plan)
    return costed_beside(plan, graph, kernels, host_kernels, problem, options)


def costed_beside(
    plan: Plan,
    graph: Graph,
    kernels: KernelFacts,
    host_kernels: KernelFacts,
    problem: DecidedProblem,
    options: SolveOptions,
    *,
    near: Plan | None = None,
) -> Plan | None:
    """`planned_beside` where costs are known: ``problem`` is that of ``graph``, see `at_home`.

    A step ``near`` it, such as that of another shape, has the schedule that ``options`` start from: its
    places are tried for that one.
    """
    for search in (_search, guard) if options.time_limit_seconds != 0.0 else (guard,):
        found = _Rounds(plan, kernels, problem, options, near).run(search)
        if found is not None:
            solution, arena = found
            assert solution.schedule is not None
            return make_plan(
                model=plan.model,
                request=Request(limits_beside(plan), plan.request.loss, plan.request.train),
                device=plan.device,
                outcome=replace(outcome_of(solution), is_online=search is guard),
                graph=graph,
                kernels=kernels,
                optimizer=plan.optimizer,
                problem=problem,
                schedule=solution.schedule,
                arena=arena,
                host_kernels=host_kernels,
            )
    return None


_Search = Callable[[DecidedProblem, Limits, SolveOptions], Solution | None]


class _Rounds:
    """Searches for a schedule inside a plan's budget that has places in its arena, each with less RAM.

    Attributes:
        best: what takes least of those with an arena so far, with it.
    """

    def __init__(
        self,
        plan: Plan,
        kernels: KernelFacts,
        problem: DecidedProblem,
        options: SolveOptions,
        near: Plan | None,
    ) -> None:
        self.plan, self.kernels, self.problem, self.options, self.near = plan, kernels, problem, options, near
        self.best: tuple[Solution, Arena] | None = None

    def run(self, search: _Search) -> tuple[Solution, Arena | None] | None:
        """What takes least of what ``search`` finds, and its arena if the plan has one; ``None``: nothing."""
        plan, limits = self.plan, limits_beside(self.plan)
        if not plan.has_fitting_arena or plan.arena is None:
            alone = search(self.problem, limits, self.options)
            return None if alone is None else (alone, None)
        arena_bytes = within_bytes = plan.arena.size_bytes
        options, began = self.options, self.options.clock.now()
        limit_seconds = options.time_limit_seconds
        if limit_seconds is not None:  # the other half is for places, and for searches in less RAM
            options = replace(options, time_limit_seconds=limit_seconds / 2)
        first: Solution | None = None
        for _ in range(_ROUNDS):
            answer = search(self.problem, replace(limits, ram_budget_bytes=within_bytes), options)
            if answer is None:
                break
            schedule, trace = answer.schedule, answer.trace
            assert schedule is not None
            assert trace is not None
            if first is not None:
                reserved_bytes = arena_bytes - within_bytes
                answer = in_its_arena(answer, first, self.options, reserved_bytes=reserved_bytes)
            demand, seconds = demand_of(self.problem, schedule, self.kernels), 1.0
            if limit_seconds is not None:
                seconds = min(1.0, max(0.0, limit_seconds - (options.clock.now() - began)) / 20)
            arena = arena_around(plan, self.problem, schedule, demand, time_limit_seconds=seconds)
            self.offer(answer, demand, arena)
            if first is None and (arena is None or arena.moves):
                self.offer_the_start(answer)
            if self.is_near(answer):
                break
            first = first or answer
            within_bytes = round(_SHRINK * min(within_bytes, trace.peak_ram_bytes))
            if limit_seconds is not None:
                left_seconds = limit_seconds - (options.clock.now() - began)
                if left_seconds <= 0.0:
                    break
                options = replace(options, time_limit_seconds=left_seconds / 2)
        return self.best

    def offer(self, answer: Solution, demand: Demand, arena: Arena | None) -> None:
        """Keep ``answer`` in ``arena``, if it has one and takes least with its moves."""
        if arena is None:
            return
        assert answer.schedule is not None
        moved = replayed(demand, arena.offsets_bytes, arena.size_bytes, arena.moves).moved()
        trace = judge(self.problem, answer.schedule, limits_beside(self.plan), moved)
        if self.best is None or trace.joules < (self.best[0].joules or 0.0):
            self.best = in_its_arena(replace(answer, trace=trace), answer, self.options), arena

    def offer_the_start(self, answer: Solution) -> None:
        """Keep the start of the search in the places of its own step, if it takes least there."""
        start, near = self.options.start.schedule, self.near
        if start is None or near is None or start != near.schedule:
            return
        try:
            trace = judge(self.problem, start, limits_beside(self.plan))
        except InvalidSchedule:
            return
        begun = replace(answer, schedule=start, trace=trace, solver=self.options.start.by)
        if trace.joules > (answer.joules or 0.0):
            begun = replace(begun, status=Status.FEASIBLE, proof="", message="")
        demand = demand_of(self.problem, start, self.kernels)
        self.offer(begun, demand, arena_like(self.plan, near, demand))

    def is_near(self, answer: Solution) -> bool:
        """Whether the best takes so little more than ``answer`` without moves that no search is worth it."""
        if self.best is None:
            return False
        now, joules = self.best[0].joules or 0.0, answer.joules or 0.0
        return now - joules <= ENOUGH_SHARE * joules


def limits_beside(plan: Plan) -> Limits:
    """Those of the plan that hold for its auxiliary schedules: of RAM, and of what a schedule may do."""
    asked = plan.request.limits
    return Limits(ram_budget_bytes=asked.ram_budget_bytes, recompute=asked.recompute, paging=asked.paging)


def at_home(problem: Problem, plan: Plan) -> DecidedProblem:
    """``problem`` with what lives across steps where the training step leaves it."""
    before = {tensor.name: tensor for tensor in plan.problem.tensors}
    slotted = {slot.tensor for slot in plan.slots}
    persistent, standing = plan.graph.persistent(), plan.standing
    updated = {name for op in problem.ops for name in op.updates}

    def there(tensor: Tensor) -> Tensor:
        if tensor.name in standing:  # a batch may be, as a parameter is
            return replace(tensor, initially=Place.RAM, finally_=Place.RAM, page_in=None, page_out=None)
        if tensor.name not in persistent:
            return tensor
        begins = before[tensor.name].initially
        if begins is Place.STORAGE:
            ends = Place.STORAGE if tensor.name in updated else None
            return replace(tensor, initially=Place.STORAGE, finally_=ends)
        is_copied = begins is Place.BOTH and tensor.name in slotted
        return replace(tensor, initially=Place.BOTH if is_copied else Place.RAM, finally_=Place.RAM)

    return as_decided(replace(problem, tensors=tuple(there(tensor) for tensor in problem.tensors)))


def _search(problem: DecidedProblem, limits: Limits, options: SolveOptions) -> Solution | None:
    """A schedule within ``limits`` and how it was found; ``None``: there is none."""
    schedule = keep_everything(problem, limits)
    if schedule is not None and not is_paged(schedule):  # every op once and no transfer: nothing takes less
        trace = judge(problem, schedule, limits)
        return Solution(
            status=Status.OPTIMAL,
            schedule=schedule,
            trace=trace,
            bound_joules=trace.joules,
            baseline_joules=trace.joules,
            solve_seconds=0.0,
            solver="keep-everything",
            bound_scope="every schedule",
        )
    solution = solve(problem, limits, options)
    return None if solution.schedule is None else solution


def guard(problem: DecidedProblem, limits: Limits, options: SolveOptions) -> Solution | None:
    """What takes least of the objective among the schedules of the policies; ``None``: none is in ``limits``.

    Args:
        problem: what to plan.
        limits: what the schedule must be within.
        options: whose objective counts, and whose clock; nothing is searched.
    """
    began = options.clock.now()
    found: tuple[float, float, str, Schedule, Trace] | None = None
    for name, schedule in _schedules(problem, limits):
        try:
            trace = judge(problem, schedule, limits)
        except InvalidSchedule:
            continue
        amount = amount_of(options.objective, trace)
        if found is None or (amount, trace.joules) < found[:2]:
            found = amount, trace.joules, name, schedule, trace
        if name == "keep-everything" and options.objective is not Objective.RAM:
            break
    if found is None:
        return None
    *_, name, schedule, trace = found
    least = problem.compute_joules
    return Solution(
        status=Status.FEASIBLE,
        schedule=schedule,
        trace=trace,
        bound_joules=least,
        baseline_joules=least,
        solve_seconds=options.clock.now() - began,
        solver=f"online guard, {name}",
        message="No search had a plan in time: this one is of an online policy; a search may find better.",
        objective=options.objective,
    )


def _schedules(problem: Problem, limits: Limits) -> Iterator[tuple[str, Schedule]]:
    """Of each policy that does not run out of memory; the last ones only where all others do."""
    found = False
    for policies in (_POLICIES, _LAST):
        for name, policy in policies.items():
            schedule = policy(problem, limits)
            if schedule is not None:
                found = True
                yield name, schedule
        if found:
            return


def arena_around(
    plan: Plan,
    problem: DecidedProblem,
    schedule: Schedule,
    demand: Demand,
    *,
    time_limit_seconds: float = 1.0,
) -> Arena | None:
    """The arena of ``plan`` with places for ``demand``; ``None``: it has no fitting one, or there are none.

    Only what the training step itself never moves must stay where it is; all else that is moved is brought
    back.

    Args:
        plan: beside whose training step the schedule stands.
        problem: that the schedule solves.
        schedule: whose memory is placed.
        demand: what it asks for.
        time_limit_seconds: of a search for moves; a pass or two are made in any case.
    """
    layout = plan.layout
    if layout is None or not plan.has_fitting_arena:
        return None
    divide_bytes, _ = plan.demand.parts_bytes(layout.offsets_bytes, layout.arena_bytes)
    persistent = plan.graph.persistent()
    begun = places_begun(demand, {name: at for name, at in plan.begun_bytes.items() if name in persistent})
    offsets = lay_out_around(demand.blocks, begun, below_bytes=divide_bytes)
    if offsets is not None:
        return Arena(layout.arena_bytes, offsets)
    if lower_bound_bytes(demand.blocks) > layout.arena_bytes:
        return None
    moved = with_moves(
        problem,
        schedule,
        demand,
        divide_bytes,
        guide_bytes=lay_out_around(demand.blocks, begun, below_bytes=LARGEST_BYTES) or (),
        fixed_bytes=begun,
        time_limit_seconds=time_limit_seconds,
    )
    return None if moved is None else Arena(layout.arena_bytes, moved[0].offsets_bytes, moved[0].moves)


def arena_like(plan: Plan, near: Plan, demand: Demand) -> Arena | None:
    """The arena of ``near``, which is ``plan`` or auxiliary to it, for ``demand``: the same blocks.

    ``None``: it has none that lies in the plan's, or a block is too large for its place there.
    """
    arena = near.arena
    if arena is None or plan.arena is None or not plan.has_fitting_arena:
        return None
    if [block.owner for block in near.demand.blocks] != [block.owner for block in demand.blocks]:
        return None
    if arena.size_bytes > plan.arena.size_bytes:
        return None
    try:
        replayed(demand, arena.offsets_bytes, arena.size_bytes, arena.moves)
    except InvalidSchedule:
        return None
    return arena


def places_begun(demand: Demand, begun_bytes: Mapping[str, int]) -> dict[int, int]:
    """The place of each block that holds one of the tensors ``begun_bytes`` before the first step."""
    before = [
        (item.block, demand.blocks[item.block].tensor) for item in demand.requests if item.step == BEFORE
    ]
    return {block: begun_bytes[name] for block, name in before if name is not None and name in begun_bytes}
