"""The published model: profiles of its platforms give the costs that its authors wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from poet.devices.cost_table import Amounts
from poet.devices.costs import buffer_cost, op_seconds
from poet.devices.figures import OpClass
from poet.devices.load import load_profile
from poet.problem import Problem

INSTANCES = Path(__file__).parents[1] / "instances"
PUBLISHED = {
    "linear.m4": "compat-m4f",
    "transformer.m4": "compat-m4f",
    "resnet18_cifar.m4": "compat-m4f",
    "resnet18_cifar.a72": "compat-rpi",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_costs_are_reproduced(name: str) -> None:
    """Every transfer from its bytes, every op from a whole number of FLOPs, to 1e-9."""
    profile, problem = load_profile(PUBLISHED[name]), Problem.load(INSTANCES / f"{name}.json")
    for tensor in problem.tensors:
        cost = buffer_cost(tensor.bytes, profile)
        for ours, theirs in ((cost.page_in, tensor.page_in), (cost.page_out, tensor.page_out)):
            assert ours is not None
            assert theirs is not None
            assert ours.seconds == pytest.approx(theirs.seconds, rel=1e-9, abs=0)
            assert ours.joules == pytest.approx(theirs.joules, rel=1e-9, abs=0)
        assert cost.stored_bytes == tensor.bytes
    throughput = profile.compute.throughput(OpClass.MATMUL)
    assert throughput is not None
    for op in problem.ops:
        flops = round(op.seconds * throughput.flops_per_second.value)
        seconds = op_seconds(profile, Amounts(OpClass.MATMUL, flops, bytes_moved=10**9))
        assert seconds == pytest.approx(op.seconds, rel=1e-9, abs=0)
        joules = seconds * profile.marginal_watts(profile.compute.watts(OpClass.MATMUL))
        assert joules == pytest.approx(op.joules, rel=1e-9, abs=0)


def test_the_other_two_published_platforms() -> None:
    """FLOP per second and per joule of platforms m0 and a72nocache, as their authors write them."""
    for name, flops_per_second, flops_per_joule in (
        ("compat-mkr1000", 2000 / 0.012, 2000 / (0.012 * 0.020 * 3.3)),
        ("compat-rpi-nocache", 16283e5 / 13.53, 16283e5 / (13.53 * 0.6 * 5)),
    ):
        profile = load_profile(name)
        seconds = op_seconds(profile, Amounts(OpClass.ELEMENTWISE, 1e6, 0))
        assert seconds == pytest.approx(1e6 / flops_per_second, rel=1e-12)
        joules = seconds * profile.compute.watts(OpClass.ELEMENTWISE)
        assert joules == pytest.approx(1e6 / flops_per_joule, rel=1e-12)
    uncached, cached = (
        buffer_cost(65536, load_profile(name)) for name in ("compat-rpi-nocache", "compat-rpi")
    )
    assert uncached.page_in == cached.page_in
    assert uncached.page_out is not None
    assert uncached.page_out.seconds == pytest.approx(4.23532e-3 + 65536 / 17.1e6, rel=1e-12)
