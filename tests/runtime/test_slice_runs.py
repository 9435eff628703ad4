"""Slices of one op, and sums over them: each way to cut a call means the whole, bits decide."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.hand_net import write_step
from helpers.pace import with_slow
from helpers.part_nets import tiny_strips
from helpers.schedules import keep_everything, random_schedule
from torch import Tensor, nn

from poet import api
from poet.devices.costs import estimate
from poet.devices.load import load_profile
from poet.errors import PlanError, ReplayError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Argument, Blank, Call, Graph, Link, Op, Ref, Strip, TensorType, Value
from poet.ir.kernel_facts import KernelFacts
from poet.ir.operators import SPECS
from poet.ir.strips import check_strip
from poet.passes import compressed, cuts
from poet.passes.cuts import slice_cuts
from poet.passes.rewrite import rewritten
from poet.passes.strips import slice_candidates, sums_of
from poet.planning.ram_survey import keep_everything_bytes
from poet.plans.plan_file import write_plan
from poet.problem import Limits
from poet.problem.solution import SolveOptions
from poet.report.check import strip_lines
from poet.runtime import Trainer, kernels
from poet.runtime.data.random_batches import random_batch
from poet.runtime.kernels.arguments import tensor_type
from poet.runtime.kernels.guards import check_calls
from poet.runtime.kernels.strips import StripRun
from poet.runtime.storage.state import raw_tensor
from poet.runtime.system.process import torch_threads
from poet.runtime.trials.blocks import is_exact
from poet.runtime.trials.measure import measured
from poet.runtime.trials.trial import same_bits
from poet.verification import verify

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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.slow
def test_blocks_and_results_lie_at_their_planned_places(threads: int, tmp_path: Path) -> None:
    torch.set_num_threads(threads)
    # without attention, whose gradients whole ask for memory from two threads in an order of chance
    body = nn.Sequential(Net().body, nn.Flatten(), nn.Linear(48 * 25, 10)).train()
    prepared = api.prepare(body, torch.zeros(2, 3, 12, 12), device="rpi4b", loss="cross-entropy")
    assert sliced(prepared.step.graph)
    most = keep_everything_bytes(prepared.problem)
    limits = Limits(ram_budget_bytes=int(0.9 * most))
    planned = api.plan_step(prepared, limits, SolveOptions(time_limit_seconds=1.0))
    planned.save(tmp_path / "p")
    losses = {}
    for arena in (True, False):
        with Trainer.open(tmp_path / "p", arena=arena) as trainer:
            losses[arena] = [trainer.step(*random_batch(planned.plan, number)).loss for number in range(4)]
            if arena:
                assert trainer.memory.endswith("as planned")
                assert trainer._tensors.placed is not None
                assert trainer._tensors.placed.misses == 0
    assert losses[True] == losses[False]


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


def test_rows_name_rules_that_exist_and_no_rule_is_idle() -> None:
    rows = SPECS.values()
    along = {rule.name for row in rows for rule in (row.gradient_cut, row.passing_cut) if rule}
    assert along == cuts._CUTS.keys()
    assert {rule.name for row in rows for rule in (row.slices, row.sums) if rule} == cuts._SLICES.keys()
    assert {row.saved for row in rows if row.saved} == compressed._RULES.keys()


# --- sums over blocks of output channels, of a convolution's gradient of its input ---------------


BACK = "aten.convolution_backward.default"


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.Conv2d(64, 48, 3, stride=2, bias=False), nn.ReLU(),
        nn.ConvTranspose2d(48, 32, 2), nn.Flatten(), nn.Linear(32 * 36, 10),
    ).train()  # fmt: skip


X = torch.zeros(2, 3, 12, 12)


class Summed:
    """A step of which every gradient of a convolution's input that can be is summed up."""

    def __init__(self) -> None:
        self.step = trace_training_step(conv_net(), X, loss="cross-entropy", gradients="keep")
        self.whole = self.step.graph
        self.types = {value.name: value.type for value in self.whole.values}
        self.values = {value.name: value for value in self.whole.values}
        self.ways = {
            op.name: way.in_blocks(counts[0])
            for op in self.whole.ops
            for way, counts in sums_of(op, self.types)
        }
        exact = [way for way in self.ways.values() if is_exact(way.strip, way.outputs, self.values)]
        self.exact = {way.of for way in exact}
        self.graph, self.kernels = measured(rewritten(self.whole, [way.rewrite for way in exact]))

    def write(self, path: Path, seed: int | None, graph: Graph, kernels: KernelFacts) -> None:
        of = hand_net.problem(graph, kernels=kernels)
        schedule = keep_everything(of) if seed is None else random_schedule(of, seed)
        plan = hand_net.plan(
            of, graph, schedule,
            optimizer=self.step.optimizer, loss="cross-entropy", slack=1.0, kernels=kernels,
        )  # fmt: skip
        write_plan(path, plan, {name: raw_tensor(item) for name, item in self.step.tensors.items()})


@pytest.fixture(scope="module")
def summed() -> Summed:
    made = Summed()
    if not made.exact:
        pytest.skip("on this processor no sum over blocks has the bits of the whole")
    return made


