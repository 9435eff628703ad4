"""Costs: counted as PyTorch counts them, the published model reproduced, honest devices plausible."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import hand_net
from helpers.schedules import keep_everything
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from poet.devices.amounts import Amounts, amounts_for
from poet.devices.cost_rules import Operands
from poet.devices.cost_table import TABLE, row_of
from poet.devices.costs import _op_cost, buffer_cost, estimate, op_seconds
from poet.devices.device_problem import build_problem, deadline_seconds, kernels_on
from poet.devices.load import load_profile, profile_names
from poet.devices.profile import PARENT, OpClass, Profile
from poet.errors import InputError, ProfileError, UnsupportedOperator
from poet.frontend.in_place import strip_over
from poet.graph import Argument, Blank, Buffer, Call, Graph, Op, Ref, Role, TensorType, Value
from poet.kernel_allocations import KernelAllocation
from poet.kernel_facts import KernelFacts, OpFacts
from poet.operators import ATEN, OWN
from poet.problem import Place, Problem
from poet.simulator import simulate
from poet.strips import copied_blocks

PROFILES = {name: load_profile(name) for name in profile_names()}
WITH_STORAGE = tuple(name for name, profile in PROFILES.items() if profile.storage is not None)
INSTANCES = Path(__file__).parents[1] / "instances"
PUBLISHED = {
    "linear.m4": "compat-m4f",
    "transformer.m4": "compat-m4f",
    "resnet18_cifar.m4": "compat-m4f",
    "resnet18_cifar.a72": "compat-rpi",
}


def _contiguous(*shape: int, dtype: str = "float32") -> TensorType:
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return TensorType(dtype, shape, tuple(strides))


def _operands(target: str, *arguments: Any, outputs: tuple[TensorType | None, ...]) -> Operands:
    """Tensor types among ``arguments`` become values."""
    types: dict[str, TensorType] = {}

    def given_as(argument: Any) -> Argument:
        if isinstance(argument, TensorType):
            types[f"v{len(types)}"] = argument
            return Ref(f"v{len(types) - 1}")
        return tuple(map(given_as, argument)) if isinstance(argument, tuple) else argument

    return Operands(Call(target, tuple(map(given_as, arguments))), types, outputs)


# --- the published model ----------------------------------------------------------------------


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


# --- the table --------------------------------------------------------------------------------


IMAGES, WIDE = _contiguous(1, 8, 6, 6), _contiguous(8, 8, 3, 3)
EACH, PAIRS, ACROSS = _contiguous(8, 1, 3, 3), _contiguous(8, 2, 3, 3), _contiguous(8, 8, 1, 1)


@pytest.mark.parametrize(
    ("weight", "groups", "forward", "backward"),
    [
        (WIDE, 1, OpClass.CONVOLUTION, OpClass.CONVOLUTION_BACKWARD),
        (EACH, 8, OpClass.DEPTHWISE, OpClass.DEPTHWISE_BACKWARD),
        (PAIRS, 4, OpClass.GROUPED, OpClass.GROUPED),
        (ACROSS, 1, OpClass.POINTWISE, OpClass.POINTWISE_BACKWARD),
    ],
)
def test_a_convolution_is_of_the_class_whose_kernel_it_takes(
    weight: TensorType, groups: int, forward: OpClass, backward: OpClass
) -> None:
    where = ((1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    ahead = _operands("aten.convolution.default", IMAGES, weight, None, *where, outputs=(IMAGES,))
    assert row_of("aten.convolution.default").class_of(ahead) is forward
    mask = (True, True, False)
    back = _operands(
        "aten.convolution_backward.default",
        IMAGES,
        IMAGES,
        weight,
        None,
        *where,
        mask,
        outputs=(IMAGES, weight),
    )
    assert row_of("aten.convolution_backward.default").class_of(back) is backward


def test_a_class_without_a_table_costs_what_its_parent_does() -> None:
    data = load_profile("rpi4b-xnnpack").model_dump()
    for op_class, parent in PARENT.items():
        before = Profile.model_validate(data).compute
        assert before.throughput(op_class) is before.throughput(parent), op_class
        own = copy.deepcopy(data)
        own["compute"][op_class.value] = {
            "flops_per_second": {"value": 1e9, "kind": "assumed", "source": "a test"}
        }
        after = Profile.model_validate(own).compute
        changed = {item for item in OpClass if after.throughput(item) != before.throughput(item)}
        assert changed == {op_class} | {item for item in OpClass if _descends(item, op_class)}


@pytest.mark.parametrize(
    ("target", "shape", "dim", "expected"),
    [
        ("aten._log_softmax.default", (8, 10), 1, OpClass.SHORT_ROWS),
        ("aten._softmax.default", (8, 15), -1, OpClass.SHORT_ROWS),
        ("aten._log_softmax.default", (8, 16), 1, OpClass.TRANSCENDENTAL),
        ("aten._softmax.default", (10, 8), 0, OpClass.TRANSCENDENTAL),
        ("aten._log_softmax.default", (8, 4, 9, 9), 1, OpClass.TRANSCENDENTAL),
    ],
)
def test_rows_that_fill_no_vector_are_a_class_of_their_own(
    target: str, shape: tuple[int, ...], dim: int, expected: OpClass
) -> None:
    given = _contiguous(*shape)
    assert row_of(target).class_of(_operands(target, given, dim, False, outputs=(given,))) is expected
    if "log" in target:
        back = _operands(
            "aten._log_softmax_backward_data.default", given, given, dim, "float32", outputs=(given,)
        )
        assert row_of(back.call.target).class_of(back) is expected


@pytest.mark.parametrize(
    ("shape", "groups", "factor"),
    [
        ((32, 32, 3, 3), 1, 1.0),
        ((24, 24, 3, 3), 1, (32 / 24) ** 2),
        ((20, 3, 3, 3), 1, 32 / 20),  # a first layer's three channels lie as they are
        ((20, 16, 1, 1), 1, 32 / 20),
        ((4, 1, 3, 3), 4, 1.0),
    ],
)
def test_blocks_of_channels_are_filled_up_where_the_profile_has_them(
    shape: tuple[int, ...], groups: int, factor: float
) -> None:
    images = _contiguous(2, shape[1] * groups, 8, 8)
    where = (None, (1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    given = _operands(
        "aten.convolution.default",
        images,
        _contiguous(*shape),
        *where,
        outputs=(_contiguous(2, shape[0], 8, 8),),
    )
    amounts = amounts_for(given, "op", "its operator")
    assert amounts.padded_flops(16) == pytest.approx(factor * amounts.flops)
    plain = load_profile("rpi4b")
    data = plain.model_dump()
    data["compute"]["convolution_block_channels"] = {
        "value": 16, "kind": "assumed", "source": "a test", "uncertainty": 0.0
    }  # fmt: skip
    data["memory"]["bandwidth_bytes_per_second"]["value"] = 1e15
    data["memory"]["bandwidth_bytes_per_second"]["range"] = None
    blocks = Profile.model_validate(data)
    data["compute"]["convolution_block_channels"] = None
    without = Profile.model_validate(data)
    call_seconds = plain.compute.overhead_seconds(amounts.op_class)
    ratio = (op_seconds(blocks, amounts) - call_seconds) / (op_seconds(without, amounts) - call_seconds)
    assert ratio == pytest.approx(factor)


def _descends(op_class: OpClass, ancestor: OpClass) -> bool:
    parent = PARENT.get(op_class)
    return parent is not None and (parent is ancestor or _descends(parent, ancestor))


def test_every_operator_a_plan_may_call_has_a_row_and_no_row_is_idle() -> None:
    allowed = {*ATEN, *OWN}
    for target in allowed:
        row_of(target)
    packets = {target.rpartition(".")[0] for target in ATEN}
    assert set(TABLE) <= allowed | packets


def test_an_operator_without_a_row_is_named() -> None:
    with pytest.raises(UnsupportedOperator, match=r"aten\.conv3d\.default has no row in the cost table"):
        row_of("aten.conv3d.default")
    with pytest.raises(UnsupportedOperator, match=r"did you mean 'aten\.relu\.default'"):
        row_of("aten.reul.default")


CONVOLUTIONS = [
    ((2, 6, 9, 9), (8, 6, 3, 3), (1, 1), (1, 1), False, 1),
    ((1, 6, 9, 9), (8, 3, 3, 3), (2, 2), (1, 1), False, 2),
    ((1, 6, 9, 9), (6, 1, 3, 3), (1, 1), (1, 1), False, 6),
    ((1, 6, 9, 9), (6, 4, 3, 3), (2, 2), (1, 1), True, 1),
    ((3, 4, 11), (5, 4, 3), (1,), (0,), False, 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_count_as_pytorch_counts(case: tuple[Any, ...]) -> None:
    image, kernel, stride, padding, transposed, groups = case
    x, w = torch.randn(image), torch.randn(kernel)
    zeros = (0,) * len(stride)
    ones = (1,) * len(stride)
    rest = (stride, padding, ones, transposed, zeros, groups)
    with FlopCounterMode(display=False) as forward:
        y = torch.ops.aten.convolution(x, w, None, *rest)
    types = [_contiguous(*tensor.shape) for tensor in (x, w, y)]
    call = _operands("aten.convolution.default", types[0], types[1], None, *rest, outputs=(types[2],))
    assert row_of(call.call.target).flops(call) == forward.get_total_flops()
    for mask in itertools.product((False, True), repeat=2):
        with FlopCounterMode(display=False) as backward:
            torch.ops.aten.convolution_backward(y, x, w, None, *rest, (*mask, False))
        call = _operands(
            "aten.convolution_backward.default",
            types[2], Blank(types[0]), types[1], None, *rest, (*mask, False),
            outputs=(types[0] if mask[0] else None, types[1] if mask[1] else None, None),
        )  # fmt: skip
        counted = row_of(call.call.target).flops(call)
        assert counted == sum(mask) * forward.get_total_flops()
        if groups == 1:  # PyTorch forgets the groups in the weight's gradient
            assert counted == backward.get_total_flops()


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(3, 5), (5, 7)]),
        ("bmm", [(2, 3, 5), (2, 5, 7)]),
        ("addmm", [(7,), (3, 5), (5, 7)]),
        ("baddbmm", [(2, 3, 7), (2, 3, 5), (2, 5, 7)]),
    ],
)
def test_matrix_products_count_as_pytorch_counts(name: str, shapes: list[tuple[int, ...]]) -> None:
    with FlopCounterMode(display=False) as counter:
        result = getattr(torch.ops.aten, name).default(*(torch.randn(shape) for shape in shapes))
    call = _operands(
        f"aten.{name}.default", *(_contiguous(*s) for s in shapes), outputs=(_contiguous(*result.shape),)
    )
    assert row_of(call.call.target).flops(call) == counter.get_total_flops()


def test_attention_counts_its_two_products_and_five_in_backward() -> None:
    q, kv = _contiguous(2, 4, 10, 16), _contiguous(2, 4, 12, 16)
    products = 2 * 4 * 2 * 10 * 12 * 16  # batch × heads × one 10×16 by 16×12 product
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    forward = _operands(f"{name}.default", q, kv, kv, outputs=(q, _contiguous(2, 4, 10)))
    assert row_of(forward.call.target).flops(forward) == 2 * products
    backward = _operands(f"{name}_backward.default", q, q, kv, kv, outputs=(q, kv, kv))
    assert row_of(backward.call.target).flops(backward) == 5 * products


_IMAGE, _POOLED, _FIVE = _contiguous(1, 2, 8, 8), _contiguous(1, 2, 4, 4), _contiguous(5)
_SEQUENCE, _STATES = _contiguous(3, 2, 5), _contiguous(3, 2, 4)
BY_HAND = [
    (_operands("aten.max_pool2d_with_indices.default", _IMAGE, (2, 2), outputs=(_POOLED,)), 128),
    (_operands("aten.avg_pool2d.default", _IMAGE, (2,), outputs=(_POOLED,)), 128),
    (_operands("aten.sum.dim_IntList", _contiguous(4, 6), (0,), outputs=(_contiguous(6),)), 24),
    (_operands("aten.pow.Tensor_Scalar", _FIVE, 2, outputs=(_FIVE,)), 20),
    (_operands("aten.pow.Tensor_Tensor", _FIVE, _FIVE, outputs=(_FIVE,)), 10),
    (_operands("poet.sgd", _FIVE, _FIVE, 0.1, 0.0, outputs=()), 20),
    (_operands("aten.cat.default", (_FIVE, _contiguous(4)), 0, outputs=(_contiguous(9),)), 9),
    (
        _operands(
            "aten.mkldnn_rnn_layer.default",
            _SEQUENCE, _contiguous(16, 5), _contiguous(16, 4),
            outputs=(_STATES,),
        ),
        2 * 6 * (80 + 64),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "flops"), BY_HAND, ids=[call.call.target for call, _ in BY_HAND])
def test_rules_by_hand(call: Operands, flops: int) -> None:
    assert row_of(call.call.target).flops(call) == flops


def test_bytes_are_those_of_the_views_that_are_read() -> None:
    """A broadcast row is read once, a slice as far as it goes, an embedding's table where it is looked up."""
    row, wide = TensorType("float32", (8, 64), (0, 1)), _contiguous(8, 64)
    call = _operands("aten.add.Tensor", row, wide, outputs=(wide,))
    assert row_of(call.call.target).bytes_moved(call) == 4 * (64 + 512 + 512)
    looked_up = _operands(
        "aten.embedding.default",
        _contiguous(30_000, 8),
        _contiguous(4, dtype="int64"),
        outputs=(_contiguous(4, 8),),
    )
    assert row_of(looked_up.call.target).bytes_moved(looked_up) == 128 + 32 + 128
    norm = _operands(
        "aten.native_batch_norm.default", _contiguous(2, 8), outputs=(_contiguous(2, 8), None, None)
    )
    assert row_of(norm.call.target).bytes_moved(norm) == 3 * 64


