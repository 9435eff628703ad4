"""Rounds of bound refinement: what a plan refutes is not believed, and the engine ends with the search."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.clocks import Given, Ticking, counted
from helpers.random_problems import training_like

from poet.clock import Clock
from poet.problem import Limits, Problem
from poet.ram_survey import keep_everything_bytes
from poet.schedule import Schedule
from poet.simulator import simulate
from poet.solution import Status
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.bounds.windows_bound import Bound, bound_overhead
from poet.solvers.engines.highs_process import HighsProcess
from poet.solvers.engines.matrix import Matrix
from poet.solvers.event_model.model import EventModel
from poet.solvers.instance.context import Conduct
from poet.solvers.instance.instance import Instance, instance_of
from poet.solvers.search.best_bound import BestBound
from poet.solvers.search.bound_rounds import BoundRounds
from poet.tuning import DEFAULT

SHORT_SECONDS = 1.2
"""Of work: until the bound is refined, and hardly more."""
PLAIN = DEFAULT.without("copies.most_arcs")


@pytest.fixture(scope="module")
def deep() -> tuple[Problem, Limits]:
    """BERT with Cortex-M4 costs at half the RAM, which no search of seconds closes."""
    problem = Problem.load(Path(__file__).parents[2] / "instances" / "family" / "bert.m4.json")
    return problem, Limits(ram_budget_bytes=keep_everything_bytes(problem) // 2)


@pytest.fixture(scope="module")
def lean() -> tuple[Problem, Limits]:
    """ResNet-18 with Cortex-M4 costs at the least RAM, which the first look does not close."""
    problem = Problem.load(Path(__file__).parents[2] / "instances" / "resnet18_cifar.m4.json")
    return problem, Limits(ram_budget_bytes=minimum_ram_bytes(problem).bytes)


@pytest.mark.slow
def test_a_bound_that_a_plan_refutes_is_not_believed(
    lean: tuple[Problem, Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[float]()

    def erring(instance: Instance, child: HighsProcess, *, most_joules: float, **_: Any) -> Iterator[Bound]:
        asked.append(most_joules)
        first = bound_overhead(instance, clock=child.clock)
        yield first
        yield replace(first, overhead_joules=2.0 * instance.problem.compute_joules)

    monkeypatch.setattr("poet.solvers.search.bound_rounds.refined_bounds", erring)
    found = solve(*lean, counted(SHORT_SECONDS, confirm=False, tuning=PLAIN))
    assert asked
    assert found.status is Status.FEASIBLE
    assert found.joules is not None
    assert found.bound_joules < found.joules
    assert found.bound_joules >= lean[0].compute_joules + bound_overhead(instance_of(*lean)).overhead_joules


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[HighsProcess]:
    """The engines of the refinement, one for each program that it begins."""
    processes = list[HighsProcess]()

    class Watched(HighsProcess):
        def begin(self, matrix: Matrix, seconds: float, *, relative_gap: float = 1e-4) -> None:
            processes.append(self)
            super().begin(matrix, seconds, relative_gap=relative_gap)

    monkeypatch.setattr("poet.solvers.search.bound_rounds.HighsProcess", Watched)
    return processes


@pytest.mark.slow
def test_the_engine_ends_with_the_search(lean: tuple[Problem, Limits], begun: list[HighsProcess]) -> None:
    solve(*lean, counted(SHORT_SECONDS, confirm=False, tuning=PLAIN))
    assert begun
    assert len(set(begun)) == 1
    assert not begun[0].is_running


def conduct(
    bounded: list[float],
    clock: Clock | None = None,
    seconds: float = 100.0,
    found: list[Schedule] | None = None,
) -> Conduct:
    clock = clock or Given()
    schedules = list[Schedule]() if found is None else found

    def hear(joules: float, proven: bool) -> bool:
        bounded.append(joules)
        return joules < 1e30

    return Conduct(
        seconds_left=lambda: seconds - clock.now(),
        finished=lambda: clock.now() > seconds,
        found=lambda schedule, found_by: schedules.append(schedule),
        bounded=hear,
        classed=lambda joules, reruns: None,
        threads=1,
        seed=0,
        clock=clock,
    )


def test_the_engine_ends_between_two_looks_and_begins_anew(
    deep: tuple[Problem, Limits], begun: list[HighsProcess]
) -> None:
    """Idle it would hold its memory beside other engines."""
    heard = list[float]()
    one = DEFAULT.having("bound_rounds.time_share", 0.0).having("bound_rounds.leading_time_share", 0.0)
    with BoundRounds(instance_of(*deep, tuning=one), conduct(heard, Ticking(1e-6))) as rounds:
        rounds.prepare()
        for programs in (0, 1, 2):  # in whole numbers, after the linear one; of one run that goes on
            rounds.long(math.inf, -math.inf, 0.0)
            assert (len(heard), len(begun)) == (programs + 1, programs)
            assert not any(engine.is_running for engine in begun)
    assert len(set(begun)) == 1
    assert heard[2] > 1.1 * heard[0]


def test_the_linear_program_and_what_follows_it_come_before_any_event_model(
    lean: tuple[Problem, Limits],
) -> None:
    """No bound is above a schedule that follows it, and both are far better than nothing."""
    problem, limits = lean
    heard, found = list[float](), list[Schedule]()
    tuning = DEFAULT.having("grids.priced_rounds", 1)
    with BoundRounds(instance_of(*lean, tuning=tuning), conduct(heard, found=found)) as rounds:
        assert rounds.first()
    judged = [simulate(problem, schedule, limits).joules - problem.compute_joules for schedule in found]
    assert heard
    assert judged
    assert 0.25 * min(judged) < max(heard) <= min(judged)


@pytest.mark.parametrize("pays", [True, False])
def test_a_linear_program_without_a_solution_says_that_there_is_no_plan(
    lean: tuple[Problem, Limits], monkeypatch: pytest.MonkeyPatch, pays: bool
) -> None:
    none = replace(bound_overhead(instance_of(*lean)), overhead_joules=math.inf)
    monkeypatch.setattr("poet.solvers.search.bound_rounds.priced_bound", lambda *_, **__: none)
    heard = list[float]()
    with BoundRounds(instance_of(*lean), conduct(heard), pays=pays) as rounds:
        assert rounds.first() is not pays
    assert heard == []


def test_a_look_goes_on_as_long_as_it_leads_whatever_is_rounded(
    deep: tuple[Problem, Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, rng = replace(bound_overhead(instance_of(*deep)), moments=frozenset()), random.Random(0)
    monkeypatch.setattr("poet.solvers.search.bound_rounds.walks_along", lambda instance, bound: ())
    none = DEFAULT.having("bound_rounds.time_share", 0.0)  # each look ends after one bound
    instance = instance_of(*deep, tuning=none.having("bound_rounds.leading_time_share", 0.0))
    for _ in range(50):
        once, overhead = rng.uniform(1.0, 100.0), rng.uniform(0.1, 1.0)
        rising = [replace(first, overhead_joules=overhead * part) for part in (0.5, 0.6, 0.7)]
        monkeypatch.setattr(
            "poet.solvers.search.bound_rounds.refined_bounds",
            lambda *_, bounds=tuple(rising), **__: iter(bounds),
        )
        heard = list[float]()
        with BoundRounds(instance, conduct(heard, Ticking(1e-6))) as rounds:
            rounds.long(overhead, 0.1 * overhead, 0.0)
            rounds.long(overhead, (once + heard[-1]) - once, 0.0)
            assert len(heard) == 2
            rounds.long(overhead, 0.9 * overhead, 0.0)  # others lead
            rounds.long(overhead, heard[-1], overhead)  # the last round brought much
            assert heard == [0.5 * overhead, 0.6 * overhead]


@pytest.mark.slow
def test_a_short_look_is_short(deep: tuple[Problem, Limits]) -> None:
    """No program is begun after its time, and each gets as much again and twice, no more."""
    heard = list[float]()
    lent = conduct(heard)
    with BoundRounds(instance_of(*deep), lent) as rounds:
        rounds.short(1.0, 0.0)
    assert heard
    assert isinstance(lent.clock, Given)
    assert len(lent.clock.given) >= 2  # a linear program here, and whole numbers in the child
    assert all(begun <= 1.0 and begun + seconds <= 3.0 + 1e-9 for begun, seconds in lent.clock.given)


@pytest.mark.parametrize(
    ("bound", "heard_of"), [(0.0, 20), (0.2, 20), (2.0, DEFAULT.bound_rounds.pace_bounds)]
)
@pytest.mark.parametrize("is_long", [False, True])
def test_a_look_that_will_not_reach_the_best_bound_is_given_up(
    deep: tuple[Problem, Limits],
    monkeypatch: pytest.MonkeyPatch,
    bound: float,
    heard_of: int,
    is_long: bool,
) -> None:
    """It rises by a hundredth in a second, and has twenty seconds of the hundred or more."""
    first = replace(bound_overhead(instance_of(*deep)), moments=frozenset())
    clock, heard = Given(), list[float]()

    def rising(*_: object, **__: object) -> Iterator[Bound]:
        for number in range(1, 21):
            clock.spend(engine_seconds=1.0)
            yield replace(first, overhead_joules=0.01 * number)

    monkeypatch.setattr("poet.solvers.search.bound_rounds.walks_along", lambda instance, bound: ())
    monkeypatch.setattr("poet.solvers.search.bound_rounds.refined_bounds", rising)
    with BoundRounds(instance_of(*deep), conduct(heard, clock)) as rounds:
        if is_long:
            rounds.long(3.0, bound, 0.0)
        else:
            rounds.short(20.5, bound)
    assert len(heard) == heard_of


def test_a_solver_that_says_there_is_no_plan_is_not_asked_again(
    deep: tuple[Problem, Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    none = replace(bound_overhead(instance_of(*deep)), overhead_joules=math.inf)
    monkeypatch.setattr(
        "poet.solvers.search.bound_rounds.refined_bounds", lambda *_, **__: iter((none, none))
    )
    heard = list[float]()
    with BoundRounds(instance_of(*deep), conduct(heard)) as rounds:
        for _ in range(3):
            rounds.long(1.0, 0.0, 0.0)
    assert heard == [math.inf]


def test_a_plan_refutes_an_engines_word_but_not_arithmetic() -> None:
    bound = BestBound[EventModel](100.0)
    bound.take(5.0)
    bound.take(20.0, proven=False)
    bound.take(7.0)
    assert (bound.joules, bound.alone) == (120.0, True)
    bound.meet(120.0)
    assert bound.joules == 120.0
    bound.meet(119.0)
    assert (bound.joules, bound.alone) == (107.0, False)
    bound.meet(103.0)
    assert bound.joules == 107.0
    bound.forget()
    assert bound.joules == 100.0


def test_a_solution_that_ram_is_enough_for_is_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = training_like(7, seed=3)
    least = minimum_ram_bytes(problem).bytes
    most = sum(tensor.bytes for tensor in problem.tensors)
    limits = Limits(ram_budget_bytes=least + (most - least) // 10, paging=False)
    heard, found = list[float](), list[Schedule]()
    monkeypatch.setattr("poet.solvers.search.bound_rounds.walks_along", lambda instance, bound: ())
    with BoundRounds(instance_of(problem, limits), conduct(heard, found=found)) as rounds:
        rounds.short(20.0, 0.0)
    joules = [simulate(problem, schedule, limits).joules for schedule in found]
    assert min(joules) == pytest.approx(problem.compute_joules + max(heard), rel=1e-6)
