"""Turns of the search over copies: their share of the time, and more where their pace promises to pay."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from helpers.random_problems import training_like

from poet.clock import WorkClock
from poet.problem import Limits
from poet.ram_survey import budget_between, keep_everything_bytes
from poet.solution import SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.bounds.copies import CopiesBound
from poet.solvers.bounds.pace import Pace
from poet.solvers.bounds.ram_paths import CheapestStep, RamPath
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.search import copies_turns
from poet.solvers.search.copies_turns import CopiesTurns
from poet.solvers.search.few_copies import FewCopies
from poet.solvers.search.finders import GREEDY
from poet.solvers.search.model_runs import ModelRuns
from poet.solvers.search.standing import Standing
from poet.tuning import DEFAULT

STEP = training_like(8, seed=3)
LIMIT_SECONDS = 100.0
LONGEST_SECONDS = min(LIMIT_SECONDS * DEFAULT.copies.promising_share, DEFAULT.copies.most_seconds)


def turns(
    shares: Sequence[float],
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: float = 1.0,
    steps: Mapping[int, frozenset[int] | None] | None = None,
    begun: list[float] | None = None,
    dearer: bool = False,
) -> CopiesTurns:
    """Turns of a search that has a greedy plan, and whose bound over copies is such shares of its overhead,
    one after the other, each after so many seconds of work; some come with steps that have such copies.

    ``begun``: to which the joules are added that each search begins below; ``dearer``: each step is dearer
    than the one before, not cheaper.
    """
    clock = WorkClock()
    least, most = minimum_ram_bytes(STEP, Limits()).bytes, keep_everything_bytes(STEP)
    limits = Limits(ram_budget_bytes=budget_between(least, most, 0.3))
    standing = Standing(STEP, limits, SolveOptions(LIMIT_SECONDS, clock=clock), "highs", None)
    schedule = greedy(STEP, limits, seconds=0.2)
    assert schedule is not None
    standing.consider(schedule, GREEDY)
    assert standing.best.trace is not None
    overhead_joules = standing.best.trace.joules - standing.baseline_joules
    assert overhead_joules > 0.0

    told = steps or {}

    def bounds(*_: object, below_joules: float, **__: Any) -> Iterator[CopiesBound]:
        if begun is not None:
            begun.append(below_joules)
        for number, share in enumerate(shares):
            clock.spend(engine_seconds=seconds)
            step = None
            if number in told:
                step = CheapestStep(
                    RamPath(0.0, {2: (0,)}, 0, {}), told[number], number if dearer else -number
                )
            yield CopiesBound(share * overhead_joules, 1, False, step, proven=False)

    monkeypatch.setattr(copies_turns, "copies_bounds", bounds)
    runs = ModelRuns(standing, "highs")
    return CopiesTurns(runs, FewCopies(runs))


def test_what_the_cheapest_step_writes_is_tried_once_it_has_stood_for_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = {0: frozenset({1}), 1: frozenset({2}), 9: frozenset({3})}  # after 0.5, 1.0 and 5.0 s
    going, tried = turns([0.4] * 60, monkeypatch, seconds=0.5, steps=steps), dict[frozenset[str], float]()
    begun = going.standing.clock.now()

    def follow(names: frozenset[str], reruns: Mapping[int, tuple[int, ...]]) -> None:
        assert reruns == {2: (0,)}
        tried[names] = going.standing.clock.now() - begun

    monkeypatch.setattr(going.few_copies, "follow", follow)
    monkeypatch.setattr(going.few_copies, "pays", lambda: True)
    going.turn(0.1)
    names = {c.number: c.tensor for c in going.standing.instance.contents}
    assert [*tried] == [{names[2]}, {names[3]}]  # the first was another after half a second
    assert [*tried.values()] == [pytest.approx(2.2, abs=0.3), pytest.approx(6.2, abs=0.3)]


def test_a_dearer_step_of_another_level_does_not_replace_one_that_was_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = {2: frozenset({1}), 1: frozenset({2}), 0: None}  # the later, the cheaper, here
    going, tried = turns([0.4] * 60, monkeypatch, seconds=0.4, steps=steps), list[frozenset[str]]()
    monkeypatch.setattr(going.few_copies, "follow", lambda names, _: tried.append(names))
    monkeypatch.setattr(going.few_copies, "pays", lambda: True)
    going.turn(0.1)
    names = {c.number: c.tensor for c in going.standing.instance.contents}
    assert tried == [{names[1]}]
    steps = {0: frozenset({2}), 1: frozenset({1})}
    dearer = turns([0.4] * 60, monkeypatch, seconds=0.4, steps=steps, dearer=True)
    monkeypatch.setattr(dearer.few_copies, "follow", lambda names, _: tried.append(names))
    monkeypatch.setattr(dearer.few_copies, "pays", lambda: True)
    dearer.turn(0.1)
    assert tried[1:] == [{names[1]}, {names[2]}]


def test_a_step_whose_copies_are_not_known_waits_for_the_end_of_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    going, solved = turns([0.4] * 60, monkeypatch, steps={0: None}), list[float]()

    def solve(_: object) -> None:
        solved.append(going.standing.clock.now())

    monkeypatch.setattr(going.runs, "solve_exactly", solve)
    begun = going.standing.clock.now()
    going.turn(0.1)
    assert [at - begun for at in solved] == [pytest.approx(10.0, abs=1.1)]


def test_a_much_better_plan_begins_the_search_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[float]()
    going = turns([0.4] * 60, monkeypatch, steps={0: frozenset({1})}, begun=begun)
    best, baseline_joules = going.standing.best, going.standing.baseline_joules
    assert best.trace is not None
    joules = baseline_joules + 0.9 * (best.trace.joules - baseline_joules)

    def follow(*_: object) -> None:
        assert best.trace is not None
        best.trace = dataclasses.replace(best.trace, joules=joules)

    monkeypatch.setattr(going.few_copies, "follow", follow)
    monkeypatch.setattr(going.few_copies, "pays", lambda: True)
    going.turn(0.1)
    assert begun[1:] == [pytest.approx(0.9 * begun[0])]


def test_its_programs_end_with_the_search_and_where_it_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = list[str]()

    def bounds(*_: object, below_joules: float, **__: object) -> Iterator[CopiesBound]:
        try:
            while True:
                yield CopiesBound(0.1 * below_joules, 1, False, proven=False)
        finally:
            ended.append("a search over copies")

    going = turns([], monkeypatch)
    monkeypatch.setattr(copies_turns, "copies_bounds", bounds)
    with going:
        next(going._bounds())
        going.close()
        assert len(ended) == 1
        next(going._bounds())
        next(going._bounds())
    assert len(ended) == 2
    going.close()
    assert len(ended) == 2


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_whole_search_ends_its_search_over_copies(
    interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, clock, begun = list[str](), WorkClock(), list[Iterator[CopiesBound]]()

    def begin(*arguments: object, **named: Any) -> Iterator[CopiesBound]:
        begun.append(bounds(*arguments, **named))  # a reference, so that nothing but the search ends it
        return begun[-1]

    def bounds(*_: object, below_joules: float, **__: object) -> Iterator[CopiesBound]:
        told.append("begun")
        try:
            while True:
                clock.spend(engine_seconds=0.1)
                yield CopiesBound(0.1 * below_joules, 1, False, proven=False)
                if interrupted:
                    monkeypatch.setattr(Standing, "take_bound", interrupt)
        finally:
            told.append("ended")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(copies_turns, "copies_bounds", begin)
    least, most = minimum_ram_bytes(STEP, Limits()).bytes, keep_everything_bytes(STEP)
    limits = Limits(ram_budget_bytes=budget_between(least, most, 0.3))
    solution = solve(STEP, limits, SolveOptions(2.0, engine="highs", clock=clock))
    assert solution.was_interrupted is interrupted
    assert told == ["begun", "ended"]


def spent(turns: CopiesTurns, share: float) -> float:
    """Seconds of one turn."""
    begun = turns.standing.clock.now()
    turns.turn(share)
    return turns.standing.clock.now() - begun


def test_a_bound_that_stands_still_has_its_share_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    still = turns([0.4] * 200, monkeypatch)
    assert spent(still, 0.15) == pytest.approx(15.0, abs=1.0)
    assert still.leads  # the first turn raised the best bound
    assert spent(still, 0.15) == pytest.approx(13.0, abs=1.0)
    assert not still.leads


def test_a_bound_that_rises_goes_on_to_most_of_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    rising = turns([0.009 * n for n in range(100)], monkeypatch)
    assert (
        LONGEST_SECONDS - 10.0 < spent(rising, 0.15) <= LONGEST_SECONDS
    )  # the last seconds alone promise nothing
    assert rising.leads


def test_a_turn_that_does_not_go_on_ends_with_its_share_whatever_is_promised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rising = turns([0.009 * n for n in range(100)], monkeypatch)
    before = rising.standing.clock.now()
    rising.turn(0.15, goes_on=False)
    assert rising.standing.clock.now() - before == pytest.approx(15.0, abs=1.0)
    assert rising.leads  # so that another turn may follow


@pytest.mark.parametrize("paging", [False, True])
def test_the_first_turn_is_short_where_nothing_may_be_written(
    monkeypatch: pytest.MonkeyPatch, paging: bool
) -> None:
    asked = list[tuple[float, bool]]()

    def noted(_: CopiesTurns, share: float, *, goes_on: bool = True) -> None:
        asked.append((share, goes_on))

    monkeypatch.setattr(CopiesTurns, "turn", noted)
    step = training_like(8, seed=3)
    least, most = minimum_ram_bytes(step, Limits(paging=False)).bytes, keep_everything_bytes(step)
    limits = Limits(budget_between(least, most, 0.4), paging=paging)
    solve(step, limits, SolveOptions(0.5, clock=WorkClock()))
    tuning = DEFAULT.copies
    assert asked[0] == ((tuning.round_share, True) if paging else (tuning.unwritten_share, False))


def test_a_bound_that_rises_and_then_stands_still_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    tired = turns([min(0.02 * n, 0.4) for n in range(100)], monkeypatch)
    assert 20.0 < spent(tired, 0.15) <= 42.0  # a window of the later half of the time shows no rise any more
    assert not tired._promised


def test_what_rises_too_slowly_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = turns([0.4 + 0.0005 * n for n in range(200)], monkeypatch)
    assert spent(slow, 0.15) == pytest.approx(15.0, abs=1.0)


def test_no_longer_round_is_begun_than_the_longer_turn_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of 9 s, begun at 54 s of 60, would end at 63."""
    long = turns([0.1 * n for n in range(10)], monkeypatch, seconds=9.0)
    assert spent(long, 0.15) == pytest.approx(9.0 * (LONGEST_SECONDS // 9.0), abs=0.1)


def test_a_search_that_is_over_promises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    over = turns([0.1, 0.2, 0.3], monkeypatch)
    assert spent(over, 0.15) == pytest.approx(3.0, abs=0.1)
    assert over.leads
    assert spent(over, 0.15) == 0.0
    assert not over.leads


def test_a_bound_at_the_plan_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    proven = turns([0.5, 1.0, 1.0, 1.0], monkeypatch)
    assert spent(proven, 0.15) == pytest.approx(2.0, abs=0.1)
    assert proven.standing.finished()


def test_the_pace_is_that_of_the_later_half_of_the_time() -> None:
    pace = Pace()
    pace.add(1.0, 5.0)
    assert pace.after(10.0) == 5.0  # where it stands is no rise
    for second in range(2, 11):
        pace.add(float(second), 5.0 + 2.0 * (second - 1))
    assert pace.after(3.0) == pytest.approx(23.0 + 6.0)
    pace.pause()
    for second in range(1, 11):
        pace.add(float(second), 23.0)
    assert pace.after(3.0) == pytest.approx(23.0)
    assert pace.longest_round() == pytest.approx(1.0)
