"""Batch norm and the rectifier behind it as one op: where, and that the bits are those of the two apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from poet.errors import PlanError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Call, Graph, Ref
from poet.passes.fused import NORM_RELU, NORM_RELU_BACKWARD, with_norms_and_relus
from poet.runtime.kernels.guards import check_calls


class _Net(nn.Module):
    """Norms before a rectifier, with a frozen weight, before a sum, and with two readers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
        self.plain = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, affine=False), nn.ReLU())
        self.summed = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.twice = nn.BatchNorm2d(4)
        self.last = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.plain(self.first(x))
        z = self.twice(torch.relu(self.summed(y) + y))
        result: torch.Tensor = self.last((torch.relu(z) * z).flatten(1))
        return result


@pytest.fixture(scope="module")
def step() -> TrainingStep:
    return trace_training_step(_Net(), torch.randn(2, 2, 4, 4), measure=False)


def _targets(graph: Graph) -> Counter[str]:
    return Counter(op.call.target for op in graph.ops)


def test_norms_that_only_a_rectifier_reads_become_one_with_it(step: TrainingStep) -> None:
    graph = with_norms_and_relus(step.graph)
    found, before = _targets(graph), _targets(step.graph)
    assert (found[NORM_RELU], found[NORM_RELU_BACKWARD]) == (2, 2)
    assert found["aten.native_batch_norm.default"] == 2, "before the sum, and with two readers"
    assert found["aten.relu.default"] == before["aten.relu.default"] - 2
    assert len(graph.buffers) == len(step.graph.buffers) - 4
    assert Graph.from_json(graph.to_json()) == graph
    assert with_norms_and_relus(graph) is graph
    again = [op.recall for op in graph.ops if op.call.target == NORM_RELU]
    assert all(call is not None and call.args[3:5] == (None, None) for call in again), "without its effect"


def test_the_rectifiers_output_is_not_read_on_the_way_back(step: TrainingStep) -> None:
    graph = with_norms_and_relus(step.graph)
    made = {op.outputs[0] for op in graph.ops if op.call.target == NORM_RELU}
    assert not any(made & set(op.call.refs()) for op in graph.ops if op.call.target == NORM_RELU_BACKWARD)


def test_a_gradient_of_another_layout_stays_with_the_rectifier() -> None:
    """One that a transposition leaves in other strides: the rectifier's way back makes it dense."""

    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.last(torch.relu(self.norm(x)).transpose(1, 3)).mean((1, 2))
            return result

    graph = trace_training_step(Transposed(), torch.randn(2, 4, 4, 4), measure=False).graph
    (gate,) = (op for op in graph.ops if op.call.target == "aten.threshold_backward.default")
    types = {Ref(value.name): value.type for value in graph.values}
    assert types[Ref(str(gate.outputs[0]))] != types[gate.call.args[0]]  # type: ignore[index]
    assert with_norms_and_relus(graph) is graph


def test_a_call_that_torch_would_not_survive_is_refused(step: TrainingStep) -> None:
    graph = with_norms_and_relus(step.graph)
    check_calls(graph)
    for target, place in ((NORM_RELU, 1), (NORM_RELU_BACKWARD, 4)):
        op = next(op for op in graph.ops if op.call.target == target and op.call.args[1] is not None)
        source = op.call.args[0]
        args = (*op.call.args[:place], source, *op.call.args[place + 1 :])
        wrong = replace(op, call=Call(target, args))
        ops = tuple(wrong if item is op else item for item in graph.ops)
        with pytest.raises(PlanError, match="its kernel takes"):
            check_calls(replace(graph, ops=ops))
