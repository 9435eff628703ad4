"""HiGHS in this process: the one place that loads a program into it, runs it and sets its tolerances.

Python runs signal handlers between two of its own instructions, so none runs while HiGHS works. Its callbacks
are such instructions: a flag that the handler of Ctrl-C sets is passed on by them.

A linear program's bound needs no trust in HiGHS. For any duals y ≤ 0 of the rows A x ≤ b,

    c·x ≥ y·b + (c − yA)·x ≥ y·b + Σ min(0, c − yA)    for every feasible x in [0, 1],

so they may be rounded, or those of a run that was cut short, and the bound holds (Neumaier and Shcherbina,
"Safe bounds in linear and mixed-integer linear programming", 2004).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import highspy
import numpy as np

from poet.clock import WALL, Clock
from poet.interrupts import answered, pass_on
from poet.solvers.engines.program import Job, Matrix, Numbers, Outcome, Scaled, scaled

TOLERANCE = 1e-7  # of rows and of whole numbers, absolute, after scaling
_ROUNDING = 1e-12  # of the sum of all magnitudes that a bound adds up; far more than doubles lose
_FEW_COLUMNS = 200
"""With fewer, HiGHS gets no plans by feasibility jump: branching is as quick, and a program was seen,
of three columns after presolve, whose relaxation at the root HiGHS 1.15.1 then repeats without end."""

DONE = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible)
"""Nothing is left to search."""

Hear = Callable[[Numbers | None, float], bool]
"""Called with a better solution, or ``None``, and the bound, both scaled; true stops HiGHS."""

Elsewhere = Callable[[], Sequence[float] | None]
"""Gives the best solution that another engine has found by now."""


def loaded(matrix: Matrix, *, integer: bool = True, threads: int = 1) -> highspy.Highs:
    """HiGHS with ``matrix``, which is scaled, silent and ready to run; not ``integer``: in fractions."""
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(matrix.costs), len(matrix.at_most)
    lp.col_cost_, lp.offset_ = matrix.costs, matrix.offset
    lp.col_lower_, lp.col_upper_ = np.zeros(lp.num_col_), np.ones(lp.num_col_)
    lp.row_lower_, lp.row_upper_ = np.full(lp.num_row_, -highspy.kHighsInf), matrix.at_most
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = matrix.row_starts()
    lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.columns, matrix.factors
    if integer:
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if chosen else kinds.kContinuous for chosen in matrix.integer]
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", threads)
    for tolerance in ("mip_feasibility_tolerance", "primal_feasibility_tolerance"):
        highs.setOptionValue(tolerance, TOLERANCE)
    if lp.num_col_ < _FEW_COLUMNS:
        highs.setOptionValue("mip_heuristic_run_feasibility_jump", False)
    highs.passModel(lp)
    if integer and matrix.start is not None:
        highs.setSolution(lp.num_col_, np.arange(lp.num_col_, dtype=np.int32), matrix.start)
    return highs


def is_empty(matrix: Matrix) -> bool:
    """Whether there is nothing to choose and no row forbids that; HiGHS gives no answer to such a program."""
    return len(matrix.costs) == 0 and bool((matrix.at_most >= 0.0).all())


def limit(highs: highspy.Highs, seconds: float, clock: Clock, *, integer: bool = True) -> None:
    """Let ``highs`` stop ``seconds`` of ``clock`` after it begins, or goes on."""
    iterations, nodes = clock.most_iterations(seconds), clock.most_nodes(seconds)
    if iterations is None or nodes is None:
        highs.setOptionValue("time_limit", highs.getRunTime() + max(seconds, 0.01))
    elif integer:
        highs.setOptionValue("mip_max_nodes", nodes)
    else:
        highs.setOptionValue("simplex_iteration_limit", iterations)


@contextlib.contextmanager
def sigint_flag() -> Iterator[list[int]]:
    """A list that is no longer empty once the user pressed Ctrl-C; nothing is raised meanwhile."""
    pressed: list[int] = []
    with answered(lambda number, frame: pressed.append(number)):
        yield pressed


def run(
    highs: highspy.Highs, clock: Clock, hear: Hear | None = None, elsewhere: Elsewhere | None = None
) -> bool:
    """As ``highs.run()``; whether Ctrl-C ended it, which nobody else has answered then.

    Args:
        highs: with a program and its limits.
        clock: that is told what the run took.
        hear: of solutions and bounds.
        elsewhere: solutions that HiGHS takes over.
    """
    kinds = highspy.cb.HighsCallbackType
    taken_over: list[Sequence[float] | None] = [None]

    def called(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        if kind == kinds.kCallbackMipUserSolution:
            values = elsewhere() if elsewhere is not None else None
            if values is not None and values is not taken_over[0]:
                taken_over[0] = values
                into.setSolution(np.arange(len(values), dtype=np.int32), np.array(values, dtype=np.float64))
            return
        found = np.array(out.mip_solution) if kind == kinds.kCallbackMipImprovingSolution else None
        stop = bool(pressed)
        if hear is not None and kind != kinds.kCallbackSimplexInterrupt:
            stop = hear(found, out.mip_dual_bound) or stop
        if found is None and stop:
            into.user_interrupt = True

    wanted = [kinds.kCallbackSimplexInterrupt, kinds.kCallbackMipInterrupt]
    wanted += [kinds.kCallbackMipImprovingSolution] if hear is not None else []
    wanted += [kinds.kCallbackMipUserSolution] if elsewhere is not None else []
    with sigint_flag() as pressed:
        highs.setCallback(called, None)
        for kind in wanted:
            highs.startCallback(kind)
        highs.run()
        highs.setCallback(None, None)
    info = highs.getInfo()
    clock.spend(
        programs=1, iterations=max(info.simplex_iteration_count, 0), nodes=max(info.mip_node_count, 0)
    )
    return bool(pressed)


def best_values(highs: highspy.Highs) -> Numbers | None:
    """Of the columns, where HiGHS has a solution."""
    found = highs.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    return np.array(highs.getSolution().col_value) if found else None


@dataclass(frozen=True, slots=True)
class Found:
    """Column values, ``None`` without any; whether nothing better is left."""

    values: Numbers | None
    exhausted: bool


def solve(
    matrix: Matrix, seconds: float, *, integer: bool = True, relative_gap: float = 1e-5, clock: Clock = WALL
) -> Found:
    """The best values of ``matrix`` within ``seconds``, or such within the gap; not ``integer``: of the
    linear program. A Ctrl-C meanwhile ends it, and is then answered as it would have been before.
    """
    if is_empty(matrix):
        clock.spend(programs=1)
        return Found(np.zeros(0), exhausted=True)
    highs = loaded(scaled(matrix).matrix, integer=integer)
    limit(highs, seconds, clock, integer=integer)
    highs.setOptionValue("mip_rel_gap", relative_gap)
    if not integer:
        highs.setOptionValue("presolve", "off")
    if run(highs, clock):
        pass_on()
    return Found(best_values(highs), highs.getModelStatus() in DONE)


def run_highs(job: Job, *, found_elsewhere: Elsewhere | None = None) -> Outcome:
    """HiGHS, with a start, incumbents and bounds as they come, and others' solutions taken over."""
    small, effort, watcher = scaled(job.matrix), job.effort, job.watcher
    if is_empty(job.matrix):
        effort.clock.spend(programs=1)
        return Outcome((), job.matrix.offset, done=True, infeasible=False, interrupted=False)
    highs = loaded(small.matrix, threads=effort.threads)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", max(effort.absolute_joules * small.unit, 1e-9))
    highs.setOptionValue("random_seed", effort.seed)
    if effort.seconds is not None:
        limit(highs, effort.seconds, effort.clock)

    def hear(values: Numbers | None, bound: float) -> bool:
        found = None if values is None else values.tolist()
        return watcher is not None and watcher(found, small.joules(bound))

    interrupted = run(highs, effort.clock, hear, found_elsewhere)
    status, info, values = highs.getModelStatus(), highs.getInfo(), best_values(highs)
    done = status == highspy.HighsModelStatus.kOptimal
    bound = info.mip_dual_bound if job.matrix.integer.any() else -math.inf
    if done and bound == -math.inf:
        bound = info.objective_function_value
    return Outcome(
        values=None if values is None else tuple(values.tolist()),
        bound_joules=small.joules(bound) if math.isfinite(bound) else -math.inf,
        done=done,
        infeasible=status == highspy.HighsModelStatus.kInfeasible,
        interrupted=interrupted,
    )


