"""Predictions for this machine: measured ops and transfers, judged by the simulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.schedules import keep_everything, random_schedule

from poet import api
from poet.devices.host import HostStorage, Line, host_step_seconds, on_host
from poet.kernel_facts import KernelFacts, OpFacts
from poet.problem import Limits
from poet.runtime.storage.storage_speed import measure_storage
from poet.schedule import Compute, PageIn, PageOut

STORAGE = HostStorage(read=Line(1e-3, 1e-6), write=Line(2e-3, 3e-6))


def test_ops_and_transfers_take_what_was_measured() -> None:
    graph = hand_net.graph()
    problem = hand_net.problem(graph)
    half = KernelFacts("pytorch-cpu", tuple(OpFacts(op.name, seconds=0.5) for op in graph.ops))
    assert on_host(problem, KernelFacts("pytorch-cpu"), STORAGE) is None
    assert on_host(problem, replace(half, ops=half.ops[1:]), STORAGE) is None
    schedule = random_schedule(problem, 3)
    sizes = {tensor.name: tensor.bytes for tensor in problem.tensors}
    expected = 0.5 * sum(isinstance(step, Compute) for step in schedule)
    without = host_step_seconds(problem, half, schedule, None)
    assert without == pytest.approx(expected)
    moved = [step for step in schedule if isinstance(step, PageIn | PageOut)]
    assert moved
    for step in moved:
        line = STORAGE.read if isinstance(step, PageIn) else STORAGE.write
        expected += line.seconds(sizes[step.tensor])
    assert host_step_seconds(problem, half, schedule, STORAGE) == pytest.approx(expected)
    kept = host_step_seconds(problem, half, keep_everything(problem), STORAGE)
    assert kept == pytest.approx(0.5 * len(graph.ops))


@pytest.mark.parametrize("buffer_bytes", [0, 64 * 1024])
def test_storage_is_tried_and_nothing_is_left_behind(buffer_bytes: int, tmp_path: Path) -> None:
    storage = measure_storage(tmp_path, buffer_bytes=buffer_bytes)
    for line in (storage.read, storage.write):
        assert 0 < line.seconds(1 << 20) < 60
        assert line.latency_seconds >= 0
        assert line.seconds_per_byte >= 0
    assert list(tmp_path.iterdir()) == []


def test_a_step_is_planned_at_the_times_of_this_machine() -> None:
    """The device's figures say nothing about them, so that the plan has no range."""
    prepared = api.prepare(torch.nn.Linear(4, 3), torch.zeros(2, 4), device="x86-host")
    times = tuple(OpFacts(op.name, seconds=0.5) for op in prepared.step.graph.ops)
    hosted = on_host(prepared.problem, KernelFacts("pytorch-cpu", times), STORAGE)
    assert hosted is not None
    here = replace(prepared, problem=hosted)
    found = [api.plan_step(each, Limits(), measure_host=False).plan.prediction for each in (prepared, here)]
    assert found[0].range is not None
    assert found[1].range is None
    assert found[1].seconds == pytest.approx(0.5 * len(times))
