"""Costs of ops and transfers: something on every device, more for more work, and honest devices plausible."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from helpers import hand_net
from helpers.simulated_board import tensor_type
from hypothesis import given
from hypothesis import strategies as st

from poet.devices.cost_table import Amounts
from poet.devices.costs import _op_cost, buffer_cost, estimate, op_seconds
from poet.devices.figures import OpClass
from poet.devices.load import load_profile, profile_names
from poet.ir.graph import Call, Op, Ref, Value
from poet.ir.strips import copied_blocks
from poet.passes.in_place import strip_over

PROFILES = {name: load_profile(name) for name in profile_names()}
WITH_STORAGE = tuple(name for name, profile in PROFILES.items() if profile.storage is not None)


@pytest.mark.parametrize("name", profile_names())
def test_a_graph_costs_something_on_every_device(name: str) -> None:
    graph, profile = hand_net.graph(), load_profile(name)
    costs = estimate(graph, profile)
    assert set(costs.ops) == {op.name for op in graph.ops}
    assert set(costs.buffers) == {buffer.name for buffer in graph.buffers}
    for op in costs.ops.values():
        assert math.isfinite(op.seconds)
        assert op.seconds >= profile.compute.overhead_seconds(op.op_class)
        assert op.joules == pytest.approx(
            op.seconds * profile.marginal_watts(profile.compute.watts(op.op_class))
        )
    product = costs.ops["op_a"]
    assert product.op_class is OpClass.MATMUL
    assert product.flops == 2 * 8 * 64 * 64
    assert product.bytes_moved == 4 * (64 + 512 + 4096 + 512)
    update = costs.ops["update_first.weight"]
    assert update.bytes_moved == 4 * 3 * 4096  # parameter and gradient read, parameter written


@given(
    st.sampled_from(WITH_STORAGE),
    st.sampled_from(OpClass),
    st.integers(0, 10**12),
    st.integers(0, 10**10),
    st.integers(1, 10**6),
)
def test_more_work_never_takes_less_time(
    name: str, op_class: OpClass, flops: int, bytes_moved: int, more: int
) -> None:
    profile = PROFILES[name]
    seconds = op_seconds(profile, Amounts(op_class, flops, bytes_moved))
    assert op_seconds(profile, Amounts(op_class, flops + more, bytes_moved)) >= seconds
    assert op_seconds(profile, Amounts(op_class, flops, bytes_moved + more)) >= seconds
    small, large = buffer_cost(more, profile), buffer_cost(more + flops % 10**6, profile)
    assert small.page_out is not None
    assert large.page_out is not None
    assert large.page_out.seconds >= small.page_out.seconds
    assert large.page_out.joules >= small.page_out.joules


def test_a_pi_multiplies_some_five_hundred_times_faster_than_it_adds() -> None:
    """Elementwise ops move 12 bytes per FLOP, so the memory holds them down."""
    profile = load_profile("rpi4b")
    elements = 10**6
    product = 2e9 / op_seconds(profile, Amounts(OpClass.MATMUL, 2e9, 12 * elements))
    addition = elements / op_seconds(profile, Amounts(OpClass.ELEMENTWISE, elements, 12 * elements))
    assert 450 < product / addition < 600


def test_nor_flash_is_erased_before_it_is_written() -> None:
    """The maker's 141 KB/s and 350 nJ per byte written, against a few nJ per byte read."""
    cost = buffer_cost(1 << 16, load_profile("nrf52840"))
    assert cost.page_in is not None
    assert cost.page_out is not None
    assert (1 << 16) / cost.page_out.seconds == pytest.approx(141e3, rel=0.03)
    assert cost.page_out.joules / (1 << 16) == pytest.approx(350e-9, rel=0.03)
    assert 50 < cost.page_out.joules / cost.page_in.joules < 1000


