"""The registry of baselines: what a plan is compared with. A new one is a file and a row here."""

from __future__ import annotations

from collections.abc import Callable

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
from poet.problem.schedule import Schedule
from poet.problem.solution import Solution, SolveOptions
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.heuristics.policies import keep_everything

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
