"""Relaxations and exact searches that bound the energy (`poet.solvers.bounds`)."""

from __future__ import annotations

from dataclasses import dataclass

from poet.tuning.fields import Checked, tuned


@dataclass(frozen=True, slots=True)
class GridsTuning(Checked):
    """Which moments the relaxation looks at (`poet.solvers.bounds.refinement`).

    Attributes:
        priced_rounds: of the linear program, each with the moments at which RAM had a price: each finds fewer
            new ones. Off: one.
        priced_moments: added per round, those with the largest dual prices: few, as each adds a row and
            columns to the program. Off: none.
        many_contents: with more tensor versions, the first program has a moment without asking for prices: a
            program of 10,000 ops takes 7 s with no moment, 12 s with one. Off: none has.
        price_share: of the sum of all dual prices; a moment with more is added, the rest would hardly move
            the bound.
        made_share: of a tensor version, above which it counts as made again: below, fractions are spread so
            thin that they show no place.
        worth_share: of the bound's joules, which the value of an under-counted moment must exceed: with less,
            refinement ends, as what is gained is seen by nobody.
        level_shares: of the largest value; for each, the last moment of at least that value is added, so that
            one round adds several.
        progress_share: relative gain of the bound, below which a round is in vain: a tenth of a per cent per
            program is not worth its seconds.
        patience_rounds: in vain, after which refinement ends: one alone may only have moved the trouble
            elsewhere. Off: there is none.
        begin_factor: multiple of the seconds of the last round: with less time left, none is begun, because
            the next program is larger. Off: another is begun in any case.
    """

    priced_rounds: int = tuned(4, off=1)
    priced_moments: int = tuned(6, off=0)
    many_contents: int = tuned(4_000, off=1_000_000_000)
    price_share: float = 1e-3
    made_share: float = 0.3
    worth_share: float = 0.01
    level_shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    progress_share: float = 1e-3
    patience_rounds: int = tuned(2, off=0)
    begin_factor: float = tuned(1.5, off=0.0)


@dataclass(frozen=True, slots=True)
class DiscretisationTuning(Checked):
    """The relaxation in whole numbers (`poet.solvers.bounds.discretisation`).

    Attributes:
        stage_states: per stage of the suffix program at most, at the first and the second attempt: more
            states give a better bound, later, so the few come first. Off: the bound of the linear program
            alone.
        tracked_divisor: tracked versions have at least this part of the bytes of the largest one: what is
            smaller frees too little to matter, and each doubles the states.
        slower_factor: estimated seconds of the second attempt, as a multiple of the first: it has eight times
            the states, and each has more successors. Off: it is begun in any case.
        game_share: of the time left that it may take: half, as its tables are of use only in programs that
            follow.
        fewest_stages: that a suffix program must cover: a shorter one adds little.
        level_shares: as of `GridsTuning`, up to where the suffix program begins: one moment per round, that
            of the largest value, because each makes the program in whole numbers slower.
        counterexamples: stretches in which the solution, played through as a step, lacks RAM most, whose
            moments are added where others are in vain or not worth it: each is one that it must count, and a
            few at once save programs in between. Off: none.
        gap_share: relative gap at which a program counts as solved, as of a round's part.
        longest_program_seconds: of one program where there is no time limit, as of the large search.
        listen_seconds: between looks at the child: shorter than of the large search, because its programs
            are.
    """

    stage_states: tuple[int, ...] = tuned((50_000, 400_000), off=())
    tracked_divisor: int = 4
    slower_factor: float = tuned(10.0, off=0.0)
    game_share: float = 0.5
    fewest_stages: int = 4
    level_shares: tuple[float, ...] = (1.0,)
    counterexamples: int = tuned(3, off=0)
    gap_share: float = 1e-5
    longest_program_seconds: float = 600.0
    listen_seconds: float = 0.02


@dataclass(frozen=True, slots=True)
class SuffixTuning(Checked):
    """Suffix programs and the rows from them (`poet.solvers.bounds.suffix_program`, ``suffix_cuts``).

    Attributes:
        groups: at most, of versions that may be paged: each is a table, and charges its page-outs apart; the
            memory for them grows with their number.
        held_share: of a version, above which a solution holds it: what is more in than out.
        violated_share: of the largest value of the tables: a smaller violation adds no cut, since it is
            within the engine's tolerance.
        widening_shares: per cut, the share of the violation that widening the set must leave, and the weight
            of noise in the order: cuts that are weaker here are stronger elsewhere, and noise makes the last
            ones differ. Off: sets are widened where that costs nothing.
        memory_share: weight of earlier solutions in the average of what solutions held: 0.7 per solution, so
            that the third one back still has a third of the weight. Off: the last solution alone.
        slight_share: weight of that average beside what the last solution holds: it only orders what the
            solution leaves equal. Off: none.
    """

    groups: int = 8
    held_share: float = 0.5
    violated_share: float = 1e-6
    widening_shares: tuple[tuple[float, float], ...] = tuned(
        ((1.0, 0.0), (0.3, 0.0), (0.02, 0.0), (0.02, 0.5), (0.02, 0.5)), off=((1.0, 0.0),)
    )
    memory_share: float = tuned(0.7, off=0.0)
    slight_share: float = tuned(0.01, off=0.0)


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
class StatesTuning(Checked):
    """The search over states (`poet.solvers.bounds.state_search`).

    Attributes:
        most_alive: contents that are followed and alive at once, at most: a temporal net of 17 is proven in
            seconds, of one of 20 no search ended. Off: no state is looked at.
        alike_factor: contents whose sizes differ by less are followed together or not at all: a level for
            each size would search nearly the same states again.
        round_share: of the time left, in states, for a search after the first round: little, as it may be
            in vain.
        round_states: that one search there sets labels of, at most: seconds. Off: it is not tried there.
        restart_states: the same in the first restart; each restart doubles it. Off: not tried there.
        most_states: of any restart: more of them take hundreds of megabytes.
        most_looks: at sets of contents that may be freed, for each state that is allowed: with many small
            contents one state alone has thousands of such sets.
        looks: between two questions whether to stop: hundredths of a second.
        state_seconds: that a state counts where work is counted, about what it takes.
    """

    most_alive: int = tuned(18, off=0)
    alike_factor: float = 1.5
    round_share: float = 0.05
    round_states: int = tuned(20_000, off=0)
    restart_states: int = tuned(40_000, off=0)
    most_states: int = 160_000
    most_looks: int = 100
    looks: int = 4096
    state_seconds: float = 2e-4


@dataclass(frozen=True, slots=True)
class TimedTuning(Checked):
    """The search with two clocks (`poet.solvers.bounds.timed_search`), beside background storage.

    Attributes:
        most_contents: tensor versions of a problem, at most: steps of 7 ops have up to 15 and mostly take
            hundreds of labels; with twice as many searches took minutes in vain. Off: it is not tried.
        most_homes: tensors whose home the plan chooses, at most: each choice is a search of its own.
        round_share: of the time left, in labels, for a search after the first round, where storage is in the
            background.
        round_labels: that one search there goes on from, at most. Off: it is not tried there.
        restart_labels: the same in the first restart; each restart doubles it. Off: not tried there.
        most_labels: of any restart: more of them take hundreds of megabytes.
        looks: between two questions whether to stop: hundredths of a second.
        label_seconds: that a label counts where work is counted, about what it takes.
    """

    most_contents: int = tuned(18, off=0)
    most_homes: int = 4
    round_share: float = 0.2
    round_labels: int = tuned(5_000, off=0)
    restart_labels: int = tuned(20_000, off=0)
    most_labels: int = 80_000
    looks: int = 256
    label_seconds: float = 2e-4


