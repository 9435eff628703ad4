"""Dynamic program over all sets of contents that fit into RAM, for given sets of copies in storage.

Where RAM is tight the sets R of tracked contents that fit are few enough to list, stage by stage. Given the
set F of contents whose page-out is paid for, the least joules D(F) of reruns and page-ins from the start of
a step to its end are shortest paths over (stage, R), computed backwards (Bellman 1957). Transitions: free a
content; page one of F in; a rerun; the first run of the stage's op, which leads to the next stage. Several F
are computed at once, as columns.

Contents that are not tracked are taken to be in RAM, in no bytes except beside a run that reads or makes
them, but for *residents* (`poet.solvers.bounds.tracked.Resident`): what they take in each stage follows from
the joules that their page-outs may take.

So out(S) + D(S) is at most the overhead of a schedule that pages in the contents of S and no others, out(S)
being the joules of their page-outs. And D(S) >= D(F) for S within F, since F allows more. Costs are rounded
down to whole units, which only lowers D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from poet.solvers.bounds.stages import (
    CAP,
    FirstRun,
    FittingSets,
    Masks,
    Move,
    Pairs,
    Places,
    Stage,
    Values,
)  # fmt: skip
from poet.solvers.bounds.tracked import Run, Tracked, bits, least_bytes

_MOST_UNASKED = 4_000_000  # transitions, times columns, between two questions whether to stop
_NOWHERE = np.zeros(0, dtype=np.int32)


class TooLarge(Exception):
    """More sets, or transitions between them, than were allowed."""


class Stopped(Exception):
    """By who asked for it."""


class RamProgram:
    """The sets and transitions of what is tracked.

    Args:
        of: what is tracked.
        most_joules: at which costs are capped; no plan that is looked for spends so much.
        most_arcs: transitions in all, at most.
        finished: asked for each stage; whether to stop.

    Attributes:
        arcs: transitions in all.
        worked: transitions looked at so far, times columns.
        stages: sets and transitions of each.

    Raises:
        TooLarge: there are more.
        Stopped: where ``finished``, here and in the methods.
    """

    def __init__(
        self,
        of: Tracked,
        *,
        most_joules: float,
        most_arcs: int,
        finished: Callable[[], bool],
    ) -> None:
        self.of, self.most_joules, self.joules_per_unit = of, most_joules, most_joules / CAP
        self.arcs = self.worked = self._unasked = 0
        self._finished = finished
        self._local = [list(bits(alive)) for alive in of.alive]
        self._there = [
            {c: one for c, one in of.residents.items() if one.birth < number <= one.last}
            for number in range(of.end + 1)
        ]
        self._held_bytes = dict[tuple[int, float], int]()
        fitting = [self._sets_that_fit(number, most_arcs) for number in range(of.end + 1)]
        self.stages = list[Stage]()
        for number, sets in enumerate(fitting):
            if finished():
                raise Stopped
            first = self._first(number, sets, fitting[number + 1] if number < of.end else None)
            stage = Stage(sets, *self._pairs_and_moves(number, sets), first)
            self._count(stage.arcs - sum(map(len, sets.without)) + len(first.begin), most_arcs)
            self.stages.append(stage)

    def _sets_that_fit(self, number: int, most_arcs: int) -> FittingSets:
        local, room_bytes = (
            self._local[number],
            self.of.budget_bytes - self.held_bytes(number, self.most_joules),
        )
        sets = FittingSets.of([self.of.bytes[c] for c in local], room_bytes, most_arcs // (len(local) + 1))
        if sets is None:
            raise TooLarge
        self._count(sum(map(len, sets.without)), most_arcs)
        return sets

    def _count(self, arcs: int, most_arcs: int) -> None:
        self.arcs += arcs
        if self.arcs > most_arcs:
            raise TooLarge

    def held_bytes(self, number: int, joules: float) -> int:
        """By residents in a stage, where their page-outs take less than ``joules``."""
        if (number, joules) not in self._held_bytes:
            self._held_bytes[number, joules] = least_bytes(self._there[number].values(), joules)
        return self._held_bytes[number, joules]

    def least(self, free: Sequence[int], resident_joules: float) -> list[float]:
        """Per set of copies (as bits), the least joules of a step; the cap where they are not less.

        Page-outs of residents take less than ``resident_joules``, which are not counted.
        """
        prices = np.full((len(self.of.contents), len(free)), CAP, dtype=np.int32)
        for content, joules in enumerate(self.of.page_in):
            prices[content, [bool(one >> content & 1) for one in free]] = self._units(joules)
        last = self.stages[self.of.end].masks
        values = np.full((len(last), len(free)), CAP, dtype=np.int32)
        ends = self._mask(self.of.end, self.of.ends)
        if ends is not None:
            values[(last & ends) == ends] = 0
        for number in range(self.of.end, -1, -1):
            if number < self.of.end:
                held_bytes = self.held_bytes(number, resident_joules)
                values = self.stages[number].before_first_run(values, held_bytes)
            self._relax(number, values, prices, resident_joules)
        masks, mask = self.stages[0].masks, self._mask(0, self.of.starts & self.of.alive[0])
        place = len(masks) if mask is None else int(np.searchsorted(masks, mask))
        if place == len(masks) or masks[place] != mask:
            return [self.most_joules] * len(free)
        return [float(value) * self.joules_per_unit for value in values[place]]

    def _relax(self, number: int, values: Values, prices: Values, resident_joules: float) -> None:
        """Lower ``values``, in place, to the least over any sequence of transitions."""
        stage, columns = self.stages[number], values.shape[1]
        self._unasked += stage.arcs * columns
        if self._unasked >= _MOST_UNASKED:
            self._unasked = 0
            if self._finished():
                raise Stopped
        units = np.empty((len(stage.moves), columns), dtype=np.int32)
        for row, move in enumerate(stage.moves):
            units[row] = move.units if move.content is None else prices[move.content]
        rounds = stage.relax(values, units, self.held_bytes(number, resident_joules))
        self.worked += rounds * stage.arcs * columns

    def _pairs_and_moves(self, number: int, sets: FittingSets) -> tuple[Pairs, list[Move]]:
        """Reruns, last tasks first, then page-ins and frees, of a stage."""
        of, alive, local = self.of, self.of.alive[number], self._local[number]
        ends = np.cumsum([0, *map(len, sets.without)]).tolist()
        of_bit = [range(*both) for both in pairwise(ends)]
        low, high, moves = [*sets.without], [*sets.having], list[Move]()
        for run in reversed(of.again):
            needs = self._mask(number, run.needs)
            if not run.task < number <= run.last_stage or not run.makes & alive or needs is None:
                continue
            makes = self._mask(number, run.makes & alive) or 0
            pairs, most_bytes = of_bit[makes.bit_length() - 1], of.budget_bytes - run.beside_bytes
            if makes.bit_count() > 1:
                begin, after = self._after(sets, needs, makes, most_bytes)
                pairs = range(ends[-1], ends[-1] + len(begin))
                low.append(begin)
                high.append(np.searchsorted(sets.masks, after).astype(np.int32))
                ends.append(pairs.stop)
            units, room_bytes = self._units(run.joules), self._room_bytes(number, run)
            moves.append(Move(pairs, units, needs=needs, most_bytes=most_bytes, room_bytes=room_bytes))
        moves += [
            Move(of_bit[bit], content=content, room_bytes=of.budget_bytes - of.bytes[content])
            for bit, content in enumerate(local)
            if of.page_in[content] < np.inf
        ]
        moves += [Move(pairs, frees=True) for pairs in of_bit]
        return Pairs(np.concatenate([_NOWHERE, *low]), np.concatenate([_NOWHERE, *high])), moves

    def _after(self, sets: FittingSets, needs: int, makes: int, most_bytes: int) -> tuple[Places, Masks]:
        """The sets in which a rerun can begin without having all that it makes, and what they become."""
        able = ((sets.masks & needs) == needs) & ((sets.masks & makes) != makes) & (sets.bytes <= most_bytes)
        begin = np.flatnonzero(able).astype(np.int32)
        after = sets.masks[begin] | makes
        end = np.minimum(np.searchsorted(sets.masks, after), len(sets.masks) - 1)
        there = sets.masks[end] == after  # else it leaves no room for the residents
        return begin[there], after[there]

    def _first(self, number: int, sets: FittingSets, following: FittingSets | None) -> FirstRun:
        """The first run of the stage's op."""
        needs = None if following is None else self._mask(number, self.of.first[number].needs)
        if following is None or needs is None:
            return FirstRun(_NOWHERE, _NOWHERE, np.zeros(0, dtype=np.int64))
        run, alive = self.of.first[number], self.of.alive[number + 1]
        able = ((sets.masks & needs) == needs) & (sets.bytes <= self.of.budget_bytes - run.beside_bytes)
        begin = np.flatnonzero(able)
        place = {content: bit for bit, content in enumerate(self._local[number + 1])}
        made = self._mask(number + 1, (run.makes | run.updates) & alive) or 0
        after = np.full(len(begin), made, dtype=np.int64)
        for bit, content in enumerate(self._local[number]):
            if content in place:
                after |= ((sets.masks[begin] >> bit) & 1) << place[content]
        end = np.searchsorted(following.masks, after)
        there = end < len(following.masks)
        there[there] = following.masks[end[there]] == after[there]
        slack = self._room_bytes(number, run) - sets.bytes[begin[there]]
        return FirstRun(begin[there].astype(np.int32), end[there].astype(np.int32), slack)

    def _room_bytes(self, number: int, run: Run) -> int:
        """Beside a run in a stage, for what is tracked and for residents, its own among them."""
        own_bytes = sum(one.bytes for content, one in self._there[number].items() if content in run.small)
        return self.of.budget_bytes - run.beside_bytes + own_bytes

    def _mask(self, number: int, contents: int) -> int | None:
        """A set in the bits of its stage; ``None`` where a member does not exist there."""
        if contents & ~self.of.alive[number]:
            return None
        place = {content: bit for bit, content in enumerate(self._local[number])}
        return sum(1 << place[content] for content in bits(contents))

    def _units(self, joules: float) -> int:
        return int(min(joules / self.joules_per_unit, CAP))
