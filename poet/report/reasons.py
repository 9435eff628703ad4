"""Why a plan keeps, recomputes or pages each tensor, what binds, and what simpler ways to train take.

Reasons are sentences made of the problem's own figures. Simpler ways come from quick planners, which prove
nothing; the simulator accepted each plan.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from poet.baselines.nothing_kept import page_everything, recompute_all
from poet.problem import Limits, Place, Problem, ProblemOp, Tensor
from poet.problem.homes import DecidedProblem
from poet.problem.pins import Pinned, pinned
from poet.problem.schedule import Schedule
from poet.problem.simulator import Trace, simulate
from poet.report.schedule_rows import KEPT, PAGED, RECOMPUTED, PeakMoment, StepTimeline, TensorFate
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.heuristics.policies import keep_everything
from poet.util.units import format_bytes, format_joules, format_share


def tensor_reasons(
    problem: DecidedProblem, limits: Limits, line: StepTimeline, fates: Sequence[TensorFate]
) -> tuple[str, ...]:
    """Per tensor a sentence: why becomes of it what does, in the order of ``fates``."""
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    producers = {name: op for op in problem.ops for name in op.outputs}
    spare = _spare_while_idle(problem, limits, line)
    pins = pinned(problem, limits)

    def why(fate: TensorFate) -> str:
        tensor = tensors[fate.name]
        ways = _ways(problem, tensor, producers.get(fate.name), limits)
        if fate.name in pins.unmoved:
            ways.pop(PAGING, None)
        if pin := _pin_on(fate.name, pins):
            return f"It is pinned: it must be {pin}."
        if fate.decision == KEPT:
            return _why_kept(ways, limits, spare.get(fate.name))
        if tensor.initially is Place.STORAGE:
            return _why_fetched(fate, tensor)
        return _why_given_up(fate, ways)

    return tuple(map(why, fates))


def _pin_on(name: str, pins: Pinned) -> str:
    """What the request insists on for a tensor, beyond not paging it; empty: nothing."""
    for names, words in ((pins.kept, KEPT), (pins.recomputed, RECOMPUTED), (pins.paged, PAGED)):
        if name in names:
            return words
    return ""


def _why_kept(ways: Mapping[str, float], limits: Limits, spare_bytes: int | None) -> str:
    """``spare_bytes``: the least RAM left while it lies idle; ``None``: it never does."""
    if spare_bytes is None:
        return "It never lies idle: each op from its first to its last uses it, or it must stay."
    if not ways:
        return "It cannot be brought back: no op may make it again and it may not be paged."
    if limits.ram_budget_bytes is None:
        return "There is no RAM budget to make room for."
    way, joules = min(ways.items(), key=lambda item: item[1])
    if spare_bytes > 0:
        return f"There is room: at the fullest moment of its waiting, {format_bytes(spare_bytes)} stay free."
    return f"Giving it up would cost {format_joules(joules)} by {way}; giving up others cost less in all."


def _why_fetched(fate: TensorFate, tensor: Tensor) -> str:
    """Of what is in storage between steps: it has to come from there, whatever the budget."""
    back = " and written back, as the step changes it" if fate.page_outs else ""
    why = f"It is in storage between steps: read where it is used{back}."
    if fate.page_ins > 1 and tensor.page_in is not None:
        costs = format_joules(tensor.page_in.joules)
        why += f" Between its uses it made room: each further reading costs {costs}."
    return why


def _why_given_up(fate: TensorFate, ways: Mapping[str, float]) -> str:
    if not fate.page_ins and fate.page_outs and not fate.recomputations:
        return "It is written to storage because it must end there, or is read there by the next step."
    taken = RECOMPUTING if fate.recomputations else PAGING
    other = PAGING if taken == RECOMPUTING else RECOMPUTING
    here = ways.get(taken, 0.0)
    if other not in ways:
        return f"RAM was short, and {other} is not possible for it; {taken} costs {format_joules(here)}."
    there = ways[other]
    if here <= there:
        return f"RAM was short: {taken} costs {format_joules(here)} a time, {other} {format_joules(there)}."
    return (
        f"RAM was short: {taken} costs {format_joules(here)} a time against {format_joules(there)} for "
        f"{other}, which would need {OBSTACLES[other]}."
    )


RECOMPUTING, PAGING = "recomputing", "paging"
OBSTACLES = {
    RECOMPUTING: "its op's inputs in RAM at that moment",
    PAGING: "the time or the storage for two transfers",
}


def _ways(
    problem: DecidedProblem, tensor: Tensor, producer: ProblemOp | None, limits: Limits
) -> dict[str, float]:
    """How the tensor can be brought back, and the joules of that: of its op alone, or of both transfers.

    Idle power is counted for the time that they take, unless transfers run in the background.
    """
    ways = {}
    if producer is not None and producer.recomputable and limits.recompute:
        ways[RECOMPUTING] = producer.joules + problem.idle_watts * producer.seconds
    if tensor.page_in is not None and tensor.page_out is not None and limits.paging:
        seconds = tensor.page_in.seconds + tensor.page_out.seconds
        idle_watts = 0.0 if problem.background_storage else problem.idle_watts
        ways[PAGING] = tensor.page_in.joules + tensor.page_out.joules + idle_watts * seconds
    return ways


def _spare_while_idle(problem: DecidedProblem, limits: Limits, line: StepTimeline) -> dict[str, int]:
    """Per tensor that lies idle between two uses, the least RAM left in those frames, in bytes.

    A tensor is idle in the frames of a stay between two that read or write it.
    """
    free = np.array([_free_bytes(limits, frame.ram_bytes) for frame in line.frames])
    touched = _touches(problem, line)
    spare: dict[str, int] = {}
    for stay in line.stays:
        frames = touched[stay.tensor]
        inside = frames[bisect_left(frames, stay.first) : bisect_right(frames, stay.last - 1)]
        for before, after in pairwise(inside):
            if after - before > 1:
                least = int(free[before + 1 : after].min())
                spare[stay.tensor] = min(spare.get(stay.tensor, least), least)
    return spare


def _free_bytes(limits: Limits, ram_bytes: int) -> int:
    return 0 if limits.ram_budget_bytes is None else limits.ram_budget_bytes - ram_bytes


def _touches(problem: DecidedProblem, line: StepTimeline) -> Mapping[str, list[int]]:
    """Per tensor, the frames that read, write or move it, in order."""
    ops = {op.name: op for op in problem.ops}
    touched: dict[str, list[int]] = defaultdict(list)
    for index, frame in enumerate(line.frames):
        if frame.kind == "compute":
            names: Sequence[str] = (*ops[frame.what].inputs, *ops[frame.what].outputs)
        elif frame.kind == "recompute":
            names = (*ops[frame.what].rerun_inputs, *ops[frame.what].outputs)
        else:
            names = (frame.what,)
        for name in dict.fromkeys(names):
            touched[name].append(index)
    return touched


# --- limits -----------------------------------------------------------------------------------

BINDING_SHARE = 0.99
"""A limit of which at least this share is used counts as used up."""


def what_binds(limits: Limits, trace: Trace, fullest: PeakMoment) -> Iterator[str]:
    """One line per limit: whether it binds, how much of it is used, and where.

    Running every op once without a transfer takes the least energy and time: what a plan does beyond
    that is for lack of RAM. The other limits bind where they are used up.
    """
    budget = limits.ram_budget_bytes
    if budget is not None:
        share = format_share(trace.peak_ram_bytes / budget)
        if trace.recomputed_runs or trace.read_bytes or trace.written_bytes:
            yield f"RAM binds: keeping everything does not fit; {share} is used while {fullest.what}"
            near_share = format_share(BINDING_SHARE)
            near = sum(moment.ram_bytes >= BINDING_SHARE * budget for moment in trace.moments)
            yield f"{near} of {len(trace.moments)} steps hold {near_share} of the budget or more"
        else:
            yield f"RAM does not bind: everything is kept; {share} is used while {fullest.what}"
    for name, limit, amount in (
        ("the deadline", limits.deadline_seconds, trace.seconds),
        ("the write budget", limits.written_budget_bytes, trace.written_bytes),
        ("the energy budget", limits.joules_budget, trace.joules),
    ):
        if limit is not None:
            verb = "binds" if amount >= BINDING_SHARE * limit else "does not bind"
            yield f"{name} {verb}: {format_share(amount / limit) if limit else 'all'} is used"


# --- simpler ways to train --------------------------------------------------------------------

GREEDY_SECONDS = 5.0
"""After which greedy planning tries no further plan once it has one."""

Planner = Callable[[Problem, Limits], Schedule | None]


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to train inside the same limits, and what it takes per step.

    Attributes:
        name: of the way.
        by: the planners that were tried; their cheapest plan stands here.
        joules, seconds, peak_ram_bytes, recomputed_runs, read_bytes, written_bytes: per step;
            ``None`` where no plan was found inside the limits.
        unlimited_ram_bytes: where none was found, the RAM that it would need, if that is known.
    """

    name: str
    by: str
    joules: float | None = None
    seconds: float | None = None
    peak_ram_bytes: int | None = None
    recomputed_runs: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    unlimited_ram_bytes: int | None = None


