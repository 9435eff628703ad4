"""Dynamic program over all sets of contents that fit into RAM, for given sets of copies in storage.

Where RAM is tight the sets R of tracked contents that fit are few enough to list, stage by stage. Given the
set F of contents whose page-out is paid for, the least joules D(F) of reruns and page-ins from the start of
a step to its end are shortest paths over (stage, R), computed backwards (Bellman 1957). Transitions: free a
content; page one of F in; a rerun; the first run of the stage's op, which leads to the next stage. Several F
are computed at once, as columns.

Contents that are not tracked are taken to be in RAM, in no bytes except beside a run that reads or makes
them, but for *residents* (`poet.solvers.bounds.tracked.Resident`). A column says how many joules page-outs of
residents take; no plan that is looked for spends the joules at which costs are capped, so sets that fit
beside less are not listed.

So out(S) + D(S) is at most the overhead of a schedule that pages in the contents of S and no others, out(S)
being the joules of their page-outs, and of a page-in of each resident among them, which D does not count:
nothing else brings it back to the run that reads it. And D(S) >= D(F) for S within F, since F allows more.
Costs are rounded down to whole units, which only lowers D.

Of a tensor whose home is chosen, the last content in F says that it may be in storage between steps (see
`poet.solvers.bounds.tracked.Home`): else it must be in RAM at both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet.solvers.bounds.stages import CAP, Arcs, FittingSets, Masks, Move, Pairs, Places, Stage, Step, Values
from poet.solvers.bounds.tracked import ResidentBytes, Run, Tracked, bits

_MOST_UNASKED = 4_000_000  # transitions, times columns, between two questions whether to stop


class TooLarge(Exception):
    """More sets, or transitions between them, than were allowed."""


class Stopped(Exception):
    """By who asked for it."""


class RamProgram:
    """The sets and transitions of what is tracked.

    Args:
        of: what is tracked.
        most_joules: at which costs are capped.
        most_arcs: transitions in all, at most.
        finished: asked for each stage; whether to stop.

    Attributes:
        arcs: transitions in all.
        worked: transitions looked at so far, times columns.
        stages: sets and transitions of each.
        residents: what they take.

    Raises:
        TooLarge: there are more.
        Stopped: where ``finished``, here and in the methods.
    """

    def __init__(
        self, of: Tracked, *, most_joules: float, most_arcs: int, finished: Callable[[], bool]
    ) -> None:
        self.of, self.most_joules, self.joules_per_unit = of, most_joules, most_joules / CAP
        self.arcs = self.worked = self._unasked = 0
        self._finished = finished
        self.residents = ResidentBytes(of.residents, of.end, most_joules)
        self._local = [list(bits(alive)) for alive in of.alive]
        fitting = [self._sets_that_fit(number, most_arcs) for number in range(of.end + 1)]
        self.stages = list[Stage]()
        for number, sets in enumerate(fitting):
            if finished():
                raise Stopped
            first = self._first(number, sets, fitting[number + 1] if number < of.end else None)
            stage = Stage(sets, *self._pairs_and_moves(number, sets), first)
            self._count(stage.arcs - sum(map(len, sets.without)) + len(first.begin), most_arcs)
            self.stages.append(stage)
        self._page_ins = [self._page_in_rows(number) for number in range(of.end + 1)]

    def _sets_that_fit(self, number: int, most_arcs: int) -> FittingSets:
        local = self._local[number]
        room_bytes = self.of.budget_bytes - self.residents.least(number, None)
        sets = FittingSets.of([self.of.bytes[c] for c in local], room_bytes, most_arcs // (len(local) + 1))
        if sets is None:
            raise TooLarge
        self._count(sum(map(len, sets.without)), most_arcs)
        return sets

    def _count(self, arcs: int, most_arcs: int) -> None:
        self.arcs += arcs
        if self.arcs > most_arcs:
            raise TooLarge

    @property
    def most_sets(self) -> int:
        """Sets of the stage with most."""
        return max(len(stage.masks) for stage in self.stages)

    def contents_of(self, number: int, place: int) -> frozenset[int]:
        """Of a set of a stage."""
        local, mask = self._local[number], int(self.stages[number].masks[place])
        return frozenset(self.of.contents[local[bit]].number for bit in bits(mask))

    def least(
        self,
        free: Sequence[int],
        steps: Sequence[int | None] | None = None,
        tables: list[tuple[Values, Values]] | None = None,
    ) -> list[float]:
        """Per set of copies (as bits), the least joules of a step; the cap where they are not less.

        Args:
            free: tracked contents whose page-outs are paid for.
            steps: per set, residents' page-outs take less than a step more than that; ``None``: any joules.
            tables: to which the values of each stage are added and the units of its moves, the last stage's
                first.
        """
        steps = (None,) * len(free) if steps is None else steps
        prices, values = self._page_in_units(free), self._ended(free)
        for number in range(self.of.end, -1, -1):
            needed = self.resident_bytes(number, steps)
            if number < self.of.end:
                values = self.stages[number].before_first_run(values, needed)
            units = self._relax(number, values, prices, needed)
            if tables is not None:
                tables.append((values, units))
        starts = [self.start_place(one) for one in free]
        found = (CAP if place is None else values[place, column] for column, place in enumerate(starts))
        return [float(value) * self.joules_per_unit for value in found]

    def resident_bytes(self, number: int, steps: Sequence[int | None]) -> Masks:
        """In a stage, per column."""
        return np.array([self.residents.least(number, some) for some in steps], dtype=np.int64)

    def start_place(self, free: int) -> int | None:
        """Of the set with which a step begins, for a set of copies; ``None`` where that does not fit."""
        at_home = sum(1 << first for first, last, _ in self.of.homes if not free >> last & 1)
        masks, mask = self.stages[0].masks, self._mask(0, (self.of.starts | at_home) & self.of.alive[0])
        place = len(masks) if mask is None else int(np.searchsorted(masks, mask))
        return place if place < len(masks) and masks[place] == mask else None

    def _ended(self, free: Sequence[int]) -> Values:
        number, masks = self.of.end, self.stages[self.of.end].masks
        values = np.full((len(masks), len(free)), CAP, dtype=np.int32)
        for column, one in enumerate(free):
            at_home = sum(1 << last for _, last, _ in self.of.homes if not one >> last & 1)
            wanted = self._mask(number, self.of.ends | at_home)
            if wanted is not None:
                values[(masks & wanted) == wanted, column] = 0
        return values

    def _relax(self, number: int, values: Values, prices: Values, needed: Masks) -> Values:
        """Lower ``values``, in place, to the least over any sequence of transitions; units of the moves."""
        stage, columns = self.stages[number], values.shape[1]
        self._unasked += stage.arcs * columns
        if self._unasked >= _MOST_UNASKED:
            self._unasked = 0
            if self._finished():
                raise Stopped
        units = np.repeat(np.array([[m.units] for m in stage.moves], np.int32).reshape(-1, 1), columns, 1)
        places, rows = self._page_ins[number]
        units[places] = prices[rows]
        self.worked += stage.relax(values, units, needed) * stage.arcs * columns
        return units

    def _page_in_units(self, free: Sequence[int]) -> Values:
        """Of tracked contents, per set of copies; `CAP` where one has no copy; then of their early page-ins,
        which take nothing where a tensor is in storage between steps.
        """
        of, many = self.of, len(self.of.contents)
        found = np.full((2 * many, len(free)), CAP, dtype=np.int32)
        lasts = {first: last for first, last, _ in of.homes}
        for content, joules in enumerate(of.page_in):
            last = lasts.get(content)
            copies = 1 << content | (0 if last is None else 1 << last)
            # what no op updates has a copy wherever it is at home
            paid = [last == content or bool(one & copies) for one in free]
            found[content, paid] = self._units(joules)
        for first, last, _ in of.homes:
            in_storage = [bool(one >> last & 1) for one in free]
            found[many + first] = found[first]
            if of.page_in[first] < np.inf:
                found[many + first, in_storage] = 0
        return found

    def _page_in_rows(self, number: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Of a stage, which moves are page-ins, and their rows (`_page_in_units`)."""
        first_use, many = {first: use for first, _, use in self.of.homes}, len(self.of.contents)
        page_ins = [
            (place, move.content + (many if number <= first_use.get(move.content, -1) else 0))
            for place, move in enumerate(self.stages[number].moves)
            if move.content is not None
        ]
        table = np.array(page_ins, dtype=np.intp).reshape(len(page_ins), 2)
        return table[:, 0], table[:, 1]

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
            units, room_bytes = self._units(run.joules), self._room(number, run)
            moves.append(
                Move(pairs, units, run.task, needs=needs, most_bytes=most_bytes, room_bytes=room_bytes)
            )
        for bit, content in enumerate(local):
            if of.page_in[content] < np.inf:
                room_bytes = of.budget_bytes - of.bytes[content]
                units = self._units(of.page_in[content])
                moves.append(Move(of_bit[bit], units, content=content, room_bytes=room_bytes))
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

    def _first(self, number: int, sets: FittingSets, following: FittingSets | None) -> Arcs:
        """The first run of the stage's op."""
        nothing = np.zeros(0, dtype=np.int32)
        nowhere = Arcs(nothing, nothing, np.zeros(0, dtype=np.int64))
        if following is None:
            return nowhere
        run, alive = self.of.first[number], self.of.alive[number + 1]
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
        slack = self._room(number, run) - sets.bytes[begin]
        return Arcs(begin[there].astype(np.int32), end[there].astype(np.int32), slack[there])

    def _room(self, number: int, run: Run) -> int:
        """Bytes beside a run in a stage for what is tracked and for residents, its own among them."""
        there = self.residents.at(number)
        own_bytes = sum(there[c].bytes for c in run.small if c in there)
        return self.of.budget_bytes - run.beside_bytes + own_bytes

    def _mask(self, number: int, contents: int) -> int | None:
        """A set in the bits of its stage; ``None`` where a member does not exist there."""
        if contents & ~self.of.alive[number]:
            return None
        place = {content: bit for bit, content in enumerate(self._local[number])}
        return sum(1 << place[content] for content in bits(contents))

    def _units(self, joules: float) -> int:
        return int(min(joules / self.joules_per_unit, CAP))


