"""The table of what training scripts need: a script for each line, run, so that no line can rot."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from poet.cli.main import app
from torch import Tensor, nn
from torch.optim import lr_scheduler
from typer.testing import CliRunner

import poet
from poet.planning.auxiliary import plan_again
from poet.planning.planned import Planned
from poet.programs.pt2 import export_pt2
from poet.runtime import Trainer
from poet.runtime.runs.fit import fit, load_samples
from poet.verification import verify

PAGE = Path(__file__).parents[2] / "docs" / "training-loops.md"
BATCH = 4


class Net(nn.Module):
    """Small, with what has a state and what draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.body(x))
        return made


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def batch(number: int = 0, size: int = BATCH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(size, 6, generator=generator)
    return inputs, torch.randint(3, (size,), generator=generator)


def planned(module: nn.Module | None = None, inputs: Any = None, **options: Any) -> Planned:
    given = batch()[0] if inputs is None else inputs
    settings: dict[str, Any] = {"device": "rpi4b", "ram": None, "time_limit_seconds": 1.0}
    return poet.plan(module or net(), given, **{**settings, **options})


@dataclass(frozen=True)
class Desk:
    """Where a script works: a folder with a plan, data, and the command line."""

    folder: Path

    def made(self, *given: Any, **options: Any) -> Path:
        path = self.folder / "own.poet"
        path.unlink(missing_ok=True)
        planned(*given, **options).save(path)
        return path

    @property
    def plan(self) -> Path:
        return self.folder / "plan.poet"

    def run(self, *words: object) -> str:
        done = CliRunner().invoke(app, ["run", *map(str, words)])
        assert done.exit_code == 0, done.output
        return done.output


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    folder = tmp_path_factory.mktemp("desk")
    planned(optimizer="adamw:lr=0.01").save(folder / "plan.poet")
    inputs, targets = batch(size=18)
    np.savez(folder / "data.npz", inputs=inputs.numpy(), targets=targets.numpy())
    return Desk(folder)


def _step(desk: Desk) -> None:
    with Trainer.open(desk.plan) as trainer:
        losses = [trainer.step(*batch()).loss for _ in range(20)]
    assert losses[-1] < losses[0]


def _modes(desk: Desk) -> None:
    verify(desk.plan, module=net(), steps=2, threads=(1,)).require()


def _evaluation(desk: Desk) -> None:
    with Trainer.open(desk.plan) as trainer:
        (scores,) = trainer.predict(batch()[0])
        assert trainer.evaluate([batch()], ["accuracy"]).metrics.keys() == {"accuracy"}
    with torch.no_grad():
        assert torch.equal(scores, net().eval()(batch()[0]))


def _metrics(desk: Desk) -> None:
    with Trainer.open(desk.plan) as trainer:
        found = trainer.evaluate([batch()], ["accuracy", "iou"]).metrics
        (scores,) = trainer.predict(batch()[0])
    assert found["accuracy"] == float((scores.argmax(1) == batch()[1]).float().mean())
    with Trainer.open(desk.made(loss="mse", evaluation=True)) as trainer:
        place, target = batch()[0], torch.zeros(BATCH, 3)
        (scores,) = trainer.predict(place)
        found = trainer.evaluate([(place, target)], ["mae"]).metrics
    assert found["mae"] == pytest.approx(float(scores.abs().mean()))


def _best(desk: Desk) -> None:
    data, best = desk.folder / "data.npz", desk.folder / "best.safetensors"
    told = desk.run(
        desk.plan, "--data", data, "--epochs", 30, "--lr", 0.5, "--validate", data, "--best", best,
        "--patience", 1,
    )  # fmt: skip
    assert best.exists(), told


def _last_batch(desk: Desk) -> None:
    with Trainer.open(desk.plan) as trainer:
        assert trainer.evaluate([batch(), batch(1, size=2)]).loss is not None
    with Trainer.open(desk.made(shapes=[batch(size=2)[0]])) as trainer:
        trainer.step(*batch())
        trainer.step(*batch(size=2))


def _losses(desk: Desk) -> None:
    scores = {
        "mse",
        "l1",
        "huber:delta=0.5",
        "smooth-l1",
        "bce-with-logits",
        "kl-div",
        "distillation:temperature=4",
    }
    for loss in ("cross-entropy:weight=1/2/0.5", "focal:gamma=1", *sorted(scores)):
        with Trainer.open(desk.made(loss=loss)) as trainer:
            inputs, classes = batch()
            targets = torch.rand(BATCH, 3).softmax(1) if loss in scores else classes
            assert np.isfinite(trainer.step(inputs, targets).loss)


def _own_loss(desk: Desk) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets) + 0.01 * outputs.square().mean()

    with Trainer.open(desk.made(loss=loss, targets=batch()[1])) as trainer:
        assert trainer.step(*batch()).loss > 0


def _optimizers(desk: Desk) -> None:
    for name in (
        "momentum:nesterov=yes",
        "adam:amsgrad=yes",
        "rmsprop:centered=yes",
        "lion:maximize=yes",
        "radam",
        "nadam",
    ):
        verify(desk.made(optimizer=name), module=net(), steps=2, threads=(1,)).require()


