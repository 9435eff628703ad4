"""Values that lie transposed, through operators whose fake results torch lays out as its kernels do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from helpers.pace import with_slow
from helpers.reference import run_graph
from torch import Tensor, nn

from poet.frontend.functional import TrueLayouts
from poet.frontend.trace import trace_training_step


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


def _numbers(count: int) -> Tensor:
    return torch.arange(count).float().cos()


OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "mish": F.mish, "elu": F.elu, "celu": F.celu,
    "selu": F.selu,
    "hardtanh": F.hardtanh, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "leaky": F.leaky_relu,
    "softplus": F.softplus, "softshrink": F.softshrink, "log-sigmoid": F.logsigmoid, "tanh": torch.tanh,
    "threshold": lambda y: F.threshold(y, 0.1, 0.2), "glu": lambda y: F.glu(torch.cat([y, y], 1), 1),
    "prelu": lambda y: F.prelu(y, torch.full((y.shape[1],), 0.2)),
    "softmax": lambda y: y.softmax(-1), "softmax of dim 1": lambda y: y.softmax(1),
    "log-softmax": lambda y: y.log_softmax(-1), "log-softmax of dim 1": lambda y: y.log_softmax(1),
    "layer norm": lambda y: F.layer_norm(y, y.shape[-1:]), "rms norm": lambda y: F.rms_norm(y, y.shape[-1:]),
    "layer norm of two": lambda y: F.layer_norm(y, y.shape[-2:], torch.ones(y.shape[-2:])),
    "group norm": lambda y: F.group_norm(y, 1), "instance norm": F.instance_norm,
    "batch norm": lambda y: F.batch_norm(y, None, None, training=True),
    "dropout": lambda y: F.dropout(y, 0.3, True), "mean": lambda y: y.mean(1),
    "sum": lambda y: y.sum((0, -1)),
    "var": lambda y: y.var(1), "norm": lambda y: y.norm(dim=1), "log-sum-exp": lambda y: y.logsumexp(1),
    "max": lambda y: y.max(1)[0], "cumsum": lambda y: y.cumsum(1), "sort": lambda y: y.sort(1)[0],
    "top": lambda y: y.topk(2, 1)[0], "roll": lambda y: y.roll(1, 1), "flip": lambda y: y.flip(1),
    "unfold": lambda y: y.unfold(-1, 2, 1) * 2, "pad": lambda y: F.pad(y, (1, 2)),
    "clone": lambda y: y.clone() * 2,
    "where": lambda y: torch.where(y > 0, y, y * 2), "cat": lambda y: torch.cat([y, y.flip(0)], -1),
    "index": lambda y: y[:, [1, 0]], "index of two": lambda y: y[:, [1, 0], [0, 1]], "tril": torch.tril,
    "gather": lambda y: y.gather(1, torch.zeros_like(y, dtype=torch.int64)),
    "bfloat16": lambda y: y.bfloat16().float(),
    "attention": lambda y: F.scaled_dot_product_attention(y, y, y),
    "product": lambda y: y @ y.transpose(-1, -2),
    "linear": lambda y: F.linear(y, _numbers(3 * y.shape[-1]).view(3, -1)),
    "distance": lambda y: torch.cdist(y, y.flip(0)),
    "mse": lambda y: F.mse_loss(y, y.detach().flip(0), reduction="none"),
    "huber": lambda y: F.huber_loss(y, y.detach().flip(0)),
    "smooth-l1": lambda y: F.smooth_l1_loss(y, y.detach().flip(0)),
    "bce": lambda y: F.binary_cross_entropy(y.sigmoid(), y.detach().sigmoid().flip(0)),
    "contiguous": lambda y: y.contiguous() * 2,
    "cross-entropy": lambda y: F.cross_entropy(y, torch.zeros((len(y), *y.shape[2:]), dtype=torch.int64)),
}  # fmt: skip
OF_IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "convolution": lambda y: F.conv2d(y, _numbers(8 * y.shape[1]).view(2, -1, 2, 2)),
    "by channel": lambda y: F.conv2d(y, _numbers(4 * y.shape[1]).view(-1, 1, 2, 2), groups=y.shape[1]),
    "transposed": lambda y: F.conv_transpose2d(y, _numbers(8 * y.shape[1]).view(-1, 2, 2, 2)),
    "max pool": lambda y: F.max_pool2d(y, 2, 1), "mean pool": lambda y: F.avg_pool2d(y, 2),
    "adaptive mean": lambda y: F.adaptive_avg_pool2d(y, 2),
    "adaptive max": lambda y: F.adaptive_max_pool2d(y, 2),
    "nearest": lambda y: F.interpolate(y, scale_factor=2),
    "reflect": lambda y: F.pad(y, (1, 1, 1, 1), mode="reflect"),
    "bilinear": lambda y: F.interpolate(y, scale_factor=2, mode="bilinear"),
    "unfold": lambda y: F.unfold(y, 2),
    "bicubic": lambda y: F.interpolate(y, scale_factor=2, mode="bicubic"),
    "shuffle": lambda y: F.pixel_unshuffle(y, 2),
    "grid": lambda y: F.grid_sample(y, torch.zeros(len(y), 3, 3, 2), align_corners=False),
}  # fmt: skip
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda y: y.flatten(2).transpose(1, 2),
    "channels last": lambda y: y.contiguous(memory_format=torch.channels_last),
    "permuted": lambda y: y.permute(0, 2, 3, 1),
    "reversed": lambda y: y.permute(3, 2, 1, 0),
}
TAILS: dict[str, Callable[[Tensor], Tensor]] = {
    "copied": lambda y: (y.reshape(-1) * _numbers(y.numel())).sum(),
    "turned": lambda y: (y.transpose(0, -1).reshape(-1) * _numbers(y.numel())).sum() if y.dim() else y,
}


class _Swept(nn.Module):
    """An operator on what lies otherwise, and a gradient that lies otherwise again."""

    def __init__(self, *parts: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.parts = nn.Conv2d(3, 4, 1), parts

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        for part in self.parts:
            y = part(y)
        return y


SWEPT = [(name, layout) for name in OPERATORS for layout in LAYOUTS]
SWEPT += [(name, layout) for name in OF_IMAGES for layout in LAYOUTS if layout != "turned"]
FAST = {
    ("elu", "turned"), ("hardtanh", "turned"), ("bce", "turned"), ("batch norm", "turned"),
    ("layer norm", "permuted"), ("max pool", "channels last"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "layout"), with_slow(SWEPT, {*SWEPT} - FAST))
def test_every_operator_lies_as_its_kernel_leaves_it(name: str, layout: str) -> None:
    """Traced, measured, and run: every bit of the gradients is that of plain torch."""
    operator = OPERATORS.get(name) if layout == "turned" else {**OPERATORS, **OF_IMAGES}[name]
    assert operator is not None
    for tail in TAILS.values():
        torch.manual_seed(0)
        module, x = _Swept(LAYOUTS[layout], operator, tail), torch.randn(2, 3, 4, 4)
        step = trace_training_step(module, x, loss="output")
        torch.manual_seed(1)
        module(x).backward()
        torch.manual_seed(1)
        scalars = step.optimizer.hyperparameters(1)
        found = run_graph(step.graph, dict(step.tensors), {step.graph.inputs[0]: x}, scalars)
        for parameter in step.graph.parameters:
            plain = module.get_parameter(parameter.name).grad
            assert parameter.gradient is not None
            assert plain is not None
            assert torch.equal(found[parameter.gradient], plain)