class Moved(NamedTuple):
    """A run (the stage's first one, where it is the stage's op) or, without a task, the page-in of a content.

    ``room_bytes``: left in RAM beside ``held``, the tracked contents that are there before it, and residents
    and what the run reads and makes.
    """

    stage: int
    task: int | None
    content: int | None
    room_bytes: int
    held: frozenset[int]


@dataclass(frozen=True, slots=True)
class CheapestStep:
    """A step of least joules for some set of copies. It counts in RAM what is tracked alone.

    Attributes:
        reruns: per stage, in order.
        moves: all but frees, in order.
    """

    reruns: dict[int, tuple[int, ...]]
    moves: tuple[Moved, ...]


def cheapest_step(program: RamProgram, free: int, steps: int | None) -> CheapestStep | None:
    """Of a set of copies, as `RamProgram.least` takes it; ``None``: none is below the cap."""
    tables = list[tuple[Values, Values]]()
    program.least([free], [steps], tables)
    tables.reverse()
    place = program.start_place(free)
    if place is None or tables[0][0][place, 0] >= CAP:
        return None
    moves, reruns = list[Moved](), dict[int, tuple[int, ...]]()
    for number, stage in enumerate(program.stages):
        values, units = tables[number]
        needed = program.resident_bytes(number, [steps])
        if number < program.of.end:
            is_over = stage.first_runs(values, tables[number + 1][0], int(needed[0]))
        else:
            is_over = values[:, 0] == 0

        def moved(step: Step, place: int, task: int | None, content: int | None) -> None:
            held = program.contents_of(number, place)  # noqa: B023
            moves.append(Moved(number, task, content, step.slack - int(needed[0]), held))  # noqa: B023

        while not is_over[place]:
            steps_taken = stage.way(values, units, needed, place, is_over)
            if not steps_taken:
                return None
            for step in steps_taken:
                move = stage.moves[step.move]
                if move.task is not None:
                    reruns[number] = (*reruns.get(number, ()), move.task)
                if not move.frees:
                    content = None if move.content is None else program.of.contents[move.content].number
                    moved(step, place, move.task, content)
                place = step.end
        if number < program.of.end and (first := stage.first_run(place)) is not None:
            moved(first, place, number, None)
            place = first.end
    return CheapestStep(reruns, tuple(moves))
