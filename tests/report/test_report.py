"""Reports: rows add up to what the judge says, and nothing is told that did not happen."""

from __future__ import annotations

import io
import math

import pytest
from helpers.random_problems import mixed_problem
from rich.console import Console, Group, RenderableType

from poet.baselines.nothing_kept import page_everything, recompute_all
from poet.problem import Limits, Problem, ProblemOp, Tensor, Transfer
from poet.problem.homes import DecidedProblem, as_decided
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, Status
from poet.report.plan import memory_plot, schedule_tables, solution_report
from poet.report.reasons import what_binds
from poet.report.schedule_rows import peak, tensor_fates
from poet.solvers import minimum_ram_bytes
from poet.util.units import format_count, scale_of

TRANSFER = Transfer(seconds=0.5, joules=0.25)


def _problem() -> DecidedProblem:
    """a → f → b → g → c → h → d, where h reads b and c as well: b may be kept, paged or recomputed."""
    return as_decided(
        Problem(
            name="four tensors",
            tensors=(
                Tensor("a", 10, TRANSFER, TRANSFER, role="input"),
                Tensor("b", 30, TRANSFER, TRANSFER, role="activation"),
                Tensor("c", 50, TRANSFER, TRANSFER, role="saved-for-backward"),
                Tensor("d", 8, role="gradient"),
                Tensor("e", 70, role="activation"),
            ),
            ops=(
                ProblemOp("f", ("a",), ("b",), seconds=1.0, joules=2.0),
                ProblemOp("g", ("b",), ("c",), seconds=1.0, joules=3.0, workspace_bytes=5),
                ProblemOp("mid", ("c",), ("e",), seconds=1.0, joules=1.0),
                ProblemOp("h", ("b", "c", "e"), ("d",), seconds=1.0, joules=1.0),
            ),
            alignment_bytes=16,
            idle_watts=0.1,
        )
    )


RECOMPUTE: Schedule = (
    Compute("f"), Compute("g"), Free("b"), Compute("mid"), Compute("f"), Compute("h"),
)  # fmt: skip
PAGE: Schedule = (
    Compute("f"), PageOut("b"), Compute("g"), Free("b"), Compute("mid"), PageIn("b"), Compute("h"),
)  # fmt: skip


def _solution(schedule: Schedule) -> Solution:
    problem = _problem()
    trace = simulate(problem, schedule)
    return Solution(Status.FEASIBLE, schedule, trace, 7.5, problem.compute_joules, 0.25, "hand")


