"""One program, several engines: the only module that knows PuLP.

An engine's word is kept apart from what it found: `Outcome` carries values, the bound and whether
the engine says it is done; nothing here decides what a user is told.
"""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pulp
from pulp.apis.coin_api import PULP_CBC_CMD

from poet.errors import InputError, nearest
from poet.solvers.milp import Model
from poet.solvers.program import Affine, Row

Watcher = Callable[[Sequence[float] | None, float], bool]
"""Called with a better solution's values (or ``None``) and the bound; true stops the engine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an engine came back with.

    Attributes:
        values: of the columns, in order; ``None``: no solution found.
        bound_joules: no solution has a smaller objective; ``-inf`` where the engine does not say.
        done: the engine says that nothing is left to search within the gap asked for.
        infeasible: the engine says that there is no solution.
        interrupted: the user stopped it.
    """

    values: tuple[float, ...] | None
    bound_joules: float
    done: bool
    infeasible: bool
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Effort:
    """What an engine may spend and when it may stop.

    Attributes:
        seconds: wall clock; ``None``: no limit.
        absolute_joules: gap of the objective at which it may stop.
        relative: the same as a share of the objective, for engines that know its constant part.
    """

    seconds: float | None
    threads: int
    seed: int
    absolute_joules: float
    relative: float


def available_engines() -> tuple[str, ...]:
    """The engines that work here, the preferred first."""
    usable = set(pulp.listSolvers(onlyAvailable=True))
    return tuple(name for name, solver in _PULP_NAMES.items() if solver in usable)


def choose_engine(name: str) -> str:
    """``name``, or for ``"auto"`` the preferred engine.

    Raises:
        InputError: no such engine, or it is not installed.
    """
    usable = available_engines()
    if name == "auto" and usable:
        return usable[0]
    if name not in usable:
        raise InputError(
            f"engine {name!r} is not available here; {', '.join(usable) or 'none'} are{nearest(name, usable)}"
        )
    return name


def run_engine(
    name: str,
    model: Model,
    effort: Effort,
    *,
    start: Sequence[float] | None = None,
    watcher: Watcher | None = None,
) -> Outcome:
    """Minimise ``model`` with engine ``name``, from the solution ``start`` if given."""
    impossible = any(
        not any(row.expression.terms.values()) and row.expression.constant > 0.0 for row in model.rows
    )
    if impossible:
        return Outcome(None, math.inf, False, True, False)
    scale = _scale(model)
    problem, variables = _to_pulp(model, scale)
    if not problem.variables():
        nothing = (0.0,) * len(model.columns)
        return Outcome(nothing, model.overhead_joules.constant, True, False, False)
    return _ENGINES[name](_Job(model, problem, variables, scale, effort, start, watcher))


@dataclass(frozen=True, slots=True)
class _Job:
    model: Model
    problem: pulp.LpProblem
    variables: list[pulp.LpVariable]
    scale: float
    effort: Effort
    start: Sequence[float] | None
    watcher: Watcher | None

    def joules(self, scaled: float) -> float:
        """Of a scaled objective."""
        return scaled / self.scale


def _scale(model: Model) -> float:
    """Factor per joule: the dearest decision costs 1000, whether the model is of nano- or kilojoules."""
    largest = max((abs(c) for c in model.overhead_joules.terms.values()), default=0.0)
    return 1000.0 / largest if largest > 0.0 else 1.0


def _scaled_row(model: Model, row: Row) -> tuple[dict[int, float], float]:
    """Terms and right side; whole numbers are made small (bytes share divisors), others about 1."""
    terms = {column: factor for column, factor in row.expression.terms.items() if factor != 0.0}
    right = -row.expression.constant
    if all(factor.is_integer() and model.columns[column].whole for column, factor in terms.items()):
        divisor = math.gcd(*(int(factor) for factor in terms.values()))
        return {c: f / divisor for c, f in terms.items()}, math.floor(right / divisor + 1e-9)
    largest = max(abs(factor) for factor in terms.values())
    return {c: f / largest for c, f in terms.items()}, right / largest


def _to_pulp(model: Model, scale: float) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    problem = pulp.LpProblem("event_model", pulp.LpMinimize)
    variables = [
        problem.add_variable(column.name, 0, 1, pulp.LpInteger if column.integer else pulp.LpContinuous)
        for column in model.columns
    ]
    costs = model.overhead_joules.terms.items()
    problem.setObjective(pulp.LpAffineExpression([(variables[c], scale * f) for c, f in costs]))
    for number, row in enumerate(model.rows):
        if not any(row.expression.terms.values()):
            continue
        terms, right = _scaled_row(model, row)
        left = pulp.LpAffineExpression([(variables[c], factor) for c, factor in terms.items()])
        constraint = pulp.LpConstraint(left, pulp.LpConstraintLE, rhs=right)
        problem.addConstraint(constraint, f"{row.family}_{number}")
    return problem, variables


# --- HiGHS, in this process ---


