"""What the ops of a training took, added to a calibration."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import hand_net
from helpers.schedules import random_schedule
from poet.cli.main import app
from typer.testing import CliRunner

from poet.calibration.run_times import step_of_run
from poet.devices.fitted_profile import fit_profile
from poet.devices.load import load_profile
from poet.devices.machine import Machine
from poet.devices.measurements import RUN, read_measurements
from poet.runtime import Trainer


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
