"""Plans that no engine makes (`poet.solvers.heuristics`), and the published planners (``literature``)."""

from __future__ import annotations

from dataclasses import dataclass

from poet.tuning.fields import Checked, tuned


@dataclass(frozen=True, slots=True)
class GreedyTuning(Checked):
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

    home_shares: tuple[float, ...] = tuned((0.0, 1.0, 0.5, 0.25, 0.75), off=(0.0,))
    work_items: int = tuned(10_000, off=0)
    least_tries: int = 3
    most_tries: int = 150
    longest_remake_ops: int = 24
    refund_factor: float = 4.0
    cover_bias: float = 0.7
    remake_factors: tuple[float, ...] = tuned((1.3, 2.0), off=())
    hurry_factors: tuple[float, ...] = tuned((0.3, 1.0, 3.0, 10.0, 100.0), off=())
    favourite_share: float = 0.7
    remake_deviation: float = tuned(0.2, off=0.0)
    remake_range: tuple[float, float] = (0.5, 9.0)
    bias_deviation: float = tuned(0.15, off=0.0)
    bias_range: tuple[float, float] = (0.4, 1.5)
    noise_deviations: tuple[float, ...] = tuned((0.0, 0.05, 0.1, 0.2, 0.4), off=(0.0,))


@dataclass(frozen=True, slots=True)
class WalksTuning(Checked):
    """Walks along the relaxation's solution (`poet.solvers.heuristics.lp_guided`).

    Attributes:
        sure_shares: of a tensor version, from which on it counts as kept, one set of walks each: what is more
            kept than not, and what is as good as whole. Off: no walk.
        price_exponents: of the joules of coming back in what is dropped first, one walk each; above 1 few
            joules count more than long gaps, below 1 long gaps do.
        back_share: of a tensor version, above which it counts as made again or paged in, as of the grids.
    """

    sure_shares: tuple[float, ...] = tuned((0.5, 0.99), off=())
    price_exponents: tuple[float, ...] = (1.4, 1.0, 0.7)
    back_share: float = 0.3


@dataclass(frozen=True, slots=True)
class RivalsTuning(Checked):
    """The published planners (`poet.baselines`): as much effort as makes them good rivals.

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

    again_seconds: float = tuned(10.0, off=0.0)
    capuchin_parts: int = 32
    chain_stages: int = 40
    memory_units: int = 500
    memory_factors: tuple[float, ...] = tuned((1.0, 1.01, 1.03, 1.07, 1.15, 0.95, 0.9, 0.8, 0.65), off=(1.0,))
    guided_walks: int = 16
    pruned_ops: int = tuned(10_000, off=0)
    far_ops: tuple[int, ...] = (2, 4, 8, 16, 32)
