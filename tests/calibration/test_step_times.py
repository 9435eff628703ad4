"""What ops and transfers take in steps on this machine, and a training's ops added to a calibration."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import hand_net
from helpers.schedules import random_schedule
from poet.cli.main import app
from torch import nn
from typer.testing import CliRunner

from poet.calibration import step_times
from poet.calibration.bench import transfer_seconds
from poet.calibration.step_times import op_times, step_of_run
from poet.devices.fitted_profile import fit_profile
from poet.devices.load import load_profile
from poet.devices.machine import Machine
from poet.devices.measurements import RUN, read_measurements
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.optimizer import OptimizerSpec
from poet.plans.run_request import BUSY_RATIO
from poet.problem.schedule import Free
from poet.runtime import StepResult, Trainer


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan that recomputes and pages."""
    hand_net.write(tmp_path / "p.poet", random_schedule(hand_net.problem(hand_net.graph()), 3, share=0.5))
    return tmp_path / "p.poet"


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    content = {key: rng.standard_normal((16, hand_net.WIDTH), dtype=np.float32) for key in ("x", "y")}
    np.savez(tmp_path / "data.npz", **content)  # type: ignore[arg-type]
    return tmp_path / "data.npz"


@pytest.mark.usefixtures("one_thread")
def test_every_op_has_its_time(plan: Path) -> None:
    inputs, targets = hand_net.batch(0)
    with Trainer.open(plan) as trainer:
        step = step_of_run(trainer, ((inputs,), (targets,)), machine=Machine())
        kinds = {op.call.target for op in trainer.plan.graph.ops}
    assert (step.role, step.threads) == (RUN, 1)
    assert len(kinds) - 1 <= len({op.call.target for op in step.ops}) <= len(kinds)  # the last may be untimed
    assert all(0 < op.seconds < 1 for op in step.ops)


def test_a_run_adds_to_a_raw_file_that_a_fit_reads(plan: Path, samples: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    asked = ["run", str(plan), "--data", str(samples), "--add-to", str(raw)]
    for count in (1, 2):
        done = CliRunner().invoke(app, asked)
        assert done.exit_code == 0, done.stderr
        assert f"kinds of ops added to {raw}" in done.stderr
        assert [step.role for step in read_measurements(raw).steps] == [RUN] * count
    fitted, _ = fit_profile(read_measurements(raw), name="mine", base=load_profile("x86-host"))
    assert fitted.compute != load_profile("x86-host").compute


def test_a_file_of_another_machine_is_refused_before_training(
    plan: Path, samples: Path, tmp_path: Path
) -> None:
    raw = tmp_path / "raw.json"
    raw.write_text("{}")
    done = CliRunner().invoke(app, ["run", str(plan), "--data", str(samples), "--add-to", str(raw)])
    assert (done.exit_code, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert raw.read_text() == "{}"
    done = CliRunner().invoke(
        app, ["run", str(plan), "--data", str(samples), "--enforce", "--add-to", str(tmp_path / "r.json")]
    )
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)


def _step() -> TrainingStep:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4)).train()
    return trace_training_step(net, (torch.zeros(2, 8),), optimizer=OptimizerSpec("sgd"), name="net")


@pytest.mark.usefixtures("one_thread")
def test_timed_steps_leave_weights_and_generator_alone() -> None:
    step, generator = _step(), torch.get_rng_state()
    tensors = {key: tensor.clone() for key, tensor in step.tensors.items()}
    ops, _ = op_times(step)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(step.tensors[key], tensor) for key, tensor in tensors.items())
    assert sum(op.runs for op in ops) == len(step.graph.ops)
    assert all(op.seconds > 0.0 for op in ops)


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
        monkeypatch.setattr(step_times, "Trainer", Disturbed)
        ops, ratio = op_times(_step())
    finally:
        torch.set_num_threads(before)
    assert ratio > BUSY_RATIO
    shortest = sorted(op.seconds for op in ops)[: len(ops) // 2]
    assert max(shortest) < pause_seconds


def test_the_instructions_are_told_in_order(tmp_path: Path) -> None:
    hand_net.write(tmp_path / "p")
    with Trainer.open(tmp_path / "p") as trainer:
        for _ in range(2):
            told: list[int] = []
            trainer.step(*hand_net.batch(0), on_instruction=told.append)
            schedule = trainer.plan.schedule
            assert told == [index for index, step in enumerate(schedule) if not isinstance(step, Free)]


@pytest.mark.parametrize("buffer_bytes", [0, 64 * 1024])
def test_storage_is_tried_and_nothing_is_left_behind(buffer_bytes: int, tmp_path: Path) -> None:
    taken, mode = transfer_seconds(tmp_path, buffer_bytes=buffer_bytes, counts={4096: 3, 1 << 20: 2})
    assert {size: (len(writes), len(reads)) for size, (writes, reads) in taken.items()} == {
        4096: (3, 3),
        1 << 20: (2, 2),
    }
    assert all(0 <= seconds < 60 for both in taken.values() for each in both for seconds in each)
    assert mode
    assert list(tmp_path.iterdir()) == []