# --- the estimate -----------------------------------------------------------------------------


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
    document = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `(\S+)` \| ([\d.]+) \|$", document, re.M))
    assert set(said) == set(WITH_STORAGE)
    for name, flops_per_element in said.items():
        profile, idle_watts = load_profile(name), load_profile(name).charged_idle_watts
        cost = buffer_cost(1 << 16, profile)
        assert cost.page_in is not None
        assert cost.page_out is not None
        paging = sum(way.joules + idle_watts * way.seconds for way in (cost.page_in, cost.page_out))
        busy_watts = idle_watts + profile.marginal_watts(profile.compute.watts(OpClass.MATMUL))
        joules_per_flop = busy_watts * op_seconds(profile, Amounts(OpClass.MATMUL, 1e12, 0)) / 1e12
        assert float(flops_per_element) == pytest.approx(paging / (1 << 14) / joules_per_flop, rel=0.02)


# --- the problem ------------------------------------------------------------------------------


def _without_storage(profile: Profile) -> Profile:
    return profile.model_copy(update={"storage": None})


def _problem(graph: Graph, profile: Profile, *, workspace_bytes: int = 0, home: Place = Place.RAM) -> Problem:
    """Where torch's kernels were measured to need ``workspace_bytes`` each."""
    ops = tuple(OpFacts(op.name, workspace_bytes) for op in graph.ops)
    kernels = kernels_on(profile, graph, KernelFacts("pytorch-cpu", ops))
    return build_problem(graph, profile, kernels, home=home)


