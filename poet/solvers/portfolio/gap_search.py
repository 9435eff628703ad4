"""Local search over what each use of each tensor version comes from, from the best plan known.

One search goes on from its own plans, even where others have better ones: what rounds a relaxation can be a
place that small moves do not leave. Another is at the best plan.
"""

from __future__ import annotations

import itertools

from poet.solvers.heuristics.local_search import LocalSearch, is_ready
from poet.solvers.portfolio.finders import LOCAL
from poet.solvers.portfolio.state import GOES_ON, SearchState, Steps

BATCH_SECONDS = 0.05
"""Of a batch of tries, by clocks that count work."""

FEWEST_OPS = 33
"""Exact models of fewer are solved before its machine code is loaded."""


def local_search(state: SearchState) -> Steps:
    """Batches of tries in turn: from its own last plan, and from the best plan of all."""
    instance = state.planned
    if len(instance.tasks) < FEWEST_OPS or not LocalSearch.serves(instance):
        return
    if not state.clock.counts_work and not is_ready():
        return
    own, near = LocalSearch(instance, state.seed), LocalSearch(instance, state.seed + 1)
    if state.first is not None:
        own.begin_at(state.first)
    seen = state.first
    for search in itertools.cycle((own, near)) if own.has_choices else ():
        best = state.best.schedule
        if search is near and best is not seen and best is not None:
            near.begin_at(best)
            seen = best
        found = search.batch()
        state.clock.spend(engine_seconds=BATCH_SECONDS)
        if found is not None and search.best_joules < state.overhead_joules():
            state.consider(found, LOCAL)
            seen = state.best.schedule if search is near else seen
        yield GOES_ON
