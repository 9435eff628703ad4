"""HiGHS in this process: the one place that loads a program into it, runs it and sets its tolerances.

Python runs signal handlers between two of its own instructions, so none runs while HiGHS works. Its callbacks
are such instructions: a flag that the handler of Ctrl-C sets is passed on by them.

A linear program's bound needs no trust in HiGHS. For any duals y ≤ 0 of the rows A x ≤ b,

    c·x ≥ y·b + (c − yA)·x ≥ y·b + Σ min(l·(c − yA), u·(c − yA))    for every feasible x in [l, u],

so they may be rounded, or those of a run that was cut short, and the bound holds (Neumaier and Shcherbina,
"Safe bounds in linear and mixed-integer linear programming", 2004).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import highspy
import numpy as np

from poet.solvers.engines.program import Job, Matrix, Numbers, Outcome, Scaled, scaled
from poet.util.clock import WALL, Clock
from poet.util.interrupts import answered, pass_on

TOLERANCE = 1e-7  # of rows and of whole numbers, absolute, after scaling
_MARGIN = 1e-6  # of a bound in whole numbers, relative and in scaled units: what tolerances may add
_ROUNDING = 1e-12  # of the sum of all magnitudes that a bound adds up; far more than doubles lose
_FEW_COLUMNS = 200
"""With fewer, HiGHS gets no plans by feasibility jump: branching is as quick, and a program was seen,
of three columns after presolve, whose relaxation at the root HiGHS 1.15.1 then repeats without end."""

DONE = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible)
"""Nothing is left to search."""

Hear = Callable[[Numbers | None, float], bool]
"""Called with a better solution, or ``None``, and the bound, both scaled; true stops HiGHS."""


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


def run(highs: highspy.Highs, clock: Clock, hear: Hear | None = None) -> bool:
    """As ``highs.run()``; whether Ctrl-C ended it, which nobody else has answered then.

    Args:
        highs: with a program and its limits.
        clock: that is told what the run took.
        hear: of solutions and bounds.
    """
    kinds = highspy.cb.HighsCallbackType

    def called(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        found = np.array(out.mip_solution) if kind == kinds.kCallbackMipImprovingSolution else None
        stop = bool(pressed)
        if hear is not None and kind != kinds.kCallbackSimplexInterrupt:
            stop = hear(found, out.mip_dual_bound) or stop
        if found is None and stop:
            into.user_interrupt = True

    wanted = [kinds.kCallbackSimplexInterrupt, kinds.kCallbackMipInterrupt]
    wanted += [kinds.kCallbackMipImprovingSolution] if hear is not None else []
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


def run_highs(job: Job) -> Outcome:
    """HiGHS, with a start, incumbents and bounds as they come."""
    small, effort, watcher = scaled(job.matrix), job.effort, job.watcher
    if len(job.matrix.costs) == 0 and (job.matrix.at_most >= 0.0).all():  # to this it gives no answer
        effort.clock.spend(programs=1)
        return Outcome((), job.matrix.offset, done=True, infeasible=False, interrupted=False)
    highs = loaded(small.matrix, threads=effort.threads)
    highs.setOptionValue("mip_rel_gap", effort.relative_gap)
    highs.setOptionValue("mip_abs_gap", max(effort.absolute_joules * small.unit, 1e-9))
    highs.setOptionValue("random_seed", effort.seed)
    if effort.seconds is not None:
        limit(highs, effort.seconds, effort.clock)

    def joules(bound: float) -> float:
        return small.joules(bound - _MARGIN * (1.0 + abs(bound))) if math.isfinite(bound) else -math.inf

    def hear(values: Numbers | None, bound: float) -> bool:
        return watcher is not None and watcher(None if values is None else values.tolist(), joules(bound))

    interrupted = run(highs, effort.clock, hear)
    status, info, values = highs.getModelStatus(), highs.getInfo(), best_values(highs)
    done = status == highspy.HighsModelStatus.kOptimal
    bound = info.mip_dual_bound if job.matrix.integer.any() else -math.inf
    if done and bound == -math.inf:
        bound = info.objective_function_value
    return Outcome(
        values=None if values is None else tuple(values.tolist()),
        bound_joules=joules(bound),
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


class LinearProgram:
    """A program in fractions, on one thread; its bounds are certified here.

    They hold for solutions in whole numbers: right sides are rounded down for these (`scaled`).

    Attributes:
        low, high: of the columns, 0 and 1 to begin with; see `fix`.
    """

    def __init__(self, matrix: Matrix, *, seed: int = 0, clock: Clock = WALL) -> None:
        self.matrix, self.clock = matrix, clock
        self.low, self.high = np.zeros(len(matrix.costs)), np.ones(len(matrix.costs))
        self._small: Scaled = scaled(matrix)
        self._at_most = self._small.matrix.at_most * self._small.divisors  # some are rounded down
        self._highs = loaded(self._small.matrix, integer=False)
        self._highs.setOptionValue("presolve", "off")  # it takes longer here than it saves
        self._highs.setOptionValue("solver", "simplex")
        self._highs.setOptionValue("random_seed", seed)

    def fix(self, values: dict[int, int]) -> None:
        """Set these columns to 0 or 1, and no others."""
        self.low, self.high = np.zeros_like(self.low), np.ones_like(self.high)
        for column, value in values.items():
            self.low[column] = self.high[column] = value
        every = np.arange(len(self.low), dtype=np.int32)
        self._highs.changeColsBounds(len(every), every, self.low, self.high)

    def minimise(self, seconds: float) -> LinearAnswer:
        """What is known after ``seconds`` more; a Ctrl-C meanwhile is answered as it would have been."""
        highs, small, matrix = self._highs, self._small, self.matrix
        limit(highs, seconds, self.clock, integer=False)
        if run(highs, self.clock):
            pass_on()
        status, solution = highs.getModelStatus(), highs.getSolution()
        done = status == highspy.HighsModelStatus.kOptimal
        duals = np.zeros(len(matrix.at_most))
        if status == highspy.HighsModelStatus.kInfeasible:
            _, has_ray, ray = highs.getDualRay()  # type: ignore[attr-defined]  # missing from its stubs
            if has_ray and self._certified(0.0, -np.abs(np.array(ray)) / small.divisors) > 0.0:
                return LinearAnswer(math.inf, None, duals, True)
        if solution.dual_valid:
            duals = np.minimum(np.array(solution.row_dual), 0.0) / small.divisors / small.unit
        least = math.fsum(np.minimum(self.low * matrix.costs, self.high * matrix.costs))  # without rows
        bound = max(self._certified(1.0, duals), least) + matrix.offset
        return LinearAnswer(bound, best_values(highs), -duals, done, None if done else self.minimise)

    def _certified(self, share: float, duals: Numbers) -> float:
        """The bound on ``share`` of the costs that ``duals`` prove, less what rounding may have added."""
        matrix, costs = self.matrix, share * self.matrix.costs
        parts = matrix.factors * duals[matrix.rows]
        left = costs - np.bincount(matrix.columns, weights=parts, minlength=len(costs))
        terms = np.concatenate([duals * self._at_most, np.minimum(self.low * left, self.high * left)])
        magnitude = float(np.abs(terms).sum() + np.abs(parts).sum() + np.abs(costs).sum())
        return math.fsum(terms) - _ROUNDING * magnitude


def minimise(matrix: Matrix, *, seconds: float, seed: int = 0, clock: Clock = WALL) -> LinearAnswer:
    """Solve the linear program of ``matrix``."""
    return LinearProgram(matrix, seed=seed, clock=clock).minimise(seconds)
