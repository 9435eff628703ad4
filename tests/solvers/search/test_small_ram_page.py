"""The page of small nets in little RAM: goals beside what was reached, a reason for each search left open."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from poet.problem.solution import Status
from poet.solvers.portfolio.state import COPIES, WHOLE

bench: Any = importlib.import_module("benchmarks.small_ram")

PROVEN = bench.Row(
    net="mlp",
    device="stm32h743",
    home="ram",
    share=0.05,
    ops=30,
    budget_bytes=4096,
    limit_seconds=30.0,
    status=Status.OPTIMAL.word,
    plan=0.5,
    bound=0.5,
    open_share=0.0,
    seconds=2.0,
    plan_seconds=1.0,
    bound_seconds=2.0,
    bound_by=WHOLE,
)
OPEN = dataclasses.replace(
    PROVEN, net="ds-cnn", ops=99, status=Status.FEASIBLE.word, bound=0.25, open_share=0.5, seconds=30.0,
    bound_seconds=29.0, bound_by=COPIES,
)  # fmt: skip


def test_goals_stand_beside_what_was_reached() -> None:
    met = bench.page([PROVEN] * 10)
    assert "**missed**" not in met
    assert "it may be too low" not in met
    missed = bench.page([PROVEN, PROVEN, OPEN])
    assert "| proven or at most 2% from a proof | 90% | 2 of 3 | **missed** |" in missed
    assert "| at most 10% from a proof | 100% | 2 of 3 | **missed** |" in missed
    assert "| steps of fewer than 60 ops proven | 100% | 2 of 2 | met |" in missed
    assert "| proven or the time used up | 100% | 3 of 3 | met |" in missed


def test_what_is_open_has_a_reason() -> None:
    page = bench.page([PROVEN, OPEN])
    assert "the bound still rose in the last fifth of the time in 1, and the plan became better in 0" in page
    assert f"| {COPIES} | 1 | it cuts off sets of copies" in page
    (row,) = [line for line in page.splitlines() if line.startswith("| ds-cnn")]
    assert f"| 50 % | 30.0 | bound by {COPIES}, better until 29.0 s; plan until 1.0 s |" in row
    assert "| 2.0 |  |" in next(line for line in page.splitlines() if line.startswith("| mlp"))


def test_the_page_says_which_rows_it_has() -> None:
    assert "SMALL_RAM='--only mlp --devices stm32h743 --homes ram --shares 0.05'" in bench.page([PROVEN])
    every = [
        dataclasses.replace(PROVEN, net=net, device=device, home=home, share=share)
        for net in bench.SMALL.nets
        for device, home, share in bench.SMALL.places
    ]
    assert "All nets, devices, homes and budgets." in bench.page(every)
    assert (
        f"Of all {len(every)} nets, devices, homes and budgets these {len(every) - 1} have been"
        in bench.page([*every[:5], *every[6:]])
    )


def test_a_search_that_ended_early_with_a_gap_is_counted() -> None:
    early = dataclasses.replace(OPEN, seconds=8.0)
    assert "| proven or the time used up | 100% | 1 of 2 | **missed** |" in bench.page([PROVEN, early])


def test_a_search_without_plan_or_proof_is_open_and_says_so() -> None:
    none = dataclasses.replace(
        OPEN,
        net="vit",
        device="stm32l4r5",
        home="auto",
        status=Status.TIMEOUT.word,
        plan=None,
        open_share=None,
    )
    page = bench.page([none], bench.OTHER)
    assert "| at most 10% from a proof | 100% | 0 of 1 | **missed** |" in page
    assert "OTHER_NETS='--only vit --devices stm32l4r5 --homes auto --shares 0.05'" in page
    assert "no plan was found |" in next(line for line in page.splitlines() if line.startswith("| vit"))
    proven = dataclasses.replace(none, status=Status.INFEASIBLE.word)
    assert "| at most 10% from a proof | 100% | 1 of 1 | met |" in bench.page([proven], bench.OTHER)
