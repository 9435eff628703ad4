"""The constants that the planner's search is tuned with, each with the reason for its value.

None of them makes an answer wrong: every plan is judged and every bound is proven or confirmed whatever they
are. They decide where time goes, and so which plan and bound a search has when its time is up. A record is
passed along from `poet.solution.SolveOptions`; nothing deep inside reads a global one.

The reasons say why a value is of its size; none is claimed to be the best one. ``python
tests/benchmarks/tuning.py`` measures one field at a time against another value, or switched off where the
field has a value for that. Tolerances that a proof rests
on are no tuning: they stand where the proof is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from poet.errors import InputError, nearest

T = TypeVar("T")


def _tuned(default: T, *, off: T) -> T:
    """A field of ``default`` whose value ``off`` switches off what it is for."""
    tuned: T = field(default=default, metadata={"off": off})
    return tuned


class _Checked:
    """Numbers, or tuples of them, that are finite and not negative; whole ones and the lengths of tuples
    are at least 1, unless 0 switches the field off.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for tuned in dataclasses.fields(self):  # type: ignore[arg-type]
            value, where = getattr(self, tuned.name), f"{type(self).__name__}.{tuned.name}"
            if not all(math.isfinite(number) and number >= 0 for number in _numbers(value)):
                raise InputError(f"{where}: {value!r} is not made of finite numbers of at least 0")
            if value in (0, ()) and not isinstance(value, float) and tuned.metadata.get("off") != value:
                raise InputError(f"{where}: {value!r} is too little; give at least 1")


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, tuple):
        for part in value:
            yield from _numbers(part)
    else:
        yield value


@dataclass(frozen=True, slots=True)
class SearchTuning(_Checked):
    """The order of things (`poet.solvers.search.least_energy`).

    Attributes:
        chain_reruns: per round, the longest chain of rerun slots that leads to one tensor version: 3 first,
            because such a model of a typical net is solved at once; 8 and 16 only if the gap is open, because
            slots cost columns in every stage. Off: no round; the search goes on with what comes after them.
        large_ops: above, models are made of few reruns and plans improved part by part: whole event models of
            more ops than this take engines longer than a usual time limit. Off: none is large.
        small_ops: up to here every rerun is offered in every stage, several times: a model of so few ops is
            solved at once. Off: nowhere.
        sizeable_ops: above, the large search is tried after the first round if the gap is sizeable, and
            relaxations in whole numbers are not: their programs, with a column per op and moment, are meant
            for steps of fewer.
        sizeable_first_share: of the time left, for the large search on a sizeable step before the first
            round: where time is short its linear program has a bound long before the event model. Off: it
            waits.
        sizeable_first_seconds: for that at most: a bound, and plans that follow its solution, are there by
            then; the rounds bring better ones.
        sizeable_gap_share: of the overhead, from which on a gap is sizeable: below it the rounds have better
            chances to close it by themselves. Off: no gap is.
        large_share: of the time left, for the large search on a sizeable step; half, as nobody knows
            beforehand whether it or the rounds that follow will close the gap.
        greedy_small_seconds: for greedy plans of small steps: an upper limit, above what the tries of a small
            step take. Off: the first.
        greedy_large_seconds: for greedy plans of large steps, where each takes long and the walks along the
            relaxation, which needs the time, are better. Off: the first.
        greedy_share: of the time left that greedy plans take at most, so that short searches have a bound as
            well.
        model_share: of the time left that one model may take: with a quarter, four models get a turn even if
            none ends early.
        model_floor_seconds: that it may take even where the share is less: small models are solved within it.
            Off: the share.
        model_least_seconds: that it may take where no time is left: engines refuse 0, and this is as good as
            nothing.
        confirm_least_seconds: that a second opinion may take even where the search took less: an engine of
            another kind may be some times slower on the same small model. Off: as long as the search took.
        first_engine_share: of a relaxed model's time for HiGHS, where CP-SAT comes second: somewhat less than
            half, because what HiGHS solves at all it mostly solves early. Off: HiGHS takes all of it.
        proof_share: of the seconds spent, for a proof in exact fractions: a tenth is not felt by who waits.
        proof_least_seconds: for that, where the share is less: small programs need no more.
        proof_most_seconds: for that, where the share is more: a second engine is then the better use. Off: no
            proof.
        proof_left_share: of the time left that it takes at most, so that a second engine still has as much.
        engine_gap_share: of the gap allowed in the end, at which an engine may stop: rounding and the judge's
            sums need the rest. Off: the engine goes on to the end.
    """

    chain_reruns: tuple[int, ...] = _tuned((3, 8, 8, 8, 16, 16), off=())
    large_ops: int = _tuned(400, off=1_000_000_000)
    small_ops: int = _tuned(16, off=0)
    sizeable_ops: int = 200
    sizeable_first_share: float = _tuned(0.5, off=0.0)
    sizeable_first_seconds: float = 4.0
    sizeable_gap_share: float = _tuned(0.02, off=1.0)
    large_share: float = 0.5
    greedy_small_seconds: float = _tuned(2.0, off=0.0)
    greedy_large_seconds: float = _tuned(1.0, off=0.0)
    greedy_share: float = 0.25
    model_share: float = 0.25
    model_floor_seconds: float = _tuned(1.0, off=0.0)
    model_least_seconds: float = 0.01
    confirm_least_seconds: float = _tuned(2.0, off=0.0)
    first_engine_share: float = _tuned(0.4, off=1.0)
    proof_share: float = 0.1
    proof_least_seconds: float = 0.1
    proof_most_seconds: float = _tuned(1.0, off=0.0)
    proof_left_share: float = 0.5
    engine_gap_share: float = _tuned(0.3, off=0.0)


