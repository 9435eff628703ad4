"""Backward ops that read the forward's output in place of its input: the same bits, and less to save."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from poet.frontend.trace import trace_training_step
from poet.ir.graph import Ref, Role

SPECIAL = (-math.inf, -6.0, -1.0, -0.0, 0.0, 1e-45, -1e-45, 1e-38, 0.5, 1.0, 6.0, 7.0, math.inf, math.nan)
"""Infinities, zeros of both signs, subnormal numbers, ties with every limit below, NaN."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 3, 8, 64, 1027])
def test_special_values_give_the_same_bits(dtype: torch.dtype, length: int) -> None:
    """At lengths that vectors of numbers divide, and that leave single ones over."""
    torch.manual_seed(length)
    x = torch.tensor(SPECIAL).repeat(1 + length)[torch.randperm(length * len(SPECIAL))].to(dtype)
    gradients = torch.tensor(SPECIAL).repeat(1 + length)[torch.randperm(len(x))].to(dtype)
    for low, high in ((0.0, 6.0), (-1.0, 1.0), (-0.0, 0.0), (-6.0, 0.5)):
        y = F.hardtanh(x, low, high)
        found = torch.ops.aten.hardtanh_backward(gradients, y, low, high)
        same_bits(found, torch.ops.aten.hardtanh_backward(gradients, x, low, high))
    for slope in (0.0, 0.01, 1.0, 3.0):
        y = F.leaky_relu(x, slope)
        found = torch.ops.aten.leaky_relu_backward(gradients, y, slope, False)
        same_bits(found, torch.ops.aten.leaky_relu_backward(gradients, x, slope, False))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> None:
    assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def net_of(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), layer, nn.Flatten(), nn.Linear(144, 3))


@pytest.mark.parametrize(
    ("layer", "from_output"),
    [
        (nn.ReLU6(), True), (nn.Hardtanh(-2, 2), True), (nn.LeakyReLU(0.1), True),
        (nn.LeakyReLU(-0.1), False),
    ],
)  # fmt: skip
def test_what_the_next_layer_keeps_is_all_that_is_saved(layer: nn.Module, from_output: bool) -> None:
    graph = trace_training_step(net_of(layer), torch.randn(2, 3, 8, 8), measure=False).graph
    names = ("aten.hardtanh_backward.default", "aten.leaky_relu_backward.default")
    backward = next(op for op in graph.ops if op.call.target in names)
    given = backward.call.args[1]
    assert isinstance(given, Ref)
    made = {name: op for op in graph.ops for name in op.outputs if name is not None}
    assert ("norm" in made[given.value].call.target) != from_output
    normed = next(op.outputs[0] for op in graph.ops if "native_batch_norm.default" in op.call.target)
    roles = {buffer.name: buffer.role for buffer in graph.buffers}
    assert (roles[normed or ""] is Role.SAVED) != from_output
