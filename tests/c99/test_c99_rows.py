"""Each operator in C against float64, with PyTorch's own float32 error as the yardstick.

The cases come from traced nets: every op of each, on the very tensors that PyTorch gave it.
"""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import c99_operators
import numpy as np
import pytest
import torch
from helpers.c_rows import Errors, errors_of, worst_ratios
from helpers.pace import few_or_many, with_slow
from helpers.random_c_nets import KINDS, convolutions
from helpers.sequence_nets import NETS
from torch import Tensor, nn

from poet.c99 import sources
from poet.c99.calls import CCall, OpRun, Placed, float_text
from poet.c99.rows import ROWS
from poet.c99.run_calls import c_calls
from poet.errors import UnsupportedOperator
from poet.graph import Argument, Call, Ref, TensorType

_SLOW_DRAWS = {(kind, seed) for kind in KINDS for seed in (100, 101)} - {("dense", 100)}


class _Norms(nn.Module):
    """Operators that the nets of the benchmark lack, on tensors that are views."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(5, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(self.inner(x)) - torch.tanh(self.inner(x * 0.5))
        y = (y * y.mean(1, keepdim=True) + 0.25 * y.sum(0) - (-y)).t().clone().t()
        result: Tensor = self.outer(y * 0.5)
        return result


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_operators_on_views(optimizer: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    worst = worst_ratios(_Norms(), torch.randn(7, 5), tmp_path / "c", "mse", optimizer)
    assert {f"poet.{optimizer}", "aten.tanh_backward.default", "aten.sub.Tensor"} <= worst.keys()
    assert max(worst.values()) <= 1.0, worst


@few_or_many("seeds", range(2), range(2, 60))
def test_convolutions_of_random_shapes(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        module, inputs = convolutions(random.Random(seed))
        worst = worst_ratios(module, inputs, tmp_path / str(seed), "cross-entropy", "sgd")
        assert {"aten.convolution.default", "aten.convolution_backward.default"} <= worst.keys()
        assert max(worst.values()) <= 1.0, (seed, worst)


@pytest.mark.parametrize(
    ("kind", "seed"), with_slow([(kind, seed) for kind in KINDS for seed in (100, 101)], _SLOW_DRAWS)
)
def test_every_operator_of_random_nets(kind: str, seed: int, tmp_path: Path) -> None:
    """Over random shapes, strides and groups, each tensor that an op makes."""
    torch.manual_seed(seed)
    module, inputs, loss = KINDS[kind](np.random.default_rng(seed))
    optimizer = ("sgd", "momentum", "adamw")[seed % 3]
    found = errors_of(module, inputs, tmp_path / "c", loss, optimizer)
    worst = {target: max(each.ratio for each in errors) for target, errors in found.items()}
    assert max(worst.values()) <= 1.0, worst


def test_errors_beyond_four_times_torchs_are_seen() -> None:
    assert Errors(of_c=4e-6, of_torch=1e-6, largest=0.0).ratio == 1.0
    assert Errors(of_c=1e-6, of_torch=0.0, largest=1.0).ratio > 2.0
    assert Errors(of_c=1e-9, of_torch=0.0, largest=0.0).ratio == math.inf
    assert Errors(of_c=0.0, of_torch=0.0, largest=0.0).ratio == 0.0
    pooled = c99_operators.judged("op", [Errors(5e-7, 1e-7, 1.0), Errors(1e-8, 1e-7, 1.0)])
    assert pooled.share == pytest.approx(5.0)
    assert not pooled.is_right


def test_convolutions_whose_windows_have_kernels_of_their_own(tmp_path: Path) -> None:
    """Rows of four taps, windows that move by two columns with rows outside, single points by two."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, (5, 4), stride=2), nn.Conv2d(3, 4, 3, stride=2, padding=(1, 0))]
    module = nn.Sequential(*layers, nn.Conv2d(4, 3, 1, stride=2), nn.Flatten(), nn.Linear(48, 6))
    worst = worst_ratios(module, torch.randn(4, 2, 33, 35), tmp_path / "c", "cross-entropy", "sgd")
    assert max(worst.values()) <= 1.0, worst


