"""Pins: what patterns mean, what the judge rejects, and that every plan keeps them at the least cost."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.clocks import counted
from helpers.oracle import least_joules
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem, random_limits, random_pins, training_like
from helpers.schedules import verdict

from poet.errors import InputError
from poet.problem import Limits, Pins, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.pins import Pinned, permitted, pinned
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import Status
from poet.solvers import solve
from poet.solvers.heuristics.greedy import greedy

PAGE = Transfer(1.0, 0.1)


def net() -> Problem:
    """``x`` → ``a`` → ``b`` → ``c``, and a last op that reads ``a`` and ``c``."""
    tensors = tuple(Tensor(name, 4, PAGE, PAGE) for name in ("x", "a.out", "b.out", "c.out"))
    return Problem(
        "net",
        (*tensors, Tensor("home", 1, PAGE, PAGE, initially=Place.STORAGE)),
        (
            ProblemOp("a", ("x",), ("a.out",), 1.0, 1.0),
            ProblemOp("b", ("a.out",), ("b.out",), 1.0, 1.0),
            ProblemOp("c", ("b.out",), ("c.out",), 1.0, 1.0),
            ProblemOp("d", ("a.out", "c.out"), (), 1.0, 1.0),
        ),
    )


KEPT: Schedule = (Compute("a"), Compute("b"), Compute("c"), Compute("d"))
PAGED: Schedule = (
    Compute("a"), Compute("b"), PageOut("a.out"), Free("a.out"), Compute("c"), PageIn("a.out"), Compute("d"),
)  # fmt: skip
REMADE: Schedule = (Compute("a"), Compute("b"), Free("a.out"), Compute("c"), Compute("a"), Compute("d"))
READ_EARLY = (*PAGED[:4], PageIn("a.out"), Compute("c"), Compute("d"))


@pytest.mark.parametrize(
    ("pins", "allowed"),
    [
        (Pins(), (KEPT, PAGED, REMADE, READ_EARLY)),
        (Pins(keep=("a*",)), (KEPT,)),
        (Pins(page=("a.out",)), (PAGED, REMADE, READ_EARLY)),
        (Pins(recompute=("a",)), (REMADE,)),
        (Pins(never_page=("[ab].out",)), (KEPT, REMADE)),
    ],
    ids=lambda case: next(iter(dataclasses.asdict(case)), "") if isinstance(case, Pins) else "",
)
def test_the_judge_holds_each_pin(pins: Pins, allowed: tuple[Schedule, ...]) -> None:
    for schedule in (KEPT, PAGED, REMADE, READ_EARLY):
        assert verdict(net(), schedule, Limits(pins=pins)) == (None if schedule in allowed else "pin")


@pytest.mark.parametrize(
    ("pins", "joules"),
    [
        (Pins(), 4.0),
        (Pins(keep=("a.out",)), 4.0),
        (Pins(page=("a.out",)), 4.2),
        (Pins(recompute=("a.out",)), 5.0),
        (Pins(keep=("c*",), page=("a",), never_page=("b*",)), 4.2),
    ],
)
def test_a_plan_keeps_its_pins_at_the_least_cost(pins: Pins, joules: float) -> None:
    solution = solve(net(), Limits(pins=pins))
    assert solution.status is Status.OPTIMAL
    assert solution.joules == pytest.approx(joules)


def test_patterns_name_tensors_and_the_outputs_of_ops() -> None:
    assert pinned(net(), Limits()) == Pinned()
    pins = Pins(keep=("a",), page=("b.*",), never_page=("?.out",))
    with pytest.raises(InputError, match=r"b\.out is pinned twice, to page and to never page"):
        pinned(net(), Limits(pins=pins))
    found = pinned(net(), Limits(pins=dataclasses.replace(pins, never_page=("c*",))))
    assert found == Pinned(frozenset({"a.out"}), frozenset(), frozenset({"b.out"}), frozenset({"c.out"}))


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        (Limits(pins=Pins(keep=("a.uot",))), "keep 'a.uot' names no tensor and no op; did you mean 'a.out'?"),
        (Limits(pins=Pins(recompute=("x",))), "tensor x is pinned to recompute, but no op makes it"),
        (Limits(pins=Pins(never_page=("home",))), "tensor home lives in storage; it cannot be pinned"),
        (Limits(paging=False, pins=Pins(page=("x",))), "tensor x is pinned to page, but it may not be"),
        (Limits(recompute=False, pins=Pins(recompute=("a",))), "a.out is pinned to recompute, but no op may"),
    ],
)  # fmt: skip
def test_a_pin_that_cannot_be_meant_is_refused(limits: Limits, line: str) -> None:
    with pytest.raises(InputError) as caught:
        solve(net(), limits)
    assert line in str(caught.value)


def test_without_a_way_to_keep_the_pins_there_is_no_plan() -> None:
    solution = solve(net(), Limits(ram_budget_bytes=9, pins=Pins(keep=("a.out",))))
    assert solution.status is Status.INFEASIBLE
    assert "Without the pins there is a plan" in solution.message
    assert solve(net(), Limits(ram_budget_bytes=9)).schedule is not None


@pytest.mark.parametrize("seed", with_slow(range(12), range(5, 12)))
def test_pinned_plans_equal_the_oracle(seed: int) -> None:
    of = dataclasses.replace(mixed_problem(seed, largest=5), background_storage=False)
    limits = random_pins(of, random_limits(of, seed, deadline=seed % 3 == 0), seed)
    best = least_joules(permitted(of, limits), limits)
    solution = solve(of, limits, counted(5.0, relative_gap=1e-9, overhead_gap=1e-9))
    if best is None:
        assert solution.status is Status.INFEASIBLE
        return
    joules = simulate(of, best, limits).joules
    assert solution.joules == pytest.approx(joules, rel=1e-9)
    assert solution.bound_joules <= joules * (1 + 1e-9)


def test_a_large_net_with_pins_has_a_plan_at_once() -> None:
    of = training_like(30)
    plain = greedy(of, Limits())
    assert plain is not None
    budget = simulate(of, plain).peak_ram_bytes
    pins = Pins(keep=("conv1?.out",), recompute=("norm2?",), page=("relu1?.out",), never_page=("conv2?.out",))
    limits = Limits(ram_budget_bytes=int(0.7 * budget), pins=pins)
    schedule = greedy(permitted(of, limits), limits)
    assert schedule is not None
    assert simulate(of, schedule, limits).recomputed_runs > 0
