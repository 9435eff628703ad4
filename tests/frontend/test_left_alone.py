"""Attributes that a module's forward pass sets are left alone; looks at values are left out, or said.

What is compiled, scripted or wrapped is planned as the module that it was made from.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.pace import with_slow
from torch import Tensor, nn
from torch.nn.utils import prune

import poet
from poet.errors import InputError, PoetError
from poet.frontend.eager import original, without_short_cuts
from poet.frontend.trace import trace_training_step
from poet.runtime import Trainer
from poet.verification import verify


class _Keeping(nn.Module):
    """Makes a table at the first call, and keeps what it attended to, by length and in order."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.table: Tensor | None = None
        self.by_length: dict[int, Tensor] = {}
        self.seen: list[Tensor] = []
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None or len(self.table) < len(x):
            self.table = torch.arange(len(x)).float().sin().unsqueeze(1)
        self.calls += 1
        self.by_length[len(x)] = self.last = self.layer(x).softmax(1)
        self.seen.append(x)
        scores: Tensor = self.layer(x) + self.table[: len(x)]
        return scores


class _Pruned(nn.Module):
    """Weights that hooks put together, by torch's older tools."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 6), nn.Linear(6, 3)
        prune.l1_unstructured(self.first, "weight", amount=0.5)  # type: ignore[no-untyped-call]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            torch.nn.utils.weight_norm(self.out)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(torch.tanh(self.first(x)))
        return scores


class _Gaussian(nn.Module):
    """Losses of distributions, which look at their parameters unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mean, spread = self.layer(x).chunk(2, 1)
        of_x = torch.distributions.Normal(mean, spread.exp())
        apart = torch.distributions.kl_divergence(of_x, torch.distributions.Normal(0.0, 1.0)).mean()
        sides: Any = torch.distributions.Categorical(logits=self.layer(x))
        likely = -sides.log_prob((y[:, 0] > 0).long()).mean()
        near = F.gaussian_nll_loss(of_x.rsample(), y, F.softplus(spread), full=True, reduction="sum")
        loss: Tensor = apart + likely + near + F.gaussian_nll_loss(mean, y, F.softplus(spread[:, 0]))
        return loss


class _Bounded(nn.Module):
    """Wants inputs from 0 to 1, which random ones are not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.binary_cross_entropy(torch.sigmoid(self.layer(x)), x)


def _planned(module: nn.Module, inputs: tuple[Tensor, ...], loss: str, path: Path) -> None:
    poet.plan(module, inputs, device="rpi4b", ram=None, loss=loss, time_limit_seconds=1.0).save(path)


def test_a_module_keeps_nothing_of_a_trace(tmp_path: Path) -> None:
    module = _Keeping()
    before = {name: copy.copy(value) for name, value in vars(module).items() if name[0] != "_"}
    with pytest.warns(UserWarning, match=r"changes _Keeping.calls, .* in every pass"):
        _planned(module, (torch.randn(2, 4),), "cross-entropy", tmp_path / "plan.poet")
    assert {name: value for name, value in vars(module).items() if name[0] != "_"} == before
    with pytest.warns(UserWarning, match=r"changes _Keeping.calls, .* in every pass"):
        wrapped = poet.wrap(module, torch.randn(2, 4), device="rpi4b", ram=None)
    assert module.table is None
    wrapped.eval()
    assert wrapped(torch.randn(3, 4)).shape == (3, 3)
    assert type(module.last) is Tensor
    assert verify(tmp_path / "plan.poet", module=_Keeping(), steps=2).exact


def test_weights_that_hooks_put_together_stay_real_and_are_verified(tmp_path: Path) -> None:
    module = _Pruned()
    _planned(module, (torch.randn(2, 4),), "cross-entropy", tmp_path / "plan.poet")
    assert type(module.first.weight) is type(module.out.weight) is Tensor
    assert verify(tmp_path / "plan.poet", module=module, steps=2).exact


@pytest.mark.slow
def test_distributions_are_planned_as_they_are_and_checked_in_plain_torch(tmp_path: Path) -> None:
    checks = torch.distributions.Distribution._validate_args
    module, inputs = _Gaussian(), (torch.randn(3, 4), torch.randn(3, 1))
    _planned(module, inputs, "output", tmp_path / "plan.poet")
    assert torch.distributions.Distribution._validate_args == checks
    assert verify(tmp_path / "plan.poet", module=module, steps=2).exact


def test_random_batches_that_the_model_refuses_are_said_in_one_line(tmp_path: Path) -> None:
    module = _Bounded()
    _planned(module, (torch.rand(3, 4),), "output", tmp_path / "plan.poet")
    with pytest.raises(
        InputError, match=r"plain PyTorch fails on the batch .* between 0 and 1; .*--data FILE"
    ):
        verify(tmp_path / "plan.poet", module=module)
    samples = torch.rand(7, 4)
    np.savez(tmp_path / "samples.npz", x=samples.numpy())
    assert verify(tmp_path / "plan.poet", module=module, data=tmp_path / "samples.npz").exact
    assert verify(tmp_path / "plan.poet", module=module, batches=[((samples[:3],), None)]).exact


class _Shared(nn.Module):
    """One part under two names, in parts that lie beside each other; and one parameter under two."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.a, self.b = nn.Sequential(inner, nn.Tanh()), nn.Sequential(inner, nn.Tanh())
        self.out, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.out.weight

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(self.out(self.b(self.a(x))))
        return scores


