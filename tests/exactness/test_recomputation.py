"""An op that runs again gives the same outputs, draws the same numbers, and has no effect."""

from __future__ import annotations

import random

import pytest
import torch
from exact_axes import NETS, OPTIMIZERS, QUICK
from helpers.pace import with_slow
from helpers.reference import run_graph
from torch import Tensor

from poet.frontend.trace import trace_training_step
from poet.ir.graph import Graph, Op
from poet.runtime import kernels
from poet.runtime.trials.trial import same_bits


class _Rerunner:
    """After each op runs some earlier op again, where its inputs are still what they were."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.graph = graph
        self.random = random.Random(seed)
        self.updated_at: dict[str, int] = {}
        self.again: set[str] = set()

    def __call__(self, index: int, op: Op, present: dict[str, Tensor]) -> None:
        for name in op.updates:
            self.updated_at[name] = index
        for position in self.random.sample(range(index + 1), min(index + 1, 8)):
            self.rerun(position, present)

    def rerun(self, position: int, present: dict[str, Tensor]) -> None:
        op = self.graph.ops[position]
        call = op.recall
        if call is None or call.target == "aten.empty_strided.default":
            return
        touched = {*self.graph.reads(call), *self.graph.writes(op)} - set(op.updates)
        if any(self.updated_at.get(buffer, -1) >= position for buffer in touched):
            return  # what it reads or wrote has another content by now
        generator = torch.get_rng_state()
        watched = {name: present[name].clone() for name in call.refs()}
        results = kernels.run(call, present.__getitem__, _no_hyperparameter)
        for name, result in zip(op.outputs, results, strict=False):
            if name is not None and (op.call.target, op.outputs.index(name)) not in PADDED:
                assert result is not None
                assert same_bits(result, present[name]), f"{op.name} differs"
        assert torch.equal(generator, torch.get_rng_state()), f"{op.name} moves the generator"
        assert all(torch.equal(old, present[name]) for name, old in watched.items()), f"{op.name} writes"
        self.again.add(op.name)


def _no_hyperparameter(name: str) -> float:
    raise AssertionError(f"a recomputation needs {name}")


PADDED = {("aten.mkldnn_rnn_layer.default", 3)}
"""Outputs with bytes that the kernel leaves as they were: a workspace with gaps."""


FINITE = [name for name in NETS if not name.startswith("reader") or name == "reader, summed"]
"""Nets whose gradients are numbers, whatever the targets are."""
ALIKE = {"cnn", "tied", "checkpointed", "sums", "padded", "wide", "layers", "products", "table", "vocabulary"}
ALIKE |= {"rnn of relu"}
"""Those whose operators other quick ones have as well."""


@pytest.mark.parametrize("name", with_slow(FINITE, NETS.keys() - QUICK | ALIKE))
def test_recomputation_gives_the_same_outputs_and_has_no_effect(name: str) -> None:
    net, spec = NETS[name], list(OPTIMIZERS.values())[len(name) % 8]
    torch.manual_seed(1)
    inputs, targets = net.inputs(), net.targets()
    step = trace_training_step(
        net.build(), inputs, loss=net.loss, optimizer=spec, train=net.train, targets=targets, measure=False
    )
    types = {value.name: value.type for value in step.graph.values}
    given = dict(zip(step.graph.inputs, (*inputs, *([] if targets is None else [targets])), strict=False))
    for missing in step.graph.inputs[len(given) :]:  # targets that follow from the output
        given[missing] = torch.ones(types[missing].shape, dtype=getattr(torch, types[missing].dtype))
    rerunner = _Rerunner(step.graph, seed=7)
    run_graph(step.graph, step.tensors, given, step.optimizer.hyperparameters(1), after_op=rerunner)
    repeatable = [op for op in step.graph.ops if op.repeatable]
    assert len(rerunner.again) > len(repeatable) / 2
