"""The prover: a dynamic program over resident sets, for all spill sets (after Benders 1962).

See `poet.solvers.bounds.resident_sets`. Its bounds are the best where page-outs take most. Its cheapest steps
name reruns that exact models are asked for. Where nothing may be written and there is no plan yet, it looks
for one, or proves that there is none.

*Proposition.* A program that has no step below N * J joules has none, where N is more than its transitions
and contents together, and J the most expensive rerun or page-in. *Proof*: a cheapest step takes no transition
twice, and beside them it may have to page each content in once.
"""

from __future__ import annotations

import math

from poet.solvers.bounds.resident_sets import MOST_ARCS, resident_sets_bounds
from poet.solvers.portfolio.best_bound import COPIES
from poet.solvers.portfolio.state import GOES_ON, WAITS, SearchState, Steps

AGAIN_SHARE = 0.05
"""Of the overhead, by which a better plan has the search begin again: what it rules out was too coarse."""


def resident_sets(state: SearchState) -> Steps:
    """Bounds below the best plan, and the reruns of each cheapest step."""
    while True:
        below, proves_none = state.overhead_joules(), False
        if math.isinf(below):
            below, proves_none = _beyond_any_step(state), True
        if math.isinf(below):
            if state.is_alone():
                return
            yield WAITS
            continue
        bounds = resident_sets_bounds(
            state.instance,
            below_joules=below,
            clock=state.clock,
            finished=state.finished,
            seconds_left=state.seconds_left,
        )
        for bound in bounds:
            if proves_none and bound.overhead_joules >= below:
                state.refuted = True
                return
            if not proves_none:
                state.take_bound(bound.overhead_joules, COPIES)
            if bound.step is not None:
                state.asked.append(bound.step.reruns)
                del state.asked[:-2]
            yield GOES_ON
            if state.overhead_joules() < (1.0 - AGAIN_SHARE) * below:
                break
        else:
            return


def _beyond_any_step(state: SearchState) -> float:
    """Joules that no step of the program takes, by the proposition; infinite where tensors may be written."""
    instance = state.instance
    if any(content.page_out is not None for content in instance.contents):
        return math.inf
    moves = [task.cost for task in instance.tasks]
    moves += [content.page_in for content in instance.contents if content.page_in is not None]
    most_moves = MOST_ARCS + len(instance.contents) + 1
    return most_moves * max((cost.joules for cost in moves), default=0.0)