def _groups(desk: Desk) -> None:
    module = net()
    groups: list[dict[str, Any]] = [
        {"params": module.body.parameters()},
        {"params": module.head.parameters(), "lr": 0.5, "weight_decay": 0.0},
    ]
    path = desk.made(module, optimizer=torch.optim.AdamW(groups, lr=0.1))
    with Trainer.open(path) as trainer:
        assert trainer.learning_rates == (0.1, 0.5)


def _rates(desk: Desk) -> None:
    with Trainer.open(desk.plan) as trainer:
        scheduler = lr_scheduler.CosineAnnealingLR(trainer.optimizer, T_max=10)
        trainer.step(*batch())
        scheduler.step()
        assert 0 < trainer.learning_rate < 0.01
    desk.run(desk.plan, "--data", desk.folder / "data.npz", "--schedule", "cosine:warmup=2")


def _momenta(desk: Desk) -> None:
    with Trainer.open(desk.plan) as trainer:
        scheduler = lr_scheduler.OneCycleLR(trainer.optimizer, 0.1, total_steps=5)
        before = trainer.optimizer.param_groups[0]["betas"]
        trainer.step(*batch())
        scheduler.step()
        assert trainer.optimizer.param_groups[0]["betas"] != before


def _clipping(desk: Desk) -> None:
    spec = poet.OptimizerSpec("sgd", lr=0.1, clip_norm=0.1, clip_value=0.05)
    verify(desk.made(optimizer=spec), module=net(), steps=2, threads=(1,)).require()


def _micro(desk: Desk) -> None:
    with Trainer.open(desk.made(inputs=batch(size=2 * BATCH)[0], micro=2)) as trainer:
        trainer.step(*batch(size=2 * BATCH))
        trainer.accumulate(*batch(1))
        trainer.step(*batch(2))
        assert trainer.steps == 2


def _gradients(desk: Desk) -> None:
    seen: dict[str, Tensor] = {}
    with Trainer.open(desk.plan) as trainer:
        trainer.step(*batch(), on_gradient=lambda name, gradient: seen.update({name: gradient.clone()}))
        assert seen.keys() == trainer.parameters().keys()


def _part(desk: Desk) -> None:
    with Trainer.open(desk.made(train=["head.*"])) as trainer:
        before = trainer.parameters()
        trainer.step(*batch())
        after = trainer.parameters()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {"head.weight", "head.bias"}


class _InHalf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made: Tensor = self.net(x)
        return made.float()


def _precision(desk: Desk) -> None:
    verify(desk.made(_InHalf()), module=_InHalf(), steps=2, threads=(1,)).require()


def _resume(desk: Desk) -> None:
    state = desk.folder / "resumed.safetensors"
    with Trainer.open(desk.plan, seed=1) as trainer:
        trainer.step(*batch())
        trainer.save(state)
        loss = trainer.step(*batch(1)).loss
    with Trainer.open(desk.plan, resume=state) as trainer:
        assert trainer.steps == 1
        assert trainer.step(*batch(1)).loss == loss


def _power_cut(desk: Desk) -> None:
    """The newest save is damaged; 625 kills are in results/power-cuts.json."""
    state = desk.folder / "cut.safetensors"
    with Trainer.open(desk.plan, seed=1) as trainer:
        for number in range(2):
            trainer.step(*batch(number))
            trainer.save(state, keep_previous=True)
    state.write_bytes(state.read_bytes()[:-40])
    with Trainer.open(desk.plan, resume=state) as trainer:
        assert trainer.steps == 1


def _allowance(desk: Desk) -> None:
    given = (desk.plan, "--data", desk.folder / "data.npz", "--epochs", 1000)
    told = desk.run(*given, "--stop-after-joules", "10mJ")
    assert "the run ends: another step makes" in told, told


def _data(desk: Desk) -> None:
    inputs, targets = batch(size=8)
    folder = desk.folder / "arrays"
    folder.mkdir()
    np.save(folder / "inputs.npy", inputs.numpy())
    np.save(folder / "targets.npy", targets.numpy())
    safetensors.torch.save_file({"x": inputs, "y": targets}, desk.folder / "data.safetensors")
    lines = [
        ",".join(map(str, (*row.tolist(), int(label)))) for row, label in zip(inputs, targets, strict=True)
    ]
    (desk.folder / "data.csv").write_text("\n".join(lines) + "\n")
    (desk.folder / "own_samples.py").write_text(
        "def samples():\n    for n in range(8):\n        yield [0.1 * n] * 6, n % 3\n"
    )
    sys.path.insert(0, str(desk.folder))
    try:
        for data in (
            folder,
            desk.folder / "data.safetensors",
            desk.folder / "data.csv",
            "own_samples:samples",
        ):
            assert "epoch 1" in desk.run(desk.plan, "--data", data).lower()
    finally:
        sys.path.remove(str(desk.folder))
    with Trainer.open(desk.plan) as trainer:
        trainer.step(np.load(folder / "inputs.npy", mmap_mode="r")[:BATCH], targets[:BATCH].numpy())