def _text(report: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(report)
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_each_tensor_is_told_its_own_fate() -> None:
    problem = _problem()
    recomputed = {f.name: f for f in tensor_fates(problem, RECOMPUTE, simulate(problem, RECOMPUTE))}
    paged = {f.name: f for f in tensor_fates(problem, PAGE, simulate(problem, PAGE))}
    assert recomputed["b"].words == "recomputed 1×"
    assert paged["b"].words == "paged out 1×, in 1×"
    assert (paged["b"].seconds, paged["b"].joules) == (1.0, 0.5)
    assert {name for name, fate in paged.items() if fate.words == "kept"} == {"a", "c", "d", "e"}
    assert paged["b"].bytes == 32
    assert paged["a"].resident_share == pytest.approx(1.0)
    assert paged["b"].resident_share == pytest.approx((1.0 + 0.5 + 1.0 + 0.5 + 1.0) / 5.0)


def test_the_peak_names_its_op_and_counts_a_page_in() -> None:
    problem = _problem()
    fullest = peak(problem, PAGE, simulate(problem, PAGE))
    assert fullest.what == "running h"
    assert dict(fullest.by_role) == {
        "activation": 112, "saved-for-backward": 64, "input": 16, "gradient": 16,
    }  # fmt: skip
    limits = Limits(ram_budget_bytes=208)
    lines = list(what_binds(limits, simulate(problem, PAGE, limits), fullest))
    assert lines[0] == "RAM binds: keeping everything does not fit; 100 % is used while running h"
    keep: Schedule = (Compute("f"), Compute("g"), Compute("mid"), Compute("h"))
    trace = simulate(problem, keep)
    limits = Limits(ram_budget_bytes=416, deadline_seconds=4.0)
    assert list(what_binds(limits, trace, peak(problem, keep, trace))) == [
        "RAM does not bind: everything is kept; 50 % is used while running h",
        "the deadline binds: 100 % is used",
    ]


def test_the_memory_of_a_recomputation_is_counted_twice_while_it_runs() -> None:
    problem = as_decided(
        Problem(
            "twice",
            (Tensor("a", 1), Tensor("b", 4), Tensor("c", 4)),
            (ProblemOp("f", ("a",), ("b", "c"), 1.0, 1.0), ProblemOp("g", ("b", "c"), (), 1.0, 1.0)),
        )
    )
    schedule: Schedule = (Compute("f"), Free("b"), Compute("f"), Compute("g"))
    trace = simulate(problem, schedule)
    fullest = peak(problem, schedule, trace)
    assert fullest.what == "recomputing f"
    assert fullest.bytes == trace.peak_ram_bytes == 13


def test_the_text_carries_the_figures() -> None:
    text = _text(
        Group(
            solution_report(_problem(), Limits(ram_budget_bytes=256), _solution(PAGE)),
            schedule_tables(_problem(), PAGE, simulate(_problem(), PAGE), every_tensor=False, every_op=True),
        )
    )
    assert "A plan, at most 6.67 % above the best in the listed order." in text
    assert "8 J" in text  # 7 J of ops, 0.5 J of transfers, 0.5 J of idle power
    assert "paged out 1×, in 1×" in text
    assert "81.2 % of the budget, 256 B" in text
    assert "\na " not in text  # kept, so only listed on request


def test_an_answer_without_a_plan_is_one_sentence_and_its_reason() -> None:
    answer = Solution(Status.INFEASIBLE, None, None, 1.0, 1.0, 0.1, "bound", message="op h needs 208 B")
    assert _text(solution_report(_problem(), Limits(), answer)).splitlines() == [
        "No plan in the listed order exists inside the limits.",
        "op h needs 208 B",
    ]


def test_the_plot_reaches_its_top_where_the_budget_is_used_up() -> None:
    trace = simulate(_problem(), PAGE)
    lines = list(memory_plot(trace, trace.peak_ram_bytes))
    assert "█" in lines[0]
    assert lines[0].startswith("     208 B")
    assert "█" not in next(iter(memory_plot(trace, 2 * trace.peak_ram_bytes)))


def test_a_by_product_that_was_still_there_is_kept_and_costs_nothing() -> None:
    problem = as_decided(
        Problem(
            "by-product",
            (Tensor("a", 1), Tensor("b", 4), Tensor("c", 4)),
            (ProblemOp("f", ("a",), ("b", "c"), 1.0, 2.0), ProblemOp("g", ("b", "c"), (), 1.0, 1.0)),
        )
    )
    schedule: Schedule = (Compute("f"), Free("b"), Compute("f"), Compute("g"))
    fates = {fate.name: fate for fate in tensor_fates(problem, schedule, simulate(problem, schedule))}
    assert (fates["b"].words, fates["b"].joules) == ("recomputed 1×", 2.0)
    assert (fates["c"].words, fates["c"].joules) == ("kept", 0.0)


@pytest.mark.parametrize("seed", range(30))
def test_rows_of_any_valid_schedule_add_up(seed: int) -> None:
    problem = as_decided(mixed_problem(seed))
    limits = Limits(ram_budget_bytes=minimum_ram_bytes(problem, Limits()).bytes)
    schedule = page_everything(problem, limits)
    if schedule is None:
        limits, schedule = Limits(), recompute_all(problem, Limits())
    assert schedule is not None
    trace = simulate(problem, schedule, limits)
    assert peak(problem, schedule, trace).bytes == trace.peak_ram_bytes
    fates = tensor_fates(problem, schedule, trace)
    moved_joules = math.fsum(fate.joules for fate in fates)
    assert math.isclose(
        moved_joules + math.fsum(op.joules for op in problem.ops) + trace.idle_joules,
        trace.joules,
        abs_tol=1e-9,
    )
    assert all(0.0 <= fate.resident_share <= 1.0 + 1e-9 for fate in fates)


@pytest.mark.parametrize(
    ("amount", "unit", "scale"),
    [(3 << 20, "B", (2.0**20, "MiB")), (0.02, "J", (1e-3, "mJ")), (5000.0, "s", (1.0, "s")),
     (0.0, "J", (1.0, "J"))],
)  # fmt: skip
def test_scales(amount: float, unit: str, scale: tuple[float, str]) -> None:
    assert scale_of(amount, unit) == scale


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (4.43e8, "443 million"),
        (1234, "1,234"),
        (12.5, "12.5"),
        (2e12, "2 trillion"),
        (float("inf"), "unlimited"),
    ],
)
def test_counts(number: float, words: str) -> None:
    assert format_count(number) == words
