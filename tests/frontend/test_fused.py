"""Weight gradients that are used as they are made: what becomes one op, and PyTorch's replay."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from poet.c99.statements import uses_elements
from poet.errors import GraphError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Graph, Strip
from poet.ir.optimizer import OptimizerSpec
from poet.passes.fused import with_updates_fused
from poet.runtime.trials.forms import check_exact


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, groups=4),
        nn.Flatten(),
        nn.Linear(64, 5),
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
