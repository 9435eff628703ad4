"""What a search did is written down: phases, plans and bounds over time, and rejections by rule."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest
from helpers.random_problems import training_like

from poet.errors import InputError
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.problem import Limits, Objective, Problem
from poet.problem.schedule import Compute
from poet.problem.search_record import (
    MOST_ENTRIES,
    Advance,
    Phase,
    Rejected,
    SearchRecord,
    joined,
    shortened_phases,
    thinned,
)
from poet.problem.solution import SolveOptions, Start, Status, solution_to_json
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.bounds.relaxation import bound_overhead
from poet.solvers.instance.instance import instance_of
from poet.solvers.portfolio.state import Recorder
from poet.util import codec

STEP, LARGER = training_like(1), training_like(3)
OPTIONS = SolveOptions(time_limit_seconds=None, engine="highs")


def tight(problem: Problem, share: float = 0.3) -> Limits:
    most, least = keep_everything_bytes(problem), minimum_ram_bytes(problem).bytes
    return Limits(ram_budget_bytes=budget_between(least, most, share))


class Clock:
    """Goes on by a second each time that it is read."""

    def __init__(self) -> None:
        self.seconds = -1.0

    def __call__(self) -> float:
        self.seconds += 1.0
        return self.seconds


# --- writing it down ---


def test_a_phase_tells_what_it_brought() -> None:
    recorder = Recorder(clock=Clock())
    recorder.bound(1.0, "arithmetic")
    with recorder.phase("first"):
        recorder.plan(9.0, "greedy")
        recorder.plan(7.0, "greedy")

    def interrupted() -> None:
        with recorder.phase("second"):
            recorder.plan(6.0, "walks")
            recorder.bound(4.0, "an engine")
            recorder.bound(4.0, "another, which says nothing new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    record = recorder.record()
    first, second = record.phases
    assert (first.name, first.plans, first.saved, first.raised) == ("first", 2, 0.0, 0.0)
    assert (second.name, second.plans, second.saved, second.raised) == ("second", 1, 1.0, 3.0)
    assert first.begin_seconds < first.end_seconds < second.begin_seconds < second.end_seconds
    assert [(found.amount, found.by) for found in record.plans] == [
        (9.0, "greedy"), (7.0, "greedy"), (6.0, "walks"),
    ]  # fmt: skip
    assert [found.by for found in record.bounds] == ["arithmetic", "an engine"]


def test_a_record_is_bounded_in_length() -> None:
    recorder = Recorder(clock=Clock())
    for number in range(5 * MOST_ENTRIES):
        with recorder.phase(f"phase {number}"):
            recorder.plan(1e6 - number, "greedy")
            recorder.bound(float(number), "an engine")
    record = recorder.record()
    assert len(record.phases) == len(record.plans) == len(record.bounds) == MOST_ENTRIES
    assert record.plans[0].amount == 1e6
    assert record.plans[-1].amount == 1e6 - 5 * MOST_ENTRIES + 1
    assert record.phases[-1].name == f"{4 * MOST_ENTRIES + 1} more phases"
    assert sum(phase.plans for phase in record.phases) == 5 * MOST_ENTRIES
    twice = joined(record, record, after_seconds=record.phases[-1].end_seconds)
    assert len(twice.phases) == len(twice.plans) == len(twice.bounds) == MOST_ENTRIES
    assert thinned(range(3)) == (0, 1, 2)
    assert shortened_phases(()) == ()
    with pytest.raises(InputError, match="at most 200 plans"):
        SearchRecord(plans=(Advance(0.0, 1.0, "a stranger"),) * (MOST_ENTRIES + 1))


def test_the_second_of_two_searches_follows_the_first() -> None:
    first = SearchRecord((Phase("a", 0.0, 1.0),), rejected=(Rejected("memory", 2, 1),))
    second = SearchRecord(
        (Phase("b", 0.5, 1.0),),
        (Advance(0.75, 3.0, "greedy"),),
        rejected=(Rejected("deadline", 1), Rejected("memory", 3)),
    )
    both = joined(first, second, after_seconds=10.0)
    assert both.phases == (Phase("a", 0.0, 1.0), Phase("b", 10.5, 11.0))
    assert both.plans == (Advance(10.75, 3.0, "greedy"),)
    assert both.rejected == (Rejected("deadline", 1), Rejected("memory", 5, 1))


@pytest.mark.parametrize(("begin", "end"), [(-1.0, 1.0), (2.0, 1.0)])
def test_time_runs_forwards(begin: float, end: float) -> None:
    with pytest.raises(InputError, match="'a phase' begins at"):
        Phase("a phase", begin, end)
    with pytest.raises(InputError, match="before the search began"):
        Advance(-1.0, 1.0, "greedy")


# --- with every answer ---


def test_the_record_leads_to_the_answer() -> None:
    solution = solve(STEP, tight(STEP), OPTIONS)
    record = solution.record
    assert solution.status is Status.OPTIMAL
    assert record.plans[-1].amount == solution.joules
    assert record.plans[-1].by == solution.solver
    assert record.bounds[0].by == "running every op once"
    assert solution.joules is not None
    assert record.bounds[-1].amount == pytest.approx(solution.joules, rel=1e-3)
    assert record.phases[0].name == "greedy plans"
    assert sum(phase.plans for phase in record.phases) == len(record.plans)
    for advances in (record.plans, record.bounds):
        assert [one.seconds for one in advances] == sorted(one.seconds for one in advances)
    amounts = [one.amount for one in record.plans]
    assert amounts == sorted(amounts, reverse=True)
    assert record.phases[-1].end_seconds <= solution.solve_seconds
    told = json.loads(json.dumps(solution_to_json(STEP, solution)))["record"]
    assert codec.decode(SearchRecord, told, where="answer") == record


@pytest.mark.parametrize("objective", [Objective.TIME, Objective.RAM, Objective.WRITES])
def test_amounts_are_of_the_objective(objective: Objective) -> None:
    limits = Limits() if objective is Objective.RAM else tight(STEP)
    solution = solve(STEP, limits, dataclasses.replace(OPTIONS, objective=objective))
    assert solution.amount is not None
    assert solution.record.plans[-1].amount == pytest.approx(solution.amount)
    assert solution.record.bounds[-1].amount <= solution.amount * (1 + 1e-6)
    assert solution.record.phases[-1].name == "of the plans that take as little, one of least energy"


def test_a_callers_broken_start_is_counted_by_rule_and_no_fault_of_ours() -> None:
    start = (Compute(STEP.ops[-1].name),)
    solution = solve(STEP, tight(STEP), dataclasses.replace(OPTIONS, start=Start(start)))
    assert Rejected("input", 1) in solution.record.rejected
    assert not sum(one.faults for one in solution.record.rejected)


def test_each_room_has_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="poet"):
        solve(LARGER, tight(LARGER, 0.1), OPTIONS)
        bound_overhead(instance_of(LARGER, tight(LARGER)))
    rooms = {".".join(record.name.split(".")[:3]) for record in caplog.records}
    named = ("portfolio", "engines", "bounds", "event_model", "heuristics")
    assert {f"poet.solvers.{room}" for room in named} <= rooms
    assert "begins: linear relaxation" in caplog.text
    assert "by greedy" in caplog.text


def test_a_proof_that_there_is_no_plan_is_heard() -> None:
    limits = dataclasses.replace(tight(LARGER, 0.0), recompute=False, paging=False)
    assert solve(LARGER, limits, OPTIONS).status is Status.INFEASIBLE