def _frozen(graph: Graph) -> Graph:
    """The hand-written net with its first bias frozen."""
    ops = tuple(op for op in graph.ops if op.name != "update_first.bias")
    parameters = tuple(
        dataclasses.replace(p, gradient=None) if p.name == "first.bias" else p for p in graph.parameters
    )
    return dataclasses.replace(graph, ops=ops, parameters=parameters)


@pytest.mark.parametrize("name", WITH_STORAGE)
@pytest.mark.parametrize("home", [Place.RAM, Place.STORAGE])
def test_the_problem_of_a_training_step(name: str, home: Place) -> None:
    graph, profile = _frozen(hand_net.graph()), load_profile(name)
    problem = _problem(graph, profile, home=home)
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    weight, frozen = tensors["b_first.weight"], tensors["b_first.bias"]
    if home is Place.RAM:
        assert (weight.initially, weight.finally_) == (Place.RAM, Place.RAM)
        assert (frozen.initially, frozen.finally_) == (Place.BOTH, Place.RAM)
        simulate(problem, keep_everything(problem))
    else:
        assert (weight.initially, weight.finally_) == (Place.STORAGE, Place.STORAGE)
        assert (frozen.initially, frozen.finally_) == (Place.STORAGE, None)
    for handed_over in ("b_loss", "b_p"):
        assert (tensors[handed_over].initially, tensors[handed_over].finally_) == (None, Place.RAM)
    assert (tensors["b_x"].initially, tensors["b_x"].finally_) == (None, None)
    assert tensors["b_h"].role == "saved-for-backward"
    ops = {op.name: op for op in problem.ops}
    assert ops["update_first.weight"].updates == ("b_first.weight",)
    assert not ops["update_first.weight"].recomputable
    assert ops["op_h"].recomputable
    assert problem.alignment_bytes == profile.memory.alignment_bytes.value
    assert problem.idle_watts == profile.charged_idle_watts
    assert problem.kernels == profile.kernels.name
    assert Problem.from_json(json.loads(json.dumps(problem.to_json()))) == problem


