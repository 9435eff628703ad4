"""A first plan, or a proof that there is none, where nothing may be written and no greedy plan was found.

Reruns of reruns are then the only way, and greedy planners hold what they remake from. The programs over what
is in RAM (`poet.solvers.bounds.copies`) follow the large contents exactly, however often they are made again.
Their cheapest steps, with more and more contents followed, name the reruns that an exact event model is
offered. Where a program has no step at all, there is no plan.

*Proposition.* A program that has no step below N * J joules has none, where N is more than its transitions
and contents together, and J the dearest rerun or page-in. *Proof*: a cheapest step takes no transition twice,
and beside them it may have to page each content in once.
"""

from __future__ import annotations

from collections.abc import Generator

from poet.closing import Closing
from poet.solvers.bounds.copies import CopiesBound
from poet.solvers.instance.returns import Conflict, conflict_in
from poet.solvers.search.copies_turns import bounds_below
from poet.solvers.search.model_runs import ModelRuns
from poet.solvers.search.slots_of_plans import followed_by, merged


class FirstPlan(Closing):
    """The search for it, in turns; leaving the context ends its solver process, if there is one.

    Args:
        runs: solves the exact event model with the reruns of what was found.
    """

    def __init__(self, runs: ModelRuns) -> None:
        self.runs, self.standing = runs, runs.standing
        self._going: Generator[CopiesBound] | None = None
        self._asked = dict[int, tuple[int, ...]]()  # reruns of the steps so far, by stage
        tasks, contents = self.standing.instance.tasks, self.standing.instance.contents
        is_large = len(tasks) > self.standing.tuning.large_ops
        self._pays = not is_large and all(content.page_out is None for content in contents)
        moves = [task.cost for task in tasks]
        moves += [content.page_in for content in contents if content.page_in is not None]
        most_moves = self.standing.options.tuning.copies.most_arcs + len(contents) + 1
        self._below_joules = most_moves * max((cost.joules for cost in moves), default=0.0)

    def close(self) -> None:
        """End the search; another turn begins anew."""
        if self._going is not None:
            self._going.close()
        self._going = None

    def conflict(self) -> Conflict | None:
        """A proof that there is none, from when contents can come back into RAM, for a share of the time."""
        standing, share = self.standing, self.standing.tuning.returns_share
        if share == 0.0:
            return None
        end = standing.clock.now() + share * min(standing.seconds_left(), 1e9)
        with standing.recorder.phase("what can come back into RAM, and when"):
            return conflict_in(standing.instance, lambda: standing.finished() or standing.clock.now() >= end)

    def turn(self, share: float) -> bool:
        """Go on for a share of the time left, until there is a plan; true if there is none at all."""
        standing, clock = self.standing, self.standing.clock
        if not self._is_wanted() or share == 0.0:
            return False
        end = clock.now() + min(share * standing.seconds_left(), standing.options.tuning.copies.most_seconds)
        with standing.recorder.phase("search over what is in RAM, for a first plan"):
            self._going = self._going or bounds_below(standing, self._below_joules)
            for bound in self._going:
                if bound.proven and bound.overhead_joules >= self._below_joules:
                    return True
                if bound.ended and bound.step is not None:
                    path = bound.step.path.reruns
                    self.runs.solve_exactly(followed_by(path, self._asked))
                    self._asked = merged(self._asked, path)
                if not self._is_wanted():
                    self.close()
                    break
                if clock.now() >= end:
                    break
        return False

    def _is_wanted(self) -> bool:
        standing = self.standing
        return self._pays and standing.best.trace is None and not standing.finished()
