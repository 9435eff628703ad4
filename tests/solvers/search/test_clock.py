"""The clock of the search: by counted work, the same search is cut at the same place and says the same."""

from __future__ import annotations

import ast
import dataclasses
import pickle
from pathlib import Path

import pytest
from helpers.clocks import Ticking, counted
from helpers.pace import few_or_many
from helpers.random_problems import floor_bytes, keep_bytes, mixed_problem, random_limits, training_like

from poet.errors import InputError
from poet.planning.cache import cell_key
from poet.problem import Limits, Objective, Problem
from poet.problem.solution import Solution, SolveOptions
from poet.solvers import solve
from poet.solvers.engines import available_engines
from poet.solvers.portfolio.relaxations import whole_relaxation
from poet.solvers.portfolio.retention_intervals import retention_intervals
from poet.solvers.search.least_energy import solve as least_energy
from poet.util.clock import WALL, Clock, WorkClock

STEP = training_like(5, seed=2, momentum=True)
SOLVERS = Path(__file__).parents[3] / "poet" / "solvers"
needs_cpsat = pytest.mark.skipif("cpsat" not in available_engines(), reason="OR-tools is not installed")


def tight(problem: Problem, share: float) -> Limits:
    least = floor_bytes(problem)
    return Limits(ram_budget_bytes=least + round(share * (keep_bytes(problem) - least)))


def told(solution: Solution) -> Solution:
    """All that was found; the wall's seconds are no part of it."""
    return dataclasses.replace(solution, solve_seconds=0.0)


# --- the same again ---


@few_or_many("seeds", 5, 12)
def test_a_second_search_with_the_same_seed_gives_the_same_plan_where_no_clock_cuts_it(seeds: int) -> None:
    plans = 0
    for seed in range(seeds):
        problem = mixed_problem(seed, largest=6)
        limits = random_limits(problem, seed, deadline=seed % 3 == 0)
        options = SolveOptions(time_limit_seconds=None, seed=seed, engine="highs")
        first, second = (solve(problem, limits, options) for _ in range(2))
        assert first.schedule == second.schedule
        assert (first.status, first.bound_joules, first.solver) == (
            second.status,
            second.bound_joules,
            second.solver,
        )
        plans += first.schedule is not None
    assert plans >= seeds // 2


@pytest.mark.parametrize("objective", [Objective.ENERGY, Objective.TIME])
@pytest.mark.slow
def test_so_does_one_that_is_cut_by_counted_work(objective: Objective) -> None:
    limits = tight(STEP, 0.1)
    asked = [counted(0.5, engine="highs", objective=objective, seed=3) for _ in range(2)]
    first, second = (solve(STEP, limits, options) for options in asked)
    assert first == second  # to the second of work and the last sentence
    assert first.schedule is not None
    assert asked[0].clock.now() == asked[1].clock.now() > 0.0


@pytest.mark.slow
def test_so_does_the_search_on_large_problems() -> None:
    """Programs in a child and rounds in this process, though the child is heard at any time."""
    limits = tight(STEP, 0.1)
    first, second = (solve(STEP, limits, counted(1.0, engine="highs")) for _ in range(2))
    assert first == second


@needs_cpsat
def test_so_does_cpsat() -> None:
    problem = training_like(3, seed=1)
    limits = tight(problem, 0.2)
    first, second = (solve(problem, limits, counted(0.5, engine="cpsat")) for _ in range(2))
    assert first == second
    assert first.schedule is not None


@pytest.mark.slow
def test_more_work_is_hardly_ever_worse() -> None:
    limits = tight(STEP, 0.1)
    short, long = (solve(STEP, limits, counted(seconds, engine="highs")) for seconds in (0.1, 1.0))
    assert short.joules is not None
    assert long.joules is not None
    assert long.joules <= 1.001 * short.joules  # it begins with other greedy plans
    assert long.bound_joules >= short.bound_joules


# --- what counts ---


def test_work_adds_up_and_limits_are_numbers_of_it() -> None:
    clock = WorkClock(program_seconds=1.0, iteration_seconds=0.1, node_seconds=2.0, schedule_seconds=5.0)
    clock.spend(programs=1, iterations=10, nodes=3, schedules=2, engine_seconds=0.5)
    assert clock.now() == pytest.approx(1.0 + 1.0 + 6.0 + 10.0 + 0.5)
    assert clock.most_iterations(1.0) == 10
    assert clock.most_nodes(3.0) == 2
    assert clock.most_nodes(-1.0) == 1  # engines take no 0
    assert clock.most_nodes(float("inf")) == 2**31 - 1
    assert WALL.most_nodes(1.0) is WALL.most_iterations(1.0) is None


def test_a_search_charges_its_programs_and_schedules() -> None:
    clock = WorkClock(program_seconds=1.0, iteration_seconds=1e-9, node_seconds=1e-9, schedule_seconds=1e-5)
    options = SolveOptions(time_limit_seconds=None, engine="highs", confirm=False, clock=clock)
    members = (("exact models", retention_intervals, 1.0), ("whole numbers", whole_relaxation, 1.0))
    found = least_energy(STEP, tight(STEP, 0.05), options, members=members)
    assert found.schedule is not None
    assert clock.now() > 2.0  # a relaxation and an exact model
    assert 1e-5 <= clock.now() % 1.0 < 0.1


@pytest.mark.parametrize(("engine", "threads"), [("cbc", 1), ("highs+cpsat", 2), ("highs", 2)])
def test_an_engine_that_does_not_tell_its_work_is_refused(engine: str, threads: int) -> None:
    with pytest.raises(InputError, match=r"does not tell the work .* ask for one thread of highs or cpsat"):
        solve(STEP, tight(STEP, 0.3), counted(1.0, engine=engine, threads=threads))


def test_clocks_travel_with_their_options_and_name_cached_answers() -> None:
    assert pickle.loads(pickle.dumps(SolveOptions())) == SolveOptions()
    assert pickle.loads(pickle.dumps(WorkClock(1.0))).program_seconds == 1.0
    assert Clock() == WALL
    assert WorkClock() != WALL
    keys = [cell_key("0", Limits(), SolveOptions(clock=clock)) for clock in (WALL, Clock(), WorkClock())]
    assert keys[0] == keys[1] != keys[2]


# --- nothing else is asked ---


def test_a_search_on_the_wall_gives_no_program_more_than_is_left() -> None:
    clock, step = Ticking(0.002), training_like(3, seed=2, momentum=True)
    found = solve(step, tight(step, 0.1), SolveOptions(0.6, engine="highs", confirm=False, clock=clock))
    assert found.schedule is not None
    clock.assert_kept(0.6)


def test_no_part_of_the_search_looks_at_the_wall_itself() -> None:
    allowed = {
        "engines/process.py"  # how often it tells a bound; not where work is counted
    }
    asked = set[str]()
    for path in SOLVERS.rglob("*.py"):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import)]
        if any(alias.name == "time" for node in imports for alias in node.names):
            asked.add(path.relative_to(SOLVERS).as_posix())
    assert asked == allowed
