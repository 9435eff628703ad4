"""Small problems with alternatives, pins, homes, deadlines: the answer is that of an exhaustive search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import forms
from helpers.clocks import counted
from helpers.command import invoke

from poet.errors import PoetError
from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.simulator import simulate
from poet.problem.solution import Status
from poet.solvers import solve

UNPROVEN = {121, 207, 217}
"""Relaxations have solutions in every model, or a bound below the least: of two there is no plan."""

COMMAND = (2, 5, 17, 18)
"""Seeds: with pins a plan, with a deadline one, with pins none, and none within the RAM."""


def judged(seed: int) -> bool:
    """Hold status and joules against the exhaustive search; whether there is a plan."""
    problem, limits = forms.small_choice(seed)
    best, found = forms.least_joules(problem, limits), solve(problem, limits, counted(30.0))
    # of transfers beside compute relaxations know little
    may_be_open = problem.background_storage or seed in UNPROVEN
    if best is None:
        assert found.status is Status.INFEASIBLE or (may_be_open and found.status is Status.TIMEOUT), seed
        assert found.schedule is None, seed
        return False
    least = simulate(problem, best, limits).joules
    assert found.status is Status.OPTIMAL or (may_be_open and found.status is Status.FEASIBLE), (seed, found)
    assert found.schedule is not None
    joules = simulate(problem, found.schedule, limits).joules
    assert joules == found.joules, seed
    assert joules == pytest.approx(least, rel=0.02 if found.status is Status.FEASIBLE else 2e-6, abs=1e-9), (
        seed
    )
    return True


@pytest.mark.parametrize("seed", range(9))
def test_status_and_joules_are_those_of_an_exhaustive_search(seed: int) -> None:
    judged(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_so_are_they_of_hundreds(block: int) -> None:
    """But where the exhaustive search itself takes half a minute and more."""
    planned = [
        judged(seed) for seed in range(9 + 15 * block, 24 + 15 * block) if seed not in TOO_LONG | UNREAD
    ]
    assert sum(planned) > len(planned) // 2


TOO_LONG = {30, 55, 67}

UNREAD = {280}
"""A tensor that nothing reads is pinned never to page: its home is RAM here, storage for the oracle."""


def on_the_command_line(problem: Path, *options: str) -> tuple[int, str]:
    """Exit code, and what is said."""
    code, out, err = invoke("solve", problem, "--no-kept-plans", *options)
    return code, out + err


@pytest.mark.parametrize("seed", COMMAND)
def test_the_command_says_so_with_its_exit_code(seed: int, tmp_path: Path) -> None:
    problem, limits = forms.small_choice(seed)
    best = forms.least_joules(problem, limits)
    file, answer = tmp_path / "problem.json", tmp_path / "answer.json"
    file.write_text(json.dumps(problem.to_json()))
    code, said = on_the_command_line(file, "--json", str(answer), "--time-limit", "none", *asked(limits))
    told = json.loads(answer.read_text())
    assert told["order"] == "listed"
    assert "in the listed order" in said
    if best is None:
        assert (code, told["status"], told["schedule"]) == (3, "infeasible", None)
    else:
        least = simulate(problem, best, limits).joules
        assert (code, told["status"], told["joules"]) == (0, "optimal", pytest.approx(least, rel=2e-6))


def asked(limits: Limits) -> list[str]:
    """Limits as options of the command."""
    options = ["--ram", str(limits.ram_budget_bytes)]
    if limits.deadline_seconds is not None:
        options += ["--deadline", f"{limits.deadline_seconds!r}s"]
    if limits.written_budget_bytes is not None:
        options += ["--write-budget", str(limits.written_budget_bytes)]
    options += ["--no-recompute"] * (not limits.recompute) + ["--no-paging"] * (not limits.paging)
    pins = limits.pins
    for option, names in (
        ("--keep", pins.keep), ("--recompute", pins.recompute), ("--page", pins.page),
        ("--never-page", pins.never_page),
    ):  # fmt: skip
        options += [word for name in names for word in (option, name)]
    return options


def five_ops() -> Problem:
    """A chain of five seconds."""
    tensors = tuple(Tensor(f"t{number}", 8) for number in range(6))
    ops = (ProblemOp(f"op{n}", (f"t{n}",), (f"t{n + 1}",), 1.0, 1.0) for n in range(5))
    return Problem("five", tensors, tuple(ops))


def test_a_deadline_that_is_hardly_missed_is_told_with_all_its_digits(tmp_path: Path) -> None:
    file = tmp_path / "five.json"
    file.write_text(json.dumps(five_ops().to_json()))
    code, said = on_the_command_line(file, "--ram", "64", "--deadline", "4.999995s")
    assert code == 3
    assert "longer than the deadline of 4.999995 s by 5 µs" in said
    assert "A deadline of 5 s (< 0.001 % more) works, and nothing less does in the listed order." in said
    assert on_the_command_line(file, "--ram", "64", "--deadline", "5s")[0] == 0


def test_storage_that_is_only_read_needs_no_way_to_write_it() -> None:
    """A table that begins and ends in storage, and that nothing updates."""
    table = Tensor("t0", 8, Transfer(0.5, 0.25), initially=Place.STORAGE, finally_=Place.STORAGE)
    problem = five_ops()
    problem = Problem("read only", (table, *problem.tensors[1:]), problem.ops)
    assert Problem.from_json(problem.to_json()) == problem
    found = solve(problem, Limits(ram_budget_bytes=16), counted(5.0))
    assert (found.status, found.joules) == (Status.OPTIMAL, 5.25)
    for changed in (
        {"updates": ("t0",), "recomputable": False},  # its last content is written
        {},
    ):
        ops = (ProblemOp("op0", ("t0",), ("t1",), 1.0, 1.0, **changed), *problem.ops[1:])  # type: ignore[arg-type]
        home = Place.STORAGE if changed else Place.RAM  # where it is not there yet
        begins = Tensor("t0", 8, Transfer(0.5, 0.25), initially=home, finally_=Place.STORAGE)
        with pytest.raises(PoetError, match="tensor t0 must end in storage but has no page_out cost"):
            Problem("written", (begins, *problem.tensors[1:]), ops)
