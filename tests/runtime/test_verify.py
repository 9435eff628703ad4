"""Verification: it finds nothing in an exact plan, and names the first tensor that differs otherwise."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import hand_net
from helpers.pace import with_slow
from helpers.schedules import keep_everything, random_schedule
from poet.cli.main import app
from torch import nn
from typer.testing import CliRunner

import poet
from poet.errors import InputError, ModelError, NotExact, PlanError
from poet.frontend.trace import trace_training_step
from poet.ir.graph import Call
from poet.plans.plan_file import PlanFile, read_plan, write_plan
from poet.runtime import Trainer
from poet.runtime.data.random_batches import batches_of, random_batch
from poet.runtime.storage.state import raw_tensor
from poet.verification import verify


@pytest.fixture
def path(tmp_path: Path) -> Path:
    of = hand_net.problem(hand_net.graph())
    hand_net.write(tmp_path / "net.poet", random_schedule(of, 5))
    return tmp_path / "net.poet"


def test_an_exact_plan(path: Path) -> None:
    report = verify(path, module=hand_net.net(), steps=2, threads=(1, 2))
    assert report.exact
    report.require()
    assert [comparison.threads for comparison in report.comparisons] == [1, 2]
    assert {comparison.tensors for comparison in report.comparisons} == {
        3 * (1 + 1 + 4 + 4)
    }  # three at least
    assert report.page_ins > 0
    assert report.recomputed_runs > 0


def test_the_module_and_torch_are_left_as_they_were(path: Path) -> None:
    module = hand_net.net(seed=9)  # other weights: those of the plan are used on both sides
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    threads = torch.get_num_threads()
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    assert verify(path, module=module, threads=(1,)).exact
    assert torch.equal(torch.rand(1), expected)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


WRONG: dict[str, tuple[str, Callable[[Call], Call]]] = {
    "the loss": ("op_h", lambda call: replace(call, target="aten.tanh.default")),
    "the gradient of first.weight": ("op_ga", lambda call: replace(call, args=(*call.args[:2], 0.1))),
    "first.bias": ("update_first.bias", lambda call: replace(call, args=(*call.args[:3], 0.1))),
}
"""Per tensor that differs first: an op of the net and a call that is valid there and wrong."""


@pytest.mark.parametrize("tensor", WRONG)
def test_a_wrong_plan_is_caught(tensor: str, tmp_path: Path) -> None:
    op_name, change = WRONG[tensor]
    right = hand_net.graph()
    ops = tuple(replace(op, call=change(op.call)) if op.name == op_name else op for op in right.ops)
    what = replace(right, ops=ops)
    of = hand_net.problem(what)
    write_plan(tmp_path / "p", hand_net.plan(of, what, keep_everything(of)), hand_net.stored(hand_net.net()))
    report = verify(tmp_path / "p", module=hand_net.net(), threads=(1,))
    assert not report.exact
    with pytest.raises(
        NotExact, match=rf"with 1 thread\(s\), step 1: {tensor} differs from plain PyTorch in"
    ):
        report.require()


WRITES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mul": lambda x: x.mul_(2.0),
    "relu": nn.functional.relu_,
    "dropout": lambda x: nn.functional.dropout(x, 0.5, True, inplace=True),
    "a slice": lambda x: (x[:, :2].add_(1.0), x)[1],
}


class _Writing(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.out, self.how = nn.Linear(8, 4), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(WRITES[self.how](x))
        return result


def _writing_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output, target.sub_(0.5))


def _saved(module: nn.Module, path: Path, **options: Any) -> None:
    x = torch.randn(6, 8)
    poet.plan(module, x, device="rpi4b", ram=None, time_limit_seconds=1.0, **options).save(path)


@pytest.mark.parametrize("how", with_slow(WRITES, {"relu", "a slice"}))
def test_a_forward_and_a_loss_that_write_what_they_are_given(how: str, tmp_path: Path) -> None:
    x, y = torch.randn(6, 8), torch.randn(6, 4)
    _saved(_Writing(how), tmp_path / "p", loss=_writing_loss, targets=y, evaluation=False)
    given = [((x.clone(),), y.clone())]
    for batches in (None, given):
        verify(tmp_path / "p", module=_Writing(how), loss=_writing_loss, batches=batches, steps=2).require()
    assert torch.equal(given[0][0][0], x)
    assert torch.equal(given[0][1], y)
    with pytest.raises(ModelError, match=r"_Writing writes its input x in place.*x = x.clone\(\)"):
        poet.wrap(_Writing(how), x, ram=None)


@pytest.mark.parametrize("is_whole", with_slow([True, False], {False}))
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_scripted_modules(is_whole: bool, tmp_path: Path) -> None:
    """torch copies their parameters by ops, and looks them up otherwise than those of other modules."""
    inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    module: nn.Module = torch.jit.script(inner)
    module = module if is_whole else nn.Sequential(module, nn.Tanh())
    _saved(module, tmp_path / "p")
    verify(tmp_path / "p", module=module, steps=3).require()
    x = torch.randn(6, 8)
    wrapped, losses = poet.wrap(module, x, ram=None, device="rpi4b", time_limit_seconds=1.0), []
    for either in (wrapped, module):
        torch.manual_seed(1)
        either.zero_grad()
        loss = either(x).square().mean()
        loss.backward()
        losses.append(
            (loss.detach(), *(item.grad.clone() for item in module.parameters() if item.grad is not None))
        )
    assert len(losses[0]) == 7
    assert all(torch.equal(*pair) for pair in zip(*losses, strict=True))


def test_sparse_batches_are_refused(path: Path) -> None:
    with Trainer.open(path) as trainer:
        inputs, targets = random_batch(trainer.plan, 0)
        with pytest.raises(InputError, match="a step is given dense tensors"):
            trainer.step(inputs[0].to_sparse(), targets)


def test_without_structure_a_module_is_needed(path: Path) -> None:
    with pytest.raises(PlanError, match="carries no ONNX structure"):
        verify(path)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head((self.table(ids) * mask.unsqueeze(-1)).sum(1))
        return result


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    module = Tokens()
    step = trace_training_step(
        module, (torch.zeros(50, 5, dtype=torch.int64), torch.zeros(50, 5)), measure=False
    )
    of = hand_net.problem(step.graph)
    plan = hand_net.plan(of, step.graph, keep_everything(of), loss="cross-entropy")
    weights = {name: raw_tensor(tensor) for name, tensor in step.tensors.items()}
    write_plan(tmp_path / "p", plan, weights)
    return tmp_path / "p"


def test_random_batches_stay_inside_tables_and_classes(tokens: Path) -> None:
    plan = read_plan(tokens)
    (ids, mask), classes = random_batch(plan, 0)
    assert isinstance(classes, torch.Tensor)
    assert (int(ids.min()), int(ids.max())) == (0, 6)
    assert (int(classes.min()), int(classes.max())) == (0, 2)
    assert mask.dtype == torch.float32
    assert torch.equal(random_batch(plan, 0)[0][0], ids)
    assert not torch.equal(random_batch(plan, 1)[0][0], ids)
    assert verify(tokens, module=Tokens(), threads=(1,)).exact


def test_samples_are_batches_in_their_order(path: Path, tmp_path: Path) -> None:
    with PlanFile(path) as file:
        inputs, targets = random_batch(file.plan, 3)
        assert isinstance(targets, torch.Tensor)
        x = torch.cat([inputs[0], inputs[0].flip(0), inputs[0][:1]])
        y = torch.cat([targets, targets, targets[:1]])
        np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
        found = batches_of(tmp_path / "data.npz", file.plan, 5)
    assert len(found) == 2
    for ((ours,), ours_targets), theirs in zip(found, (inputs[0], inputs[0].flip(0)), strict=True):
        assert torch.equal(ours, theirs)
        assert isinstance(ours_targets, torch.Tensor)
        assert torch.equal(ours_targets, targets)
    assert verify(path, module=hand_net.net(), data=tmp_path / "data.npz", threads=(1,)).exact


NETS = """
import torch
from poet.cli.main import app
from torch import nn
from typer.testing import CliRunner