@dataclass(frozen=True, slots=True)
class RestartsTuning(_Checked):
    """What is tried where the rounds end with a gap left (`poet.solvers.search.after_rounds`).

    Attributes:
        relaxed_share: of the time left, for a restart's relaxed model: it knows most reruns and is the
            slowest program of a restart, so it has half.
        large_share: of the time left, for the linear relaxation, its walks and the neighbourhood search: half
            of what the relaxed model leaves.
        first_chain: reruns that lead to one tensor version, at most, before the first restart, each of which
            doubles it: as many as the last round's.
        most_doublings: of the length and depth of chains: 16 doubled ten times is longer than any step has
            ops.
        most_slots: that a model knows without having asked for them: with more, its linear program alone
            takes longer than a restart has. Off: it knows what it asked for.
    """

    relaxed_share: float = 0.5
    large_share: float = 0.5
    first_chain: int = 16
    most_doublings: int = 10
    most_slots: int = _tuned(2000, off=0)


@dataclass(frozen=True, slots=True)
class ObjectivesTuning(_Checked):
    """Objectives beside energy (`poet.solvers.search.objectives`).

    Attributes:
        first_share: of the time for the objective; the rest breaks ties by energy, which begins with a plan
            and so needs less.
        pins_seconds: to see whether there is a plan without the pins: an explanation should not be waited for
            longer. Off: it is not looked at.
        probe_share: of the time left that one RAM budget may take while budgets are halved: three probes fit
            even if none ends early.
        probe_least_seconds: that it may take where the share is less: greedy plans and first bounds need some
            time of their own.
    """

    first_share: float = 0.6
    pins_seconds: float = _tuned(1.0, off=0.0)
    probe_share: float = 0.3
    probe_least_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class ExplanationTuning(_Checked):
    """What would help where there is no plan (`poet.solvers.search.explain`).

    Attributes:
        most_seconds: for all that an explanation searches for: it should not be waited for. Off: nothing is
            explained.
        spare_share: of the time limit, that a search without a plan leaves to its explanation: a tenth is too
            little to have found the plan. Off: what happens to be left.
        least_seconds: for one limit; with less nothing is searched for, as nothing would be found.
    """

    most_seconds: float = _tuned(2.0, off=0.0)
    spare_share: float = _tuned(0.1, off=0.0)
    least_seconds: float = 0.02


@dataclass(frozen=True, slots=True)
class BoundRoundsTuning(_Checked):
    """When relaxations in whole numbers run between rounds (`poet.solvers.search.bound_rounds`).

    Attributes:
        stall_share: of the joules open before a round (plan less bound): a round that gains less than a tenth
            would need dozens like it, so it has stalled, and a long run follows. Off: only after rounds that
            gained nothing.
        time_share: of the time left, that one run may take; the rounds, which find the plans, have as much.
        leading_time_share: the same, while the best bound is from such a run: what leads is worth more than
            half. Off: as ``time_share``.
        first_look_factor: multiple of the seconds of a short run at which its last program is ended, so that
            it may finish what it began. Off: no longer than the run.
    """

    stall_share: float = _tuned(0.1, off=0.0)
    time_share: float = 0.5
    leading_time_share: float = _tuned(0.75, off=0.5)
    first_look_factor: float = _tuned(3.0, off=1.0)


