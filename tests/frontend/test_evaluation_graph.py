"""A traced evaluation has the bits of ``module.eval()``; what changes a buffer there is refused."""

from __future__ import annotations

import pytest
import torch
from helpers.nets import NETS
from helpers.reference import run_graph
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from poet import api
from poet.errors import ModelError
from poet.frontend.eager import without_short_cuts
from poet.frontend.evaluation import trace_evaluation
from poet.frontend.losses import loss_named
from poet.frontend.trace import trace_training_step

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = ("cnn", "dropout", "tied")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in NETS]
)
def test_every_net_evaluates_as_eval_does(name: str) -> None:
    net = NETS[name]
    torch.manual_seed(0)
    module, inputs, targets = net.build(), net.inputs(), net.targets()
    modes = [part.training for part in module.modules()]
    step = trace_training_step(module, inputs, loss=net.loss, train=net.train, measure=False)
    if name == "own-state":
        with pytest.raises(ModelError, match="in evaluation mode the model writes mean"):
            trace_evaluation(module, inputs, step, measure=False)
        return
    evaluation = trace_evaluation(module, inputs, step, measure=False)
    assert modes == [part.training for part in module.modules()]
    assert evaluation.graph.persistent() == step.graph.persistent()
    given = dict(
        zip(evaluation.graph.inputs, [*inputs, *([] if targets is None else [targets])], strict=True)
    )
    torch.manual_seed(3)
    found = run_graph(evaluation.graph, {k: v.clone() for k, v in step.tensors.items()}, given, {})
    module.eval()
    torch.manual_seed(3)
    with torch.no_grad(), without_short_cuts():
        outputs = [item for item in pytree.tree_leaves(module(*inputs)) if isinstance(item, Tensor)]
        loss = loss_named(net.loss).apply(outputs[0], targets)
    assert torch.equal(found[evaluation.graph.loss], loss)
    for prediction, output in zip(evaluation.graph.predictions, outputs, strict=True):
        assert torch.equal(found[prediction], output)


def test_what_cannot_be_evaluated_is_said() -> None:
    class Counting(nn.Module):
        seen: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.seen += 1
            y: Tensor = self.inner(x)
            return y

    with pytest.warns(UserWarning, match="no evaluation is planned: .* writes seen"):
        made = api.plan(Counting(), torch.zeros(2, 4), device="rpi4b", ram=None)
    assert made.plan.evaluation is None
