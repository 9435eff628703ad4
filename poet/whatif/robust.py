"""The plan that loses least wherever the device's figures are: least largest regret among plans of corners.

A corner has each of computing, reads and writes (`poet.devices.spread.AXES`) at its good or its bad end. The
regret of a plan there is the share by which it takes more than the best plan for that corner. The plans to
choose from are those of the stated figures, of the corners, of blends of corners, and of blends where the
joules at one corner are limited. Bounds: what the cheapest plan has in a blend is no more than the largest
regret of any plan, for a mean is no larger than the largest; of the plans that a limit leaves out, each has
more than the limit at that corner.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from poet.devices.profile import Profile
from poet.devices.spread import AXES, SIDES, Side, at_ends, uncertain_groups
from poet.errors import Infeasible, InvalidSchedule, OutOfTime
from poet.graph import Graph
from poet.homes import DecidedProblem
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.simulator import judge
from poet.solution import Status
from poet.units import format_seconds
from poet.whatif.blended import at_pace, blend, joules_as_seconds
from poet.whatif.cache import SolvedCell
from poet.whatif.regrets import Numbers, Regrets, hardest_weights
from poet.whatif.searches import Solver, Wanted

CORNER_SHARE, BLEND_SHARE, CAPPED_SHARE = 0.4, 0.8, 1.2
"""Of the time of the plan's own search, for that of a corner, of a blend and of a blend below a cap."""

MOST_BLENDS = 2
"""Where plans below a cap are searched afterwards."""

ALL_SHARE = 8.8
"""Of all further searches together; what the others leave goes to the last blend, for its bound."""

GOOD_RATIO = 1.1
"""A largest regret of so many times its lower bound ends the search."""

_NOTABLE_SHARE = 0.25
"""Of what is open between the bound and the largest regret: a search that proves so much was worth it."""

_LEAST_TIMED_SECONDS = 1.0  # of the plan's own search: beginning one of a shorter limit takes as long

LEAST_SECONDS = 0.25
_LEAST_REGRET = 1e-4  # below which nothing is to be gained
_GRID = 1.25  # time limits are rounded down to powers of it, so that a search that is repeated is found again

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Corner:
    """One corner, and what plans take there.

    Attributes:
        ends: of each axis.
        joules: of the robust plan.
        nominal_joules: of the plan of the stated figures.
        best_joules: of the best plan that is known for this corner.
        bound_joules: no plan takes less here.
    """

    ends: tuple[tuple[str, Side], ...]
    joules: float
    nominal_joules: float
    best_joules: float
    bound_joules: float

    @property
    def name(self) -> str:
        """For people, e.g. ``computing good, reads bad``."""
        return ", ".join(f"{axis} {side}" for axis, side in self.ends)


@dataclass(frozen=True, slots=True)
class Robust:
    """The plan of least largest regret among those that were found.

    Attributes:
        schedule: the plan.
        corners: what it takes at each.
        regret: the largest, against the best plan known for each corner.
        regret_at_most: the largest against what no plan can beat there.
        nominal_regret: the largest of the plan of the stated figures.
        regret_bound: no plan has a smaller largest regret.
        nominal_is_late: that plan misses the deadline at the bad end.
        slow_seconds: what the plan takes with every figure at the bad end.
        searches: that were made beside the plan's own; ``search_seconds`` of them all together.
        complete: no Ctrl-C ended them.
    """

    schedule: Schedule
    corners: tuple[Corner, ...]
    regret: float
    regret_at_most: float
    nominal_regret: float
    regret_bound: float
    nominal_is_late: bool
    slow_seconds: float
    searches: int
    search_seconds: float
    complete: bool


def robust(
    problem: DecidedProblem,
    graph: Graph,
    profile: Profile,
    limits: Limits,
    nominal: Schedule,
    solver: Solver,
    *,
    nominal_seconds: float,
    accepts: Callable[[Schedule], bool] | None = None,
    report: Report | None = None,
) -> Robust:
    """Search the plan of ``problem`` that loses least at the corners of ``profile``'s figures.

    Args:
        problem: the step of ``graph`` on ``profile``'s device, whose homes stay as they are.
        graph: the step.
        profile: of the device.
        limits: of RAM and the like; deadline and energy budget hold with all figures at their bad ends.
        nominal: the plan of the stated figures.
        solver: makes and keeps the searches.
        nominal_seconds: that its search took; all others together take nine times as long at most.
        accepts: whether a plan can be used otherwise, such as laid out; asked by growing largest regret until
            one is. Where none is, it is the plan of the stated figures.
        report: told, before each search, what is searched.

    Raises:
        Infeasible: no plan meets the deadline at the bad end.
        OutOfTime: none that does was found.
    """
    hunt = _Hunt(problem, graph, profile, limits, nominal, solver, nominal_seconds, report)
    complete = True
    try:
        hunt.corners()
        hunt.between()
    except KeyboardInterrupt:
        complete = False
    return hunt.result(accepts or (lambda schedule: True), complete=complete)


