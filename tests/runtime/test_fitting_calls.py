"""Calls that fit what their kernels trust are taken: nets with the less common of them train as in torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import hand_net
from helpers.pace import with_slow
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from poet.errors import PlanError
from poet.frontend.trace import trace_training_step
from poet.ir.optimizer import OptimizerSpec
from poet.runtime.kernels import arguments
from poet.runtime.kernels.signatures import NUMBERS, SIGNATURES, bound, looked_at, signature_missed
from poet.verification import verify


class Net(nn.Module):
    """``run`` of some modules and an input."""

    def __init__(self, run: Callable[..., Any], *parts: nn.Module) -> None:
        super().__init__()
        self.run, self.parts = run, nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Any:
        return self.run(x, *self.parts)


def _attention(key_heads: int, *, causal: bool) -> nn.Module:
    """Of four heads, each with the keys of its own or of several."""

    def run(x: Any, query: Any, key: Any, value: Any, last: Any) -> Any:
        q, k, v = (part(x).unflatten(2, (-1, 4)).transpose(1, 2) for part in (query, key, value))
        mask = None if causal else torch.zeros(7, 7)
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
        return last(made.transpose(1, 2).flatten(2)).mean(1)

    sizes = (16, 4 * key_heads, 4 * key_heads)
    return Net(run, *(nn.Linear(8, size) for size in sizes), nn.Linear(16, 3))


def _bags(
    mode: str, *, padding: int | None = None, has_last: bool = False, by_count: bool = False
) -> nn.Module:
    """Bags of two, no and four words."""

    def run(x: Any, table: Any, last: Any) -> Any:
        begins = torch.tensor([0, 2, 2, 6] if has_last else [0, 2, 2])
        return last(table(x.argsort(), begins))

    given: dict[str, Any] = {
        "padding_idx": padding,
        "include_last_offset": has_last,
        "scale_grad_by_freq": by_count,
    }
    return Net(run, nn.EmbeddingBag(6, 4, mode=mode, **given), nn.Linear(4, 3))


def _weighted_bags(x: Any, table: Any, last: Any) -> Any:
    weights = table.weight.sum(1)[:1].expand(6)
    begins = torch.tensor([0, 2, 2, 6])
    given: dict[str, Any] = {"mode": "sum", "per_sample_weights": weights, "include_last_offset": True}
    return last(F.embedding_bag(x.argsort(), table.weight, begins, **given))


def _plain_bags(x: Any, table: Any, last: Any) -> Any:
    return last(torch.embedding_bag(table.weight, x.argsort(), torch.tensor([0, 2, 2]))[0])


def _lstm(*, bias: bool, bidirectional: bool) -> nn.Module:
    layer = nn.LSTM(8, 5, bias=bias, bidirectional=bidirectional, batch_first=True)
    return Net(lambda x, lstm, last: last(lstm(x)[0][:, -1]), layer, nn.Linear(10 if bidirectional else 5, 3))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "two key heads": (lambda: _attention(2, causal=True), (3, 7, 8)),
    "one key head, masked": (lambda: _attention(1, causal=False), (3, 7, 8)),
    **{
        f"{mode} of bags{end}{pad}": (
            partial(_bags, mode, has_last=bool(end), padding=2 if pad else None), (6,)
        )
        for mode in ("sum", "mean", "max") for end in ("", ", last end") for pad in ("", ", padding")
    },
    "bags by counts": (lambda: _bags("mean", by_count=True), (6,)),
    "bags with weights": (lambda: Net(_weighted_bags, nn.Embedding(6, 4), nn.Linear(4, 3)), (6,)),
    "bags with torch's defaults": (lambda: Net(_plain_bags, nn.Embedding(6, 4), nn.Linear(4, 3)), (6,)),
    "LSTM without biases": (lambda: _lstm(bias=False, bidirectional=True), (3, 4, 8)),
    "LSTM": (lambda: _lstm(bias=True, bidirectional=False), (3, 4, 8)),
}  # fmt: skip


FAST = ("two key heads", "one key head, masked", "sum of bags", "max of bags, last end, padding", "LSTM")


@pytest.mark.parametrize("name", with_slow(NETS, NETS.keys() - {*FAST, "bags with weights"}))
def test_nets_with_fitting_calls_train_as_in_torch(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    build, shape = NETS[name]
    net = build()
    step = trace_training_step(
        net, torch.randn(shape), optimizer=OptimizerSpec("momentum", lr=0.1), targets=torch.tensor([0, 2, 1])
    )
    hand_net.write_step(tmp_path / "p", step, None)
    verify(tmp_path / "p", module=copy.deepcopy(net), steps=2, threads=(1,)).require()


# --- calls that autograd makes ----------------------------------------------------------------------


class _Held(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Each call is held against its kernel's signature before it is made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if name in SIGNATURES:
            self.seen.add(name)
            given, named = _types(args), _types(kwargs or {})
            assert signature_missed(name, *given, **named) is None, (name, given, named)
            if name in NUMBERS:
                looked_at(name, lambda *_, **__: None, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _types(item: Any) -> Any:
    if isinstance(item, Tensor):
        return arguments.tensor_type(item, "a tensor")
    if isinstance(item, dict):
        return {key: _types(value) for key, value in item.items()}
    return tuple(map(_types, item)) if isinstance(item, list | tuple) else item


SCORES = torch.rand(4, 5, requires_grad=True)
CLASSES = torch.tensor([0, 4, 2, 1])
CALLS: dict[str, tuple[str, Callable[[], Tensor]]] = {
    "a class of one sample": ("nll_loss_backward", lambda: F.nll_loss(SCORES[0], CLASSES[0])),
    "a loss for one sample": (
        "nll_loss_backward", lambda: F.nll_loss(SCORES[0], CLASSES[0], reduction="none")
    ),
    "no sample": ("nll_loss_backward", lambda: F.nll_loss(SCORES[:0], CLASSES[:0], reduction="sum")),
    "weights of classes": (
        "multi_margin_loss_backward", lambda: F.multi_margin_loss(SCORES, CLASSES, weight=torch.rand(5))
    ),
    "windows of one number": ("unfold_backward", lambda: SCORES[0, 0].unfold(0, 1, 1)),
    "no row": ("_softmax_backward_data", lambda: SCORES[:, :0].softmax(1)),
    "no picture": (
        "_adaptive_avg_pool2d_backward", lambda: F.adaptive_avg_pool2d(SCORES[:0].reshape(0, 5, 1, 1), (2, 3))
    ),
    "no distance": ("_cdist_backward", lambda: torch.cdist(SCORES[:0], SCORES[:2], p=1.0)),
    "channels last": (
        "native_group_norm_backward",
        lambda: F.group_norm((SCORES.view(1, 5, 2, 2) * 2).to(memory_format=torch.channels_last), 5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_autograd_fit(name: str) -> None:
    target, made = CALLS[name]
    with _Held() as held:
        result = made()
        torch.autograd.backward([result], [torch.ones_like(result)])
    assert f"aten.{target}.default" in held.seen


def test_what_a_call_leaves_out_is_torchs_default() -> None:
    target = "aten._embedding_bag.default"
    assert bound(target, (1, 2, 3), {"mode": 2}) == (1, 2, 3, False, 2, False, None, False, -1)
    assert bound(target, (1, 2, 3), {"indices": 2}) is None


def test_a_net_that_torch_does_not_survive_is_refused() -> None:
    """Group norm of a picture that has its channels last and no gradient."""
    net = nn.Sequential(nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3))
    picture = torch.rand(3, 4, 4, 4).to(memory_format=torch.channels_last)
    with pytest.raises(PlanError, match=r"calls aten\.native_group_norm_backward\.default with"):
        trace_training_step(net, picture)