def test_a_card_on_an_m0_is_slower_than_published() -> None:
    ours, theirs = (
        buffer_cost(1 << 14, load_profile(name)).page_out for name in ("mkr1000", "compat-mkr1000")
    )
    assert ours is not None
    assert theirs is not None
    assert 5 < ours.seconds / theirs.seconds < 20
    assert ours.joules / (1 << 14) == pytest.approx(0.7e-6, rel=0.2)


def test_transfers_are_whole_pages_and_whole_erase_blocks() -> None:
    profile = load_profile("nrf52840")
    assert profile.storage is not None
    assert profile.storage.erase is not None
    one, full, beyond = (buffer_cost(size, profile) for size in (1, 4096, 4097))
    assert (one.stored_bytes, full.stored_bytes, beyond.stored_bytes) == (256, 4096, 4352)
    assert full.page_out is not None
    assert beyond.page_out is not None
    extra_seconds = beyond.page_out.seconds - full.page_out.seconds
    page_seconds = 256 / profile.storage.write.bandwidth_bytes_per_second.value
    assert extra_seconds == pytest.approx(profile.storage.erase.block_seconds.value + page_seconds)


def test_the_documented_break_even_between_paging_and_recomputing() -> None:
    """Joules of paging 64 KiB out and in, per element, over joules per FLOP of a matrix product."""
    document = (Path(__file__).parents[2] / "docs" / "boards.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `(\S+)` \| ([\d.]+) \|$", document, re.M))
    assert len(said) >= 4
    assert set(said) <= set(WITH_STORAGE)
    for name, flops_per_element in said.items():
        profile, idle_watts = load_profile(name), load_profile(name).charged_idle_watts
        cost = buffer_cost(1 << 16, profile)
        assert cost.page_in is not None
        assert cost.page_out is not None
        paging = sum(way.joules + idle_watts * way.seconds for way in (cost.page_in, cost.page_out))
        busy_watts = idle_watts + profile.marginal_watts(profile.compute.watts(OpClass.MATMUL))
        joules_per_flop = busy_watts * op_seconds(profile, Amounts(OpClass.MATMUL, 1e12, 0)) / 1e12
        assert float(flops_per_element) == pytest.approx(paging / (1 << 14) / joules_per_flop, rel=0.02)


@pytest.mark.parametrize("samples", [1, 4])
def test_what_is_copied_over_an_operand_costs_its_blocks(samples: int) -> None:
    """A call for each block and what copies ask for: of channels, which lie apart in several samples."""
    profile = PROFILES["rpi4b"]
    kind, of_channel = tensor_type(samples, 64, 32, 32), tensor_type(64)
    values = [Value(name, name, kind) for name in ("g", "x")]
    values += [Value(name, name, of_channel) for name in ("w", "m", "s", "gw", "gb")]
    given = ("g", "x", "w", None, None, "m", "s")
    arguments = tuple(None if name is None else Ref(name) for name in given)
    call = Call("aten.native_batch_norm_backward.default", (*arguments, True, 1e-5, (True, True, True)))
    apart = Op("b", call, ("r", "gw", "gb"))
    result = Value("r", "r", kind)
    over = strip_over(apart, "g", result)
    costs = []
    for op in (apart, Op("b", over.call, ("gw", "gb"), updates=("g",), repeatable=False, strip=over)):
        types = {value.name: value.type for value in (*values, result)}
        costs.append(_op_cost(op, types, {"g": kind.extent_bytes}, profile, {}))
    blocks = copied_blocks(kind.extent_bytes, 64)
    assert len(blocks) == (4 if samples == 1 else 16)
    assert [stop for _, stop in blocks[:-1]] == [start for start, _ in blocks[1:]]
    call_seconds = profile.compute.overhead_seconds(OpClass.MOVEMENT)
    calls = len(blocks) * (4 if samples == 1 else 6)  # kernel, its result, two sums; both operands
    more_seconds = costs[1].seconds - costs[0].seconds
    assert more_seconds >= (calls - 1) * call_seconds
    assert more_seconds <= calls * call_seconds + 2.5 * kind.extent_bytes / 1e9