def test_a_recomputation_reads_what_its_repeat_call_reads() -> None:
    """A mask is drawn once from the generator and again from the generator's saved state."""
    type_, state = _contiguous(16), _contiguous(5056, dtype="uint8")
    size = (16,), (1,)
    graph = Graph(
        name="random",
        buffers=tuple(
            Buffer(name, size_bytes, role)
            for name, size_bytes, role in (("x", 64, Role.INPUT), ("s", 5056, Role.ACTIVATION),
                                           ("m", 64, Role.SAVED), ("y", 64, Role.ACTIVATION))
        ),
        values=tuple(Value(name, name, state if name == "s" else type_) for name in "xsmy"),
        ops=(
            Op("state", Call("poet.rng_state", ()), ("s",), repeatable=False),
            Op(
                "mask",
                Call("poet.bernoulli", (*size, "float32", 0.5)),
                ("m",),
                repeat_call=Call("poet.with_rng_state", (Ref("s"), "poet.bernoulli", *size, "float32", 0.5)),
                random=True,
            ),
            Op("product", Call("aten.mul.Tensor", (Ref("x"), Ref("m"))), ("y",)),
        ),
        inputs=("x",),
        targets=0,
        loss="y",
        predictions=(),
    )  # fmt: skip
    ops = {op.name: op for op in _problem(graph, load_profile("rpi4b")).ops}
    assert ops["mask"].random
    assert ops["mask"].inputs == ()
    assert ops["mask"].rerun_inputs == ("s",)
    assert not ops["state"].recomputable


