"""Which groups of parameters to train: the set that contributes most inside the limits, and a bound on all.

Logic-based Benders decomposition (Hooker and Ottosson 2003). The relaxation of
`poet.solvers.bounds.optional_ops` offers a set and bounds all of them; planning the step that trains the set
says whether it has a plan. Where it proves that there is none, no larger set has one, and the relaxation
leaves them out. Sets offered for smaller limits are likelier to have a plan, and give the first ones. The
set that is taken is traced again by itself: its plan is that of the same ``train`` patterns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from poet.errors import Infeasible, InputError, OutOfTime
from poet.planning.candidates import Tried, Try, candidates_of
from poet.planning.choice import Scores
from poet.planning.climbing import Climber
from poet.planning.planned import Planned
from poet.planning.prepared import Prepared
from poet.plans.plan_parts import Choice
from poet.problem import Limits, Objective
from poet.problem.progress import stage, unshown
from poet.problem.schedule import Compute, Schedule
from poet.problem.solution import SolveOptions, Start
from poet.solvers import has_schedules
from poet.solvers.bounds.optional_ops import Groups, OptionalOps, Relaxation
from poet.solvers.search.objectives import seconds_left

PROVEN_SHARE = 1e-6
"""Of all scores: a set that contributes so little less than the bound is the best."""

PROVEN_JOULES = 1e-3
"""Likewise of the joules of a step, where these are what the least is sought of."""

_FIRST_SHRINK, _MOST_SHRINK = 0.02, 0.6
_OPEN = 1e-3  # of all scores: a relaxation that leaves more open was not solved in time
_FINAL_SHARE = 0.2  # of the time limit: for the plan of the set that is taken


@dataclass(frozen=True, slots=True)
class Found:
    """A set: the numbers of its groups, what they contribute, and what planning it showed."""

    groups: Groups
    share: float
    tried: Tried


class Search:
    """A search for the best set of groups; `run` makes it.

    Attributes:
        bound: no set contributes more, or takes fewer joules where these are what the least is sought of.
        best: so far.
        tried: what planning each set showed.
        was_interrupted: Ctrl-C ended the search.
    """

    def __init__(
        self, step: OptionalOps, limits: Limits, attempt: Try, options: SolveOptions, at_least: float | None
    ) -> None:
        """Begin.

        Args:
            step: to choose from.
            limits: of a plan.
            attempt: plans a set.
            options: of the search; the time limit is that of all that is searched here.
            at_least: the share that is to be reached at least energy; ``None``: the most is asked for.
        """
        self.step, self.at_least, self.is_most, self._attempt = step, at_least, at_least is None, attempt
        self.clock, self._seconds, self._left = (
            options.clock,
            options.time_limit_seconds,
            seconds_left(options),
        )
        self.relaxation = Relaxation(step, limits, at_least=at_least)
        self.bound = 1.0 if self.is_most else 0.0
        self.best: Found | None = None
        self.was_interrupted = False
        self.tried: dict[Groups, Tried] = {}
        self._retried: set[Groups] = set()
        self._shrink = 0.0  # by what share limits are smaller for sets that are likelier to have a plan
        self._climber: Climber | None = None  # where the relaxation takes too long

    def run(self) -> Found:
        """The best set.

        Raises:
            Infeasible: no set of groups has a plan inside the limits.
            OutOfTime: none was found in time.
            KeyboardInterrupt: Ctrl-C, before one was found.
        """
        if not has_schedules(self.step.of(()), self.relaxation.limits):
            raise Infeasible(self._nothing_fits())
        try:
            while self._left() > 0 and not self._is_proven() and (groups := self._offered()):
                self._note(groups, self._tried(groups))
                stage(self._words())
        except KeyboardInterrupt:
            self.was_interrupted = True
            if self.best is None:
                raise
        if self.best is None:
            raise OutOfTime("no set of groups was found that has a plan, nor a proof that there is none")
        return self.best

    # --- sets to plan ---

    def _offered(self) -> Groups | None:
        """The next set to plan; ``None``: there is none left."""
        if self._climber is not None and (climbed := self._climbed(self._climber)):
            return climbed
        found, bound = self._relaxed(None)
        if bound is None or (self.is_most and bound <= PROVEN_SHARE):
            if self.best is None:
                raise Infeasible(self._nothing_fits())
            self.bound = self._amount(self.best)
            return None
        self.bound = min(self.bound, bound) if self.is_most else max(self.bound, bound)
        if self._is_proven():
            return None
        is_open = found is None or self.step.share(found) < bound - _OPEN
        if self.is_most and is_open and self._climber is None:
            self._climber = Climber(self.step)
            if climbed := self._climbed(self._climber):
                return climbed
        if found and not self._shrink and found not in self.tried:
            return found
        while self._left() > 0:
            smaller, _ = self._relaxed(self._shrink)
            if smaller and smaller not in self.tried and self._gains(smaller):
                return smaller
            if self._shrink == 0.0:  # what is left are sets in doubt
                break
            self._widen()
        in_doubt = found in self.tried and self.tried[found].joules is None
        if found is None or not in_doubt or found in self._retried:
            return None
        self._retried.add(found)
        return found

    def _relaxed(self, shrink: float | None) -> tuple[Groups | None, float | None]:
        return self.relaxation.solve(max(self._left() / 2, 0.1), shrink=shrink, clock=self.clock)

    def _climbed(self, climber: Climber) -> Groups | None:
        """A set by local search, inside fewer joules for what small RAM adds."""
        limit = min(self.relaxation.limits.joules_budget or math.inf, climber.joules)
        start = frozenset() if self.best is None else self.best.groups
        while self._left() > 0:
            groups = climber.climbed(limit * (1 - self._shrink), start, self.relaxation.forbids)
            if not groups or not self._gains(groups):
                if self._shrink == 0.0:
                    break
                self._widen()
            elif self.relaxation.admits(groups):
                return groups
            else:
                self.relaxation.forbid(groups)
                self._narrow()
        return None

    def _narrow(self) -> None:
        self._shrink = min(max(2 * self._shrink, _FIRST_SHRINK), _MOST_SHRINK)

    def _widen(self) -> None:
        self._shrink = 0.0 if self._shrink < _FIRST_SHRINK / 4 else self._shrink / 2

    def _gains(self, groups: Groups) -> bool:
        """Whether a plan of ``groups`` could be better than the best."""
        return (
            not self.is_most or self.best is None or self.step.share(groups) > self.best.share + PROVEN_SHARE
        )

    def _tried(self, groups: Groups) -> Tried:
        left = self._left()
        whole = left if self._seconds is None else self._seconds
        with unshown():
            seconds = left if groups in self._retried else min(left, max(whole / 8, left / 4, 1.0))
            self.tried[groups] = self._attempt(groups, seconds)
        return self.tried[groups]

    def _note(self, groups: Groups, tried: Tried) -> None:
        if tried.joules is None:
            self.relaxation.forbid(groups, is_proven=tried.is_infeasible)
            self._narrow()
            return
        found = Found(groups, self.step.share(groups), tried)
        sign = 1 if self.is_most else -1
        if self.best is None or sign * self._amount(found) > sign * self._amount(self.best):
            self.best = found
        self._widen()
        if not self.is_most:
            self.relaxation.takes(groups, tried.least_joules)

    # --- amounts ---

    def _amount(self, found: Found) -> float:
        """What is sought the most or the least of."""
        return found.share if self.is_most else found.tried.joules or math.inf

    def _is_proven(self) -> bool:
        if self.best is None:
            return False
        if self.is_most:
            return self.best.share >= self.bound - PROVEN_SHARE
        return self._amount(self.best) <= self.bound * (1 + PROVEN_JOULES)

    def _words(self) -> str:
        at_most = f", at most {self.bound:.4g} is possible" if self.is_most else ""
        if self.best is None:
            return f"choice: {len(self.tried)} sets without a plan{at_most}"
        return f"choice: {len(self.best.groups)} groups contribute {self.best.share:.4g}{at_most}"

    def _nothing_fits(self) -> str:
        if self.at_least is None:
            return "No group of parameters can be trained inside the limits."
        return f"No set of groups that contributes {self.at_least:g} can be trained inside the limits."


def renamed_schedule(planned: Planned, other: Prepared) -> Schedule | None:
    """The schedule of ``planned`` with the names of another step of its build; ``None``: it is another."""
    ops, others, schedule = planned.prepared.problem.ops, other.problem.ops, planned.solution.schedule
    if schedule is None or len(ops) != len(others):
        return None
    called = {a.name: b.name for a, b in zip(ops, others, strict=True)}
    held: dict[str, str] = {}
    for a, b in zip(ops, others, strict=True):
        held.update(zip((*a.inputs, *a.outputs), (*b.inputs, *b.outputs), strict=False))
    if any(not isinstance(step, Compute) and step.tensor not in held for step in schedule):
        return None
    return tuple(
        Compute(called[step.op]) if isinstance(step, Compute) else type(step)(held[step.tensor])
        for step in schedule
    )


def chosen(
    prepared: Prepared,
    scores: Scores,
    limits: Limits,
    options: SolveOptions,
    again: Callable[[tuple[str, ...]], Prepared],
    *,
    at_least: float | None,
) -> tuple[Prepared, SolveOptions, Choice]:
    """The step that trains the best set of groups, how to plan it, and what was chosen.

    Args:
        prepared: a step that trains all groups.
        scores: of the groups.
        limits: of a plan.
        options: of all searches together.
        again: the step that trains the parameters of some patterns.
        at_least: see `Search`.

    Raises:
        InputError: a group fits no parameter, or another objective than energy is asked for.
        Infeasible, OutOfTime: as `Search.run`.
    """
    if options.objective is not Objective.ENERGY:
        raise InputError("--choose takes the least energy among plans; leave --minimise out")
    stage("choice")
    candidates = candidates_of(prepared, scores)
    began, seconds = options.clock.now(), options.time_limit_seconds
    inner = replace(options, time_limit_seconds=None if seconds is None else seconds * (1 - _FINAL_SHARE))
    attempt = candidates.attempt(limits, options, is_enough=at_least is None)
    search = Search(candidates.optional(), limits, attempt, inner, at_least)
    found = search.run()
    spent = options.clock.now() - began
    step = again(candidates.patterns(found.groups))  # an import, which no limit counts
    planned = found.tried.planned
    schedule = None if planned is None else renamed_schedule(planned, step)
    start = Start() if schedule is None else Start(schedule, "the search for what to train")
    if seconds is not None:
        seconds = max(seconds - spent, 1.0 if search.was_interrupted else _FINAL_SHARE * seconds)
    made = Choice(
        groups=tuple(scores.group[group].words for group in sorted(found.groups)),
        candidates=len(scores.group),
        contribution=min(found.share, 1.0),
        bound=search.bound,
        at_least=at_least,
    )
    return step, replace(options, start=start, time_limit_seconds=seconds), made
