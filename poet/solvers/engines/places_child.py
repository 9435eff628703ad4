"""``python -m poet.solvers.engines.places_child``: offsets by OR-tools CP-SAT in a process of its own.

Each block is a rectangle per span, whose place in time is fixed and whose place in memory is looked for; no
two rectangles overlap. One line of JSON comes on stdin, one goes to stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ortools.sat.python import cp_model

from poet import children


def main() -> None:
    """Read one question, answer it."""
    children.end_with_parent()
    request = json.loads(sys.stdin.readline())
    model, starts = _model_of(request)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = request["seed"]
    if request["counted"]:
        solver.parameters.max_deterministic_time = request["seconds"]
    else:
        solver.parameters.max_time_in_seconds = request["seconds"]
    status = solver.status_name(solver.solve(model)).lower()
    answer = {
        "status": status,
        "counted_seconds": solver.response_proto.deterministic_time,
        "starts": [solver.value(start) for start in starts] if status in ("optimal", "feasible") else None,
    }
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _model_of(request: dict[str, Any]) -> tuple[cp_model.CpModel, list[cp_model.IntVar]]:
    """Sizes, spans, hints and the room are in the same unit."""
    model = cp_model.CpModel()
    starts, in_time, in_memory = [], [], []
    for size, spans, hint in zip(request["sizes"], request["spans"], request["hints"], strict=True):
        start = model.new_int_var(0, request["room"] - size, "")
        model.add_hint(start, min(hint, request["room"] - size))
        held = model.new_fixed_size_interval_var(start, size, "")
        for first, last in spans:
            in_time.append(model.new_fixed_size_interval_var(first, last - first + 1, ""))
            in_memory.append(held)
        starts.append(start)
    model.add_no_overlap_2d(in_time, in_memory)
    return model, starts


if __name__ == "__main__":
    main()
