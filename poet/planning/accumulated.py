"""The accumulating step of a plan with micro-batches: an auxiliary schedule of its updating step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from poet.devices.device_problem import build_problem, kernels_on
from poet.errors import Infeasible, InputError, InvalidSchedule, OutOfTime, PlanError
from poet.graph import Graph
from poet.kernel_facts import KernelFacts
from poet.micro import MicroBatches
from poet.planning.beside import SEARCH_SECONDS, at_home, limits_beside, plan_beside, planned_beside
from poet.planning.planned import Planned
from poet.planning.without_updates import arena_of, without_updates
from poet.plans.plan_parts import SearchOutcome
from poet.plans.training_plan import Plan
from poet.progress import stage
from poet.simulator import judge
from poet.solution import SolveOptions
from poet.units import format_bytes


def with_accumulation(planned: Planned, *, time_limit_seconds: float = SEARCH_SECONDS) -> Planned:
    """``planned``, its plan with the schedule of all micro-batches of a step but the last.

    Without micro-batches, ``planned`` itself.

    Args:
        planned: what `poet.planning.planned.plan_with` gave.
        time_limit_seconds: of each search; there is none where everything fits.

    Raises:
        Infeasible: there is no room for it where the updating step has its tensors.
    """
    prepared, plan = planned.prepared, planned.plan
    step = prepared.step.accumulation
    if step is None or prepared.micro is None:
        return planned
    stage("accumulation")
    options = SolveOptions(time_limit_seconds=time_limit_seconds)
    accumulation = planned_beside(planned, step.graph, step.kernels, options)
    if accumulation is None:
        accumulation = _without_updates(planned, step.graph, step.kernels)
    if accumulation is None:
        budget_bytes = plan.request.limits.ram_budget_bytes or plan.arena_ram_bytes
        raise Infeasible(
            f"no schedule was found that sums gradients inside {format_bytes(budget_bytes)}, beside that "
            "which updates; plan with more RAM or more micro-batches"
        )
    request = replace(plan.request, micro=prepared.micro)
    return replace(planned, plan=replace(plan, request=request, accumulation=accumulation))


def _without_updates(planned: Planned, graph: Graph, host_kernels: KernelFacts) -> Plan | None:
    """The updating schedule without its updates, as a plan; ``None``: it is no schedule of ``graph``."""
    plan, prepared = planned.plan, planned.prepared
    kernels = kernels_on(prepared.profile, graph, host_kernels)
    problem = at_home(build_problem(graph, prepared.profile, kernels), plan)
    limits = limits_beside(plan)
    schedule, origins = without_updates(plan, graph, problem)
    try:
        joules = judge(problem, schedule, limits).joules
        least = problem.compute_joules
        gap = (joules - least) / joules if joules else 0.0
        outcome = SearchOutcome(
            "feasible", least, "every schedule", least, gap, float(joules > least), "without-updates", 0.0
        )
        arena = arena_of(plan, problem, schedule, origins, kernels)
        if plan.has_fitting_arena and arena is None:
            return None
        return plan_beside(
            plan, graph, kernels, host_kernels, problem, schedule=schedule, outcome=outcome, arena=arena
        )
    except (InvalidSchedule, PlanError):
        return None


@dataclass(frozen=True, slots=True)
class Candidate:
    """One number of micro-batches that was tried.

    Attributes:
        micro: the pieces; ``None``: the batch as a whole.
        joules, seconds: of a whole step; ``None`` where there is no plan.
        why: there is none; empty where there is one.
    """

    micro: MicroBatches | None
    joules: float | None
    seconds: float | None
    why: str = ""


def least_energy(
    samples: int, loss: str, make: Callable[[MicroBatches | None], Planned]
) -> tuple[Planned, tuple[Candidate, ...]]:
    """The plan of least energy per step among every number of pieces of one size, and what each took.

    Args:
        samples: of a batch.
        loss: of the micro-batches, see `MicroBatches`.
        make: a plan with so many; raises `Infeasible` or `OutOfTime` where there is none.

    Raises:
        Infeasible: no number of pieces has a plan; the last reason.
    """
    best: Planned | None = None
    tried: list[Candidate] = []
    why: Infeasible | OutOfTime | None = None
    for micro in candidates(samples, loss):
        try:
            planned = make(micro)
        except (Infeasible, OutOfTime) as error:
            why = error
            tried.append(Candidate(micro, None, None, str(error)))
            continue
        tried.append(Candidate(micro, planned.plan.step_joules, planned.plan.step_seconds))
        if best is None or planned.plan.step_joules < best.plan.step_joules:
            best = planned
    if best is None:
        assert why is not None
        raise why
    return best, tuple(tried)


def candidates(samples: int, loss: str) -> Iterator[MicroBatches | None]:
    """Every number of pieces of one size, the whole batch first.

    Raises:
        InputError: there are no ``samples``.
    """
    if samples < 1:
        raise InputError("the model takes no batch of samples, so there is nothing to divide")
    yield None
    for count in range(2, samples + 1):
        if samples % count == 0:
            yield MicroBatches(count, loss)