def given(op: Op, types: dict[str, TensorType], special: Tensor | None = None) -> dict[str, Tensor]:
    """Random contents of what ``op`` reads, some of them of ``special``."""
    generator = torch.Generator().manual_seed(1)
    found = {}
    for name in dict.fromkeys(op.call.refs()):
        kind = types[name]
        item = torch.empty_strided(kind.shape, kind.strides)
        item.copy_(torch.randn(kind.shape, generator=generator))
        if special is not None:
            flat = item.view(-1)
            places = torch.randint(len(flat), (len(flat) // 50,), generator=generator)
            flat[places] = special[torch.randint(len(special), places.shape, generator=generator)]
        found[name] = item
    return found


def test_each_block_has_sixteen_channels(summed: Summed) -> None:
    """Of convolutions, transposed or not, along the dimension of their output channels."""
    assert {way.strip.size: len(way.strip.bounds) for way in summed.ways.values()} == {64: 4, 48: 3, 32: 2}
    cuts = {way.strip.size: dict(way.strip.links[0].cuts) for way in summed.ways.values()}
    assert cuts == {64: {0: 1, 2: 0}, 48: {0: 1, 2: 0}, 32: {0: 1, 2: 1}}
    assert all(way.strip.links[0].sums == (0,) for way in summed.ways.values())


def test_a_sum_means_the_whole(summed: Summed) -> None:
    for way in summed.ways.values():
        tensors = given(way.last, summed.types)
        one, other = (
            StripRun(way.strip, way.outputs, summed.types, is_whole=is_whole).run(tensors.__getitem__, float)
            for is_whole in (True, False)
        )
        assert one[0] is not None
        assert other[0] is not None
        assert tensor_type(one[0], way.of) == tensor_type(other[0], way.of)
        torch.testing.assert_close(other[0], one[0], rtol=1e-4, atol=1e-4)
        assert same_bits(one[0], other[0]) == (way.of in summed.exact)


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_exact_is_so_with_special_values(summed: Summed, threads: int) -> None:
    """Zeros of both signs, infinities and NaN among the numbers."""
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan])
    assert summed.exact
    for name in summed.exact:
        way = summed.ways[name]
        for contents in (special, special[:2]):
            tensors = given(way.last, summed.types, contents)
            with torch_threads(threads):
                one, other = (
                    StripRun(way.strip, way.outputs, summed.types, is_whole=is_whole).run(
                        tensors.__getitem__, float
                    )[0]
                    for is_whole in (True, False)
                )
            assert one is not None
            assert other is not None
            assert torch.equal(one.isnan(), other.isnan())
            assert bool(one.isnan().any()) == (contents is special)
            assert same_bits(one.nan_to_num(), other.nan_to_num())


@pytest.mark.parametrize("seed", with_slow([None, 1, 2], {2}))
def test_any_schedule_gives_the_bits_of_plain_pytorch(
    summed: Summed, seed: int | None, tmp_path: Path
) -> None:
    assert any(op.strip is not None for op in summed.graph.ops)
    summed.write(tmp_path / "p", seed, summed.graph, summed.kernels)
    verify(tmp_path / "p", module=conv_net(), steps=2, threads=(1, 2)).require()


def test_a_sum_asks_for_less_memory(summed: Summed) -> None:
    """Of weights as small as these, two results and a block may be more: of 64 channels it is less."""
    name = next(name for name, way in summed.ways.items() if way.strip.size == 64)
    assert name in summed.exact
    assert summed.kernels.of(name).workspace_bytes < summed.step.kernels.of(name).workspace_bytes


def test_a_result_of_another_layout_is_copied(summed: Summed) -> None:
    way = summed.ways[next(iter(summed.exact))]
    (name,) = (name for name in way.outputs if name is not None)
    kind = summed.types[name]
    last = torch.empty(kind.shape).contiguous(memory_format=torch.channels_last)
    other = {**summed.types, name: tensor_type(last, name)}
    tensors = given(way.last, summed.types)
    expected, made = (
        StripRun(way.strip, way.outputs, types).run(tensors.__getitem__, float)[0]
        for types in (summed.types, other)
    )
    assert expected is not None
    assert made is not None
    assert made.stride() == last.stride() != expected.stride()
    assert torch.equal(made, expected)


def test_a_sum_that_gives_other_bits_is_refused(summed: Summed, tmp_path: Path) -> None:
    """A rectifier's result is no sum over samples."""
    relu = next(op for op in summed.whole.ops if op.call.target == "aten.relu.default")
    strip = Strip((Link(relu.call, relu.outputs, ((0, 0),), (), (0,)),), (), 2, 2)
    wrong = replace(relu, call=strip.call, strip=strip)
    graph = replace(summed.whole, ops=tuple(wrong if op is relu else op for op in summed.whole.ops))
    summed.write(tmp_path / "p", None, graph, summed.step.kernels)
    with pytest.raises(ReplayError, match=f"op {relu.name} in 2 blocks gives other bits here"):
        Trainer.open(tmp_path / "p")


def test_additions_are_charged(summed: Summed) -> None:
    profile = load_profile("rpi4b")
    whole, parts = (
        estimate(rewritten(summed.whole, [way.rewrite for way in ways]), profile).ops
        for ways in ((), summed.ways.values())
    )
    overhead = profile.compute.call_overhead_seconds.value
    for name, way in summed.ways.items():
        blocks = len(way.strip.bounds)
        (result,) = (name for name in way.outputs if name is not None)
        assert parts[name].bytes_moved - whole[name].bytes_moved == (
            3 * (blocks - 1) * summed.types[result].extent_bytes
        )
        assert parts[name].seconds > whole[name].seconds + 2 * (blocks - 1) * overhead
