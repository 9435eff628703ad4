"""The cost table: a row for every operator, FLOPs as PyTorch counts them, and the class of each kernel."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from helpers.simulated_board import tensor_type
from torch.utils.flop_counter import FlopCounterMode

from poet.devices.cost_rules import BYTES, CLASSES, FLOPS, Operands
from poet.devices.cost_table import amounts_for, bytes_moved, class_of, flops, row_of
from poet.devices.costs import op_seconds
from poet.devices.figures import PARENT, OpClass
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.errors import UnsupportedOperator
from poet.ir.graph import Argument, Blank, Call, Ref, TensorType
from poet.ir.operators import SPECS


def _operands(target: str, *arguments: Any, outputs: tuple[TensorType | None, ...]) -> Operands:
    """Tensor types among ``arguments`` become values."""
    types: dict[str, TensorType] = {}

    def given_as(argument: Any) -> Argument:
        if isinstance(argument, TensorType):
            types[f"v{len(types)}"] = argument
            return Ref(f"v{len(types) - 1}")
        return tuple(map(given_as, argument)) if isinstance(argument, tuple) else argument

    return Operands(Call(target, tuple(map(given_as, arguments))), types, outputs)


IMAGES, WIDE = tensor_type(1, 8, 6, 6), tensor_type(8, 8, 3, 3)
EACH, PAIRS, ACROSS = tensor_type(8, 1, 3, 3), tensor_type(8, 2, 3, 3), tensor_type(8, 8, 1, 1)


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
    assert class_of(ahead) is forward
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
    assert class_of(back) is backward


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
    given = tensor_type(*shape)
    assert class_of(_operands(target, given, dim, False, outputs=(given,))) is expected
    if "log" in target:
        back = _operands(
            "aten._log_softmax_backward_data.default", given, given, dim, "float32", outputs=(given,)
        )
        assert class_of(back) is expected


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
    images = tensor_type(2, shape[1] * groups, 8, 8)
    where = (None, (1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    given = _operands(
        "aten.convolution.default",
        images,
        tensor_type(*shape),
        *where,
        outputs=(tensor_type(2, shape[0], 8, 8),),
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


def test_rows_name_rules_that_exist_and_no_rule_is_idle() -> None:
    rows = SPECS.values()
    assert {row.flops.name for row in rows} == FLOPS.keys()
    assert {row.more_bytes.name for row in rows if row.more_bytes} == BYTES.keys()
    assert {row.special_class.name for row in rows if row.special_class} == CLASSES.keys()


def test_an_operator_without_a_row_is_named() -> None:
    with pytest.raises(UnsupportedOperator, match=r"aten\.conv3d\.default has no known cost"):
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
    types = [tensor_type(*tensor.shape) for tensor in (x, w, y)]
    call = _operands("aten.convolution.default", types[0], types[1], None, *rest, outputs=(types[2],))
    assert flops(call) == forward.get_total_flops()
    for mask in itertools.product((False, True), repeat=2):
        with FlopCounterMode(display=False) as backward:
            torch.ops.aten.convolution_backward(y, x, w, None, *rest, (*mask, False))
        call = _operands(
            "aten.convolution_backward.default",
            types[2], Blank(types[0]), types[1], None, *rest, (*mask, False),
            outputs=(types[0] if mask[0] else None, types[1] if mask[1] else None, None),
        )  # fmt: skip
        counted = flops(call)
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
        f"aten.{name}.default", *(tensor_type(*s) for s in shapes), outputs=(tensor_type(*result.shape),)
    )
    assert flops(call) == counter.get_total_flops()


def test_attention_counts_its_two_products_and_five_in_backward() -> None:
    q, kv = tensor_type(2, 4, 10, 16), tensor_type(2, 4, 12, 16)
    products = 2 * 4 * 2 * 10 * 12 * 16  # batch × heads × one 10×16 by 16×12 product
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    forward = _operands(f"{name}.default", q, kv, kv, outputs=(q, tensor_type(2, 4, 10)))
    assert flops(forward) == 2 * products
    backward = _operands(f"{name}_backward.default", q, q, kv, kv, outputs=(q, kv, kv))
    assert flops(backward) == 5 * products


_IMAGE, _POOLED, _FIVE = tensor_type(1, 2, 8, 8), tensor_type(1, 2, 4, 4), tensor_type(5)
_SEQUENCE, _STATES = tensor_type(3, 2, 5), tensor_type(3, 2, 4)
BY_HAND = [
    (_operands("aten.max_pool2d_with_indices.default", _IMAGE, (2, 2), outputs=(_POOLED,)), 128),
    (_operands("aten.avg_pool2d.default", _IMAGE, (2,), outputs=(_POOLED,)), 128),
    (_operands("aten.sum.dim_IntList", tensor_type(4, 6), (0,), outputs=(tensor_type(6),)), 24),
    (_operands("aten.pow.Tensor_Scalar", _FIVE, 2, outputs=(_FIVE,)), 20),
    (_operands("aten.pow.Tensor_Tensor", _FIVE, _FIVE, outputs=(_FIVE,)), 10),
    (_operands("poet.sgd", _FIVE, _FIVE, 0.1, 0.0, outputs=()), 20),
    (_operands("aten.cat.default", (_FIVE, tensor_type(4)), 0, outputs=(tensor_type(9),)), 9),
    (
        _operands(
            "aten.mkldnn_rnn_layer.default",
            _SEQUENCE, tensor_type(16, 5), tensor_type(16, 4),
            outputs=(_STATES,),
        ),
        2 * 6 * (80 + 64),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "expected"), BY_HAND, ids=[call.call.target for call, _ in BY_HAND])
def test_rules_by_hand(call: Operands, expected: int) -> None:
    assert flops(call) == expected


def test_bytes_are_those_of_the_views_that_are_read() -> None:
    """A broadcast row is read once, a slice as far as it goes, an embedding's table where it is looked up."""
    row, wide = TensorType("float32", (8, 64), (0, 1)), tensor_type(8, 64)
    call = _operands("aten.add.Tensor", row, wide, outputs=(wide,))
    assert bytes_moved(call) == 4 * (64 + 512 + 512)
    looked_up = _operands(
        "aten.embedding.default",
        tensor_type(30_000, 8),
        tensor_type(4, dtype="int64"),
        outputs=(tensor_type(4, 8),),
    )
    assert bytes_moved(looked_up) == 128 + 32 + 128
    norm = _operands(
        "aten.native_batch_norm.default", tensor_type(2, 8), outputs=(tensor_type(2, 8), None, None)
    )
    assert bytes_moved(norm) == 3 * 64
