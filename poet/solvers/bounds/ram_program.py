"""Dynamic program over all sets of contents that fit into RAM, for given sets of copies in storage.

Where RAM is tight the sets R of followed contents that fit are few enough to list, stage by stage. Given the
set F of contents whose page-out is paid for, the least joules D(F) of reruns and page-ins from the start of
a step to its end are shortest paths over (stage, R), computed backwards (Bellman 1957). Transitions: free a
content; page one of F in; a rerun; the first run of the stage's op, which leads to the next stage. Several F
are computed at once, as columns.

Contents below a threshold are taken to be in RAM, in no bytes except beside a run that reads or makes them,
but for *residents*: what no rerun makes, such as weights, stays in RAM from its birth to the last first run
that reads it, unless it is paged. What page-outs of so many joules can free at most of those that are there
in a stage is a knapsack; the rest takes RAM all the time. A column says how many joules these are; no plan
that is looked for spends the joules at which costs are capped, so sets that fit beside less are not listed.

So out(S) + D(S) is at most the overhead of a schedule that pages in the contents of S and no others, out(S)
being the joules of their page-outs, and of a page-in of each resident among them, which D does not count:
nothing else brings it back to the run that reads it. And D(S) >= D(F) for S within F, since F allows more.
Costs are rounded down to whole units, which only lowers D.

Of a tensor whose home is chosen, the last content in F says that it may be at home in storage (see
`poet.solvers.bounds.residents.Home`): else it must be in RAM at both ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet.solvers.bounds.fitting_sets import FittingSets, fitting_sets
from poet.solvers.bounds.followed import Followed, Run, bits
from poet.solvers.bounds.joined_stages import joined_stages
from poet.solvers.bounds.page_in_units import page_in_row, page_in_units
from poet.solvers.bounds.ram_stages import CAP, Arcs, Asked, Masks, Move, Pairs, Places, Stage, Values
from poet.solvers.bounds.resident_bytes import ResidentBytes

_MOST_UNASKED = 4_000_000  # transitions, times columns, between two questions whether to stop


class _Asking(NamedTuple):
    """Of a stage's moves: units, but for page-ins; which these are, and their rows (`page_in_row`); and which
    read listed residents.
    """

    units: Values
    page_ins: npt.NDArray[np.intp]
    rows: npt.NDArray[np.intp]
    reading: tuple[int, ...]


class TooLarge(Exception):
    """More sets, or transitions between them, than were allowed."""


class Stopped(Exception):
    """By who asked for it."""


class RamProgram:
    """The sets and transitions of what is followed.

    Args:
        of: what is followed.
        most_joules: at which costs are capped.
        most_arcs: transitions in all, at most.
        parts: units of the knapsacks in the joules of the cap, and in a step (`count_in_steps`).
        finished: asked for each stage; whether to stop.

    Attributes:
        arcs: transitions in all.
        worked: transitions looked at so far, times columns.
        stages: sets and transitions of each.
        residents: what they take.
        passed: stages that a later one stands for, whose sets and values they have.

    Raises:
        TooLarge: there are more.
        Stopped: where ``finished``, here and in the methods.
    """

    def __init__(
        self,
        of: Followed,
        *,
        most_joules: float,
        most_arcs: int,
        parts: tuple[int, int],
        finished: Callable[[], bool],
    ) -> None:
        self.of, self.joules_per_unit = of, most_joules / CAP
        self.arcs = self.worked = 0
        self._finished = finished
        self.most_joules = most_joules
        self._asked = dict[int, Asked]()  # by stage, the last time
        self._page_ins = np.zeros((0, 0), dtype=np.int32)
        self._unasked = 0
        joined = joined_stages(of)
        self.passed = frozenset(number for begin, last in joined for number in range(begin, last))
        since = self._since = {last: begin for begin, last in joined}
        self.residents = ResidentBytes(of, since, most_joules, parts)
        self._local = [list(bits(alive)) for alive in of.alive]
        fitting = deque[FittingSets]()
        for _, number in joined:
            local = self._local[number]
            room = of.budget_bytes - self.residents.unlisted(number, None)
            sets = fitting_sets([of.bytes[c] for c in local], room, most_arcs // (len(local) + 1))
            if sets is None:
                raise TooLarge
            self._count(sum(map(len, sets.without)), most_arcs)
            fitting.append(sets)
        self.stages = list[Stage]()
        for begin, number in joined:
            if finished():
                raise Stopped
            sets = fitting.popleft()  # they are as large as the stage
            first, own = self._first(number, sets, fitting[0] if fitting else None)
            stage = Stage(sets, *self._pairs_and_moves(number, sets), first, own)
            self._count(stage.arcs - sum(map(len, sets.without)) + len(first.begin), most_arcs)
            self.stages += [stage] * (number - begin + 1)
        self._asking = {n: self._ask(n) for n in range(len(self.stages)) if n not in self.passed}

    def _count(self, arcs: int, most_arcs: int) -> None:
        self.arcs += arcs
        if self.arcs > most_arcs:
            raise TooLarge

    def sets_at(self, number: int) -> int:
        """How many sets fit when a stage begins."""
        return len(self.stages[number].masks)

    def contents_of(self, number: int, place: int) -> frozenset[int]:
        """Of a set of a stage."""
        local, mask = self._local[number], int(self.stages[number].masks[place])
        return frozenset(self.of.followed[local[bit]].number for bit in bits(mask))

    def bytes_of(self, contents: Iterable[int]) -> int:
        """Of RAM, that they take."""
        return sum(self.of.size_of[content] for content in contents)

    def first_room(self, number: int) -> tuple[tuple[int, ...], int]:
        """Residents that a stage's first run reads; bytes beside it for residents and what is followed."""
        run = self._first_run(number)
        own = self._own(number, run)
        return own, self._room(run, own)

    def count_in_steps(self, joules: float, most: int, listed: Iterable[int] = ()) -> None:
        """Count joules of residents' page-outs in steps of so many, up to ``most`` of them.

        ``listed``: residents that are not counted so: each column says which of them are paid for.
        """
        self.residents.count_in_steps(joules, most, listed)
        self._asking = {n: self._ask(n) for n in range(len(self.stages)) if n not in self.passed}

    @property
    def listed(self) -> tuple[int, ...]:
        """Residents of which each column says whether they are paid for."""
        return self.residents.listed

    def least(
        self,
        free: Sequence[int],
        steps: Sequence[int | None] | None = None,
        paid: Sequence[frozenset[int]] | None = None,
        tables: list[Values] | None = None,
        spared: Sequence[int] | None = None,
    ) -> list[float]:
        """Per set of copies (as bits), the least joules of a step; the cap where they are not less.

        Args:
            free: followed contents whose page-outs are paid for.
            steps: per set, residents' page-outs take less than a step more than that; ``None``: any joules.
            paid: per set, the listed residents whose page-outs are paid for; without it, all of them.
            tables: to which the values of each stage are added, the last stage's first.
            spared: per set, bytes that residents take less in each stage, as far as they can be paid for.
        """
        self.residents.pay(
            steps if steps is not None else (None,) * len(free),
            paid if paid is not None else (frozenset(self.listed),) * len(free),
            spared,
        )
        self._page_ins = page_in_units(self.of, free, self._units)
        values = self._ended(free)
        for number in range(self.of.end, -1, -1):
            if number not in self.passed:
                if number < self.of.end:
                    values = self._before_first_run(number, values)
                self._relax(number, values)
            if tables is not None:
                tables.append(values)
        starts = [self.start_place(one) for one in free]
        found = (CAP if place is None else values[place, column] for column, place in enumerate(starts))
        return [float(value) * self.joules_per_unit for value in found]

    def start_place(self, free: int) -> int | None:
        """Of the set with which a step begins, for a set of copies; ``None`` where that does not fit."""
        at_home = sum(1 << first for first, last, _ in self.of.homes if not free >> last & 1)
        return self._place(0, (self.of.starts | at_home) & self.of.alive[0])

    def _ended(self, free: Sequence[int]) -> Values:
        number, masks = self.of.end, self.stages[self.of.end].masks
        values = np.full((len(masks), len(free)), CAP, dtype=np.int32)
        for column, one in enumerate(free):
            at_home = sum(1 << last for _, last, _ in self.of.homes if not one >> last & 1)
            wanted = self._mask(number, (self.of.ends | at_home) & ~self.of.hidden[number])
            if wanted is not None:
                values[(masks & wanted) == wanted, column] = 0
        return values

    def _before_first_run(self, number: int, following: Values) -> Values:
        stage = self.stages[number]
        return stage.before_first_run(following, self.residents.beside(number, stage.own))

    def asked(self, number: int) -> Asked:
        """Of the moves of a stage, in the columns that `least` was asked for last."""
        return self._asked[number]

    def _relax(self, number: int, values: Values) -> None:
        """Lower ``values``, in place, to the least over any sequence of transitions within the stage."""
        stage, columns = self.stages[number], values.shape[1]
        self._look_around(stage.arcs * columns)
        asking = self._asking[number]
        units = np.repeat(asking.units, columns, axis=1)
        units[asking.page_ins] = self._page_ins[asking.rows]
        needed = np.repeat(self.residents.beside(number, ())[None, :], len(units), axis=0)
        for place in asking.reading:
            needed[place] = self.residents.beside(number, stage.moves[place].own)
        self._asked[number] = asked = Asked(units, needed)
        self.worked += stage.relax(values, asked) * stage.arcs * columns

    def _look_around(self, transitions: int) -> None:
        """Whether to stop, once in so many transitions."""
        self._unasked += transitions
        if self._unasked >= _MOST_UNASKED:
            self._unasked = 0
            if self._finished():
                raise Stopped

    def _ask(self, number: int) -> _Asking:
        """What stays the same of a stage's moves."""
        moves, since = self.stages[number].moves, self._since.get(number, number)
        page_ins = [place for place, move in enumerate(moves) if move.content is not None]
        rows = [page_in_row(self.of, since, moves[place].content or 0) for place in page_ins]
        listed = set(self.listed)
        return _Asking(
            np.array([[move.units] for move in moves], dtype=np.int32).reshape(len(moves), 1),
            np.array(page_ins, dtype=np.intp),
            np.array(rows, dtype=np.intp),
            tuple(place for place, move in enumerate(moves) if not listed.isdisjoint(move.own)),
        )

    def _pairs_and_moves(self, number: int, sets: FittingSets) -> tuple[Pairs, list[Move]]:
        """Reruns, last tasks first, then page-ins and frees, of a stage."""
        of, alive, local = self.of, self.of.alive[number], self._local[number]
        ends = np.cumsum([0, *map(len, sets.without)]).tolist()
        of_bit = [range(*both) for both in pairwise(ends)]
        low, high, moves = [*sets.without], [*sets.having], list[Move]()
        for one in reversed(of.again):
            run = of.in_stage(one, number)
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
            own = self._own(number, run)
            moves.append(
                Move(
                    pairs,
                    self._units(run.joules),
                    task=run.task,
                    own=own,
                    needs=needs,
                    most_bytes=most_bytes,
                    room_bytes=self._room(run, own),
                )
            )
        for bit, content in enumerate(local):
            if of.page_in[content] < np.inf:
                room_bytes = of.budget_bytes - of.bytes[content]
                units = self._units(of.page_in[content])
                moves.append(Move(of_bit[bit], units, content=content, room_bytes=room_bytes))
        begun = range(self._since.get(number, number), number + 1)
        moves += [
            Move(of_bit[bit], appears=True)
            for bit, content in enumerate(local)
            if any(of.appear[stage] >> content & 1 for stage in begun)
        ]
        moves += map(Move, of_bit)
        nothing = np.zeros(0, dtype=np.int32)
        return Pairs(np.concatenate([nothing, *low]), np.concatenate([nothing, *high])), moves

    def _after(self, sets: FittingSets, needs: int, makes: int, most_bytes: int) -> tuple[Places, Masks]:
        """The sets in which a rerun can begin without having all that it makes, and what they become."""
        able = ((sets.masks & needs) == needs) & ((sets.masks & makes) != makes) & (sets.bytes <= most_bytes)
        begin = np.flatnonzero(able).astype(np.int32)
        after = sets.masks[begin] | makes
        end = np.minimum(np.searchsorted(sets.masks, after), len(sets.masks) - 1)
        there = sets.masks[end] == after  # else it leaves no room for the residents
        return begin[there], after[there]

    def _first(
        self, number: int, sets: FittingSets, following: FittingSets | None
    ) -> tuple[Arcs, tuple[int, ...]]:
        """The first run of the stage's op, and residents that it reads."""
        nothing = np.zeros(0, dtype=np.int32)
        nowhere = Arcs(nothing, nothing, np.zeros(0, dtype=np.int64)), ()
        if following is None:
            return nowhere
        run, alive = self._first_run(number), self.of.alive[number + 1]
        needs = self._mask(number, run.needs)
        if needs is None:
            return nowhere
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
        own, room_bytes = self.first_room(number)
        slack = room_bytes - sets.bytes[begin]
        return Arcs(begin[there].astype(np.int32), end[there].astype(np.int32), slack[there]), own

    def _first_run(self, number: int) -> Run:
        return self.of.in_stage(self.of.first[number], number)

    def _own(self, number: int, run: Run) -> tuple[int, ...]:
        """Residents that a run in a stage reads."""
        return tuple(c for c in run.small if c in self.residents.at(number))

    def _room(self, run: Run, own: tuple[int, ...]) -> int:
        """Bytes beside a run for what is followed and for residents, its own among them."""
        return self.of.budget_bytes - run.beside_bytes + sum(self.of.residents[c].bytes for c in own)

    def _place(self, number: int, contents: int) -> int | None:
        """Of a set among those of its stage; ``None`` where it does not fit."""
        masks, mask = self.stages[number].masks, self._mask(number, contents)
        if mask is None:
            return None
        place = int(np.searchsorted(masks, mask))
        return place if place < len(masks) and masks[place] == mask else None

    def _mask(self, number: int, contents: int) -> int | None:
        """A set in the bits of its stage; ``None`` where a member does not exist there."""
        if contents & ~self.of.alive[number]:
            return None
        place = {content: bit for bit, content in enumerate(self._local[number])}
        return sum(1 << place[content] for content in bits(contents))

    def _units(self, joules: float) -> int:
        return int(min(joules / self.joules_per_unit, CAP))
