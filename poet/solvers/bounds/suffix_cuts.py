"""Lifted value-function cuts: rows that hold the relaxation to the tables of a suffix dynamic program.

A suffix program (`poet.solvers.bounds.suffix_program`) knows the least joules of the end of the step, from a
moment t on, for every set of large tensor versions that may be in RAM at t. A cut tells the windows
relaxation (`poet.solvers.bounds.relaxation`) one entry of such a table: a plan that holds no more than the
set S at t pays at least v joules after t.

====== ========== =====================================================================================
symbol unit       meaning
====== ========== =====================================================================================
P[j]   0 to 1     version j is in RAM at t (a column of the relaxation, where t is on its grid)
u[i]   0 to 1     version i is paged in after t
c·x    joules     what the relaxation's own columns cost in windows that end after t
e      joules     a new column: what the end of the step costs beyond c·x
out(i) joules     the page-out of i
v      joules     the table's entry for S; the table charges no page-out of the versions in its group g
b[j]   joules     by how much the entry falls, at most, if j is in RAM as well
====== ========== =====================================================================================

    c·x + e + Σ out(i)·u[i] over i not in g + Σ b[j]·P[j] over j not in S  ≥  v

The coefficients b are found one after the other, each as small as the row allows in every state of the
table (sequential lifting; Padberg 1975). Which tables hold depends on whether anything is paged in twice, and
of which group. Binary columns choose that (`Joined.choices`); the cuts of the other tables are then void.

S is what the last solution of the relaxation holds. Each cut is also added for *wider* sets: S and the
versions that lower v least. Their rows are weaker at this solution and stronger at others.
"""

from __future__ import annotations

import itertools

import numpy as np

from poet.solvers.bounds.suffix_program import Endgame, Table
from poet.solvers.bounds.windows import Windows
from poet.solvers.engines.matrix import NOUGHT, ONE, Numbers, Term, value


class EndgameCuts:
    """The cuts found so far for one suffix program; they outlive the relaxation that each was found for."""

    def __init__(self, game: Endgame, seed: int) -> None:
        self.game = game
        self.most = max(float(table.joules.max()) for table in game.tables)
        self.found: list[tuple[Table, float, dict[int, float]]] = []
        self.popular = np.zeros(len(game.contents))
        self.random = np.random.default_rng(seed)

    def join(self, layout: Windows) -> Joined:
        """Add the suffix program's columns and all cuts so far to the program of ``layout``."""
        joined = Joined(self.game, layout, self.most)
        for table, worth, lifted in self.found:
            joined.add(table, worth, lifted)
        return joined

    def add(self, joined: Joined, values: Numbers) -> bool:
        """Add cuts that ``values`` violate; false if they violate none."""
        tuning, memory = joined.tuning, joined.tuning.memory_share
        shares = np.array([value(column, values) for column in joined.present])
        self.popular = memory * self.popular + (1.0 - memory) * shares
        held = self._held(joined, shares)
        before = len(self.found)
        for table in self.game.tables:
            worth = float(table.joules[_position(self.game, held)])
            over = joined.violation(table, worth, values)
            if over > tuning.violated_share * self.most:
                for kept, chance in tuning.widening_shares:
                    wish = shares + tuning.slight_share * self.popular
                    wish += chance * self.random.random(len(shares))
                    order = [int(bit) for bit in np.argsort(-wish, kind="stable")]
                    wide = _widened(self.game, table, held, worth - (1.0 - kept) * over, order)
                    worth_wide = float(table.joules[_position(self.game, wide)])
                    self.found.append((table, worth_wide, lifted(self.game, table, wide, order)))
                    joined.add(*self.found[-1])
        return len(self.found) > before

    def _held(self, joined: Joined, shares: Numbers) -> int:
        """The set of versions that a solution holds, as far as it fits, as a mask."""
        contents, left = joined.layout.contents, joined.layout.instance.limits.ram_budget_bytes or 0
        mask = 0
        for bit in np.argsort(-shares, kind="stable"):
            size = contents[self.game.contents[bit]].bytes
            if shares[bit] > joined.tuning.held_share and size <= left:
                mask, left = mask | 1 << int(bit), left - size
        return mask


