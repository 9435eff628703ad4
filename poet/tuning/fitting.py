"""How a plan is fitted into its arena (`poet.planning.fit_layout`)."""

from __future__ import annotations

from dataclasses import dataclass

from poet.tuning.fields import Checked, tuned


@dataclass(frozen=True, slots=True)
class FittingTuning(Checked):
    """How a plan is fitted into its arena (`poet.planning.fit_layout`).

    Attributes:
        rounds: of search and layout at most: each holds back half as much again as was missing, so that six
            have held back several times what the first lacked.
        growth_factor: times the missing bytes that are held back, from the second round on: the first may be
            lucky with just what is missing. Off: so are the others.
        looking_share: of the time limit, for a look whether good plans page, where schedules may do without.
        unpaged_share: of the time limit, for plans that do not page, where good ones do.
        short_seconds: for either of these at most, so that a long limit is spent on the search itself.
        layout_seconds: of one layout: those that fit are mostly found at once.
        layout_share: of the time that is left, for one layout at most: another search may be needed.
        hopeless_share: of ``layout_seconds``, where not even live tensors fit: another search follows.
        laying_share: of the time limit, that the first search leaves for layouts and repeats. Off: none.
        laying_tensor_seconds: that it leaves at least for each tensor of the problem: with thousands, a
            layout takes a second, and so does the search for moves. Off: none.
        laying_most_share: of the time limit, that is left for that at most.
        least_seconds: with less time, the search is not repeated, as it would find nothing.
        grace_seconds: of a last search, past the time limit, where nothing fits yet: a step from the heap
            takes twice the time. Off: there is none.
        graces: how often such a search is made, each with less RAM.
        exact_seconds: of the second search for fixed places, by CP-SAT: it fits many that the first does not,
            and proves of others that nothing does. Off: there is none.
        exact_share: of the time that the first search left, for that at most: searches with less RAM need
            some as well. Off: none.
        moving_seconds: of the search for moves within the arena, where fixed places do not fit, at most: the
            first passes find some, the later ones fewer; as much of the time that is left as one layout may
            take. Off: none are made.
        moving_least_seconds: for that, where less time is left.
        glance_seconds: of a first search for moves, as a pass or two tell what they cost about: only the plan
            that is cheapest with its moves is then searched for longer.
        moving_share: of a plan's joules, up to which moves are taken without asking what less RAM would cost:
            a search for that takes its time. Off: it is always made.
        crowding_seconds: that a first search for moves takes per unit of `Demand.crowding`: 24 million are
            4,100 blocks of which 65 are there at once, 255 million 4,700 of which 200 are.
        moves_share: of the time that is left, above which such a search comes last, and the plan is first
            followed in so much less RAM that it needs no moves. Off: it always does.
        fixed_tries: how often a plan is followed so: two jumps mostly reach what fits, and four halvings are
            within a hundredth of the least. Off: never.
        fixed_missing_share: of its peak, that must be missing for that: what a few moves mend is cheaper so.
        fixed_share: of the time that is left, for all of these: searches may follow.
        fixed_close_share: of its peak, between what was held back in vain and what was enough, at which no
            further try pays.
        followed_shares: of its peak, that a plan is followed without where its moves are dear, in turn, until
            that takes more by itself than the best so far with its moves. Off: it is not followed.
        crowded_shares: the same where nothing fits yet and there is no time for two searches for moves: more,
            because it then needs a tenth of the moves. Off: it is not followed.
        followed_lacking_share: of its peak, that may be lacking even with moves, as whole pages do: where it
            is more, following costs too much, and it is searched again first.
        followed_dear_share: of its joules, that following may add: where it adds more, a search mostly finds
            a better way to do with less RAM, and has the time.
        searched_seconds: that must be left for a search to come first, where nothing fits yet and following
            is dear. Off: it never does.
        searched_share: of a plan's peak, that this search is without.
        followed_share: of the time that is left, for all of these: a search with as much held back follows.
    """

    rounds: int = 6
    growth_factor: float = tuned(1.5, off=1.0)
    looking_share: float = 0.05
    unpaged_share: float = 0.1
    short_seconds: float = 5.0
    layout_seconds: float = 2.0
    layout_share: float = 0.25
    hopeless_share: float = 0.1
    laying_share: float = tuned(0.2, off=0.0)
    laying_tensor_seconds: float = tuned(0.001, off=0.0)
    laying_most_share: float = 0.4
    least_seconds: float = 0.05
    grace_seconds: float = tuned(0.5, off=0.0)
    graces: int = 3
    exact_seconds: float = tuned(10.0, off=0.0)
    exact_share: float = tuned(0.25, off=0.0)
    moving_seconds: float = tuned(2.0, off=0.0)
    moving_least_seconds: float = 0.5
    glance_seconds: float = 0.1
    moving_share: float = tuned(0.005, off=0.0)
    crowding_seconds: float = 1e-8
    moves_share: float = tuned(0.5, off=0.0)
    fixed_tries: int = tuned(6, off=0)
    fixed_missing_share: float = 0.01
    fixed_share: float = 0.6
    fixed_close_share: float = 0.004
    followed_shares: tuple[float, ...] = tuned((0.0025, 0.005, 0.01, 0.02), off=())
    crowded_shares: tuple[float, ...] = tuned((0.03,), off=())
    followed_lacking_share: float = 0.01
    followed_dear_share: float = 0.05
    searched_seconds: float = tuned(1.0, off=1e9)
    searched_share: float = 0.01
    followed_share: float = 0.5
