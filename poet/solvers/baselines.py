"""The registry of baselines: what a plan is compared with. A new one is a file and a row here."""

from __future__ import annotations

from collections.abc import Callable

from poet.problem import Limits, Problem
from poet.schedule import Schedule
from poet.solvers.chen import chen
from poet.solvers.greedy import greedy
from poet.solvers.keep_everything import keep_everything
from poet.solvers.page_everything import page_everything
from poet.solvers.recompute_all import recompute_all

Baseline = Callable[[Problem, Limits], Schedule | None]
"""A schedule within the limits, best over the baseline's own knob, or ``None`` where it finds none."""

BASELINES: dict[str, Baseline] = {
    "keep-everything": keep_everything,
    "recompute-all": recompute_all,
    "chen": chen,
    "page-everything": page_everything,
    "greedy": greedy,
}
