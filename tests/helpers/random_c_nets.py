"""Nets of random sizes that together call the C kernels: to fit what kernels take, and to try it."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Random = np.random.Generator


def _between(random: Random, least: int, most: int) -> int:
    return int(random.integers(least, most + 1))


def _images(random: Random) -> tuple[nn.Module, Tensor, str]:
    """Convolutions of every way that the kernels roll, of random widths on a random image."""
    a, b, c, d = (_between(random, 3, 24) for _ in range(4))
    height, width = (_between(random, 13, 32) for _ in range(2))
    images, tall, is_wide = _between(random, 1, 2), _between(random, 2, 10), bool(random.integers(2))
    layers: list[nn.Module] = [nn.Conv2d(2, a, 3, padding=1), nn.BatchNorm2d(a), nn.ReLU()]
    layers += [nn.Conv2d(a, a, 3, padding=1, groups=a), nn.BatchNorm2d(a), nn.ReLU()]
    layers += [nn.Conv2d(a, b, 1), nn.BatchNorm2d(b), nn.ReLU(), nn.ZeroPad2d((0, 1, 0, 1))]
    layers += [nn.Conv2d(b, b, 3, stride=2, groups=b), nn.BatchNorm2d(b), nn.ReLU()]
    layers += [nn.Conv2d(b, c, 3, padding=1), nn.BatchNorm2d(c), nn.Conv2d(c, d, 1, stride=2)]
    layers += [nn.ReLU(), nn.ZeroPad2d((1, 1, 1, 1)), nn.Conv2d(d, c, 3, stride=2), nn.BatchNorm2d(c)]
    layers += [nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()]
    if is_wide:
        first = (nn.ZeroPad2d((1, 1, 4, 5)), nn.Conv2d(1, a, (tall, 4), stride=2), nn.ReLU())
        layers = [*first, nn.Dropout(0.2), nn.Conv2d(a, 2, 1), *layers]
        height, width = height + 14, width + 20
    x = torch.randn(images, 1 if is_wide else 2, height, width)
    with torch.no_grad():
        count = nn.Sequential(*layers)(torch.cat([x, x]))[:1].shape[1]
    return nn.Sequential(*layers, nn.Linear(count, _between(random, 2, 13))), x, "cross-entropy"


def _windows(random: Random) -> tuple[nn.Module, Tensor, str]:
    """Windows that do not roll: wide, dilated, padded, with groups; group norm, pooling, enlarging."""
    g = _between(random, 1, 3)
    a, b, c = (g * _between(random, 2, 5) for _ in range(3))
    stride, wide = _between(random, 1, 2), int(random.choice([2, 5, 7]))
    layers: list[nn.Module] = [nn.BatchNorm2d(2, affine=False).eval()]
    layers += [nn.Conv2d(2, a, wide, padding=wide // 2, stride=stride), nn.GroupNorm(g, a)]
    layers += [nn.SiLU(), nn.Conv2d(a, b, 3, padding=2, dilation=2, groups=g), nn.GroupNorm(1, b), nn.ReLU()]
    layers += [nn.MaxPool2d(3, 2, 1), nn.Conv2d(b, c, 3, padding=1, stride=2), nn.Hardswish()]
    layers += [nn.Upsample(scale_factor=2), nn.ConvTranspose2d(c, a, 3, 2, 1, output_padding=1), nn.ReLU6()]
    layers += [nn.ConvTranspose2d(a, 3, 4, 2, 1), nn.Conv2d(3, 2, 1, groups=1), nn.Sigmoid()]
    layers += [nn.AvgPool2d(3, 2, 1), nn.Conv2d(2, 4, (3, 1)), nn.Conv2d(4, 4, 1, groups=2), nn.Mish()]
    x = torch.randn(_between(random, 1, 2), 2, _between(random, 14, 24), _between(random, 14, 24))
    return nn.Sequential(*layers), x, "mse"


def _dense(random: Random) -> tuple[nn.Module, Tensor, str]:
    """Linear layers with batch norm, of random widths."""
    batch = int(random.choice([2, 4, 4, 4, 7]))
    sizes = [_between(random, 5, 150) * 2 for _ in range(4)]
    layers: list[nn.Module] = []
    for index, (one, other) in enumerate(pairwise(sizes)):
        layers += [nn.Linear(one, other), nn.BatchNorm1d(other), nn.ReLU() if index != 1 else nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], sizes[0])), torch.randn(batch, sizes[0]), "mse"


_EVEN: tuple[Callable[[Tensor], Tensor], ...] = (F.gelu, F.silu, F.elu, F.mish, F.hardswish, F.leaky_relu)
_BOUNDED: tuple[Callable[[Tensor], Tensor], ...] = (
    torch.tanh, torch.sigmoid, F.hardsigmoid, F.relu6, torch.relu, torch.exp
)  # fmt: skip


class _Elements(nn.Module):
    """Every function of single elements, one after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.out, self.cut = nn.Linear(9, width), nn.Linear(width, 4), width // 3
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Scores; ``x`` is [N, 9]."""
        y = self.norm(self.into(x)) * 2
        for change in _EVEN:
            y = y + change(y * self.scale)
        y = self.norm(y - self.shift)
        for change in _BOUNDED:
            y = y - 0.5 * change(y)
        y = F.gelu(self.norm(y), approximate="tanh").pow(3) + (-y).abs()
        y = self.norm(y) / (1.5 + y * y)
        z = (y * y + 1.0).sqrt() + torch.rsqrt(y * y + 1.0) + 1.0 / (y * y + 2.0)
        z = z / 3.0 + torch.softmax(z, 1) + F.cosine_similarity(y, z, 1).unsqueeze(1)
        z = F.dropout(z, 0.3)
        parts = torch.stack([z[:, : self.cut], z[:, self.cut : 2 * self.cut]], 1)
        z = torch.cat([parts.flatten(1), z[:, 2 * self.cut :]], 1)
        return self.out(z * self.scale.sum())  # type: ignore[no-any-return]


def _elements(random: Random) -> tuple[nn.Module, Tensor, str]:
    return _Elements(_between(random, 60, 200)), torch.randn(_between(random, 2, 4), 9), "cross-entropy"


class _Sequence(nn.Module):
    """Words through dilated convolutions, a recurrent layer and causal attention."""

    def __init__(self, width: int, words: int, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        normed = nn.utils.parametrizations.weight_norm
        self.table, self.into, self.heads = nn.Embedding(words, width), nn.Linear(width, width), 2
        self.places = nn.Embedding(9, width)
        self.first = normed(nn.Conv1d(width, width, 3, dilation=2, padding=2))
        self.norm, self.recurrent = nn.BatchNorm1d(width), kind(width, width, batch_first=True)
        self.qkv, self.after, self.out = nn.Linear(width, 3 * width), nn.LayerNorm(width), nn.Linear(width, 5)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of classes; ``words`` is [N, T]."""
        x = self.table(words) + self.places(torch.arange(words.shape[1]))
        x = self.into(x).transpose(1, 2)
        x = torch.relu(self.norm(self.first(x))).transpose(1, 2)
        x = self.recurrent(x)[0]
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return self.out(self.after(x + y).mean(1))  # type: ignore[no-any-return]


