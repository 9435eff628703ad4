"""Ops that become one with their neighbours: updates, rectifiers behind norms, zeros behind an image."""

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

from poet.c99.calls import OpRun, Placed
from poet.c99.exportable import uses_elements
from poet.c99.rows import c_calls
from poet.errors import GraphError, PlanError, UnsupportedOperator
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Call, Graph, Ref, Strip
from poet.ir.optimizer import OptimizerSpec
from poet.passes.fused import (
    NORM_RELU,
    NORM_RELU_BACKWARD,
    PADDED,
    PADDED_BACKWARD,
    with_norms_and_relus,
    with_padded_windows,
    with_updates_fused,
)  # fmt: skip
from poet.runtime.kernels.guards import check_calls
from poet.runtime.trials.forms import check_exact

_PAD = "aten.constant_pad_nd.default"


def _targets(graph: Graph) -> Counter[str]:
    return Counter(op.call.target for op in graph.ops)


# --- weight gradients that are used as they are made ------------------------------------------


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=4), nn.Flatten(), nn.Linear(64, 5)
    )


def _traced(optimizer: str = "sgd") -> TrainingStep:
    spec = OptimizerSpec(optimizer, lr=0.1)
    inputs = torch.randn(2, 2, 6, 6)
    return trace_training_step(_net(), inputs, optimizer=spec, measure=False, has_small_operators=True)


def _strips(graph: Graph) -> list[Strip]:
    return [op.strip for op in graph.ops if op.strip is not None]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_every_gradient_joins_its_update(optimizer: str) -> None:
    step = _traced(optimizer)
    fused = with_updates_fused(step.graph, uses_elements, is_always=True)
    strips = _strips(fused)
    assert len(strips) == 4, "two convolutions with their biases, a weight, a bias"
    assert all(strip.is_whole and strip.block_bytes == 0 and strip.whole_bytes > 0 for strip in strips)
    inner = {value.name for strip in strips for value in strip.inner}
    assert {parameter.gradient for parameter in step.graph.parameters} <= inner
    assert Graph.from_json(fused.to_json()) == fused
    check_exact(fused)


def test_what_is_read_in_between_stays_apart() -> None:
    """A gradient that something else reads, and a kernel that is not there."""
    step = _traced()
    assert with_updates_fused(step.graph, lambda strip, graph: False) is step.graph
    graph = step.graph
    seen = replace(graph, predictions=(*graph.predictions, str(graph.parameters[0].gradient)))
    assert len(_strips(with_updates_fused(seen, uses_elements, is_always=True))) == 3


def test_memory_decides() -> None:
    """A large layer on small tensors is fused; a small one between large tensors is not."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.AvgPool2d(16), nn.Flatten(), nn.Linear(3, 400)
    )
    graph = trace_training_step(module, torch.randn(1, 3, 16, 16), measure=False).graph
    fused = with_updates_fused(graph, uses_elements)
    names = {op.name for op in fused.ops if op.strip is not None}
    assert "4.weight.update" in names
    assert "1.weight.update" not in names


@pytest.mark.parametrize(("size", "blocks"), [(2, 1), (1, 2)])
def test_a_strip_of_one_block_has_size_one(size: int, blocks: int) -> None:
    fused = with_updates_fused(_traced().graph, uses_elements, is_always=True)
    op = next(op for op in fused.ops if op.strip is not None)
    assert op.strip is not None
    other = replace(op, strip=replace(op.strip, size=size, blocks=blocks))
    with pytest.raises(GraphError, match="or 1 of size 1"):
        replace(fused, ops=tuple(other if item is op else item for item in fused.ops))


# --- batch norm and the rectifier behind it ---------------------------------------------------


class _Normed(nn.Module):
    """Norms before a rectifier, with a frozen weight, before a sum, and with two readers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.plain = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, affine=False), nn.ReLU())
        self.summed = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.twice = nn.BatchNorm2d(4)
        self.last = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.plain(self.first(x))
        z = self.twice(torch.relu(self.summed(y) + y))
        result: Tensor = self.last((torch.relu(z) * z).flatten(1))
        return result


