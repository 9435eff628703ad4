"""The constants that the planner's search is tuned with, each with the reason for its value.

None of them makes an answer wrong: every plan is judged and every bound is proven or confirmed whatever they
are. They decide where time goes, and so which plan and bound a search has when its time is up. A record is
passed along from `poet.solution.SolveOptions`; nothing deep inside reads a global one.

*Chosen* means: chosen, not measured. ``python tests/benchmarks/tuning.py`` measures one field at a time
against another value, or switched off where the field has a value for that. Tolerances that a proof rests
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
        chain_reruns: per round, the longest chain of rerun slots that leads to one tensor version. Short ones
            first make a model that is solved at once; later rounds pay for longer ones if the gap is open.
            Chosen. Off: no round; the search goes on with what comes after them.
        large_ops: above, models are made of few reruns and plans improved part by part, for whole event
            models take engines too long there. Chosen. Off: none is large.
        small_ops: up to here every rerun is offered in every stage, several times, because such models are
            small. Chosen. Off: nowhere.
        sizeable_ops: above, the large search is tried after the first round if the gap is sizeable, and
            relaxations in whole numbers are not: they are meant for small steps. Chosen.
        sizeable_gap_share: of the overhead, from which on a gap is sizeable. Chosen. Off: no gap is.
        large_share: of the time left, for the large search on a sizeable step; the other half is for the
            rounds that follow. Chosen.
        greedy_small_seconds: for greedy plans of small steps; those tried there take less. Chosen.
            Off: the first.
        greedy_large_seconds: for greedy plans of large steps, where the relaxation needs the time. Chosen.
            Off: the first.
        greedy_share: of the time left that greedy plans take at most, so that short searches have a
            bound as well. Chosen.
        model_share: of the time left that one model may take, so that several get a turn. Chosen.
        model_floor_seconds: that it may take even where the share is less, enough for small models. Chosen.
            Off: the share.
        model_least_seconds: that it may take where no time is left: engines refuse 0. Chosen.
        confirm_least_seconds: that a second opinion may take even where the search took less. Chosen.
            Off: as long as the search took.
        first_engine_share: of a relaxed model's time for HiGHS, where CP-SAT comes second. Chosen. Off:
            HiGHS takes all of it.
        proof_share: of the seconds spent, for a proof in exact fractions. Chosen.
        proof_least_seconds: for that, where the share is less. Chosen.
        proof_most_seconds: for that, where the share is more: a second engine is the better use. Chosen.
            Off: no proof.
        proof_left_share: of the time left that it takes at most. Chosen.
        engine_gap_share: of the gap allowed in the end, at which an engine may stop: rounding and the
            judge's sums need the rest. Chosen. Off: the engine goes on to the end.
    """

    chain_reruns: tuple[int, ...] = _tuned((3, 8, 8, 8, 16, 16), off=())
    large_ops: int = _tuned(400, off=1_000_000_000)
    small_ops: int = _tuned(16, off=0)
    sizeable_ops: int = 200
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
            slowest program of a restart. Chosen.
        large_share: of the time left, for the linear relaxation, its walks and the neighbourhood search.
            Chosen.
        first_chain: reruns that lead to one tensor version, at most, before the first restart, each of which
            doubles it: as many as the last round's. Chosen.
        most_doublings: of the length and depth of chains: there are no longer ones. Chosen.
        most_slots: that a model knows without having asked for them: more make it too slow. Chosen.
            Off: it knows what it asked for.
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
        first_share: of the time for the objective; the rest breaks ties by energy. Chosen.
        pins_seconds: to see whether there is a plan without the pins. Chosen. Off: it is not looked at.
        probe_share: of the time left that one RAM budget may take while budgets are halved. Chosen.
        probe_least_seconds: that it may take where the share is less. Chosen.
    """

    first_share: float = 0.6
    pins_seconds: float = _tuned(1.0, off=0.0)
    probe_share: float = 0.3
    probe_least_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class ExplanationTuning(_Checked):
    """What would help where there is no plan (`poet.solvers.search.explain`).

    Attributes:
        most_seconds: for all that an explanation searches for: it should not be waited for. Chosen. Off:
            nothing is explained.
        spare_share: of the time limit, that a search without a plan leaves to its explanation. Chosen.
            Off: what happens to be left.
        least_seconds: for one limit; with less nothing is searched for, as nothing would be found. Chosen.
    """

    most_seconds: float = _tuned(2.0, off=0.0)
    spare_share: float = _tuned(0.1, off=0.0)
    least_seconds: float = 0.02


@dataclass(frozen=True, slots=True)
class BoundRoundsTuning(_Checked):
    """When relaxations in whole numbers run between rounds (`poet.solvers.search.bound_rounds`).

    Attributes:
        stall_share: of the joules open before a round (plan less bound): a round that gains no more has
            stalled, and a long run follows. Chosen. Off: only after rounds that gained nothing.
        time_share: of the time left, that one run may take; the rounds have the rest. Chosen.
        leading_time_share: the same, while the best bound is from such a run. Chosen. Off: as ``time_share``.
        first_look_factor: multiple of the seconds of a short run at which its last program is ended, so that
            it may finish what it began. Chosen. Off: no longer than the run.
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
            they are solved soon. Chosen. Off: the first class alone.
        longest_program_seconds: of one program where there is no time limit. Chosen.
        listen_seconds: between looks at a child: an answer does not wait longer. Chosen.
        late_seconds: before the end, from which on no round may overrun its time: one in this process can,
            by seconds on the largest steps. Chosen. Off: each may.
        quick_rounds: without a better plan, before whole programs are tried. Chosen. Off: none are made.
        alike_share: of the time left, for blocks that repeat to be decided alike, so that equal layers soon
            have a good plan. Chosen. Off: they are not.
        quick_share: of the time left, for the quick rounds. Chosen.
        bound_share: of the time left, for each relaxation. Chosen.
        class_share: of the time left, for a class's program as a whole. Chosen.
        patience_share: of the time left, without a better bound or plan, after which a bound in whole numbers
            is given up, which leaves its time to plans. Chosen. Off: it has all of its share.
        alike_least_seconds: with less, repeated blocks are not decided alike: building the program takes most
            of it. Chosen.
        beside_seconds: of one round beside a whole program, after which the program is listened to. Chosen.
        build_factor: times the seconds that the last model took, which must be left for another. Chosen.
            Off: it is begun in any case.
        remade_share: of a tensor version, above which the solution counts as remaking it. Chosen: what an
            engine's tolerance leaves of 0 does not count.
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
        gap_share: of its joules, at which a part counts as solved. Chosen.
        first_decisions: that the first round leaves free; later rounds adapt. Chosen.
        least_decisions: that any round leaves free: smaller parts have little to trade. Chosen.
        round_seconds: of one round at most. Chosen.
        late_seconds: before the end, from which on no round may overrun its time, as of the large search.
            Chosen. Off: each may.
        listen_seconds: between looks at a child. Chosen.
        patience_rounds: without a better plan, after which a model is given up. Chosen. Off: no rounds.
        stretch_counts: of the step that a round frees, of which one is drawn: several can trade RAM. Chosen.
            Off: one stretch in every round.
        disputed_every_rounds: of which the last one frees only what plan and relaxation disagree on. Chosen.
            Off: none does.
        disputed_share: of a tensor version, from which on they disagree. Chosen.
        least_weight: of a decision that is not in dispute, when the middle of a stretch is drawn; a whole
            version in dispute weighs 1 more. Chosen.
        easy_share: of a round's time, less than which it was easy. Chosen. Off: none was.
        growth_factor: of the decisions after an easy round. Chosen. Off: no growth.
        shrink_factor: of the decisions after a round that ran out of time. Chosen. Off: no shrinking.
        begin_share: of the time left, for each program that looks for a first plan. Chosen.
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
            reach into all of its blocks. Chosen.
        repeating_share: different ops, as a share of all, up to which a step counts as repeating itself.
            Chosen. Off: no step does.
    """

    distance_ops: int = 3
    repeating_share: float = _tuned(0.5, off=0.0)


@dataclass(frozen=True, slots=True)
class GridsTuning(_Checked):
    """Which moments the relaxation looks at (`poet.solvers.bounds.refinement`).

    Attributes:
        priced_rounds: of the linear program, each with the moments at which RAM had a price. Chosen.
            Off: one.
        priced_moments: added per round, those with the largest dual prices. Chosen. Off: none.
        price_share: of the sum of all dual prices; a moment with more is added. Chosen.
        made_share: of a tensor version, above which it counts as made again. Chosen.
        worth_share: of the bound's joules, which the value of an under-counted moment must exceed: with less,
            refinement ends. Chosen.
        level_shares: of the largest value; for each, the last moment of at least that value is added, so that
            one round adds several. Chosen.
        progress_share: relative gain of the bound, below which a round is in vain. Chosen.
        patience_rounds: in vain, after which refinement ends. Chosen. Off: there is none.
        begin_factor: multiple of the seconds of the last round: with less time left, none is begun. Chosen.
            Off: another is begun in any case.
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
            states give a better bound, later. Chosen. Off: the bound of the linear program alone.
        tracked_divisor: tracked versions have at least this part of the bytes of the largest one. Chosen.
        slower_factor: estimated seconds of the second attempt, as a multiple of the first. Chosen.
            Off: it is begun in any case.
        game_share: of the time left that it may take. Chosen.
        fewest_stages: that a suffix program must cover: a shorter one adds little. Chosen.
        level_shares: as of `GridsTuning`, up to where the suffix program begins: one moment per round, that
            of the largest value, because each makes the program in whole numbers slower. Chosen.
        gap_share: relative gap at which a program counts as solved. Chosen.
        longest_program_seconds: of one program where there is no time limit. Chosen.
        listen_seconds: between looks at the child. Chosen.
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
        groups: at most, of versions that may be paged: each is a table, and charges its page-outs apart.
            Chosen.
        held_share: of a version, above which a solution holds it. Chosen.
        violated_share: of the largest value of the tables: a smaller violation adds no cut. Chosen: less is
            within the engine's tolerance.
        widening_shares: per cut, the share of the violation that widening the set must leave, and the weight
            of noise in the order: cuts that are weaker here are stronger elsewhere. Chosen. Off: sets are
            widened where that costs nothing.
        memory_share: weight of earlier solutions in the average of what solutions held. Chosen. Off: the last
            solution alone.
        slight_share: weight of that average beside what the last solution holds. Chosen. Off: none.
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
        many_contents: with more tensor versions, the smallest are left out, which makes the program smaller.
            Chosen. Off: none are.
        negligible_share: of the budget, that those left out may take together; the bound is weaker by no
            more. Chosen. Off: those of no bytes.
    """

    many_contents: int = _tuned(400, off=1_000_000_000)
    negligible_share: float = _tuned(1e-4, off=0.0)


@dataclass(frozen=True, slots=True)
class ModelTuning(_Checked):
    """How the event model is written down (`poet.solvers.event_model`).

    Attributes:
        tight_slots: up to so many, r, a and O are integer columns, which the cuts on memory rows count on;
            above, fewer integers leave the engine less to branch on. Chosen. Off: never.
        dense_terms: events times memory rows, above which rows that list every gap are too dense, and sums
            are carried from row to row. Chosen. Off: never.
        asked_inputs: at most, of the chain of inputs that are required at a window's last stage. Chosen.
            Off: none.
        cut_sizes: the commonest sizes of a memory row, each tried as the unit of a knapsack cut. Chosen.
            Off: no knapsack cuts.
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
            page first; all away and all at home first. Chosen. Off: all away.
        work_items: ops and tensors planned over all tries, about a quarter of a second. Chosen.
            Off: the least tries.
        least_tries: of plans, on the largest steps. Chosen.
        most_tries: of plans, on the smallest. Chosen.
        longest_remake_ops: of one recomputation, so that its price is found quickly. Chosen.
        refund_factor: times the price of paging that a recomputation may take before it is given up, as a
            part of it may be refunded. Chosen.
        cover_bias: exponent of the bytes relieved in the second plan: it prefers small prices. Chosen.
        remake_factors: of a recomputation's price, one more plan each; one without any follows. Chosen. Off:
            that one alone.
        hurry_factors: of the typical watts, added per second where there is a deadline, from a hint to almost
            time alone. Chosen. Off: no plan hurries.
        favourite_share: of the random plans that vary the best so far; the others vary any. Chosen.
        remake_deviation: of the logarithm of a random plan's price of recomputation. Chosen. Off: it stays.
        remake_range: of that price's factor, least and most. Chosen.
        bias_deviation: of a random plan's exponent. Chosen. Off: it stays.
        bias_range: of that exponent, least and most. Chosen.
        noise_deviations: of the logarithm of each price, of which a random plan draws one. Chosen. Off: none.
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
        sure_shares: of a tensor version, from which on it counts as kept, one set of walks each. Chosen.
            Off: no walk.
        price_exponents: of the joules of coming back in what is dropped first, one walk each; above 1 few
            joules count more than long gaps. Chosen.
        back_share: of a tensor version, above which it counts as made again or paged in. Chosen.
    """

    sure_shares: tuple[float, ...] = _tuned((0.5, 0.99), off=())
    price_exponents: tuple[float, ...] = (1.4, 1.0, 0.7)
    back_share: float = 0.3


@dataclass(frozen=True, slots=True)
class OverlapTuning(_Checked):
    """Transfers beside compute (`poet.solvers.instance.overlap`).

    Attributes:
        polished_steps: of a schedule at most whose frees and transfers are moved while that saves time: the
            places to try grow with the square of its length. Chosen. Off: none is polished.
    """

    polished_steps: int = _tuned(120, off=0)


@dataclass(frozen=True, slots=True)
class EnginesTuning(_Checked):
    """How engines are run (`poet.solvers.engines`).

    Attributes:
        listen_seconds: between checks of Ctrl-C and the watcher while CP-SAT runs. Chosen.
        cpsat_grace_seconds: beyond its time limit, after which CP-SAT is killed. Chosen.
        highs_grace_seconds: beyond its time limit, after which HiGHS in a child is not listened to any more.
            Chosen.
        tell_seconds: between two bounds that HiGHS in a child tells. Chosen.
        counted_seconds: of the wall clock, between two checks of a child whose work is counted: it is heard
            only when it has ended. Chosen.
        proof_factors: of a program at most that is proven empty in exact fractions: summing up larger ones
            takes too long. Chosen. Off: nothing is.
    """

    listen_seconds: float = 0.05
    cpsat_grace_seconds: float = 5.0
    highs_grace_seconds: float = 0.5
    tell_seconds: float = 0.2
    counted_seconds: float = 1.0
    proof_factors: int = _tuned(400_000, off=0)


@dataclass(frozen=True, slots=True)
class RivalsTuning(_Checked):
    """The published planners (`poet.solvers.literature`): as much effort as makes them good rivals.

    Attributes:
        again_seconds: of searching on from another planner's better plan, at most. Chosen. Off: at once over.
        capuchin_parts: in which the ranked candidates are taken. Chosen.
        chain_stages: that a step is cut into at most: the program over stages grows with their cube. Chosen.
        memory_units: that the program over stages counts memory in. Chosen.
        memory_factors: of the memory, the program's, in turn: sizes are rounded up, and few steps
            are quite a chain. Chosen. Off: what there is.
        guided_walks: by the program, with less and less memory. Chosen.
        pruned_ops: judged while reruns are left out, one by one. Chosen. Off: none is left out.
        far_ops: from which on a reader counts as far, in turn. Chosen.
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
        most_alive: contents that are followed and alive at once, at most: with more, too many sets of them
            fit into RAM. Chosen. Off: no state is looked at.
        alike_factor: contents whose sizes differ by less are followed together or not at all. Chosen.
        round_share: of the time left, in states, for the searches after the first round. Chosen.
        round_states: whose labels each of them sets at most. Chosen. Off: it is not tried there.
        restart_states: the same in the first restart; each restart doubles it. Chosen. Off: not tried there.
        most_states: of any restart: more of them take hundreds of megabytes. Chosen.
        most_looks: at sets of contents that may be freed, for each state that is allowed. Chosen.
        looks: between two questions whether to stop. Chosen.
        state_seconds: that a state counts where work is counted, about what it takes. Chosen.
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
    rivals: RivalsTuning = RivalsTuning()
    states: StatesTuning = StatesTuning()

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
