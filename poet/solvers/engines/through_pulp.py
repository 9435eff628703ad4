"""Any solver that PuLP knows, CBC first, which ships with it: the only module that knows PuLP."""

from __future__ import annotations

import inspect
import logging
import math
from typing import Any

import pulp

from poet.solvers.engines.highs import sigint_flag
from poet.solvers.engines.program import Job, Matrix, Outcome, scaled

_log = logging.getLogger(__name__)

PULP_NAMES = {"scip": "SCIP_PY", "cbc": "PULP_CBC_CMD", "gurobi": "GUROBI"}
"""Our short names; any other solver goes by PuLP's own, such as ``COPT`` or ``GLPK_CMD``."""


def installed() -> tuple[str, ...]:
    """The engines that PuLP finds here, those with short names first."""
    usable = pulp.listSolvers(onlyAvailable=True)
    short = [name for name, solver in PULP_NAMES.items() if solver in usable]
    return (*short, *(name for name in usable if name not in PULP_NAMES.values()))


def known() -> tuple[str, ...]:
    """Every engine that PuLP could hand a program to."""
    return (*PULP_NAMES, *pulp.listSolvers())


def _to_pulp(matrix: Matrix) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    """Columns and rows are named by number."""
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
        constraint = pulp.LpConstraint(left, pulp.LpConstraintLE, rhs=right)
        problem.addConstraint(constraint, f"row_{number}")
    return problem, variables


def run_by_pulp(name: str, job: Job) -> Outcome:
    """Hand ``job`` to the solver of that name, with those of the usual options that it takes."""
    small, effort = scaled(job.matrix), job.effort
    options: dict[str, Any] = {
        "timeLimit": effort.seconds,
        "gapAbs": effort.absolute_joules * small.unit,
        "gapRel": 0.0,
        "threads": effort.threads,
        "warmStart": job.matrix.start is not None,
        "_skip_v4_deprecation": True,
    }
    if name == "cbc":  # by the wall's clock; the seed is PuLP's for no solver
        options["options"] = ["timeMode elapsed", f"randomCbcSeed {effort.seed + 1}"]
    kind = getattr(pulp, PULP_NAMES.get(name, name))
    taken = inspect.signature(kind.__init__).parameters
    if "kwargs" not in taken:
        options = {option: value for option, value in options.items() if option in taken}
    else:
        del options["_skip_v4_deprecation"]
    return _run(kind(msg=False, **options), job, small.matrix)


def _run(solver: Any, job: Job, small: Matrix) -> Outcome:
    """What ``solver`` makes of ``job``, whose program is ``small`` when scaled."""
    problem, variables = _to_pulp(small)
    if small.start is not None:
        for variable, start in zip(variables, small.start.tolist(), strict=True):
            variable.setInitialValue(round(start) if variable.cat == pulp.LpInteger else start)
    with sigint_flag() as pressed:
        try:
            problem.solve(solver)
        except pulp.PulpSolverError as error:  # its program ended with an error, as CBC's does now and then
            _log.warning("%s gave no answer: %s", solver.name, error)
            return Outcome(None, -math.inf, False, False, bool(pressed))
    found = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    done = problem.sol_status == pulp.LpSolutionOptimal
    values = tuple(variable.varValue or 0.0 for variable in variables) if found else None
    bound = -math.inf
    if done and values is not None:
        bound = job.matrix.joules(values) - job.effort.absolute_joules
    infeasible = problem.sol_status == pulp.LpSolutionInfeasible
    return Outcome(values, bound, done, infeasible, bool(pressed))
