"""Recurrent nets in evaluation mode: the bits of ``module.eval()`` under ``torch.no_grad()``.

torch asks there whether a weight requires a gradient, and takes another kernel where it does; batches are
strided and sizes odd, so that these kernels give other bits.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.evaluation_plans import plan_by_chance
from torch import Tensor, nn

from poet.frontend.trace import trace_evaluation, trace_training_step
from poet.plans.plan_file import write_plan
from poet.plans.training_plan import Plan
from poet.runtime.storage.state import raw_tensor
from poet.verification import verify


class Sequence(nn.Module):
    """A layer over a sequence, and classes from its last moment."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.into, self.layer, self.out = nn.Linear(3, 4), layer, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [N,3] of [N,T,3]."""
        scores: Tensor = self.out(self.layer(self.into(x))[0][:, -1])
        return scores


def built(kind: type[nn.RNN | nn.GRU]) -> tuple[nn.Module, Tensor]:
    """A net of two layers, and a batch of 2 samples of 5 moments, which is strided."""
    torch.manual_seed(0)
    return Sequence(kind(4, 5, 2, batch_first=True, dropout=0.2)), torch.randn(2, 5, 3)


def planned(module: nn.Module, inputs: Tensor, *, share: float, path: Path) -> Plan:
    """A plan file whose training and evaluation recompute and page by chance; not with a ``share`` of 0."""
    step = trace_training_step(module, inputs, measure=False)
    evaluation = trace_evaluation(module, inputs, step, measure=False)
    plan = plan_by_chance(step, evaluation, 1, share=share)
    write_plan(path, plan, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    return plan


def test_a_frozen_weight_takes_the_kernel_that_it_takes_in_plain_pytorch(tmp_path: Path) -> None:
    """Of a strided batch: `mm` where the weight is trained, `bmm` where it is not."""
    module, inputs = built(nn.GRU)
    trained = trace_training_step(module, inputs, measure=False)
    module.requires_grad_(False)
    module.get_submodule("out").requires_grad_(True)
    frozen = trace_training_step(module, inputs, measure=False)
    for step, kernel in ((trained, "aten.mm.default"), (frozen, "aten.bmm.default")):
        graphs = (step.graph, trace_evaluation(module, inputs, step, measure=False).graph)
        for graph in graphs:
            first = next(op for op in graph.ops if op.name.startswith("layer."))
            assert first.call.target == kernel


class _FrozenFront(nn.Module):
    """An LSTM that is not trained and runs without gradients, as one does with a feature extractor."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.back, self.out = nn.LSTM(4, 5), nn.LSTM(5, 5), nn.Linear(5, 3)
        self.front.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores [N,3] of [T,N,4]."""
        with torch.no_grad():
            y = self.front(x)[0]
        scores: Tensor = self.out(self.back(y)[0][-1])
        return scores


@pytest.mark.slow
def test_an_lstm_without_gradients_inside_a_step_is_that_of_plain_pytorch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = _FrozenFront(), torch.randn(5, 2, 4)
    plan = planned(module, inputs, share=0.5, path=tmp_path / "p")
    assert plan.evaluation is not None
    for graph, kernels in ((plan.graph, 1), (plan.evaluation.graph, 2)):
        targets = [op.call.target for op in graph.ops]
        assert targets.count("poet.lstm_without_gradients") == kernels
        assert targets.count("aten.mkldnn_rnn_layer.default") == 2 - kernels
    verify(tmp_path / "p", module=module, steps=2).require()


@pytest.mark.slow
def test_verify_finds_an_evaluation_whose_loss_differs(tmp_path: Path) -> None:
    module, inputs = built(nn.RNN)
    plan = planned(module, inputs, share=0.0, path=tmp_path / "p")
    assert plan.evaluation is not None
    graph = plan.evaluation.graph
    ops = tuple(
        replace(op, call=replace(op.call, args=(*op.call.args[:3], 2, *op.call.args[4:])))  # a sum, no mean
        if op.call.target == "aten.nll_loss_forward.default"
        else op
        for op in graph.ops
    )
    wrong = replace(plan, evaluation=replace(plan.evaluation, graph=replace(graph, ops=ops)))
    step = trace_training_step(module, inputs, measure=False)
    write_plan(tmp_path / "w", wrong, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    (comparison,) = verify(tmp_path / "w", module=module, steps=1, threads=(1,)).comparisons
    assert comparison.difference is not None
    assert comparison.difference.startswith("evaluation: the loss differs")