def _sequence(random: Random) -> tuple[nn.Module, Tensor, str]:
    width, words = 2 * _between(random, 4, 14), _between(random, 6, 30)
    kind = (nn.GRU, nn.LSTM, nn.RNN)[_between(random, 0, 2)]
    shape = (_between(random, 1, 3), _between(random, 4, 9))
    return _Sequence(width, words, kind), torch.randint(0, words, shape), "cross-entropy"


class _Choices(nn.Module):
    """What is largest and smallest, masks by comparisons, variances, bounds, logarithms; pixels reordered."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.into = nn.Conv1d(2, 4 * channels, 3, padding=1)
        self.norm = nn.InstanceNorm1d(4 * channels, affine=True)
        self.slopes, self.slope = nn.PReLU(4 * channels), nn.PReLU(width)
        self.mixed, self.out = nn.Linear(16 * channels, width), nn.Linear(4 * width, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Scores; ``x`` is [N, 2, T], T a multiple of 4."""
        y = self.slopes(self.norm(self.into(x)))
        z = F.pixel_unshuffle(F.pixel_shuffle(y.reshape(*y.shape[:2], -1, 4), 2), 2).flatten(2)
        means = F.adaptive_avg_pool2d(z.view(*z.shape[:2], -1, 4), 2).flatten(2)
        z = torch.cat([F.adaptive_max_pool1d(z, 4), means], 2)
        z = F.adaptive_max_pool2d(z.view(*z.shape[:2], 4, 2), 2).flatten(2)
        y = y.transpose(1, 2)  # [N, T, C]
        wide = torch.cat([y.amax(1), y.min(1)[0], z.amin(2), z.max(2).values], 1)
        wide = wide - 0.1 * z.amax((1, 2)).unsqueeze(1)
        w = self.slope(self.mixed(wide))
        spread = w.std(1, keepdim=True) + w.var(1, keepdim=True, correction=0) + 0.1
        w = w / spread - torch.max(w.abs().detach() * 0.1) + 0.5 * w.max(0, keepdim=True)[0]
        bounded = w.clamp(-1.0, 1.5) + 0.2 * w.clamp(min=0.1) - 0.1 * w.clamp(max=0.3)
        softened = F.softplus(w) + F.softplus(3 * w, beta=2.0, threshold=1.0) - F.logsigmoid(w)
        logs = torch.log(1.0 + w * w) + torch.minimum(w, 0.5 * bounded) + torch.maximum(0.3 * w, softened)
        picked = torch.where(w > 0.2, w, 0.5 * w) + torch.where(w <= bounded, w, 0.1 * w)
        picked = F.rms_norm(picked, picked.shape[1:]) + F.normalize(1.0 - F.celu(w, 0.7))
        return self.out(torch.cat([bounded, softened, logs, picked], 1))  # type: ignore[no-any-return]


