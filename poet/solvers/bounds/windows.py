"""Grids, windows, columns and memory rows of the windows relaxation.

Symbols are those of `poet.solvers.bounds.relaxation`, whose other rows are made from these columns.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Iterator

import numpy as np

from poet.solvers.bounds.unit_columns import UnitColumns
from poet.solvers.engines.program import NOUGHT, ONE, MatrixBuilder, Term
from poet.solvers.instance.candidates import last_use_stages, worth_rerunning
from poet.solvers.instance.instance import Content, Instance

NEGLIGIBLE_SHARE = 1e-4
"""Of the budget, that the smallest versions, which are left out, take together; at 0 the program has columns
for hundreds of scalars."""

_NO_UNITS: UnitColumns | None = None

DENSE_TERMS = 1_000_000
"""Versions times memory rows, above which sums are carried from row to row; rows that list all that is held
through them grow with the square of the ops."""


class Windows:
    """Grids and columns, and the memory rows that grow with them; read by the constraint families.

    Attributes:
        worth: tasks that may pay to rerun; ``last_use``: per version, the last stage that may read it.
        small: versions left out as negligible; ``fixed``: per version, its fixed moments.
        grid: per version, its moments in order.
        moments: those with a memory row; ``unit``: bytes per unit.
        levels: of a large program, by memory row: the share of the budget that is held there, at the least;
            ``carries``: the row that carries it on from the row before.
        fixed_joules: of transfers that the problem itself demands.
        run: X by task and window; ``stored``: O; ``present``: P by grid moment; ``kept``: K by window;
            ``paged``: Y by window; ``written``: Z.
        stretches: W by task, first window, and window after the last.
        owed: stretches whose rows are still to be made.
        units: columns of the units that ops are on.
    """

    def __init__(self, instance: Instance, moments: Collection[int]) -> None:
        self.instance, self.contents, self.tasks = instance, instance.contents, instance.tasks
        self.end = len(instance.tasks)
        self.program, self.units = MatrixBuilder(), _NO_UNITS
        self.worth = worth_rerunning(instance)
        self.last_use = last_use_stages(instance, self.worth)
        self.small = _negligible(instance)
        self.fixed = _fixed_moments(instance)
        self.grid = self._grids(moments)
        self._open_memory_rows()
        self.fixed_joules = 0.0
        self.stretches: dict[tuple[int, int, int], int] = {}
        self.owed: list[tuple[int, int, int]] = []
        self.run = {task.number: self._run_columns(task.number) for task in self.tasks if task.outputs}
        self.written: dict[int, int] = {}
        self.stored = [self._stored_column(content) for content in self.contents]
        self.present: list[list[int]] = [[] for _ in self.contents]
        self.kept: list[list[int]] = [[] for _ in self.contents]
        self.paged: list[list[int]] = [[] for _ in self.contents]
        for content in self.contents:
            if content.number not in self.small:
                self._lay_out(content)

    def made(self, content: int) -> list[int]:
        """X per window of a version: that of its producer."""
        producer = self.contents[content].producer
        return [NOUGHT] * len(self.grid[content]) if producer is None else self.run[producer]

    def large(self) -> Iterator[Content]:
        """The versions that are not left out."""
        return (content for content in self.contents if content.number not in self.small)

    def visits(self, content: int, first: int, last: int) -> list[Term] | None:
        """P[j,a] + Σ Y[j,v] + W[p,s], at least 1 if j is in RAM at some time from ``first`` to ``last``.

        ``None``: no row is needed, since j has a fixed moment in that time or is left out.
        """
        fixed = self.fixed[content]
        position = bisect.bisect_left(fixed, first)
        if content in self.small or (position < len(fixed) and fixed[position] <= last):
            return None
        grid = self.grid[content]
        begin = bisect.bisect_right(grid, first) - 1
        stop = min(bisect.bisect_left(grid, last), len(grid) - 1)
        producer = self.contents[content].producer
        remade = NOUGHT if producer is None else self.again(producer, begin, stop)
        arrivals = [*self.paged[content][begin:stop], remade]
        return [(1.0, self.present[content][begin]), *((1.0, column) for column in arrivals)]

    def again(self, number: int, begin: int, stop: int) -> int:
        """W[k,s]: whether task k is rerun at all in the windows from ``begin`` to ``stop`` of its outputs.

        X where that is one window. A new column W stands in `owed` until its rows are made.
        """
        windows = [w for w in range(begin, stop) if self.run[number][w] != NOUGHT]
        if len(windows) < 2:
            return self.run[number][windows[0]] if windows else NOUGHT
        stretch = number, windows[0], windows[-1] + 1
        if stretch not in self.stretches:
            self.stretches[stretch] = self.program.column()
            self.owed.append(stretch)
        return self.stretches[stretch]

    def _grids(self, moments: Collection[int]) -> list[list[int]]:
        """Per version, fixed moments and last read; ``moments`` too if it is remade or remade from."""
        points: list[set[int]] = [set() for _ in self.contents]
        family = {c.number: self._family(c) for c in self.contents}
        read_again = {c for number in self.worth for c in self.tasks[number].rerun_reads}
        split = set[int]()
        for content in self.contents:
            mine = points[family[content.number]]
            mine.update((content.birth, *self.fixed[content.number]))
            mine.add(max(content.birth, self.last_use[content.number]))
            if content.comes_home:
                mine.add(self.end)
            if content.producer in self.worth:  # an update may end its reruns here: from then on it is held
                mine.add(min(self.tasks[content.producer].last_rerun_stage, max(mine)))
            if content.producer in self.worth or content.number in read_again:
                split.add(family[content.number])
        for number in split - self.small:
            first, last = min(points[number]), max(points[number])
            points[number].update(moment for moment in moments if first < moment < last)
        shared = [sorted(mine) for mine in points]
        return [shared[family[content.number]] for content in self.contents]

    def _family(self, content: Content) -> int:
        """The first of the versions that share a grid with ``content``: the outputs of one op."""
        return content.number if content.producer is None else self.tasks[content.producer].outputs[0]

    def _open_memory_rows(self) -> None:
        """One row for each moment at which the budget could be exceeded, less what is there for certain."""
        budget = self.instance.limits.ram_budget_bytes
        self.moments: list[int] = []
        self.levels: list[int] = []
        self.carries: list[int] = []
        if budget is None:
            return
        self.unit = float(max(budget, 1))
        certain = np.array([self._certain_bytes(moment) for moment in range(self.end + 1)], dtype=np.float64)
        most = certain.copy()
        for content in self.large():
            last = self.grid[content.number][-1]
            most[content.birth + 1 : last + 1] += content.bytes
            inside = [moment for moment in self.fixed[content.number] if content.birth < moment <= last]
            most[inside] -= content.bytes
        self.moments = [int(moment) for moment in np.flatnonzero(most > budget)]
        for moment in self.moments:
            self.program.row((), (budget - certain[moment]) / self.unit)
        if len(self.contents) * len(self.moments) > DENSE_TERMS:
            self._open_levels()

    def _open_levels(self) -> None:
        """A column per memory row for all that is held through it, at least as much as in the row before.

        What is held through a window is then counted where the window begins and where it ends, in the place
        of each row between; in each schedule the held share of the budget keeps these rows.
        """
        before = NOUGHT
        for row in range(len(self.moments)):
            self.levels.append(self.program.column(integer=False))
            self.program.add(np.array([row]), 1.0, self.levels[row])
            self.carries.append(self.program.row([(1.0, before), (-1.0, self.levels[row])], 0.0))
            before = self.levels[row]

    def _certain_bytes(self, moment: int) -> int:
        """Bytes in RAM at ``moment`` in every schedule: what the op there reads, makes and works in."""
        if moment == self.end:
            return sum(content.bytes for content in self.contents if content.ends_in_ram)
        task = self.tasks[moment]
        return task.workspace_bytes + sum(self.contents[c].bytes for c in {*task.reads, *task.outputs})

    def _occupy(self, content: Content, first: int, last: int, column: int) -> None:
        """Count ``content`` in the memory rows of the moments ``first`` to ``last``."""
        begin, stop = bisect.bisect_left(self.moments, first), bisect.bisect_right(self.moments, last)
        if begin >= stop:
            return
        share = content.bytes / self.unit
        if not self.levels or stop - begin <= 2:
            self.program.add(np.arange(begin, stop), share, column)
            return
        self.program.add(np.array([self.carries[begin]]), share, column)
        if stop < len(self.carries):
            self.program.add(np.array([self.carries[stop]]), -share, column)

    def _binds(self, first: int, last: int) -> bool:
        """Whether a moment from ``first`` to ``last`` has a memory row."""
        position = bisect.bisect_left(self.moments, first)
        return position < len(self.moments) and self.moments[position] <= last

    def _run_columns(self, number: int) -> list[int]:
        """X per window of a task's outputs; 0 where a rerun cannot or need not be."""
        task = self.tasks[number]
        grid = self.grid[task.outputs[0]]
        last = min(task.last_rerun_stage, max(self.last_use[c] for c in task.outputs))
        pays = number in self.worth and not self.small.issuperset(task.outputs)
        return [
            self.program.column(task.cost.joules) if pays and moment < last else NOUGHT
            for moment in grid[:-1]
        ]

    def _stored_column(self, content: Content) -> int:
        """O, a column or a constant; adds up the transfers that the problem itself demands."""
        page_in, page_out = content.page_in, content.page_out
        if content.starts_stored:
            paid = content.number in self.small and not content.starts_in_ram and content.home is None
            if paid and self.fixed[content.number]:
                self.fixed_joules += page_in.joules if page_in else 0.0
            return ONE
        if content.home == content.number:  # perhaps in storage between steps
            if content.number in self.small or page_in is None or page_out is None:
                return ONE
            self.written[content.number] = self.program.column(page_out.joules)
            return self.program.column()
        if content.ends_stored:
            self.fixed_joules += page_out.joules if page_out else 0.0
            return ONE
        if content.number in self.small or page_in is None or page_out is None:
            return NOUGHT
        return self.program.column(page_out.joules)

    def _lay_out(self, content: Content) -> None:
        """The columns P, K and Y of a version, and their terms in the memory rows."""
        number, grid = content.number, self.grid[content.number]
        fixed = set(self.fixed[number])
        may_return = content.page_in is not None and self.stored[number] != NOUGHT
        for moment in grid:
            certain = moment in fixed
            absent = moment == -1 and not content.starts_in_ram and content.home != number
            column = ONE if certain else NOUGHT if absent else self.program.column()
            self.present[number].append(column)
            if not certain:
                self._occupy(content, moment, moment, column)
        for window, (moment, following) in enumerate(itertools.pairwise(grid)):
            kept = self.present[number][window]
            if kept != NOUGHT and (content.dropped or self._binds(moment + 1, following - 1)):
                kept = self.program.column()
                self._occupy(content, moment + 1, following - 1, kept)
            self.kept[number].append(kept)
            joules = content.page_in.joules if content.page_in else 0.0
            self.paged[number].append(self.program.column(joules) if may_return else NOUGHT)


def _negligible(instance: Instance) -> frozenset[int]:
    """The smallest versions, up to `NEGLIGIBLE_SHARE` of the budget together."""
    left, small = NEGLIGIBLE_SHARE * (instance.limits.ram_budget_bytes or 0), set[int]()
    for content in sorted(instance.contents, key=lambda content: content.bytes):
        left -= content.bytes
        if left < 0.0:
            break
        small.add(content.number)
    return frozenset(small)


def _fixed_moments(instance: Instance) -> list[list[int]]:
    """Per version, its birth, each op that reads it, and the end if it must be there."""
    fixed: list[list[int]] = [
        [content.birth] if content.birth >= 0 or content.starts_in_ram else []
        for content in instance.contents
    ]
    for task in instance.tasks:
        for content_number in task.reads:
            fixed[content_number].append(task.number)
    for content in instance.contents:
        if content.ends_in_ram:
            fixed[content.number].append(len(instance.tasks))
    return fixed