def test_workspaces_are_the_targets() -> None:
    graph = hand_net.graph()
    counted = {
        name: {op.workspace_bytes for op in _problem(graph, load_profile(name), workspace_bytes=99).ops}
        for name in ("rpi4b", "nrf52840")
    }
    assert counted == {"rpi4b": {99}, "nrf52840": {0}}


@pytest.mark.parametrize("name", profile_names())
def test_whose_facts_are_asked(name: str) -> None:
    """A profile's own, those of its library where there are some, else torch's workspaces alone."""
    graph, profile = hand_net.graph(), load_profile(name)
    runs = (KernelAllocation(4, 0, 1),)
    torchs = KernelFacts(
        "pytorch-cpu",
        tuple(OpFacts(op.name, 99, 1.0, runs) for op in graph.ops),
        alignment_bytes=64,
        threads=1,
    )
    found = kernels_on(profile, graph, torchs)
    assert found.library == profile.kernels.name
    if profile.kernels.workspace_bytes is None:
        assert found is torchs
        raw = profile.model_dump()
        raw["kernels"]["name"] = "somebody's"
        other = Profile.model_validate(raw)
        assumed = KernelFacts("somebody's", tuple(OpFacts(op.name, 99) for op in graph.ops))
        assert kernels_on(other, graph, torchs) == assumed
        second = KernelFacts("somebody's", (OpFacts("op_a", 7),))
        assert kernels_on(other, graph, torchs, second) is second
        problem = build_problem(graph, other, second)
        assert {op.name: op.workspace_bytes for op in problem.ops if op.workspace_bytes} == {"op_a": 7}
        assert problem.kernels == "somebody's"
    else:
        stated_bytes = profile.kernels.workspace_bytes.value
        assert found == KernelFacts(
            profile.kernels.name, tuple(OpFacts(op.name, stated_bytes) for op in graph.ops)
        )


