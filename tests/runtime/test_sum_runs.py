"""Sums over blocks: a convolution's gradient of its input, some output channels after the other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.pace import with_slow
from helpers.schedules import keep_everything, random_schedule
from torch import Tensor, nn

from poet.devices.costs import estimate
from poet.devices.load import load_profile
from poet.errors import ReplayError
from poet.frontend.trace import trace_training_step
from poet.ir.graph import Graph, Link, Op, Strip, TensorType
from poet.ir.kernel_facts import KernelFacts
from poet.passes.rewrite import rewritten
from poet.passes.strips import sums_of
from poet.plans.plan_file import write_plan
from poet.runtime import Trainer
from poet.runtime.kernels.arguments import tensor_type
from poet.runtime.kernels.strips import StripRun
from poet.runtime.storage.state import raw_tensor
from poet.runtime.system.process import torch_threads
from poet.runtime.trials.blocks import is_exact
from poet.runtime.trials.measure import measured
from poet.runtime.trials.trial import same_bits
from poet.verification import verify

BACK = "aten.convolution_backward.default"


def net() -> nn.Module:
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
        self.step = trace_training_step(net(), X, loss="cross-entropy", gradients="keep")
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
    verify(tmp_path / "p", module=net(), steps=2, threads=(1, 2)).require()


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
