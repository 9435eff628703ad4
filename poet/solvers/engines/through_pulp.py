"""HiGHS, CBC, SCIP and Gurobi: the only module that knows PuLP."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pulp
from pulp.apis.coin_api import PULP_CBC_CMD

from poet.solvers.engines.interrupt import sigint_flag
from poet.solvers.engines.outcome import Job, Outcome, objective_joules
from poet.solvers.event_model.affine import Row
from poet.solvers.event_model.model import Model

PULP_NAMES = {"highs": "HiGHS", "scip": "SCIP_PY", "cbc": "PULP_CBC_CMD", "gurobi": "GUROBI"}


def installed() -> tuple[str, ...]:
    """The engines that PuLP finds here, the preferred first."""
    usable = set(pulp.listSolvers(onlyAvailable=True))
    return tuple(name for name, solver in PULP_NAMES.items() if solver in usable)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job with its program as PuLP holds it; ``scale`` is the objective's factor per joule."""

    job: Job
    problem: pulp.LpProblem
    variables: list[pulp.LpVariable]
    scale: float

    def joules(self, scaled: float) -> float:
        """Of a scaled objective."""
        return scaled / self.scale


def prepare(job: Job) -> Prepared:
    """The program of ``job``, scaled."""
    scale = _scale(job.model)
    problem, variables = _to_pulp(job.model, scale)
    return Prepared(job, problem, variables, scale)


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

Elsewhere = Callable[[], Sequence[float] | None]
"""Gives the best solution that another engine has found by now."""


