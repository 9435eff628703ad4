"""What is compiled, scripted or wrapped is planned as the module that it was made from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from helpers.pace import with_slow
from torch import Tensor, nn

import poet
from poet.frontend.eager import original, without_short_cuts
from poet.frontend.trace import trace_training_step
from poet.runtime import Trainer
from poet.verification import verify

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
