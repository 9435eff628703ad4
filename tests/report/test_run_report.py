"""What `poet run` tells beside its epochs: memory above the budget, a busy machine, storage not measured."""

from __future__ import annotations

import io
import resource
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import hand_net
from helpers.schedules import random_schedule
from poet.cli.main import app
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from poet import api
from poet.kernel_facts import OpFacts
from poet.planning import rehearsal
from poet.plans.run_request import BUSY_RATIO, Epoch
from poet.plans.training_plan import Plan
from poet.report.run import Measured, run_data, run_report
from poet.runtime import StepResult, Trainer
from poet.runtime.storage.page_file import PageFile
from poet.runtime.training import step_clock

MIB = 1 << 20


def timed_plan(*, busy_ratio: float = 1.0) -> Plan:
    """The net written by hand, each op timed at a millisecond in whole steps."""
    graph = hand_net.graph()
    ops = tuple(OpFacts(op.name, seconds=1e-3) for op in graph.ops)
    kernels = replace(hand_net.KERNELS, ops=ops, threads=1, timed_in_steps=True, busy_ratio=busy_ratio)
    problem = hand_net.problem(graph, kernels=kernels)
    return hand_net.plan(problem, graph, random_schedule(problem, 0, share=0.0), kernels=kernels)


def epoch(*, seconds: float, own_seconds: float | None) -> Epoch:
    return Epoch(1, 2.0, None, 3, seconds, 1.0, is_complete=True, step_own_seconds=own_seconds)


def told(plan: Plan, epochs: list[Epoch], measured: Measured) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(run_report(plan, epochs, measured))
    return console.export_text()


def test_a_peak_above_the_budget_is_said() -> None:
    plan = timed_plan()
    budget_bytes = plan.request.limits.ram_budget_bytes
    assert budget_bytes is not None
    epochs = [epoch(seconds=0.01, own_seconds=0.01)]
    assert ", 1 MiB above the budget" in told(
        plan, epochs, Measured("heap", peak_ram_bytes=budget_bytes + MIB)
    )
    assert "above the budget" not in told(plan, epochs, Measured("heap", peak_ram_bytes=budget_bytes))


def test_a_busy_machine_is_said_with_both_times() -> None:
    plan, measured = timed_plan(), Measured("heap")
    busy, quiet = epoch(seconds=0.0205, own_seconds=0.0023), epoch(seconds=0.0205, own_seconds=0.020)
    assert "20.5 ms; machine busy, 2.3 ms of its own" in told(plan, [busy], measured)
    assert "busy" not in told(plan, [quiet], measured)
    assert run_data(plan, [busy], measured)["machine_was_busy"] is True
    assert run_data(plan, [quiet], measured)["machine_was_busy"] is False
    seconds = run_data(plan, [quiet], measured)["predicted_host_step_seconds"]
    planned_busy = told(timed_plan(busy_ratio=4.0), [quiet], measured)
    assert f"machine busy when planned, {1000 * 4 * seconds:.4g} ms" in planned_busy


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


def test_ops_that_are_timed_on_a_busy_machine_keep_their_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two threads ops are timed by the wall clock, which here mostly stands for somebody else's work."""
    pause_seconds, before = 0.005, torch.get_num_threads()

    class Disturbed(Trainer):
        def step(self, *batch: object, on_instruction: object = None, **others: object) -> StepResult:
            def disturbed(index: int) -> None:
                if on_instruction is not None:
                    on_instruction(index)  # type: ignore[operator]
                time.sleep(pause_seconds)

            return super().step(*batch, on_instruction=disturbed, **others)  # type: ignore[arg-type]

    torch.set_num_threads(2)
    try:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        prepared = api.prepare(net.train(), torch.zeros(2, 8), device="rpi4b")
        monkeypatch.setattr(step_clock, "Trainer", Disturbed)
        monkeypatch.setattr(rehearsal, "_LONGEST_SECONDS", 1e9)
        monkeypatch.setattr(rehearsal, "available_bytes", lambda: 1e12)
        facts = api.measured_on_host(prepared).step.kernels
    finally:
        torch.set_num_threads(before)
    assert facts.timed_in_steps
    assert facts.busy_ratio > BUSY_RATIO
    shortest = sorted(op.seconds or 0.0 for op in facts.ops)[: len(facts.ops) // 2]
    assert max(shortest) < pause_seconds


def test_storage_that_cannot_be_measured_is_a_line_of_the_report(tmp_path: Path) -> None:
    """The plan's pages fit; the 8 MiB of the measurement do not."""
    of = hand_net.problem(hand_net.graph())
    hand_net.write(tmp_path / "p", random_schedule(of, 1))
    x, y = hand_net.batch(0)
    np.savez(tmp_path / "d.npz", x=x.numpy(), y=y.numpy())
    arguments = ["run", str(tmp_path / "p"), "--data", str(tmp_path / "d.npz"), "-o", str(tmp_path / "state")]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MIB, before[1]))
    try:
        done = CliRunner().invoke(app, arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "state").exists()
    told = " ".join(done.stdout.split())
    assert "storage was not measured: page file" in told
    assert "no room for 8.004 MiB" in told
