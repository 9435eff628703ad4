"""Which contents get a copy in storage, where the sets of copies are too many to list: a master program.

What `poet.solvers.bounds.copies` knows of D, the least joules of a step beside the page-outs, are cuts: let F
be a set of copies with D(F) >= v, and W what is not in it. A set S of copies that has nothing of W lies in F,
so D(S) >= D(F) >= v; any other has D(S) >= D0, D0 being D of all copies. Hence, where y[c] says that c has a
copy and t stands for D,

    t >= v - (v - D0) * sum of y[c] over c in W.

Residents without a copy stay in RAM, and must fit beside each op that runs and what it reads and makes: where
they do not, D is out of reach. Such a row for each op (a knapsack) says at once what many cuts would.

Where residents beside a set must leave so many bytes for D to come into reach, a cut says so at once: such a
copy weighs its bytes there, and a content without one weighs what is needed (`copies_cuts.weighed`).

The master program takes the least of sum of out(c) * y[c] + t over these cuts in whole numbers (a logic-based
Benders decomposition: Hooker and Ottosson 2003; where D is either 0 or the cap, an implicit hitting set:
Moreno-Centeno and Karp 2013). What it takes bounds every schedule that is below the plan. D of its solution S
is computed, and S is grown, copy by copy, while D stays as high: the fewer are left in W, the stronger the
cut. Once D(S) is no more than t, nothing below is left to find at this threshold.

The largest residents are copies like others; the smaller ones are counted in steps of joules, each of which
is a 0/1 column that costs a step and comes after the one before. What a list of sets has found before, where
all residents are counted in steps, holds here as well: such a cut, of fewer than k steps, gives way where
z[k] is 1 as well, which it can be where residents' page-outs take k steps or more.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from poet.solvers.bounds.copies_cuts import Counting, Cut, Cuts, weighed
from poet.solvers.bounds.copies_rows import rows_of_ram, step_bytes
from poet.solvers.bounds.own_sets import OwnSets
from poet.solvers.bounds.ram_paths import CheapestStep, KnownPaths, Paid, cheapest, walked
from poet.solvers.bounds.ram_program import RamProgram
from poet.solvers.bounds.ram_stages import Values
from poet.solvers.bounds.resident_bytes import ROUNDING
from poet.solvers.engines.integers import IntegerProgram
from poet.solvers.engines.small_programs import SmallPrograms
from poet.tuning.bounds import CopiesTuning

_MARGIN = 5e-7
"""Of the joules asked for: what the tolerances of the engine may make a bound too high."""

_UNITS = 1 << 28  # in the joules asked for, as the master program counts them
_STEP_UNITS = 1 << 20  # in the joules of steps of a list
_MOST_PARTS = 64  # that a cut's need is counted in, beside joules

_Row = tuple[tuple[int, ...], tuple[int, ...], int]  # columns, factors, right side of an `IntegerProgram`


class MasterSearch:
    """The sets of copies at one level, by a master program.

    Args:
        program: of the level.
        below_joules: what no set is looked for at or above.
        tuning: how much at once.
        known: by a list or an earlier level: contents without a copy, steps below 0, and then D at least.
        step_joules: of these steps.
        listed_bytes: residents of at least so many are copies like others.
        before: of an earlier level; what it knows holds here, where it counts residents alike.
        programs: that solves the master programs.
        seconds_left: that one may still take.

    Attributes:
        bound_joules: no schedule takes less, beside page-outs that every one makes; by the engine's word.
        known: what is known now.
        cuts: the same, with steps.
        own: sets whose own D is known.
    """

    proven = False

    def __init__(
        self,
        program: RamProgram,
        below_joules: float,
        tuning: CopiesTuning,
        known: Sequence[tuple[frozenset[int], float]],
        *,
        step_joules: float,
        listed_bytes: float,
        before: MasterSearch | None = None,
        programs: SmallPrograms,
        seconds_left: Callable[[], float],
    ) -> None:
        self.program, self.of, self.below, self.tuning = program, program.of, below_joules, tuning
        self.step_joules, self._own_step_joules = step_joules, 0.0
        self.programs, self.seconds_left = programs, seconds_left
        of = self.of
        self.listed = [
            c
            for c, one in of.residents.items()
            if one.away_joules is not None and one.bytes >= listed_bytes and one.away_joules < below_joules
        ]
        self._joules = self._columns_of_copies()
        sets = [program.sets_at(number) for number in range(of.end + 1) if number not in program.passed]
        largest, self._sets = max(sets), sum(sets)
        self._at_once = max(1, min(tuning.columns, tuning.most_values // largest))
        self._ram_rows = rows_of_ram(program, self._joules)
        self._tried, self._rounds = set[frozenset[int]](), 0
        self._paths = KnownPaths(program, self._joules, tuning.paths_at_once)
        self._importance = dict.fromkeys(self._joules, 0.0)
        rest = {c: one for c, one in of.residents.items() if c not in self.listed}
        self.cuts = Cuts(Counting(of, rest, self._own_step_joules, step_joules))
        self.known = list[tuple[frozenset[int], float]]()
        self.own = OwnSets[frozenset[int]]()
        (self._least_joules,) = self._walked([frozenset(self._joules)])
        self.bound_joules = self._least_joules
        for without, joules in known:
            fewest = min((-number for number in without if number < 0), default=0)
            self._learn(self.of.by_resident(c for c in without if c >= 0), joules, fewest)
        for cut in before.cuts.at(self.cuts.counting) if before is not None else ():
            self._take(cut)

    def round(self) -> bool:
        """Solve the master program and learn of its solution; false once nothing below is left to find."""
        open_share = 1.0 - self.bound_joules / self.below
        copies = self._solved(self.tuning.gap_share * open_share)
        if copies in self.own:  # another one may be as cheap, or cheaper
            copies = self._solved(0.0)
        if copies is None or copies in self.own or self.bound_joules >= self.below * (1.0 - _MARGIN):
            return False
        self._rounds += 1
        if self._rounds % 2 and self._alike(copies):  # else alike ones could be all there is for long
            return True
        (joules,) = self._walked([copies])
        self.own[copies] = self._page_outs(copies) + joules
        self._learn(frozenset(self._joules) - copies, joules)
        self._cut_off(copies, joules)
        return True

    def cheapest(self) -> CheapestStep | None:
        """The cheapest step that is known, if there is one below what is looked for."""
        copies = self.own.cheapest(self.below)
        if copies is None:
            return None
        path = cheapest(self.program, self._column(copies))
        contents = frozenset(c for copy in copies if copy >= 0 for c in self.of.stands_for(copy))
        return None if path is None else CheapestStep(path, contents, self.own[copies])

    def _columns_of_copies(self) -> dict[int, float]:
        """Joules of each copy by content, and of steps, below 0; sets how the program counts residents."""
        of, below = self.of, self.below
        followed = {
            content.number: of.page_out[place]
            for place, content in enumerate(of.followed)
            if math.isfinite(of.page_in[place]) and of.page_out[place] > 0.0
        }
        listed = {c: of.residents[c].away_joules or 0.0 for c in self.listed}
        rest = [
            one.away_joules
            for c, one in of.residents.items()
            if one.away_joules is not None and c not in listed
        ]
        step, steps = 0.0, 0
        if rest and self.tuning.most_residents:
            step = max(min(rest), below / self.tuning.most_residents)
            steps = min(self.tuning.most_residents, int(min(sum(rest), below) / step))
        self._own_step_joules = step
        self.program.count_in_steps(step, steps, self.listed)
        return followed | listed | {-1 - number: step * (1.0 - 2.0 * ROUNDING) for number in range(steps)}

    def _solved(self, gap_share: float) -> frozenset[int] | None:
        """Copies that the cuts allow, the cheapest but for such a share of the joules asked for.

        Raises the bound to what copies and D take at least; ``None``: there is nothing below.
        """
        copies = list(self._joules)
        place = {copy: number for number, copy in enumerate(copies)}
        rest = len(copies)
        largest, costs = [1] * rest + [_UNITS], [self._units(self._joules[copy]) for copy in copies] + [1]
        rows: list[_Row] = [((rest,), (-1,), -self._units(self._least_joules))]
        rows += [((place[c], place[c + 1]), (1, -1), 0) for c in copies if c < -1]
        for freed, over in self._ram_rows:
            rows.append((tuple(place[c] for c, _ in freed), tuple(-size for _, size in freed), -over))
        able = dict[int, list[int]]()
        for steps in {cut.steps for cut in self.cuts if cut.steps}:
            able[steps] = [len(largest)]
            rows.append(self._so_many(steps, len(largest), place))
            largest, costs = [*largest, 1], [*costs, 0]
        for cut in self.cuts:
            weighs = {place[c]: weight for c, weight in sorted(cut.weights.items())}
            weighs |= dict.fromkeys(able.get(cut.steps, ()), cut.need)
            if cut.joules >= self.below:
                rows.append((tuple(weighs), tuple(-weight for weight in weighs.values()), -cut.need))
            else:
                parts = min(cut.need, _MOST_PARTS)
                reached = self._units(cut.joules)
                more = self._units(self._least_joules) - reached
                factors = (-(-weight * parts // cut.need) * more for weight in weighs.values())
                rows.append(((*weighs, rest), (*factors, -parts), -parts * reached))
        paid = tuple((column, cost) for column, cost in enumerate(costs) if cost)
        program = IntegerProgram(tuple(largest), paid, tuple(rows), _UNITS / self.below, 0.0)
        seconds = min(self.tuning.master_seconds, self.seconds_left())
        answer = self.programs.solve(program, seconds, gap_units=int(gap_share * _UNITS))
        bound = program.joules(answer.bound_units) - _MARGIN * self.below
        self.bound_joules = max(self.bound_joules, min(bound, self.below))
        return None if answer.values is None else frozenset(c for c in copies if answer.values[place[c]])

    def _units(self, joules: float) -> int:
        """As the master program counts them, rounded down: no factor of its rows cuts off what is allowed."""
        return math.floor(min(joules / self.below, 1.0) * _UNITS)

    def _so_many(self, steps: int, able: int, place: dict[int, int]) -> _Row:
        """Of the column ``able``: it can be 1 where residents' page-outs take so many steps of the list."""
        unit = steps * self.step_joules * (1.0 - ROUNDING)
        own = sorted((c for c in self._joules if c < 0), reverse=True)
        joules = {place[c]: self.of.residents[c].away_joules or 0.0 for c in self.listed}
        joules |= {place[c]: self._own_step_joules for c in own[:-1]}
        joules |= {place[c]: self.below + self._own_step_joules for c in own[-1:]}  # or more
        factors = (math.floor(-_STEP_UNITS * some / unit) for some in joules.values())
        right = math.ceil(_STEP_UNITS * self._own_step_joules / unit)
        return (able, *joules), (_STEP_UNITS, *factors), right

    def _alike(self, copies: frozenset[int]) -> bool:
        """Whether a cut like a known one, with others of the same sizes for ``copies``, cuts them off.

        All such cuts that one look at D can tell are learnt.
        """
        elsewhere: dict[tuple[bool, int], list[int]] = {}
        for c in sorted(self._joules.keys() - copies):
            elsewhere.setdefault(self._kind(c), []).append(c)
        likely = dict[frozenset[int], float]()
        for cut in reversed(self.cuts):
            have = cut.weights.keys() & copies
            if cut.steps or not cut.is_plain or len(have) > 2 or cut.joules < 0.999 * self.below:
                continue
            kinds = [elsewhere.get(self._kind(c), ()) for c in sorted(have)]
            for others in itertools.islice(itertools.product(*kinds), 16):
                other = frozenset(cut.weights.keys() - have).union(others)
                if len(other) == len(cut.weights):
                    likely.setdefault(other, cut.joules)
            if len(likely) >= 4 * self._at_once:
                break
        tried = [one for one in likely if one not in self._tried][: self._at_once]
        self._tried.update(tried)
        if not tried:
            return False
        everything = frozenset(self._joules)
        found = False
        for without, joules in zip(tried, self._least([everything - one for one in tried]), strict=True):
            if joules >= likely[without] * (1.0 - 1e-9):
                self._learn(without, joules)
                found = True
        return found

    def _kind(self, copy: int) -> tuple[bool, int]:
        """Those of one kind may well stand for one another: what it is, and its bytes."""
        return copy in self.of.residents, self._bytes(copy)

    def _cut_off(self, copies: frozenset[int], joules: float) -> None:
        """Learn that ``copies``, and then that these and the cheapest that was in the way, and so on, are as
        dear as the best set known: cuts that have few copies in common.
        """
        reached = min(self.below, *self.own.values())
        target = min(joules, reached - self._page_outs(copies))
        late = len(self.own) > self.tuning.first_solutions and joules >= self.below * (1.0 - 1e-9)
        at_once = self.tuning.cuts_at_once if late else 1
        for _ in range(at_once):
            if target <= self._least_joules * (1.0 + 1e-9):
                return
            in_the_way = self._grow(copies, target * (1.0 - 1e-9), joules)
            if not in_the_way:
                return
            added = min(in_the_way, key=lambda c: (self._joules[c], abs(c)))
            copies = copies.union(range(min(added, 0), 0), (added,))  # after the steps before it
            target = joules = reached - self._page_outs(copies)

    def _grow(self, copies: frozenset[int], target: float, joules: float) -> frozenset[int]:
        """Learn of larger and larger sets that hold ``copies``, whose D is ``joules``, while it reaches the
        target: then they are as dear as the best set known. What opens a known path is not grown by.

        Returns what is in the way of the last of them.
        """
        known = copies in self.own
        grown, most_work = copies, self.program.worked + self.tuning.most_row_work
        rest = sorted(set(self._joules) - copies, key=lambda c: (self._importance[c], self._bytes(c), c))
        for _ in range(self.tuning.most_rows):
            opening = self._paths.missing_one(grown, target)
            for one in opening:
                self._importance[one] += 1.0
            rest = [c for c in rest if c not in opening]
            if not rest or self.program.worked > most_work:
                break
            last = self._paths.blocked(grown, target)
            rest = [*(c for c in rest if c not in last), *(c for c in rest if c in last)]
            lengths = _lengths(len(rest), self._at_once, len(rest) - len(last))
            sets = [grown.union(rest[:length]) for length in lengths]
            kept = 0
            for length, larger, value in zip(lengths, sets, self._walked(sets, target), strict=True):
                if value < target:
                    self._learn(frozenset(self._joules) - larger, value)
                    break
                kept, joules = length, value
            grown = grown.union(rest[:kept])
            del rest[:kept]
            if kept == 0:
                self._importance[rest[0]] += 1.0
                del rest[0]
        if grown == copies and not known:
            (joules,) = self._walked([copies])
            if joules < target:
                return frozenset()
        in_the_way = frozenset(self._joules) - grown
        self._learn(in_the_way, joules)
        if self.tuning.weighing_looks and len(self.own) > self.tuning.first_solutions:
            self._weigh(in_the_way, copies, target)
        return in_the_way

    def _weigh(self, in_the_way: frozenset[int], copies: frozenset[int], target: float) -> None:
        """Learn how many bytes residents beside ``copies`` must leave, where contents ``in_the_way`` of a
        set that holds these have no copy.
        """
        followed, steps = self.of.number, sum(c < 0 for c in self._joules)
        contents = frozenset(c for c in in_the_way if c in followed)
        begin = copies.union(c for c in self._joules if c in followed) - contents
        others = [c for c in self._joules if c not in begin and c not in followed]
        sizes = {c: self._bytes(c) if c >= 0 else step_bytes(self.program, -1 - c, steps) for c in others}
        if not any(sizes.values()):
            return
        free, some, paid = self._column(begin)

        def least(spared: Sequence[int]) -> list[float]:
            columns = len(spared)
            return self.program.least([free] * columns, [some] * columns, [paid] * columns, spared=spared)

        looks = self.tuning.weighing_looks
        cut = weighed(sizes, contents, least, target, columns=self._at_once, looks=looks)
        if cut is not None:
            self._take(cut)

    def _walked(self, sets: Sequence[frozenset[int]], below_joules: float = math.inf) -> list[float]:
        """D of each set; a path of the first that is below becomes known."""
        columns = [self._column(one) for one in sets]
        free, steps, paid = zip(*columns, strict=True)
        tables = list[Values]() if len(sets) * self._sets <= self.tuning.most_tables else None
        found = self.program.least(free, steps, paid, tables)
        for place, column in enumerate(columns):
            if found[place] < below_joules:
                path = (
                    cheapest(self.program, column)
                    if tables is None
                    else walked(self.program, tables, place, column)
                )
                if path is not None:
                    self._paths.add(path)
                break
        return found

    def _learn(self, without: frozenset[int], joules: float, steps: int = 0) -> None:
        """D without copies of ``without``, and with fewer than ``steps`` if any, is at least ``joules``."""
        self._take(Cut(dict.fromkeys(without, 1), joules, steps))

    def _take(self, cut: Cut) -> None:
        """Learn a cut, if it is of copies that are told apart."""
        if cut.joules >= self.below * (1.0 - 1e-9):
            cut = replace(cut, joules=self.below)
        if cut.joules <= self._least_joules * (1.0 + 1e-9) or not cut.weights.keys() <= self._joules.keys():
            return
        if self.cuts.learn(cut):
            contents = self.of.by_content(cut.weights)
            if cut.steps == 0 and cut.is_plain and contents and min(contents) >= 0:  # steps are this level's
                self.known.append((contents, cut.joules))

    def _least(self, sets: Sequence[frozenset[int]]) -> list[float]:
        """D of each set."""
        free, steps, paid = zip(*map(self._column, sets), strict=True)
        return self.program.least(free, steps, paid)

    def _column(self, copies: frozenset[int]) -> Paid:
        """Of followed contents, steps and listed residents, as the program takes them."""
        number, all_steps = self.of.number, sum(c < 0 for c in self._joules)
        unlisted = sum(1 << place for c, place in number.items() if c not in self._joules)
        free = unlisted | sum(1 << number[c] for c in copies if c in number)
        # a step without those before it counts for nothing
        steps = next((n for n in range(all_steps) if -1 - n not in copies), all_steps)
        paid = frozenset(c for c in self.listed if c in copies)
        return Paid(free, None if steps == all_steps else steps, paid)

    def _bytes(self, copy: int) -> int:
        if copy in self.of.residents:
            return self.of.residents[copy].bytes
        return self.of.bytes[self.of.number[copy]] if copy >= 0 else 0

    def _page_outs(self, copies: frozenset[int]) -> float:
        return sum(self._joules[c] for c in copies)


def _lengths(most: int, columns: int, likely: int) -> list[int]:
    """Up to ``columns`` numbers from 1 to ``most``, denser where they are small, with a ``likely`` one."""
    some = {round(float(x)) for x in np.geomspace(1, most, max(columns - 1, 1))}
    return sorted(some | {max(likely, 1)})
