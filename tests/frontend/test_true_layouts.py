"""Values that lie transposed, through operators whose fake results torch lays out as its kernels do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from helpers.pace import with_slow
from torch import Tensor, nn

from poet import api
from poet.frontend.true_layouts import TrueLayouts
from poet.problem import Limits
from poet.verification import verify

ACTIVATIONS: dict[str, nn.Module] = {
    "hardtanh": nn.Hardtanh(),
    "hardswish": nn.Hardswish(),
    "hardsigmoid": nn.Hardsigmoid(),
    "softplus": nn.Softplus(),
    "log-sigmoid": nn.LogSigmoid(),
    "log-softmax": nn.LogSoftmax(-1),
}
LOSSES = ["mse", "huber", "smooth-l1", "bce"]


class _Turned(nn.Module):
    """Channels last behind a convolution; the head, where there is one, gives a gradient side by side."""

    def __init__(self, activation: nn.Module, *, has_head: bool) -> None:
        super().__init__()
        self.conv, self.activation = nn.Conv1d(3, 4, 3, padding=1), activation
        self.head = nn.Linear(32, 5) if has_head else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        turned = self.activation(self.conv(x).transpose(1, 2))
        result: Tensor = self.head(turned.flatten(1) if isinstance(self.head, nn.Linear) else turned)
        return result


def _verified(module: nn.Module, loss: str, path: Path) -> None:
    prepared = api.prepare(module, torch.randn(2, 3, 8), device="rpi4b", loss=loss)
    api.plan_step(prepared, Limits(), measure_host=False).save(path)
    verify(path, module=module, steps=2, threads=(1, 2)).require()


@pytest.mark.parametrize("name", with_slow(ACTIVATIONS, {"hardtanh", "hardsigmoid", "softplus"}))
def test_activations_of_what_lies_transposed(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    _verified(_Turned(ACTIVATIONS[name], has_head=True), "cross-entropy", tmp_path / "net.poet")


@pytest.mark.parametrize("loss", with_slow(LOSSES, {"huber", "smooth-l1"}))
def test_losses_of_what_lies_transposed(loss: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    activation = nn.Sigmoid() if loss == "bce" else nn.Tanh()
    _verified(_Turned(activation, has_head=False), loss, tmp_path / "net.poet")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_fake_results_lie_as_real_ones(place: int) -> None:
    """Of each operator with one operand turned."""
    aten = torch.ops.aten
    given = [
        torch.rand(2, 4, 8).transpose(1, 2) if turned == place else torch.rand(2, 8, 4) for turned in range(3)
    ]
    calls: tuple[Callable[..., Tensor], ...] = (
        lambda g, x, y: aten.mse_loss_backward(g, x, y, 0),
        lambda g, x, y: aten.huber_loss_backward(g, x, y, 0, 1.0),
        lambda g, x, y: aten.smooth_l1_loss_backward(g, x, y, 0, 1.0),
        lambda g, x, y: aten.binary_cross_entropy(x, y, None, 0),
        lambda g, x, y: aten.binary_cross_entropy_backward(g, x, y, None, 0),
        lambda g, x, _: aten.hardtanh_backward(g, x, -1, 1),
        lambda g, x, _: aten.hardswish_backward(g, x),
        lambda g, x, _: aten.hardsigmoid_backward(g, x),
        lambda g, x, _: aten.softplus_backward(g, x, 1, 20),
        lambda g, x, _: aten._log_softmax_backward_data(g, x, -1, torch.float32),
        lambda g, x, _: aten._log_softmax_backward_data(g, x, 1, torch.float32),
        lambda g, _, __: aten.log_sigmoid_forward(g)[0],
    )
    for call in calls:
        real = call(*given)
        with TrueLayouts() as mode:
            fake = call(*map(cast(Any, mode).from_tensor, given))
        assert (fake.shape, fake.stride()) == (real.shape, real.stride())
