"""What a search did is written down: phases, plans and bounds over time, and rejections by rule."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from helpers.clocks import Ticking
from helpers.conducts import listening
from helpers.random_problems import training_like

from poet import codec
from poet.errors import InputError
from poet.problem import Limits, Objective, Problem
from poet.ram_survey import budget_between, keep_everything_bytes
from poet.schedule import Compute
from poet.search_record import (
    MOST_ENTRIES,
    Advance,
    Phase,
    Rejected,
    SearchRecord,
    joined,
    shortened_phases,
    thinned,
)
from poet.solution import SolveOptions, Status, solution_to_json
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.bounds.windows_bound import bound_overhead
from poet.solvers.engines import Effort, Outcome
from poet.solvers.instance.instance import instance_of
from poet.solvers.search import bound_rounds, large, model_runs
from poet.solvers.search import least_energy as search
from poet.solvers.search.after_rounds import Ways, go_on
from poet.solvers.search.recorder import Recorder
from poet.tuning import DEFAULT

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
    solution = solve(STEP, tight(STEP), dataclasses.replace(OPTIONS, start=start))
    assert Rejected("input", 1) in solution.record.rejected
    assert not sum(one.faults for one in solution.record.rejected)


def test_each_room_has_a_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="poet"):
        solve(LARGER, tight(LARGER, 0.1), OPTIONS)
        bound_overhead(instance_of(LARGER, tight(LARGER)))
    rooms = {".".join(record.name.split(".")[:3]) for record in caplog.records}
    named = {f"poet.solvers.{room}" for room in ("search", "engines", "bounds", "event_model", "heuristics")}
    assert named <= rooms
    assert "begins: round 1: relaxed event model" in caplog.text
    assert "by greedy" in caplog.text


# --- after the rounds ---


NO_STATES = (
    DEFAULT.without("states.round_states")
    .without("states.restart_states")
    .without("copies.most_arcs")
    .without("timed.most_contents")
)
NO_ROUND = dataclasses.replace(OPTIONS, tuning=NO_STATES.without("search.chain_reruns"))


def test_where_the_rounds_leave_a_gap_the_search_goes_on() -> None:
    """Without any round the plan is greedy's and nothing is proven; what follows the rounds proves it."""
    solution = solve(LARGER, tight(LARGER), NO_ROUND)
    assert solution.status is Status.OPTIMAL
    names = [phase.name for phase in solution.record.phases]
    assert "restart 1: relaxed event model" in names
    assert not [name for name in names if name.startswith("round")]


@pytest.mark.parametrize("small_ops", [0, 1000])
def test_a_search_that_finds_and_proves_nothing_goes_on_to_its_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, small_ops: int
) -> None:
    """A search ends by proof, by its limit or by the user, never by having tried all that it can think of."""
    seeds = set[int]()

    def silent(name: str, matrix: object, effort: Effort, **others: object) -> Outcome:
        seeds.add(effort.seed)
        return Outcome(None, 0.0, True, False, False)

    monkeypatch.setattr(model_runs, "run_engine", silent)
    monkeypatch.setattr(bound_rounds, "refined_bounds", lambda *arguments, **others: iter(()))
    monkeypatch.setattr(search, "search_large", lambda *arguments, **others: True)
    tuning = NO_STATES.without("bound_rounds.first_time_share").having("search.small_ops", small_ops)
    asked = dataclasses.replace(OPTIONS, time_limit_seconds=12.0, tuning=tuning, clock=Ticking(0.05))
    with caplog.at_level(logging.INFO, logger="poet.solvers.search.after_rounds"):
        solution = solve(LARGER, tight(LARGER), asked)
    assert solution.status is Status.FEASIBLE
    assert solution.solve_seconds >= 12.0
    assert "a longer time limit may close the gap" in solution.message
    assert {0, 1} <= seeds, "restarts have seeds of their own"
    assert "restart 1: nothing better" in caplog.messages, "even with no model left that was not searched"


def test_so_does_a_search_on_a_large_step_after_its_largest_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts offer longer and longer chains, by other seeds; only the caller ends them."""
    tried = list[tuple[int, int, int]]()

    def nothing(self: Any, guide: object, offer: Any) -> None:
        tried.append((self.conduct.seed, offer.chain, offer.depth))

    monkeypatch.setattr(large._LargeSearch, "_search_class", nothing)
    for goes_on in (False, True):
        tried.clear()
        conduct = dataclasses.replace(listening(seed=5), finished=lambda: len(tried) >= 8)
        limits = tight(STEP)
        instance = instance_of(STEP, limits)
        plan = solve(STEP, limits, OPTIONS).schedule
        assert large.search_large(STEP, limits, (instance, instance), plan, conduct, goes_on=goes_on)
        tuned = [(5, *sizes) for sizes in DEFAULT.large.offer_reruns]
        later = [(6, 16, 80), (7, 32, 160), (8, 64, 320), (9, 128, 640)]
        assert tried == tuned + (later if goes_on else [])


@pytest.mark.parametrize("looks", [0, 1, 2, 5, 9])
def test_restarts_that_nothing_else_ends_end_when_told(looks: int) -> None:
    """Each restart looks before it begins and before each of its parts; no time limit, no proof."""
    asked, begun = itertools.count(), list[str]()

    def does(part: str, answer: Any) -> Callable[..., Any]:
        def do(*arguments: object) -> Any:
            begun.append(part)
            return answer

        return do

    cut_short = Outcome((0.0,) * 10_000, 0.0, False, False, False)
    conduct = dataclasses.replace(listening(), finished=lambda: next(asked) >= looks)
    ways = Ways(
        instance=instance_of(LARGER, tight(LARGER)), conduct=conduct,
        restart=lambda number: None, find_first=does("first", False),
        vary_copies=does("vary", None), few_copies=does("few", None),
        follow_copies=does("copies", None), follow_states=does("states", None),
        follow_clocks=does("clocks", False),
        standing=lambda: (None, 0.0), relax=does("relax", cut_short),
        own_reruns=dict, solve_exactly=does("exact", False), look_longer=does("look", None),
        search_large=does("wide", True),
    )  # fmt: skip
    assert not go_on(ways, {})
    parts = ["first", "exact", "vary", "few", "copies", "states", "clocks", "relax", "exact", "exact"]
    assert begun == ([*parts, "look", "wide"] * 3)[:looks]


def test_a_proof_after_the_rounds_that_there_is_no_plan_is_heard() -> None:
    limits = dataclasses.replace(tight(LARGER, 0.0), recompute=False, paging=False)
    solution = solve(LARGER, limits, NO_ROUND)
    assert solution.status is Status.INFEASIBLE
