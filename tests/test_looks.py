"""The outlook's looks: what a plan refutes is not believed, and the engine ends with the search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from poet.budgets import keep_everything_bytes
from poet.problem import Limits, Problem
from poet.solution import SolveOptions, Status
from poet.solvers import solve
from poet.solvers.beside import Beside
from poet.solvers.events import Instance, instance_of
from poet.solvers.relaxation import Bound, bound_overhead

OPTIONS = SolveOptions(time_limit_seconds=4.0, confirm=False)


@pytest.fixture(scope="module")
def deep() -> tuple[Problem, Limits]:
    """BERT with Cortex-M4 costs at half the RAM, which no search of seconds closes."""
    problem = Problem.load(Path(__file__).parent / "instances" / "family" / "bert.m4.json")
    return problem, Limits(ram_budget_bytes=keep_everything_bytes(problem) // 2)


def test_a_bound_that_a_plan_refutes_is_not_believed(
    deep: tuple[Problem, Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[float]()

    def erring(instance: Instance, child: Beside, *, most_joules: float, **_: Any) -> Iterator[Bound]:
        asked.append(most_joules)
        first = bound_overhead(instance)
        yield first
        yield replace(first, overhead_joules=2.0 * instance.problem.compute_joules)

    monkeypatch.setattr("poet.solvers.looks.outlook", erring)
    found = solve(*deep, OPTIONS)
    assert asked
    assert found.status is Status.FEASIBLE
    assert found.joules is not None
    assert found.bound_joules < found.joules
    assert found.bound_joules >= deep[0].compute_joules + bound_overhead(instance_of(*deep)).overhead_joules


def test_the_engine_ends_with_the_search(
    deep: tuple[Problem, Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    children = list[Beside]()

    class Watched(Beside):
        def __init__(self) -> None:
            super().__init__()
            children.append(self)

    monkeypatch.setattr("poet.solvers.looks.Beside", Watched)
    solve(*deep, OPTIONS)
    assert len(children) == 1
    assert children[0]._process.poll() is not None