class _Highs(pulp.HiGHS):  # type: ignore[misc]  # PuLP is not typed
    """PuLP's HiGHS with a start, a watcher, and the engine's own account of bound and status."""

    def __init__(self, prepared: Prepared, found_elsewhere: Elsewhere | None) -> None:
        effort = prepared.job.effort
        absolute = max(effort.absolute_joules * prepared.scale, 1e-9)
        super().__init__(
            msg=False,
            threads=effort.threads,
            timeLimit=effort.seconds,
            gapRel=effort.relative,
            gapAbs=absolute,
            random_seed=effort.seed,
            mip_feasibility_tolerance=1e-7,
        )
        self.prepared, self.found_elsewhere = prepared, found_elsewhere
        self.interrupted = False
        self.handed_over: Sequence[float] | None = None

    def buildSolverModel(self, lp: pulp.LpProblem) -> None:  # noqa: N802 - PuLP's name
        super().buildSolverModel(lp)
        job = self.prepared.job
        lp.solverModel.changeObjectiveOffset(self.prepared.scale * job.model.overhead_joules.constant)
        if job.start is not None:
            order, values = self._by_index(job.start)
            lp.solverModel.setSolution(len(order), order, values)

    def _by_index(self, values: Sequence[float]) -> tuple[Any, Any]:
        """HiGHS's column numbers and the values of those columns."""
        import numpy as np

        pairs = [
            (variable.index, value)
            for variable, value in zip(self.prepared.variables, values, strict=True)
            if hasattr(variable, "index")  # PuLP leaves out what no row and no cost names
        ]
        order = np.array([index for index, _ in pairs], dtype=np.int32)
        return order, np.array([value for _, value in pairs], dtype=np.float64)

    def callSolver(self, lp: pulp.LpProblem) -> None:  # noqa: N802 - PuLP's name
        kinds = pulp.HiGHS.hscb.HighsCallbackType
        highs = lp.solverModel
        highs.setCallback(self._listen, None)
        wanted = [kinds.kCallbackMipInterrupt, kinds.kCallbackMipImprovingSolution]
        if self.found_elsewhere is not None:
            wanted.append(kinds.kCallbackMipUserSolution)
        for kind in wanted:
            highs.startCallback(kind)
        with sigint_flag() as pressed:
            self.pressed = pressed
            highs.run()

    def _listen(self, kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        if kind == pulp.HiGHS.hscb.HighsCallbackType.kCallbackMipUserSolution:
            self._hand_over(into)
            return
        bound = self.prepared.joules(out.mip_dual_bound)
        values = None
        if kind == pulp.HiGHS.hscb.HighsCallbackType.kCallbackMipImprovingSolution:
            found = out.mip_solution
            values = [found[v.index] if hasattr(v, "index") else 0.0 for v in self.prepared.variables]
        elif self.pressed:
            self.interrupted = True
            into.user_interrupt = True
        watcher = self.prepared.job.watcher
        if watcher is not None and watcher(values, bound) and values is None:
            into.user_interrupt = True

    def _hand_over(self, into: Any) -> None:
        """Give HiGHS the solution that another engine found, once."""
        values = None if self.found_elsewhere is None else self.found_elsewhere()
        if values is not None and values is not self.handed_over:
            self.handed_over = values
            into.setSolution(*self._by_index(values))


def run_highs(job: Job, *, found_elsewhere: Elsewhere | None = None) -> Outcome:
    """HiGHS, with a start, incumbents and bounds as they come, and others' solutions taken over."""
    import highspy

    prepared = prepare(job)
    solver = _Highs(prepared, found_elsewhere)
    prepared.problem.solve(solver)
    highs = prepared.problem.solverModel
    status, info = highs.getModelStatus(), highs.getInfo()
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    values = tuple(variable.varValue or 0.0 for variable in prepared.variables) if found else None
    done = status == highspy.HighsModelStatus.kOptimal
    bound = info.mip_dual_bound if any(column.integer for column in job.model.columns) else -math.inf
    if done and bound == -math.inf:
        bound = info.objective_function_value
    infeasible = status == highspy.HighsModelStatus.kInfeasible
    bound_joules = prepared.joules(bound) if math.isfinite(bound) else -math.inf
    return Outcome(values, bound_joules, done, infeasible, solver.interrupted)


# --- engines that say nothing before they end ---


def _run_silent(solver: Any, prepared: Prepared) -> Outcome:
    job, problem = prepared.job, prepared.problem
    if job.start is not None:
        for variable, value in zip(prepared.variables, job.start, strict=True):
            variable.setInitialValue(round(value) if variable.cat == pulp.LpInteger else value)
    with sigint_flag() as pressed:
        problem.solve(solver)
    found = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    done = problem.sol_status == pulp.LpSolutionOptimal
    values = tuple(variable.varValue or 0.0 for variable in prepared.variables) if found else None
    bound = -math.inf
    if done and values is not None:
        bound = objective_joules(job.model, values) - job.effort.absolute_joules
    infeasible = problem.sol_status == pulp.LpSolutionInfeasible
    return Outcome(values, bound, done, infeasible, bool(pressed))


def run_cbc(job: Job) -> Outcome:
    """CBC, as PuLP ships it."""
    prepared = prepare(job)
    solver = PULP_CBC_CMD(
        msg=False,
        threads=job.effort.threads,
        timeLimit=job.effort.seconds,
        gapAbs=job.effort.absolute_joules * prepared.scale,
        gapRel=0.0,
        warmStart=job.start is not None,
        options=["timeMode elapsed", f"randomCbcSeed {job.effort.seed + 1}"],
        _skip_v4_deprecation=True,
    )
    return _run_silent(solver, prepared)


def run_scip(job: Job) -> Outcome:
    """SCIP through pyscipopt."""
    prepared = prepare(job)
    solver = pulp.SCIP_PY(
        msg=False,
        timeLimit=job.effort.seconds,
        gapRel=0.0,
        gapAbs=job.effort.absolute_joules * prepared.scale,
        warmStart=job.start is not None,
        options=[f"randomization/randomseedshift={job.effort.seed}"],
    )
    outcome = _run_silent(solver, prepared)
    dual = prepared.joules(prepared.problem.solverModel.getDualbound())
    bound = dual + job.model.overhead_joules.constant if math.isfinite(dual) else -math.inf
    return dataclasses.replace(outcome, bound_joules=max(outcome.bound_joules, bound))


def run_gurobi(job: Job) -> Outcome:
    """Gurobi through gurobipy."""
    prepared = prepare(job)
    solver = pulp.GUROBI(
        msg=False,
        timeLimit=job.effort.seconds,
        gapRel=0.0,
        warmStart=job.start is not None,
        Threads=job.effort.threads,
        MIPGapAbs=job.effort.absolute_joules * prepared.scale,
        Seed=job.effort.seed,
    )
    return _run_silent(solver, prepared)
