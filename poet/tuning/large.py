"""The search on large problems: relaxations, classes of plans, their parts (`poet.solvers.search.large`)."""

from __future__ import annotations

from dataclasses import dataclass

from poet.tuning.fields import Checked, tuned


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
            eight see most of a step. One that was easy (``easy_share``) is not counted. Off: none are made.
        alike_share: of the time left, for blocks that repeat to be decided alike, so that equal layers soon
            have a good plan: a few seconds of a minute. Off: they are not.
        small_alike_share: of the time left, where their program is small: after seven seconds, a recurrent
            net's 16 time steps have a plan that nothing else finds in a minute. Off: no more than others.
        small_alike_columns: of such a program, at most.
        quick_share: of the time left, for the quick rounds: a first harvest, which whole programs then start
            from.
        bound_share: of the time left, for each relaxation: there are several, and plans need the rest.
        whole_share: of the time left, for the relaxation in whole numbers, all programs of it: what plans are
            made of is worth a little more. Off: there is none.
        moments_share: of the linear program's bound, by which more moments must raise it for the relaxation
            in whole numbers to have them: its program grows with them. Convolutional and dense nets gain 5 to
            50 %, and whole numbers as much again; a recurrent net 2 or 3 %, where they lose more than that.
            Off: it has them where they raise it at all.
        lacking_share: of the RAM budget, that a solution in whole numbers may lack for all that it reruns to
            be offered to the event model: one that lacks a thousandth is mended by it, and one that lacks
            much makes it larger and no better. Off: it is offered where it lacks none.
        lacking_for_reruns_share: the same where reruns take most of the solution's joules, not transfers: on
            a dense net a solution that lacked 9 % led to a plan with 1.1 % of its overhead open (else 17),
            while a recurrent net that pages lost by those that lacked 5. Off: as where transfers do.
        copies_share: of the time left, for a relaxation in which copies alone are whole: where it decides, it
            takes seconds. Off: there is none.
        fractions_share: of a linear program's bound, that fractions of copies must take for that: where they
            take less, whole ones would hardly raise it.
        whole_factor: times the seconds of a large step's linear program, that it must have in whole numbers:
            the engine begins with that program, from nothing, and tells no bound before; with four times it
            found nothing on a dense net, with seven it raised a recurrent one's bound. Off: it is begun in
            any case.
        class_share: of the time left, for a class's program as a whole: half, as larger classes follow.
        patience_share: of the time left, without a smaller gap (``whole_closing_share``), after which a bound
            in whole numbers is given up, which leaves its time to plans: a tenth was too little for a
            recurrent net's, just before it rose by a twentieth. Off: it has all of its share.
        class_patience_share: of the time left, without a better plan or a smaller gap (``closing_share``),
            after which a class's program is given up: its first better plan may take half of that, and may
            be better than all that parts find. Off: it has all of its share.
        closing_share: of the joules open in a class before, to which they must have come down to count as a
            smaller gap: bounds creep for minutes.
        whole_closing_share: the same for a relaxation in whole numbers. Its gap is from its bound to the
            cheaper of its best solution and the best plan. Where such a program ends at all, the gap closes
            by tenths; else the bound rises by hundredths until its time is over.
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
    small_alike_share: float = tuned(0.15, off=0.0)
    small_alike_columns: int = 6_000
    quick_share: float = 0.15
    bound_share: float = 0.25
    whole_share: float = tuned(0.3, off=0.0)
    moments_share: float = tuned(0.04, off=0.0)
    lacking_share: float = tuned(0.02, off=0.0)
    lacking_for_reruns_share: float = tuned(0.1, off=0.02)
    copies_share: float = tuned(0.1, off=0.0)
    fractions_share: float = 0.01
    whole_factor: float = tuned(5.0, off=0.0)
    class_share: float = 0.5
    patience_share: float = tuned(0.15, off=1.0)
    class_patience_share: float = tuned(0.3, off=1.0)
    closing_share: float = 0.9
    whole_closing_share: float = 0.95
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
            many parts of a step more than once. One that was easy is not counted. Off: no rounds.
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