class _Hunt:
    """The pool of plans, what each takes at each corner, and what is proven."""

    def __init__(
        self,
        problem: DecidedProblem,
        graph: Graph,
        profile: Profile,
        limits: Limits,
        nominal: Schedule,
        solver: Solver,
        nominal_seconds: float,
        report: Report | None,
    ) -> None:
        moved = [
            axis
            for axis in uncertain_groups(profile, AXES)
            if at_ends(problem, graph, profile, {axis: "good"}, AXES)
            != at_ends(problem, graph, profile, {axis: "bad"}, AXES)
        ]
        self.ends = [
            tuple(zip(moved, sides, strict=True)) for sides in itertools.product(SIDES, repeat=len(moved))
        ]
        self.pool = Regrets([at_ends(problem, graph, profile, dict(ends), AXES) for ends in self.ends])
        self.slow = self.pool.problems[-1]
        self.limits, self.solver, self.report = limits, solver, report
        self.nominal_seconds = nominal_seconds
        self.bounds = [0.0 for _ in self.ends]
        self.regret_bound = 0.0
        self.failed_cap, self.failed_searches = 0.0, 0
        self.searches, self.search_seconds, self.spent_share = 0, 0.0, 0.0
        self.nominal = nominal
        self.nominal_is_late = not self._add(nominal)

    def corners(self) -> None:
        """Search the best plan for each corner."""
        for number in reversed(range(len(self.ends))):  # the slow end first: there may be no plan for it
            corner = self.pool.problems[number]
            asked = corner if self.limits.deadline_seconds is None else at_pace(corner, self.slow)
            name = f"corner {len(self.ends) - number} of {len(self.ends)}"
            answer = self._search(asked, name, CORNER_SHARE, self.pool.best_at(number))
            if answer is None:
                continue
            self.bounds[number] = answer.bound_joules
            if answer.schedule is not None:
                self._add(answer.schedule)
            elif not self.pool.plans and answer.status is Status.INFEASIBLE:
                raise Infeasible(f"{Status.INFEASIBLE.value} {self._needed()}")

    def between(self) -> None:
        """Search plans between those of the corners, and prove how good one can be.

        First the cheapest where the game between plans and corners says that corners hurt most together. That
        leaves gaps: a plan in between may be the cheapest in no blend. So then, by bisection: of the plans
        whose regret at one corner is below a cap, the cheapest in a blend of the other corners.
        """
        capped = self.limits.deadline_seconds is None and not self.slow.background_storage
        blends = 0
        while self._goes_on(BLEND_SHARE) and not (capped and blends == MOST_BLENDS):
            blends += 1
            if not self._blend(BLEND_SHARE):
                break
        while capped and self._goes_on(CAPPED_SHARE) and self._capped():
            pass
        if self._goes_on(BLEND_SHARE):
            self._blend(self._left_share())

    def _goes_on(self, share: float) -> bool:
        """Whether there is time for another search, and something to gain."""
        if not self.pool.plans or self._left_share() < share:
            return False
        return self.pool.least_largest() > max(_LEAST_REGRET, GOOD_RATIO * self.regret_bound)

    def _left_share(self) -> float:
        """Of the time for all searches. Large ones, or on a busy machine, take longer than they may."""
        took_share = self.search_seconds / max(self.nominal_seconds, _LEAST_TIMED_SECONDS)
        return ALL_SHARE - max(self.spent_share, took_share)

    def _blend(self, share: float) -> bool:
        """Search the cheapest plan of the hardest blend; whether that is a new one."""
        regrets = self.pool.table()
        weights = hardest_weights(regrets)
        start = self.pool.plans[int(np.argmin(regrets @ weights))]
        answer = self._search(self._blended(weights, self.slow), "blend of corners", share, start)
        if answer is None:
            return False
        self.regret_bound = max(self.regret_bound, answer.bound_joules - 1.0)
        return answer.schedule is not None and self._add(answer.schedule)

    def _capped(self) -> bool:
        """Search below a cap of the regret at one corner; whether the search came to an end.

        The cap is half way between what is proven and what the best plan known does. The corner is one of the
        two that hurt most together: where one brings nothing it is the other's turn, at a higher cap.
        """
        regrets, largest = self.pool.table(), self.pool.least_largest()
        corner = int(np.argsort(-hardest_weights(regrets))[self.failed_searches % 2])
        low = max(self.regret_bound, self.failed_cap)
        cap = low + (largest - low) / 2
        below = np.flatnonzero(regrets[:, corner] <= cap)
        others = [other for other in range(len(self.ends)) if other != corner]
        weights = np.zeros(len(self.ends))
        weights[others] = hardest_weights(regrets[np.ix_(below, np.array(others))])
        pace = joules_as_seconds(self.pool.problems[corner], self.pool.best_joules()[corner])
        start = self.pool.plans[below[int(np.argmin(regrets[below] @ weights))]]
        asked = self._blended(weights, pace)
        answer = self._search(asked, "plan between corners", CAPPED_SHARE, start, cap=cap)
        if answer is None:
            return False
        # Any plan's regret is above the cap at this corner, or at another no less than the blend's bound.
        proven = cap if answer.status is Status.INFEASIBLE else min(cap, answer.bound_joules - 1.0)
        gained = proven - self.regret_bound > _NOTABLE_SHARE * (largest - self.regret_bound)
        self.regret_bound = max(self.regret_bound, proven)
        added = answer.schedule is not None and self._add(answer.schedule)
        if gained or self.pool.least_largest() < largest:
            self.failed_cap = 0.0
        elif not added:  # with another plan in the pool the weights would be others
            self.failed_cap, self.failed_searches = cap, self.failed_searches + 1
        return True

    def _blended(self, weights: Numbers, pace: Problem) -> Problem:
        """The blend in which the best plans known for each corner together take ``weights``' sum."""
        shares = [weight / joules for weight, joules in zip(weights, self.pool.best_joules(), strict=True)]
        return blend(self.pool.problems, shares, pace)

    def result(self, accepts: Callable[[Schedule], bool], *, complete: bool) -> Robust:
        """The best of the pool that is accepted, or the plan of the stated figures."""
        if not self.pool.plans:
            if not complete:
                raise KeyboardInterrupt
            raise OutOfTime(f"{Status.TIMEOUT.value} {self._needed()}")
        order = np.argsort(self.pool.table().max(axis=1), kind="stable")
        taken = (plan for number in order if accepts(plan := self.pool.plans[int(number)]))
        chosen = next(taken, None if self.nominal_is_late else self.nominal)
        if chosen is None:
            raise OutOfTime(f"No plan that meets the limits at the bad end fits an arena. {self._needed()}")
        joules, nominal_joules = self.pool.joules(chosen), self.pool.joules(self.nominal)
        corners = tuple(
            Corner(ends, *each)
            for ends, *each in zip(
                self.ends, joules, nominal_joules, self.pool.best_joules(), self.bounds, strict=True
            )
        )
        return Robust(
            schedule=chosen,
            corners=corners,
            regret=max(corner.joules / corner.best_joules - 1.0 for corner in corners),
            regret_at_most=max(
                corner.joules / corner.bound_joules - 1.0 if corner.bound_joules else math.inf
                for corner in corners
            ),
            nominal_regret=max(corner.nominal_joules / corner.best_joules - 1.0 for corner in corners),
            regret_bound=self.regret_bound,
            nominal_is_late=self.nominal_is_late,
            slow_seconds=judge(DecidedProblem(self.slow), chosen).seconds,
            searches=self.searches,
            search_seconds=self.search_seconds,
            complete=complete,
        )

    def _search(
        self, asked: Problem, name: str, share: float, start: Schedule | None, *, cap: float | None = None
    ) -> SolvedCell | None:
        """Solve ``asked``; with a ``cap`` its seconds are joules at a corner, in units of the best there."""
        if self.report is not None:
            self.report(name)
        limit_seconds = max(LEAST_SECONDS, _on_grid(share * self.nominal_seconds))
        solver = replace(self.solver, options=replace(self.solver.options, time_limit_seconds=limit_seconds))
        limits = replace(self.limits, joules_budget=None)  # joules of a blend are no joules
        if cap is not None:
            limits = replace(limits, deadline_seconds=1.0 + cap)
        started = time.monotonic()
        (answer,) = solver.solve([Wanted(asked, limits, name, start)])
        self.searches += 1
        self.spent_share += share
        self.search_seconds += time.monotonic() - started
        return answer

    def _add(self, schedule: Schedule) -> bool:
        """Take a plan into the pool, unless it is there or breaks a limit at the slow end."""
        try:
            judge(DecidedProblem(self.slow), schedule, self.limits)
        except InvalidSchedule:
            return False
        return self.pool.add(schedule)

    def _needed(self) -> str:
        deadline = self.limits.deadline_seconds
        if deadline is None:
            return ""
        once, nominal = self.slow.compute_seconds, judge(DecidedProblem(self.slow), self.nominal).seconds
        return (
            f"With all figures at their bad ends running every op once takes {format_seconds(once)}, "
            f"the plan of the stated figures {format_seconds(nominal)}; the deadline is "
            f"{format_seconds(deadline)}. Give a later deadline, or leave --robust out."
        )


def _on_grid(seconds: float) -> float:
    """``seconds`` rounded down to a power of the grid."""
    return _GRID ** math.floor(math.log(seconds, _GRID)) if seconds > 0.0 else 0.0
