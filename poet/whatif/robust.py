"""The plan that loses least wherever the device's figures are: least largest regret among plans of corners.

A corner has each of computing, reads and writes (`poet.devices.spread.AXES`) at its good or its bad end. The
regret of a plan there is the share by which it takes more than the best plan for that corner. The plans to
choose from are those of the stated figures, of the corners, and of blends of corners: a blend's prices are
weighted means of what the corners charge, so that no plan can have a smaller largest regret than the cheapest
one has in a blend (weak duality). Weights come from the game between plans and corners.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from poet.devices.profile import Profile
from poet.devices.spread import AXES, SIDES, Side, at_ends, uncertain_groups
from poet.errors import Infeasible, InvalidSchedule, OutOfTime
from poet.graph import Graph
from poet.homes import DecidedProblem
from poet.problem import Limits, Problem, Tensor, Transfer
from poet.schedule import Schedule
from poet.simulator import judge
from poet.solution import Status
from poet.units import format_seconds
from poet.whatif.cache import SolvedCell
from poet.whatif.searches import Solver, Wanted

CORNER_SHARE, BLEND_SHARE = 0.6, 0.8
"""Of the time of the plan's own search, for that of a corner and of a blend."""

ALL_SHARE = 8.8
"""Of all further searches together; what the others leave goes to the last blend, for its bound."""

MOST_BLENDS = 4
GOOD_RATIO = 1.5
"""A largest regret of so many times its lower bound ends the search."""

LEAST_SECONDS = 0.25
_LEAST_REGRET = 1e-4  # below which nothing is to be gained
_GRID = 1.25  # time limits are rounded down to powers of it, so that a search that is repeated is found again
_GAME_ROUNDS = 4000

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
        hunt.blends()
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
        self.problems = [at_ends(problem, graph, profile, dict(ends), AXES) for ends in self.ends]
        self.slow = self.problems[-1]
        self.limits, self.solver, self.report = limits, solver, report
        self.nominal_seconds = nominal_seconds
        self.bounds = [0.0 for _ in self.ends]
        self.regret_bound = 0.0
        self.pool: list[Schedule] = []
        self.joules: list[list[float]] = []
        self.searches, self.search_seconds, self.spent_share = 0, 0.0, 0.0
        self.nominal = nominal
        self.nominal_joules = [self._judged(number, nominal) for number in range(len(self.ends))]
        self.nominal_is_late = not self._add(nominal)

    def corners(self) -> None:
        """Search the best plan for each corner."""
        for number in reversed(range(len(self.ends))):  # the slow end first: there may be no plan for it
            corner = self.problems[number]
            asked = corner if self.limits.deadline_seconds is None else _at_pace(corner, self.slow)
            name = f"corner {len(self.ends) - number} of {len(self.ends)}"
            answer = self._search(asked, name, CORNER_SHARE, self._start(number))
            if answer is None:
                continue
            self.bounds[number] = answer.bound_joules
            if answer.schedule is not None:
                self._add(answer.schedule)
            elif not self.pool and answer.status is Status.INFEASIBLE:
                raise Infeasible(f"{Status.INFEASIBLE.value} {self._needed()}")

    def blends(self) -> None:
        """Search where the game between plans and corners says that corners hurt most together."""
        for number in range(MOST_BLENDS if self.pool else 0):
            regrets = self._regrets()
            largest = float(regrets.max(axis=1).min())
            if largest <= max(_LEAST_REGRET, GOOD_RATIO * self.regret_bound):
                return
            weights = _hardest_weights(regrets)
            best = self._best_joules()
            blend = _blend(self.problems, [w / j for w, j in zip(weights, best, strict=True)], self.slow)
            held = self.pool[int(np.argmin(regrets @ weights))]
            left = ALL_SHARE - self.spent_share
            for share in (BLEND_SHARE, left - BLEND_SHARE):
                if share < BLEND_SHARE:
                    return
                answer = self._search(blend, f"blend {number + 1}", share, held)
                if answer is None:
                    return
                self.regret_bound = max(self.regret_bound, answer.bound_joules - 1.0)
                if answer.schedule is not None and self._add(answer.schedule):
                    break
            else:
                return

    def result(self, accepts: Callable[[Schedule], bool], *, complete: bool) -> Robust:
        """The best of the pool that is accepted, or the plan of the stated figures."""
        if not self.pool:
            if not complete:
                raise KeyboardInterrupt
            raise OutOfTime(f"{Status.TIMEOUT.value} {self._needed()}")
        regrets, best = self._regrets(), self._best_joules()
        order = [int(number) for number in np.argsort(regrets.max(axis=1), kind="stable")]
        taken = (number for number in order if accepts(self.pool[number]))
        chosen = next(taken, None if self.nominal_is_late else self.pool.index(self.nominal))
        if chosen is None:
            raise OutOfTime(f"No plan that meets the limits at the bad end fits an arena. {self._needed()}")
        corners = tuple(
            Corner(ends, joules, nominal, least, bound)
            for ends, joules, nominal, least, bound in zip(
                self.ends, self.joules[chosen], self.nominal_joules, best, self.bounds, strict=True
            )
        )
        return Robust(
            schedule=self.pool[chosen],
            corners=corners,
            regret=float(regrets[chosen].max()),
            regret_at_most=max(
                corner.joules / corner.bound_joules - 1.0 if corner.bound_joules else math.inf
                for corner in corners
            ),
            nominal_regret=max(corner.nominal_joules / corner.best_joules - 1.0 for corner in corners),
            regret_bound=self.regret_bound,
            nominal_is_late=self.nominal_is_late,
            slow_seconds=judge(DecidedProblem(self.slow), self.pool[chosen]).seconds,
            searches=self.searches,
            search_seconds=self.search_seconds,
            complete=complete,
        )

    def _search(self, asked: Problem, name: str, share: float, start: Schedule | None) -> SolvedCell | None:
        if self.report is not None:
            self.report(name)
        limit_seconds = max(LEAST_SECONDS, _on_grid(share * self.nominal_seconds))
        solver = replace(self.solver, options=replace(self.solver.options, time_limit_seconds=limit_seconds))
        started = time.monotonic()
        unpriced = replace(self.limits, joules_budget=None)  # joules of a blend are no joules
        (answer,) = solver.solve([Wanted(asked, unpriced, name, start)])
        self.searches += 1
        self.spent_share += share
        self.search_seconds += time.monotonic() - started
        return answer

    def _judged(self, number: int, schedule: Schedule) -> float:
        return judge(DecidedProblem(self.problems[number]), schedule).joules

    def _add(self, schedule: Schedule) -> bool:
        """Take a plan into the pool, unless it is there or breaks a limit at the slow end."""
        try:
            judge(DecidedProblem(self.slow), schedule, self.limits)
        except InvalidSchedule:
            return False
        if schedule in self.pool:
            return False
        self.pool.append(schedule)
        self.joules.append([self._judged(number, schedule) for number in range(len(self.ends))])
        return True

    def _start(self, number: int) -> Schedule | None:
        """The best plan known for a corner."""
        known = [row[number] for row in self.joules]
        return self.pool[known.index(min(known))] if known else None

    def _best_joules(self) -> list[float]:
        return [min(column) for column in zip(*self.joules, strict=True)]

    def _regrets(self) -> npt.NDArray[np.float64]:
        """Of each plan, a row, at each corner."""
        regrets: npt.NDArray[np.float64] = np.array(self.joules) / np.array(self._best_joules()) - 1.0
        return regrets

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


