"""Why a tensor is kept, recomputed or paged: the reasons are those of the schedule."""

from __future__ import annotations

import pytest
from helpers.random_problems import mixed_problem

from poet.problem import Limits, Pins, Problem, ProblemOp, Tensor, Transfer
from poet.problem.homes import as_decided, decided
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule
from poet.problem.simulator import simulate
from poet.report.reasons import alternatives, tensor_reasons
from poet.report.schedule_rows import (
    DECISIONS,
    energy_by_kind,
    energy_by_part,
    kind_of,
    tensor_fates,
    timeline,
)
from poet.solvers import minimum_ram_bytes
from poet.solvers.heuristics.greedy import greedy

CHEAP, DEAR = Transfer(0.1, 0.1), Transfer(0.1, 9.0)


def _problem(transfer: Transfer) -> Problem:
    """a → f → b → g → c → h → d, where h reads b again: b lies idle while g and mid run."""
    return Problem(
        name="b lies idle",
        tensors=(
            Tensor("a", 10, transfer, transfer),
            Tensor("b", 30, transfer, transfer),
            Tensor("c", 50),
            Tensor("d", 8),
            Tensor("e", 70),
        ),
        ops=(
            ProblemOp("f", ("a",), ("b",), seconds=1.0, joules=2.0),
            ProblemOp("g", ("b",), ("c",), seconds=1.0, joules=3.0),
            ProblemOp("mid", ("c",), ("e",), seconds=1.0, joules=1.0),
            ProblemOp("h", ("b", "c", "e"), ("d",), seconds=1.0, joules=1.0),
        ),
    )


KEEP: Schedule = (Compute("f"), Compute("g"), Compute("mid"), Compute("h"))
RECOMPUTE: Schedule = (
    Compute("f"), Compute("g"), Free("b"), Compute("mid"), Compute("f"), Compute("h"),
)  # fmt: skip
PAGE: Schedule = (
    Compute("f"), PageOut("b"), Compute("g"), Free("b"), Compute("mid"), PageIn("b"), Compute("h"),
)  # fmt: skip


def _why(of: Problem, schedule: Schedule, limits: Limits) -> dict[str, tuple[str, str]]:
    problem = decided(of, schedule)
    trace = simulate(problem, schedule, limits)
    fates = tensor_fates(problem, schedule, trace)
    reasons = tensor_reasons(problem, limits, timeline(problem, schedule, trace), fates)
    return {fate.name: (fate.decision, why) for fate, why in zip(fates, reasons, strict=True)}


@pytest.mark.parametrize(
    ("schedule", "transfer", "ram_bytes", "decision", "words"),
    [
        (KEEP, CHEAP, None, "kept", "There is no RAM budget"),
        (KEEP, CHEAP, 200, "kept", "40 B stay free"),  # 160 while mid runs
        (KEEP, CHEAP, 168, "kept", "8 B stay free"),
        (RECOMPUTE, DEAR, 168, "recomputed", "recomputing costs 2 J a time, paging 18 J"),
        (PAGE, CHEAP, 168, "paged", "paging costs 200 mJ a time, recomputing 2 J"),
        (PAGE, DEAR, 168, "paged", "would need its op's inputs"),
    ],
)
def test_reasons(
    schedule: Schedule, transfer: Transfer, ram_bytes: int | None, decision: str, words: str
) -> None:
    told = _why(_problem(transfer), schedule, Limits(ram_budget_bytes=ram_bytes))
    assert told["b"][0] == decision
    assert words in told["b"][1]
    assert "never lies idle" in told["d"][1]


def test_what_the_limits_forbid_is_no_way() -> None:
    told = _why(_problem(DEAR), RECOMPUTE, Limits(ram_budget_bytes=168, paging=False))
    assert "paging is not possible" in told["b"][1]
    told = _why(_problem(DEAR), KEEP, Limits(ram_budget_bytes=168, paging=False, recompute=False))
    assert "cannot be brought back" in told["b"][1]


def test_a_pin_is_the_reason() -> None:
    limits = Limits(ram_budget_bytes=168, pins=Pins(recompute=("b",)))
    assert _why(_problem(DEAR), RECOMPUTE, limits)["b"][1] == "It is pinned: it must be recomputed."
    limits = Limits(ram_budget_bytes=168, pins=Pins(never_page=("b",)))
    assert "paging is not possible" in _why(_problem(DEAR), RECOMPUTE, limits)["b"][1]


@pytest.mark.parametrize("seed", range(8))
def test_every_tensor_has_a_reason_and_every_joule_a_place(seed: int) -> None:
    problem = as_decided(mixed_problem(seed))
    limits = Limits(ram_budget_bytes=int(1.3 * minimum_ram_bytes(problem).bytes))
    schedule = greedy(problem, limits)
    if schedule is None:
        pytest.skip("greedy finds no plan for this seed")
    trace = simulate(problem, schedule, limits)
    told = _why(problem, schedule, limits)
    assert told.keys() == {tensor.name for tensor in problem.tensors}
    assert {decision for decision, _ in told.values()} <= set(DECISIONS)
    parts = {share.what: share for share in energy_by_part(problem, schedule, trace)}
    assert sum(part.joules for part in parts.values()) == pytest.approx(trace.joules)
    kinds = energy_by_kind(problem, schedule)
    assert sum(kind.joules for kind in kinds) == pytest.approx(trace.compute_joules)
    assert sum(kind.again_joules for kind in kinds) == pytest.approx(parts["recomputation"].joules)
    assert sum(kind.runs for kind in kinds) == sum(isinstance(step, Compute) for step in schedule)


@pytest.mark.parametrize("seed", range(4))
def test_alternatives_stay_in_the_limits(seed: int) -> None:
    problem = as_decided(mixed_problem(seed))
    limits = Limits(ram_budget_bytes=int(1.3 * minimum_ram_bytes(problem).bytes))
    rows = {row.name: row for row in alternatives(problem, limits)}
    assert list(rows) == ["keep everything", "recompute only", "page only", "greedy"]
    for row in rows.values():
        if row.peak_ram_bytes is not None:
            assert row.peak_ram_bytes <= (limits.ram_budget_bytes or 0)
    assert not rows["page only"].recomputed_runs
    needed = rows["keep everything"].unlimited_ram_bytes
    assert needed is None or needed > (limits.ram_budget_bytes or 0)
    forbidden = alternatives(problem, Limits(ram_budget_bytes=1 << 40, paging=False, recompute=False))
    assert [row.name for row in forbidden] == ["keep everything"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("stages.1.0.conv2.convolution_backward.input", "convolution backward"),
        ("bn1.native_batch_norm", "batch norm"),
        ("fc.mm_1", "matrix product"),
        ("_log_softmax_backward_data", "log softmax backward"),
        ("fc.bias.update", "parameter update"),
        ("threshold_backward_3", "relu backward"),
        ("10:layer10_GradientLayer", "layer GradientLayer"),
        ("7", "7"),
        ("net.0.avg_pool2d", "avg pool2d"),
        ("net.0.log1p", "log1p"),
        ("net.0.log10", "log10"),
        ("net.relu6_1", "relu6"),
        ("net.atan2_backward", "atan2 backward"),
        ("net.upsample_nearest2d", "upsample nearest2d"),
        ("3:layer3_Linear", "layer Linear"),
    ],
)
def test_a_kind_of_op_has_no_count_and_keeps_the_digits_of_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind
