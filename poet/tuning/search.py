"""The order of the search: rounds, restarts, objectives, the large search, forms (`poet.solvers.search`)."""

from __future__ import annotations

from dataclasses import dataclass

from poet.tuning.fields import Checked, tuned


@dataclass(frozen=True, slots=True)
class SearchTuning(Checked):
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

    chain_reruns: tuple[int, ...] = tuned((3, 8, 8, 8, 16, 16), off=())
    large_ops: int = tuned(400, off=1_000_000_000)
    small_ops: int = tuned(16, off=0)
    sizeable_ops: int = 200
    sizeable_first_share: float = tuned(0.5, off=0.0)
    sizeable_first_seconds: float = 4.0
    sizeable_gap_share: float = tuned(0.02, off=1.0)
    large_share: float = 0.5
    greedy_small_seconds: float = tuned(2.0, off=0.0)
    greedy_large_seconds: float = tuned(1.0, off=0.0)
    greedy_share: float = 0.25
    model_share: float = 0.25
    model_floor_seconds: float = tuned(1.0, off=0.0)
    model_least_seconds: float = 0.01
    confirm_least_seconds: float = tuned(2.0, off=0.0)
    first_engine_share: float = tuned(0.4, off=1.0)
    proof_share: float = 0.1
    proof_least_seconds: float = 0.1
    proof_most_seconds: float = tuned(1.0, off=0.0)
    proof_left_share: float = 0.5
    engine_gap_share: float = tuned(0.3, off=0.0)


@dataclass(frozen=True, slots=True)
class RestartsTuning(Checked):
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
    most_slots: int = tuned(2000, off=0)


@dataclass(frozen=True, slots=True)
class FewCopiesTuning(Checked):
    """Exact models in which few tensors may be written (`poet.solvers.search.few_copies`).

    Attributes:
        round_share: of the time left, before each round's exact model of all copies: the first sets take
            seconds, and the bounds, which a better plan makes shorter, need the rest. Off: not tried there.
        sizeable_share: the same on a sizeable step (`SearchTuning`), of which one model takes ten seconds.
            Off: not tried there.
        restart_share: of the time left, in each restart. Off: not tried there.
        most_seconds: of either, where there is much time or no limit.
        fewest_ops: of a step: of fewer, the model of all copies is solved to its end about as soon.
        overhead_share: of what running every op once takes, which a plan's overhead must be: below it,
            engines find out by themselves what to write.
        written_share: of a plan's overhead, which its page-outs must take: where reruns or page-ins take
            more, engines have less trouble with what is written.
        open_share: of the overhead, from which on a gap is worth it: what a search is to end with.
        chain: of reruns that lead to a tensor version that is remade: a round's first chains are too short
            for nets whose RAM is this tight.
        less_ram_shares: of the budget, which the relaxation lacks, in turn: from nothing to as much as reruns
            may need that it does not count. Off: it is not asked.
        least_share: of a copy, from which on it is decided whether the relaxation writes it; but for as
            little it does.
        dearer_share: of its joules, that it may cost more to write a tensor whole: with more it is not. Two
            per cent came within one of the program in whole numbers on MobileNetV1.
        filler_share: of the largest tensor's bytes, from which on smaller ones fill up: below, they make no
            difference that is worth a page-out.
        most_tensors: of a set that is the relaxation's: with more of them models take as long as with all.
        first_others: tensors beside those of the best plan, of the first of its neighbours: few, as models
            double their time with a few more.
        easy_share: of a model's time, below which the next neighbour is larger.
        growth_factor: by which it is; and by as much smaller where the time was used up.
        ahead_stages: chains of reruns are also offered in the calmest of so many stages up to the one that
            reads their result: backward ops come in threes or fours per layer. Off: in that stage alone.
        most_slots: for reruns, that models are offered beside what relaxed models ask for.
        patience_sets: in a row without a better plan, after which a turn ends: each is another part.
        model_seconds: for one model: most are over sooner.
    """

    round_share: float = tuned(0.15, off=0.0)
    sizeable_share: float = tuned(0.25, off=0.0)
    restart_share: float = tuned(0.15, off=0.0)
    most_seconds: float = 60.0
    fewest_ops: int = 64
    overhead_share: float = 0.25
    written_share: float = 0.25
    open_share: float = 0.02
    chain: int = 8
    less_ram_shares: tuple[float, ...] = tuned((0.0, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2), off=())
    least_share: float = 0.01
    dearer_share: float = 0.02
    filler_share: float = 0.03
    most_tensors: int = 20
    first_others: int = 3
    easy_share: float = 0.1
    growth_factor: float = 1.4
    ahead_stages: int = tuned(8, off=1)
    most_slots: int = 600
    patience_sets: int = 10
    model_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class ObjectivesTuning(Checked):
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
    pins_seconds: float = tuned(1.0, off=0.0)
    probe_share: float = 0.3
    probe_least_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class ExplanationTuning(Checked):
    """What would help where there is no plan (`poet.solvers.search.explain`).

    Attributes:
        most_seconds: for all that an explanation searches for: it should not be waited for. Off: nothing is
            explained.
        spare_share: of the time limit, that a search without a plan leaves to its explanation: a tenth is too
            little to have found the plan. Off: what happens to be left.
        least_seconds: for one limit; with less nothing is searched for, as nothing would be found.
    """

    most_seconds: float = tuned(2.0, off=0.0)
    spare_share: float = tuned(0.1, off=0.0)
    least_seconds: float = 0.02


