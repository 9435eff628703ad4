"""One program, several engines. A new one is a file and a row in `ENGINES`.

An engine's claim is kept apart from what it found: `Outcome` carries values, the bound and whether
the engine reports that it is done; what is reported to a user is not decided here.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable
from functools import partial

import numpy as np

from poet.errors import InputError, how_to_install, nearest
from poet.solvers.engines import through_pulp
from poet.solvers.engines.highs import run_highs
from poet.solvers.engines.process import run_apart, run_pair
from poet.solvers.engines.program import Effort, Job, Matrix, Outcome, Watcher
from poet.solvers.engines.through_pulp import PULP_NAMES, run_by_pulp
from poet.util.clock import WALL, Clock

__all__ = ["ENGINES", "Effort", "Outcome", "Watcher", "available_engines", "choose_engine", "run_engine"]

_log = logging.getLogger(__name__)

ENGINES: dict[str, Callable[[Job], Outcome]] = {
    "highs": run_highs,
    "cpsat": partial(run_apart, "cpsat"),
    "highs+cpsat": run_pair,
    **{name: partial(run_by_pulp, name) for name in PULP_NAMES},
}
"""The preferred first. Beside them, `poet.solvers.engines.through_pulp` runs whatever PuLP knows."""

_COUNTED = ("highs", "cpsat")
"""Those that tell how much work they did, and take a limit on it."""

_WAYS_TO_INSTALL = {
    "highs": how_to_install("plan"),
    "cpsat": how_to_install("cpsat"),
    "highs+cpsat": how_to_install("cpsat"),
    "scip": how_to_install("scip"),
    "gurobi": "pip install gurobipy, and a licence",
}


def has_cpsat() -> bool:
    """Whether OR-tools is installed; it is not loaded for that."""
    return importlib.util.find_spec("ortools") is not None


def available_engines() -> tuple[str, ...]:
    """The engines that work here, the preferred first."""
    by_pulp = through_pulp.installed()
    there = {"highs", *by_pulp, *(["cpsat"] if has_cpsat() else [])}
    own = tuple(name for name in ENGINES if set(name.split("+")) <= there)
    return (*own, *(name for name in by_pulp if name not in own))


def choose_engine(name: str, *, threads: int = 1, clock: Clock = WALL) -> str:
    """``name``, or for ``"auto"`` HiGHS, on two threads beside CP-SAT where OR-tools is installed.

    Measured on problems that neither closes at once, the pair gets further than either alone
    (results/planner-benchmark.json).

    Raises:
        InputError: no such engine, or it is not installed; or ``clock`` counts work that it does not tell.
    """
    usable = available_engines()
    if clock.counts_work and (threads > 1 or name not in ("auto", *_COUNTED)):
        raise InputError(
            f"engine {name!r} on {threads} threads does not tell the work that a WorkClock counts; "
            f"ask for one thread of {' or '.join(_COUNTED)}, or for the wall clock"
        )
    if name == "auto" and usable:
        return "highs+cpsat" if threads > 1 and "highs+cpsat" in usable else usable[0]
    if name in usable:
        return name
    known = {*ENGINES, *through_pulp.known()}
    if name in known:
        how = _WAYS_TO_INSTALL.get(name)
        what, way = "is not installed", f"; to have it: {how}" if how else "; PuLP runs it where it is"
    else:
        what, way = "does not exist", nearest(name, known)
    raise InputError(f"engine {name!r} {what}; installed are {', '.join(usable) or 'none'}{way}")


def run_engine(name: str, matrix: Matrix, effort: Effort, *, watcher: Watcher | None = None) -> Outcome:
    """Minimise ``matrix`` with engine ``name``, from its start if it has one."""
    used = np.zeros(len(matrix.at_most), dtype=np.bool_)
    used[matrix.rows[matrix.factors != 0.0]] = True
    if (matrix.at_most[~used] < 0.0).any():
        return Outcome(None, math.inf, False, True, False)
    if not used.any() and not matrix.costs.any():
        return Outcome((0.0,) * len(matrix.costs), matrix.offset, True, False, False)
    began = effort.clock.now()
    engine = ENGINES.get(name) or partial(run_by_pulp, name)
    outcome = engine(Job(matrix, effort, watcher))
    _log.info(
        "%s: %d columns, %d rows, seed %d, allowed %s s: %s after %.3f s, bound on the objective %.9g",
        name, len(matrix.costs), len(matrix.at_most), effort.seed,
        "any" if effort.seconds is None else f"{effort.seconds:.3f}", _how_it_ended(outcome),
        effort.clock.now() - began, outcome.bound_joules,
    )  # fmt: skip
    return outcome


def _how_it_ended(outcome: Outcome) -> str:
    if outcome.infeasible:
        return "no solution"
    found = "no solution found" if outcome.values is None else "a solution"
    return f"{found}, {'searched to its end' if outcome.done else 'cut short'}"