def _choices(random: Random) -> tuple[nn.Module, Tensor, str]:
    x = torch.randn(_between(random, 2, 4), 2, 16 * _between(random, 1, 4))
    return _Choices(_between(random, 2, 9), _between(random, 8, 40)), x, "cross-entropy"


class _Places(nn.Module):
    """Rows turned by their places, gated, sorted, summed up, picked by numbers and added to others."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.table, self.offsets = nn.Embedding(words, 2 * width), nn.Parameter(torch.randn(words, width))
        self.start, self.gate = nn.Parameter(torch.randn(width)), nn.Linear(width, width)
        self.out, self.few = nn.Linear(width, 5), max(1, width // 3)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of classes; ``words`` is [N, T], of whole numbers."""
        first, second = self.table(words).chunk(2, 2)
        speeds = self.start * 3 + 1000 ** (-torch.arange(len(self.start)).float() / len(self.start))
        angles = torch.outer(torch.arange(words.shape[1]).float(), speeds)
        x = first * angles.cos() - second * angles.sin() + self.offsets[words]
        x = (
            torch.roll(x, (1, -2), (1, 2))
            + F.glu(torch.cat([x, x.flip(1)], 2)) * (words > 1).unsqueeze(2).float()
        )
        x = torch.baddbmm(self.start, x, self.gate.weight.expand(len(x), -1, -1)) / 2
        y = x.sort(2, descending=True).values.cumsum(2) / x.shape[2] + x.flip(1, 2)
        best, at = self.gate(y).topk(self.few, 2)
        y = y + torch.zeros_like(y).scatter(2, at, best.softmax(2)) + y.gather(1, y.argsort(1).detach())
        y = y.index_select(2, at[0, 0]).sum(2, keepdim=True) + y.index_add(1, words[0].float().argsort(), y)
        y = F.softshrink(y, 0.1) + F.hardshrink(y, 0.2) + F.threshold(y, 0.1, -0.2) - 0.1 * y.detach().floor()
        level = torch.dot(self.start, self.gate.weight.mv(self.start)) + self.start.norm()
        z = y.logsumexp(1) + (y.transpose(1, 2) @ torch.eye(y.shape[1])).amin(2)
        return self.out(F.layer_norm(z, z.shape[1:]) + level.sin())  # type: ignore[no-any-return]