class _Highs(pulp.HiGHS):  # type: ignore[misc]  # PuLP is not typed
    """PuLP's HiGHS with a start, a watcher, and the engine's own account of bound and status."""

    def __init__(self, job: _Job) -> None:
        effort = job.effort
        absolute = max(effort.absolute_joules * job.scale, 1e-9)
        super().__init__(
            msg=False,
            threads=effort.threads,
            timeLimit=effort.seconds,
            gapRel=effort.relative,
            gapAbs=absolute,
            random_seed=effort.seed,
            mip_feasibility_tolerance=1e-7,
        )
        self.job = job
        self.interrupted = False

    def buildSolverModel(self, lp: pulp.LpProblem) -> None:  # noqa: N802 - PuLP's name
        super().buildSolverModel(lp)
        lp.solverModel.changeObjectiveOffset(self.job.scale * self.job.model.overhead_joules.constant)
        if self.job.start is not None:
            import numpy as np

            pairs = [
                (variable.index, value)
                for variable, value in zip(self.job.variables, self.job.start, strict=True)
                if hasattr(variable, "index")  # PuLP leaves out what no row and no cost names
            ]
            order = np.array([index for index, _ in pairs], dtype=np.int32)
            values = np.array([value for _, value in pairs], dtype=np.float64)
            lp.solverModel.setSolution(len(pairs), order, values)

    def callSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802 - PuLP's name
        kinds = pulp.HiGHS.hscb.HighsCallbackType
        highs = lp.solverModel
        highs.setCallback(self._listen, None)
        for kind in (kinds.kCallbackMipInterrupt, kinds.kCallbackMipImprovingSolution):
            highs.startCallback(kind)
        with _sigint_flag() as pressed:
            self.pressed = pressed
            highs.run()

    def _listen(self, kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        bound = self.job.joules(out.mip_dual_bound)
        values = None
        if kind == pulp.HiGHS.hscb.HighsCallbackType.kCallbackMipImprovingSolution:
            found = out.mip_solution
            values = [found[v.index] if hasattr(v, "index") else 0.0 for v in self.job.variables]
        elif self.pressed:
            self.interrupted = True
            into.user_interrupt = True
        if self.job.watcher is not None and self.job.watcher(values, bound) and values is None:
            into.user_interrupt = True


@contextlib.contextmanager
def _sigint_flag() -> Iterator[list[int]]:
    """A list that is no longer empty once the user pressed Ctrl-C; nothing is raised meanwhile."""
    pressed: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    except ValueError:  # not in the main thread: no signals arrive here
        yield pressed
        return
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def _run_highs(job: _Job) -> Outcome:
    import highspy

    solver = _Highs(job)
    job.problem.solve(solver)
    highs = job.problem.solverModel
    status, info = highs.getModelStatus(), highs.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = tuple(variable.varValue or 0.0 for variable in job.variables) if found else None
    done = status == highspy.HighsModelStatus.kOptimal
    bound = info.mip_dual_bound if any(column.integer for column in job.model.columns) else -math.inf
    if done and bound == -math.inf:
        bound = info.objective_function_value
    infeasible = status == highspy.HighsModelStatus.kInfeasible
    bound_joules = job.joules(bound) if math.isfinite(bound) else -math.inf
    return Outcome(values, bound_joules, done, infeasible, solver.interrupted)


# --- engines that PuLP runs as other processes ---


def _run_external(solver: Any, job: _Job) -> Outcome:
    if job.start is not None:
        for variable, value in zip(job.variables, job.start, strict=True):
            variable.setInitialValue(round(value) if variable.cat == pulp.LpInteger else value)
    with _sigint_flag() as pressed:
        job.problem.solve(solver)
    found = job.problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    done = job.problem.sol_status == pulp.LpSolutionOptimal
    values = tuple(variable.varValue or 0.0 for variable in job.variables) if found else None
    bound = -math.inf
    if done and values is not None:
        bound = _value(job.model.overhead_joules, values) - job.effort.absolute_joules
    infeasible = job.problem.sol_status == pulp.LpSolutionInfeasible
    return Outcome(values, bound, done, infeasible, bool(pressed))


def _value(expression: Affine, values: Sequence[float]) -> float:
    return expression.constant + sum(f * values[c] for c, f in expression.terms.items())


def _run_cbc(job: _Job) -> Outcome:
    solver = PULP_CBC_CMD(
        msg=False,
        threads=job.effort.threads,
        timeLimit=job.effort.seconds,
        gapAbs=job.effort.absolute_joules * job.scale,
        gapRel=0.0,
        warmStart=job.start is not None,
        options=["timeMode elapsed", f"randomCbcSeed {job.effort.seed + 1}"],
        _skip_v4_deprecation=True,
    )
    return _run_external(solver, job)


def _run_gurobi(job: _Job) -> Outcome:
    solver = pulp.GUROBI(
        msg=False,
        timeLimit=job.effort.seconds,
        gapRel=0.0,
        warmStart=job.start is not None,
        Threads=job.effort.threads,
        MIPGapAbs=job.effort.absolute_joules * job.scale,
        Seed=job.effort.seed,
    )
    return _run_external(solver, job)


_PULP_NAMES = {"highs": "HiGHS", "cbc": "PULP_CBC_CMD", "gurobi": "GUROBI"}
_ENGINES: dict[str, Callable[[_Job], Outcome]] = {
    "highs": _run_highs,
    "cbc": _run_cbc,
    "gurobi": _run_gurobi,
}
