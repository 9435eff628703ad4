"""The page of other searches: each goal beside what was reached; random problems beside exhaustive search."""

from __future__ import annotations

import dataclasses
import importlib
import math
from typing import Any

import pytest

from poet.problem.solution import Status

bench: Any = importlib.import_module("benchmarks.other_searches")

PROVEN = bench.Row(
    kind="published",
    problem="family/bert.m4",
    share=0.5,
    paging=False,
    ops=30,
    budget_bytes=4096,
    limit_seconds=60.0,
    status=Status.OPTIMAL.word,
    plan=0.5,
    bound=0.5,
    gap=0.0,
    open_share=0.0,
    seconds=2.0,
    first_seconds=0.5,
    plan_seconds=1.0,
    bound_seconds=2.0,
    bound_by="windows relaxation in whole numbers, highs",
    peak_bytes=10**9,
)
OPEN = dataclasses.replace(PROVEN, status=Status.FEASIBLE.word, bound=0.47, gap=0.02, open_share=0.06)
RANDOM = bench.RandomRow(3, 20.0, background=True, proven=True, plan_above=0.0, bound_above=-1e-9,
                         compared=True, seconds=0.5)  # fmt: skip


def test_goals_stand_beside_what_was_reached() -> None:
    page = bench.page([PROVEN, OPEN])
    assert f"2 of {len(list(bench.questions(bench.KINDS)))} searches have been made." in page
    assert "| published | at most 0.5% of the joules open | 1 of 2 | **missed** |" in page
    assert "| published | proven, but for 2 | 1 of 2 | met |" in page
    assert "| windows relaxation in whole numbers, highs | 1 | RAM is counted at some moments only" in page
    large = [dataclasses.replace(row, kind="10,000 ops", peak_bytes=3 * 10**9) for row in (PROVEN, OPEN)]
    late = dataclasses.replace(large[0], first_seconds=6.0)
    page = bench.page([*large, late])
    assert "| 10,000 ops | a plan after 5 s of a core | 2 of 3 | **missed** |" in page
    assert "| 10,000 ops | at most 1% of the joules open | 2 of 3 | **missed** |" in page
    assert "| 10,000 ops | at most 2 GB of memory | 0 of 3 | **missed** |" in page
    concats = [dataclasses.replace(row, kind="concats") for row in (PROVEN, OPEN)]
    assert "| concats | at most 5% of the overhead open | 1 of 2 | **missed** |" in bench.page(concats)


def test_a_search_without_a_plan_is_wholly_open_unless_there_is_none() -> None:
    none = dataclasses.replace(OPEN, status=Status.TIMEOUT.word, plan=None, gap=None, open_share=None)
    assert (none.still_open, none.overhead_open) == (1.0, 1.0)
    impossible = dataclasses.replace(none, status=Status.INFEASIBLE.word)
    assert (impossible.still_open, impossible.overhead_open) == (0.0, 0.0)


def test_random_problems_are_counted_and_named() -> None:
    worse = dataclasses.replace(RANDOM, seed=4, plan_above=0.01)
    unproven = dataclasses.replace(RANDOM, seed=5, proven=False, compared=False, plan_above=None)
    page = bench.page([PROVEN], [RANDOM, worse, unproven])
    assert "| random | proven | 2 of 3 | **missed** |" in page
    assert "| random | equal to exhaustive search | 1 of 2 | **missed** |" in page
    assert "Unproven: 5." in page


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_random_problem_is_solved_twice(seed: int) -> None:
    row = bench.random_row(seed, 20.0)
    assert row.proven
    assert row.compared
    assert row.equal
    assert row.plan_above is None or math.isfinite(row.plan_above)


def test_questions_are_of_the_kinds_that_were_asked_for() -> None:
    every = list(bench.questions(bench.KINDS))
    assert len(set(every)) == len(every)
    assert {question.kind for question in every} == set(bench.KINDS) - {"random"}
    (vgg,) = bench.questions(["VGG-16 without paging"])
    problem = bench.problem_of(vgg)
    limits = bench.limits_of(vgg, problem)
    assert not limits.paging
    assert limits.ram_budget_bytes == pytest.approx(bench.keep_everything_bytes(problem) / 2, abs=1)