def taken(name: str, by: str, trace: Trace) -> Alternative:
    """The row of a way that takes what ``trace`` says."""
    figures = trace.joules, trace.seconds, trace.peak_ram_bytes, trace.recomputed_runs
    return Alternative(name, by, *figures, trace.read_bytes, trace.written_bytes)


def _greedy(problem: Problem, limits: Limits) -> Schedule | None:
    return greedy(problem, limits, seconds=GREEDY_SECONDS)


_PLANNERS: tuple[tuple[str, str, bool, bool, tuple[Planner, ...]], ...] = (
    ("keep everything", "plain training", False, False, (keep_everything,)),
    ("recompute only", "greedy, recompute-all", True, False, (_greedy, recompute_all)),
    ("page only", "greedy, page-everything", False, True, (_greedy, page_everything)),
    ("greedy", "greedy", True, True, (_greedy,)),
)
"""Name, what is tried, whether it may recompute, whether it may page, the planners."""


def alternatives(problem: Problem, limits: Limits) -> tuple[Alternative, ...]:
    """One row per way; a way that ``limits`` do not permit has none."""
    rows = []
    for name, by, recompute, paging, planners in _PLANNERS:
        if (recompute and not limits.recompute) or (paging and not limits.paging):
            continue
        allowed = replace(limits, recompute=recompute, paging=paging)
        schedules = [planner(problem, allowed) for planner in planners]
        traces = [simulate(problem, schedule, limits) for schedule in schedules if schedule is not None]
        if not traces:
            rows.append(Alternative(name, by, unlimited_ram_bytes=_needs(problem, allowed, planners)))
            continue
        best = min(traces, key=lambda trace: trace.joules)
        rows.append(taken(name, by, best))
    return tuple(rows)


def _needs(problem: Problem, allowed: Limits, planners: tuple[Planner, ...]) -> int | None:
    """The peak of keeping everything; what the other ways need is not known without a search."""
    if planners != (keep_everything,):
        return None
    schedule = keep_everything(problem, Limits(recompute=False, paging=False, pins=allowed.pins))
    return None if schedule is None else simulate(problem, schedule).peak_ram_bytes