# --- linear programs ---


@dataclass(frozen=True, slots=True)
class LinearAnswer:
    """What is known of a program after an engine ran.

    Attributes:
        bound: joules; no solution costs less; ``inf``: there is none.
        values: of the columns, where the engine found a solution; else ``None``.
        prices: per row, by how many joules the cost would fall if it allowed 1 more; 0 or more.
        done: the engine finished.
        go_on: where it did not, the answer after so many seconds more, from where it stood; it holds on to
            the engine's memory.
    """

    bound: float
    values: Numbers | None
    prices: Numbers
    done: bool
    go_on: Callable[[float], LinearAnswer] | None = field(default=None, repr=False, compare=False)


def minimise(matrix: Matrix, *, seconds: float, seed: int = 0, clock: Clock = WALL) -> LinearAnswer:
    """Solve the linear program of ``matrix``, in fractions, on one thread; its bound is certified here."""
    small = scaled(matrix)
    highs = loaded(small.matrix, integer=False)
    highs.setOptionValue("presolve", "off")  # it takes longer here than it saves
    highs.setOptionValue("solver", "simplex")
    highs.setOptionValue("random_seed", seed)
    return _go_on(highs, matrix, small, seconds, clock)


def _go_on(highs: highspy.Highs, matrix: Matrix, small: Scaled, seconds: float, clock: Clock) -> LinearAnswer:
    """What ``highs``, which has ``small`` of ``matrix``, knows after ``seconds`` more."""
    limit(highs, seconds, clock, integer=False)
    if run(highs, clock):
        pass_on()
    status, solution = highs.getModelStatus(), highs.getSolution()
    done = status == highspy.HighsModelStatus.kOptimal
    duals = np.zeros(len(matrix.at_most))
    if status == highspy.HighsModelStatus.kInfeasible:
        _, has_ray, ray = highs.getDualRay()  # type: ignore[attr-defined]  # missing from its stubs
        if has_ray:
            proof = -np.abs(np.array(ray)) / small.divisors
            if _certified(matrix, np.zeros_like(matrix.costs), proof) > 0.0:
                return LinearAnswer(math.inf, None, duals, True)
    if solution.dual_valid:
        duals = np.minimum(np.array(solution.row_dual), 0.0) / small.divisors / small.unit
    bound = _certified(matrix, matrix.costs, duals) + matrix.offset
    further = None if done else partial(_go_on, highs, matrix, small, clock=clock)
    return LinearAnswer(max(0.0, bound), best_values(highs), -duals, done, further)


def _certified(matrix: Matrix, costs: Numbers, duals: Numbers) -> float:
    """The bound that ``duals`` prove, less what rounding may have added."""
    parts = matrix.factors * duals[matrix.rows]
    left = costs - np.bincount(matrix.columns, weights=parts, minlength=len(costs))
    terms = np.concatenate([duals * matrix.at_most, np.minimum(left, 0.0)])
    magnitude = float(np.abs(terms).sum() + np.abs(parts).sum() + np.abs(costs).sum())
    return math.fsum(terms) - _ROUNDING * magnitude
