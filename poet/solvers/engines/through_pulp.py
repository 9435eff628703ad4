"""CBC, SCIP and Gurobi: the only module that knows PuLP."""

from __future__ import annotations

import dataclasses
import logging
import math
from dataclasses import dataclass
from typing import Any

import pulp
from pulp.apis.coin_api import PULP_CBC_CMD

from poet.solvers.engines.interrupt import sigint_flag
from poet.solvers.engines.matrix import Matrix, Scaled, scaled
from poet.solvers.engines.outcome import Job, Outcome

_log = logging.getLogger(__name__)

PULP_NAMES = {"scip": "SCIP_PY", "cbc": "PULP_CBC_CMD", "gurobi": "GUROBI"}


def installed() -> tuple[str, ...]:
    """The engines that PuLP finds here, the preferred first."""
    usable = set(pulp.listSolvers(onlyAvailable=True))
    return tuple(name for name, solver in PULP_NAMES.items() if solver in usable)


@dataclass(frozen=True, slots=True)
class PulpJob:
    """A job with its program as PuLP holds it."""

    job: Job
    problem: pulp.LpProblem
    variables: list[pulp.LpVariable]
    scaled: Scaled


def prepare(job: Job) -> PulpJob:
    """The program of ``job``, scaled."""
    small = scaled(job.matrix)
    problem, variables = _to_pulp(small.matrix)
    return PulpJob(job, problem, variables, small)


def _to_pulp(matrix: Matrix) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    """Columns are named by number, rows by family and number, since PuLP rewrites other characters."""
    problem = pulp.LpProblem("program", pulp.LpMinimize)
    variables = [
        problem.add_variable(f"x{number}", 0, 1, pulp.LpInteger if integer else pulp.LpContinuous)
        for number, integer in enumerate(matrix.integer.tolist())
    ]
    costs = enumerate(matrix.costs.tolist())
    problem.setObjective(pulp.LpAffineExpression([(variables[c], cost) for c, cost in costs if cost]))
    for number, (columns, factors, right) in enumerate(matrix.by_row()):
        if not columns:
            continue
        pairs = zip(columns, factors, strict=True)
        left = pulp.LpAffineExpression([(variables[column], factor) for column, factor in pairs])
        family = matrix.families[number] if matrix.families else "row"
        constraint = pulp.LpConstraint(left, pulp.LpConstraintLE, rhs=right)
        problem.addConstraint(constraint, f"{family}_{number}")
    return problem, variables


def _run_silent(solver: Any, prepared: PulpJob) -> Outcome:
    job, problem = prepared.job, prepared.problem
    start = job.matrix.start
    if start is not None:
        for variable, value in zip(prepared.variables, start.tolist(), strict=True):
            variable.setInitialValue(round(value) if variable.cat == pulp.LpInteger else value)
    with sigint_flag() as pressed:
        try:
            problem.solve(solver)
        except pulp.PulpSolverError as error:  # its program ended with an error, as CBC's does now and then
            _log.warning("%s gave no answer: %s", solver.name, error)
            return Outcome(None, -math.inf, False, False, bool(pressed))
    found = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    done = problem.sol_status == pulp.LpSolutionOptimal
    values = tuple(variable.varValue or 0.0 for variable in prepared.variables) if found else None
    bound = -math.inf
    if done and values is not None:
        bound = job.matrix.joules(values) - job.effort.absolute_joules
    infeasible = problem.sol_status == pulp.LpSolutionInfeasible
    return Outcome(values, bound, done, infeasible, bool(pressed))


def run_cbc(job: Job) -> Outcome:
    """CBC, as PuLP ships it."""
    prepared = prepare(job)
    solver = PULP_CBC_CMD(
        msg=False,
        threads=job.effort.threads,
        timeLimit=job.effort.seconds,
        gapAbs=job.effort.absolute_joules * prepared.scaled.unit,
        gapRel=0.0,
        warmStart=job.matrix.start is not None,
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
        gapAbs=job.effort.absolute_joules * prepared.scaled.unit,
        warmStart=job.matrix.start is not None,
        options=[f"randomization/randomseedshift={job.effort.seed}"],
    )
    outcome = _run_silent(solver, prepared)
    dual = prepared.scaled.joules(prepared.problem.solverModel.getDualbound())
    bound = dual + job.matrix.offset if math.isfinite(dual) else -math.inf
    return dataclasses.replace(outcome, bound_joules=max(outcome.bound_joules, bound))


def run_gurobi(job: Job) -> Outcome:
    """Gurobi through gurobipy."""
    prepared = prepare(job)
    solver = pulp.GUROBI(
        msg=False,
        timeLimit=job.effort.seconds,
        gapRel=0.0,
        warmStart=job.matrix.start is not None,
        Threads=job.effort.threads,
        MIPGapAbs=job.effort.absolute_joules * prepared.scaled.unit,
        Seed=job.effort.seed,
    )
    return _run_silent(solver, prepared)
