"""Large-neighbourhood search: free a part of a plan, solve that part exactly, keep the rest.

The relaxation (`poet.solvers.relaxation`) says where reruns may pay; the event model with the
chains that lead there, and with the plan's own reruns, is laid out once. Each round leaves free some
of its decisions whether a content stays in RAM through a gap, fixes the others as in the best plan,
and lets HiGHS find the best completion. Free are, in turn, decisions on which the plan and the
linear program disagree, and those of gaps that begin or end in a stretch of the step, which lies
more often where the disagreement is: so a stretch of the forward pass comes with its mirror image.
A round that was easy makes the next one larger, one that ran out of time smaller. What comes back
counts if the simulator accepts it and it takes fewer joules.
"""

from __future__ import annotations

import bisect
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solvers.candidates import chains_to, worth_rerunning
from poet.solvers.emit import schedule_of
from poet.solvers.events import Instance, instance_of, timeline_of
from poet.solvers.guide import merged, reruns_of
from poet.solvers.judged import Cheapest
from poet.solvers.linear import Numbers, value
from poet.solvers.milp import Model, build
from poet.solvers.relaxation import Bound, bound_overhead
from poet.solvers.start import values_of

Choice = npt.NDArray[np.bool_]

_CHAINS = ((1200, 4), (4000, 2), (math.inf, 1))
"""Up to how many ops how many reruns may be chained to remake one content."""

_FIRST_SIZE = 250  # decisions that the first round leaves free
_SMALLEST_SIZE = 40
_ROUND_SECONDS = 2.5
_PATIENCE = 25  # rounds without a better plan after which the slots are chosen anew


def improve(
    problem: Problem,
    limits: Limits,
    schedule: Schedule | None,
    *,
    seconds: float,
    seed: int = 0,
    guide: Bound | None = None,
    stop: Callable[[Schedule], bool] | None = None,
) -> Schedule | None:
    """The best schedule found in ``seconds``, at least as good as ``schedule``; ``None``: none found.

    Args:
        problem: what to plan.
        limits: what to stay within.
        schedule: a valid one to begin with, if there is any.
        seconds: wall clock.
        seed: of every random choice.
        guide: the relaxation's answer, if it is known already.
        stop: called with each better schedule; true ends the search.
    """
    search = _Search(problem, limits, time.monotonic() + seconds, seed)
    if schedule is not None:
        search.best.consider(schedule)
    search.run(guide or bound_overhead(search.instance, seconds=seconds), stop or (lambda better: False))
    return search.best.schedule


@dataclass(frozen=True, slots=True)
class _Arrays:
    """A model as a matrix: minimise costs·x within lower ≤ A x ≤ at_most, x between 0 and 1.

    ``first`` and ``last`` are the stages in which a decision's gap begins and ends, -1 for columns
    that follow from decisions.
    """

    model: Model
    costs: Numbers
    offset: float
    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    factors: Numbers
    at_most: Numbers
    decided: Choice
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Result:
    """Column values, ``None`` without any; whether nothing better is left."""

    values: Numbers | None
    exhausted: bool