class _Moving(nn.Module):
    """Its forward pass registers, removes, fills and replaces what the module has."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.kept: dict[str, Any] = {"deep": [deque([0])]}
        self.cache = SimpleNamespace(last=None, seen=set[int]())
        self.hook = self.layer.register_forward_hook(self.once)

    def once(self, *_: object) -> None:
        self.hook.remove()

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "ramp"):
            self.register_buffer("ramp", torch.arange(4).float())
        self.kept["deep"][0].append(x)
        self.cache.last = x
        self.cache.seen.add(len(self.cache.seen))
        self.norm.eval()
        scores: Tensor = self.norm(self.layer(x)) + self.ramp
        self.layer.note = scores
        return scores


class _Merging(nn.Module):
    """An adapter that is added to its weight in evaluation mode, as LoRA layers are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.up = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 1))
        self.is_merged = False

    def train(self, mode: bool = True) -> _Merging:
        super().train(mode)
        if mode == self.is_merged:
            self.weight.data += (self.up @ self.up.T) * (-1 if mode else 1)
            self.is_merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight if self.is_merged else self.weight + self.up @ self.up.T)


class _Failing(_Shared):
    """Fails behind what it has set."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = super().forward(x)
        return self.seen.nonzero()


UNUSUAL: dict[str, Callable[[], nn.Module]] = {
    "shared": _Shared, "moving": _Moving, "merging": _Merging, "failing": _Failing, "pruned": _Pruned,
    "spectral": lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))),
}  # fmt: skip
_SHORT = {"device": "rpi4b", "time_limit_seconds": 1.0}
WAYS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "plan": lambda module, x: poet.plan(module, x, ram=None, **_SHORT),  # type: ignore[arg-type]
    "no room": lambda module, x: poet.plan(module, x, ram=16, **_SHORT),  # type: ignore[arg-type]
    "no loss": lambda module, x: poet.plan(module, x, ram=None, loss="ctc", **_SHORT),  # type: ignore[arg-type]
    "wrap": lambda module, x: poet.wrap(module, x, ram=None, **_SHORT),  # type: ignore[arg-type]
}


def _everything(module: nn.Module) -> list[object]:
    """Parts, tensors, hooks, modes and what else a module holds, by identity; of tensors the bits, too."""
    found: list[object] = []
    pending: list[object] = [module]
    while pending:
        item = pending.pop()
        found.append(id(item))
        if isinstance(item, Tensor):
            found += [item.requires_grad, item.data_ptr(), str(item.detach().tolist())]
            found += [id(item.grad)] if item.is_leaf else []
        elif isinstance(item, nn.Module | SimpleNamespace):
            pending.append(vars(item))
        elif isinstance(item, dict):
            found += [*item]
            pending += item.values()
        elif isinstance(item, list | tuple | set | deque):
            pending += item
    return found


FAST = {
    ("shared", "plan"),
    ("shared", "no room"),
    ("moving", "wrap"),
    ("failing", "plan"),
    ("merging", "no loss"),
}
CASES = [(name, way) for name in UNUSUAL for way in WAYS]


@pytest.mark.filterwarnings("ignore:no evaluation is planned", "ignore:.* in every pass")
@pytest.mark.parametrize(("name", "way"), with_slow(CASES, {*CASES} - FAST))
def test_a_module_is_as_before(name: str, way: str) -> None:
    """Also where nothing comes of it."""
    torch.manual_seed(0)
    module = UNUSUAL[name]().train()
    module.register_forward_pre_hook(lambda part, inputs: None)
    state, before = torch.get_rng_state(), _everything(module)
    try:
        WAYS[way](module, torch.randn(2, 4))
        assert (name, way) not in {("failing", "plan"), ("failing", "wrap")}
    except PoetError:
        assert way.startswith("no ") or name == "failing"
    assert _everything(module) == before
    state_after = torch.get_rng_state()
    torch.set_rng_state(state)
    torch.randn(2, 4)
    assert torch.equal(torch.get_rng_state(), state_after)


def test_a_shared_part_is_verified_and_a_merged_weight_is_left_out(tmp_path: Path) -> None:
    shared, merging = _Shared(), _Merging()
    _planned(shared, (torch.randn(2, 4),), "cross-entropy", tmp_path / "shared.poet")
    assert verify(tmp_path / "shared.poet", module=shared, steps=2).exact
    with pytest.warns(UserWarning, match=r"no evaluation is planned: the model's own eval\(\) changes w"):
        _planned(merging, (torch.randn(2, 4),), "cross-entropy", tmp_path / "merging.poet")
    assert verify(tmp_path / "merging.poet", module=merging, steps=2).exact


# --- what is compiled, scripted or wrapped -----------------------------------------------------

NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def _compiled_in_place() -> nn.Module:
    net = _net()
    net.compile(backend="eager")
    return net


class _Decorated(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)  # type: ignore[no-untyped-call]
        return _doubling()(y)


@functools.cache
def _doubling() -> Callable[[Tensor], Tensor]:
    """Not before a test asks for it: it imports torch's compiler, which takes seconds."""

    @torch.compile(backend="eager")
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    return doubled


