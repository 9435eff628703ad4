"""HiGHS in this process: the one place that loads a matrix into it and sets its tolerances."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

from poet.clock import WALL, Clock
from poet.solvers.engines.interrupt import sigint_flag
from poet.solvers.engines.interruptible import run
from poet.solvers.engines.matrix import Matrix, Numbers, Scaled, scaled
from poet.solvers.engines.outcome import Job, Outcome

TOLERANCE = 1e-7  # of rows and of whole numbers, absolute, after scaling
_FEW_COLUMNS = 200
"""With fewer, HiGHS gets no plans by feasibility jump: branching is as quick, and a program was seen,
of three columns after presolve, whose relaxation at the root HiGHS 1.15.1 then repeats without end."""

DONE = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible)
"""Nothing is left to search."""

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


def charge(highs: highspy.Highs, clock: Clock) -> None:
    """Tell ``clock`` what a run took."""
    info = highs.getInfo()
    clock.spend(
        programs=1, iterations=max(info.simplex_iteration_count, 0), nodes=max(info.mip_node_count, 0)
    )


@dataclass(frozen=True, slots=True)
class Found:
    """Column values, ``None`` without any; whether nothing better is left; in whole numbers, the engine's
    bound on the objective.
    """

    values: Numbers | None
    exhausted: bool
    bound: float = -math.inf


def solve(
    matrix: Matrix,
    seconds: float,
    *,
    integer: bool = True,
    relative_gap: float = 1e-5,
    absolute_gap: float = 0.0,
    clock: Clock = WALL,
) -> Found:
    """The best values of ``matrix`` within ``seconds``, or such within one of the gaps; not ``integer``: of
    the linear program.
    """
    if is_empty(matrix):
        clock.spend(programs=1)
        return Found(np.zeros(0), exhausted=True)
    program = scaled(matrix)
    highs = loaded(program.matrix, integer=integer)
    limit(highs, seconds, clock, integer=integer)
    highs.setOptionValue("mip_rel_gap", relative_gap)
    if absolute_gap:
        highs.setOptionValue("mip_abs_gap", absolute_gap * program.unit)
    if not integer:
        highs.setOptionValue("presolve", "off")
    run(highs)
    charge(highs, clock)
    bound = program.joules(highs.getInfo().mip_dual_bound) if integer else -math.inf
    return Found(best_values(highs), highs.getModelStatus() in DONE, bound)


def best_values(highs: highspy.Highs) -> Numbers | None:
    """Of the columns, where HiGHS has a solution."""
    found = highs.getInfo().primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    return np.array(highs.getSolution().col_value) if found else None


class _Listener:
    """HiGHS's callbacks: solutions and bounds out; solutions of others, and the request to stop, in."""

    def __init__(
        self, job: Job, small: Scaled, found_elsewhere: Elsewhere | None, pressed: list[int]
    ) -> None:
        self.job, self.small, self.found_elsewhere, self.pressed = job, small, found_elsewhere, pressed
        self.interrupted = False
        self.handed_over: Sequence[float] | None = None

    def listen_to(self, highs: highspy.Highs) -> None:
        """Be called by ``highs``."""
        kinds = highspy.cb.HighsCallbackType
        wanted = [kinds.kCallbackMipInterrupt, kinds.kCallbackMipImprovingSolution]
        if self.found_elsewhere is not None:
            wanted.append(kinds.kCallbackMipUserSolution)
        highs.setCallback(self._hear, None)
        for kind in wanted:
            highs.startCallback(kind)

    def _hear(self, kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        kinds = highspy.cb.HighsCallbackType
        if kind == kinds.kCallbackMipUserSolution:
            self._hand_over(into)
            return
        bound_joules = self.small.joules(out.mip_dual_bound)
        values = None
        if kind == kinds.kCallbackMipImprovingSolution:
            values = np.array(out.mip_solution).tolist()
        elif self.pressed:
            self.interrupted = True
            into.user_interrupt = True
        watcher = self.job.watcher
        if watcher is not None and watcher(values, bound_joules) and values is None:
            into.user_interrupt = True

    def _hand_over(self, into: Any) -> None:
        """Give HiGHS the solution that another engine found, once."""
        values = None if self.found_elsewhere is None else self.found_elsewhere()
        if values is not None and values is not self.handed_over:
            self.handed_over = values
            into.setSolution(np.arange(len(values), dtype=np.int32), np.array(values, dtype=np.float64))


def run_highs(job: Job, *, found_elsewhere: Elsewhere | None = None) -> Outcome:
    """HiGHS, with a start, incumbents and bounds as they come, and others' solutions taken over."""
    small, effort = scaled(job.matrix), job.effort
    if is_empty(job.matrix):
        effort.clock.spend(programs=1)
        return Outcome((), job.matrix.offset, done=True, infeasible=False, interrupted=False)
    highs = loaded(small.matrix, threads=effort.threads)
    highs.setOptionValue("mip_rel_gap", effort.relative)
    highs.setOptionValue("mip_abs_gap", max(effort.absolute_joules * small.unit, 1e-9))
    highs.setOptionValue("random_seed", effort.seed)
    if effort.seconds is not None:
        limit(highs, effort.seconds, effort.clock)
    with sigint_flag() as pressed:
        listener = _Listener(job, small, found_elsewhere, pressed)
        listener.listen_to(highs)
        highs.run()
    charge(highs, effort.clock)
    status, info = highs.getModelStatus(), highs.getInfo()
    values = best_values(highs)
    done = status == highspy.HighsModelStatus.kOptimal
    bound = info.mip_dual_bound if job.matrix.integer.any() else -math.inf
    if done and bound == -math.inf:
        bound = info.objective_function_value
    return Outcome(
        values=None if values is None else tuple(values.tolist()),
        bound_joules=small.joules(bound) if math.isfinite(bound) else -math.inf,
        done=done,
        infeasible=status == highspy.HighsModelStatus.kInfeasible,
        interrupted=listener.interrupted,
    )