class _Search:
    def __init__(self, problem: Problem, limits: Limits, end: float, seed: int) -> None:
        self.instance = instance_of(problem, limits)
        self.best = Cheapest(problem, limits)
        self.end = end
        self.rng = random.Random(seed)  # noqa: S311 - a search, not a secret
        self.size = _FIRST_SIZE

    def run(self, guide: Bound, stop: Callable[[Schedule], bool]) -> None:
        """Rounds on one model after the other, until one brings nothing."""
        hints = _hints(self.instance, guide)
        while self._seconds_left() > 0.0:
            before = self._joules()
            own = {} if self.best.schedule is None else reruns_of(self.instance, self.best.schedule)
            arrays = _arrays(build(timeline_of(self.instance, merged(hints, own))))
            values = self._plan(arrays)
            if values is None or not self._rounds(arrays, values, _expected(arrays, guide), stop):
                return
            if self._joules() >= before:
                return

    def _rounds(
        self, arrays: _Arrays, values: Numbers, expected: Numbers, stop: Callable[[Schedule], bool]
    ) -> bool:
        """Rounds on one model; false if the search was stopped."""
        vain = number = 0
        while self._seconds_left() > 0.0 and vain < _PATIENCE:
            free = self._part(arrays, np.abs(values - expected) * arrays.decided, disputed=number % 3 == 0)
            number += 1
            seconds = min(_ROUND_SECONDS, self._seconds_left())
            started = time.monotonic()
            result = _solve(arrays, free, values, seconds)
            self._resize(result, (time.monotonic() - started) / seconds)
            if result.values is None or not self._better(arrays, result.values):
                vain += 1
                continue
            values, vain = result.values, 0
            if self.best.schedule is not None and stop(self.best.schedule):
                return False
        return True

    def _plan(self, arrays: _Arrays) -> Numbers | None:
        """Values of the best plan in a model; where there is none, round the linear program's."""
        if self.best.schedule is not None:
            values = values_of(arrays.model, self.best.schedule)
            return None if values is None else np.array(values)
        relaxed = _solve(arrays, arrays.decided, None, 0.4 * self._seconds_left(), whole=False).values
        if relaxed is None:
            return None
        for surely in (0.5, 0.0):  # at first, whole numbers of the linear program are kept; then only its 1s
            free = arrays.decided & (np.abs(relaxed - surely) < 1.0 - surely - 1e-6)
            result = _solve(arrays, free, relaxed, 0.4 * self._seconds_left())
            if result.values is not None and self._better(arrays, result.values):
                return result.values
        return None

    def _joules(self) -> float:
        return math.inf if self.best.trace is None else self.best.trace.joules

    def _better(self, arrays: _Arrays, values: Numbers) -> bool:
        return self.best.consider(schedule_of(arrays.model, [float(number) for number in values]))

    def _part(self, arrays: _Arrays, apart: Numbers, *, disputed: bool) -> Choice:
        """The decisions to leave free: those nearest to a moment, of all or of those in dispute."""
        eligible = arrays.decided & (apart > 0.01) if disputed else arrays.decided
        decisions = np.flatnonzero(eligible)
        if len(decisions) == 0:
            return arrays.decided
        middle = self.rng.choices(decisions.tolist(), (apart[decisions] + 0.02).tolist())[0]
        moment = int(arrays.first[middle] if self.rng.random() < 0.5 else arrays.last[middle])
        distance = np.minimum(np.abs(arrays.first - moment), np.abs(arrays.last - moment))[decisions]
        rank = min(self.size, len(decisions)) - 1
        part = np.zeros(len(apart), dtype=np.bool_)
        part[decisions[distance <= np.partition(distance, rank)[rank]]] = True
        return part

    def _resize(self, result: _Result, share: float) -> None:
        if result.exhausted and share < 0.3:
            self.size = int(self.size * 1.3) + 1
        elif not result.exhausted:
            self.size = max(_SMALLEST_SIZE, int(self.size * 0.7))

    def _seconds_left(self) -> float:
        return self.end - time.monotonic()


def _hints(instance: Instance, guide: Bound) -> dict[int, set[int]]:
    """Chains of reruns that lead to what the relaxation remakes, by stage."""
    values = guide.answer.values
    if values is None:
        return {}
    remade: dict[int, set[int]] = {}
    for segment in guide.relaxation.segments:
        if any(value(column, values) > 1e-6 for column in segment.made):
            remade.setdefault(segment.until, set()).add(segment.content)
    worth = worth_rerunning(instance)
    chain = next(length for most, length in _CHAINS if len(instance.tasks) <= most)
    return {stage: chains_to(instance, worth, stage, made, chain) for stage, made in remade.items()}


def _expected(arrays: _Arrays, guide: Bound) -> Numbers:
    """For each decision, whether the relaxation keeps the content between the fixed moments around."""
    expected, values = np.full(len(arrays.costs), 0.5), guide.answer.values
    if values is None:
        return expected
    starts: dict[int, list[int]] = {}
    shares: dict[int, list[float]] = {}
    for segment in guide.relaxation.segments:
        kept = min(value(column, values) for column in segment.kept)
        starts.setdefault(segment.content, []).append(segment.after)
        shares.setdefault(segment.content, []).append(kept)
    for (content, _), gap in arrays.model.keep.items():
        for column in gap.terms if content in starts else ():
            position = bisect.bisect_right(starts[content], int(arrays.first[column])) - 1
            expected[column] = shares[content][max(position, 0)]
    return expected


