"""Gradients written over what they are made from: which, and that the bits are those of separate memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from poet.c99.calls import Placed
from poet.c99.rows import overwrites, strip_calls
from poet.errors import UnsupportedOperator
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Graph, Ref
from poet.passes.in_place import with_results_in_place


class _Net(nn.Module):
    """Batch norm, ReLU, and a sum that two branches read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.last = nn.Linear(36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        result: torch.Tensor = self.last(torch.relu(self.second(y) + y).flatten(1))
        return result


def _traced() -> TrainingStep:
    return trace_training_step(_Net(), torch.randn(2, 2, 3, 3), measure=False)


def test_the_way_back_takes_over_memory() -> None:
    step = _traced()
    graph = with_results_in_place(step.graph, overwrites)
    changed = {op.strip.links[0].call.target for op in graph.ops if op.strip is not None}
    assert changed == {
        "aten.threshold_backward.default",
        "aten.native_batch_norm_backward.default",
        "aten.add.Tensor",
    }
    assert len(graph.buffers) == len(step.graph.buffers) - sum(op.strip is not None for op in graph.ops)
    assert Graph.from_json(graph.to_json()) == graph
    assert with_results_in_place(graph, lambda call: ()) is graph
    forward = [op.name for op in step.graph.ops if op.call.target == "aten.relu.default"]
    assert all(op.strip is None for op in graph.ops if op.name in forward), "the way there is left alone"


def test_c_writes_over_operands_alone() -> None:
    """A stranger's plan that writes a result over something else is refused."""
    graph = with_results_in_place(_traced().graph, overwrites)
    op = next(op for op in graph.ops if op.strip is not None and not op.outputs)
    assert op.strip is not None
    places = {value.buffer: 1024 * index for index, value in enumerate(graph.values)}
    values = {value.name: Placed(value.type, places[value.buffer]) for value in graph.values}
    assert len(strip_calls(op.name, op.strip, values, {})) == 1
    assign = op.strip.links[1].call
    elsewhere = replace(op.strip.links[1], call=replace(assign, args=(Ref(graph.loss), assign.args[1])))
    with pytest.raises(UnsupportedOperator, match="cannot be written over"):
        strip_calls(op.name, replace(op.strip, links=(op.strip.links[0], elsewhere)), values, {})
    first = replace(op.strip.links[0], call=replace(op.strip.links[0].call, target="aten.relu.default"))
    with pytest.raises(UnsupportedOperator, match="cannot be written over"):
        strip_calls(op.name, replace(op.strip, links=(first, op.strip.links[1])), values, {})