def _places(random: Random) -> tuple[nn.Module, Tensor, str]:
    width, words = _between(random, 5, 24), _between(random, 6, 20)
    shape = (_between(random, 2, 4), _between(random, 3, 9))
    return _Places(width, words), torch.randint(0, words, shape), "cross-entropy"


class _Resized(nn.Module):
    """Borders of what is there, planes between planes, windows beside each other, chances and their loss."""

    def __init__(self, channels: int, sides: tuple[int, int]) -> None:
        super().__init__()
        self.into = nn.Conv2d(2, channels, 3, padding=1, padding_mode="reflect")
        self.line = nn.Conv1d(channels, channels, 3, padding=1, padding_mode="replicate")
        self.normed, self.shared = nn.LocalResponseNorm(3), nn.AdaptiveAvgPool2d(sides)
        self.edges, self.rows = nn.ReplicationPad2d((2, 1, 0, 3)), nn.ReflectionPad1d((2, 1))
        self.out = nn.Conv2d(9 * channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number; ``x`` is [N, 2, H, W]."""
        y = self.normed(torch.relu(self.into(x)))
        y = F.interpolate(y, scale_factor=2, mode="bilinear") + F.interpolate(
            y, size=[2 * side for side in y.shape[2:]], mode="bilinear", align_corners=True
        )
        y = self.edges(self.shared(y))
        wide = F.interpolate(self.rows(self.line(y.flatten(2))), size=y.shape[2] * y.shape[3], mode="linear")
        y = (y + wide.view(y.shape)).abs().add(0.1).pow(1.25)
        z = F.unfold(y, (3, 3), padding=1).view(len(y), -1, *y.shape[2:])
        y = self.out(z + F.fold(z.flatten(2), y.shape[2:], (3, 3), padding=1).repeat(1, 9, 1, 1) / 9)
        wanted = (x.amax((1, 2, 3), keepdim=True) > 1.5).float().expand(y.shape) * 0.8
        chances = F.binary_cross_entropy(torch.sigmoid(y), wanted.contiguous())
        return chances + F.binary_cross_entropy_with_logits(y, wanted.contiguous(), reduction="sum")


def _resized(random: Random) -> tuple[nn.Module, Tensor, str]:
    height, width = _between(random, 5, 11), _between(random, 5, 11)
    x = torch.randn(_between(random, 1, 3), 2, height, width)
    return _Resized(_between(random, 2, 6), (_between(random, 3, 9), _between(random, 3, 9))), x, "output"


def convolutions(rng: random.Random) -> tuple[nn.Module, Tensor]:
    """Two convolutions of random sizes, strides, paddings, dilations and groups, and pooling."""
    groups, kernel, stride = (
        rng.choice([1, 1, 2, 3]),
        rng.choice([1, 2, 3, 3, 3, 5]),
        rng.choice([1, 1, 2, 3]),
    )
    padding, dilation = rng.randint(0, kernel // 2 + 1), rng.choice([1, 1, 1, 2])
    height, width = rng.randint(9, 14), rng.randint(9, 14)
    between = groups * rng.randint(1, 3)
    module = nn.Sequential(
        nn.Conv2d(2, between, 1, stride=rng.choice([1, 2]), bias=rng.random() < 0.5),
        nn.Tanh(),
        nn.Conv2d(
            between,
            groups * rng.randint(1, 3),
            (kernel, rng.choice([kernel, 1, 3])),
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            padding_mode="zeros",
        ),
        nn.AvgPool2d(2, stride=1, padding=rng.choice([0, 1]), count_include_pad=rng.random() < 0.5),
        nn.Flatten(),
        nn.LazyLinear(3),
    )
    inputs = torch.randn(rng.randint(1, 3), 2, height + 4 * stride, width + 4 * stride)
    module(inputs)
    return module, inputs


KINDS: dict[str, Callable[[Random], tuple[nn.Module, Tensor, str]]] = {
    "images": _images,
    "windows": _windows,
    "dense": _dense,
    "elements": _elements,
    "sequence": _sequence,
    "choices": _choices,
    "places": _places,
    "resized": _resized,
}