@dataclass(frozen=True, slots=True)
class LargeTuning(_Checked):
    """The search on large steps (`poet.solvers.search.large`).

    Attributes:
        offer_reruns: per class of plans, the length of the chains of producers that are offered in any case,
            and the depth along which all that the relaxation remakes is offered; small classes first, because
            they are solved soon, and the last as deep as long chains go. Off: the first class alone.
        longest_program_seconds: of one program where there is no time limit: ten minutes, after which another
            program is the better chance.
        listen_seconds: between looks at a child: an answer waits no longer, and looking costs nothing that is
            seen.
        late_seconds: before the end, from which on no round may overrun its time: one in this process can, by
            seconds on the largest steps. Off: each may.
        quick_rounds: without a better plan, before whole programs are tried: each frees another part, and
            eight see most of a step. Off: none are made.
        alike_share: of the time left, for blocks that repeat to be decided alike, so that equal layers soon
            have a good plan: a few seconds of a minute. Off: they are not.
        quick_share: of the time left, for the quick rounds: a first harvest, which whole programs then start
            from.
        bound_share: of the time left, for each relaxation: there are several, and plans need the rest.
        class_share: of the time left, for a class's program as a whole: half, as larger classes follow.
        patience_share: of the time left, without a better bound or plan, after which a bound in whole numbers
            is given up, which leaves its time to plans. Off: it has all of its share.
        alike_least_seconds: with less, repeated blocks are not decided alike: building the program takes most
            of it.
        beside_seconds: of one round beside a whole program, after which the program is listened to: its
            better plans are worth more to the next round than a longer round is.
        build_factor: times the seconds that the last model took, which must be left for another: it is
            larger, and is to be solved as well. Off: it is begun in any case.
        remade_share: of a tensor version, above which the solution counts as remaking it: what an engine's
            tolerance leaves of 0 does not count.
    """

    offer_reruns: tuple[tuple[int, int], ...] = _tuned(((1, 6), (4, 6), (4, 12), (8, 40)), off=((1, 6),))
    longest_program_seconds: float = 600.0
    listen_seconds: float = 0.05
    late_seconds: float = _tuned(12.0, off=0.0)
    quick_rounds: int = _tuned(8, off=0)
    alike_share: float = _tuned(0.06, off=0.0)
    quick_share: float = 0.15
    bound_share: float = 0.25
    class_share: float = 0.5
    patience_share: float = _tuned(0.1, off=1.0)
    alike_least_seconds: float = 1.0
    beside_seconds: float = 1.0
    build_factor: float = _tuned(2.0, off=0.0)
    remade_share: float = 1e-6


@dataclass(frozen=True, slots=True)
class RoundsTuning(_Checked):
    """Rounds of the large-neighbourhood search (`poet.solvers.search.neighbourhood`).

    Attributes:
        gap_share: of its joules, at which a part counts as solved: less would not be seen in the sum of a
            step.
        first_decisions: that the first round leaves free: small enough to be solved at once; later rounds
            adapt.
        least_decisions: that any round leaves free: smaller parts have little to trade.
        round_seconds: of one round at most: a part that takes longer is too large, and the next is made
            smaller.
        late_seconds: before the end, from which on no round may overrun its time, as of the large search.
            Off: each may.
        listen_seconds: between looks at a child, as of the large search.
        patience_rounds: without a better plan, after which a model is given up: by then rounds have freed
            many parts of a step more than once. Off: no rounds.
        stretch_counts: of the step that a round frees, of which one is drawn: one stretch mostly, several at
            times, because RAM freed in one can be spent in another. Off: one stretch in every round.
        disputed_every_rounds: of which the last one frees only what plan and relaxation disagree on: often
            enough to follow a bound that moves, and leaving most rounds to the rest. Off: none does.
        disputed_share: of a tensor version, from which on they disagree: above an engine's tolerance, below
            anything a plan means.
        least_weight: of a decision that is not in dispute, when the middle of a stretch is drawn; a whole
            version in dispute weighs 1 more. Not 0, because relaxations are wrong at places.
        easy_share: of a round's time, less than which it was easy, so that more can be freed without running
            out of it. Off: none was.
        growth_factor: of the decisions after an easy round: slowly, as the time of a program grows faster
            than its size. Off: no growth.
        shrink_factor: of the decisions after a round that ran out of time: about what two easy rounds before
            it added. Off: no shrinking.
        begin_share: of the time left, for each program that looks for a first plan: two get a turn and leave
            time to improve what they find.
    """

    gap_share: float = 1e-5
    first_decisions: int = 100
    least_decisions: int = 40
    round_seconds: float = 2.5
    late_seconds: float = _tuned(12.0, off=0.0)
    listen_seconds: float = 0.05
    patience_rounds: int = _tuned(25, off=0)
    stretch_counts: tuple[int, ...] = _tuned((1, 1, 2, 3), off=(1,))
    disputed_every_rounds: int = _tuned(3, off=1_000_000_000)
    disputed_share: float = 0.01
    least_weight: float = 0.02
    easy_share: float = _tuned(0.3, off=0.0)
    growth_factor: float = _tuned(1.3, off=1.0)
    shrink_factor: float = _tuned(0.7, off=1.0)
    begin_share: float = 0.4


