"""Training that goes on: after a save, after a kill, after data that is refused, and where a loss is NaN."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import hand_net
from helpers.schedules import keep_everything
from poet.cli.main import app
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner

from poet.errors import InputError, NotFinite, PlanError
from poet.frontend.trace import trace_training_step
from poet.ir.optimizer import OptimizerSpec
from poet.plans.plan_file import write_plan
from poet.plans.run_request import Epoch
from poet.runtime import Trainer
from poet.runtime.runs.fit import fit, load_samples
from poet.runtime.storage.state import raw_tensor

ROWS, CLASSES, BATCH, SAMPLES = 10, 5, 4, 22
POET = Path(sys.executable).with_name("poet")


class Net(nn.Module):
    """A table, batch norm and dropout: what a bad number, a failing step and a restart can hurt."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 4)
        self.rest = nn.Sequential(
            nn.Flatten(), nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, CLASSES)
        )

    def forward(self, words: Tensor) -> Tensor:
        """Scores of classes for three words each."""
        scores: Tensor = self.rest(self.table(words))
        return scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan and samples that fit it, five batches and two samples more."""
    folder = tmp_path_factory.mktemp("resume")
    torch.manual_seed(0)
    words = torch.zeros(BATCH, 3, dtype=torch.int64)
    step = trace_training_step(Net().train(), words, optimizer=OptimizerSpec("adamw"), measure=False)
    of = hand_net.problem(step.graph)
    plan = hand_net.plan(of, step.graph, keep_everything(of), optimizer=step.optimizer, loss="cross-entropy")
    write_plan(folder / "net.poet", plan, {name: raw_tensor(t) for name, t in step.tensors.items()})
    rng = np.random.default_rng(0)
    np.savez(
        folder / "d.npz",
        inputs=rng.integers(0, ROWS, (SAMPLES, 3)),
        targets=rng.integers(0, CLASSES, SAMPLES),
    )
    return folder


def train(
    folder: Path, *, epochs: int, state: Path, resume: bool = False, seed: int | None = 3
) -> list[Epoch]:
    with Trainer.open(folder / "net.poet", seed=seed, resume=state if resume else None) as trainer:
        samples = load_samples(folder / "d.npz", trainer.plan)
        return list(fit(trainer, samples, epochs=epochs, save_path=state))


def same(first: Path, second: Path) -> bool:
    """Whether two saved states, generators included, agree in every bit."""
    mine, other = load_file(first), load_file(second)
    assert "poet.random_state" in mine
    return mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


# --- going on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [3, None])
def test_one_epoch_and_one_resumed_are_two(folder: Path, tmp_path: Path, seed: int | None) -> None:
    whole = train(folder, epochs=2, state=tmp_path / "two")
    first = train(folder, epochs=1, state=tmp_path / "one")
    second = train(folder, epochs=1, state=tmp_path / "one", resume=True, seed=seed)
    assert same(tmp_path / "one", tmp_path / "two")
    parts = [(epoch.number, epoch.loss, epoch.accuracy) for epoch in (*first, *second)]
    assert parts == [(epoch.number, epoch.loss, epoch.accuracy) for epoch in whole]


def test_one_that_was_begun_is_ended_first(folder: Path, tmp_path: Path) -> None:
    train(folder, epochs=2, state=tmp_path / "two")
    with Trainer.open(folder / "net.poet", seed=3) as trainer:
        samples = load_samples(folder / "d.npz", trainer.plan)
        training = fit(trainer, samples, epochs=2, save_path=tmp_path / "state", save_every=1)
        step, made = trainer.step, 0

        def failing(inputs: tuple[Tensor, ...], targets: Tensor) -> object:
            nonlocal made
            made += 1
            if made == 4:
                raise OSError("the power goes")
            return step(inputs, targets)

        trainer.step = failing  # type: ignore[method-assign, assignment]
        with pytest.raises(OSError, match="the power goes"):
            list(training)
    epochs = train(folder, epochs=2, state=tmp_path / "state", resume=True)
    assert [(epoch.number, epoch.steps, epoch.is_complete) for epoch in epochs] == [
        (1, 2, True),
        (2, 5, True),
    ]
    assert same(tmp_path / "state", tmp_path / "two")


@pytest.mark.slow
def test_after_a_kill_it_goes_on_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [POET, "run", folder / "net.poet", "--data", folder / "d.npz", "--threads", "1", "-o", state]
    command += ["--save-every", "1", "--epochs", "100000"]
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 300
            while not state.exists() and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.05)
        finally:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    arguments = ["run", folder / "net.poet", "--data", folder / "d.npz", "--threads", "1", "-o", state]
    done = CliRunner().invoke(app, [str(word) for word in [*arguments, "--resume", state]])
    assert done.exit_code == 0, done.stderr
    with Trainer.open(folder / "net.poet", resume=state) as trainer:
        epochs, rest = divmod(trainer.steps, SAMPLES // BATCH)
    assert rest == 0
    train(folder, epochs=epochs, state=tmp_path / "undisturbed", seed=0)
    assert same(state, tmp_path / "undisturbed")


@pytest.mark.slow
def test_another_seed_begins_another_training(folder: Path, tmp_path: Path) -> None:
    for name, seed in (("same", 3), ("other", 4)):
        train(folder, epochs=1, state=tmp_path / name)
        train(folder, epochs=1, state=tmp_path / name, resume=True, seed=seed)
    assert not same(tmp_path / "same", tmp_path / "other")


def test_a_state_with_other_tensors_of_the_optimizer_says_which(folder: Path, tmp_path: Path) -> None:
    specs = {name: OptimizerSpec.parse(name) for name in ("adamw", "adamw:amsgrad=yes", "lion")}
    for name, spec in specs.items():
        step = trace_training_step(nn.Linear(3, 2), torch.zeros(2, 3), optimizer=spec, measure=False)
        of = hand_net.problem(step.graph)
        plan = hand_net.plan(of, step.graph, keep_everything(of), optimizer=spec, loss="cross-entropy")
        plan = replace(plan, model=replace(plan.model, sha256=step.digest))
        write_plan(tmp_path / name, plan, {key: raw_tensor(tensor) for key, tensor in step.tensors.items()})
        with Trainer.open(tmp_path / name) as trainer:
            trainer.save(tmp_path / f"{name}.state")
    for saved, planned, message in (
        ("adamw", "adamw:amsgrad=yes", r"its optimizer lacks max_exp_avg_sq, which .*\(adamw:amsgrad=yes\)"),
        ("adamw:amsgrad=yes", "adamw", r"its optimizer has max_exp_avg_sq, which the plan's does not keep"),
        ("adamw", "lion", "another optimizer than the plan's lion"),
    ):
        with pytest.raises(PlanError, match=message):
            Trainer.open(tmp_path / planned, resume=tmp_path / f"{saved}.state")
    with pytest.raises(PlanError, match="another model"):
        Trainer.open(folder / "net.poet", resume=tmp_path / "adamw.state")


def test_a_seed_that_torch_does_not_take(folder: Path) -> None:
    with pytest.raises(InputError, match=r"99999999999999999999 is no seed"):
        Trainer.open(folder / "net.poet", seed=99999999999999999999)


def test_a_damaged_seed_is_refused(folder: Path, tmp_path: Path) -> None:
    train(folder, epochs=1, state=tmp_path / "state")
    data = (tmp_path / "state").read_bytes()
    assert b'"poet.seed":"3"' in data
    (tmp_path / "state").write_bytes(data.replace(b'"poet.seed":"3"', b'"poet.seed":"x"'))
    with pytest.raises(PlanError, match="its seed is damaged"):
        Trainer.open(folder / "net.poet", resume=tmp_path / "state")


# --- numbers that there are not ----------------------------------------------------------------


def batch_of(words: int = 1, label: int = 1) -> tuple[Tensor, Tensor]:
    """A batch whose third sample has this word in the middle and this label."""
    inputs, targets = torch.arange(12).view(BATCH, 3) % ROWS, torch.arange(BATCH) % CLASSES
    inputs[2, 1], targets[2] = words, label
    return inputs, targets


BAD: dict[str, tuple[dict[str, int], str]] = {
    "class": (
        {"label": CLASSES},
        "sample 2 is 5; the classes are 0 to 4, and -100, which the loss leaves out",
    ),
    "negative class": ({"label": -1}, "sample 2 is -1; the classes are 0 to 4"),
    "row": ({"words": ROWS}, "sample 2 holds 10; the rows of its table are 0 to 9"),
    "negative row": ({"words": -1}, "sample 2 holds -1; the rows of its table are 0 to 9"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_number_that_there_is_not_changes_nothing(folder: Path, kind: str) -> None:
    """Batch norm's statistics stay, the generator stays, and the trainer goes on as if nothing had been."""
    changes, message = BAD[kind]
    with Trainer.open(folder / "net.poet", seed=0) as undisturbed:
        expected = undisturbed.step(*batch_of()).loss
        after = undisturbed.state_dict()
    with Trainer.open(folder / "net.poet", seed=0) as trainer:
        before = trainer.state_dict()
        with pytest.raises(InputError, match=message):
            trainer.step(*batch_of(**changes))
        assert trainer.steps == 0
        assert all(torch.equal(before[name], tensor) for name, tensor in trainer.state_dict().items())
        assert trainer.step(*batch_of()).loss == expected
        assert all(torch.equal(after[name], tensor) for name, tensor in trainer.state_dict().items())


