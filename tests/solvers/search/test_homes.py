"""Where tensors are at home: said by the schedule, chosen by the plan, equal to the oracle."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.clocks import counted
from helpers.random_problems import training_like

from poet.errors import InvalidSchedule, ProblemError
from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.homes import decide, decided, undecided
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import Status, solution_to_json
from poet.solvers import minimum_ram_bytes, solve

PAGE = Transfer(1.0, 0.5)


def one_weight() -> Problem:
    """A frozen table ``f`` and a weight ``w``, which the last op updates."""
    return Problem(
        "one weight",
        (
            Tensor("x", 2),
            Tensor("f", 4, PAGE, PAGE, initially=Place.EITHER),
            Tensor("w", 6, PAGE, PAGE, initially=Place.EITHER),
            Tensor("y", 2),
            Tensor("z", 8),
            Tensor("g", 6),
        ),
        (
            ProblemOp("look up", ("x", "f"), ("y",), 1.0, 1.0, recomputable=False),
            ProblemOp("grow", ("y",), ("z",), 1.0, 1.0, recomputable=False),
            ProblemOp("shrink", ("z",), ("g",), 1.0, 1.0, recomputable=False),
            ProblemOp("update", ("w", "g"), (), 1.0, 1.0, updates=("w",), recomputable=False),
        ),
    )


HOME_IN_RAM: Schedule = tuple(Compute(op.name) for op in one_weight().ops)
HOME_IN_STORAGE: Schedule = (
    PageIn("f"), Compute("look up"), Compute("grow"), Compute("shrink"),
    PageIn("w"), Compute("update"), PageOut("w"), Free("w"),
)  # fmt: skip


def test_a_schedule_says_where_its_tensors_are_at_home() -> None:
    of = one_weight()
    assert undecided(of) == ("f", "w")
    places = {t.name: (t.initially, t.finally_) for t in decided(of, HOME_IN_RAM).tensors}
    assert places["f"] == (Place.BOTH, Place.RAM)
    assert places["w"] == (Place.RAM, Place.RAM)
    places = {t.name: (t.initially, t.finally_) for t in decided(of, HOME_IN_STORAGE).tensors}
    assert places["f"] == (Place.STORAGE, None)
    assert places["w"] == (Place.STORAGE, Place.STORAGE)
    assert simulate(of, HOME_IN_RAM).joules == 4.0
    assert simulate(of, HOME_IN_STORAGE).joules == 5.5


@pytest.mark.parametrize(
    ("schedule", "missing"),
    [
        ((*HOME_IN_RAM, Free("w")), "w must end in RAM"),
        ((*HOME_IN_RAM[:1], Free("f"), *HOME_IN_RAM[1:]), "f must end in RAM"),
        (HOME_IN_STORAGE[:-2], "w must end in storage"),
    ],
)
def test_what_leaves_home_must_come_back(schedule: Schedule, missing: str) -> None:
    with pytest.raises(InvalidSchedule, match=missing):
        simulate(one_weight(), schedule)


@pytest.mark.parametrize(("budget_bytes", "joules"), [(24, 4.0), (23, 4.5), (19, 5.0), (14, 5.5)])
def test_the_plan_chooses_the_cheapest_homes(budget_bytes: int, joules: float) -> None:
    of = one_weight()
    solution = solve(of, Limits(ram_budget_bytes=budget_bytes))
    assert solution.status is Status.OPTIMAL
    assert solution.schedule is not None
    assert solution.joules == pytest.approx(joules)
    homes = solution_to_json(of, solution)["homes"]
    away = [name for name, place in homes.items() if place == "storage"]
    assert homes.keys() == {"f", "w"}
    assert simulate(decide(of, away), solution.schedule) == solution.trace


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"finally_": Place.RAM}, "ends where it begins"),
        ({"page_in": None}, "begins in storage but has no page_in"),
        ({"page_out": None}, "updated in storage but has no page_out"),
    ],
)
def test_a_home_that_cannot_be_is_refused(changes: dict[str, Place | None], line: str) -> None:
    of = one_weight()
    tensors = [dataclasses.replace(t, **changes) if t.name == "w" else t for t in of.tensors]  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match=line):
        dataclasses.replace(of, tensors=tuple(tensors))


def test_files_say_the_version_that_holds_them() -> None:
    of = one_weight()
    assert of.to_json()["version"] == 2
    assert Problem.from_json(of.to_json()) == of
    decided = decide(of, ("f",))
    assert decided.to_json()["version"] == 1
    assert Problem.from_json(decided.to_json()) == decided


@pytest.mark.slow
def test_choosing_is_never_dearer_than_either_home_for_all() -> None:
    of = training_like(8, parameters=Place.STORAGE, momentum=True)
    free = dataclasses.replace(
        of,
        tensors=tuple(
            dataclasses.replace(t, initially=Place.EITHER, finally_=None)
            if t.initially is Place.STORAGE
            else t
            for t in of.tensors
        ),
    )
    least = minimum_ram_bytes(free).bytes
    for budget in (int(1.1 * least), int(1.6 * least)):
        limits, options = Limits(ram_budget_bytes=budget), counted(0.6)
        chosen = solve(free, limits, options)
        assert chosen.joules is not None
        for away in ((), undecided(free)):
            fixed = solve(decide(free, away), limits, options)
            assert chosen.bound_joules <= (fixed.joules or float("inf"))
            if fixed.schedule is not None:  # a plan for one home is one for the choice, at the same price
                asked = simulate(free, fixed.schedule, limits)
                assert asked.joules == pytest.approx(fixed.joules, rel=1e-9)
                assert chosen.joules <= 1.01 * asked.joules  # neither search ends by proof