def _arrays(model: Model) -> _Arrays:
    rows, columns, factors, at_most = [], [], [], []
    for number, row in enumerate(model.rows):
        terms = row.expression.terms
        unit = max([1.0, *(abs(factor) for factor in terms.values())])
        rows += [number] * len(terms)
        columns += list(terms)
        factors += [factor / unit for factor in terms.values()]
        at_most.append(-row.expression.constant / unit)
    costs = np.zeros(len(model.columns))
    for column, joules in model.overhead_joules.terms.items():
        costs[column] = joules
    unit = 1000.0 / costs.max(initial=1e-300)
    first, last = np.full(len(costs), -1), np.full(len(costs), -1)
    for (content, index), kept in model.keep.items():
        life, slots = model.timeline.events[content], model.timeline.slots
        for column in kept.terms:
            first[column], last[column] = slots[life[index].slot].stage, slots[life[index + 1].slot].stage
    return _Arrays(
        model=model,
        costs=costs * unit,
        offset=model.overhead_joules.constant * unit,
        rows=np.array(rows, dtype=np.int64),
        columns=np.array(columns, dtype=np.int64),
        factors=np.array(factors, dtype=np.float64),
        at_most=np.array(at_most),
        decided=np.array([column.integer for column in model.columns], dtype=np.bool_),
        first=first,
        last=last,
    )


def _solve(
    arrays: _Arrays, free: Choice, values: Numbers | None, seconds: float, *, whole: bool = True
) -> _Result:
    """The best values within ``seconds`` whose decisions are as in ``values`` unless ``free``.

    Only what is open reaches the engine: fixed columns become constants, and rows that cannot be
    broken any more are dropped. With ``whole`` false, the linear program's.
    """
    fixed = arrays.decided & ~free
    known = np.where(fixed, np.round(values), 0.0) if values is not None else np.zeros(len(fixed))
    used = arrays.factors * known[arrays.columns]
    at_most = arrays.at_most - np.bincount(arrays.rows, weights=used, minlength=len(arrays.at_most))
    open_entries = ~fixed[arrays.columns]
    rows, columns = arrays.rows[open_entries], arrays.columns[open_entries]
    factors = arrays.factors[open_entries]
    most = np.bincount(rows, weights=np.maximum(factors, 0.0), minlength=len(at_most))
    binding = most > at_most + 1e-9
    entries = binding[rows]
    rows, columns, factors = (np.cumsum(binding) - 1)[rows[entries]], columns[entries], factors[entries]
    left = np.flatnonzero(~fixed)
    position = np.zeros(len(fixed), dtype=np.int64)
    position[left] = np.arange(len(left))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(left), int(binding.sum())
    lp.col_cost_ = arrays.costs[left]
    lp.offset_ = float(arrays.offset + arrays.costs @ known)
    lp.col_lower_, lp.col_upper_ = np.zeros(len(left)), np.ones(len(left))
    lp.row_lower_, lp.row_upper_ = np.full(lp.num_row_, -highspy.kHighsInf), at_most[binding]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=lp.num_row_))])
    lp.a_matrix_.index_, lp.a_matrix_.value_ = position[columns], factors
    if whole:
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if free[column] else kinds.kContinuous for column in left]
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("time_limit", max(seconds, 0.01))
    highs.setOptionValue("mip_rel_gap", 1e-5)
    if not whole:
        highs.setOptionValue("presolve", "off")
    highs.passModel(lp)
    if whole and values is not None:
        highs.setSolution(len(left), np.arange(len(left), dtype=np.int32), values[left])
    highs.run()
    exhausted = highs.getModelStatus() in (
        highspy.HighsModelStatus.kOptimal,
        highspy.HighsModelStatus.kInfeasible,
    )
    if highs.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return _Result(None, exhausted)
    found = known.copy()
    found[left] = np.array(highs.getSolution().col_value)
    return _Result(found, exhausted)