def _order(desk: Desk) -> None:
    losses = []
    for _ in range(2):
        with Trainer.open(desk.plan, seed=3) as trainer:
            samples = load_samples(desk.folder / "data.npz", trainer.plan)
            losses.append([epoch.loss for epoch in fit(trainer, samples, epochs=2)])
    assert losses[0] == losses[1]


class _TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 3), nn.Linear(2, 1)

    def forward(self, x: Tensor, z: Tensor) -> dict[str, Tensor]:
        return {"scores": self.one(x), "place": self.two(z)}


def _several(desk: Desk) -> None:
    def loss(outputs: dict[str, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(outputs["scores"], targets[0]) + F.l1_loss(outputs["place"], targets[1])

    inputs = (batch()[0], torch.randn(BATCH, 2))
    targets = (batch()[1], torch.randn(BATCH, 1))
    with Trainer.open(desk.made(_TwoHeads(), inputs, loss=loss, targets=targets)) as trainer:
        assert trainer.step(inputs, targets).loss > 0


def _shapes(desk: Desk) -> None:
    path = desk.made(shapes=[batch(size=2)[0], batch(size=3)[0]])
    with Trainer.open(path) as trainer:
        for size in (4, 2, 3):
            trainer.step(*batch(size=size))


def _budgets(desk: Desk) -> None:
    with Trainer.open(desk.made(ram="64KiB", budgets=["16KiB"])) as trainer:
        trainer.step(*batch())
        trainer.set_budget("16KiB")
        trainer.step(*batch())
        trainer.set_budget("15KiB", planner=partial(plan_again, time_limit_seconds=0.0))  # the guard's
        trainer.step(*batch())
        assert trainer.steps == 3


def _wrapped(desk: Desk) -> None:
    wrapped, plain = poet.wrap(net(), batch()[0], ram="64KiB", device="rpi4b"), net()
    losses = []
    for module in (wrapped, plain):
        torch.manual_seed(1)
        optimizer = torch.optim.Adafactor(module.parameters())
        loss = F.cross_entropy(module(batch()[0]), batch()[1])
        torch.autograd.backward(loss)
        optimizer.step()  # type: ignore[no-untyped-call]
        losses.append(float(loss.detach()))
    assert losses[0] == losses[1]


def _models(desk: Desk) -> None:
    program = torch.export.export(net().train(), (batch()[0],))
    with Trainer.open(desk.made(program, evaluation=False)) as trainer:
        trainer.step(*batch())


def _back(desk: Desk) -> None:
    with Trainer.open(desk.plan) as trainer:
        trainer.step(*batch())
        net().load_state_dict(trainer.state_dict(), strict=True)


def _federated(desk: Desk) -> None:
    clients = pytest.importorskip("poet.integrations.flower")
    client = clients.PlanClient(desk.plan, lambda number: [batch()], name="one")
    weights, samples, _ = client.fit(client.get_parameters({}), {"round": 1})
    assert weights
    assert samples == len(batch()[0])


def _other_runtimes(desk: Desk) -> None:
    made = export_pt2(desk.made(nn.Linear(6, 3)), desk.folder / "step.pt2")
    loss, *_ = torch.export.load(desk.folder / "step.pt2").module()(*batch())
    assert made.calls > 0
    assert bool(loss.isfinite())


def _none(desk: Desk) -> None:
    """The page says that there is none yet."""


SCRIPTS: dict[str, Callable[[Desk], None]] = {
    "forward, backward, update": _step,
    "dropout, batch norm, module state": _modes,
    "evaluation, prediction": _evaluation,
    "metrics": _metrics,
    "best state, early stop": _best,
    "a last, smaller batch": _last_batch,
    "losses": _losses,
    "a loss of one's own": _own_loss,
    "optimizers": _optimizers,
    "parameter groups": _groups,
    "learning-rate schedule": _rates,
    "momentum or betas that change over time": _momenta,
    "clipping by value or norm": _clipping,
    "gradient accumulation, micro-batches": _micro,
    "gradients for one's own use": _gradients,
    "fine-tuning a part": _part,
    "mixed precision": _precision,
    "stop and go on": _resume,
    "power cuts": _power_cut,
    "a budget of energy, time or wear": _allowance,
    "data": _data,
    "order of samples": _order,
    "several inputs, outputs, targets": _several,
    "other batch sizes, lengths": _shapes,
    "memory that shrinks": _budgets,
    "a loop that exists already": _wrapped,
    "federated training": _federated,
    "models": _models,
    "trained weights back": _back,
    "other runtimes": _other_runtimes,
    "several devices": _none,
}


@pytest.mark.slow
@pytest.mark.parametrize("need", SCRIPTS)
def test_a_script_takes_what_the_table_says(need: str, desk: Desk) -> None:
    SCRIPTS[need](desk)


def test_every_line_of_the_table_has_a_script() -> None:
    lines = PAGE.read_text().partition("| need | here |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    table = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    assert [*table] == [*SCRIPTS]
    assert [need for need, line in table.items() if line.endswith("| not yet |")] == ["several devices"]
