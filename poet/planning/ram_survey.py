"""Which RAM budgets make sense, and what each objective costs in another.

A survey solves budgets from what keeping everything needs to the least possible. A trade-off curve has the
least of one objective for each amount of another, by the epsilon-constraint method: the exact front is walked
from the plan that takes least of ``y``, each next plan must take less of ``x``, until none can (Haimes,
Lasdon and Wismer 1971; on a finite set of plans the walk finds every point that no other dominates). Where
that takes too many searches, the front is sampled at evenly spaced amounts of ``x``, and says so; each point
still carries its own status and bound.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from poet.errors import InputError
from poet.problem import Limits, Objective, Problem
from poet.problem.schedule import Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import LowerBound, Solution, SolveOptions, Start, Status, amount_of
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.search.objectives import limit_of, limited, seconds_left
from poet.util.brief import brief

_log = logging.getLogger(__name__)

SURVEY_SHARES = (0.8, 0.6, 0.4, 0.2, 0.0)
"""Budgets that a survey solves, as shares of the way from the lower bound to keeping everything."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Which RAM budgets make sense.

    Attributes:
        keep_everything_bytes: what plain training needs, each tensor freed after its last use.
        lower_bound: below which no schedule exists.
        points: (RAM budget in bytes, answer), most RAM first; after Ctrl-C the last is the one it ended.
    """

    keep_everything_bytes: int
    lower_bound: LowerBound
    points: tuple[tuple[int, Solution], ...]

    __repr__ = brief


def survey(
    problem: Problem,
    limits: Limits | None = None,
    options: SolveOptions | None = None,
    *,
    shares: Iterable[float] = SURVEY_SHARES,
    of: Callable[[Problem, Limits], Problem] = lambda problem, _: problem,
) -> Survey:
    """What keeping everything needs, the lower bound, and the answers for budgets between.

    Args:
        problem: to survey.
        limits: all but the RAM budget, which is not used.
        options: for the search of each budget.
        shares: where the budgets lie, from the lower bound (0) to keeping everything (1).
        of: what is searched inside each of them: the problem, or a part of its choices.
    """
    limits, options = limits or Limits(), options or SolveOptions(time_limit_seconds=10.0)
    most, least = keep_everything_bytes(problem), minimum_ram_bytes(problem, limits)
    budgets = dict.fromkeys(budget_between(least.bytes, most, share) for share in shares)
    points = []
    for budget in budgets:
        inside = replace(limits, ram_budget_bytes=budget)
        points.append((budget, solve(of(problem, inside), inside, options)))
        if points[-1][1].was_interrupted:
            break
    return Survey(most, least, tuple(points))


def budget_between(least_bytes: int, most_bytes: int, share: float) -> int:
    """The budget that lies ``share`` of the way from ``least_bytes`` up to ``most_bytes``."""
    return least_bytes + round(share * max(0, most_bytes - least_bytes))


def keep_everything_bytes(problem: Problem) -> int:
    """RAM that plain training needs: every op once, each tensor freed after its last use, no alternatives.

    Raises:
        InputError: no RAM is enough, because storage does not hold what must be there.
    """
    schedule = keep_everything(problem.resolved(()) if problem.alternatives else problem, Limits())
    if schedule is None:
        raise InputError(
            f"{problem.name}: no RAM is enough: its storage of {problem.storage_capacity_bytes} bytes does "
            "not hold what must begin or end there; give it more"
        )
    return simulate(problem, schedule).peak_ram_bytes


# --- trade-off curves -------------------------------------------------------------------------

EXACT_OPS = 40
"""Problems of up to so many ops are walked point by point unless a number of points is asked for."""

SAMPLED_POINTS = 8
MOST_POINTS = 200
"""Of a walk; a front of more points is cut short, and says so."""

RESOLUTION = 1e-6
"""Two amounts of joules or seconds that differ by less than this share are one point."""


@dataclass(frozen=True, slots=True)
class TradeOffPoint:
    """A plan on the curve.

    Attributes:
        x, y: what it takes of each objective: joules, seconds or bytes.
        y_bound: no plan that takes at most ``x_limit`` of the other objective takes less.
        x_limit: what it was allowed to take; infinite: without a limit.
        solution: the answer; its status says whether ``y`` is proven to be the least.
    """

    x: float
    y: float
    y_bound: float
    x_limit: float
    solution: Solution

    __repr__ = brief


@dataclass(frozen=True, slots=True)
class TradeOff:
    """A curve, from the least of ``x`` to the least of ``y``.

    Attributes:
        x, y: what is traded.
        points: ``x`` rising, ``y`` falling; no plan among them dominates another.
        exact: these are all points that no plan dominates, proven; else a sample.
    """

    x: Objective
    y: Objective
    points: tuple[TradeOffPoint, ...]
    exact: bool


def trade_off(
    problem: Problem,
    limits: Limits | None = None,
    options: SolveOptions | None = None,
    *,
    x: Objective | str = Objective.RAM,
    y: Objective | str = Objective.ENERGY,
    points: int | None = None,
) -> TradeOff:
    """The curve of ``y`` over ``x`` inside ``limits``.

    Args:
        problem: to plan.
        limits: that hold for every point.
        options: of the searches; their time limit is for all of them together.
        x: one objective: ``"energy"``, ``"time"``, ``"ram"`` or ``"writes"``.
        y: another one, of which each point takes the least.
        points: how many to sample; ``None``: all of the exact front of a small problem, a few of a
            larger one.

    Raises:
        InputError: an objective is unknown, both are the same, or ``points`` is less than 2.
    """
    across, up = _objective(x), _objective(y)
    if across is up:
        raise InputError(f"a trade-off is between two objectives, not {across.value} and {up.value}")
    if points is not None and points < 2:
        raise InputError(f"{points} points make no curve; ask for 2 or more")
    curve = _Curve(problem, limits or Limits(), options or SolveOptions(), across, up)
    if points is None and len(problem.ops) <= EXACT_OPS:
        return curve.walked()
    return curve.sampled(points or SAMPLED_POINTS)


def _objective(name: Objective | str) -> Objective:
    try:
        return Objective(name)
    except ValueError:
        words = ", ".join(objective.value for objective in Objective)
        raise InputError(f"{name!r} is not an objective; they are {words}") from None


class _Curve:
    def __init__(
        self, problem: Problem, limits: Limits, options: SolveOptions, x: Objective, y: Objective
    ) -> None:
        self.problem, self.limits, self.options, self.x, self.y = problem, limits, options, x, y
        self.seconds_left = seconds_left(options)

    def walked(self) -> TradeOff:
        """Every point of the front, by ever smaller amounts of ``x``."""
        found: list[TradeOffPoint] = []
        proven, allowed = True, limit_of(self.limits, self.x)
        exact = replace(self.options, relative_gap=RESOLUTION / 10, overhead_gap=RESOLUTION / 10)
        while len(found) < MOST_POINTS and self.seconds_left() > 0.0:
            solution = self._solve(exact, allowed, seconds=self.seconds_left())
            proven = proven and solution.status in (Status.OPTIMAL, Status.INFEASIBLE)
            if solution.trace is None:
                return TradeOff(self.x, self.y, _undominated(found), exact=proven)
            found.append(self._point(solution, allowed))
            if solution.was_interrupted:
                break
            allowed = self._less(found[-1].x)
        return TradeOff(self.x, self.y, _undominated(found), exact=False)

    def sampled(self, count: int) -> TradeOff:
        """``count`` points at evenly spaced amounts of ``x``, each search begun with the last one's plan."""
        allowed = limit_of(self.limits, self.x)
        each_seconds = self.seconds_left() / (count + 1)
        last = self._solve(self.options, allowed, seconds=each_seconds)
        if last.trace is None:
            return TradeOff(self.x, self.y, (), exact=False)
        if last.was_interrupted:
            return TradeOff(self.x, self.y, (self._point(last, allowed),), exact=False)
        most = amount_of(self.x, last.trace)
        leanest = self._solve(self.options, allowed, seconds=each_seconds, y=self.x)
        found: list[TradeOffPoint] = []
        start = leanest.schedule
        if leanest.trace is not None and not leanest.was_interrupted:
            least = amount_of(self.x, leanest.trace)
            for number in range(count - 1):
                amount = least + (most - least) * number / (count - 1)
                seconds = self.seconds_left() / (count - 1 - number)
                solution = self._solve(self.options, amount, seconds=seconds, start=start)
                if solution.trace is not None:
                    found.append(self._point(solution, amount))
                    start = solution.schedule
                if solution.was_interrupted:
                    break
        return TradeOff(self.x, self.y, _undominated([*found, self._point(last, allowed)]), exact=False)

    def _solve(
        self,
        options: SolveOptions,
        allowed: float,
        *,
        seconds: float,
        start: Schedule | None = None,
        y: Objective | None = None,
    ) -> Solution:
        limits = self.limits
        if not math.isinf(allowed):
            limits = limited(limits, self.x, amount=allowed)
        budget = None if math.isinf(seconds) else max(seconds, 0.1)
        asked = replace(options, objective=y or self.y, time_limit_seconds=budget, start=Start(start))
        answer = solve(self.problem, limits, asked)
        amount = "no plan" if answer.trace is None else f"{amount_of(self.x, answer.trace):.6g}"
        _log.info("%s at most %.6g: %s, %s", self.x.value, allowed, amount, answer.status.value)
        return answer

    def _point(self, solution: Solution, allowed: float) -> TradeOffPoint:
        assert solution.trace is not None
        bound = solution.bound
        return TradeOffPoint(
            x=amount_of(self.x, solution.trace),
            y=amount_of(self.y, solution.trace),
            y_bound=0.0 if bound is None else bound,
            x_limit=allowed,
            solution=solution,
        )

    def _less(self, amount: float) -> float:
        """The most that the next plan may take."""
        if self.x in (Objective.RAM, Objective.WRITES):
            return amount - 1.0
        return amount * (1 - RESOLUTION)


def _undominated(found: Iterable[TradeOffPoint]) -> tuple[TradeOffPoint, ...]:
    """By rising ``x``, without the points that another one equals or beats in both."""
    kept: list[TradeOffPoint] = []
    for point in sorted(found, key=lambda point: (point.x, point.y)):
        if not kept or point.y < kept[-1].y - RESOLUTION * abs(kept[-1].y) / 10:
            kept.append(point)
    return tuple(kept)
