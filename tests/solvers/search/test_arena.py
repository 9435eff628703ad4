"""Answers are laid out inside the budget; where gaps do not fit, the search is repeated with less."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from helpers import hand_net
from helpers.clocks import OwnTime
from helpers.pace import with_slow
from helpers.random_problems import random_problem
from helpers.shuffled import movable

from poet.memory.demand import demand_of
from poet.memory.layout import Layout, check_layout
from poet.planning.arena import fit
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.planning.step_search import answered_beside, bounded_limits, less_page_buffer
from poet.plans.page_slots import is_paged
from poet.problem import Limits, Objective, Problem, Transfer
from poet.problem.schedule import Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, SolveOptions, Start, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.heuristics.greedy import greedy

OPTIONS = SolveOptions(time_limit_seconds=60.0)  # for all rounds together; they end much sooner


def uneven(seed: int) -> Problem:
    """Tensors of sizes that leave gaps."""
    problem = random_problem(seed, ops=10, features=("outputs", "workspace"))
    generator = random.Random(seed)
    tensors = tuple(replace(item, bytes=generator.randint(1, 99)) for item in problem.tensors)
    return replace(problem, tensors=tensors)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_fitted_fits_as_a_whole_or_says_that_it_does_not(seed: int) -> None:
    problem = uneven(seed)
    most, least = keep_everything_bytes(problem), minimum_ram_bytes(problem, Limits()).bytes
    limits = Limits(ram_budget_bytes=budget_between(least, most, 0.5))
    first = solve(problem, limits, OPTIONS)
    fitted = fit(problem, limits, first, OPTIONS)
    if first.schedule is None:
        assert fitted is None
        return
    assert fitted is not None
    solution, arena, budget_bytes = fitted.solution, fitted.arena, limits.ram_budget_bytes
    assert solution.schedule is not None
    simulate(problem, solution.schedule, limits)
    blocks = demand_of(problem, solution.schedule).blocks
    check_layout(Layout(blocks, arena.offsets_bytes, arena.size_bytes, 0))
    assert solution.bound_joules == first.bound_joules
    assert budget_bytes is not None
    fits = arena.size_bytes <= budget_bytes
    assert fits or "it runs from the heap" in solution.message
    assert solution.status is not Status.OPTIMAL or (solution.gap or 0.0) <= OPTIONS.relative_gap


@pytest.mark.slow
def test_what_is_missing_is_held_back_and_the_bound_stays() -> None:
    """Replay rounds to 64 bytes; a problem that was solved to the byte lacks a few."""
    graph = hand_net.graph()
    problem = hand_net.problem(graph)
    most, least = keep_everything_bytes(problem), minimum_ram_bytes(problem, Limits()).bytes
    reserved = []
    for share in (0.5, 0.7, 0.9, 1.0):
        limits = Limits(ram_budget_bytes=budget_between(least, most, share))
        first = solve(problem, limits, OPTIONS)
        fitted = fit(problem, limits, first, OPTIONS, kernels=hand_net.KERNELS)
        assert fitted is not None
        assert fitted.solution.trace is not None
        assert fitted.arena.size_bytes <= (limits.ram_budget_bytes or 0)
        assert fitted.solution.trace.joules >= fitted.solution.bound_joules == first.bound_joules
        reserved.append(fitted.reserved_bytes)
    assert max(reserved) > 0


def test_once_the_time_is_up_a_plan_is_still_kept_off_the_heap() -> None:
    problem = hand_net.problem(hand_net.graph())
    most, least = keep_everything_bytes(problem), minimum_ram_bytes(problem, Limits()).bytes
    limits = Limits(ram_budget_bytes=budget_between(least, most, 0.5))
    first = solve(problem, limits, OPTIONS)
    late = SolveOptions(time_limit_seconds=first.solve_seconds)
    fitted = fit(problem, limits, first, late, kernels=hand_net.KERNELS)
    assert fitted is not None
    assert fitted.arena.size_bytes <= (limits.ram_budget_bytes or 0)
    assert "it runs from the heap" not in fitted.solution.message


@pytest.mark.slow
def test_a_search_with_bytes_held_back_proves_nothing_about_the_budget() -> None:
    """Its proof and the bound of its class hold for less RAM."""
    graph = hand_net.graph()
    problem = hand_net.problem(graph)
    most, least = keep_everything_bytes(problem), minimum_ram_bytes(problem, Limits()).bytes
    found = set[Status]()
    for share in (0.3, 0.5):
        limits = Limits(ram_budget_bytes=budget_between(least, most, share))
        first = replace(solve(problem, limits, OPTIONS), proof="the word of one engine")
        fitted = fit(problem, limits, first, OPTIONS)
        assert fitted is not None
        assert fitted.reserved_bytes
        solution = fitted.solution
        found.add(solution.status)
        assert solution.proof == (first.proof if solution.status is Status.OPTIMAL else "")
        if solution.status is Status.FEASIBLE:
            assert solution.message.endswith("reserved for gaps between tensors: the gap is their price.")
    assert Status.FEASIBLE in found


def test_without_a_budget_everything_is_laid_out() -> None:
    problem = uneven(1)
    fitted = fit(problem, Limits(), solve(problem, Limits(), OPTIONS), OPTIONS)
    assert fitted is not None
    assert fitted.arena.size_bytes >= keep_everything_bytes(problem)


def _with_gaps() -> tuple[Problem, Schedule]:
    """A schedule that no fixed places are found for in an arena as large as its peak."""
    problem = random_problem(46, ops=20, features=("outputs", "workspace"))
    generator = random.Random(46)
    sized = tuple(replace(item, bytes=generator.randint(1, 99)) for item in problem.tensors)
    problem = movable(replace(problem, tensors=sized))
    least = minimum_ram_bytes(problem, Limits()).bytes
    schedule = greedy(problem, Limits(ram_budget_bytes=11 * least // 10))
    assert schedule is not None
    return problem, schedule


def _found(problem: Problem, schedule: Schedule) -> tuple[Limits, Solution]:
    """A budget as large as the schedule's peak, and the schedule as a search would give it."""
    trace = simulate(problem, schedule)
    first = Solution(Status.FEASIBLE, schedule, trace, 0.0, problem.compute_joules, 0.0, "by hand")
    return Limits(ram_budget_bytes=trace.peak_ram_bytes), first


