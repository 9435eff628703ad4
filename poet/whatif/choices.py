"""What more RAM or energy would let a plan train: the best set of groups over a grid of each, and the bound.

A set inside a budget is inside every larger one, and a bound on a larger one holds for every smaller one; so
neither falls from one point to the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from poet.errors import Infeasible, OutOfTime
from poet.planning.candidates import Candidates, candidates_of
from poet.planning.choice import Scores
from poet.planning.choosing import Search
from poet.planning.pipeline import PlanRequest
from poet.planning.ram_survey import keep_everything_bytes
from poet.problem import Limits
from poet.problem.solution import SolveOptions
from poet.solvers import minimum_ram_bytes
from poet.whatif.grid import ram_budgets


@dataclass(frozen=True, slots=True)
class ChoicePoint:
    """What can be trained inside one budget.

    Attributes:
        ram_budget_bytes, joules_budget: inside which; ``None``: no limit of energy.
        contribution: of the best set found, as a share of all scores; 0: none was.
        bound: no set contributes more.
        groups: of the best set.
        peak_ram_bytes, joules: of a step that trains it.
    """

    ram_budget_bytes: int
    joules_budget: float | None
    contribution: float
    bound: float
    groups: tuple[str, ...] = ()
    peak_ram_bytes: int | None = None
    joules: float | None = None


@dataclass(frozen=True, slots=True)
class ChoiceSweep:
    """Points over RAM without a limit of energy, and over energy in the most of that RAM, both ascending.

    ``complete``: nothing interrupted it; else there may be none over energy.
    """

    model: str
    device: str
    candidates: int
    by_ram: tuple[ChoicePoint, ...]
    by_energy: tuple[ChoicePoint, ...]
    complete: bool = True


def choices(
    request: PlanRequest, ram: str, tell: Callable[[int, int], object] = lambda done, of: None
) -> ChoiceSweep:
    """Choose what to train inside each of some budgets. Ctrl-C ends it and keeps the points that are done.

    Args:
        request: a model, a device and scores to choose by; its time limit is that of each point.
        ram: budgets as of `poet.what_if`, where ``min`` is the least RAM with nothing trained. Of energy
            there are as many, from running every op once with nothing trained to the same of everything.
        tell: is given how many points are done, and of how many.

    Raises:
        InputError: the scores do not fit the model, or ``ram`` is no list of sizes.
    """
    assert request.choose is not None
    scores = Scores.of(request.choose)
    patterns = dict.fromkeys(pattern for group in scores.group for pattern in group.patterns)
    prepared, limits = request.inside(request.prepared(train=(*patterns,), evaluation=False))
    candidates = candidates_of(prepared, scores)
    everything, nothing = prepared.problem, candidates.optional().of(())
    least_bytes = minimum_ram_bytes(nothing, limits).bytes
    sizes = ram_budgets(ram, least_bytes=least_bytes, keep_bytes=keep_everything_bytes(everything))
    least, more = nothing.compute_joules, everything.compute_joules - nothing.compute_joules
    joules = [least + more * number / max(len(sizes) - 1, 1) for number in range(len(sizes))]
    wide = [replace(limits, ram_budget_bytes=size) for size in sizes]
    deep = [replace(limits, ram_budget_bytes=sizes[-1], joules_budget=amount) for amount in joules]
    found, asked = list[ChoicePoint](), (*wide, *deep)
    try:
        for each in asked:
            found.append(_point(candidates, each, request.search_options))
            tell(len(found), len(asked))
    except KeyboardInterrupt:
        if not found:
            raise
    by_ram, by_energy = (tuple(_rising(points)) for points in (found[: len(wide)], found[len(wide) :]))
    model, device, complete = prepared.model.name, prepared.profile.name, len(found) == len(asked)
    return ChoiceSweep(model, device, len(scores.group), by_ram, by_energy, complete)


def _point(candidates: Candidates, limits: Limits, options: SolveOptions) -> ChoicePoint:
    bare = ChoicePoint(limits.ram_budget_bytes or 0, limits.joules_budget, 0.0, 0.0)
    attempt = candidates.attempt(limits, options, is_enough=True)
    search = Search(candidates.optional(), limits, attempt, options, None)
    try:
        found = search.run()
    except Infeasible:
        return bare
    except OutOfTime:
        return replace(bare, bound=min(search.bound, 1.0))
    if search.was_interrupted:
        raise KeyboardInterrupt
    planned, groups = found.tried.planned, candidates.scores.group
    return replace(
        bare,
        contribution=min(found.share, 1.0),
        bound=min(search.bound, 1.0),
        groups=tuple(groups[number].words for number in sorted(found.groups)),
        peak_ram_bytes=None if planned is None else planned.peak_ram_bytes,
        joules=found.tried.joules,
    )


def _rising(points: Iterable[ChoicePoint]) -> list[ChoicePoint]:
    """Points whose sets and bounds hold for each other's budgets as well."""

    def better(before: ChoicePoint, point: ChoicePoint) -> ChoicePoint:
        if before.contribution <= point.contribution:
            return point
        ram_bytes, joules = point.ram_budget_bytes, point.joules_budget
        return replace(before, ram_budget_bytes=ram_bytes, joules_budget=joules, bound=point.bound)

    found = [*itertools.accumulate(points, better)]
    bounds = [*itertools.accumulate((point.bound for point in reversed(found)), min)]
    return [replace(point, bound=bound) for point, bound in zip(found, reversed(bounds), strict=True)]