@pytest.mark.parametrize("wide", [70, pytest.param(640, marks=pytest.mark.slow)])
def test_wide_layers_with_batch_norm(wide: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(wide, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, 9), nn.BatchNorm1d(9)]
    module = nn.Sequential(*layers, nn.Linear(9, wide))
    worst = worst_ratios(module, torch.randn(5, wide), tmp_path / "c", "mse", "sgd")
    assert {"aten.native_batch_norm.default", "aten.native_batch_norm_backward.default"} <= worst.keys()
    assert {"poet.norm_relu", "poet.norm_relu_backward"} <= worst.keys()
    assert max(worst.values()) <= 1.0, worst


def test_activations_of_mobile_nets(tmp_path: Path) -> None:
    """On both sides of every kink, and of where the exponential's series ends."""
    torch.manual_seed(0)
    kinds = (nn.SiLU(), nn.Hardswish(), nn.Hardsigmoid(), nn.LeakyReLU(0.2), nn.ELU(0.7), nn.SELU())
    layers = [layer for kind in kinds for layer in (nn.Linear(24, 24), kind)]
    for layer in layers[::2]:
        torch.nn.init.normal_(layer.weight, std=0.5)  # type: ignore[arg-type]
    worst = worst_ratios(nn.Sequential(*layers), 3 * torch.randn(6, 24), tmp_path / "c", "mse", "sgd")
    named = ("silu", "hardswish", "hardsigmoid", "leaky_relu", "elu")
    assert {f"aten.{name}{way}.default" for name in named for way in ("", "_backward")} <= worst.keys()
    assert max(worst.values()) <= 1.0, worst


class _Turning(nn.Module):
    """Sines and cosines of angles from a millionth to 10^36, of both signs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 400)
        self.sizes: Tensor
        self.register_buffer("sizes", 10.0 ** torch.linspace(-6, 36, 400))

    def forward(self, x: Tensor) -> Tensor:
        """``x`` is [N, 5]."""
        y: Tensor = self.layer(x)
        angles = y.detach() * self.sizes
        return y + angles.sin() + 2 * angles.cos()


def test_angles_of_any_size(tmp_path: Path) -> None:
    """Within two units of float64, wherever the whole circles end."""
    torch.manual_seed(0)
    found = errors_of(_Turning(), torch.randn(7, 5), tmp_path / "c", "mse", "sgd")
    for name in ("sin", "cos"):
        assert all(each.of_c <= 2 * 2.0**-24 for each in found[f"aten.{name}.default"])
        assert max(each.ratio for each in found[f"aten.{name}.default"]) <= 1.0


@pytest.mark.parametrize("name", with_slow(NETS, set(NETS) - {"transformer-norm-first", "sliced"}))
def test_nets_over_sequences(name: str, tmp_path: Path) -> None:
    """All ops of a step: recurrent layers, attention, layer norm, GELU, poolings of maxima."""
    torch.manual_seed(1)
    net = NETS[name]
    worst = worst_ratios(net.build(), torch.randn(net.shape), tmp_path / "c", "cross-entropy", "momentum")
    assert max(worst.values()) <= 1.0, worst


class _Looking(nn.Module):
    """Words and places looked up in tables, one with a row that is not trained, and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(9, 6, padding_idx=1), nn.Embedding(5, 6)
        self.layer, self.out = nn.GRU(6, 4, batch_first=True), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, 5], of whole numbers."""
        y = self.words(x)
        placed = torch.tanh(y + self.places(torch.arange(x.shape[1]))).mean(1)
        scores: Tensor = self.out(torch.cat([self.layer(y)[0][:, -1], placed], 1))
        return scores


def test_tables_that_are_looked_up(tmp_path: Path) -> None:
    torch.manual_seed(0)
    numbers = torch.randint(5, (3, 5))
    worst = worst_ratios(_Looking(), numbers, tmp_path / "c", "cross-entropy", "sgd")
    assert {"aten.embedding.default", "aten.embedding_dense_backward.default"} <= worst.keys()
    assert "aten.arange.default" in worst
    assert max(worst.values()) <= 1.0, worst


def test_group_norm_and_mish(tmp_path: Path) -> None:
    """With and without weights; groups of one channel and of all."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.Mish(), nn.Conv2d(6, 4, 3), nn.GroupNorm(1, 4)]
    layers += [nn.Mish(), nn.GroupNorm(4, 4, affine=False), nn.Flatten(), nn.Linear(4 * 6 * 5, 3)]
    for layer in layers[:4:3]:
        nn.init.normal_(layer.weight, std=2.0)  # type: ignore[arg-type]
    worst = worst_ratios(nn.Sequential(*layers), torch.randn(3, 2, 10, 9), tmp_path / "c", "mse", "sgd")
    named = ("native_group_norm", "native_group_norm_backward", "mish", "mish_backward")
    assert {f"aten.{name}.default" for name in named} <= worst.keys()
    assert max(worst.values()) <= 1.0, worst


