"""Which contents get a copy in storage: sets S of spills in a list, each with a lower bound.

`poet.solvers.bounds.ram_program` gives D(F), the least joules of a step beside the page-outs of F. A schedule
that pages in the contents of S takes at least out(S) + D(S), out(S) being their page-outs and what else is
certain of them, and D(S) >= D(F) for each F that S lies in. So with every F whose D is known, each S has a
lower bound; the least of them over all S bounds every schedule, and is exact once it belongs to an S whose
own D is known (a cutting plane method like that of Benders 1962). Where page-outs are expensive, as on NOR
flash, a plan below the best one has few spills, and all sets that small can be listed.

- Each round takes the S of the least bound and computes D for it and for a row of larger and larger sets F
  that hold it, those contents first whose spills have mattered least. The largest F whose D still is high
  enough to exclude S excludes many others with it.
- Page-outs that would make the list too long are taken to be free: those of what is needed shortest.
- Of residents only the joules of their page-outs are listed, in steps: k steps are charged for what frees as
  much as less than k + 1 steps can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from poet.solvers.bounds import stages
from poet.solvers.bounds.ram_program import CheapestStep, RamProgram, cheapest_step
from poet.solvers.bounds.stages import Joules
from poet.solvers.bounds.tracked import ROUNDING, bits
from poet.solvers.instance.candidates import last_use_stages, worth_rerunning

MOST_SETS = 2_000_000
"""Of spills that are listed: 24 bytes each, and each round looks at all."""

COLUMNS = 16
"""Sets of spills whose programs are computed at once: with fewer, looking up a transition costs more than
what it is for."""

RESIDENT_STEPS = 16
"""Of joules of residents' page-outs that are listed, beyond which all are free; at 0, residents are."""

_MOST_VALUES = 4_000_000  # sets that fit in one stage times columns: what the fastest caches nearly hold


