"""Label-setting over what is in RAM: least joules of a step whose larger contents are followed exactly.

Where few large contents fit into RAM together, the states of a step are few. A *state* in stage t is the set
R of contents in RAM and the set S of those whose copy in storage is paid for; a *label* adds the joules spent
so far. Transitions are a rerun, a page-in, and the first run of op t, which leads to stage t + 1.

- Contents smaller than a threshold are not followed: they are taken to be in RAM from their birth on, in no
  bytes, but beside an op that reads or makes them.
- A content is freed only where room is needed, and then no set if a part of it is enough: freeing is free.
- The page-out of a content is paid with its first page-in: it was in RAM when it was made, so the copy could
  have been written then. What must end in storage is paid for at the start.
- A label is dropped if another of its stage holds and has stored at least as much for no more joules, or if
  its joules, and those that its state still has to spend, reach what the best plan takes.

*Proposition.* What is answered is at most the overhead of any schedule that keeps the order of first runs.
*Proof*: leave out of a schedule what concerns contents that are not followed; put each free off until room is
needed, each page-out to the first page-in. No step gets dearer, and no memory row fuller, so what is left is
a path. What a state still has to spend (`Followed.ahead`) is charged to different transfers and reruns: each
content that is absent and that a first run reads is paged in or made again, at its producer's cost and that
of those inputs of it, absent as well, that no other of these contents is charged for.

Labels are set stage by stage and cheapest first (Dijkstra 1959; dominance: Desrochers and Soumis 1988). A
search that is interrupted tells the least of what its open labels have spent and still have to spend: each
path goes on from one of those, or from one as good.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from poet.clock import Clock
from poet.solvers.bounds.followed import Followed, Run, bits
from poet.solvers.instance.instance import Instance

_Label = tuple[int, int]  # contents in RAM and contents paid for in storage, as bits


@dataclass(frozen=True, slots=True)
class StateBound:
    """What one search over states found.

    Attributes:
        overhead_joules: no schedule takes less, above running every op once; at most what was asked for.
        followed_bytes: of the smallest content that was followed.
        states: whose labels were set.
        reruns: per stage, those of the cheapest path; empty where none is below what was asked for, or the
            search has not ended.
        ended: it did, within the states that it was allowed.
    """

    overhead_joules: float
    followed_bytes: int
    states: int
    reruns: dict[int, tuple[int, ...]]
    ended: bool


def _never() -> bool:
    return False


def state_bounds(
    instance: Instance,
    *,
    below_joules: float,
    most_states: int,
    clock: Clock,
    finished: Callable[[], bool] = _never,
) -> Iterator[StateBound]:
    """Bounds that follow smaller and smaller contents, until a search has too many states.

    Args:
        instance: what to bound.
        below_joules: overhead of the best plan; nothing at or above it is looked at.
        most_states: that each search may set labels of.
        clock: of the search, which hears of the work.
        finished: asked many times a second; whether to stop.
    """
    tuning, budget = instance.tuning.states, instance.limits.ram_budget_bytes
    if (
        budget is None
        or not instance.serial
        or any(content.home is not None for content in instance.contents)
    ):
        return
    sizes = sorted({content.bytes for content in instance.contents if content.bytes}, reverse=True)
    for level, size in enumerate(sizes):
        next_size = sizes[level + 1] if level + 1 < len(sizes) else 0
        if next_size * tuning.alike_factor > size and next_size:  # follow those of about one size together
            continue
        states = _States(instance, size, budget)
        if states.most_alive > tuning.most_alive or finished():
            return
        found = states.least(below_joules, most_states, finished)
        clock.spend(engine_seconds=tuning.state_seconds * states.count)
        yield found
        if not found.ended or found.overhead_joules >= below_joules:
            return


class _TooMany(Exception):
    """More states than were allowed, or the time is over."""


class _States(Followed):
    """The states of ``instance`` that tell contents of at least ``followed_bytes``."""

    def __init__(self, instance: Instance, followed_bytes: int, budget_bytes: int) -> None:
        super().__init__(instance, followed_bytes, budget_bytes)
        self.count = 0
        self._looks, self._tuning = 0, instance.tuning.states
        self._most_states, self._finished = 0, _never
        self._begun = 0.0  # what the label that is gone on from has spent and has to spend
        self._heap: list[tuple[float, int, int]] = []  # of the stage

    def least(self, below_joules: float, most_states: int, finished: Callable[[], bool]) -> StateBound:
        """The least overhead, or ``below_joules`` where it is not less; less where states are too many."""
        self._most_states, self._finished = most_states, finished
        below = below_joules - self.fixed_joules
        labels: dict[_Label, float] = {(self.starts & self.alive[0], 0): 0.0}
        stages: list[dict[_Label, tuple[_Label, int | None] | None]] = []
        for stage in range(self.end):
            came: dict[_Label, tuple[_Label, int | None] | None] = dict.fromkeys(labels)
            following: dict[_Label, float] = {}
            origin: dict[_Label, _Label] = {}
            try:
                for label, joules in self._settled(stage, labels, below, came):
                    for after in self._after_first_run(stage, label):
                        if joules < following.get(after, math.inf):
                            following[after], origin[after] = joules, label
            except _TooMany:
                return self._interrupted(stage, following, below_joules)
            stages += [came, dict[_Label, tuple[_Label, int | None] | None]()]
            stages[-1].update({after: (label, None) for after, label in origin.items()})
            labels = following
        came = dict.fromkeys(labels)
        try:
            for label, joules in self._settled(self.end, labels, below, came):
                if not self.ends & ~label[0]:
                    reruns = _traced([*stages, came], label)
                    return StateBound(
                        joules + self.fixed_joules, self.followed_bytes, self.count, reruns, True
                    )
        except _TooMany:
            return self._interrupted(self.end, {}, below_joules)
        return StateBound(below_joules, self.followed_bytes, self.count, {}, True)

    def _interrupted(self, stage: int, following: dict[_Label, float], below_joules: float) -> StateBound:
        """What the open labels of ``stage`` and those of the next tell."""
        least = min(
            self._begun,
            min((joules + self.ahead(stage, *label) for joules, *label in self._heap), default=math.inf),
            min(
                (joules + self.ahead(stage + 1, *label) for label, joules in following.items()),
                default=math.inf,
            ),
        )
        joules = min(least + self.fixed_joules, below_joules)
        return StateBound(joules, self.followed_bytes, self.count, {}, False)

    def _settled(
        self,
        stage: int,
        labels: dict[_Label, float],
        below: float,
        came: dict[_Label, tuple[_Label, int | None] | None],
    ) -> Iterator[tuple[_Label, float]]:
        """Labels of the stage that no other dominates, cheapest first; ``came`` gets what they came from."""
        alive = self.alive[stage]
        runs = [run for run in self.again if run.task < stage <= run.last_stage and run.makes & alive]
        least = dict(labels)
        heap = [(joules, *label) for label, joules in labels.items()]
        heapq.heapify(heap)
        self._heap = heap
        held_by_stored: dict[int, list[int]] = {}
        while heap:
            joules, held, stored = heapq.heappop(heap)
            label = held, stored
            if joules > least[label] or joules + self.ahead(stage, held, stored) >= below:
                continue
            if any(
                not held & ~more for has, sets in held_by_stored.items() if not stored & ~has for more in sets
            ):
                continue
            held_by_stored.setdefault(stored, []).append(held)
            self._begun = joules + self.ahead(stage, held, stored)
            self.count += 1
            if self.count > self._most_states:
                raise _TooMany
            yield label, joules
            for task, after, spent in self._steps(runs, alive, held, stored):
                total = joules + spent
                known = total >= least.get(after, math.inf)
                if not known and total + self.ahead(stage, *after) < below:
                    least[after], came[after] = total, (label, task)
                    heapq.heappush(heap, (total, *after))

    def _steps(
        self, runs: list[Run], alive: int, held: int, stored: int
    ) -> Iterator[tuple[int | None, _Label, float]]:
        """Each rerun (its task) and each page-in: what it leads to, and its joules."""
        for run in runs:
            if not run.needs & ~held and run.makes & alive & ~held:
                for kept in self.left(held, run.needs, self.budget_bytes - run.beside_bytes, self._look):
                    yield run.task, (kept | (run.makes & alive), stored), run.joules
        for number in bits(alive & ~held):
            joules = self.page_joules(number, stored)
            if joules < math.inf:
                bit = 1 << number
                for kept in self.left(held, 0, self.budget_bytes - self.bytes[number], self._look):
                    yield None, (kept | bit, stored | bit), joules

    def _after_first_run(self, stage: int, label: _Label) -> Iterator[_Label]:
        held, stored = label
        run, alive = self.first[stage], self.alive[stage + 1]
        if not run.needs & ~held:
            for kept in self.left(held, run.needs, self.budget_bytes - run.beside_bytes, self._look):
                yield (kept | run.makes | run.updates) & alive, stored & alive

    def _look(self) -> None:
        """Count a look at a set of contents that may be freed; ask now and then whether to stop."""
        self._looks += 1
        late = self._looks % self._tuning.looks == 0 and self._finished()
        if late or self._looks > self._tuning.most_looks * self._most_states:
            raise _TooMany


def _traced(
    stages: list[dict[_Label, tuple[_Label, int | None] | None]], label: _Label
) -> dict[int, tuple[int, ...]]:
    """Reruns per stage on the way to ``label``: within stages and over first runs, in turn, backwards."""
    reruns: dict[int, list[int]] = {}
    for place in range(len(stages) - 1, -1, -1):
        step = stages[place].get(label)
        while step is not None:
            label, task = step
            if task is not None:
                reruns.setdefault(place // 2, []).append(task)
            if place % 2:
                break
            step = stages[place].get(label)
    return {stage: tuple(reversed(tasks)) for stage, tasks in sorted(reruns.items())}
