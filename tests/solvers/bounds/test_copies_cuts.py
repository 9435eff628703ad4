"""What a master program over copies knows of D: each cut holds for every set of copies that weighs less."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from helpers.copies_bounds import EACH_SIZE, TOLERANCE, case
from helpers.pace import few_or_many
from helpers.weights import weights_in_turn

from poet.clock import WALL
from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.solvers.bounds.copies_cuts import Cut, Cuts, weighed
from poet.solvers.bounds.copies_master import MasterSearch
from poet.solvers.bounds.copies_rows import step_bytes
from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.ram_program import RamProgram
from poet.solvers.engines.small_programs import SmallPrograms
from poet.solvers.instance.instance import Instance, instance_of
from poet.tuning import Tuning
from poet.tuning.models import EnginesTuning

AT_ONCE = EACH_SIZE.having("copies.first_solutions", 1)
_MOST_COPIES = 12  # of which all sets are looked at


def a_search(instance: Instance, least_bytes: int, below: float, programs: SmallPrograms) -> MasterSearch:
    """That follows what is as large, with a copy of its own for each resident."""
    tuning, budget = instance.tuning.copies, instance.limits.ram_budget_bytes
    assert budget is not None
    program = RamProgram(
        Followed(instance, least_bytes, budget),
        most_joules=below,
        most_arcs=tuning.most_arcs,
        parts=tuning.parts,
        finished=lambda: False,
    )
    return MasterSearch(
        program, below, tuning, [], step_joules=0.0, listed_bytes=0, programs=programs,
        seconds_left=lambda: math.inf,
    )  # fmt: skip


def searches(seeds: range, tuning: Tuning = AT_ONCE) -> Iterator[tuple[MasterSearch, MasterSearch]]:
    """Two levels each, of random weights in turn and of random problems; the first one was asked often."""
    for seed in seeds:
        in_turn = instance_of(*weights_in_turn(seed, layers=3), tuning=tuning)
        mixed = case(seed, tuning, homes=bool(seed % 2))[0]
        sizes = sorted({content.bytes for content in mixed.contents if content.bytes}, reverse=True)
        middle = len(sizes) // 2
        for instance, levels in ((in_turn, [7, 4]), (mixed, sizes[middle : middle + 2])):
            if instance.limits.ram_budget_bytes is None or len(levels) < 2 or not instance.serial:
                continue
            below = 20.0 * instance.problem.compute_joules
            with SmallPrograms(WALL, EnginesTuning()) as programs:
                first, second = (a_search(instance, size, below, programs) for size in levels)
                for _ in range(30):
                    if not first.round():
                        break
                yield first, second


def checked(cuts: Iterator[Cut], search: MasterSearch) -> list[Cut]:
    """Those that were held against all sets of copies, by a program each; none where these are too many."""
    of, program = search.of, search.program
    able = [c for place, c in enumerate(of.number) if of.page_in[place] < math.inf and of.page_out[place] > 0]
    copies, cuts_now = [*able, *program.listed], list(cuts)
    if len(copies) > _MOST_COPIES:
        return []
    always = sum(1 << place for c, place in of.number.items() if c not in able)
    sets = [frozenset(s) for n in range(len(copies) + 1) for s in itertools.combinations(copies, n)]
    free = [always | sum(1 << of.number[c] for c in some if c in of.number) for some in sets]
    paid = [some.intersection(program.listed) for some in sets]
    for some, joules in zip(sets, program.least(free, [None] * len(sets), paid), strict=True):
        for cut in cuts_now:
            if sum(weight for c, weight in cut.weights.items() if c in some) < cut.need:
                assert joules >= min(cut.joules, search.below) * (1.0 - TOLERANCE)
    return cuts_now


def sparing(
    program: RamProgram, free: int, paid: frozenset[int]
) -> Callable[[Sequence[int]], Sequence[float]]:
    """D of a set of copies where bytes are spared."""

    def least(spared: Sequence[int]) -> list[float]:
        several = len(spared)
        return program.least([free] * several, [None] * several, [paid] * several, spared=spared)

    return least


@few_or_many("seeds", range(12), range(200))
def test_each_cut_holds_at_its_level_and_at_one_that_follows_more(seeds: range) -> None:
    own = handed_on = 0
    for first, second in searches(seeds):
        own += len(checked(iter(first.cuts), first))
        handed_on += len(checked(first.cuts.at(second.cuts.counting), second))
    assert own > len(seeds) / 2
    assert handed_on > len(seeds) / 2


@few_or_many("seeds", range(6), range(6, 150))
def test_so_does_each_that_weighs_residents(seeds: range) -> None:
    """Of random contents without a copy, beside random residents that are paid for."""
    own = handed_on = 0
    for seed in seeds:
        instance, draw = instance_of(*weights_in_turn(seed, layers=3), tuning=EACH_SIZE), random.Random(seed)
        with SmallPrograms(WALL, EnginesTuning()) as programs:
            search, further = (a_search(instance, size, 20.0, programs) for size in (7, 4))
        of, program, cuts = search.of, search.program, Cuts(search.cuts.counting)
        for _ in range(8):
            contents = [c for c in of.number if draw.random() < 0.5]
            paid = frozenset(c for c in program.listed if draw.random() < 0.3)
            free = of.bits_of(c for c in of.number if c not in contents)
            sizes = {c: of.residents[c].bytes for c in program.listed if c not in paid}
            target = program.least([free], [None], [paid])[0] * (1.0 - 1e-9)

            columns, looks = draw.choice([2, 16]), draw.choice([1, 2, 3])
            least = sparing(program, free, paid)
            cut = weighed(sizes, contents, least, target, columns=columns, looks=looks)
            if cut is not None:
                cuts.learn(cut)
        own += sum(not cut.is_plain for cut in checked(iter(cuts), search))
        further_on = checked(cuts.at(further.cuts.counting), further)
        handed_on += sum(not cut.is_plain for cut in further_on)
    assert own > len(seeds)
    assert handed_on > len(seeds) / 2


def test_none_is_weighed_where_that_is_off() -> None:
    off = AT_ONCE.without("copies.weighing_looks")
    all_plain = [
        all(cut.is_plain for first, _ in searches(range(12), tuning) for cut in first.cuts)
        for tuning in (off, AT_ONCE)
    ]
    assert all_plain == [True, False]


def test_a_step_of_joules_frees_no_less_than_nothing() -> None:
    """Though joules are counted more finely where any may be spent: page-outs at just above whole steps
    would leave for ten steps, and not for all joules.
    """
    prices = {"p": (2, 1.0), "q1": (4, 3.3359), "q2": (4, 3.3359), "q3": (4, 3.3359)}
    tensors = [
        Tensor(
            name,
            size,
            Transfer(0.1, 0.1 * joules),
            Transfer(0.1, 0.9 * joules),
            initially=Place.RAM,
            finally_=Place.RAM,
        )
        for name, (size, joules) in prices.items()
    ]
    ops = (ProblemOp("f", (), ("a",), 1.0, 0.5), ProblemOp("g", ("a",), (), 1.0, 0.5))
    problem = Problem("dear weights", (*tensors, Tensor("a", 40)), ops)
    of = Followed(instance_of(problem, Limits(ram_budget_bytes=80), tuning=EACH_SIZE), 30, 80)
    parts = EACH_SIZE.copies.parts
    program = RamProgram(of, most_joules=10.0, most_arcs=1 << 20, parts=parts, finished=lambda: False)
    program.count_in_steps(1.0, 10)
    assert min(step_bytes(program, number, 10) for number in range(10)) >= 0
    for number in range(of.end + 1):
        taken = [program.residents.unlisted(number, some) for some in (*range(10), None)]
        assert taken == sorted(taken, reverse=True)
        assert taken[0] > taken[-1]


@pytest.mark.parametrize(
    ("cut", "other", "implied"),
    [
        (Cut({1: 1}, 2.0), Cut({1: 1, 2: 1}, 2.0), True),
        (Cut({1: 1, 2: 1}, 2.0), Cut({1: 1}, 2.0), False),
        (Cut({1: 1}, 2.0), Cut({1: 1, 2: 1}, 3.0), False),
        (Cut({1: 2, 2: 1}, 2.0, need=2), Cut({1: 1, 2: 1}, 2.0), True),  # both, or the first one
        (Cut({1: 1, 2: 1}, 2.0), Cut({1: 2, 2: 1}, 2.0, need=2), False),
        (Cut({1: 6, 2: 2}, 2.0, need=6), Cut({1: 2, 2: 1}, 2.0, need=2), True),
    ],
)
def test_of_two_cuts_the_one_that_the_other_implies_is_not_kept(cut: Cut, other: Cut, implied: bool) -> None:
    with SmallPrograms(WALL, EnginesTuning()) as programs:
        search = a_search(instance_of(*weights_in_turn(0)), 6, 9.0, programs)
    assert cut.implies(other) is implied
    for both in ((cut, other), (other, cut)):
        kept = Cuts(search.cuts.counting)
        for one in both:
            kept.learn(one)
        assert (other in list(kept)) is not implied
        assert cut in list(kept) or other.implies(cut)
