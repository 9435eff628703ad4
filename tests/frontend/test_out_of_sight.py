"""What a trace cannot see is planned right, refused in a line, or warned of by name, by plan and by wrap.

Each row trains four steps beside plain PyTorch of the same module, bit for bit, with recomputation.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.out_of_sight import FAST, LATER, ROWS, Net, on_weight, same, with_parts
from helpers.pace import with_slow
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint

import poet
from poet.errors import InputError, ModelError, PoetError
from poet.runtime import Trainer
from poet.verification import verify

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad", "ignore:Full backward hook")
]
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(9))
Y = torch.randn(6, 4, generator=torch.Generator().manual_seed(8))
ASKED: dict[str, Any] = {
    "device": "rpi4b", "ram": None, "time_limit_seconds": 1.0, "minimise": "ram", "paging": False,
}  # fmt: skip
STEPS = 4


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    random.seed(1)
    np.random.seed(2)
    return make()


def _trained(net: Any, module: nn.Module) -> list[Tensor]:
    """Losses and all tensors after each step of a plain loop, and torch's generator at the end."""
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.05, foreach=False)
    found: list[Tensor] = []
    torch.manual_seed(3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.mse_loss(net(X.clone()), Y)
        torch.autograd.backward(loss)
        optimizer.step()
        found += [loss.detach(), *(item.clone() for item in (*module.parameters(), *module.buffers()))]
    return [*found, torch.get_rng_state()]


def _planned(make: Callable[[], nn.Module], path: Path) -> list[Tensor]:
    net, found = _made(make), list[Tensor]()
    asked = {**ASKED, "loss": "mse", "optimizer": "sgd:lr=0.05", "evaluation": False}
    poet.plan(net, X, **asked).save(path)
    with Trainer.open(path, seed=3) as trainer:
        for _ in range(STEPS):
            loss = trainer.step(X, Y).loss
            state = trainer.state_dict()
            names = [name for name, _ in (*net.named_parameters(), *net.named_buffers())]
            found += [torch.tensor(loss), *(state[name].clone() for name in names)]
    verify(path, module=_made(make), steps=1).require()
    return found


def _wrapped(make: Callable[[], nn.Module]) -> list[Tensor]:
    net = _made(make)
    return _trained(poet.wrap(net, X, **ASKED), net)


@pytest.mark.parametrize("way", ["plan", "wrap"])
@pytest.mark.parametrize("name", with_slow(ROWS, {*ROWS} - FAST))
def test_planned_right_refused_or_named(name: str, way: str, tmp_path: Path) -> None:
    make, *said = ROWS[name]
    expected = said[way == "wrap"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = _made(make)
        plain = _trained(net, net)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = _planned(make, tmp_path / "plan.poet") if way == "plan" else _wrapped(make)
        except PoetError as error:
            refusal = str(error)
        else:
            refusal = ""
    if refusal:
        assert expected, refusal
        assert re.search(expected, refusal), refusal
        assert "\n" not in refusal
        return
    told = [str(item.message) for item in caught if Path(poet.__file__).parent in Path(item.filename).parents]
    assert any(re.search(expected, line) for line in told) if expected else not told, told
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, plain, strict=False))


def _of_optimizer(change: Callable[[torch.optim.Optimizer], object]) -> None:
    net = Net(same)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    change(optimizer)
    poet.plan(net, X, loss="mse", optimizer=optimizer, evaluation=False, **ASKED)


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer: optimizer.register_step_pre_hook(lambda *given: None),
        lambda optimizer: optimizer.register_step_post_hook(lambda *given: None),
        lambda optimizer: setattr(optimizer, "step", print),
    ],
)
def test_hooks_of_an_optimizer_are_refused(change: Callable[[torch.optim.Optimizer], object]) -> None:
    with pytest.raises(InputError, match="SGD has hooks on its steps, or another step"):
        _of_optimizer(change)


def test_hooks_of_all_optimizers_are_refused_and_schedulers_named() -> None:
    handle = register_optimizer_step_post_hook(lambda *given: None)
    try:
        with pytest.raises(InputError, match="has hooks on its steps"):
            _of_optimizer(lambda optimizer: None)
    finally:
        handle.remove()
    with pytest.warns(UserWarning, match="SGD has a learning-rate scheduler, which plans never call"):
        _of_optimizer(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1))


def test_hooks_of_all_modules_are_planned_and_not_wrapped(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return Net(same)

    wrapped = poet.wrap(make(), X, **ASKED)
    handle = register_module_forward_hook(lambda m, i, o: o * 2 if isinstance(m, nn.Linear) else None)
    try:
        net = _made(make)
        plain = _trained(net, net)
        found = _planned(make, tmp_path / "plan.poet")
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, plain, strict=False))
        for call in (lambda: poet.wrap(make(), X, **ASKED), lambda: wrapped(X)):
            with pytest.raises(InputError, match="a hook for all modules"):
                call()
    finally:
        handle.remove()


def test_a_hook_that_comes_after_wrapping_is_refused() -> None:
    wrapped = poet.wrap(Net(same), X, **ASKED)
    handle = wrapped.module.get_submodule("a").register_forward_hook(lambda m, i, o: o * 2)
    with pytest.raises(InputError, match="was registered or removed since it was wrapped"):
        wrapped(X)
    handle.remove()
    wrapped(X)


def test_a_plan_that_trains_nothing_is_refused() -> None:
    asked = {**ASKED, "evaluation": False, "loss": "mse"}
    net = nn.Sequential(nn.Linear(8, 4))
    with pytest.raises(
        ModelError, match=r"does not depend on any parameter.*trains nothing in its block.*0.bias"
    ):
        poet.plan(_Whole(net), X, **asked)
    with pytest.raises(ModelError, match="gives no parameter a gradient: nothing to train"):
        poet.plan(_Beside(), X, **asked)


class _Whole(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.net, x, use_reentrant=True)


class _Beside(nn.Module):
    """Whose output has a gradient, though none of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        return x[:, :4].detach().requires_grad_() * 2


def test_verify_lends_the_module_and_gives_it_back(tmp_path: Path) -> None:
    net: Any = Net(same, on_weight(lambda g: g * 2))
    poet.plan(net, X, loss="mse", evaluation=False, **ASKED).save(tmp_path / "plan.poet")
    torch.autograd.backward(net(X).sum())
    own = {name: (item, item.data_ptr(), item.clone(), item.grad) for name, item in net.named_parameters()}
    report = verify(tmp_path / "plan.poet", module=net, steps=1)
    assert report.exact
    assert report.steps == 3
    for name, item in net.named_parameters():
        before, place, content, gradient = own[name]
        assert item is before
        assert item.data_ptr() == place
        assert torch.equal(item, content)
        assert item.grad is gradient
    net.a.weight.register_hook(lambda g: g + 1)
    assert not verify(tmp_path / "plan.poet", module=net, steps=1).exact


def test_what_python_keeps_is_put_back(tmp_path: Path) -> None:
    def run(s: Any, h: Tensor) -> Tensor:
        s.n += 1
        s.held.append(h)
        s.named["n"] = s.n
        return h

    net: Any = Net(run, with_parts(held=list, named=dict))
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    with pytest.warns(UserWarning, match=LATER):
        poet.plan(net, X, loss="mse", evaluation=False, **ASKED)
    assert (net.n, net.held, net.named) == (0, [], {})
    assert (random.getstate(), str(np.random.get_state())) == states[:2]
    assert torch.equal(torch.get_rng_state(), states[2])