class Joined:
    """The columns of a suffix program in the relaxation, and cuts over them."""

    def __init__(self, game: Endgame, layout: Windows, most: float) -> None:
        self.game, self.layout, self.most = game, layout, most
        self.tuning = layout.instance.tuning.suffix
        program = layout.program
        self.beyond = program.column(most, integer=False)
        self.present = [self._presence(content) for content in game.contents]
        self.paged = {content: self._paged_column(content) for content in game.page_outs}
        self.twice = {table.free: program.column() for table in game.tables if table.twice}
        self.spent = [(-joules, column) for joules, column in self._own_columns()]
        self.spent.append((-most, self.beyond))
        for free, column in self.twice.items():
            program.row([(1.0, column), *((-1.0, self.paged[c]) for c in free)], 0.0)
        self.choices = list(self.twice.values())
        if len(game.page_outs) > 1:
            two = program.column()
            self.choices.append(two)
            program.row([(2.0, two), *((-1.0, column) for column in self.paged.values())], 0.0)
            self._row_of_joules([(game.six_page_ins_joules, two), *self.spent], 0.0)
        program.row([(1.0, column) for column in self.choices], 1.0)

    def add(self, table: Table, worth: float, lifted_joules: dict[int, float]) -> None:
        """One cut: ``worth`` is v, ``lifted_joules`` are the coefficients b by bit."""
        terms, at_most = self._row(table, worth)
        terms += [(-joules, self.present[bit]) for bit, joules in lifted_joules.items()]
        self._row_of_joules(terms, at_most)

    def _row_of_joules(self, terms: list[Term], at_most: float) -> None:
        """A row in units of ``most``, so that no factor is above 1, whatever a step takes."""
        unit = self.most or 1.0  # 0 where all values are
        self.layout.program.row([(joules / unit, column) for joules, column in terms], at_most / unit)

    def violation(self, table: Table, worth: float, values: Numbers) -> float:
        """By how many joules ``values`` violate the cut of the set that they hold."""
        terms, at_most = self._row(table, worth)
        return sum(factor * value(column, values) for factor, column in terms) - at_most

    def _row(self, table: Table, worth: float) -> tuple[list[Term], float]:
        """The terms of a cut but for presences, and its right-hand side.

        Where the table holds they are at most -``worth``; elsewhere the choice columns make the row void.
        """
        fares = [(-out, self.paged[c]) for c, out in self.game.page_outs.items() if c not in table.free]
        if table.twice:
            return [*self.spent, *fares, (worth, self.twice[table.free])], 0.0
        return [*self.spent, *fares, *((-worth, column) for column in self.choices)], -worth

    def _own_columns(self) -> list[Term]:
        """The terms of c·x: joules and columns of page-ins and reruns of tracked versions after the moment.

        A window of the relaxation that contains the moment does not say whether its page-in or rerun comes
        before or after the moment. It is counted as if after, which keeps the cut valid.
        """
        layout, terms = self.layout, list[Term]()
        for content in self.game.tracked:
            producer = layout.contents[content].producer
            for window, end in enumerate(layout.grid[content][1:]):
                if end > self.game.moment and producer is not None:
                    columns = layout.paged[content][window], layout.run[producer][window]
                    terms += [(layout.program.costs[c], c) for c in columns if c not in (NOUGHT, ONE)]
        return terms

    def _presence(self, content: int) -> int:
        """P at the moment; 1 where the relaxation has no column for it: the version may be there."""
        grid = self.layout.grid[content]
        return self.layout.present[content][grid.index(self.game.moment)] if self.game.moment in grid else ONE

    def _paged_column(self, content: int) -> int:
        """The column u of a version; the constant 0 where nothing can page it in after the moment.

        Two rows: u ≤ O (the version is stored), and u ≤ the sum of its page-ins after the moment.
        """
        layout = self.layout
        windows = zip(layout.paged[content], itertools.pairwise(layout.grid[content]), strict=True)
        page_ins = [column for column, (_, end) in windows if end > self.game.moment and column != NOUGHT]
        if not page_ins:
            return NOUGHT
        column = layout.program.column()
        layout.program.row([(1.0, column), (-1.0, layout.stored[content])], 0.0)
        layout.program.row([(1.0, column), *((-1.0, page_in) for page_in in page_ins)], 0.0)
        return column


def lifted(game: Endgame, table: Table, held: int, order: list[int]) -> dict[int, float]:
    """The coefficients b in joules, by the version's bit; those of 0 are left out.

    For every state of the table: the sum of b over the versions that it has and ``held`` has not is at least
    the entry of ``held`` less the state's own. Versions are lifted in ``order``, each with the least
    coefficient that those before it leave possible.
    """
    less = float(table.joules[_position(game, held)]) - table.joules
    worth_less = less > 0.0
    more, less = game.masks[worth_less] & ~held, less[worth_less]
    ranked = [bit for bit in order if not held >> bit & 1]
    last = np.full(len(more), -1)
    for rank, bit in enumerate(ranked):
        last[more >> bit & 1 == 1] = rank
    found = {}
    for rank, bit in enumerate(ranked):
        joules = float(less[last == rank].max(initial=0.0))
        if joules > 0.0:
            found[bit] = joules
            less[more >> bit & 1 == 1] -= joules
    return found


def _widened(game: Endgame, table: Table, held: int, least: float, order: list[int]) -> int:
    """``held`` and more versions, in ``order``, while the set fits and its value is ``least`` or more."""
    for bit in order:
        wider = held | 1 << bit
        position = _position(game, wider)
        if game.masks[position] == wider and table.joules[position] >= least:
            held = wider
    return held


def _position(game: Endgame, mask: int) -> int:
    return min(int(np.searchsorted(game.masks, mask)), len(game.masks) - 1)
