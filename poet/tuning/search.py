"""The order of the search: rounds, restarts, objectives, forms (`poet.solvers.search`)."""

from __future__ import annotations

from dataclasses import dataclass

from poet.tuning.fields import Checked, tuned


@dataclass(frozen=True, slots=True)
class SearchTuning(Checked):
    """The order of things (`poet.solvers.search.least_energy`).

    Attributes:
        confirm_least_seconds: that a second opinion may take even where the search took less: an engine of
            another kind may be some times slower on the same small model. Off: as long as the search took.
        proof_share: of the seconds spent, for a proof in exact fractions: a tenth is not felt by who waits.
        proof_least_seconds: for that, where the share is less: small programs need no more.
        proof_most_seconds: for that, where the share is more: a second engine is then the better use. Off: no
            proof.
        proof_left_share: of the time left that it takes at most, so that a second engine still has as much.
    """

    confirm_least_seconds: float = tuned(2.0, off=0.0)
    proof_share: float = 0.1
    proof_least_seconds: float = 0.1
    proof_most_seconds: float = tuned(1.0, off=0.0)
    proof_left_share: float = 0.5


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
class AlternativesTuning(Checked):
    """Other forms of ops (`poet.solvers.search.over_alternatives`).

    Attributes:
        all_choices: alternatives of which every choice is searched: each more halves the time of a choice,
            and three leave each an eighth. Off: a few are searched, with a bound for all.
        rest_choices: alternatives of which all choices are searched after a few, where time is left: 256 of
            a step of 10 ops take some seconds. Off: only a few are searched.
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
    rest_choices: int = tuned(8, off=0)
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
