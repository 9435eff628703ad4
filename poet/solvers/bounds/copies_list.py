"""Sets of copies in storage as a list: each with a lower bound, the least of which is a bound for all.

The master problem of `poet.solvers.bounds.copies`, where its sets are few. Where page-outs are dear, as on
NOR flash, a plan below the best one has few copies, and all sets that small can be listed.

- Each round takes the S of the least bound and computes D for it and for a row of larger and larger sets F
  that hold it, those contents first whose copies have mattered least. The largest F whose D still is high
  enough to exclude S excludes many others with it.
- Page-outs that would make the list too long are taken to be free: those of what is needed shortest.
- Of residents (see there) only the joules of their page-outs are listed, in steps: k steps are charged for
  what frees as much as less than k + 1 steps can.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from poet.solvers.bounds.compiled import Compiled
from poet.solvers.bounds.followed import bits
from poet.solvers.bounds.own_sets import OwnSets
from poet.solvers.bounds.ram_paths import CheapestStep, Paid, cheapest
from poet.solvers.bounds.ram_program import RamProgram
from poet.solvers.bounds.ram_stages import Masks
from poet.solvers.bounds.resident_bytes import ROUNDING
from poet.solvers.instance.candidates import last_use_stages, worth_rerunning
from poet.solvers.instance.instance import Instance

Joules = npt.NDArray[np.float64]


class ListSearch:
    """The sets of copies at one level, and their bounds.

    Args:
        instance: what is bounded.
        program: of the level.
        below_joules: what no set is looked for at or above.
        before: of the level before, whose contents are among these.

    Attributes:
        bound_joules: no schedule takes less, beside page-outs that every one makes.
        own: sets whose own D is known.
        step_joules: of a step on residents' page-outs; 0: there is none.
    """

    def __init__(
        self,
        instance: Instance,
        program: RamProgram,
        below_joules: float,
        before: ListSearch | None,
    ) -> None:
        self.program, self.of, self.below = program, program.of, below_joules
        self.tuning = instance.tuning.copies
        self.all = (1 << len(self.of.followed)) - 1
        self.known = list[tuple[frozenset[int], float]]()  # contents without a copy, and then D at least
        self.importance = dict[int, float]()  # of a copy: by how much D rises without it
        if before is not None:
            self.importance.update(before.importance)
        self._small = 0  # bits, before those of ``dear``: so many steps of joules, on residents' page-outs
        self.bound_joules = program.least([self.all])[0]
        self.dear = self._dear(instance)
        largest = max(map(program.sets_at, range(self.of.end + 1)))
        self._columns = max(1, min(self.tuning.columns, self.tuning.most_values // largest))
        self._row_joules: list[float] = []
        self._list_sets()
        self.own = OwnSets[int]()
        known = before.known if before is not None else ()
        # residents of the level before may be followed in this one
        self._learn((without, joules) for without, joules in known if min(without, default=0) >= 0)
        self._untried = [c for c in self.dear if self.of.followed[c].number not in self.importance]

    def round(self) -> bool:
        """Learn of some sets; false once the least bound is some set's own, or nothing is left."""
        if self._untried:
            self._try_singles()
            return True
        if not len(self.masks):
            self.bound_joules = self.below
            return False
        place = int(np.argmin(self.bounds))
        mask, out = int(self.masks[place]), float(self.outs[place])
        self.bound_joules = max(self.bound_joules, float(self.bounds[place]))
        if mask in self.own:
            return False
        rest = sorted(
            (bit for bit in range(self._small + len(self.dear)) if not mask >> bit & 1),
            key=lambda bit: self.importance.get(self._number(bit), 0.0),
        )
        target = self.below - out
        kept = self._row(mask, rest, target)
        self.own[mask] = out + self._row_joules[0]
        if self._row_joules[0] >= target and kept < len(rest) - 1:  # what stopped the row goes last
            larger = mask | sum(1 << bit for bit in rest[:kept])
            left = rest[kept:]
            step = max(1, -(-len(rest) // self._columns))
            self._row(larger, left[step:] + left[:step], target)
        self._prune()
        return True

    def cheapest(self) -> CheapestStep | None:
        """The cheapest step that is known, if there is one below what is looked for."""
        mask = self.own.cheapest(self.below)
        if mask is None:
            return None
        paid = Paid(self._free(mask), self._steps(mask), frozenset(self.program.listed))
        path = cheapest(self.program, paid)
        copies = [self._number(bit) for bit in bits(mask)]
        are_known = all(copy >= 0 for copy in copies)
        if path is None:
            return None
        return CheapestStep(path, frozenset(copies) if are_known else None, self.own[mask])

    def _row(self, mask: int, rest: list[int], target: float) -> int:
        """Learn D of ``mask`` and of larger and larger sets, with more and more of ``rest``.

        Returns how many of ``rest`` the largest set has whose D reaches ``target``.
        """
        columns = min(self._columns, len(rest)) or 1
        lengths = sorted({len(rest) * column // columns for column in range(columns)})
        sets = [mask | sum(1 << bit for bit in rest[:length]) for length in lengths]
        joules = self.program.least([self._free(one) for one in sets], [self._steps(one) for one in sets])
        self._row_joules, kept = joules, 0
        self._learn(zip(map(self._without, sets), joules, strict=True))
        for place, (length, value) in enumerate(zip(lengths, joules, strict=True)):
            if value >= target:
                kept = length
            following = joules[place + 1] if place + 1 < len(joules) else None
            if following is not None and following < value:
                for bit in rest[length : lengths[place + 1]]:
                    self._matters(bit, (value - following) / (lengths[place + 1] - length))
        return kept

    def _try_singles(self) -> None:
        """D without each copy by itself: what it matters, to begin with."""
        some, self._untried = self._untried[: self._columns], self._untried[self._columns :]
        joules = self.program.least([self.all & ~(1 << content) for content in some])
        numbers = [self.of.followed[content].number for content in some]
        for number, value in zip(numbers, joules, strict=True):
            self.importance[number] = value - self.bound_joules
        self._learn((frozenset({number}), value) for number, value in zip(numbers, joules, strict=True))
        self._prune()

    def _matters(self, bit: int, joules: float) -> None:
        number, weight = self._number(bit), self.tuning.lasting_share
        self.importance[number] = weight * self.importance.get(number, 0.0) + (1.0 - weight) * joules

    def _dear(self, instance: Instance) -> list[int]:
        """Contents whose copies are to be paid for, those needed longest first."""
        last_use, content = last_use_stages(instance, worth_rerunning(instance)), self.of.followed
        page_in, page_out = self.of.page_in, self.of.page_out
        dear = [c for c in bits(self.all) if page_in[c] < np.inf and page_out[c] > 0.0]
        return sorted(
            dear, key=lambda c: content[c].birth - min(last_use[content[c].number], content[c].death)
        )

    def _list_sets(self) -> None:
        """All sets of copies that are below in page-outs; copies that would make it too many are free."""
        paged = [one.away_joules for one in self.of.residents.values() if one.away_joules is not None]
        self.step_joules = 0.0
        able_joules = self.below - self.bound_joules
        most, step = self.tuning.most_residents, 0.0
        if paged and most and able_joules > 0.0:
            step = max(min(paged), able_joules / most)
            self._small = min(most, int(min(sum(paged), able_joules) / step))
            self.program.count_in_steps(step, self._small)
            self.step_joules = step
        masks = (np.int64(1) << np.arange(self._small + 1, dtype=np.int64)) - 1
        outs = np.arange(self._small + 1, dtype=np.float64) * (step * (1.0 - 2.0 * ROUNDING))
        most = 62 - self._small
        for bit, content in enumerate(self.dear[:most]):
            more = outs + self.of.page_out[content]
            able = more < able_joules
            if len(masks) + int(able.sum()) > self.tuning.most_sets:
                self.dear = self.dear[:bit]
                break
            masks, outs = (
                np.concatenate([masks, masks[able] | (1 << (bit + self._small))]),
                np.concatenate([outs, more[able]]),
            )
        self.dear = self.dear[:most]
        self.masks, self.outs = masks, outs
        self.bounds: Joules = outs + self.bound_joules

    def _learn(self, news: Iterable[tuple[frozenset[int], float]]) -> None:
        """D without copies of the contents of each is at least its joules."""
        place = {self._number(bit): bit for bit in range(self._small + len(self.dear))}
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
        _raise(self.bounds, self.masks, self.outs, values, np.array([mask for _, mask in cuts], np.int64))

    def _prune(self) -> None:
        left = self.bounds < self.below
        if not left.all():
            self.masks, self.outs, self.bounds = self.masks[left], self.outs[left], self.bounds[left]
        if len(self.bounds):
            self.bound_joules = max(self.bound_joules, float(self.bounds.min()))

    def _free(self, mask: int) -> int:
        """A listed set, and all that is taken to be free, among those followed."""
        listed = sum(1 << content for content in self.dear)
        return (self.all & ~listed) | sum(1 << self.dear[bit] for bit in bits(mask >> self._small))

    def _steps(self, mask: int) -> int | None:
        """Of joules on residents' page-outs, in a listed set; ``None``: any."""
        steps = (mask & ((1 << self._small) - 1)).bit_count()
        return None if steps == self._small else steps

    def _without(self, mask: int) -> frozenset[int]:
        return frozenset(
            self._number(bit) for bit in range(self._small + len(self.dear)) if not mask >> bit & 1
        )

    def _number(self, bit: int) -> int:
        """Of the content that a bit stands for; below 0: one more resident."""
        return self.of.followed[self.dear[bit - self._small]].number if bit >= self._small else -1 - bit


@Compiled
def _raise(
    bounds: Joules,
    masks: Masks,
    outs: Joules,
    joules: Joules,
    without: Masks,
) -> None:
    """Raise the bound of each set to the first cut, of the highest first, nothing of which it has."""
    for place in range(len(masks)):
        for cut in range(len(joules)):
            if masks[place] & without[cut] == 0:
                bounds[place] = max(bounds[place], outs[place] + joules[cut])
                break
