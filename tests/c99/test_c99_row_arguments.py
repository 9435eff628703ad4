"""Which arguments a row of C kernels has code for; all others, of any stranger's graph, are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from poet.c99.calls import CCall, OpRun, Placed
from poet.c99.rows import c_calls
from poet.errors import UnsupportedOperator
from poet.ir.graph import Argument, Call, Ref, TensorType


@pytest.mark.parametrize(
    ("target", "shape", "second", "made", "why"),
    [
        ("aten.amax.default", (2, 3, 4), (1,), (2, 3), "from float32"),
        ("aten.amax.default", (2, 0, 4), (1,), (2, 4), "over none of the elements"),
        ("aten.amax.default", (2,), (1,), (), "over dimensions"),
        ("aten._adaptive_avg_pool2d.default", (1, 2, 7, 7), (3, 3), (2, 1, 3, 3), "from float32"),
        ("aten.pixel_shuffle.default", (1, 4, 3, 3), 2, (1, 1, 6, 5), "from float32"),
        ("aten.repeat.default", (3,), (2,), (7,), "from float32"),
        ("aten.lt.Tensor", (3, 4), Ref("b"), (3, 5), "where a mask is not of bytes"),
        ("aten.constant_pad_nd.default", (2, 3, 4), (1, 1), (2, 3, 7), "for a border of"),
        ("aten.constant_pad_nd.default", (2, 3, 4, 5), (1, 0, 1, 0, 1, 0), (3, 4, 5, 6), "for more than two"),
        ("aten.reflection_pad1d.default", (2, 3, 4), (4, 0), (2, 3, 8), "for a border of"),
        ("aten.reflection_pad2d.default", (1, 3, 4), (1, 1, 1, 1), (1, 5, 7), "for a border of"),
        ("aten.upsample_bilinear2d.default", (1, 2, 3, 3), (6, 6), (1, 3, 6, 6), "from float32"),
        ("aten.im2col.default", (1, 2, 5, 5), (3, 3), (1, 18, 8), "where argument 2"),
        ("aten.cumsum.default", (2, 3), 1, (2, 4), "from float32"),
        ("aten.flip.default", (2, 3, 4), (0, 2), (2, 3, 4), "which are not neighbours"),
        ("aten.roll.default", (2, 3), (1, 1), (2, 3), "for 2 shifts of 1 dimensions"),
        ("aten.glu.default", (2, 5), 1, (2, 2), "for halves along dimension 1"),
        ("aten.logsumexp.default", (2, 3), (1,), (3,), "from float32"),
        ("aten._to_copy.default", (2, 3), None, (3, 2), "from float32"),
        ("aten.pow.Tensor_Scalar", (2, 3), 1.3, (2, 3), "to the power of 1.3"),
    ],
)
def test_what_reductions_and_copies_cannot_do_is_refused(
    target: str, shape: tuple[int, ...], second: Argument, made: tuple[int, ...], why: str
) -> None:
    rest = ("zero",) if "im2col" in target else ()
    values = {"a": _type(*shape), "b": _type(*shape)}
    _refused(Call(target, (Ref("a"), second, *rest)), values, [_type(*made)], why)


def test_an_operator_without_a_row_is_refused_by_name() -> None:
    call = Call("aten.erfinv.default", ())
    with pytest.raises(UnsupportedOperator, match=r"op act: aten\.erfinv\.default has no C kernel"):
        c_calls(OpRun("act", call, (), {}))


def _type(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(dtype, shape, tuple(math.prod(shape[d + 1 :]) for d in range(len(shape))))


def _refused(call: Call, values: Mapping[str, TensorType], made: Sequence[TensorType], why: str) -> None:
    given = {name: Placed(kind, 100 * index) for index, (name, kind) in enumerate(values.items())}
    outputs = tuple(Placed(kind, 1000 + 100 * index) for index, kind in enumerate(made))
    with pytest.raises(UnsupportedOperator, match=why):
        c_calls(OpRun("act", call, outputs, given))


_CONVOLVED: tuple[Argument, ...] = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)


_PLAIN = (None, *_CONVOLVED)


@pytest.mark.parametrize(
    ("target", "given", "rest", "made", "why"),
    [
        ("aten.slice_backward.default", [(3, 9)], ((3, 6), 1, 0, 9, 1), [(3, 6)], "does not lie inside"),
        ("aten.slice_backward.default", [(3, 6)], ((3, 6), 1, 4, 9, 1), [(3, 6)], "does not lie inside"),
        ("aten.slice_backward.default", [(3, 6)], ((3, 6), 2, 0, 9, 1), [(3, 6)], "for dimension 2"),
        ("aten.select_backward.default", [(3,)], ((3, 6), 1, 7), [(3, 6)], "for index 7 of dimension 1"),
        ("aten.select_backward.default", [(3,)], ((3, 0), 1, 0), [(3, 0)], "for index 0 of dimension 1"),
        ("poet.scatter", [(3, 6), (2, 6)], ((2, 6), (6, 1), 12), [(3, 6)], "does not lie inside"),
        ("poet.scatter", [(3, 6), (2, 6)], ((2, 6), (6, 1), -6), [(3, 6)], "does not lie inside"),
        ("aten.mm.default", [(3, 4), (5, 6)], (), [(3, 6)], "for matrices of shapes"),
        ("aten.bmm.default", [(2, 3, 4), (1, 4, 6)], (), [(2, 3, 6)], "for batches of different sizes"),
        ("aten.native_layer_norm.default", [(3, 4)], ((4,), None, None, 1e-5), [(3, 5), (3, 1), (3, 1)],
         "with strides"),
        ("aten.max_pool2d_with_indices.default", [(2, 4, 4)], (2, 2), [(3, 2, 2), (3, 2, 2)], "from"),
        (
            "aten.max_pool2d_with_indices.default",
            [(1, 2, 2)],
            (3, 1, 1, 3),  # taps at -1, 2 and 5 of a plane of 0 and 1
            [(1, 1, 1), (1, 1, 1)],
            "in the padding alone",
        ),
        ("aten.convolution.default", [(1, 2, 5, 5), (3, 4, 3, 3)], _PLAIN, [(1, 3, 3, 3)], "from"),
        ("aten.convolution.default", [(1, 2, 5, 5), (3, 2, 3, 3)], _PLAIN, [(1, 3, 5, 5)], "from"),
        ("aten.convolution.default", [(2, 2, 5, 5), (3, 2, 3, 3)], _PLAIN, [(1, 3, 3, 3)], "from"),
        ("aten.convolution.default", [(1, 2, 5, 5), (3, 2, 3, 3), (2,)], _CONVOLVED, [(1, 3, 3, 3)],
         "for a bias"),
        ("aten.native_batch_norm.default", [(2, 3, 4), (4,)], (None, None, None, True, 0.1, 1e-5),
         [(2, 3, 4), (3,), (3,)], "of 3 channels"),
        ("aten.native_batch_norm.default", [(2, 3, 4), (3,)], (None, None, None, True, 0.1, 1e-5),
         [(2, 3, 5), (3,), (3,)], "beside"),
        ("aten.native_batch_norm.default", [(2, 3, 4), (3,)], (None, None, None, True, 0.1, 1e-5),
         [(2, 3, 4), (2,), (3,)], "of 3 channels"),
        ("aten.native_group_norm.default", [(2, 6, 4), (6,), (6,)], (2, 6, 4, 4, 1e-5),
         [(2, 6, 4), (2, 4), (2, 4)], "for 4 groups"),
        ("aten.native_group_norm.default", [(2, 6, 4), (6,), (6,)], (2, 6, 4, 3, 1e-5),
         [(2, 6, 4), (2, 2), (2, 3)], "and 3 groups"),
        ("aten._softmax.default", [(3, 4)], (1, False), [(3, 5)], "beside"),
        ("aten._softmax.default", [(3, 4)], (2, False), [(3, 4)], "over dimension 2"),
        ("aten._log_softmax_backward_data.default", [(3, 4), (3, 5)], (1,), [(3, 5)], "beside"),
        ("aten.mse_loss.default", [(3, 4), (3, 4)], (1,), [(3,)], "in the place of one number"),
    ],
)  # fmt: skip
def test_a_strangers_arguments_do_not_become_c_that_writes_elsewhere(
    target: str,
    given: list[tuple[int, ...]],
    rest: tuple[Argument, ...],
    made: list[tuple[int, ...]],
    why: str,
) -> None:
    values = {f"v{index}": _type(*shape) for index, shape in enumerate(given)}
    kinds = [_type(*shape, dtype="int64" if "max_pool" in target and index else "float32")
             for index, shape in enumerate(made)]  # fmt: skip
    _refused(Call(target, (*map(Ref, values), *rest)), values, kinds, why)


_NUMBERS, _OTHERS = Ref("n"), Ref("v")


@pytest.mark.parametrize(
    ("target", "args", "numbers", "made", "why"),
    [
        ("aten.gather.default", (_OTHERS, 1, _NUMBERS), (5, 2), (5, 3), "by numbers"),
        ("aten.gather.default", (_OTHERS, 1, _NUMBERS), (4, 2), (4, 2), "along dimension 1"),
        ("aten.gather.default", (_OTHERS, 2, _NUMBERS), (5, 2), (5, 2), "for dimension 2"),
        ("aten.index_select.default", (_OTHERS, 0, _NUMBERS), (2,), (2, 7), "along dimension 0"),
        ("aten.index.Tensor", (_OTHERS, (None, _NUMBERS)), (2,), (5, 3), "by numbers"),
        ("aten.index.Tensor", (_OTHERS, (_NUMBERS, _NUMBERS)), (2,), (2,), "by more than one list"),
        ("aten.scatter_add.default", (_OTHERS, 1, _NUMBERS, _OTHERS), (5, 3), (5, 6), "by numbers"),
        ("aten.index_put.default", (_OTHERS, (_NUMBERS,), _OTHERS, True), (5,), (4, 6), "to float32"),
        (
            "aten.index_put.default",
            (_OTHERS, (_NUMBERS,), _OTHERS, False),
            (5,),
            (5, 6),
            "does not add to them",
        ),
        ("aten.eq.Scalar", (_NUMBERS, 0.5), (2,), (2,), "not of bytes|beside 0.5"),
    ],
)
def test_places_that_do_not_fit_what_they_pick_from_are_refused(
    target: str, args: tuple[Argument, ...], numbers: tuple[int, ...], made: tuple[int, ...], why: str
) -> None:
    values = {"v": _type(5, 6), "n": _type(*numbers, dtype="int64")}
    _refused(Call(target, args), values, [_type(*made)], why)


@pytest.mark.parametrize(
    ("target", "given", "numbers", "rest", "made", "why"),
    [
        ("aten.nll_loss_forward.default", [(3, 4)], (2,), (None, 1, -100), [(), ()], "for classes"),
        ("aten.nll_loss_forward.default", [(3, 4)], (3,), (None, 1, -100), [(2,), ()], "in the place of one"),
        ("aten.embedding.default", [(5, 6)], (2, 3), (), [(2, 3, 5)], "by numbers"),
        ("aten.embedding.default", [(5, 6)], (2, 3), (), [(3, 2, 6)], "by numbers"),
        ("aten.embedding_dense_backward.default", [(2, 6)], (2,), (5, -1, False), [(4, 6)], "and a table"),
        ("aten.embedding_dense_backward.default", [(2, 6)], (2,), (4, -1, True), [(4, 6)], "that divides"),
    ],
)
def test_a_strangers_numbers_likewise(
    target: str,
    given: list[tuple[int, ...]],
    numbers: tuple[int, ...],
    rest: tuple[Argument, ...],
    made: list[tuple[int, ...]],
    why: str,
) -> None:
    kinds = [*(_type(*shape) for shape in given), _type(*numbers, dtype="int64")]
    values = {f"v{index}": kind for index, kind in enumerate(kinds)}
    _refused(Call(target, (*map(Ref, values), *rest)), values, [_type(*shape) for shape in made], why)


def _strided(shape: tuple[int, ...], strides: tuple[int, ...]) -> Placed:
    return Placed(TensorType("float32", shape, strides), 100)


def _layer_norm(x: Placed) -> list[CCall]:
    """Over the last three dimensions of ``x``."""
    row = x.type.shape[1:]
    outputs = tuple(
        Placed(_type(*shape), 1000 * k)
        for k, shape in enumerate([x.type.shape, (4, 1, 1, 1), (4, 1, 1, 1)], 1)
    )
    call = Call("aten.native_layer_norm.default", (Ref("x"), row, None, None, 1e-5))
    return c_calls(OpRun("norm", call, outputs, {"x": x}))


def test_a_gap_behind_a_dimension_of_one_is_seen_in_a_row() -> None:
    """The first three of seven columns of [4, 2, 1, 7]."""
    with pytest.raises(UnsupportedOperator, match="with strides"):
        _layer_norm(_strided((4, 2, 1, 3), (14, 7, 7, 1)))
    dense = _layer_norm(_strided((4, 2, 1, 3), (6, 3, 3, 1)))
    for strides in ((6, 3, 99, 1), (6, 3, 0, 1)):  # the stride of a dimension of one means nothing
        assert _layer_norm(_strided((4, 2, 1, 3), strides)) == dense
    assert _layer_norm(_strided((4, 1, 1, 1), (5, 0, 0, 0)))


@pytest.mark.parametrize(
    ("size", "times", "scale", "is_right"),
    [(3, 3, 3.3, False), (3, 3, None, True), (3, 3, 3.0, True), (2, 41, None, False), (3, 2, 2.0, True)],
)
def test_enlarging_is_exported_where_torch_repeats_each_row_alike(
    size: int, times: int, scale: float | None, is_right: bool
) -> None:
    small, large = (1, 2, size, 2), (1, 2, size * times, 2)
    calls = [
        Call("aten.upsample_nearest2d.default", (Ref("v"), large[2:], scale, None)),
        Call("aten.upsample_nearest2d_backward.default", (Ref("v"), large[2:], small, scale, None)),
    ]
    for call, given, made in zip(calls, (small, large), (large, small), strict=True):
        run = OpRun("up", call, (Placed(_type(*made), 1000),), {"v": Placed(_type(*given), 0)})
        if is_right:
            assert c_calls(run)[0].arguments[-2:] == (str(times), "1")
        else:
            with pytest.raises(
                UnsupportedOperator, match=f"does not repeat each row or column {times} times"
            ):
                c_calls(run)
