"""A plan beside the simpler ways to train: keep everything, recompute only, page only, greedy.

Quick planners make the rows: none takes more than seconds, and none of them proves anything. Each
plan was accepted by the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from poet.baselines.page_everything import page_everything
from poet.baselines.recompute_all import recompute_all
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.simulator import simulate
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.heuristics.policies import keep_everything

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
        rows.append(
            Alternative(
                name,
                by,
                best.joules,
                best.seconds,
                best.peak_ram_bytes,
                best.recomputed_runs,
                best.read_bytes,
                best.written_bytes,
            )
        )
    return tuple(rows)


def _needs(problem: Problem, allowed: Limits, planners: tuple[Planner, ...]) -> int | None:
    """The peak of keeping everything; what the other ways need is not known without a search."""
    if planners != (keep_everything,):
        return None
    schedule = keep_everything(problem, Limits(recompute=False, paging=False, pins=allowed.pins))
    return None if schedule is None else simulate(problem, schedule).peak_ram_bytes