@pytest.fixture(scope="module")
def normed() -> TrainingStep:
    return trace_training_step(_Normed(), torch.randn(2, 2, 4, 4), measure=False)


def test_norms_that_only_a_rectifier_reads_become_one_with_it(normed: TrainingStep) -> None:
    graph = with_norms_and_relus(normed.graph)
    found, before = _targets(graph), _targets(normed.graph)
    assert (found[NORM_RELU], found[NORM_RELU_BACKWARD]) == (2, 2)
    assert found["aten.native_batch_norm.default"] == 2, "before the sum, and with two readers"
    assert found["aten.relu.default"] == before["aten.relu.default"] - 2
    assert len(graph.buffers) == len(normed.graph.buffers) - 4
    assert Graph.from_json(graph.to_json()) == graph
    assert with_norms_and_relus(graph) is graph
    again = [op.recall for op in graph.ops if op.call.target == NORM_RELU]
    assert all(call is not None and call.args[3:5] == (None, None) for call in again), "without its effect"


def test_the_rectifiers_output_is_not_read_on_the_way_back(normed: TrainingStep) -> None:
    graph = with_norms_and_relus(normed.graph)
    made = {op.outputs[0] for op in graph.ops if op.call.target == NORM_RELU}
    assert not any(made & set(op.call.refs()) for op in graph.ops if op.call.target == NORM_RELU_BACKWARD)


def test_a_gradient_of_another_layout_stays_with_the_rectifier() -> None:
    """One that a transposition leaves in other strides: the rectifier's way back makes it dense."""

    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(torch.relu(self.norm(x)).transpose(1, 3)).mean((1, 2))
            return result

    graph = trace_training_step(Transposed(), torch.randn(2, 4, 4, 4), measure=False).graph
    (gate,) = (op for op in graph.ops if op.call.target == "aten.threshold_backward.default")
    types = {Ref(value.name): value.type for value in graph.values}
    assert types[Ref(str(gate.outputs[0]))] != types[gate.call.args[0]]  # type: ignore[index]
    assert with_norms_and_relus(graph) is graph


def test_a_call_that_torch_would_not_survive_is_refused(normed: TrainingStep) -> None:
    graph = with_norms_and_relus(normed.graph)
    check_calls(graph)
    for target, place in ((NORM_RELU, 1), (NORM_RELU_BACKWARD, 4)):
        op = next(op for op in graph.ops if op.call.target == target and op.call.args[1] is not None)
        source = op.call.args[0]
        args = (*op.call.args[:place], source, *op.call.args[place + 1 :])
        wrong = replace(op, call=Call(target, args))
        ops = tuple(wrong if item is op else item for item in graph.ops)
        with pytest.raises(PlanError, match="its kernel takes"):
            check_calls(replace(graph, ops=ops))


# --- zeros behind an image --------------------------------------------------------------------


class _Padded(nn.Module):
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
def padded() -> TrainingStep:
    return trace_training_step(_Padded(), torch.randn(2, 2, 12, 12), measure=False)


def test_what_only_convolutions_read_is_padded_by_them(padded: TrainingStep) -> None:
    graph = with_padded_windows(padded.graph)
    found, before = _targets(graph), _targets(padded.graph)
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
def test_a_strangers_zeros_are_refused(padded: TrainingStep, zeros: tuple[int, ...]) -> None:
    graph = with_padded_windows(padded.graph)
    op = next(op for op in graph.ops if op.call.target == PADDED)
    values = {value.name: Placed(value.type, 0) for value in graph.values}
    outputs = tuple(values[str(name)] for name in op.outputs)
    assert c_calls(OpRun(op.name, op.call, outputs, values))
    wrong = Call(PADDED, (*op.call.args[:-1], zeros))
    with pytest.raises((UnsupportedOperator, GraphError)):
        c_calls(OpRun(op.name, wrong, outputs, values))


def test_an_image_that_changes_in_between_stays_padded(padded: TrainingStep) -> None:
    """A stranger's op that writes the image after it was padded, before the convolution has read it."""
    graph = padded.graph
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
