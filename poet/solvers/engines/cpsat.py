"""OR-tools CP-SAT, which takes programs in whole numbers only; it runs in a process of its own (`process`).

A plan is a point x of 0s and 1s with A x ≤ b and cost c·x. The integer program keeps every such x and never
charges it more than its cost:

* a row of whole factors is divided by their common divisor g and its right side rounded down: for
  whole x, Σ (a/g)·x is whole, so nothing is cut off;
* any other row is multiplied by a power of two (exact in floating point), its factors rounded down
  and its right side up: as x ≥ 0, Σ ⌊a⌋·x ≤ Σ a·x ≤ b ≤ ⌈b⌉;
* the objective's factors are multiplied by a power of two, ``scale``, and rounded down: as x ≥ 0,
  Σ ⌊scale·c⌋·x ≤ scale·c·x;
* a column that is not 0 or 1 in every plan (a share of the budget) counts units of ``SHARE``, rounded up.
  That adds less than a unit of it to a row, by which the row's right side is raised.

So the integer optimum, and with it every lower bound on it, is at most ``scale`` times the optimum;
dividing by a power of two is exact again. What rounding loses is less than one per term. A point of
the integer program may break a rounded row by as little; the simulator sees to that.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from poet.solvers.engines.program import Job, Matrix, Outcome

SHARE = 2.0**-16
"""Of a column between 0 and 1; with 2^-10, rows that carry sums on lose much of the budget, with 2^-20 the
search takes a hundred times as long."""

_LARGEST_SUM = 2.0**52  # of the objective: exact as a double, far from overflow in the engine
_ROW_PRECISION = 2.0**30  # to which rows of real numbers are rounded, relative to their sum
_LOOK_SECONDS = 0.2  # between two looks at whether the search is to stop; CP-SAT's own news are rare


def run_cpsat(job: Job) -> Outcome:
    """CP-SAT in this process, with a start, incumbents and bounds as they come."""
    effort, watcher = job.effort, job.watcher or (lambda values, bound: False)
    program = integer_program(job.matrix, absolute_joules=effort.absolute_joules)
    model, columns = _model_of(program, job.matrix)
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = effort.threads
    parameters.random_seed = effort.seed
    parameters.linearization_level = 2
    parameters.relative_gap_limit = effort.relative_gap
    parameters.absolute_gap_limit = min(max(effort.absolute_joules * program.scale, 0.0), 2.0**52)
    if effort.seconds is not None and effort.clock.counts_work:
        parameters.max_deterministic_time = effort.seconds
    elif effort.seconds is not None:
        parameters.max_time_in_seconds = effort.seconds
    bound_joules, is_over = -math.inf, threading.Event()

    def raised(units: float) -> None:
        nonlocal bound_joules
        bound_joules = program.joules(units)
        watcher(None, bound_joules)

    def look() -> None:
        while not is_over.wait(_LOOK_SECONDS):
            if watcher(None, bound_joules):
                solver.stop_search()

    class Incumbents(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            if watcher(program.values([self.value(column) for column in columns]), bound_joules):
                self.stop_search()

    solver.best_bound_callback = raised
    threading.Thread(target=look, daemon=True).start()
    status = solver.status_name(solver.solve(model, Incumbents()))
    is_over.set()
    effort.clock.spend(programs=1, engine_seconds=solver.response_proto.deterministic_time)
    is_found = status in ("OPTIMAL", "FEASIBLE")
    return Outcome(
        values=program.values([solver.value(column) for column in columns]) if is_found else None,
        bound_joules=program.joules(solver.best_objective_bound) if is_found else bound_joules,
        done=status == "OPTIMAL",
        infeasible=status == "INFEASIBLE",
        interrupted=False,
    )


def _model_of(program: IntegerProgram, matrix: Matrix) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    model = cp_model.CpModel()
    columns = [model.new_int_var(0, most, "") for most in program.largest]
    for of_row, factors, right in program.rows:
        model.add(cp_model.LinearExpr.weighted_sum([columns[column] for column in of_row], factors) <= right)
    priced = [columns[column] for column, _ in program.costs]
    model.minimize(cp_model.LinearExpr.weighted_sum(priced, [cost for _, cost in program.costs]))
    if matrix.start is not None:
        for column, value in zip(columns, program.whole(matrix.start.tolist()), strict=True):
            model.add_hint(column, value)
    return model, columns


@dataclass(frozen=True, slots=True)
class IntegerProgram:
    """Minimise ``costs`` over whole columns from 0 to ``largest`` within ``rows``.

    Attributes:
        largest: per column; 1 but for shares.
        costs: (column, factor) pairs.
        rows: (columns, factors, right side) of Σ factor·column ≤ right side.
        scale: units of the objective per joule, a power of two.
        constant_joules: what the objective adds to the scaled sum.
    """

    largest: tuple[int, ...]
    costs: tuple[tuple[int, int], ...]
    rows: tuple[tuple[list[int], list[int], int], ...]
    scale: float
    constant_joules: float

    def joules(self, units: float) -> float:
        """Of a bound on the integer objective, which is whole; ``-inf`` before there is one."""
        return -math.inf if abs(units) > 2.0**62 else round(units) / self.scale + self.constant_joules

    def whole(self, values: Sequence[float]) -> list[int]:
        """Column values of the program as those of this one; shares are rounded up."""
        pairs = zip(values, self.largest, strict=True)
        return [min(max(math.ceil(value * most - 0.5 * (most == 1)), 0), most) for value, most in pairs]

    def values(self, whole: Sequence[int]) -> tuple[float, ...]:
        """And back."""
        return tuple(value / most for value, most in zip(whole, self.largest, strict=True))


def integer_program(matrix: Matrix, *, absolute_joules: float) -> IntegerProgram:
    """``matrix`` in whole numbers, its objective to a tenth of ``absolute_joules`` where that can be had."""
    largest = tuple(1 if whole else round(1.0 / SHARE) for whole in matrix.whole.tolist())
    rows = tuple(
        _whole_row(columns, factors, right, largest) for columns, factors, right in matrix.by_row() if columns
    )
    terms = [(column, cost / largest[column]) for column, cost in enumerate(matrix.costs.tolist()) if cost]
    scale = _objective_scale(matrix.costs[matrix.costs != 0.0].tolist(), absolute_joules)
    costs = tuple((column, math.floor(scale * cost)) for column, cost in terms)
    rounding_joules = SHARE * float(np.abs(matrix.costs[~matrix.whole]).sum())
    return IntegerProgram(largest, costs, rows, scale, matrix.offset - rounding_joules)


def _objective_scale(costs: list[float], absolute_joules: float) -> float:
    """A power of two: fine enough that rounding every term loses a tenth of the gap at most."""
    total = sum(abs(cost) for cost in costs)
    if not total:
        return 1.0
    coarsest = _LARGEST_SUM / total
    wanted = 10.0 * len(costs) / absolute_joules if absolute_joules > 0.0 else coarsest
    return 2.0 ** math.floor(math.log2(min(max(wanted, 2.0**20 / total), coarsest)))


def _whole_row(
    columns: list[int], factors: list[float], right: float, largest: Sequence[int]
) -> tuple[list[int], list[int], int]:
    if all(factor.is_integer() and largest[c] == 1 for c, factor in zip(columns, factors, strict=True)):
        divisor = math.gcd(*map(int, factors))
        return columns, [int(factor) // divisor for factor in factors], math.floor(right / divisor)
    parts = [factor / largest[column] for column, factor in zip(columns, factors, strict=True)]
    more = sum(abs(part) for part, column in zip(parts, columns, strict=True) if largest[column] > 1)
    precision = _ROW_PRECISION * max(largest[column] for column in columns)
    scale = 2.0 ** math.floor(math.log2(precision / (sum(map(abs, factors)) + abs(right))))
    return columns, [math.floor(scale * part) for part in parts], math.ceil(scale * (right + more))