@dataclass(frozen=True, slots=True)
class CopiesTuning(Checked):
    """The search over sets of copies (`poet.solvers.bounds.copies`).

    Attributes:
        most_arcs: transitions between sets that fit into RAM, over all stages: they take some 4 bytes each,
            the sets more, and memory is to stay below 500 MB. Off: nothing is looked at.
        most_short_arcs: the same, where only those of a size are followed that live shortly: they tell less
            than a whole size, in rounds that would take as long; where the size before took more, up to
            `short_factor` as many, and `part_factor` as many when such a search is over. Off: no size is
            followed in part.
        kept_factor: times as many, of all levels that may still go on: the lowest leave for one more.
        most_quick_arcs: up to which all of a size is followed at once; above, first what the cheapest step so
            far has no room for. Off: all of a size comes first, always.
        room_factor: of the transitions before, up to which as much of that is followed as can be: what has no
            room elsewhere may be another content by then. Off: nothing is followed for that reason.
        in_windows: what a rerun can make is followed from the move that has no room for it to its next read
            alone: elsewhere it would take transitions and tell nothing of that move. Off: in all stages.
        short_stages: what of a size exists in so many at most is followed before other parts of it: it takes
            few transitions. Off: with the others.
        shorts_factor: of the transitions before, up to which it is.
        short_factor: see there: else a net of few large contents would stop at its second size.
        part_factor: see there: what is quick comes first. Off: nothing follows.
        built_upon_share: where the first size is followed in part: of the dearest content that reruns of a
            cheapest step read long after it was there last, from which on others are followed with it: all at
            once would be too many, and some would not matter once the dear ones are followed. Off: none is.
        pass_share: of the time left, that one look at all transitions of a program in all columns may take: a
            round of a search has some twenty, and a program of one round tells little.
        most_sets: of copies that are listed: 24 bytes each, and each round looks at all.
        most_residents: steps of the joules of residents' page-outs that are listed, beyond which all count as
            paged: each more makes the list longer. Off: all are free.
        listed_divisor: residents of at least that part of what is followed are copies by themselves in the
            master program: below it one that leaves hardly makes room.
        master_seconds: of one master program: with hundreds of cuts most take tenths of a second.
        gap_share: of what is open, that the copies of a master program may be above its cheapest: as long as
            much is open, cuts from these do as well, and are found sooner. Off: none.
        most_rows: of sets that one solution of the master program is grown by: a cut of as few copies as can
            be takes one for each of these; shorter ones come from what the rows before have shown to matter.
        most_row_work: transitions times columns after which a set is grown no further: about two seconds.
        cuts_at_once: of one solution of the master program, each with the cheapest copy that was in the way
            of the one before: cuts that have little in common need fewer solutions, but only the first is
            sure to cut one off. For the `first_solutions` of a level, and where D is not out of reach, one.
        weighing_looks: programs in `columns` numbers of bytes each, for how many bytes residents must free
            where some contents have no copy: one such cut tells what takes one for each set of residents that
            leaves too few. Two find it to less than a percent of all their bytes. After the
            `first_solutions` of a level, as it takes as long as the cut itself. Off: none.
        first_solutions: see there: the first cuts are quickly found, and show whether the bound rises.
        paths_at_once: that are looked at for what they need in common: more would not tell it apart better.
        parts: units that joules of residents' page-outs are counted in, of what is asked for and of a step: a
            page-out is rounded down by less than a percent.
        columns: sets of copies whose programs are computed at once: with fewer, looking up a transition costs
            more than what it is for.
        most_values: sets that fit in one stage times columns: what the fastest caches nearly hold.
        most_tables: sets of all stages times columns, up to which values are kept for a walk along them: with
            more, those of one column are computed again.
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
        unwritten_share: of the time left, for the first turn where nothing may be written: there it closes
            the gap of few large contents within seconds, or another bound does. Off: as where something may.
        round_share: of the time left, after the first round of the event model: where it closes the gap, it
            mostly does so soon. Off: it is not tried there.
        decisive_share: of the time left then, for a second turn if the first leads and page-outs decide: most
            of the bound, and which page-outs pay, come from it. Off: one turn.
        restart_share: of the time left, in each restart. Off: not tried there.
        promising_share: of the time left when a turn began, to which it may go on while the bound's pace
            promises something: most of it, as nothing else moves a bound that this one would; plans need
            the rest.
            Off: no turn is longer than its share.
        promise_share: of the joules open between plan and best bound, that the pace must promise to close
            by then: less, and other parts have the better chances.
        most_seconds: of either, where there is much time or no limit: other parts are to have a turn.
        settled_seconds: after which the cheapest step that a search knows is worth a plan that writes what it
            writes, if it is still that: dearer ones take their turn soon after one another.
        planning_share: of a turn, that such plans may have taken before another one.
        anew_share: of a plan's overhead, by which a better one must be below it for the search to begin anew:
            it counts small page-outs in steps of what it is asked for. Off: it goes on.
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
    short_stages: int = tuned(16, off=0)
    shorts_factor: float = 4.0
    most_short_arcs: int = tuned(4_000_000, off=0)
    short_factor: float = 2.0
    part_factor: float = tuned(3.0, off=1.0)
    built_upon_share: float = tuned(0.3, off=0.0)
    pass_share: float = 0.02
    most_sets: int = 2_000_000
    most_residents: int = tuned(16, off=0)
    listed_divisor: int = 32
    master_seconds: float = 1.0
    gap_share: float = tuned(0.25, off=0.0)
    most_rows: int = 12
    most_row_work: int = 400_000_000
    cuts_at_once: int = 3
    weighing_looks: int = tuned(2, off=0)
    first_solutions: int = 10
    paths_at_once: int = 64
    parts: tuple[int, int] = (2048, 128)
    columns: int = 16
    most_values: int = 4_000_000
    most_tables: int = 10_000_000
    alike_factor: float = 1.5
    patience_seconds: float = tuned(10.0, off=1e9)
    rise_share: float = 0.01
    hopeful_share: float = tuned(0.75, off=0.0)
    lasting_share: float = 0.7
    unwritten_share: float = tuned(0.1, off=0.0)
    round_share: float = tuned(0.15, off=0.0)
    decisive_share: float = tuned(0.5, off=0.0)
    restart_share: float = tuned(0.25, off=0.0)
    promising_share: float = tuned(0.7, off=0.0)
    promise_share: float = 0.1
    most_seconds: float = 60.0
    settled_seconds: float = 1.0
    planning_share: float = 0.3
    anew_share: float = tuned(0.05, off=1.0)
    compile_seconds: float = 5.0
    loading_seconds: float = 1.0
    arc_seconds: float = 1e-9
