"""What is tried where the rounds leave a gap and time: restarts, each of which offers more.

Each restart has another seed, which engines and the neighbourhood search get, and these parts:

0. Without a plan, one is looked for by what is in RAM (`poet.solvers.search.first_plan`) and in the model of
   part 3. The local search over copies varies the best plan (`poet.solvers.heuristics.copies_search`), exact
   models in which few tensors may be written do (`poet.solvers.search.few_copies`), the search over copies
   for bounds (`poet.solvers.bounds.copies`) goes on where it was interrupted, and that over
   states (`poet.solvers.bounds.state_search`) may set twice as many labels as before; so may, beside
   background storage, that with two clocks (`poet.solvers.bounds.timed_search`).
1. A relaxed event model that knows every rerun in every stage is much closer to the problem than those of
   the rounds, and slower; half of the time left is for it. Where there are too many, it knows all chains of
   producers up to a depth that doubles from restart to restart. Every second restart asks another engine.
2. The exact model is offered all that relaxed models asked for, by chains twice as long from restart to
   restart, each stage going through its reruns once more than before while they are few enough.
3. The exact model is offered every rerun in every stage, likewise, where they are few enough; by the other
   engine in the first restart and each second one after it.
4. The windows relaxation in whole numbers goes on where it was interrupted.
5. The linear relaxation, its walks and the neighbourhood search (`poet.solvers.search.large`) run anew.

A model that an engine has searched to its end is not searched again. Restarts end at the time limit, with a
proof, or when the user says so: nothing else ends them.
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
        restart: called with each restart's number, to take another seed.
        standing: joules of the best plan, if there is one, and of the best bound.
        find_first: goes on looking for a first plan; true if there is none at all.
        vary_copies: looks for better plans near the best one, for a share of the time left.
        few_copies: solves exact models of few copies with these reruns, for a share of the time left.
        follow_copies: goes on with the search over copies for a share of the time left.
        follow_states: searches over so many states at most, for bounds and for reruns to offer.
        follow_clocks: searches with two clocks, over so many labels at most; true if there is no plan at all.
        relax: solves a relaxed model for a bound, by another engine than usual where that is asked for.
        own_reruns: of the best plan.
        solve_exactly: solves a model with these reruns, by another engine than usual where that is asked for;
            whether the engine came to its end.
        look_longer: goes on with the windows relaxation in whole numbers, where the size allows that.
        search_large: walks and neighbourhood search for a share of the time left; false if there is no
            plan at all.
    """

    instance: Instance
    conduct: Conduct
    restart: Callable[[int], None]
    standing: Callable[[], tuple[float | None, float]]
    find_first: Callable[[], bool]
    vary_copies: Callable[[float], None]
    few_copies: Callable[[Reruns], None]
    follow_copies: Callable[[float], None]
    follow_states: Callable[[int], None]
    follow_clocks: Callable[[int], bool]
    relax: Callable[[EventModel, bool], Outcome]
    own_reruns: Callable[[], Reruns]
    solve_exactly: Callable[[dict[int, tuple[int, ...]], bool], bool]
    look_longer: Callable[[], None]
    search_large: Callable[[float], bool]


def go_on(ways: Ways, offered: Mapping[int, Sequence[int]]) -> bool:
    """Restart until time, proof or the user ends it; true if a program shows that there is no plan at all.

    Args:
        ways: of the search whose rounds have ended.
        offered: the reruns that its last relaxed model knew.
    """
    going = _Restarts(ways, merged(offered))
    for number in itertools.count(1):
        if ways.conduct.finished():
            return False
        before = ways.standing()
        ways.conduct.clock.spend(programs=1)  # so that restarts with nothing to solve end by any clock
        if going.restart(number):
            return True
        brought = ways.standing() != before
        _log.info("restart %d: %s", number, "better" if brought else "nothing better")
    raise AssertionError  # the count has no end


