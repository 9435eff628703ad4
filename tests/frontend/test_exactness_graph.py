"""A traced step, run op by op, equals eager PyTorch bit for bit; so does every recomputation."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.nets import NETS, TinyNet
from helpers.pace import with_slow
from helpers.reference import run_graph
from torch import Tensor, nn

from poet.frontend.plain import PlainTrainer
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.graph import Graph, Op
from poet.optimizer import OptimizerSpec
from poet.runtime import kernels

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from zoo import NETS as ZOO

OPTIMIZERS = (
    OptimizerSpec("sgd", lr=0.05, weight_decay=0.01),
    OptimizerSpec("momentum", lr=0.05, dampening=0.1),
    OptimizerSpec("momentum", lr=0.05, weight_decay=0.01, nesterov=True),
    OptimizerSpec("adamw", lr=0.01),
)
STEPS = 3


def _zoo_net(name: str) -> TinyNet:
    net = ZOO[name]
    return TinyNet(
        net.small.build, lambda: net.small.inputs(batch=4), lambda: net.small.targets(batch=4), net.loss
    )


ALL = NETS | {f"zoo-{name}": _zoo_net(name) for name in ZOO}
ON_TWO_THREADS = {"cnn", "transformer", "lstm", "mobile", "dropout", "bags"}
"""Nets that every run tries with two threads as well; the others are for the slow tests, as is the zoo."""


def _fresh(name: str, optimizer: OptimizerSpec) -> tuple[nn.Module, TrainingStep]:
    """A net and its traced step, sharing no memory."""
    module, step = _traced(name, optimizer)
    return copy.deepcopy(module), copy.deepcopy(step)


@functools.cache
def _traced(name: str, optimizer: OptimizerSpec) -> tuple[nn.Module, TrainingStep]:
    net = ALL[name]
    torch.manual_seed(1)
    module = net.build()
    return module, trace_training_step(
        module,
        net.inputs(),
        loss=net.loss,
        optimizer=optimizer,
        train=net.train,
        targets=net.targets(),
        measure=False,
    )


def _batch(net: TinyNet, graph: Graph) -> tuple[tuple[Tensor, ...], Tensor | None, dict[str, Tensor]]:
    """Fresh inputs and targets, and both by name."""
    inputs, targets = net.inputs(), net.targets()
    given = (*inputs, *([] if targets is None else [targets]))
    return inputs, targets, dict(zip(graph.inputs, given, strict=True))


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


def _differences(name: str, optimizer: OptimizerSpec) -> list[str]:
    """What differs between the graph and eager over some steps."""
    net = ALL[name]
    module, step = _fresh(name, optimizer)
    graph, tensors = step.graph, dict(step.tensors)
    trained = [parameter.name for parameter in graph.parameters if parameter.gradient is not None]
    plain = PlainTrainer(module, loss=net.loss, optimizer=optimizer, trained=trained)
    differing = []
    for number in range(1, STEPS + 1):
        inputs, targets, given = _batch(net, graph)
        before = torch.get_rng_state()
        found = run_graph(graph, tensors, given, optimizer.hyperparameters(number))
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        loss, outputs = plain.step(inputs, targets)
        pairs = {"loss": (found[graph.loss], loss), "generator": (after, torch.get_rng_state())}
        pairs |= {key: (found[key], item) for key, item in zip(graph.predictions, outputs, strict=True)}
        pairs |= _state_pairs(graph, found, plain, module)
        differing += [f"step {number}: {key}" for key, pair in pairs.items() if not _equal(*pair)]
    return differing


def _state_pairs(
    graph: Graph, found: dict[str, Tensor], plain: PlainTrainer, module: torch.nn.Module
) -> dict[str, tuple[Tensor, Tensor]]:
    own = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    optimizer_state = plain.optimizer_state()
    pairs = {}
    for parameter in graph.parameters:
        pairs[parameter.name] = (found[parameter.value], own[parameter.name].detach())
        if parameter.gradient is not None:
            gradient = plain.gradients[parameter.name]
            pairs[f"gradient of {parameter.name}"] = (found[parameter.gradient], gradient)
        for state, value in parameter.optimizer_state:
            pairs[value] = (found[value], optimizer_state[parameter.name, state])
    for name, value in graph.states:
        pairs[name] = (found[value], own[name])
    return pairs


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits, signs of zeros and kinds of NaN included."""
    bits = [item.contiguous().reshape(-1).view(torch.uint8) for item in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bits)


@pytest.mark.parametrize(
    ("name", "count"),
    with_slow(
        [(name, count) for name in sorted(ALL) for count in (1, 2)],
        {(name, 2) for name in ALL.keys() - ON_TWO_THREADS}
        | {(name, 1) for name in ALL.keys() - NETS.keys()},
    ),
)
def test_nets_are_exact(name: str, count: int) -> None:
    optimizer = OPTIMIZERS[sorted(ALL).index(name) % len(OPTIMIZERS)]
    with _threads(count):
        assert _differences(name, optimizer) == []


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda spec: f"{spec.name}-{spec.decay}")
def test_each_optimizer_is_exact(optimizer: OptimizerSpec) -> None:
    assert _differences("mobile", optimizer) == []


def test_the_comparison_bites() -> None:
    """A learning rate that differs in its last bits is found."""
    module, step = _fresh("cnn", OPTIMIZERS[0])
    plain = PlainTrainer(module, loss="cross-entropy", optimizer=OPTIMIZERS[0], trained=["9.weight"])
    inputs, targets, given = _batch(NETS["cnn"], step.graph)
    found = run_graph(step.graph, step.tensors, given, {"lr": OPTIMIZERS[0].lr * (1 + 1e-6)})
    plain.step(inputs, targets)
    assert not torch.equal(found["9.weight"], module.get_parameter("9.weight"))


# --- recomputation ----------------------------------------------------------------------------


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
                assert torch.equal(result, present[name]), f"{op.name} differs"
        assert torch.equal(generator, torch.get_rng_state()), f"{op.name} moves the generator"
        assert all(torch.equal(old, present[name]) for name, old in watched.items()), f"{op.name} writes"
        self.again.add(op.name)


def _no_hyperparameter(name: str) -> float:
    raise AssertionError(f"a recomputation needs {name}")


PADDED = {("aten.mkldnn_rnn_layer.default", 3)}
"""Outputs with bytes that the kernel leaves as they were: a workspace with gaps."""


@pytest.mark.parametrize("name", with_slow(sorted(ALL), ALL.keys() - NETS.keys()))
def test_recomputation_gives_the_same_outputs_and_has_no_effect(name: str) -> None:
    _, step = _fresh(name, OPTIMIZERS[sorted(ALL).index(name) % len(OPTIMIZERS)])
    _, _, given = _batch(ALL[name], step.graph)
    rerunner = _Rerunner(step.graph, seed=7)
    run_graph(step.graph, step.tensors, given, step.optimizer.hyperparameters(1), after_op=rerunner)
    repeatable = [op for op in step.graph.ops if op.repeatable]
    assert len(rerunner.again) > len(repeatable) / 2