def test_what_the_loss_leaves_out_is_allowed(folder: Path) -> None:
    with Trainer.open(folder / "net.poet", seed=0) as trainer:
        assert math.isfinite(trainer.step(*batch_of(label=-100)).loss)


@pytest.mark.parametrize("kind", BAD)
def test_poet_run_checks_the_file_before_the_first_step(folder: Path, kind: str, tmp_path: Path) -> None:
    changes, message = BAD[kind]
    batches = [batch_of(), batch_of(**changes)]
    inputs, targets = (torch.cat([pair[place] for pair in batches]).numpy() for place in range(2))
    np.savez(tmp_path / "bad.npz", inputs=inputs, targets=targets)
    arguments = ["run", folder / "net.poet", "--data", tmp_path / "bad.npz", "-o", tmp_path / "state"]
    done = CliRunner().invoke(app, [str(word) for word in arguments])
    name = "targets" if "label" in changes else "inputs"
    assert done.exit_code == 2
    assert done.stderr.startswith(f"poet: bad.npz: {name}: {message.replace('sample 2', 'sample 6')}")
    assert (done.stdout, (tmp_path / "state").exists()) == ("", False)


def test_targets_that_are_not_finite(tmp_path: Path) -> None:
    plan = hand_net.write(tmp_path / "p")
    x, y = hand_net.batch(0)
    y[3, 7] = math.nan
    with Trainer.open(tmp_path / "p") as trainer:
        with pytest.raises(
            InputError, match=r"y: sample 3 holds nan; finite numbers are allowed \(allow_nan"
        ):
            trainer.step(x, y)
        assert math.isfinite(trainer.step(*hand_net.batch(0)).loss)
    np.savez(tmp_path / "d.npz", x=x.numpy(), y=y.numpy())
    with pytest.raises(InputError, match=r"d\.npz: y: sample 3 holds nan; finite numbers are allowed"):
        load_samples(tmp_path / "d.npz", plan)
    with Trainer.open(tmp_path / "p", allow_nan=True) as trainer:
        load_samples(tmp_path / "d.npz", plan, allow_nan=True)
        assert math.isnan(trainer.step(x, y).loss)