class _Restarts:
    """What the restarts so far have asked for, and which models they have searched to the end.

    Args:
        ways: of the search.
        asked: reruns that were offered before.
    """

    def __init__(self, ways: Ways, asked: dict[int, tuple[int, ...]]) -> None:
        self.ways, self.asked, self.tuning = ways, asked, ways.instance.tuning.restarts
        self.known = _with_chains(ways.instance, asked, depth=None)
        self._ended = set[tuple[bool, frozenset[tuple[int, tuple[int, ...]]]]]()

    def restart(self, number: int) -> bool:
        """All parts in turn; true if there is no plan at all."""
        ways, finished = self.ways, self.ways.conduct.finished
        ways.restart(number)
        doublings = min(number, self.tuning.most_doublings)
        if ways.find_first():
            return True
        every = candidates(ways.instance, None, passes=number)
        if ways.standing()[0] is None and self._few(every):  # most have no solution, which shows at once
            name = f"restart {number}: exact event model, every rerun in every stage"
            self._solve_exactly(name, every, other=False)
        if finished():
            return False
        ways.vary_copies(ways.instance.tuning.copies_search.restart_share)
        if finished():
            return False
        ways.few_copies(self.asked)
        if finished():
            return False
        ways.follow_copies(ways.instance.tuning.copies.restart_share)
        if finished():
            return False
        states = ways.instance.tuning.states
        ways.follow_states(min(states.restart_states * 2 ** (doublings - 1), states.most_states))
        if finished():
            return False
        timed = ways.instance.tuning.timed
        if ways.follow_clocks(min(timed.restart_labels * 2 ** (doublings - 1), timed.most_labels)):
            return True
        if finished():
            return False
        self.known = _with_chains(ways.instance, self.known, depth=2**doublings)
        if self._relax(number, chain=self.tuning.first_chain * 2**doublings):
            return True
        wanted = merged(self.asked, ways.own_reruns())
        passes = min(number, self.tuning.most_slots // max(1, sum(map(len, wanted.values()))))
        several = {stage: tasks * max(1, passes) for stage, tasks in wanted.items()}
        self._solve_exactly(f"restart {number}: exact event model", several, other=False)
        if self._few(every):
            name = f"restart {number}: exact event model, every rerun in every stage"
            self._solve_exactly(name, every, other=number % 2 == 1)
        if not finished():
            ways.look_longer()
        return not finished() and not ways.search_large(self.tuning.large_share)

    def _relax(self, number: int, *, chain: int) -> bool:
        """Solve the relaxed model of what is known, for a bound and for what to offer; true if it has no
        solution, so that there is no plan.
        """
        ways = self.ways
        key = True, frozenset(self.known.items())
        if key in self._ended:
            return False
        with ways.conduct.phase(f"restart {number}: relaxed event model"):
            model = build(timeline_of(ways.instance, self.known), relaxed=True)
            outcome = ways.relax(model, number % 2 == 0)
        if outcome.infeasible:
            return True
        if outcome.done:
            self._ended.add(key)
        if outcome.values is not None:
            window = ways.instance.tuning.few_copies.ahead_stages
            guide = suggested(model, outcome.values, chain=chain, window=window)
            self.asked, self.known = merged(self.asked, guide), merged(self.known, guide)
        return False

    def _solve_exactly(self, name: str, offered: dict[int, tuple[int, ...]], *, other: bool) -> None:
        key = False, frozenset(offered.items())
        if key in self._ended or self.ways.conduct.finished():
            return
        with self.ways.conduct.phase(name):
            if self.ways.solve_exactly(offered, other):
                self._ended.add(key)

    def _few(self, offered: dict[int, tuple[int, ...]]) -> bool:
        return sum(map(len, offered.values())) <= self.tuning.most_slots


def _with_chains(
    instance: Instance, known: dict[int, tuple[int, ...]], *, depth: int | None
) -> dict[int, tuple[int, ...]]:
    """``known`` and every chain of ``depth`` reruns that leads to what an op reads, where there are few.

    Without ``depth``: every rerun that may pay, in every stage.
    """
    chains = merged(known, candidates(instance, depth))
    return chains if sum(map(len, chains.values())) <= instance.tuning.restarts.most_slots else known