def test_a_device_without_storage_keeps_all_in_ram() -> None:
    profile = _without_storage(load_profile("rpi4b"))
    problem = _problem(_frozen(hand_net.graph()), profile)
    assert all(tensor.page_in is None and tensor.page_out is None for tensor in problem.tensors)
    assert {tensor.initially for tensor in problem.tensors} <= {None, Place.RAM}
    with pytest.raises(ProfileError, match="rpi4b has no storage"):
        _problem(hand_net.graph(), profile, home=Place.STORAGE)


def test_total_accounting_charges_idle_power_and_marginal_does_not() -> None:
    graph, total = hand_net.graph(), load_profile("rpi4b")
    raw = total.model_dump()
    raw["energy"]["accounting"] = "marginal"
    marginal = Profile.model_validate(raw)
    charged, free = _problem(graph, total), _problem(graph, marginal)
    assert charged.idle_watts == total.energy.idle_watts.value
    assert free.idle_watts == 0.0
    # the same busy draw either way: 6 W in total mode is 3 W idle and 3 W on top
    assert charged.compute_joules == pytest.approx(6.0 * charged.compute_seconds)
    assert free.compute_joules == pytest.approx(6.0 * free.compute_seconds)


def test_deadlines() -> None:
    problem = _problem(hand_net.graph(), load_profile("rpi4b"))
    assert deadline_seconds("1.5x", problem) == pytest.approx(1.5 * problem.compute_seconds)
    assert deadline_seconds("20ms", problem) == 0.02
    for text in ("soon", "0x", "0s", "1e999s", "-1s", "x"):
        with pytest.raises(
            InputError, match=rf"^'{text}' is not a deadline; write for example 1\.3x or 20ms$"
        ):
            deadline_seconds(text, problem)


def test_parameters_have_one_home() -> None:
    with pytest.raises(InputError, match="not in both"):
        _problem(hand_net.graph(), load_profile("rpi4b"), home=Place.BOTH)


@pytest.mark.parametrize("samples", [1, 4])
def test_what_is_copied_over_an_operand_costs_its_blocks(samples: int) -> None:
    """A call for each block and what copies ask for: of channels, which lie apart in several samples."""
    profile = PROFILES["rpi4b"]
    kind, of_channel = _contiguous(samples, 64, 32, 32), _contiguous(64)
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
        costs.append(_op_cost(op, types, {"g": kind.extent_bytes}, profile, None))
    blocks = copied_blocks(kind.extent_bytes, 64)
    assert len(blocks) == (4 if samples == 1 else 16)
    assert [stop for _, stop in blocks[:-1]] == [start for start, _ in blocks[1:]]
    call_seconds = profile.compute.overhead_seconds(OpClass.MOVEMENT)
    calls = len(blocks) * (4 if samples == 1 else 6)  # kernel, its result, two sums; both operands
    more_seconds = costs[1].seconds - costs[0].seconds
    assert more_seconds >= (calls - 1) * call_seconds
    assert more_seconds <= calls * call_seconds + 2.5 * kind.extent_bytes / 1e9