class SpillSets:
    """The sets of spills of one program, and their bounds.

    Args:
        program: of what is tracked.
        before: of the program before, whose contents are among these.

    Attributes:
        below_joules: no set is looked for at or above it.
        bound_joules: no schedule takes less, beside page-outs that every one makes.
        own: sets whose own D is known, with joules of their page-outs and of the least step beside them.
    """

    def __init__(self, program: RamProgram, before: SpillSets | None) -> None:
        self.program, self.of, self.below_joules = program, program.of, program.most_joules
        self.all = (1 << len(self.of.contents)) - 1
        self.known = list[tuple[frozenset[int], float]]()  # contents without a copy, and then D at least
        self.own = dict[int, float]()
        # of a spill: by how much D rises without it
        self.importance: dict[int, float] = {} if before is None else dict(before.importance)
        self.bound_joules = program.least([self.all])[0]
        self._columns = max(1, min(COLUMNS, _MOST_VALUES // program.most_sets))
        self._steps, self.spills = 0, list[int]()  # bits of a listed set: steps of joules, spills
        self._list_sets()
        known = () if before is None else before.known
        # residents of the program before may be tracked in this one
        self._learn((without, joules) for without, joules in known if min(without, default=0) >= 0)
        self._untried = [c for c in self.spills if self.of.contents[c].number not in self.importance]

    @property
    def least_joules(self) -> float:
        """Of any set whose own D is known; infinite where there is none."""
        return min(self.own.values(), default=math.inf)

    def round(self) -> bool:
        """Learn of some sets; false once the least bound is some set's own, or nothing is left."""
        if self._untried:
            self._try_singles()
            return True
        if not len(self.masks):
            self.bound_joules = self.below_joules
            return False
        place = int(np.argmin(self.bounds))
        mask, out = int(self.masks[place]), float(self.outs[place])
        self.bound_joules = max(self.bound_joules, float(self.bounds[place]))
        if mask in self.own:
            return False
        rest = sorted(
            (bit for bit in range(self._steps + len(self.spills)) if not mask >> bit & 1),
            key=lambda bit: self.importance.get(self._number(bit), 0.0),
        )
        self.own[mask] = out + self._row(mask, rest)
        self._prune()
        return True

    def cheapest(self) -> CheapestStep | None:
        """The cheapest step that is known, if there is one below what is looked for."""
        if self.least_joules >= self.below_joules:
            return None
        mask = min(self.own, key=self.own.__getitem__)
        return cheapest_step(self.program, self._free(mask), self._steps_of(mask))

    def _row(self, mask: int, rest: list[int]) -> float:
        """D of ``mask``, with that of larger and larger sets, with more and more of ``rest``."""
        columns = min(self._columns, len(rest)) or 1
        lengths = sorted({len(rest) * column // columns for column in range(columns)})
        sets = [mask | sum(1 << bit for bit in rest[:length]) for length in lengths]
        joules = self.program.least([self._free(one) for one in sets], [self._steps_of(one) for one in sets])
        self._learn(zip(map(self._without, sets), joules, strict=True))
        for place, value in enumerate(joules[:-1]):
            added = rest[lengths[place] : lengths[place + 1]]
            for bit in added if joules[place + 1] < value else ():
                number, fell = self._number(bit), (value - joules[place + 1]) / len(added)
                self.importance[number] = 0.7 * self.importance.get(number, 0.0) + 0.3 * fell
        return joules[0]

    def _try_singles(self) -> None:
        """D without each spill by itself: what it matters, to begin with."""
        some, self._untried = self._untried[: self._columns], self._untried[self._columns :]
        joules = self.program.least([self.all & ~(1 << content) for content in some])
        numbers = [self.of.contents[content].number for content in some]
        for number, value in zip(numbers, joules, strict=True):
            self.importance[number] = value - self.bound_joules
        self._learn((frozenset({number}), value) for number, value in zip(numbers, joules, strict=True))
        self._prune()

    def _list_sets(self) -> None:
        """All sets of spills that are below in page-outs; spills that would make it too many are free."""
        spills, able_joules = self._spills(), self.below_joules - self.bound_joules
        paged = [one.away_joules for one in self.of.residents.values() if one.away_joules is not None]
        step_joules = 0.0
        if paged and able_joules > 0.0:
            step_joules = max(min(paged), able_joules / RESIDENT_STEPS)
            self._steps = min(RESIDENT_STEPS, int(min(sum(paged), able_joules) / step_joules))
            self.program.residents.count_in_steps(step_joules, self._steps)
        masks = (np.int64(1) << np.arange(self._steps + 1, dtype=np.int64)) - 1
        outs = np.arange(self._steps + 1, dtype=np.float64) * (step_joules * (1.0 - 2.0 * ROUNDING))
        self.spills = spills[: 62 - self._steps]
        for bit, content in enumerate(self.spills):
            more = outs + self.of.page_out[content]
            able = more < able_joules
            if len(masks) + int(able.sum()) > MOST_SETS:
                self.spills = self.spills[:bit]
                break
            masks = np.concatenate([masks, masks[able] | (1 << (bit + self._steps))])
            outs = np.concatenate([outs, more[able]])
        self.masks, self.outs = masks, outs
        self.bounds: Joules = outs + self.bound_joules

    def _spills(self) -> list[int]:
        """Contents whose copies are to be paid for, those needed longest first."""
        instance, content = self.of.instance, self.of.contents
        last_use = last_use_stages(instance, worth_rerunning(instance))
        paid = [c for c in bits(self.all) if self.of.page_in[c] < np.inf and self.of.page_out[c] > 0.0]
        return sorted(
            paid, key=lambda c: content[c].birth - min(last_use[content[c].number], content[c].death)
        )

    def _learn(self, news: Iterable[tuple[frozenset[int], float]]) -> None:
        """D without copies of the contents of each is at least its joules."""
        place = {self._number(bit): bit for bit in range(self._steps + len(self.spills))}
        cuts = list[tuple[float, int]]()
        for without, joules in news:
            if joules > self.bound_joules or without:
                self.known.append((without, joules))
                if without <= place.keys():
                    cuts.append((joules, sum(1 << place[number] for number in without)))
        if not cuts:
            return
        cuts.sort(reverse=True)
        values = np.array([joules for joules, _ in cuts], dtype=np.float64)
        masks = np.array([mask for _, mask in cuts], dtype=np.int64)
        stages.raise_bounds(self.bounds, self.masks, self.outs, values, masks)

    def _prune(self) -> None:
        left = self.bounds < self.below_joules
        if not left.all():
            self.masks, self.outs, self.bounds = self.masks[left], self.outs[left], self.bounds[left]
        if len(self.bounds):
            self.bound_joules = max(self.bound_joules, float(self.bounds.min()))

    def _free(self, mask: int) -> int:
        """A listed set, and all that is taken to be free, among those tracked."""
        listed = sum(1 << content for content in self.spills)
        return (self.all & ~listed) | sum(1 << self.spills[bit] for bit in bits(mask >> self._steps))

    def _steps_of(self, mask: int) -> int | None:
        """Of joules of residents' page-outs, in a listed set; ``None``: any."""
        steps = (mask & ((1 << self._steps) - 1)).bit_count()
        return None if steps == self._steps else steps

    def _without(self, mask: int) -> frozenset[int]:
        bits_there = range(self._steps + len(self.spills))
        return frozenset(self._number(bit) for bit in bits_there if not mask >> bit & 1)

    def _number(self, bit: int) -> int:
        """Of the content that a bit stands for; below 0: one more step of residents' page-outs."""
        return self.of.contents[self.spills[bit - self._steps]].number if bit >= self._steps else -1 - bit
