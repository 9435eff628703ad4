"""``python -m poet.solvers.engines.cpsat_child``: OR-tools CP-SAT in a process of its own.

OR-tools and HiGHS cannot be loaded into one process. Programs arrive on stdin, one after the other, a
line of JSON each; incumbents, bounds and the end of each go to stdout, a line each. The process ends
when stdin is closed, so it never outlives the process that uses its answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

from ortools.sat.python import cp_model

from poet import children
from poet.held_memory import held_bytes


def main() -> None:
    """Read programs and solve them, one after the other; write solutions and bounds to stdout."""
    children.end_with_parent()
    requests = queue.SimpleQueue[str]()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    while True:
        _solve(json.loads(requests.get()))


def _read(requests: queue.SimpleQueue[str]) -> None:
    """The end of stdin is the end of the process, whatever it is at."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _solve(request: dict[str, Any]) -> None:
    model, columns = _model_of(request)
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = request["threads"]
    parameters.random_seed = request["seed"]
    parameters.linearization_level = 2
    parameters.absolute_gap_limit = request["gap"]
    if request["seconds"] is not None:
        if request["counted"]:
            parameters.max_deterministic_time = request["seconds"]
        else:
            parameters.max_time_in_seconds = request["seconds"]
    solver.best_bound_callback = lambda bound: _tell({"bound": _units(bound)})
    with _ended_at(solver, request["most_bytes"], request["look_seconds"]):
        status = solver.status_name(solver.solve(model, _Incumbents(columns))).lower()
    found = status in ("optimal", "feasible")
    _tell(
        {
            "status": status,
            "counted_seconds": solver.response_proto.deterministic_time,
            "bound": _units(solver.best_objective_bound) if found else None,  # 0 where nothing is known
            "values": [solver.value(column) for column in columns] if found else None,
        }
    )


@contextlib.contextmanager
def _ended_at(solver: cp_model.CpSolver, most_bytes: int, look_seconds: float) -> Iterator[None]:
    """Ends the search where this process holds more than ``most_bytes``, if that is not 0."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(look_seconds):
            if held_bytes() > most_bytes:
                solver.stop_search()

    if most_bytes:
        threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _model_of(request: dict[str, Any]) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    program = request["program"]
    model = cp_model.CpModel()
    columns = [model.new_int_var(0, most, "") for most in program["largest"]]
    for of_row, factors, right in program["rows"]:
        row = cp_model.LinearExpr.weighted_sum([columns[column] for column in of_row], factors)
        model.add(row <= right)
    costs = program["costs"]
    model.minimize(cp_model.LinearExpr.weighted_sum([columns[c] for c, _ in costs], [f for _, f in costs]))
    for column, value in zip(columns, request["start"] or (), strict=False):
        model.add_hint(column, value)
    return model, columns


class _Incumbents(cp_model.CpSolverSolutionCallback):
    """Writes every better solution to stdout as it is found."""

    def __init__(self, columns: list[cp_model.IntVar]) -> None:
        super().__init__()
        self.columns = columns

    def on_solution_callback(self) -> None:
        """Called by the solver."""
        values = [self.value(column) for column in self.columns]
        _tell({"values": values, "bound": _units(self.best_objective_bound)})


def _units(bound: float) -> int | None:
    """A bound as a whole number, which it is; ``None`` before there is one."""
    return None if abs(bound) > 2.0**62 else round(bound)


_speaking = threading.Lock()  # incumbents and bounds may come from different threads


def _tell(message: dict[str, Any]) -> None:
    with _speaking:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
