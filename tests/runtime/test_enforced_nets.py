"""Every net of the tests at three tight budgets, in a process that the kernel confines, on the worst data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from helpers import hand_net, nets, other_nets, sequence_nets, strange_nets, tiny_nets
from helpers.schedules import keep_everything
from torch import Tensor, nn

from poet.api import plan, prepare
from poet.enforce import enforce
from poet.frontend.trace import trace_training_step
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.plans.plan_file import PlanFile, write_plan
from poet.plans.run_request import RunRequest
from poet.plans.training_plan import Plan
from poet.problem import Limits
from poet.runtime import Trainer, load_samples, native
from poet.runtime.data.random_batches import random_batch
from poet.runtime.runs import confined
from poet.runtime.storage.state import raw_tensor
from poet.runtime.system.confinement import Rehearsal
from poet.solvers import minimum_ram_bytes

pytestmark = pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")

SHARES = 0.02, 0.15, 0.4
"""Of the way from the lower bound to keeping everything; room for the rounding of two parts comes on top."""
PAGES_BYTES = 2 * 4096


@dataclass(frozen=True)
class Case:
    """How to build a net, what to give it, and what it is trained with."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    targets: Callable[[], Tensor | None] = lambda: None
    loss: str = "cross-entropy"
    train: tuple[str, ...] | None = None


class Last(nn.Module):
    """A recurrent layer that is read at its last moment."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer, self.out = layer, nn.Linear(layer.hidden_size * (1 + layer.bidirectional), 5)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.layer(x)[0][:, -1])
        return scores


class Lines(nn.Module):
    """A CRNN: convolutions over a line of text, a recurrent layer over its columns, characters."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        first, second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        narrower = nn.MaxPool2d(2), nn.MaxPool2d((2, 1))
        self.columns = nn.Sequential(first, nn.ReLU(), narrower[0], second, nn.ReLU(), narrower[1])
        self.layer, self.out = kind(128, 32, bidirectional=True, batch_first=True), nn.Linear(64, 11)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.layer(self.columns(x).flatten(1, 2).transpose(1, 2))[0])
        return scores


def last(kind: Callable[..., nn.RNNBase], *sizes: int, bidirectional: bool = False) -> nn.Module:
    return Last(kind(*sizes, batch_first=True, bidirectional=bidirectional))


def reader() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 20))


def normal(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(shape),)


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    layers: dict[str, Callable[..., nn.RNNBase]] = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}
    for name, kind in layers.items():
        twice, both_ways = partial(last, kind, 64, 128, 2), partial(last, kind, 32, 64, bidirectional=True)
        found[f"two layers of {name}"] = Case(twice, normal(8, 60, 64))
        found[f"{name}, both ways"] = Case(both_ways, normal(4, 100, 32))
        found[f"lines by {name}"] = Case(partial(Lines, kind), normal(4, 1, 16, 64), loss="ctc:length=8")
    found["reader"] = Case(reader, normal(16, 100, 16), loss="ctc:length=50")
    for name, tiny in nets.NETS.items():
        found[name] = Case(tiny.build, tiny.inputs, tiny.targets, tiny.loss, tiny.train)
    for name, net in sequence_nets.NETS.items():
        found[f"sequence {name}"] = Case(net.build, normal(*net.shape))
    for name, micro in (*tiny_nets.MICRO_NETS.items(), *other_nets.OTHER_NETS.items()):
        found[f"micro {name}"] = Case(micro.build, normal(*micro.inputs), loss=micro.loss)
    for name, strange in strange_nets.NETS.items():
        found[f"strange {name}"] = Case(strange.build, strange.inputs, loss=strange.loss)
    for name, usual in zoo.NETS.items():
        inputs, targets = partial(usual.small.inputs, 4), partial(usual.small.targets, 4)
        found[f"usual {name}"] = Case(usual.small.build, inputs, targets, usual.loss)
    return found


CASES = cases()


def sequences(like: Tensor) -> list[Tensor]:
    """For CTC: the longest targets without and with repeats, none, and ragged ones."""
    length = like.shape[1]
    ragged = torch.randint(1, 4, like.shape)
    ragged[0, length // 2 :], ragged[-1, 1:] = -1, -1
    rising = ((torch.arange(length) % 2) + 1).expand_as(like)
    return [rising, torch.ones_like(like), torch.full_like(like, -1), ragged]


def write_data(of: Plan, path: Path) -> None:
    """Samples for several steps."""
    batches = [random_batch(of, number) for number in range(2)]
    if of.request.loss.startswith("ctc"):
        inputs, targets = batches[0]
        assert isinstance(targets, Tensor)
        batches += [(inputs, worst) for worst in sequences(targets)]
    columns: list[tuple[Tensor, ...]] = []
    for inputs, targets in batches:
        given = () if targets is None else targets if isinstance(targets, tuple) else (targets,)
        columns.append((*inputs, *given))
    joined = [torch.cat(column).numpy() for column in zip(*columns, strict=True)]
    named: dict[str, Any] = dict(zip(of.graph.inputs, joined, strict=True))
    np.savez(path, **named)


@pytest.mark.filterwarnings("ignore:no evaluation is planned:UserWarning")  # of nets that write in eval mode
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_confined_training_stays_in_its_budget(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    net, inputs = case.build(), case.inputs()
    given: dict[str, Any] = {
        "device": "x86-host",
        "loss": case.loss,
        "targets": case.targets(),
        "train": case.train,
    }
    problem = prepare(net, inputs, **given).problem
    most, least = keep_everything_bytes(problem), minimum_ram_bytes(problem, Limits()).bytes
    for share in SHARES:
        ram = budget_between(least, most, share) + PAGES_BYTES
        made = plan(net, inputs, ram=ram, time_limit_seconds=1.0, **given)
        path, data = tmp_path / f"{share}.poet", tmp_path / f"{share}.npz"
        made.save(path)
        write_data(made.plan, data)
        done = enforce(
            RunRequest(str(path), str(data), ram, epochs=2, seed=0, threads=1), on_epoch=lambda _: None
        )
        assert done.plan.peak_bytes is not None
        assert done.plan.peak_bytes <= ram, (share, done.plan.memory)
        assert done.plan.steps == 2 * (6 if case.loss.startswith("ctc") else 2)


def test_a_further_training_takes_no_more_than_was_rehearsed(tmp_path: Path) -> None:
    """A plan of many requests, which took more to open than was left for it."""
    torch.manual_seed(0)
    net = Last(nn.GRU(8, 8, batch_first=True))
    step = trace_training_step(net, torch.zeros(2, 12, 8))
    of = hand_net.problem(step.graph, kernels=step.kernels)
    made = hand_net.plan(
        of, step.graph, keep_everything(of), loss="cross-entropy", slack=0.5, kernels=step.kernels
    )
    stored = {name: raw_tensor(tensor) for name, tensor in step.tensors.items()}
    write_plan(tmp_path / "p", made, stored)
    write_data(made, tmp_path / "d.npz")
    budget_bytes = made.request.limits.ram_budget_bytes
    assert budget_bytes is not None
    request = RunRequest(str(tmp_path / "p"), str(tmp_path / "d.npz"), budget_bytes, seed=0)
    with PlanFile(tmp_path / "p") as file:
        samples = load_samples(request.data, made)
        idle_bytes = confined._idle_bytes(file, samples, request)
        with Rehearsal() as again, Trainer.of(file, seed=0) as trainer:
            for _ in range(6):
                trainer.step(*random_batch(made, 0))
        assert again.most_bytes <= idle_bytes + budget_bytes
