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
from helpers.c_plans import traced
from helpers.c_rows import Errors, errors_of, worst_ratios
from helpers.pace import few_or_many, with_slow
from helpers.random_c_nets import KINDS, convolutions
from helpers.sequence_nets import NETS
from torch import Tensor, nn

from poet.c99 import sources
from poet.c99.calls import float_text
from poet.c99.rows import KERNELS, rule_of
from poet.frontend.traced_operators import small_operators
from poet.ir import operators
from poet.ir.packed import FORMATS

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


def test_every_row_calls_functions_that_exist(tmp_path: Path) -> None:
    rules = sorted(Path(sources.__file__).parent.glob("rules/*.py"))
    text = "".join(path.read_text() for path in (Path(operators.__file__), *rules))
    named = {name for name in sources.pieces() if re.search(rf'["{{]{name}[",]', text)}
    named |= {f"poet_unpack_{name}" for name in FORMATS}
    reached = {piece.name for piece in sources.needed(named)}
    assert reached == set(sources.pieces()), "a piece of C that no row needs"
    assert all(map(rule_of, KERNELS.values()))


@pytest.mark.parametrize("number", [0.1, 1.0, -2.5, 1e-5, 1e30, 1.0 / 3.0, 2.0**-126, 16777217.0])
def test_numbers_in_c_are_the_floats_they_stand_for(number: float) -> None:
    assert np.float32(float(float_text(number)[:-1])) == np.float32(number)


def test_the_small_operators_are_torchs_own() -> None:
    """Elsewhere an LSTM stays one op, and the flag that switches oneDNN off is set back."""
    torch.manual_seed(0)
    module, inputs = NETS["lstm"].build(), torch.randn(NETS["lstm"].shape)
    before = torch.backends.mkldnn.enabled
    with small_operators():
        targets = {op.call.target for op in traced(module, inputs).step.graph.ops}
    assert torch.backends.mkldnn.enabled == before
    assert not any("mkldnn" in target or "recurrent" in target for target in targets)
