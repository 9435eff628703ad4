"""Slices of one op: each way to cut a call means the whole, and steps with them have plain PyTorch's bits."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.hand_net import write_step
from helpers.part_nets import tiny_strips
from torch import Tensor, nn

from poet.errors import PlanError, ReplayError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Argument, Blank, Call, Graph, Link, Op, Ref, Strip, Value
from poet.ir.strips import check_strip
from poet.passes.cuts import slice_cuts
from poet.passes.rewrite import rewritten
from poet.passes.strips import slice_candidates
from poet.report.training import strip_lines
from poet.runtime import Trainer, kernels
from poet.runtime.kernels.arguments import tensor_type
from poet.runtime.kernels.guards import check_calls
from poet.runtime.kernels.strips import StripRun

CONV, CONV_BACK = "aten.convolution.default", "aten.convolution_backward.default"
NORM_BACK = "aten.native_batch_norm_backward.default"
ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"
PAIR, ONE, NONE = (1, 1), (1, 1), (0, 0)


def t(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


def blank(*shape: int) -> Blank:
    return Blank(tensor_type(torch.empty(shape), "blank"))


def convolution(
    inp: Tensor, weight: Tensor, bias: Tensor | None, groups: int, transposed: bool = False
) -> list[object]:
    return [inp, weight, bias, ONE, PAIR, ONE, transposed, NONE, groups]


def backward(
    grad: Tensor,
    inp: object,
    weight: object,
    groups: int,
    mask: tuple[bool, bool, bool],
    transposed: bool = False,
) -> list[object]:
    sizes = (grad.shape[1],) if mask[2] else None
    return [grad, inp, weight, sizes, ONE, PAIR, ONE, transposed, NONE, groups, mask]


STATISTICS = (t(6), None, None, t(6), t(6).abs() + 0.5, True, 1e-5, (True, True, True))
HEADS = (t(2, 4, 8, 16), t(2, 4, 8, 16) * 2, t(2, 4, 8, 16) * 3)
FORWARD = kernels.kernel(f"{ATTENTION}.default")(*HEADS)

CALLS: dict[str, tuple[str, list[object], int]] = {
    "convolution": (CONV, convolution(t(2, 3, 9, 9), t(40, 3, 3, 3), t(40), 1), 1),
    "convolution without bias": (CONV, convolution(t(1, 3, 9, 9), t(40, 3, 3, 3), None, 1), 1),
    "transposed convolution": (CONV, convolution(t(1, 3, 9, 9), t(3, 8, 3, 3), t(8), 1, True), 1),
    "depthwise convolution": (CONV, convolution(t(1, 12, 9, 9), t(12, 1, 3, 3), t(12), 12), 1),
    "grouped convolution": (CONV, convolution(t(1, 4, 9, 9), t(8, 2, 3, 3), t(8), 2), 0),
    "gradient of the input": (
        CONV_BACK, backward(t(1, 8, 9, 9), blank(1, 6, 9, 9), t(8, 6, 3, 3), 1, (True, False, False)), 1,
    ),
    "gradient of a transposed one's input": (
        CONV_BACK,
        backward(t(1, 8, 9, 9), blank(1, 6, 9, 9), t(6, 8, 3, 3), 1, (True, False, False), True),
        1,
    ),
    "gradient of the weight": (
        CONV_BACK, backward(t(1, 8, 9, 9), t(1, 6, 9, 9), blank(8, 6, 3, 3), 1, (False, True, False)), 2,
    ),
    "gradients of weight and bias": (
        CONV_BACK, backward(t(1, 8, 9, 9), t(1, 6, 9, 9), blank(8, 6, 3, 3), 1, (False, True, True)), 1,
    ),
    "gradient of a transposed one's weight": (
        CONV_BACK,
        backward(t(1, 8, 9, 9), t(1, 6, 9, 9), blank(6, 8, 3, 3), 1, (False, True, False), True),
        2,
    ),
    "gradient of a depthwise one's weight": (
        CONV_BACK, backward(t(1, 8, 9, 9), t(1, 8, 9, 9), blank(8, 1, 3, 3), 8, (False, True, False)), 1,
    ),
    "gradient of a depthwise one's input": (
        CONV_BACK, backward(t(1, 8, 9, 9), blank(1, 8, 9, 9), t(8, 1, 3, 3), 8, (True, False, False)), 1,
    ),
    "batch norm's gradients": (NORM_BACK, [t(2, 6, 5, 5), t(2, 6, 5, 5) + 1, *STATISTICS], 1),
    "log-softmax": ("aten._log_softmax.default", [t(2, 7, 5), 1, False], 2),
    "softmax of the last": ("aten._softmax.default", [t(6, 7), -1, False], 1),
    "log-softmax's gradient": (
        "aten._log_softmax_backward_data.default", [t(9, 7), t(9, 7) * 2, 1, torch.float32], 1,
    ),
    "softmax's gradient": (
        "aten._softmax_backward_data.default", [t(9, 7), t(9, 7) * 2, 1, torch.float32], 1,
    ),
    "attention": (f"{ATTENTION}.default", [*HEADS, 0.0, True], 1),
    "attention's gradients": (
        f"{ATTENTION}_backward.default", [FORWARD[0] + 0.5, *HEADS, *FORWARD[:2], 0.0, True], 1,
    ),
    "products": ("aten.bmm.default", [t(6, 3, 4), t(6, 4, 5)], 1),
}  # fmt: skip
"""By name the operator, what it is given, and in how many ways it can be cut."""


@pytest.mark.parametrize("name", CALLS)
def test_each_way_to_cut_a_call_means_the_whole(name: str) -> None:
    target, given, ways = CALLS[name]
    tensors = {f"a{place}": item for place, item in enumerate(given) if isinstance(item, Tensor)}
    args: list[Argument] = [
        Ref(f"a{place}") if isinstance(item, Tensor) else item if item is not torch.float32 else 6  # type: ignore[misc]
        for place, item in enumerate(given)
    ]
    call = Call(target, tuple(args))
    types = {key: tensor_type(item, key) for key, item in tensors.items()}
    whole = kernels.outputs_of(kernels.run(call, tensors.__getitem__, float))
    outputs = tuple(None if item is None else f"out{place}" for place, item in enumerate(whole))
    known = types | {
        key: tensor_type(item, key)
        for key, item in zip(outputs, whole, strict=True)
        if key and item is not None
    }
    values = {key: Value(key, key, type_) for key, type_ in known.items()}
    found = list(slice_cuts(call, types))
    assert len(found) == ways
    for size, cut in found:
        made = {place: dim for place, dim in cut.outputs if outputs[place] is not None}
        strip = Strip((Link(call, outputs, cut.arguments, tuple(made.items())),), (), size, 2)
        assert not check_strip(name, strip, outputs, values)
        cut_results = StripRun(strip, outputs, known).run(tensors.__getitem__, float)
        assert len(strip.bounds) == 2
        for one, other in zip(whole, cut_results, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert tensor_type(other, name) == tensor_type(one, name)
                torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)


class Net(nn.Module):
    """Convolutions, one of them depthwise, batch norms, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1, groups=32),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, stride=2, bias=False),
            nn.BatchNorm2d(48),
            nn.ReLU(),
        )
        self.mix = nn.Linear(48, 3 * 48)
        self.last = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.body(x).flatten(2).transpose(1, 2)
        parts = self.mix(tokens).reshape(len(x), -1, 3, 4, 12).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts.unbind())
        return self.last(mixed.transpose(1, 2).flatten(2).mean(1))  # type: ignore[no-any-return]


