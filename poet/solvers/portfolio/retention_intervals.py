"""Exact models over retention intervals, with reruns along longer and longer chains.

The intervals are those of MOCCASIN (Bartan, Li, Teague, Lott and Dilkina 2023). Each model is offered the
reruns of the best plan and what other members ask for, beside all chains of some length.
"""

from __future__ import annotations

from collections.abc import Iterator

from poet.solvers.instance.candidates import candidates
from poet.solvers.portfolio.model_runs import ModelRuns
from poet.solvers.portfolio.slots_of_plans import followed_by, merged
from poet.solvers.portfolio.state import GOES_ON, SearchState, Steps

FIRST_CHAIN, LONGEST_CHAIN = 2, 64
"""Reruns that lead to one tensor version; with 1, most plans of little RAM are none of the first model's."""

AHEAD_STAGES = 8
"""Chains are also offered in the calmest of so many stages up to the one that reads their result."""

MOST_RERUNS = 2500
"""That a model is offered; with more, an engine finds no plan in minutes."""

MOST_PASSES = 3
"""How often a stage may go through every rerun in order, in the last models."""


def retention_intervals(state: SearchState) -> Steps:
    """Model after model, a turn each; one that is not solved in its turn is tried again in a longer one."""
    runs, open_chains = ModelRuns(state), list(_offers(state))
    while open_chains or state.asked:
        if state.asked:
            path = state.asked.pop()
            runs.solve_exactly(followed_by(path, runs.own_reruns()), state.turn_left())
            yield GOES_ON
            continue
        offered = merged(open_chains[0], *state.wanted, runs.own_reruns())
        if len(offered) and sum(map(len, offered.values())) > MOST_RERUNS:
            offered = merged(open_chains[0], runs.own_reruns())
        if runs.solve_exactly(offered, state.turn_left()):
            del open_chains[0]
        else:
            open_chains.append(open_chains.pop(0))
        yield GOES_ON


def _offers(state: SearchState) -> Iterator[dict[int, tuple[int, ...]]]:
    """The chains that models are offered; none that is more than an engine can do with."""
    before: dict[int, tuple[int, ...]] | None = None
    chain = FIRST_CHAIN
    while chain <= LONGEST_CHAIN:
        offered = candidates(state.instance, chain, window=AHEAD_STAGES)
        if sum(map(len, offered.values())) > MOST_RERUNS:
            return
        if offered != before:
            yield offered
        before, chain = offered, 2 * chain
    for passes in range(1, MOST_PASSES + 1):
        every = candidates(state.instance, None, passes=passes)
        if sum(map(len, every.values())) > MOST_RERUNS:
            return
        yield every
