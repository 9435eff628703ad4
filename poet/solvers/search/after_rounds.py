"""What is tried where the rounds of the event model end before the time limit with a gap left.

Each restart has another seed, which engines and the neighbourhood search get, and offers more:

1. A relaxed event model that knows every rerun in every stage is much closer to the problem than those of
   the rounds, and slower; half of the time left is for it. Where there are too many, it knows all chains of
   producers up to a depth that doubles from restart to restart. Every second restart asks another engine.
2. The exact model is offered all that relaxed models asked for, by chains twice as long from restart to
   restart, each stage going through its reruns more than once.
3. The windows relaxation in whole numbers goes on where it was interrupted.
4. The linear relaxation, its walks and the neighbourhood search (`poet.solvers.search.large`) run anew.

It ends at the time limit or with a proof; else only where restarts in a row brought nothing, found nothing
more to offer, and no engine was cut short.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from poet.solvers.engines import Outcome
from poet.solvers.event_model.model import EventModel, build
from poet.solvers.instance.candidates import candidates
from poet.solvers.instance.context import Conduct
from poet.solvers.instance.instance import Instance
from poet.solvers.instance.timeline import timeline_of
from poet.solvers.search.slots_of_plans import Reruns, merged, suggested

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ways:
    """What the search that is to go on lends.

    Attributes:
        instance: what is planned.
        conduct: its clock and its record.
        limited: whether a time limit will end it.
        restart: called with each restart's number, to take another seed.
        standing: joules of the best plan, if there is one, and of the best bound.
        relax: solves a relaxed model for a bound, by another engine than usual where that is asked for.
        own_reruns: of the best plan.
        solve_exactly: solves a model with these reruns; whether the engine came to its end.
        look_longer: goes on with the windows relaxation in whole numbers, where the size allows that.
        search_large: walks and neighbourhood search for a share of the time left; false if there is no
            plan at all.
    """

    instance: Instance
    conduct: Conduct
    limited: bool
    restart: Callable[[int], None]
    standing: Callable[[], tuple[float | None, float]]
    relax: Callable[[EventModel, bool], Outcome]
    own_reruns: Callable[[], Reruns]
    solve_exactly: Callable[[dict[int, tuple[int, ...]]], bool]
    look_longer: Callable[[], None]
    search_large: Callable[[float], bool]


def go_on(ways: Ways, offered: Mapping[int, Sequence[int]]) -> bool:
    """Restart until time or proof; true if a program shows that there is no plan at all.

    Args:
        ways: of the search whose rounds have ended.
        offered: the reruns that its last relaxed model knew.
    """
    finished, phase, tuning = ways.conduct.finished, ways.conduct.phase, ways.instance.tuning.restarts
    asked, vain = merged(offered), 0
    known = _with_chains(ways.instance, asked, depth=None)
    for number in itertools.count(1):
        if finished():
            return False
        ways.restart(number)
        before, had = ways.standing(), known
        known = _with_chains(ways.instance, known, depth=2 ** min(number, tuning.most_doublings))
        with phase(f"restart {number}: relaxed event model"):
            model = build(timeline_of(ways.instance, known), relaxed=True)
            outcome = ways.relax(model, number % 2 == 0)
        if outcome.infeasible:
            return True
        ended = outcome.done
        if outcome.values is not None and not finished():
            chain = tuning.first_chain * 2 ** min(number, tuning.most_doublings)
            guide = suggested(model, outcome.values, chain=chain)
            asked, known = merged(asked, guide), merged(known, guide)
            passes = min(number, tuning.most_passes)
            wanted = merged(asked, ways.own_reruns())
            with phase(f"restart {number}: exact event model"):
                ended &= ways.solve_exactly({stage: tasks * passes for stage, tasks in wanted.items()})
        if not finished():
            ways.look_longer()
        if not finished() and not ways.search_large(tuning.large_share):
            return True
        brought = ways.standing() != before
        more = known != had or number < tuning.most_passes
        vain = 0 if brought or more else vain + 1
        _log.info("restart %d: %s", number, "better" if brought else "nothing better")
        if vain >= tuning.vain_restarts and (ended or not ways.limited):
            return False
    raise AssertionError  # the count has no end


def _with_chains(
    instance: Instance, known: dict[int, tuple[int, ...]], *, depth: int | None
) -> dict[int, tuple[int, ...]]:
    """``known`` and every chain of ``depth`` reruns that leads to what an op reads, where there are few.

    Without ``depth``: every rerun that may pay, in every stage.
    """
    chains = merged(known, candidates(instance, depth))
    return chains if sum(map(len, chains.values())) <= instance.tuning.restarts.most_slots else known