class _Ties(nn.Module):
    """Rows of few different numbers: where several are largest, one place is named, or all share."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(4, 6), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores; ``x`` is [N, T, 4]."""
        y = torch.relu(self.into(x))
        low, high = torch.maximum(y, 0.5 * y).min(1).values, y.max(1).values
        scores: Tensor = self.out(torch.cat([low + y.amin(1), high + y.transpose(1, 2).amax(2)], 1))
        return scores - y.amax()


@pytest.mark.slow
def test_the_largest_of_equals(tmp_path: Path) -> None:
    torch.manual_seed(0)
    worst = worst_ratios(_Ties(), torch.randn(5, 4, 4), tmp_path / "c", "cross-entropy", "sgd")
    named = ("amax.default", "amin.default", "max.dim", "min.dim", "scatter.src", "eq.Tensor")
    assert {f"aten.{name}" for name in named} <= worst.keys()
    assert max(worst.values()) <= 1.0, worst


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
    values = {name: Placed(_type(*shape), place) for name, place in (("a", 0), ("b", 100))}
    rest = ("zero",) if "im2col" in target else ()
    run = OpRun("act", Call(target, (Ref("a"), second, *rest)), (Placed(_type(*made), 200),), values)
    with pytest.raises(UnsupportedOperator, match=why):
        c_calls(run)


def _transposed(name: str) -> tuple[nn.Module, Tensor]:
    """Of every kind: strides with and without room at the end, groups, points, dilation, one dimension."""
    if name == "flat":
        layers = [nn.ConvTranspose1d(2, 4, 3, stride=2), nn.Tanh(), nn.ConvTranspose1d(4, 2, 2)]
        return nn.Sequential(*layers), torch.randn(3, 2, 5)
    return nn.Sequential(
        nn.ConvTranspose2d(2, 6, 3, stride=2, padding=1, output_padding=1),
        nn.Tanh(),
        nn.ConvTranspose2d(6, 4, 3, padding=1, groups=2, bias=False),
        nn.ConvTranspose2d(4, 5, 1),
        nn.Tanh(),
        nn.ConvTranspose2d(5, 3, 3, stride=2),
        nn.ConvTranspose2d(3, 3, 2, stride=2, groups=3, dilation=2),
    ), torch.randn(2, 2, 4, 5)


