"""Training over a data file: shapes and names are checked, epochs counted, Ctrl-C ends a step, not in one."""

from __future__ import annotations

import itertools
import os
import signal
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import hand_net
from helpers.schedules import keep_everything
from poet.cli.main import app
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from poet.errors import InputError
from poet.frontend.trace import trace_training_step
from poet.plans.plan_file import read_plan, write_plan
from poet.plans.run_request import RunRequest, was_interrupted
from poet.plans.training_plan import Plan
from poet.runtime import Trainer
from poet.runtime.runs.fit import Allowance, Samples, Spending, fit, load_samples
from poet.runtime.storage.state import raw_tensor
from poet.runtime.training.trainer import StepResult


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    hand_net.write(tmp_path / "net.poet")
    return read_plan(tmp_path / "net.poet")


def save(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("names", [("x", "y"), ("inputs", "targets"), ("inputs", "y")])
def test_arrays_by_their_usual_names(plan: Plan, tmp_path: Path, names: tuple[str, str]) -> None:
    x, y = (torch.randn(20, hand_net.WIDTH) for _ in range(2))
    path = save(tmp_path / "d.npz", **dict(zip(names, (x.double().numpy(), y.numpy()), strict=True)))
    samples = load_samples(path, plan)
    assert samples.count == 20
    assert torch.equal(samples.tensors[0][:], x)
    assert torch.equal(samples.tensors[1][:], y)


def test_an_unusable_safetensors_file_is_one_line(plan: Plan, tmp_path: Path) -> None:
    x, y = (torch.randn(20, hand_net.WIDTH) for _ in range(2))
    save_file({"x": x.bfloat16(), "y": y}, tmp_path / "d.safetensors")
    with pytest.raises(InputError, match=r"d\.safetensors: x is bfloat16; save samples as float32"):
        load_samples(tmp_path / "d.safetensors", plan)
    (tmp_path / "d.safetensors").write_bytes(b"cut")
    with pytest.raises(InputError, match="not a usable safetensors file"):
        load_samples(tmp_path / "d.safetensors", plan)


ROWS = np.zeros((20, hand_net.WIDTH), np.float32)
WRONG: dict[str, tuple[dict[str, object], str]] = {
    "missing": ({"x": ROWS}, r"d\.npz: no array is called 'y' or 'targets'; found x"),
    "shape": ({"x": ROWS[:, 1:], "y": ROWS}, r"x has shape \[20, 63\], the plan takes \[samples, 64\]"),
    "type": ({"x": ROWS.astype(np.complex64), "y": ROWS}, "x has elements of type complex64"),
    "counts": ({"x": ROWS, "y": ROWS[1:]}, r"different numbers of samples \(20, 19\)"),
    "few": ({"x": ROWS[:7], "y": ROWS[:7]}, "7 samples, the plan's batch is 8"),
    "objects": ({"x": np.array([{}] * 20), "y": ROWS}, "not a readable .npz file"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arrays(plan: Plan, tmp_path: Path, kind: str) -> None:
    arrays, message = WRONG[kind]
    with pytest.raises(InputError, match=message) as error:
        load_samples(save(tmp_path / "d.npz", **arrays), plan)
    assert "\n" not in str(error.value)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A plan of a classifier, and a data file that it can learn."""
    torch.manual_seed(0)
    step = trace_training_step(nn.Linear(4, 3), torch.zeros(5, 4), measure=False)
    of = hand_net.problem(step.graph)
    plan = hand_net.plan(of, step.graph, keep_everything(of), loss="cross-entropy")
    write_plan(tmp_path / "net.poet", plan, {name: raw_tensor(t) for name, t in step.tensors.items()})
    classes = np.arange(33) % 3
    save(tmp_path / "d.npz", x=np.eye(4, dtype=np.float32)[classes], y=classes)
    return tmp_path


def test_epochs(digits: Path) -> None:
    with Trainer.open(digits / "net.poet", learning_rate=0.5) as trainer:
        samples = load_samples(digits / "d.npz", trainer.plan)
        epochs = list(fit(trainer, samples, epochs=8))
        assert trainer.steps == 8 * 6
    assert [epoch.number for epoch in epochs] == list(range(1, 9))
    assert all(epoch.steps == 6 and epoch.is_complete for epoch in epochs)
    assert epochs[-1].loss is not None
    assert epochs[0].loss is not None
    assert epochs[-1].loss < epochs[0].loss
    assert epochs[-1].accuracy == 1.0
    assert 0 < epochs[0].step_seconds <= epochs[0].seconds


def test_the_order_follows_the_seed(digits: Path) -> None:
    def losses(seed: int) -> list[float | None]:
        with Trainer.open(digits / "net.poet") as trainer:
            samples = load_samples(digits / "d.npz", trainer.plan)
            return [epoch.loss for epoch in fit(trainer, samples, epochs=2, seed=seed)]

    assert losses(1) == losses(1) != losses(2)


def test_saves_by_the_clock(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = count(0.0, 1.0)
    saved: list[int] = []
    with Trainer.open(digits / "net.poet") as trainer:
        samples = load_samples(digits / "d.npz", trainer.plan)
        monkeypatch.setattr(trainer, "save", lambda path, **_: saved.append(trainer.steps))
        clock = partial(next, seconds)
        for _ in fit(trainer, samples, epochs=1, save_path="s", save_seconds=2.5, clock=clock):
            pass
    # the clock is read once per step and once per save: 3 readings after the last save it is time
    assert saved == [3, 6, 6]


@pytest.mark.parametrize("seconds", [0.0, float("nan"), float("inf")])
def test_no_time_between_saves_is_refused(digits: Path, seconds: float) -> None:
    with Trainer.open(digits / "net.poet") as trainer:
        samples = load_samples(digits / "d.npz", trainer.plan)
        with pytest.raises(InputError, match="save-seconds"):
            next(fit(trainer, samples, epochs=1, save_path=digits / "s", save_seconds=seconds))
        assert trainer.steps == 0


def test_ctrl_c_ends_after_the_step_and_saves(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = digits / "state"
    with Trainer.open(digits / "net.poet") as trainer:
        samples = load_samples(digits / "d.npz", trainer.plan)
        step, before = trainer.step, signal.getsignal(signal.SIGINT)

        def interrupted(inputs: list[torch.Tensor], targets: torch.Tensor) -> StepResult:
            if trainer.steps == 8:
                os.kill(os.getpid(), signal.SIGINT)
            return step(inputs, targets)

        monkeypatch.setattr(trainer, "step", interrupted)
        epochs = list(fit(trainer, samples, epochs=5, save_path=state))
        assert trainer.steps == 9
        assert signal.getsignal(signal.SIGINT) is before
    assert [(epoch.steps, epoch.is_complete) for epoch in epochs] == [(6, True), (3, False)]
    with Trainer.open(digits / "net.poet", resume=state) as trainer:
        assert trainer.steps == 9


def test_saving_every_so_many_steps(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Trainer.open(digits / "net.poet") as trainer:
        saved: list[int] = []
        monkeypatch.setattr(trainer, "save", lambda path, keep_previous: saved.append(trainer.steps))
        samples = load_samples(digits / "d.npz", trainer.plan)
        epoch = next(fit(trainer, samples, epochs=1, save_path=tmp_path / "s", save_every=2))
        assert saved == [*range(2, epoch.steps + 1, 2), epoch.steps]


def test_scores_where_the_loss_takes_probabilities_are_one_line(tmp_path: Path) -> None:
    """Values outside 0 to 1 are known only as the step runs: nothing is trained, and the way out is said."""
    torch.manual_seed(0)
    step = trace_training_step(nn.Linear(4, 1), torch.zeros(5, 4), loss="bce", measure=False)
    of = hand_net.problem(step.graph)
    plan = hand_net.plan(of, step.graph, keep_everything(of), loss="bce")
    write_plan(tmp_path / "net.poet", plan, {name: raw_tensor(t) for name, t in step.tensors.items()})
    save(tmp_path / "d.npz", inputs=np.full((10, 4), 100, np.float32), targets=np.ones((10, 1), np.float32))
    done = CliRunner().invoke(app, ["run", str(tmp_path / "net.poet"), "--data", str(tmp_path / "d.npz")])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert "between 0 and 1" in line
    assert line.endswith("end the model with a sigmoid, or plan with bce-with-logits")
    assert "epoch" not in done.stdout


# --- what a run may spend: it ends before the step that would spend more, and another goes on --------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    hand_net.write(tmp_path / "net.poet")
    return tmp_path / "net.poet"


def samples_for(trainer: Trainer, folder: Path) -> Samples:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(35, hand_net.WIDTH, generator=generator).numpy() for _ in range(2))
    np.savez(folder / "d.npz", x=x, y=y)
    return load_samples(folder / "d.npz", trainer.plan)


def test_joules_by_the_plan_end_the_run_and_the_next_goes_on(path: Path, tmp_path: Path) -> None:
    state = tmp_path / "s.safetensors"
    with Trainer.open(path, seed=0, arena=False) as trainer:
        list(fit(trainer, samples_for(trainer, tmp_path), epochs=3))
        undisturbed, steps = trainer.parameters(), trainer.steps
    nights = 0
    while True:
        resume = state if state.exists() else None
        with Trainer.open(path, seed=None if resume else 0, resume=resume, arena=False) as trainer:
            samples = samples_for(trainer, tmp_path)
            left = steps - trainer.steps
            allowance = Allowance(joules=5 * trainer.plan.step_joules)
            spending = Spending(trainer.plan, allowance)
            done = list(fit(trainer, samples, epochs=-(-left // 4), save_path=state, spending=spending))
            nights += 1
            assert sum(epoch.steps for epoch in done) == min(5, left)
            assert spending.joules <= allowance.joules * (1 + 1e-9) if allowance.joules else False
            request = RunRequest("", "", 0, epochs=3)
            if trainer.steps == steps:
                assert all(torch.equal(trainer.parameters()[key], undisturbed[key]) for key in undisturbed)
                break
            assert "are allowed" in done[-1].stopped
            assert not was_interrupted(done, request)
    assert nights == 3


def test_a_meter_of_the_app(path: Path) -> None:
    drawn = itertools.count(100)
    with Trainer.open(path, arena=False) as trainer:
        spending = Spending(trainer.plan, Allowance(joules=5.5), meter=lambda: float(next(drawn)))
        steps = 0
        while not spending.over():
            spending.step_done()
            steps += 1
        assert 3 <= steps <= 5


def test_seconds_and_written_bytes(path: Path, tmp_path: Path) -> None:
    now = [0.0]
    with Trainer.open(path, arena=False) as trainer:
        spending = Spending(trainer.plan, Allowance(seconds=10.0), clock=lambda: now[0])
        for at, over in ((4.0, False), (6.8, True)):
            now[0] = at
            spending.step_done()
            assert bool(spending.over()) == over, at
        each = trainer.plan.step_written_bytes
        saved = tmp_path / "state"
        saved.write_bytes(b"x" * 1000)
        spending = Spending(trainer.plan, Allowance(written_bytes=3 * each + 2000))
        spending.step_done()
        spending.saved(saved)
        assert not spending.over()
        spending.step_done()
        spending.saved(saved)
        assert "written" in spending.over()


def test_less_than_a_step_is_refused(path: Path) -> None:
    with (
        Trainer.open(path, arena=False) as trainer,
        pytest.raises(InputError, match="no step can be made: another step makes"),
    ):
        Spending(trainer.plan, Allowance(joules=trainer.plan.step_joules / 2))
