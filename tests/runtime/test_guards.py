"""Calls that kernels would not survive are refused before anything runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from poet.errors import PlanError
from poet.frontend.trace import trace_training_step
from poet.ir.graph import Argument, Buffer, Call, Graph, Link, Op, Ref, Role, Strip, TensorType, Value
from poet.runtime.kernels.guards import check_calls


@pytest.fixture(scope="module")
def graph() -> Graph:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip
    return trace_training_step(net.train(), torch.zeros(6, 2, 8, 8), measure=False).graph


def _with_argument(graph: Graph, target: str, place: int, argument: Argument) -> Graph:
    def changed(op: Op) -> Op:
        if op.call.target != target:
            return op
        args = (*op.call.args[:place], argument, *op.call.args[place + 1 :])
        return replace(op, call=replace(op.call, args=args))

    return replace(graph, ops=tuple(changed(op) for op in graph.ops))


def test_what_tracing_makes_passes(graph: Graph) -> None:
    targets = {op.call.target for op in graph.ops}
    assert {target for target, _ in BAD} <= targets
    check_calls(graph)


BAD: dict[tuple[str, str], tuple[int, Argument]] = {
    ("aten.native_batch_norm_backward.default", "no statistics"): (5, None),
    ("aten.native_batch_norm_backward.default", "no mode to match"): (7, False),
    ("aten.native_batch_norm_backward.default", "other channels"): (2, Ref("5.bias")),
    ("aten.native_batch_norm.default", "other channels"): (1, Ref("5.bias")),
    ("aten.max_pool2d_with_indices_backward.default", "other indices"): (7, Ref("5.weight")),
}


@pytest.mark.parametrize(("target", "what"), BAD)
def test_a_call_that_torch_would_not_survive_is_refused(graph: Graph, target: str, what: str) -> None:
    place, argument = BAD[target, what]
    with pytest.raises(PlanError, match=f"calls {target} with"):
        check_calls(_with_argument(graph, target, place, argument))


def test_what_is_written_must_not_overlap_itself(graph: Graph) -> None:
    """Of a stranger's plan: a kernel that asks for no strides would write beyond it."""
    kind = TensorType("float32", (4, 8), (0, 0))
    values = (
        *graph.values,
        Value("wide", "5.bias", kind),
        Value("made", "made", replace(kind, strides=(8, 1))),
    )
    buffers = (*graph.buffers, Buffer("made", 128, Role.ACTIVATION))
    neg = Op("neg", Call("aten.neg.default", (Ref("wide"),)), ("made",))
    strip = Strip(
        (
            Link(Call("aten.neg.default", (Ref("wide"),)), ("r",), ()),
            Link(Call("poet.assign", (Ref("wide"), Ref("r"))), (), ()),
        ),
        (Value("r", "r", kind),), 1, 1,
    )  # fmt: skip
    over = Op("over", strip.call, (), updates=("5.bias",), repeatable=False, strip=strip)
    assign = Call("poet.assign", (Ref("wide"), Ref("made")))
    plain = Op("plain", assign, (), updates=("5.bias",), repeatable=False)
    check_calls(replace(graph, values=values, buffers=buffers, ops=(*graph.ops, neg)))
    for op in (over, plain):
        bad = replace(graph, values=values, buffers=buffers, ops=(*graph.ops, neg, op))
        with pytest.raises(PlanError, match=f"op {op.name} writes wide, .* its elements overlap"):
            check_calls(bad)