COMPILED: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "whole": (lambda: torch.compile(_net(), backend="eager"), NAMES),  # type: ignore[dict-item, return-value]
    "part": (
        lambda: nn.Sequential(torch.compile(_net(), backend="eager")),  # type: ignore[call-overload]
        [f"0._orig_mod.{name}" for name in NAMES],
    ),
    "in place": (_compiled_in_place, NAMES),
    "a function": (lambda: _Decorated(*_net()), NAMES),
}
"""How a net may be compiled, and what its parameters are called in a plan: as in its own state dict."""


@pytest.mark.parametrize("way", with_slow(COMPILED, {"whole", "in place"}))
def test_a_compiled_net_is_planned_as_what_it_was_made_from(way: str, tmp_path: Path) -> None:
    build, names = COMPILED[way]
    module = build()
    planned = poet.plan(module, torch.randn(5, 4), device="rpi4b", ram="1MiB", time_limit_seconds=5.0)
    assert [item.name for item in planned.plan.graph.parameters] == names
    assert planned.plan.model.name != "OptimizedModule"
    planned.save(tmp_path / "net.poet")
    verify(tmp_path / "net.poet", module=module, steps=2, threads=(1, 2)).require()
    with Trainer.open(tmp_path / "net.poet") as trainer:
        original(module).load_state_dict(trainer.state_dict())


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_net_from_jit_trace_has_inputs_without_names() -> None:
    module = torch.jit.trace(_net(), torch.randn(5, 4))  # type: ignore[no-untyped-call]
    graph = trace_training_step(module, torch.randn(5, 4), measure=False).graph
    assert [item.name for item in graph.parameters] == NAMES
    assert graph.inputs == ("input0", "targets")


def test_marks_for_a_profiler_are_no_ops() -> None:
    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autograd.profiler.record_function("inner"):
                y: Tensor = self.inner(x)
            return y

    marked = trace_training_step(Marked(), torch.randn(5, 4), measure=False).graph
    assert [op.call.target for op in marked.ops] == [
        op.call.target
        for op in trace_training_step(nn.Linear(4, 3), torch.randn(5, 4), measure=False).graph.ops
    ]


def test_torchs_short_cut_for_frozen_encoders_is_off_and_comes_back() -> None:
    """It gives other bits than the ops it stands for, and cannot be traced."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval().requires_grad_(False)
    x = torch.randn(2, 7, 16)
    whole = layer(x)
    with without_short_cuts():
        spelled_out = layer(x)
    assert not torch.equal(whole, spelled_out)
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.equal(layer(x), whole)
