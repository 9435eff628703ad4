"""The order of the search: rounds, restarts, objectives, forms (`poet.solvers.search`)."""

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
        sizeable_ops: above, the large search is tried before the first round and after it, if the gap is
            sizeable: its event models have few slots, where those of the rounds take ten seconds.
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
        returns_share: of the time left, for a proof that there is no plan from when contents can come back,
            where no greedy plan is: it takes tenths of a second up to 500 ops, and little else would help.
            Off: it is not looked for.
        first_plan_share: of the time left, for a first plan or a proof that there is none by what is in RAM,
            where nothing may be written, and again in each restart. Off: only event models look for one.
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
        second_share: of the best bound's overhead, below which what HiGHS has shown of a relaxed model, when
            its time is over, is no word that CP-SAT would bring up to it. Off: CP-SAT is always asked.
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
    returns_share: float = tuned(0.5, off=0.0)
    first_plan_share: float = tuned(0.25, off=0.0)
    greedy_share: float = 0.25
    model_share: float = 0.25
    model_floor_seconds: float = tuned(1.0, off=0.0)
    model_least_seconds: float = 0.01
    confirm_least_seconds: float = tuned(2.0, off=0.0)
    first_engine_share: float = tuned(0.4, off=1.0)
    second_share: float = tuned(0.8, off=0.0)
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
        fewest_ops: of a step, for rounds: of fewer, the model of all copies is solved about as soon.
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
        follow_seconds: for models of what a cheapest step writes: what they find, they find in tenths of a
            second, and the next step writes something else.
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
    follow_seconds: float = 3.0


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
        pace_bounds: of a run, after which its pace says whether it will reach the best bound in its time: the
            first two are near one another where the first grid was coarse. Off: it goes on.
    """

    stall_share: float = tuned(0.1, off=0.0)
    time_share: float = 0.5
    leading_time_share: float = tuned(0.75, off=0.5)
    first_time_share: float = tuned(0.15, off=0.0)
    first_most_seconds: float = 4.0
    first_look_factor: float = tuned(3.0, off=1.0)
    pace_bounds: int = tuned(3, off=1 << 40)


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