@dataclass(frozen=True, slots=True)
class SymmetryTuning(_Checked):
    """What counts as alike (`poet.solvers.search.symmetry`).

    Attributes:
        distance_ops: up to which the neighbours of symmetric ops are symmetric: further, the ends of a net
            reach into all of its blocks.
        repeating_share: different ops, as a share of all, up to which a step counts as repeating itself: at
            half, tying leaves half of the decisions, where the smaller program begins to pay. Off: no step
            does.
    """

    distance_ops: int = 3
    repeating_share: float = _tuned(0.5, off=0.0)


@dataclass(frozen=True, slots=True)
class GridsTuning(_Checked):
    """Which moments the relaxation looks at (`poet.solvers.bounds.refinement`).

    Attributes:
        priced_rounds: of the linear program, each with the moments at which RAM had a price: each finds fewer
            new ones. Off: one.
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
        progress_share: relative gain of the bound, below which a round is in vain: a tenth of a per cent per
            program is not worth its seconds.
        patience_rounds: in vain, after which refinement ends: one alone may only have moved the trouble
            elsewhere. Off: there is none.
        begin_factor: multiple of the seconds of the last round: with less time left, none is begun, because
            the next program is larger. Off: another is begun in any case.
    """

    priced_rounds: int = _tuned(4, off=1)
    priced_moments: int = _tuned(6, off=0)
    price_share: float = 1e-3
    made_share: float = 0.3
    worth_share: float = 0.01
    level_shares: tuple[float, ...] = (0.25, 0.5, 0.75)
    progress_share: float = 1e-3
    patience_rounds: int = _tuned(2, off=0)
    begin_factor: float = _tuned(1.5, off=0.0)


