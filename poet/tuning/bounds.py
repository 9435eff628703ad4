"""Relaxations and exact searches that bound the energy (`poet.solvers.bounds`)."""

from __future__ import annotations

from dataclasses import dataclass

from poet.tuning.fields import Checked, tuned


@dataclass(frozen=True, slots=True)
class GridsTuning(Checked):
    """Which moments the relaxation looks at (`poet.solvers.bounds.refinement`).

    Attributes:
        priced_moments: added per round, those with the largest dual prices: few, as each adds a row and
            columns to the program. Off: none.
        price_share: of the sum of all dual prices; a moment with more is added, the rest would hardly move
            the bound.
        made_share: of a tensor version, above which it counts as made again: below, fractions are spread so
            thin that they show no place.
        worth_share: of the bound's joules, which the value of an under-counted moment must exceed: with less,
            refinement ends, as what is gained is seen by nobody.
        level_shares: of the largest value; for each, the last moment of at least that value is added, so that
            one round adds several.
    """

    priced_moments: int = tuned(6, off=0)
    price_share: float = 1e-3
    made_share: float = 0.3
    worth_share: float = 0.01
    level_shares: tuple[float, ...] = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class WindowsTuning(Checked):
    """What the windows relaxation leaves out (`poet.solvers.bounds.windows`).

    Attributes:
        many_contents: with more tensor versions, the smallest are left out, which makes the program smaller:
            as many as ops make a step a large one. Off: none are.
        negligible_share: of the budget, that those left out may take together; the bound is weaker by no
            more, and no gap asked for is that fine. Off: those of no bytes.
        dense_terms: tensor versions times memory rows, above which sums are carried from row to row, since
            rows that list all that is held through them grow with the square of the ops. Off: never.
    """

    many_contents: int = tuned(400, off=1_000_000_000)
    negligible_share: float = tuned(1e-4, off=0.0)
    dense_terms: int = tuned(1_000_000, off=1_000_000_000_000)


@dataclass(frozen=True, slots=True)
class CopiesTuning(Checked):
    """The search over sets of copies (`poet.solvers.bounds.copies`).

    Attributes:
        most_arcs: transitions between sets that fit into RAM, over all stages: they take some 4 bytes each,
            the sets more, and memory is to stay below 500 MB. Off: nothing is looked at.
        kept_factor: times as many, of all levels that may still go on: the lowest leave for one more.
        most_quick_arcs: up to which all of a size is followed at once; above, first what the cheapest step so
            far has no room for. Off: all of a size comes first, always.
        room_factor: of the transitions before, up to which as much of that is followed as can be: what has no
            room elsewhere may be another content by then. Off: nothing is followed for that reason.
        in_windows: what a rerun can make is followed from the move that has no room for it to its next read
            alone: elsewhere it would take transitions and tell nothing of that move. Off: in all stages.
        pass_share: of the time left, that one look at all transitions of a program in all columns may take: a
            round of a search has some twenty, and a program of one round tells little.
        most_sets: of copies that are listed: 24 bytes each, and each round looks at all.
        most_residents: steps of the joules of residents' page-outs that are listed, beyond which all count as
            paged: each more makes the list longer. Off: all are free.
        parts: units that joules of residents' page-outs are counted in, of what is asked for and of a step: a
            page-out is rounded down by less than a percent.
        columns: sets of copies whose programs are computed at once: with fewer, looking up a transition costs
            more than what it is for.
        most_values: sets that fit in one stage times columns: what the fastest caches nearly hold.
        alike_factor: contents whose sizes differ by less are followed together or not at all: a search for
            each size would tell nearly the same again.
        patience_seconds: after which a level whose bound hardly rises gives way to one that follows more. It
            must see the start of a master program's bound, which begins below what a list has shown, and
            mostly reaches that within seconds: with three, DS-CNN left the level that has its bound.
            Off: a level goes on until it is over.
        rise_share: of the joules open, by which a bound must be about to lead within that time.
        hopeful_share: of the highest bound of a level, below which one that has stood still waits until the
            others are over: it would need most of the time to reach them. Off: none waits.
        lasting_share: of what a copy was known to matter, beside what is learnt anew: both count.
        compile_seconds: with fewer left, nothing is looked at where the loops are yet to be compiled, once on
            each machine: that takes about as long, and is not interrupted.
        loading_seconds: with fewer left, nothing is looked at where the loops are yet to be loaded: it takes
            half as long, and is not interrupted.
        arc_seconds: that a transition counts in each column where work is counted, about what it takes.
    """

    most_arcs: int = tuned(12_000_000, off=0)
    kept_factor: float = 1.5
    most_quick_arcs: int = tuned(400_000, off=1 << 40)
    room_factor: float = tuned(2.0, off=0.0)
    in_windows: bool = tuned(True, off=False)
    pass_share: float = 0.02
    most_sets: int = 2_000_000
    most_residents: int = tuned(16, off=0)
    parts: tuple[int, int] = (2048, 128)
    columns: int = 16
    most_values: int = 4_000_000
    alike_factor: float = 1.5
    patience_seconds: float = tuned(10.0, off=1e9)
    rise_share: float = 0.01
    hopeful_share: float = tuned(0.75, off=0.0)
    lasting_share: float = 0.7
    compile_seconds: float = 5.0
    loading_seconds: float = 1.0
    arc_seconds: float = 1e-9
