"""What `poet run` tells beside its epochs: memory above the budget, a busy machine."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from helpers import hand_net
from helpers.schedules import random_schedule
from rich.console import Console

from poet.plans.run_request import Epoch
from poet.plans.training_plan import Plan
from poet.report.run import Measured, run_data, run_report
from poet.runtime import Trainer
from poet.runtime.storage.page_file import PageFile

MIB = 1 << 20


def plan_of() -> Plan:
    """The net written by hand."""
    graph = hand_net.graph()
    problem = hand_net.problem(graph)
    return hand_net.plan(problem, graph, random_schedule(problem, 0, share=0.0))


def epoch(*, seconds: float, own_seconds: float | None) -> Epoch:
    return Epoch(1, 2.0, None, 3, seconds, 1.0, is_complete=True, step_own_seconds=own_seconds)


def told(plan: Plan, epochs: list[Epoch], measured: Measured) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(run_report(plan, epochs, measured))
    return console.export_text()


def test_a_peak_above_the_budget_is_said() -> None:
    plan = plan_of()
    budget_bytes = plan.request.limits.ram_budget_bytes
    assert budget_bytes is not None
    epochs = [epoch(seconds=0.01, own_seconds=0.01)]
    assert ", 1 MiB above the budget" in told(
        plan, epochs, Measured("heap", peak_ram_bytes=budget_bytes + MIB)
    )
    assert "above the budget" not in told(plan, epochs, Measured("heap", peak_ram_bytes=budget_bytes))


def test_a_busy_machine_is_said_with_both_times() -> None:
    plan, measured = plan_of(), Measured("heap")
    busy, quiet = epoch(seconds=0.0205, own_seconds=0.0023), epoch(seconds=0.0205, own_seconds=0.020)
    assert "20.5 ms; machine busy, 2.3 ms of its own" in told(plan, [busy], measured)
    assert "busy" not in told(plan, [quiet], measured)
    assert run_data(plan, [busy], measured)["machine_was_busy"] is True
    assert run_data(plan, [quiet], measured)["machine_was_busy"] is False
    assert run_data(plan, [quiet], measured)["measured_host_step_seconds"] == 0.0205


@pytest.mark.slow
def test_a_step_tells_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the processor is not its own time, waiting for storage is."""
    of = hand_net.problem(hand_net.graph())
    hand_net.write(tmp_path / "p", random_schedule(of, 1))
    read_into = PageFile.read_into

    def slow(pages: PageFile, tensor: str, target: memoryview) -> None:
        time.sleep(0.1)
        read_into(pages, tensor, target)

    with Trainer.open(tmp_path / "p") as trainer:
        waited = trainer.step(*hand_net.batch(0), on_instruction=lambda _: time.sleep(0.01))
        assert waited.own_seconds <= waited.seconds - 0.01 * len(trainer.plan.graph.ops)
        monkeypatch.setattr(PageFile, "read_into", slow)
        assert trainer.step(*hand_net.batch(0)).own_seconds >= 0.1