@dataclass(frozen=True, slots=True)
class BoundRoundsTuning(Checked):
    """When relaxations in whole numbers run between rounds (`poet.solvers.search.bound_rounds`).

    Attributes:
        stall_share: of the joules open before a round (plan less bound): a round that gains less than a tenth
            would need dozens like it, so it has stalled, and a long run follows. Off: only after rounds that
            gained nothing.
        time_share: of the time left, that one run may take; the rounds, which find the plans, have as much.
        leading_time_share: the same, while the best bound is from such a run: what leads is worth more than
            half. Off: as ``time_share``.
        first_time_share: of the time left, for the linear program before the first round: nearly all steps of
            this size take less, and the rounds need the rest. Off: none.
        first_most_seconds: for that at most, with any time limit.
        first_look_factor: multiple of the seconds of a short run at which its last program is ended, so that
            it may finish what it began. Off: no longer than the run.
    """

    stall_share: float = tuned(0.1, off=0.0)
    time_share: float = 0.5
    leading_time_share: float = tuned(0.75, off=0.5)
    first_time_share: float = tuned(0.15, off=0.0)
    first_most_seconds: float = 4.0
    first_look_factor: float = tuned(3.0, off=1.0)


@dataclass(frozen=True, slots=True)
class LargeTuning(Checked):
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
        class_patience_share: of the time left, without a better plan or a smaller gap (``closing_share``),
            after which a class's program is given up: its first better plan may take half of that, and may
            be better than all that parts find. Off: it has all of its share.
        closing_share: of the joules open in a class before, to which they must have come down to count as a
            smaller gap: bounds creep for minutes.
        alike_least_seconds: with less, repeated blocks are not decided alike: building the program takes most
            of it.
        beside_seconds: of one round beside a whole program, after which the program is listened to: its
            better plans are worth more to the next round than a longer round is.
        relaxing_tensor_seconds: for each tensor of the problem, with less than which no relaxation is begun
            where there is a plan: building it and a first bound take most of that. Off: it is in any case.
        building_tensor_seconds: that the first event model is taken to need for each tensor of the problem,
            because no other was built before it. Off: none.
        build_factor: times the seconds that the last model took, which must be left for another: it is
            larger, and is to be solved as well. Off: it is begun in any case.
        most_reruns: slots for reruns in one model: each takes some 40 kB, beside 1 GB for 10,000 ops.
        remade_share: of a tensor version, above which the solution counts as remaking it: what an engine's
            tolerance leaves of 0 does not count.
    """

    offer_reruns: tuple[tuple[int, int], ...] = tuned(((1, 6), (4, 6), (4, 12), (8, 40)), off=((1, 6),))
    longest_program_seconds: float = 600.0
    listen_seconds: float = 0.05
    late_seconds: float = tuned(12.0, off=0.0)
    quick_rounds: int = tuned(8, off=0)
    alike_share: float = tuned(0.06, off=0.0)
    quick_share: float = 0.15
    bound_share: float = 0.25
    class_share: float = 0.5
    patience_share: float = tuned(0.1, off=1.0)
    class_patience_share: float = tuned(0.3, off=1.0)
    closing_share: float = 0.9
    alike_least_seconds: float = 1.0
    beside_seconds: float = 1.0
    relaxing_tensor_seconds: float = tuned(2e-4, off=0.0)
    building_tensor_seconds: float = tuned(5e-4, off=0.0)
    build_factor: float = tuned(2.0, off=0.0)
    most_reruns: int = 12_000
    remade_share: float = 1e-6


@dataclass(frozen=True, slots=True)
class RoundsTuning(Checked):
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
    late_seconds: float = tuned(12.0, off=0.0)
    listen_seconds: float = 0.05
    patience_rounds: int = tuned(25, off=0)
    stretch_counts: tuple[int, ...] = tuned((1, 1, 2, 3), off=(1,))
    disputed_every_rounds: int = tuned(3, off=1_000_000_000)
    disputed_share: float = 0.01
    least_weight: float = 0.02
    easy_share: float = tuned(0.3, off=0.0)
    growth_factor: float = tuned(1.3, off=1.0)
    shrink_factor: float = tuned(0.7, off=1.0)
    begin_share: float = 0.4


@dataclass(frozen=True, slots=True)
class SymmetryTuning(Checked):
    """What counts as alike (`poet.solvers.search.symmetry`).

    Attributes:
        distance_ops: up to which the neighbours of symmetric ops are symmetric: further, the ends of a net
            reach into all of its blocks.
        repeating_share: different ops, as a share of all, up to which a step counts as repeating itself: at
            half, tying leaves half of the decisions, where the smaller program begins to pay. Off: no step
            does.
    """

    distance_ops: int = 3
    repeating_share: float = tuned(0.5, off=0.0)


@dataclass(frozen=True, slots=True)
class AlternativesTuning(Checked):
    """Other forms of ops (`poet.solvers.search.over_alternatives`).

    Attributes:
        all_choices: alternatives of which every choice is searched: each more halves the time of a choice,
            and three leave each an eighth. Off: a few are searched, with a bound for all.
        choice_op_seconds: for each op, that every choice must have for that: with less, a choice of thousands
            of ops gets little more than a first plan. Off: any time is enough.
        guide_share: of the time at most, for the linear program in which forms are open: its bound is for all
            choices, and the choice that it suggests is searched. Nets of some hundred ops need a tenth of a
            second, of a thousand some seconds. Off: a choice by bytes and by what an op needs at once.
        guide_seconds: likewise at most, so that long limits are not used up by it.
        taken_share: of a form in that program's solution, above which the choice has it: the nearer one.
        rivals_share: of the time left, for choices that are searched first, in equal parts: all that save
            bytes, what the open forms take, what the plan to start from has. Off: the last of them alone.
        main_share: of the time left then, for the best of them; the rest is for the relaxed problem's bound:
            plans take longer than bounds.
        row_read_ops: where look-ups may read rows in storage, and there are more ops than this, only a few
            choices are searched, and the relaxed problem is bounded before: such a form takes hardly more
            than that.
        relaxed_share: of the time left, for that bound.
        relaxed_short_share: likewise, where less than ``relaxed_short_seconds`` are left.
        relaxed_short_seconds: in less, nets of some hundred ops have no bound in the smaller share.
        fitting_share: of the time at most, for how few alternatives are enough for keeping everything: each
            try takes a tenth of a second on nets of some hundred ops.
        fitting_seconds: likewise at most, so that long limits are not used up by it.
        unlimited_seconds: for all of several choices where there is no time limit, because a search ends with
            its proof alone.
    """

    all_choices: int = tuned(3, off=0)
    choice_op_seconds: float = tuned(1e-3, off=0.0)
    guide_share: float = tuned(0.25, off=0.0)
    guide_seconds: float = 20.0
    taken_share: float = 0.5
    rivals_share: float = tuned(0.4, off=0.0)
    main_share: float = 0.85
    row_read_ops: int = 60
    relaxed_share: float = 0.15
    relaxed_short_share: float = 0.5
    relaxed_short_seconds: float = 20.0
    fitting_share: float = 0.2
    fitting_seconds: float = 5.0
    unlimited_seconds: float = 600.0