@dataclass(frozen=True, slots=True)
class DiscretisationTuning(_Checked):
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
        gap_share: relative gap at which a program counts as solved, as of a round's part.
        longest_program_seconds: of one program where there is no time limit, as of the large search.
        listen_seconds: between looks at the child: shorter than of the large search, because its programs
            are.
    """

    stage_states: tuple[int, ...] = _tuned((50_000, 400_000), off=())
    tracked_divisor: int = 4
    slower_factor: float = _tuned(10.0, off=0.0)
    game_share: float = 0.5
    fewest_stages: int = 4
    level_shares: tuple[float, ...] = (1.0,)
    gap_share: float = 1e-5
    longest_program_seconds: float = 600.0
    listen_seconds: float = 0.02


@dataclass(frozen=True, slots=True)
class SuffixTuning(_Checked):
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
    widening_shares: tuple[tuple[float, float], ...] = _tuned(
        ((1.0, 0.0), (0.3, 0.0), (0.02, 0.0), (0.02, 0.5), (0.02, 0.5)), off=((1.0, 0.0),)
    )
    memory_share: float = _tuned(0.7, off=0.0)
    slight_share: float = _tuned(0.01, off=0.0)


@dataclass(frozen=True, slots=True)
class WindowsTuning(_Checked):
    """What the windows relaxation leaves out (`poet.solvers.bounds.windows`).

    Attributes:
        many_contents: with more tensor versions, the smallest are left out, which makes the program smaller:
            as many as ops make a step a large one. Off: none are.
        negligible_share: of the budget, that those left out may take together; the bound is weaker by no
            more, and no gap asked for is that fine. Off: those of no bytes.
        dense_terms: tensor versions times memory rows, above which sums are carried from row to row, since
            rows that list all that is held through them grow with the square of the ops. Off: never.
    """

    many_contents: int = _tuned(400, off=1_000_000_000)
    negligible_share: float = _tuned(1e-4, off=0.0)
    dense_terms: int = _tuned(1_000_000, off=1_000_000_000_000)


@dataclass(frozen=True, slots=True)
class ModelTuning(_Checked):
    """How the event model is written down (`poet.solvers.event_model`).

    Attributes:
        tight_slots: up to so many, r, a and O are integer columns, which the cuts on memory rows count on;
            above, fewer integers leave the engine less to branch on. Off: never.
        dense_terms: events times memory rows, above which rows that list every gap are too dense, and sums
            are carried from row to row, by their number times a dozen bytes. Off: never.
        asked_inputs: at most, of the chain of inputs that are required at a window's last stage: as long as
            chains of recomputation usually are. Off: none.
        cut_sizes: the commonest sizes of a memory row, each tried as the unit of a knapsack cut: few sizes
            make up most of a net's tensors. Off: no knapsack cuts.
    """

    tight_slots: int = _tuned(2500, off=0)
    dense_terms: int = _tuned(10_000_000, off=1_000_000_000_000)
    asked_inputs: int = _tuned(6, off=0)
    cut_sizes: int = _tuned(3, off=0)


@dataclass(frozen=True, slots=True)
class GreedyTuning(_Checked):
    """Greedy plans (`poet.solvers.heuristics.greedy`).

    Attributes:
        home_shares: of the bytes whose home is a choice, how much is at home in RAM, per try, the dearest to
            page first; all away and all at home first, because these two are the extremes. Off: all away.
        work_items: ops and tensors planned over all tries, so that small steps have many tries and large ones
            few. Off: the least tries.
        least_tries: of plans, on the largest steps: all away, all at home, and half of it.
        most_tries: of plans, on the smallest, where tries cost nothing and repeat each other.
        longest_remake_ops: of one recomputation, so that its price is found quickly; a longer one is seldom
            cheaper than paging.
        refund_factor: times the price of paging that a recomputation may take before it is given up, as a
            part of it may be refunded by tensors that it makes on the way.
        cover_bias: exponent of the bytes relieved in the second plan: it prefers small prices, where the
            first, with 1, prefers the price per byte.
        remake_factors: of a recomputation's price, one more plan each: above 1, because recomputing holds
            inputs that its price leaves out; one without any follows. Off: that one alone.
        hurry_factors: of the typical watts, added per second where there is a deadline, from a hint to almost
            time alone; every second one is added to the seconds of ops alone, without a deadline too. Off: no
            plan hurries.
        favourite_share: of the random plans that vary the best so far; the others vary any, lest all end in
            one place.
        remake_deviation: of the logarithm of a random plan's price of recomputation: steps of about a fifth.
            Off: it stays.
        remake_range: of that price's factor, least and most: beyond, plans do not change any more.
        bias_deviation: of a random plan's exponent: a quarter of the way between the first two plans' and
            less. Off: it stays.
        bias_range: of that exponent, least and most: beyond, size or price alone decides.
        noise_deviations: of the logarithm of each price, of which a random plan draws one, from none to half
            as much again. Off: none.
    """

    home_shares: tuple[float, ...] = _tuned((0.0, 1.0, 0.5, 0.25, 0.75), off=(0.0,))
    work_items: int = _tuned(10_000, off=0)
    least_tries: int = 3
    most_tries: int = 150
    longest_remake_ops: int = 24
    refund_factor: float = 4.0
    cover_bias: float = 0.7
    remake_factors: tuple[float, ...] = _tuned((1.3, 2.0), off=())
    hurry_factors: tuple[float, ...] = _tuned((0.3, 1.0, 3.0, 10.0, 100.0), off=())
    favourite_share: float = 0.7
    remake_deviation: float = _tuned(0.2, off=0.0)
    remake_range: tuple[float, float] = (0.5, 9.0)
    bias_deviation: float = _tuned(0.15, off=0.0)
    bias_range: tuple[float, float] = (0.4, 1.5)
    noise_deviations: tuple[float, ...] = _tuned((0.0, 0.05, 0.1, 0.2, 0.4), off=(0.0,))


@dataclass(frozen=True, slots=True)
class WalksTuning(_Checked):
    """Walks along the relaxation's solution (`poet.solvers.heuristics.lp_guided`).

    Attributes:
        sure_shares: of a tensor version, from which on it counts as kept, one set of walks each: what is more
            kept than not, and what is as good as whole. Off: no walk.
        price_exponents: of the joules of coming back in what is dropped first, one walk each; above 1 few
            joules count more than long gaps, below 1 long gaps do.
        back_share: of a tensor version, above which it counts as made again or paged in, as of the grids.
    """

    sure_shares: tuple[float, ...] = _tuned((0.5, 0.99), off=())
    price_exponents: tuple[float, ...] = (1.4, 1.0, 0.7)
    back_share: float = 0.3


@dataclass(frozen=True, slots=True)
class OverlapTuning(_Checked):
    """Transfers beside compute (`poet.solvers.instance.overlap`).

    Attributes:
        polished_steps: of a schedule at most whose frees and transfers are moved while that saves time: the
            places to try grow with the square of its length. Off: none is polished.
    """

    polished_steps: int = _tuned(120, off=0)


@dataclass(frozen=True, slots=True)
class EnginesTuning(_Checked):
    """How engines are run (`poet.solvers.engines`).

    Attributes:
        listen_seconds: between checks of Ctrl-C and the watcher while CP-SAT runs: a person does not notice
            the wait.
        cpsat_grace_seconds: beyond its time limit, after which CP-SAT is killed: presolve looks at its clock
            rarely.
        highs_grace_seconds: beyond its time limit, after which HiGHS in a child is not listened to any more:
            time limits are kept within half a second.
        tell_seconds: between two bounds that HiGHS in a child tells: fresh enough for whoever watches, rare
            enough to cost nothing.
        counted_seconds: of the wall clock, between two checks of a child whose work is counted: it is heard
            only when it has ended.
        silent_seconds: of the wall clock, without a word of such a child, after which it counts as hung:
            programs whose work is counted speak several times a second.
        proof_factors: of a program at most that is proven empty in exact fractions: summing up larger ones
            takes more than the second that a proof has. Off: nothing is.
    """

    listen_seconds: float = 0.05
    cpsat_grace_seconds: float = 5.0
    highs_grace_seconds: float = 0.5
    tell_seconds: float = 0.2
    counted_seconds: float = 1.0
    silent_seconds: float = 120.0
    proof_factors: int = _tuned(400_000, off=0)


@dataclass(frozen=True, slots=True)
class AlternativesTuning(_Checked):
    """Other forms of ops (`poet.solvers.search.over_alternatives`).

    Attributes:
        all_choices: alternatives of which every choice is searched: each more halves the time of a choice,
            and three leave each an eighth. Off: one choice is searched, with a bound for all.
        guide_share: of the time at most, for the linear program in which forms are open: its bound is for all
            choices, and the choice that it suggests is searched. Nets of some hundred ops need a tenth of a
            second, of a thousand some seconds. Off: a choice by bytes and by what an op needs at once.
        guide_seconds: likewise at most, so that long limits are not used up by it.
        taken_share: of a form in that program's solution, above which the choice has it: the nearer one.
        main_share: of the time left, for the choice that is searched; the rest is for the relaxed problem's
            bound: plans take longer than bounds.
        fitting_share: of the time at most, for how few alternatives are enough for keeping everything: each
            try takes a tenth of a second on nets of some hundred ops.
        fitting_seconds: likewise at most, so that long limits are not used up by it.
        unlimited_seconds: for one of several choices where there is no time limit, because a search ends with
            its proof alone.
    """

    all_choices: int = _tuned(3, off=0)
    guide_share: float = _tuned(0.25, off=0.0)
    guide_seconds: float = 20.0
    taken_share: float = 0.5
    main_share: float = 0.85
    fitting_share: float = 0.2
    fitting_seconds: float = 5.0
    unlimited_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class RivalsTuning(_Checked):
    """The published planners (`poet.solvers.literature`): as much effort as makes them good rivals.

    Attributes:
        again_seconds: of searching on from another planner's better plan, at most: as long as a usual search.
            Off: at once over.
        capuchin_parts: in which the ranked candidates are taken: the plan is judged after each, and more
            parts make it slower in proportion.
        chain_stages: that a step is cut into at most: the program over stages grows with their cube, and
            forty keep it to seconds.
        memory_units: that the program over stages counts memory in, which rounds a size by a fifth of a per
            cent of the memory at most.
        memory_factors: of the memory, the program's, in turn: sizes are rounded up, and few steps are quite a
            chain. Off: what there is.
        guided_walks: by the program, with less and less memory: each is judged, the best counts.
        pruned_ops: judged while reruns are left out, one by one: judging is linear in a step, so it stays
            within seconds. Off: none is left out.
        far_ops: from which on a reader counts as far, in turn: powers of two cover short and long steps in
            five tries.
    """

    again_seconds: float = _tuned(10.0, off=0.0)
    capuchin_parts: int = 32
    chain_stages: int = 40
    memory_units: int = 500
    memory_factors: tuple[float, ...] = _tuned(
        (1.0, 1.01, 1.03, 1.07, 1.15, 0.95, 0.9, 0.8, 0.65), off=(1.0,)
    )
    guided_walks: int = 16
    pruned_ops: int = _tuned(10_000, off=0)
    far_ops: tuple[int, ...] = (2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class StatesTuning(_Checked):
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

    most_alive: int = _tuned(18, off=0)
    alike_factor: float = 1.5
    round_share: float = 0.05
    round_states: int = _tuned(20_000, off=0)
    restart_states: int = _tuned(40_000, off=0)
    most_states: int = 160_000
    most_looks: int = 100
    looks: int = 4096
    state_seconds: float = 2e-4


@dataclass(frozen=True, slots=True)
class CopiesTuning(_Checked):
    """The search over sets of copies (`poet.solvers.bounds.copies`).

    Attributes:
        most_arcs: transitions between sets that fit into RAM, over all stages: they take some 8 bytes each,
            and memory is to stay below 500 MB. Off: nothing is looked at.
        most_sets: of copies that are listed: 24 bytes each, and each round looks at all.
        most_residents: steps of the joules of residents' page-outs that are listed, beyond which all count as
            paged: each more makes the list longer. Off: all are free.
        listed_divisor: residents of at least that part of what is followed are copies by themselves in the
            master program: below it one that leaves hardly makes room.
        master_seconds: of one master program: with hundreds of cuts most take tenths of a second.
        most_rows: of sets that one solution of the master program is grown by: a cut of as few copies as can
            be takes one for each of these; shorter ones come from what the rows before have shown to matter.
        most_row_work: transitions times columns after which a set is grown no further: about two seconds.
        kept_share: of what D is above its least, that growing a set may not give up: a cut of few copies
            and little less says more than one of many.
        parts: units that joules of residents' page-outs are counted in, of what is asked for and of a step: a
            page-out is rounded down by less than a percent.
        columns: sets of copies whose programs are computed at once: with fewer, looking up a transition costs
            more than what it is for.
        most_values: sets that fit in one stage times columns: what the fastest caches nearly hold.
        alike_factor: contents whose sizes differ by less are followed together or not at all: a search for
            each size would tell nearly the same again.
        lasting_share: of what a copy was known to matter, beside what is learnt anew: both count.
        round_share: of the time left, after the first round of the event model: where it closes the gap, it
            mostly does so soon. Off: it is not tried there.
        restart_share: of the time left, in each restart. Off: not tried there.
        most_seconds: of either, where there is much time or no limit: other parts are to have a turn.
        arc_seconds: that a transition counts in each column where work is counted, about what it takes.
    """

    most_arcs: int = _tuned(12_000_000, off=0)
    most_sets: int = 2_000_000
    most_residents: int = _tuned(16, off=0)
    listed_divisor: int = 32
    master_seconds: float = 1.0
    most_rows: int = 12
    most_row_work: int = 400_000_000
    kept_share: float = 0.7
    parts: tuple[int, int] = (2048, 128)
    columns: int = 16
    most_values: int = 2_000_000
    alike_factor: float = 1.5
    lasting_share: float = 0.7
    round_share: float = _tuned(0.15, off=0.0)
    restart_share: float = _tuned(0.25, off=0.0)
    most_seconds: float = 60.0
    arc_seconds: float = 5e-9


@dataclass(frozen=True, slots=True)
class CopiesSearchTuning(_Checked):
    """The local search over what may be written to storage (`poet.solvers.heuristics.copies_search`).

    Attributes:
        patience_tries: in a row without a better plan, after which it ends: as many as a set has neighbours
            of each kind in a net of a hundred tensors, twice over. Off: it is not tried.
        return_tries: without a better plan, after which it goes on from the best one again: a third of the
            above, so that it leaves twice before it ends.
        worse_share: of the joules, by which a plan may be worse and yet be gone on from: about a page-out.
        exponent_share: of the tries, for another exponent of the price: few, as there are few of them.
        first_exponents: for the sets by size that come first: price hardly counts, and counts. Off: such sets
            are not tried.
        exponents: from price hardly counts to price decides, as no one of them is best for every net.
        round_share: of the time left, after the first round of the event model: a good plan makes the bounds
            that follow, which look at nothing above it, much shorter. Off: it is not tried there.
        restart_share: of the time left, in each restart. Off: not tried there.
        most_seconds: of either, where there is much time or no limit.
        open_share: of the overhead, from which on a gap is worth it: a small one is closed by the event
            model sooner.
        try_schedules: that a try counts as where work is counted: making a plan takes some times as long as
            judging it.
    """

    patience_tries: int = _tuned(300, off=0)
    return_tries: int = 100
    worse_share: float = 0.02
    exponent_share: float = 0.1
    first_exponents: tuple[float, ...] = _tuned((0.1, 0.5, 1.0), off=())
    exponents: tuple[float, ...] = (0.3, 0.5, 0.7, 1.0, 1.4)
    round_share: float = _tuned(0.15, off=0.0)
    restart_share: float = _tuned(0.05, off=0.0)
    most_seconds: float = 20.0
    open_share: float = 0.05
    try_schedules: int = 6


@dataclass(frozen=True, slots=True)
class FittingTuning(_Checked):
    """How a plan is fitted into its arena (`poet.planning.fit_layout`).

    Attributes:
        rounds: of search and layout at most: each holds back half as much again as was missing, so that six
            have held back several times what the first lacked.
        growth_factor: times the missing bytes that are held back, from the second round on: the first may be
            lucky with just what is missing. Off: so are the others.
        layout_seconds: of one layout: those that fit are mostly found at once.
        laying_share: of the time limit, that the first search leaves for layouts and repeats. Off: none.
        least_seconds: with less time, the search is not repeated, as it would find nothing.
        exact_seconds: of the second search for fixed places, by CP-SAT: it fits many that the first does not,
            and proves of others that nothing does. Off: there is none.
        exact_share: of the time that the first search left, for that at most: searches with less RAM need
            some as well. Off: none.
        moving_seconds: of the search for moves within the arena, where fixed places do not fit: the first
            passes find some, the later ones fewer. Off: none are made.
        moving_share: of a plan's joules, up to which moves are taken without asking what less RAM would cost:
            a search for that takes its time. Off: it is always made.
    """

    rounds: int = 6
    growth_factor: float = _tuned(1.5, off=1.0)
    layout_seconds: float = 2.0
    laying_share: float = _tuned(0.2, off=0.0)
    least_seconds: float = 0.05
    exact_seconds: float = _tuned(10.0, off=0.0)
    exact_share: float = _tuned(0.25, off=0.0)
    moving_seconds: float = _tuned(1.0, off=0.0)
    moving_share: float = _tuned(0.005, off=0.0)


@dataclass(frozen=True, slots=True)
class Tuning:
    """All of them, by the part of the planner that they are of; see there."""

    search: SearchTuning = SearchTuning()
    restarts: RestartsTuning = RestartsTuning()
    objectives: ObjectivesTuning = ObjectivesTuning()
    explanation: ExplanationTuning = ExplanationTuning()
    bound_rounds: BoundRoundsTuning = BoundRoundsTuning()
    large: LargeTuning = LargeTuning()
    rounds: RoundsTuning = RoundsTuning()
    symmetry: SymmetryTuning = SymmetryTuning()
    grids: GridsTuning = GridsTuning()
    discretisation: DiscretisationTuning = DiscretisationTuning()
    suffix: SuffixTuning = SuffixTuning()
    windows: WindowsTuning = WindowsTuning()
    model: ModelTuning = ModelTuning()
    greedy: GreedyTuning = GreedyTuning()
    walks: WalksTuning = WalksTuning()
    overlap: OverlapTuning = OverlapTuning()
    engines: EnginesTuning = EnginesTuning()
    alternatives: AlternativesTuning = AlternativesTuning()
    rivals: RivalsTuning = RivalsTuning()
    states: StatesTuning = StatesTuning()
    copies: CopiesTuning = CopiesTuning()
    copies_search: CopiesSearchTuning = CopiesSearchTuning()
    fitting: FittingTuning = FittingTuning()

    def having(self, name: str, value: Any) -> Tuning:
        """The same but for the field ``name``, such as ``rounds.patience_rounds``.

        Raises:
            InputError: there is no such field, or ``value`` is none of it.
        """
        group, tuned = _found(name)
        if _shape(value) != _shape(tuned.default) and value not in ((), tuned.metadata.get("off", ())):
            raise InputError(f"{name}: {value!r} is not of the form of {tuned.default!r}")
        changed = dataclasses.replace(getattr(self, group), **{tuned.name: value})
        return dataclasses.replace(self, **{group: changed})

    def without(self, name: str) -> Tuning:
        """The same with what the field ``name`` is for switched off.

        Raises:
            InputError: there is no such field, or it cannot be switched off.
        """
        tuned = _found(name)[1]
        if "off" not in tuned.metadata:
            raise InputError(f"{name} cannot be switched off; give another value than {tuned.default!r}")
        return self.having(name, tuned.metadata["off"])


DEFAULT = Tuning()
"""Where nobody asks for another."""


def tuned_fields() -> dict[str, dataclasses.Field[Any]]:
    """Every field by its name, such as ``rounds.patience_rounds``."""
    return {
        f"{group.name}.{tuned.name}": tuned
        for group in dataclasses.fields(Tuning)
        for tuned in dataclasses.fields(type(getattr(DEFAULT, group.name)))
    }


def _found(name: str) -> tuple[str, dataclasses.Field[Any]]:
    known = tuned_fields()
    if name not in known:
        raise InputError(f"{name!r} is not a field of the tuning{nearest(name, known)}")
    return name.partition(".")[0], known[name]


def _shape(value: Any) -> Any:
    """Whether it is whole, a number, or a tuple of such."""
    if isinstance(value, tuple):
        return tuple({_shape(part) for part in value})
    return type(value)