# --- a loss that is not finite ------------------------------------------------------------------


def finite(path: Path) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in load_file(path).values())


def test_training_stops_at_a_loss_that_is_not_finite_and_keeps_the_last_save(
    folder: Path, tmp_path: Path
) -> None:
    state, report = tmp_path / "state", tmp_path / "report"
    arguments = [str(word) for word in ("run", folder / "net.poet", "--data", folder / "d.npz", "-o", state)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    kept = state.read_bytes()
    more = [*arguments, "--resume", str(state), "--epochs", "50", "--lr", "1e30"]
    done = CliRunner().invoke(app, more)
    assert done.exit_code == 1
    assert f"; {state} was not written; a smaller learning rate (--lr) may help" in done.stderr
    assert "poet: the loss of step" in done.stderr
    assert state.read_bytes() == kept
    done = CliRunner().invoke(app, [*more, "--allow-nan", "--json", str(report)])
    assert done.exit_code == 0, done.stderr
    assert "epoch 2: loss not finite" in done.stdout
    assert json.loads(report.read_text())["epochs"][-1]["loss"] is None
    assert not finite(state)


def test_a_state_that_is_not_finite_does_not_replace_one_that_is(folder: Path, tmp_path: Path) -> None:
    """The last update of an epoch may overflow where every loss was fine."""
    state = tmp_path / "state"
    with Trainer.open(folder / "net.poet", seed=0) as trainer:
        samples = load_samples(folder / "d.npz", trainer.plan)
        training = fit(trainer, samples, epochs=9, save_path=state, save_every=1)
        step = trainer.step

        def overflowing(inputs: tuple[Tensor, ...], targets: Tensor) -> object:
            trainer.learning_rate = math.inf if trainer.steps == 2 else 0.1
            return step(inputs, targets)

        trainer.step = overflowing  # type: ignore[method-assign, assignment]
        with pytest.raises(
            NotFinite, match=r"after step 3 \S+ is not finite; .*state has the state after step 2"
        ):
            list(training)
    assert finite(state)
    with Trainer.open(folder / "net.poet", resume=state) as trainer:
        assert trainer.steps == 2