def _hardest_weights(regrets: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Weights of corners in the game in which plans may be mixed: multiplicative weights, averaged.

    Any weights give a valid bound; these are within a few per cent of the best.
    """
    corners = regrets.shape[1]
    scale = float(regrets.max()) or 1.0
    rate = math.sqrt(8.0 * math.log(max(corners, 2)) / _GAME_ROUNDS)
    score, mean = np.zeros(corners), np.zeros(corners)
    for _ in range(_GAME_ROUNDS):
        weights = np.exp(rate * (score - score.max()))
        weights /= weights.sum()
        mean += weights
        score += regrets[int(np.argmin(regrets @ weights))] / scale
    return np.asarray(mean / mean.sum(), dtype=np.float64)


# --- problems with the prices of one corner or of several -------------------------------------------------


def _at_pace(corner: Problem, slow: Problem) -> Problem:
    """``corner``'s joules with the seconds of ``slow``: what is cheapest here and in time there.

    Idle power becomes part of the joules of what makes the step longer. Where transfers run beside the ops it
    is charged for the ops alone, so that no plan is made dearer than it is.
    """
    return _blend([corner], [1.0], slow)


def _blend(problems: Sequence[Problem], weights: Sequence[float], slow: Problem) -> Problem:
    """The weighted sum of the joules of ``problems``, at the seconds of ``slow``, idle power as above."""
    beside = slow.background_storage
    ops = tuple(
        replace(
            op,
            joules=sum(
                weight * (each.ops[index].joules + each.idle_watts * each.ops[index].seconds)
                for weight, each in zip(weights, problems, strict=True)
            ),
        )
        for index, op in enumerate(slow.ops)
    )

    def blended(index: int, tensor: Tensor, pick: Callable[[Tensor], Transfer | None]) -> Transfer | None:
        paced = pick(tensor)
        if paced is None:
            return None
        joules = 0.0
        for weight, each in zip(weights, problems, strict=True):
            transfer = pick(each.tensors[index])
            assert transfer is not None
            joules += weight * (transfer.joules + (0.0 if beside else each.idle_watts * transfer.seconds))
        return Transfer(paced.seconds, joules)

    tensors = tuple(
        replace(
            tensor,
            page_in=blended(index, tensor, lambda item: item.page_in),
            page_out=blended(index, tensor, lambda item: item.page_out),
        )
        for index, tensor in enumerate(slow.tensors)
    )
    return replace(slow, ops=ops, tensors=tensors, idle_watts=0.0)
