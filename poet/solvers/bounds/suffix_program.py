"""Suffix dynamic program: least joules to the end of the step for each set of large versions in RAM.

RAM is tightest where the first and largest tensor versions are read for the last time. There plans
recompute long chains in memory that hardly has room for them, and the windows relaxation, which knows
neither the order of reruns within a stage nor how they share RAM, under-counts memory most. But few
large versions fit into RAM together, so *all* their sets can be states, and the least joules from each
state to the end of the step are shortest paths, computed backwards (Bellman 1957; Held and Karp 1962).

**States and transitions.** After the first run of some op the state is the set S of *tracked* versions
in RAM. Transitions:

- free a version, at no cost;
- rerun a task, at its joules, if what it reads is in S; what it makes is added;
- page a version in, at its joules and its *page-out charge*;
- the first run of the next op, at no cost, if what it reads is in S; what it makes is added.

In each of them S, with what is added, the workspace, and the bytes of versions that are not tracked but
that the op reads or makes, must fit into the budget. Versions that are not tracked are there at no cost
whenever an op reads them, and otherwise take no RAM. Reruns may be repeated, in any order.

**Page-out charges.** A copy is written once and read any number of times, but states that also record
which versions have a copy would be too many. So page-ins are charged for page-outs, and there is one
table per *cost scenario*, which says who is charged. Versions are divided into groups; let Q be those
that are paged in after the moment, R the joules spent then on reruns and page-ins, and out(i) the
joules of a page-out.

*Proposition.* If a schedule holds S at the moment,

- and pages nothing in twice, R + Σ out(i) over i in Q but not in g  ≥  the value of S in the table in
  which the versions of group g are charged nothing and each other i is charged out(i). Likewise
  without any g;
- and pages a version of g in twice or more, and no other more than twice, the same sum  ≥  the value of
  S in the table in which those of g are charged nothing and at least two page-ins of them follow, and
  each other i is charged out(i) / 2;
- and pages two versions in more than twice, R  ≥  six page-ins.

*Proof.* Every step of the schedule that touches a tracked version is a transition, so the schedule is a
path through each of these tables, and none costs less than the value of S. A version outside g is charged
out(i) in all at most: in the first case once, in the second twice the half. Costs are rounded down to whole
units, and capped at a number of joules beyond which they do not matter; both only lower the values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poet.solvers.instance.candidates import last_use_stages, worth_rerunning
from poet.solvers.instance.instance import Instance, Task

Positions = npt.NDArray[np.int32]
Masks = npt.NDArray[np.int64]
Units = npt.NDArray[np.int32]
Joules = npt.NDArray[np.float64]

_UNITS = 1 << 28  # in the joules at which costs are capped; four times that does not overflow
_WAYS = 4  # cost scenarios per group not charged: any page-ins; and 2, 1 or 0 of them still to come


@dataclass(frozen=True, slots=True)
class Table:
    """Least joules to the end of the step by state, in one cost scenario.

    Attributes:
        joules: per mask of the `Endgame`.
        free: versions that are charged no page-out.
        twice: whether it is for schedules that page one of these in twice or more; else for those that
            page nothing in twice.
    """

    joules: Joules
    free: frozenset[int]
    twice: bool


@dataclass(frozen=True, slots=True)
class Endgame:
    """The suffix dynamic program of one moment: its states and tables.

    Attributes:
        moment: the op after whose first run the suffix begins.
        tracked: tensor versions whose presence in RAM makes up the state.
        contents: those that may be in RAM when the suffix begins; bit b of a mask is ``contents[b]``.
        masks: every set of them that fits into RAM, in ascending order.
        tables: the first one is for no paging twice, with no group exempt from charges.
        page_outs: joules, of the tracked versions that may be paged and do not end in storage anyway.
        six_page_ins_joules: six times the cheapest page-in among them.
    """

    moment: int
    tracked: tuple[int, ...]
    contents: tuple[int, ...]
    masks: Masks
    tables: tuple[Table, ...]
    page_outs: dict[int, float]
    six_page_ins_joules: float


def endgame(
    instance: Instance,
    moment: int,
    tracked: Sequence[int],
    *,
    most_joules: float,
    finished: Callable[[], bool] = lambda: False,
) -> Endgame | None:
    """The suffix program of what follows the first run of op ``moment``; ``None`` if ``finished`` ended it.

    Args:
        instance: the problem, with a budget of RAM.
        moment: number of an op.
        tracked: tensor versions as `trackable` gives them.
        most_joules: at which costs are capped.
        finished: whether to give up; called once per stage.
    """
    game = _Game(instance, tracked, most_joules / _UNITS)
    following = game.ended()
    for stage in range(len(instance.tasks) - 1, moment, -1):
        if finished():
            return None
        following = game.solved(stage, following)
    pageable = [instance.contents[c].page_in for c in game.group]
    return Endgame(
        moment=moment,
        tracked=game.tracked,
        contents=following.alive,
        masks=following.states.masks,
        tables=tuple(game.tables(following.units)),
        page_outs={c: game.page_out[c] * game.joules_per_unit for c in game.group},
        six_page_ins_joules=6.0 * min((cost.joules for cost in pageable if cost is not None), default=0.0),
    )


def trackable(instance: Instance, least_bytes: int) -> tuple[int, ...]:
    """The largest output of each task that has at least ``least_bytes`` and that something reads later.

    Only versions with a producer, of tensors that are never updated: runs and page-ins alone bring them.
    """
    last_use = last_use_stages(instance, worth_rerunning(instance))
    updated = {c.tensor for c in instance.contents if c.version > 0}
    largest: dict[int, int] = {}
    for content in instance.contents:
        number, producer = content.number, content.producer
        if producer is None or content.tensor in updated or content.bytes < max(least_bytes, 1):
            continue
        if last_use[number] > content.birth:
            rival = largest.get(producer, number)
            largest[producer] = max(rival, number, key=lambda c: instance.contents[c].bytes)
    return tuple(sorted(largest.values()))


def first_moment(instance: Instance, tracked: Sequence[int], *, most_states: int) -> int:
    """The earliest moment after which no stage has more than ``most_states`` sets that fit."""
    game = _Game(instance, tracked, 1.0)
    moment = len(instance.tasks) - 1
    while moment > 0 and not game.too_many(moment, most_states):
        moment -= 1
    return moment


@dataclass(frozen=True, slots=True)
class FittingSets:
    """Every set of tracked versions that fits into RAM.

    Attributes:
        masks, bytes: per state; masks ascend.
        without, having: per bit, the states that lack it and have room for it, and the same with it.
    """

    masks: Masks
    bytes: Masks
    without: tuple[Positions, ...]
    having: tuple[Positions, ...]


@dataclass(frozen=True, slots=True)
class _Stage:
    """``units``: least cost, by state and by cost scenario."""

    alive: tuple[int, ...]
    states: FittingSets
    units: Units


@dataclass(frozen=True, slots=True)
class _Move:
    """A transition from states to states, at ``units`` by cost scenario.

    ``group``: of the version that is paged in; -1 for a rerun and for versions that are in no group.
    """

    begin: Positions
    end: Positions
    units: Units
    group: int


class _Game:
    """Computes the tables backwards, stage by stage.

    Cost scenarios, by column of ``units``: every page-in charged; then for each group what `_WAYS` says.
    """

    def __init__(self, instance: Instance, tracked: Sequence[int], joules_per_unit: float) -> None:
        self.instance, self.joules_per_unit = instance, joules_per_unit
        self.budget = instance.limits.ram_budget_bytes or 0
        self.worth = worth_rerunning(instance)
        self.last_use = last_use_stages(instance, self.worth)
        self.tracked = tuple(sorted(tracked))
        self.page_out = {c: units for c in self.tracked if (units := self._page_out_units(c)) is not None}
        paying = [c for c, units in self.page_out.items() if units > 0]
        self.groups = min(instance.tuning.suffix.groups, len(paying))
        self.group = {c: position % self.groups for position, c in enumerate(paying)}
        self.ways = 1 + _WAYS * self.groups

    def too_many(self, stage: int, most: int) -> bool:
        """Whether more than ``most`` sets fit."""
        total = np.zeros(1, dtype=np.int64)
        for content in self._alive(stage):
            size = self.instance.contents[content].bytes
            total = np.concatenate([total, total[total + size <= self.budget] + size])
            if len(total) > most:
                return True
        return False

    def ended(self) -> _Stage:
        """Least costs at the begin of the last stage, after all first runs."""
        stage = len(self.instance.tasks)
        alive, states, units = self._blank(stage)
        wanted = _mask(alive, [c for c in alive if self.instance.contents[c].ends_in_ram])
        there = (states.masks & wanted) == wanted
        for way in (0, *range(1, self.ways, _WAYS), *range(_WAYS, self.ways, _WAYS)):
            units[there, way] = 0
        self._relax(stage, alive, states, units)
        return _Stage(alive, states, units)

    def solved(self, stage: int, following: _Stage) -> _Stage:
        """Least costs at the begin of ``stage``, from those at the begin of the next one."""
        alive, states, units = self._blank(stage)
        task = self.instance.tasks[stage]
        wanted = _mask(alive, task.reads)
        fits = states.bytes + self._bytes_beside(task.reads, task) <= self.budget
        ready = np.flatnonzero(((states.masks & wanted) == wanted) & fits)
        after = np.full(len(ready), _mask(following.alive, task.outputs), dtype=np.int64)
        for bit, content in enumerate(alive):
            if content in following.alive:
                after |= ((states.masks[ready] >> bit) & 1) << following.alive.index(content)
        units[ready] = following.units[np.searchsorted(following.states.masks, after)]
        self._relax(stage, alive, states, units)
        return _Stage(alive, states, units)

    def tables(self, units: Units) -> list[Table]:
        """The tables in joules: no group; then of each group, any page-ins, and two of them to come."""
        joules = units.astype(np.float64) * self.joules_per_unit
        tables = [Table(joules[:, 0], frozenset(), twice=False)]
        for group in range(self.groups):
            free = frozenset(c for c, mine in self.group.items() if mine == group)
            first = 1 + _WAYS * group
            tables.append(Table(joules[:, first], free, twice=False))
            tables.append(Table(joules[:, first + 1], free, twice=True))
        return tables

    def _blank(self, stage: int) -> tuple[tuple[int, ...], FittingSets, Units]:
        alive = self._alive(stage)
        states = fitting_sets([self.instance.contents[c].bytes for c in alive], self.budget)
        assert states is not None  # any number of them is allowed
        return alive, states, np.full((len(states.masks), self.ways), _UNITS, dtype=np.int32)

    def _units(self, joules: float) -> int:
        return int(min(joules / self.joules_per_unit, _UNITS))

    def _page_out_units(self, number: int) -> int | None:
        """Of the first copy of a version; ``None`` where there can be none."""
        content = self.instance.contents[number]
        if content.page_in is None or (content.page_out is None and not content.ends_stored):
            return None
        return 0 if content.ends_stored or content.page_out is None else self._units(content.page_out.joules)

    def _alive(self, stage: int) -> tuple[int, ...]:
        """Tracked versions that exist at the begin of ``stage`` and are read in it or later."""
        return tuple(c for c in self.tracked if self.instance.contents[c].birth < stage <= self.last_use[c])

    def _bytes_beside(self, reads: Sequence[int], task: Task) -> int:
        """Bytes in RAM during a run beside the state that it begins in."""
        beside = {*task.outputs, *(c for c in reads if c not in self.tracked)}
        return task.workspace_bytes + sum(self.instance.contents[c].bytes for c in beside)

    def _relax(self, stage: int, alive: tuple[int, ...], states: FittingSets, units: Units) -> None:
        """Lower ``units``, in place, to the least cost of any sequence of transitions in the stage."""
        moves = [*self._reruns(stage, alive, states), *self._page_ins(alive, states)]
        while True:
            before = int(units.sum(dtype=np.int64))
            for move in moves:
                reached = units.take(move.end, axis=0)
                if move.group >= 0:
                    first = 2 + _WAYS * move.group
                    reached[:, first : first + 2] = reached[:, first + 1 : first + 3].copy()
                reached += move.units
                np.minimum(reached, units.take(move.begin, axis=0), out=reached)
                units[move.begin] = reached
            for without, having in zip(states.without, states.having, strict=True):
                reached = units.take(without, axis=0)
                np.minimum(reached, units.take(having, axis=0), out=reached)
                units[having] = reached
            if int(units.sum(dtype=np.int64)) == before:
                return

    def _reruns(self, stage: int, alive: tuple[int, ...], states: FittingSets) -> list[_Move]:
        """One transition for each version alive that may be made again in ``stage``."""
        moves = []
        for bit, content in reversed(list(enumerate(alive))):
            task = self.instance.tasks[self.instance.contents[content].producer or 0]
            tracked_reads = [c for c in task.rerun_reads if c in self.tracked]
            if task.number not in self.worth or stage > task.last_rerun_stage:
                continue
            if not set(tracked_reads) <= set(alive):
                continue
            wanted = _mask(alive, tracked_reads)
            begin, end = states.without[bit], states.having[bit]
            room = self.budget - self._bytes_beside(task.rerun_reads, task)
            able = ((states.masks[begin] & wanted) == wanted) & (states.bytes[begin] <= room)
            units = np.full(self.ways, self._units(task.cost.joules), dtype=np.int32)
            moves.append(_Move(begin[able], end[able], units, -1))
        return moves

    def _page_ins(self, alive: tuple[int, ...], states: FittingSets) -> list[_Move]:
        """One transition for each version alive that may be paged in, with its page-out charge."""
        moves = []
        for bit, number in enumerate(alive):
            page_in, page_out = self.instance.contents[number].page_in, self.page_out.get(number)
            if page_in is None or page_out is None:
                continue
            fare, group = np.full(self.ways, page_out // 2, dtype=np.int32), self.group.get(number, -1)
            fare[[0, *range(1, self.ways, _WAYS)]] = page_out
            if group >= 0:
                fare[1 + _WAYS * group : 1 + _WAYS * (group + 1)] = 0
            units = fare + np.int32(self._units(page_in.joules))
            moves.append(_Move(states.without[bit], states.having[bit], units, group))
        return moves


def _mask(alive: tuple[int, ...], contents: Sequence[int]) -> int:
    return sum(1 << alive.index(c) for c in contents if c in alive)


def fitting_sets(sizes: Sequence[int], budget: int, most: int = 1 << 40) -> FittingSets | None:
    """Every set of ``sizes`` that fits, by doubling: the sets without a bit, then those with it.

    ``None`` where there are more than ``most``.
    """
    masks, total = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    without: list[Positions] = []
    having: list[Positions] = []
    for bit, size in enumerate(sizes):
        fits = total + size <= budget
        position = (len(masks) + np.cumsum(fits) - 1).astype(np.int32)
        for other in range(bit):
            both = fits[having[other]]
            lacking, there = without[other][both], having[other][both]
            without[other] = np.concatenate([without[other], position[lacking]])
            having[other] = np.concatenate([having[other], position[there]])
        old = np.flatnonzero(fits).astype(np.int32)
        if len(masks) + len(old) > most:
            return None
        without.append(old)
        having.append(position[old])
        masks = np.concatenate([masks, masks[old] | (1 << bit)])
        total = np.concatenate([total, total[old] + size])
    return FittingSets(masks, total, tuple(without), tuple(having))
