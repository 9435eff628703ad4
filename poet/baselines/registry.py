"""The registry of baselines: what a plan is compared with. A new one is a file and a row here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from poet.baselines.capuchin import capuchin
from poet.baselines.checkmate import checkmate
from poet.baselines.chen import chen
from poet.baselines.delta import delta
from poet.baselines.dtr import dtr
from poet.baselines.optimal_paging import optimal_paging
from poet.baselines.page_everything import page_everything
from poet.baselines.recompute_all import recompute_all
from poet.baselines.rotor import pofo, rotor
from poet.baselines.vdnn import vdnn
from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solution import Solution, SolveOptions
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.heuristics.keep_everything import keep_everything
from poet.tuning import Tuning

Baseline = Callable[[Problem, Limits], Schedule | None]
"""A schedule within the limits, best over the baseline's own knob, or ``None`` where it finds none."""

ExactBaseline = Callable[[Problem, Limits, SolveOptions | None], Solution]
"""The answer to a restricted problem, with its own bound."""

BASELINES: dict[str, Baseline] = {
    "keep-everything": keep_everything,
    "recompute-all": recompute_all,
    "chen": chen,
    "page-everything": page_everything,
    "rotor": rotor,
    "pofo": pofo,
    "vdnn": vdnn,
    "capuchin": capuchin,
    "dtr": dtr,
    "delta": delta,
    "greedy": greedy,
}
"""Quick ones: each answers a graph of some thousand ops in seconds."""

EXACT_BASELINES: dict[str, ExactBaseline] = {
    "checkmate": checkmate,
    "optimal-paging": optimal_paging,
}
"""Restricted problems solved by the model, each up to the time limit of `SolveOptions`."""


def tuned(name: str, tuning: Tuning) -> Baseline:
    """The quick baseline ``name``, with ``tuning`` where it has constants of its own."""
    match name:
        case "greedy":
            return partial(greedy, tuning=tuning)
        case "rotor":
            return partial(rotor, tuning=tuning)
        case "pofo":
            return partial(pofo, tuning=tuning)
        case "vdnn":
            return partial(vdnn, tuning=tuning)
        case "capuchin":
            return partial(capuchin, tuning=tuning)
    return BASELINES[name]