@pytest.mark.parametrize("name", ["planes", pytest.param("flat", marks=pytest.mark.slow)])
def test_transposed_convolutions(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = _transposed(name)
    net = nn.Sequential(module, nn.Flatten(), nn.LazyLinear(3))
    net(inputs)
    worst = worst_ratios(net, inputs, tmp_path / "c", "cross-entropy", "sgd")
    assert {"aten.convolution.default", "aten.convolution_backward.default"} <= worst.keys()
    assert max(worst.values()) <= 1.0, worst


def test_an_operator_without_a_row_is_refused_by_name() -> None:
    call = Call("aten.erfinv.default", ())
    with pytest.raises(UnsupportedOperator, match=r"op act: aten\.erfinv\.default has no C kernel"):
        c_calls(OpRun("act", call, (), {}))


def _type(*shape: int, dtype: str = "float32") -> TensorType:
    return TensorType(dtype, shape, tuple(math.prod(shape[d + 1 :]) for d in range(len(shape))))


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
        (
            "aten.native_layer_norm.default",
            [(3, 4)],
            ((4,), None, None, 1e-5),
            [(3, 5), (3, 1), (3, 1)],
            "with strides",
        ),
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
        (
            "aten.convolution.default",
            [(1, 2, 5, 5), (3, 2, 3, 3), (2,)],
            _CONVOLVED,
            [(1, 3, 3, 3)],
            "for a bias",
        ),
        (
            "aten.native_batch_norm.default",
            [(2, 3, 4), (4,)],
            (None, None, None, True, 0.1, 1e-5),
            [(2, 3, 4), (3,), (3,)],
            "of 3 channels",
        ),
        (
            "aten.native_batch_norm.default",
            [(2, 3, 4), (3,)],
            (None, None, None, True, 0.1, 1e-5),
            [(2, 3, 5), (3,), (3,)],
            "beside",
        ),
        (
            "aten.native_batch_norm.default",
            [(2, 3, 4), (3,)],
            (None, None, None, True, 0.1, 1e-5),
            [(2, 3, 4), (2,), (3,)],
            "of 3 channels",
        ),
        (
            "aten.native_group_norm.default",
            [(2, 6, 4), (6,), (6,)],
            (2, 6, 4, 4, 1e-5),
            [(2, 6, 4), (2, 4), (2, 4)],
            "for 4 groups",
        ),
        (
            "aten.native_group_norm.default",
            [(2, 6, 4), (6,), (6,)],
            (2, 6, 4, 3, 1e-5),
            [(2, 6, 4), (2, 2), (2, 3)],
            "and 3 groups",
        ),
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
    values = {f"v{index}": Placed(_type(*shape), 100 * index) for index, shape in enumerate(given)}
    kinds = [_type(*shape, dtype="int64" if "max_pool" in target and index else "float32")
             for index, shape in enumerate(made)]  # fmt: skip
    outputs = tuple(Placed(kind, 1000 + 100 * index) for index, kind in enumerate(kinds))
    call = Call(target, (*(Ref(name) for name in values), *rest))
    with pytest.raises(UnsupportedOperator, match=why):
        c_calls(OpRun("act", call, outputs, values))


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
    values = {"v": Placed(_type(5, 6), 0), "n": Placed(_type(*numbers, dtype="int64"), 100)}
    with pytest.raises(UnsupportedOperator, match=why):
        c_calls(OpRun("act", Call(target, args), (Placed(_type(*made), 1000),), values))


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
    values = {f"v{index}": Placed(kind, 100 * index) for index, kind in enumerate(kinds)}
    outputs = tuple(Placed(_type(*shape), 1000 + 100 * index) for index, shape in enumerate(made))
    with pytest.raises(UnsupportedOperator, match=why):
        c_calls(OpRun("act", Call(target, (*map(Ref, values), *rest)), outputs, values))


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


def test_every_row_calls_functions_that_exist(tmp_path: Path) -> None:
    folder = Path(sources.__file__).parent
    text = "".join(path.read_text() for path in (folder / "rows.py", *sorted(folder.glob("rules/*.py"))))
    named = {name for name in sources.pieces() if re.search(rf'["{{]{name}[",]', text)}
    reached = {piece.name for piece in sources.needed(named)}
    assert reached == set(sources.pieces()), "a piece of C that no row needs"
    assert len(ROWS) >= 28


@pytest.mark.parametrize("number", [0.1, 1.0, -2.5, 1e-5, 1e30, 1.0 / 3.0, 2.0**-126, 16777217.0])
def test_numbers_in_c_are_the_floats_they_stand_for(number: float) -> None:
    assert np.float32(float(float_text(number)[:-1])) == np.float32(number)
