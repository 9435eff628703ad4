"""Zeros behind an image as part of convolutions: where, and that the bits are those of the two apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.c_rows import worst_ratios
from torch import Tensor, nn

import poet
from poet.c99.calls import OpRun, Placed
from poet.c99.rows import c_calls
from poet.errors import UnsupportedOperator
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Call, Graph
from poet.passes.fused import PADDED, PADDED_BACKWARD, with_padded_windows

_PAD = "aten.constant_pad_nd.default"


class _Net(nn.Module):
    """An image that is padded, an inner one with two readers, and one that a sum reads too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(2, 4, 3, stride=2))
        self.inner = nn.Sequential(nn.Conv2d(4, 4, 3, stride=2, groups=4), nn.BatchNorm2d(4), nn.ReLU())
        self.other, self.last = nn.Conv2d(4, 4, 3, stride=2), nn.Conv2d(4, 4, 3, stride=2)
        self.out = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(torch.relu(self.first(x)), (0, 1, 0, 1))
        y = self.inner(y) + self.other(y)
        padded = F.pad(y, (0, 1, 0, 0))
        y = self.last(padded).flatten(1) + padded.sum((2, 3))
        result: Tensor = self.out(torch.cat([y, y.tanh(), y.square()], 1))
        return result


@pytest.fixture(scope="module")
def step() -> TrainingStep:
    return trace_training_step(_Net(), torch.randn(2, 2, 12, 12), measure=False)


def _targets(graph: Graph) -> Counter[str]:
    return Counter(op.call.target for op in graph.ops)


def test_what_only_convolutions_read_is_padded_by_them(step: TrainingStep) -> None:
    graph = with_padded_windows(step.graph)
    found, before = _targets(graph), _targets(step.graph)
    assert found[PADDED] == 3, "the image's, and both that read the inner one"
    assert found[PADDED_BACKWARD] == 3, "to weights; gradients of two readers are added before they are cut"
    assert before[_PAD] - found[_PAD] == 2
    assert Graph.from_json(graph.to_json()) == graph
    assert with_padded_windows(graph) is graph
    assert not any(op.name.startswith("constant_pad") for op in graph.ops if op.call.target == PADDED)


@pytest.mark.parametrize(
    ("pads", "value", "layer", "count"),
    [
        ((0, 1, 0, 1), 0.0, nn.Conv2d(2, 3, 3, stride=2), 0),
        ((0, 1, 0, 0), 0.0, nn.Conv2d(2, 3, 3, stride=2), 0),
        ((1, 1, 1, 1), 0.0, nn.Conv2d(2, 3, 3, stride=2), 2),
        ((0, 2, 0, 1), 0.0, nn.Conv2d(2, 3, 3, stride=2), 2),
        ((0, 1, 0, 1), 1.0, nn.Conv2d(2, 3, 3, stride=2), 1),
        ((0, 1, 0, 1), 0.0, nn.Conv2d(2, 3, 3), 2),
        ((0, 1, 0, 1), 0.0, nn.Conv2d(2, 3, 5, stride=2), 2),
        ((0, 1, 0, 1), 0.0, nn.Conv2d(2, 3, 3, stride=2, padding=1), 2),
        ((0, 1, 0, 1), 0.0, nn.ConvTranspose2d(2, 3, 3, stride=2), 2),
    ],
)
def test_other_paddings_stay(
    pads: tuple[int, int, int, int], value: float, layer: nn.Module, count: int
) -> None:
    """Padding and the cut of its gradient stay or go; of ones, which are no zeros, the cut goes."""
    padding = nn.ConstantPad2d(pads, value)
    net = nn.Sequential(nn.Conv2d(1, 2, 1), padding, layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    graph = trace_training_step(net, torch.randn(1, 1, 8, 8), measure=False).graph
    found = _targets(with_padded_windows(graph))
    assert found[_PAD] == count
    assert (found[PADDED], found[PADDED_BACKWARD]) == {0: (1, 2), 1: (0, 1), 2: (0, 0)}[count]


def test_ops_without_arguments_are_passed_over() -> None:
    """Dropout with a mask larger than the generator's state keeps that, by an op that has none."""
    net = nn.Sequential(
        nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(1, 2, 3, stride=2), nn.Dropout(0.1), nn.Flatten()
    )
    graph = trace_training_step(net, torch.randn(1, 1, 96, 96), measure=False).graph
    assert any(not op.call.args for op in graph.ops)
    assert _targets(with_padded_windows(graph))[PADDED] == 1


@pytest.mark.slow
def test_kernels_of_random_shapes_end_where_the_image_does(tmp_path: Path) -> None:
    """Odd and even sizes, with zeros below, on the right or both, and a tap less at the end or not."""
    random, sizes = np.random.default_rng(0), set()
    for seed in range(8):
        torch.manual_seed(seed)
        groups = int(random.integers(1, 3))
        before, behind = (groups * int(random.integers(1, 4)) for _ in range(2))
        pads = [(0, 1, 0, 1), (0, 1, 0, 0), (0, 0, 0, 1)][seed % 3]
        height, width = (int(random.integers(3, 12)) for _ in range(2))
        sizes |= {(height + pads[3]) % 2, (width + pads[1]) % 2}
        inner = nn.Conv2d(before, behind, 3, stride=2, groups=groups, bias=seed % 2 == 0)
        layers = [nn.Conv2d(2, before, 1), nn.Tanh(), nn.ZeroPad2d(pads), inner, nn.Tanh(), nn.Flatten()]
        net, x = nn.Sequential(*layers, nn.LazyLinear(3)), torch.randn(1 + seed % 3, 2, height, width)
        net(x)
        worst = worst_ratios(net, x, tmp_path / str(seed), "cross-entropy", "sgd")
        assert {PADDED, PADDED_BACKWARD} <= worst.keys()
        assert max(worst.values()) <= 1.0, (seed, worst)
    assert sizes == {0, 1}


@pytest.mark.parametrize("zeros", [(1, 1, 0, 1), (0, 1, 1, 1), (0, -1, 0, 0), (0, 1)])
def test_a_strangers_zeros_are_refused(step: TrainingStep, zeros: tuple[int, ...]) -> None:
    graph = with_padded_windows(step.graph)
    op = next(op for op in graph.ops if op.call.target == PADDED)
    values = {value.name: Placed(value.type, 0) for value in graph.values}
    outputs = tuple(values[str(name)] for name in op.outputs)
    assert c_calls(OpRun(op.name, op.call, outputs, values))
    wrong = Call(PADDED, (*op.call.args[:-1], zeros))
    with pytest.raises((UnsupportedOperator, poet.errors.GraphError)):
        c_calls(OpRun(op.name, wrong, outputs, values))


def test_an_image_that_changes_in_between_stays_padded(step: TrainingStep) -> None:
    """A stranger's op that writes the image after it was padded, before the convolution has read it."""
    graph = step.graph
    pad = next(op for op in graph.ops if op.call.target == _PAD)
    source = graph.buffer_of(str(pad.call.args[0].value))  # type: ignore[union-attr]
    place = graph.ops.index(pad) + 1
    reader = graph.ops[place]
    assert reader.call.target == "aten.convolution.default"
    call = Call("poet.assign", pad.call.args[:1])
    writer = replace(pad, name="writer", outputs=(), updates=(source,), call=call, repeatable=False)
    ops = (*graph.ops[:place], writer, *graph.ops[place:])
    found = _targets(with_padded_windows(replace(graph, ops=ops)))
    assert found[_PAD] == _targets(with_padded_windows(graph))[_PAD] + 1
