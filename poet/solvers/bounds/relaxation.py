"""A lower bound on the joules of every schedule, from a linear program that grows with the reads.

Between two moments at which a tensor must be in RAM it is either held throughout or comes back.
Which of these happens, how often, and what it takes, is all that this relaxation knows of a
schedule; how deep recomputations nest, and in which order they run, does not matter to its size.

**What is counted.** Take any valid schedule whose first runs keep the listed order. Stage t is what
follows the first run of op t − 1, up to and with the first run of op t; stage T, after the last op,
ends the step. Moment t is the first run of op t, moment −1 the start, moment T the end. Each content
i (a tensor version, see `poet.solvers.instance.instance`) has a grid of moments g0 < g1 < …, with all
its *fixed* moments: its birth, each op that reads it, the end if it must be there; the outputs of
one op share a grid. A *window* is what lies between neighbouring moments, (g, g']. Set to 1, else 0:

======== ====================================================================================
P[i,g]   i is in RAM at moment g; 1 at fixed moments; 0 at the start if it begins in storage
K[i,w]   i is in RAM throughout, from moment g to moment g'
Y[i,w]   i is paged in at least once in the stages g + 1 … g' of window w
X[k,w]   op k is rerun at least once in these stages; w is a window of its outputs
O[i]     i has a copy in storage at some time
Z[i]     i is written there, where it is the first content of a tensor whose home the plan chooses
W[k,s]   k is rerun at least once in a *stretch* s of neighbouring windows of its outputs
======== ====================================================================================

**What holds.** Each row below is true of these numbers, whatever the schedule does otherwise:

- *flow* P[i,g'] ≤ K[i,w] + Y[i,w] + X[k,w], k the producer: what is there at g' was held since g, or
  appeared in between, and contents appear by page-in or by a run of their producer only.
- *hold* K[i,w] ≤ P[i,g].  *store* Y[i,w] ≤ O[i].
- *need* X[k,w] ≤ P[j,a] + Σ Y[j,v] + W[p,s] for each j that a rerun of k reads, p its producer: the
  rerun finds j in RAM at some time from moment g to g'. Either it was there at the last moment a ≤ g
  of its grid, or it appeared after a, in one of its windows v up to its first moment ≥ g', which
  together are the stretch s. No row where j has a fixed moment from g to g': then it may be there for
  that.
- *cover* 1 ≤ K[i,w] + O[i] + W[k,s], s from window w to the next fixed moment of i.
- *again* W[k,s] ≤ Σ X[k,v] over the windows v of s, and need holds for W[k,s] as it does for X. So
  chains of reruns are followed through whole stretches. All this follows from flow and need in whole
  numbers, and is stronger in fractions: half a rerun in each of two windows is half a visit of j in
  each, but a whole one together. A stretch of one window has X in the place of W.
- *memory*, at moment t: what op t reads and makes, and its workspace, plus Σ bytes·P[i,t] where t is
  on the grid of i, plus Σ bytes·K[i,w] where t lies inside w, is at most the budget: all these are
  different bytes, in RAM together. What an update makes in place is counted as the old content.
- *home*, where the plan chooses it: h = P[i,start] says that i is in RAM between steps. Then it is held up
  to its first use, for one that is not is as well in storage, and its last content is there at the end,
  h ≤ P[j,end]; it has a copy only if it is written, O[i] ≤ 1 - h + Z[i], unless no op updates it. Else its
  last content is written, 1 - h ≤ O[j].
- *pins* K[i,w] = 1 between fixed moments of what is pinned to stay in RAM. What is pinned to leave it is not
  held in all windows between two of its fixed moments across the first run of an op, which does not touch it.
- *deadline*, *capacity*, *wear*: seconds spent, bytes stored and bytes written are at least those of
  the runs, transfers and copies counted.

**Which moments.** With fixed moments alone, a content may be remade before RAM is short, and held where it
is not. So some moments get on the grids of all that is remade or remade from: see `refinement`.

**What it costs.** At least c_k for each X[k,w] (windows of one op do not overlap, one rerun of an op
with several outputs counts once), page_in for each Y[i,w], page_out for each O[i] that is written in
the step. So the least cost of the program, over all numbers from 0 to 1, is a lower bound on the
joules above running every op once. Idle power is part of each cost where transfers block compute;
where they may run beside it, transfers are charged none and the first runs their own.

**What may be left out.** Dropping a row, or bytes from a memory row, can only lower the minimum; so
contents that together take a ten-thousandth of the budget are taken to be in RAM whenever an op reads
them, for no more than the transfers that the problem itself demands of them. An op whose rerun costs at
least as much as writing and reading all its outputs has no X: some cheapest schedule never reruns it
(`worth_rerunning`). The bound itself is summed from the engine's duals: `poet.solvers.engines.highs`.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from poet.solvers.bounds.unit_columns import UnitColumns, UnitCosts
from poet.solvers.bounds.windows import Windows
from poet.solvers.engines.highs import LinearAnswer, minimise
from poet.solvers.engines.program import NOUGHT, ONE, MatrixBuilder, Term
from poet.solvers.instance.instance import Instance
from poet.util.clock import WALL, Clock

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Segment:
    """A tensor version between two neighbouring fixed moments, with the columns that describe it there.

    Attributes:
        content: its number.
        after, until: the fixed moments; ``after`` may be the start at which it is in storage only.
        moments: of its grid, from ``after`` on: at which each window begins.
        kept, paged, made: K, Y and X per window, columns or constants.
    """

    content: int
    after: int
    until: int
    moments: tuple[int, ...]
    kept: tuple[int, ...]
    paged: tuple[int, ...]
    made: tuple[int, ...]

    @property
    def ends(self) -> tuple[int, ...]:
        """Moments at which the windows end."""
        return (*self.moments[1:], self.until)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The program of an instance, and what its columns mean.

    Attributes:
        program: costs are joules.
        fixed_joules: of transfers that no schedule can do without.
        segments: by content, in order of time; ``tails``: after the last fixed moments, where contents
            wait for reruns that read them.
        moments: of the memory rows; they are the first rows, in this order.
        at_home: of tensors whose home is chosen, by name, the column that has them in RAM between steps.
        units: columns of the units that ops are on; ``None``: there is no choice.
    """

    program: MatrixBuilder
    fixed_joules: float
    segments: tuple[Segment, ...]
    tails: tuple[Segment, ...]
    moments: tuple[int, ...]
    at_home: Mapping[str, int]
    units: UnitColumns | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound for every schedule of an instance whose first runs keep the listed order.

    Attributes:
        overhead_joules: no schedule takes less above running every op once; ``inf``: there is none.
        moments: added to the grids beside the fixed ones.
        relaxation, answer: the program, and its solution with the duals that prove the bound.
    """

    overhead_joules: float
    moments: frozenset[int]
    relaxation: Relaxation
    answer: LinearAnswer


def bound_overhead(
    instance: Instance,
    *,
    seconds: float = 60.0,
    moments: Collection[int] = (),
    clock: Clock = WALL,
    units: UnitCosts | None = None,
) -> Bound:
    """The bound that the linear program of the relaxation gives in ``seconds``.

    A run that is cut short gives a weaker bound, still a valid one.

    Args:
        instance: what to bound.
        seconds: of ``clock``.
        moments: to put on the grids of what may be remade or remade from.
        clock: of the search.
        units: which the ops of ``instance``, at least of all of them, are chosen from.
    """
    started = clock.now()
    relaxation = relax(instance, moments, units)
    left = seconds - (clock.now() - started)
    answer = minimise(relaxation.program.matrix(), seconds=left, clock=clock)
    overhead = relaxation.fixed_joules + answer.bound
    _log.info(
        "windows relaxation, linear program at %d moments: overhead at least %.9g after %.3f s%s",
        len(moments), overhead, clock.now() - started, "" if answer.done else ", cut short",
    )  # fmt: skip
    return Bound(overhead, frozenset(moments), relaxation, answer)


def taken_up(bound: Bound, *, seconds: float, clock: Clock = WALL) -> Bound:
    """``bound``, whose run was cut short, after ``seconds`` more; itself, where there is nothing to go on."""
    if bound.answer.go_on is None:
        return bound
    answer = bound.answer.go_on(seconds)
    overhead = max(bound.overhead_joules, bound.relaxation.fixed_joules + answer.bound)
    _log.info(
        "windows relaxation, linear program taken up again: overhead at least %.9g%s",
        overhead, "" if answer.done else ", cut short",
    )  # fmt: skip
    return replace(bound, overhead_joules=overhead, answer=answer)


def relax(instance: Instance, moments: Collection[int] = (), units: UnitCosts | None = None) -> Relaxation:
    """The program of ``instance``, with ``moments`` on the grids of what may be remade or remade from.

    ``units``: with the columns of `poet.solvers.bounds.unit_columns`.
    """
    layout = Windows(instance, moments)
    if units is not None:
        layout.units = UnitColumns(units, layout.program)
        layout.units.add_first_runs([1] * len(instance.tasks))
        layout.units.add_reruns(layout.run)
    for family in (_flow, _need, _cover, _again, _come_home, _pins, _time, _storage):
        for terms, at_most in family(layout):
            layout.program.row(terms, at_most)
    return Relaxation(
        program=layout.program,
        fixed_joules=layout.fixed_joules,
        segments=tuple(_segments(layout)),
        tails=tuple(_tails(layout)),
        moments=tuple(layout.moments),
        at_home={c.tensor: layout.present[c.number][0] for c in layout.large() if c.home == c.number},
        units=layout.units,
    )


# --- the families, as the module's docstring names them; memory rows grow with the columns ---

_Rows = Iterator[tuple[list[Term], float]]


def _less(terms: list[Term]) -> list[Term]:
    return [(-factor, column) for factor, column in terms]


def _flow(layout: Windows) -> _Rows:
    """P[i,g'] ≤ K[i,w] + Y[i,w] + X[k,w]; K[i,w] ≤ P[i,g]; Y[i,w] ≤ O[i]."""
    for content in layout.large():
        i = content.number
        present, made = layout.present[i], layout.made(i)
        for window, (kept, paged) in enumerate(zip(layout.kept[i], layout.paged[i], strict=True)):
            if kept != ONE:
                arrived = [(-1.0, kept), (-1.0, paged), (-1.0, made[window])]
                yield [(1.0, present[window + 1]), *arrived], 0.0
            if kept != present[window] and present[window] != ONE:
                yield [(1.0, kept), (-1.0, present[window])], 0.0
            if paged != NOUGHT and layout.stored[i] != ONE:
                yield [(1.0, paged), (-1.0, layout.stored[i])], 0.0


def _need(layout: Windows) -> _Rows:
    """X[k,w] ≤ P[j,a] + Σ Y[j,v] + W[p,s] for each input j of a rerun of k, p its producer."""
    for number, columns in layout.run.items():
        windows = itertools.pairwise(layout.grid[layout.tasks[number].outputs[0]])
        for column, (first, last) in zip(columns, windows, strict=True):
            if column != NOUGHT:
                yield from _needed(layout, number, column, first, last)


def _cover(layout: Windows) -> _Rows:
    """1 ≤ K[i,w] + O[i] + W, of its producer from window w to its next fixed moment."""
    for content in layout.large():
        i = content.number
        grid = layout.grid[i]
        copy = NOUGHT if content.page_in is None else layout.stored[i]
        for moment, following in itertools.pairwise(layout.fixed[i] if copy != ONE else ()):
            begin, stop = bisect.bisect_left(grid, moment), bisect.bisect_left(grid, following)
            for window in range(begin, stop):
                if layout.kept[i][window] == ONE:
                    continue
                remade = NOUGHT if content.producer is None else layout.again(content.producer, window, stop)
                yield [(-1.0, layout.kept[i][window]), (-1.0, copy), (-1.0, remade)], -1.0


def _again(layout: Windows) -> _Rows:
    """W ≤ Σ X[k,v] over the windows v of its stretch; need for W, which may add more such columns."""
    while layout.owed:
        stretch = layout.owed.pop()
        number, begin, stop = stretch
        grid = layout.grid[layout.tasks[number].outputs[0]]
        runs = [(-1.0, column) for column in layout.run[number][begin:stop]]
        yield [(1.0, layout.stretches[stretch]), *runs], 0.0
        yield from _needed(layout, number, layout.stretches[stretch], grid[begin], grid[stop])


def _needed(layout: Windows, number: int, again: int, first: int, last: int) -> _Rows:
    """Rows of a rerun of task ``number`` from ``first`` to ``last``: ``again`` ≤ visits of each input."""
    task = layout.tasks[number]
    for read in task.rerun_reads:
        visits = layout.visits(read, first, min(last, task.last_rerun_stage))
        if visits is not None:
            yield [(1.0, again), *_less(visits)], 0.0


def _come_home(layout: Windows) -> _Rows:
    """Where h = P[i,start]: h ≤ K[i,w] up to the first use; h ≤ P[j,end], j the last content; and where that
    is another, 1 - h ≤ O[j] and O[i] ≤ 1 - h + Z[i].
    """
    for last in layout.large():
        if last.home is None or not last.comes_home or last.home in layout.small:
            continue
        first = last.home
        at_home = layout.present[first][0]
        used = bisect.bisect_left(layout.grid[first], layout.fixed[first][0]) if layout.fixed[first] else 0
        held = {*layout.kept[first][:used], layout.present[last.number][-1]} - {at_home}
        for column in sorted(held):
            yield [(1.0, at_home), (-1.0, column)], 0.0
        if first != last.number:
            yield [(-1.0, at_home), (-1.0, layout.stored[last.number])], -1.0
        if first in layout.written:
            yield [(1.0, layout.stored[first]), (1.0, at_home), (-1.0, layout.written[first])], 1.0


def _pins(layout: Windows) -> _Rows:
    """K[i,w] ≥ 1 between fixed moments of what is pinned to stay; Σ K[i,w] ≤ windows - 1 across other ops of
    what is pinned to leave.
    """
    for content in layout.large():
        i = content.number
        for moment, following in itertools.pairwise(layout.fixed[i]):
            begin, stop = (bisect.bisect_left(layout.grid[i], each) for each in (moment, following))
            kept = layout.kept[i][begin:stop]
            if content.kept:
                yield from (([(-1.0, column)], -1.0) for column in kept if column != ONE)
            elif content.dropped and following - moment > 1:
                yield [(1.0, column) for column in kept], len(kept) - 1.0


def _time(layout: Windows) -> _Rows:
    """Seconds of reruns and of transfers ≤ what the deadline leaves; each alone where both engines run."""
    allowed = layout.instance.limits.deadline_seconds
    if allowed is None:
        return
    first_runs = math.fsum(task.cost.seconds for task in layout.tasks)
    allowed *= 1 + 2e-9  # the simulator's own tolerance, and rounding
    runs = [
        (layout.tasks[number].cost.seconds, column)
        for number, columns in layout.run.items()
        for column in columns
    ]
    runs += [] if layout.units is None else layout.units.seconds
    transfers = [
        (content.page_in.seconds, column)
        for content in layout.large()
        for column in layout.paged[content.number]
        if content.page_in is not None
    ]
    transfers += [
        (content.page_out.seconds, layout.stored[content.number])
        for content in layout.contents
        if content.page_out is not None and not content.starts_stored and content.home != content.number
    ]
    transfers += [
        (page_out.seconds, column)
        for number, column in layout.written.items()
        if (page_out := layout.contents[number].page_out) is not None
    ]
    if layout.instance.serial:
        yield runs + transfers, allowed - first_runs
    else:
        yield runs, allowed - first_runs
        yield transfers, allowed


def _storage(layout: Windows) -> _Rows:
    """Σ stored bytes·O ≤ what storage holds beyond what begins there, and ≤ what may be written."""
    written = [
        (float(content.stored_bytes), layout.stored[content.number])
        for content in layout.contents
        if not content.starts_stored and content.home != content.number
    ]
    written += [(float(layout.contents[number].stored_bytes), z) for number, z in layout.written.items()]
    begun = sum(content.stored_bytes for content in layout.contents if content.starts_stored)
    capacity = layout.instance.problem.storage_capacity_bytes
    budget = layout.instance.written_room_bytes
    for allowed in (None if capacity is None else max(0, capacity - begun), budget):
        if allowed is not None and written:
            unit = max(1.0, max(size for size, _ in written))
            yield [(size / unit, column) for size, column in written], allowed / unit


def _segments(layout: Windows) -> Iterator[Segment]:
    for content in layout.large():
        fixed = layout.fixed[content.number]
        if fixed and fixed[0] != content.birth:  # it begins in storage
            fixed = [content.birth, *fixed]
        for after, until in itertools.pairwise(fixed):
            yield _segment(layout, content.number, after, until)


def _tails(layout: Windows) -> Iterator[Segment]:
    for content in layout.large():
        last = layout.grid[content.number][-1]
        if layout.fixed[content.number] and layout.fixed[content.number][-1] < last:
            yield _segment(layout, content.number, layout.fixed[content.number][-1], last)


def _segment(layout: Windows, content: int, after: int, until: int) -> Segment:
    grid = layout.grid[content]
    begin, stop = bisect.bisect_left(grid, after), bisect.bisect_left(grid, until)
    return Segment(
        content=content,
        after=after,
        until=until,
        moments=tuple(grid[begin:stop]),
        kept=tuple(layout.kept[content][begin:stop]),
        paged=tuple(layout.paged[content][begin:stop]),
        made=tuple(layout.made(content)[begin:stop]),
    )