TINY = {"LEAST_WORKSPACE_BYTES": 256, "LEAST_SHARE": 0.0}


@pytest.fixture(autouse=True)
def _tiny_ones_too() -> Iterator[None]:
    with tiny_strips(**TINY):
        yield


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().train()


def traced(gradients: str = "stream") -> TrainingStep:
    return trace_training_step(net(), torch.zeros(2, 3, 12, 12), loss="cross-entropy", gradients=gradients)


@pytest.fixture(scope="module")
def step() -> TrainingStep:
    """Traced once, under the first test's settings."""
    with tiny_strips(**TINY):
        return traced()


def sliced(graph: Graph) -> dict[str, Op]:
    return {op.name: op for op in graph.ops if op.strip is not None and not op.strip.inner}


def targets(graph: Graph) -> set[str]:
    return {op.strip.links[0].call.target for op in sliced(graph).values() if op.strip is not None}


def test_what_has_a_large_workspace_is_sliced_and_needs_less(step: TrainingStep) -> None:
    whole = traced("keep")
    assert not sliced(whole.graph)
    assert {CONV, CONV_BACK} <= targets(step.graph)
    assert whole.digest == step.digest
    saved = [
        whole.kernels.of(name).workspace_bytes - step.kernels.of(name).workspace_bytes
        for name in sliced(step.graph)
    ]
    assert sum(saved) > 0
    assert statistics.median(saved) > 0  # of kernels as tiny as these, some save nothing
    assert any("in slices" in line for line in strip_lines(step.graph))


def test_a_slice_that_gives_other_bits_is_refused(step: TrainingStep, tmp_path: Path) -> None:
    """A running sum along what is cut begins anew in each slice."""
    relu = next(op for op in step.graph.ops if op.call.target == "aten.relu.default")
    call = Call("aten.cumsum.default", (*relu.call.args, 1))
    strip = Strip((Link(call, relu.outputs, ((0, 1),), ((0, 1),)),), (), 32, 2)
    wrong = replace(relu, call=strip.call, strip=strip)
    graph = replace(step.graph, ops=tuple(wrong if op is relu else op for op in step.graph.ops))
    write_step(tmp_path / "p", replace(step, graph=graph), None)
    with pytest.raises(ReplayError, match=f"op {relu.name} in 2 blocks gives other bits here"):
        Trainer.open(tmp_path / "p")


def test_batch_norm_is_cut_by_channels_alone() -> None:
    """Whether its trial passes depends on the batch; which blocks a plan may ask for does not."""
    whole = traced("keep")
    ways = (way for found in slice_candidates(whole.graph, whole.kernels) for way in found)
    way = next(way for way in ways if way.strip.links[0].call.target == NORM_BACK)
    graph = rewritten(whole.graph, [way.in_blocks(2).rewrite])
    check_calls(graph)
    name, op = next(iter(sliced(graph).items()))
    assert op.strip is not None
    link = op.strip.links[0]
    strip = replace(op.strip, links=(replace(link, cuts=link.cuts[:-1]),))
    ops = tuple(replace(op, strip=strip) if other.name == name else other for other in graph.ops)
    with pytest.raises(PlanError, match="its kernel takes"):
        check_calls(replace(graph, ops=ops))
