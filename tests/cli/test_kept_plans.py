"""The second question about a model starts where the first ended, and rests on nothing that is not judged."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from helpers.random_problems import training_like
from poet.cli.main import app
from typer.testing import CliRunner

from poet.errors import InputError
from poet.planning import cache
from poet.planning.cache import KeptPlans
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.problem import Limits, Pins, Problem
from poet.problem.solution import KnownBound, Solution, SolveOptions, Start, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.engines.proof import Confidence, Confirmation
from poet.util.clock import WorkClock

PROBLEM = training_like(1, seed=3)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the user's own, new for every test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("POET_NO_KEPT_PLANS")
    return tmp_path / "home"


def limits_at(share: float, problem: Problem = PROBLEM) -> Limits:
    least, most = minimum_ram_bytes(problem).bytes, keep_everything_bytes(problem)
    return Limits(ram_budget_bytes=budget_between(least, most, share))


def options() -> SolveOptions:
    return SolveOptions(None, engine="highs", clock=WorkClock())


def kept_answer(share: float = 0.4) -> tuple[KeptPlans, Solution]:
    kept, limits = KeptPlans(), limits_at(share)
    solution = solve(PROBLEM, limits, options())
    assert solution.status is Status.OPTIMAL
    kept.keep(PROBLEM, limits, solution)
    return kept, solution


def dearer(problem: Problem) -> Problem:
    """The same net on another device."""
    ops = tuple(dataclasses.replace(op, joules=3.0 * op.joules + 1e-9) for op in problem.ops)
    return dataclasses.replace(problem, ops=ops)


def test_the_same_question_is_answered_at_once_by_the_same_proof() -> None:
    kept, first = kept_answer()
    asked = kept.started(PROBLEM, limits_at(0.4), options())
    again = solve(PROBLEM, limits_at(0.4), asked)
    assert (again.status, again.schedule, again.joules) == (Status.OPTIMAL, first.schedule, first.joules)
    assert (again.solver, again.proof) == (first.solver, first.proof)
    assert again.bound_joules == pytest.approx(first.bound_joules, rel=1e-12)
    assert again.solve_seconds < 0.1 * first.solve_seconds
    assert not [phase.name for phase in again.record.phases]


def test_what_one_engine_alone_proved_is_proved_again() -> None:
    kept, first = kept_answer()
    limits, alone = limits_at(0.4), Confirmation(Confidence.ALONE, ("highs",)).words
    kept.keep(PROBLEM, limits, dataclasses.replace(first, proof=alone))
    asked = kept.started(PROBLEM, limits, options())
    assert asked.start == Start(first.schedule, first.solver)


def test_a_plan_is_a_start_wherever_the_judge_accepts_it() -> None:
    """With more RAM, and on another device; not with less RAM, whose bound at more RAM holds all the same."""
    kept, first = kept_answer()
    more = kept.started(PROBLEM, limits_at(0.7), options())
    assert more.start == Start(first.schedule, first.solver)
    device = dearer(PROBLEM)
    there = kept.started(device, limits_at(0.4, device), options())
    assert there.start == more.start
    assert first.trace is not None
    less = Limits(ram_budget_bytes=first.trace.peak_ram_bytes - 1)
    tighter = kept.started(PROBLEM, less, options())
    assert tighter.start.schedule is None
    assert tighter.start.bound is not None
    assert tighter.start.bound.joules == first.bound_joules
    found = solve(PROBLEM, less, tighter)
    assert found.joules == pytest.approx(solve(PROBLEM, less, options()).joules, rel=1e-9)


def test_another_model_knows_nothing_of_it() -> None:
    kept, _ = kept_answer()
    other = training_like(2, seed=3)
    asked = options()
    assert kept.started(other, limits_at(0.4, other), asked) is asked


@pytest.mark.parametrize("factor", [1.0001, 1e6])
def test_a_bound_that_a_plan_contradicts_is_forgotten(factor: float) -> None:
    limits = limits_at(0.4)
    honest = solve(PROBLEM, limits, options())
    assert honest.joules is not None
    lie = KnownBound(PROBLEM, limits, factor * honest.joules, "proven by a liar")
    found = solve(PROBLEM, limits, dataclasses.replace(options(), start=Start(bound=lie)))
    assert found.status is Status.OPTIMAL
    assert found.joules == pytest.approx(honest.joules, rel=1e-9)
    assert found.bound_joules <= honest.joules * (1 + 1e-9)
    assert found.proof == honest.proof


def test_a_bound_holds_inside_narrower_limits_alone() -> None:
    wide = Limits(1000, 2.0, written_budget_bytes=50, joules_budget=3.0)
    narrower: tuple[dict[str, Any], ...] = (
        {"ram_budget_bytes": 999}, {"deadline_seconds": 1.0}, {"written_budget_bytes": 0}, {"paging": False},
        {"recompute": False}, {"joules_budget": 2.0}, {"pins": Pins(keep=("a",))}, {},
    )  # fmt: skip
    wider: tuple[dict[str, Any], ...] = (
        {"ram_budget_bytes": 1001}, {"deadline_seconds": None}, {"written_budget_bytes": 51},
        {"joules_budget": None},
    )  # fmt: skip
    for change in narrower:
        assert dataclasses.replace(wide, **change).are_within(wide)
    for change in wider:
        assert not dataclasses.replace(wide, **change).are_within(wide)
    stricter: tuple[dict[str, Any], ...] = (
        {"paging": False},
        {"recompute": False},
        {"pins": Pins(keep=("a",))},
    )
    for strict in stricter:
        assert not wide.are_within(dataclasses.replace(wide, **strict))


def test_what_is_damaged_or_planted_counts_as_missing(home: Path) -> None:
    kept, first = kept_answer()
    (path,) = (home / "poet" / "solve" / "plans").iterdir()
    whole = path.read_bytes()
    asked = options()
    for damaged in (whole[:-9], b"", whole[:100] + b"x" + whole[101:], b"[]"):
        path.write_bytes(damaged)
        assert kept.started(PROBLEM, limits_at(0.4), asked) is asked
    path.write_bytes(whole)
    assert kept.started(PROBLEM, limits_at(0.4), asked).start.schedule == first.schedule


def test_few_plans_and_few_models_are_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_PLANS", 2)
    monkeypatch.setattr(cache, "MOST_MODELS", 2)
    kept, first = kept_answer()
    for number in range(4):
        kept.keep(PROBLEM, dataclasses.replace(limits_at(1.0), deadline_seconds=1e3 + number), first)
        named = dataclasses.replace(PROBLEM.ops[0], name=f"other {number}")
        kept.keep(dataclasses.replace(PROBLEM, ops=(named, *PROBLEM.ops[1:])), limits_at(1.0), first)
        for place, path in enumerate(sorted((home / "poet" / "solve" / "plans").iterdir())):
            os.utime(path, (place, place))
    assert len(list((home / "poet" / "solve" / "plans").iterdir())) == 2
    assert len(kept._read(PROBLEM)) <= 2


def test_the_command_keeps_its_plan_unless_told_otherwise(home: Path, tmp_path: Path) -> None:
    path, answer = tmp_path / "problem.json", tmp_path / "answer.json"
    path.write_text(json.dumps(PROBLEM.to_json()))
    ram = f"{limits_at(0.4).ram_budget_bytes}"

    def asked(*more: str) -> tuple[float, list[str], str]:
        arguments = ["solve", str(path), "--ram", ram, "--json", str(answer), *more]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.stderr
        told = json.loads(answer.read_text())
        assert told["status"] == "optimal"
        return told["joules"], [phase["name"] for phase in told["record"].get("phases", ())], result.stderr

    anew = asked("--no-kept-plans")
    assert anew[1]
    assert not (home / "poet" / "solve").exists()
    first = asked()  # which members had a turn is up to the wall's clock
    assert (first[0], bool(first[1])) == (anew[0], True)
    assert asked()[:2] == (anew[0], [])
    again = asked("--no-kept-plans")
    assert (again[0], bool(again[1])) == (anew[0], True)
    (home / "poet" / "solve").chmod(0o777)
    joules, phases, stderr = asked()
    assert (joules, bool(phases)) == (anew[0], True)
    assert "no plan is kept for later searches" in stderr
    with pytest.raises(InputError, match="cannot be trusted"):
        KeptPlans()