def short(objective: Objective = Objective.ENERGY) -> SolveOptions:
    """Of the processor's time, and too short for places by CP-SAT."""
    return SolveOptions(time_limit_seconds=1.0, clock=OwnTime(share=0.02), objective=objective)


@pytest.fixture
def moves_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plan follows a schedule in less RAM."""
    monkeypatch.setattr("poet.planning.arena.followed", lambda *arguments: None)


@pytest.mark.usefixtures("moves_alone")
def test_moves_make_a_plan_fit_and_are_charged() -> None:
    problem, schedule = _with_gaps()
    limits, first = _found(problem, schedule)
    fitted = fit(problem, limits, first, short())
    assert fitted is not None
    assert fitted.arena.size_bytes <= (limits.ram_budget_bytes or 0)
    assert fitted.solution.trace is not None
    assert fitted.solution.schedule == schedule
    moves = fitted.solution.trace.moves
    assert 0 < moves <= len(fitted.arena.moves)
    assert fitted.solution.joules == pytest.approx((first.joules or 0.0) + moves * 2e-4)


def test_a_plan_is_followed_in_less_ram_where_that_takes_less_than_its_moves() -> None:
    cheap, schedule = _with_gaps()
    dear = replace(cheap, tensors=tuple(replace(item, move=Transfer(0.1, 0.5)) for item in cheap.tensors))
    limits, first = _found(dear, schedule)
    fitted = fit(dear, limits, first, short())
    assert fitted is not None
    assert fitted.solution.schedule is not None
    assert fitted.reserved_bytes > 0
    assert fitted.arena.size_bytes <= (limits.ram_budget_bytes or 0)
    assert (fitted.solution.joules or 0.0) < (first.joules or 0.0) + 0.5  # of a single move
    assert fitted.solution.bound_joules == first.bound_joules
    simulate(dear, fitted.solution.schedule, limits)


def test_moves_are_weighed_by_the_objective() -> None:
    """For least time, moves that take time alone are dear, and those that take none are not."""
    problem, schedule = _with_gaps()
    for move, is_dear in ((Transfer(0.5, 0.0), True), (Transfer(0.0, 0.5), False)):
        at_price = replace(
            problem, idle_watts=0.0, tensors=tuple(replace(item, move=move) for item in problem.tensors)
        )
        limits, first = _found(at_price, schedule)
        first = replace(first, objective=Objective.TIME, objective_bound=0.0)
        found = fit(at_price, limits, first, short(Objective.TIME))
        assert found is not None
        assert (found.reserved_bytes > 0) is is_dear
        assert is_dear or found.arena.moves


def _in_mebibytes(seed: int, *, ops: int = 8) -> Problem:
    """A random problem that pages, of tensors so large that a page buffer is left beside them."""
    problem = random_problem(seed, ops=ops, features=("outputs", "workspace"))
    return replace(
        problem,
        tensors=tuple(replace(item, bytes=item.bytes << 20) for item in problem.tensors),
        ops=tuple(replace(op, workspace_bytes=op.workspace_bytes << 20) for op in problem.ops),
    )


@pytest.mark.slow
def test_plans_that_page_leave_room_for_the_page_buffer_and_others_need_not() -> None:
    """The answer is no dearer than the best beside the buffer, and its bound no higher than the best plan."""
    kinds = set[tuple[bool, bool]]()
    for seed in range(4):
        problem = _in_mebibytes(seed, ops=6)
        least = minimum_ram_bytes(problem, Limits()).bytes
        unpaged = minimum_ram_bytes(problem, Limits(paging=False)).bytes
        for budget in (least + (1 << 16), unpaged - 1, unpaged, unpaged + (1 << 20)):
            limits = Limits(ram_budget_bytes=budget)
            within = less_page_buffer(limits)
            assert within.ram_budget_bytes == budget - (1 << 16)
            options = SolveOptions(time_limit_seconds=20.0)
            both = [solve(problem, each, options) for each in (within, replace(limits, paging=False))]
            joules = min((each.joules for each in both if each.joules is not None), default=None)
            found = answered_beside(problem, limits, options)
            if joules is None:  # nothing fits beside a buffer: all of the budget is searched
                assert bounded_limits(found, limits) == limits
                continue
            assert found.status is Status.OPTIMAL
            assert found.schedule is not None
            assert found.joules is not None
            assert found.joules <= (both[0].joules or math.inf) * (1.0 + 1e-4)
            assert found.bound_joules <= joules * (1.0 + 1e-9)
            trace = simulate(problem, found.schedule, limits)
            if is_paged(found.schedule):
                assert trace.peak_ram_bytes <= budget - (1 << 16)
            kinds.add((unpaged <= budget, bounded_limits(found, limits) == limits))
    assert kinds == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize("seed", with_slow([8, 10, 58], {8, 10}))
def test_a_start_beside_the_page_buffer_is_not_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a look at the whole budget finds a better plan, which leaves no room for the buffer."""
    problem = _in_mebibytes(seed, ops=6)
    limits = Limits(ram_budget_bytes=_unpaged_bytes(problem))
    within, asked = less_page_buffer(limits), list[SolveOptions]()
    options = SolveOptions(time_limit_seconds=20.0)
    best = solve(problem, within, options)
    assert (
        _joules(problem, limits) < _joules(problem, within) < _joules(problem, replace(limits, paging=False))
    )

    def answered(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
        asked.append(options)
        return solve(problem, limits, options)

    monkeypatch.setattr("poet.planning.step_search.answered", answered)
    options = replace(options, start=Start(best.schedule, "an earlier search"))
    assert answered_beside(problem, limits, options).joules == best.joules
    assert [replace(each.start, bound=None) for each in asked] == [options.start]


def _unpaged_bytes(problem: Problem) -> int:
    return minimum_ram_bytes(problem, Limits(paging=False)).bytes


def _joules(problem: Problem, limits: Limits) -> float:
    joules = solve(problem, limits, SolveOptions(time_limit_seconds=20.0)).joules
    return math.inf if joules is None else joules


def test_where_none_page_or_budgets_are_little_all_of_it_is_searched() -> None:
    limits = Limits(ram_budget_bytes=1 << 21)
    assert less_page_buffer(limits) == limits
    assert less_page_buffer(Limits(ram_budget_bytes=1 << 24, paging=False)).ram_budget_bytes == 1 << 24


def _paging_problem(spare_bytes: int) -> tuple[Problem, Limits]:
    """A problem and its least RAM with so much beside it, in which every plan pages."""
    problem = next(
        found
        for found in map(_in_mebibytes, range(12))
        if minimum_ram_bytes(found, Limits(paging=False)).bytes
        > minimum_ram_bytes(found, Limits()).bytes + spare_bytes
    )
    return problem, Limits(ram_budget_bytes=minimum_ram_bytes(problem, Limits()).bytes + spare_bytes)


def test_answers_beside_the_page_buffer_say_so() -> None:
    problem, loose = _paging_problem(spare_bytes=1 << 16)
    limits = replace(loose, deadline_seconds=1e-9)
    answer = answered_beside(problem, limits, SolveOptions(time_limit_seconds=2.0))
    assert answer.schedule is None
    assert answer.message.startswith(
        "Every plan in the listed order pages, and 64 KiB of the budget are for the page buffer."
    )
    found = answered_beside(problem, loose, SolveOptions(time_limit_seconds=2.0))
    assert found.schedule is not None
    assert found.bound_scope.endswith(" beside a page buffer of 64 KiB")


def test_plans_that_page_leave_two_pages_where_their_arena_takes_whole_ones() -> None:
    problem, limits = _paging_problem(spare_bytes=(1 << 16) + 2 * 4096)
    options = SolveOptions(time_limit_seconds=2.0)
    found = answered_beside(problem, limits, options, in_whole_pages=True)
    assert found.bound_scope.endswith(" beside a page buffer of 64 KiB in whole pages")
    within = less_page_buffer(limits, in_whole_pages=True)
    assert within.ram_budget_bytes == minimum_ram_bytes(problem, Limits()).bytes
    assert bounded_limits(found, limits) == within
    assert found.schedule is not None
    simulate(problem, found.schedule, within)


def test_where_two_pages_are_too_many_none_are_left() -> None:
    problem, limits = _paging_problem(spare_bytes=(1 << 16) + 2 * 4096 - 1)
    options = SolveOptions(time_limit_seconds=2.0)
    found = answered_beside(problem, limits, options, in_whole_pages=True)
    assert found.schedule is not None
    assert found.bound_scope.endswith(" beside a page buffer of 64 KiB")
    assert bounded_limits(found, limits) == less_page_buffer(limits)