def squares(outputs, targets):
    return (outputs - targets).square().mean()

def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))

def net_and_loss():
    return net(), squares, torch.zeros(3, 4)

def other():
    return nn.Linear(4, 3)

def number():
    return 5
"""


def test_a_module_is_named_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"nets_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    nets = importlib.import_module(name)
    x, y = torch.zeros(3, 4), torch.zeros(3, 2)
    words: dict[str, Any] = {
        "device": "rpi4b", "ram": None, "time_limit_seconds": 1.0, "evaluation": False,
    }  # fmt: skip
    poet.plan(nets.net(), x, loss="mse", **words).save("named.poet")
    poet.plan(nets.net(), x, loss=nets.squares, targets=y, **words).save("own.poet")

    def said(plan: str, function: str) -> tuple[int, str]:
        arguments = ["verify", plan, "--threads", "1", "--module", function]
        done = CliRunner().invoke(app, arguments)
        return done.exit_code, done.output

    for plan, function in (("named.poet", "net"), ("own.poet", "net_and_loss")):
        code, text = said(plan, f"{name}:{function}")
        assert code == 0, text
        assert "bitwise equal to plain PyTorch: yes" in text
    for function, line in (
        (f"{name}:net", "no file holds"),
        (f"{name}:other", "the plan is of another module"),
        (f"{name}:number", "it gives int, not a module"),
        (f"{name}:none", "has no function none"),
        ("nets.py", "is not MODULE:FUNCTION"),
    ):
        code, text = said("own.poet", function)
        assert (code, line in text) == (2, True), text
