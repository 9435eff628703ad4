"""Small nets of kinds that people bring to a microcontroller, each with operators or layouts of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.nets import Net


def _keyword_spotter() -> nn.Module:
    """A convolution before a GRU that reads both ways."""

    def run(parts: Any, x: Tensor) -> Any:
        convolution, norm, layer, out = parts
        y = F.relu(norm(convolution(x))).permute(0, 3, 1, 2).flatten(2)
        return out(layer(y)[0][:, -1])

    convolution = nn.Conv2d(1, 4, (5, 3), stride=(2, 1), padding=(2, 1))
    layer = nn.GRU(4 * 4, 5, batch_first=True, bidirectional=True)
    return Net(run, convolution, nn.BatchNorm2d(4), layer, nn.Linear(10, 4))


def _squeezed() -> nn.Module:
    """A mobile block with squeeze-and-excitation and hard swish."""

    def run(parts: Any, x: Tensor) -> Any:
        stem, wide, down, up, narrow, out = parts
        x = stem(x)
        y = wide(x)
        y = y * F.hardsigmoid(up(F.relu(down(F.adaptive_avg_pool2d(y, 1)))))
        return out(x + narrow(F.hardswish(y)))

    return Net(
        run,
        nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.Hardswish()),
        nn.Sequential(nn.Conv2d(4, 8, 5, 1, 2, groups=4, bias=False), nn.BatchNorm2d(8)),
        *(nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)),
        nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4)),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6), nn.Hardswish()),
    )


def _shuffled() -> nn.Module:
    """Channels split, one half through convolutions, and shuffled."""

    def run(parts: Any, x: Tensor) -> Any:
        left, right = parts[0](x).chunk(2, 1)
        y = torch.cat([left, parts[1](right)], 1)
        y = y.view(-1, 2, 3, *y.shape[2:]).transpose(1, 2).flatten(1, 2)
        return parts[2](y.mean((2, 3)))

    branch = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.BatchNorm2d(3), nn.ReLU())
    return Net(run, nn.Conv2d(3, 6, 3, padding=1), branch, nn.Linear(6, 4))


class _Patches(nn.Module):
    """A small transformer over patches of an image, with a token of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(1, 8, 4, 4), nn.Parameter(torch.zeros(1, 1, 8))
        self.places = nn.Parameter(0.02 * torch.randn(1, 5, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm, self.rest = nn.LayerNorm(8), nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU())
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(len(y), -1, -1), y], 1) + self.places
        z = self.norm(y)
        y = y + self.attention(z, z, z, need_weights=False)[0]
        found: Tensor = self.out((y + self.rest(y))[:, 0])
        return found


def _dilated() -> nn.Module:
    """A temporal convolution net with weight norm."""

    def run(parts: Any, x: Tensor) -> Any:
        first, second, beside, out = parts
        y = F.relu(first(F.pad(x, (2, 0))))
        y = F.relu(second(F.pad(y, (4, 0))))
        return out(F.relu(y + beside(x))[:, :, -1])

    normed = nn.utils.parametrizations.weight_norm
    first, second = normed(nn.Conv1d(2, 5, 3)), normed(nn.Conv1d(5, 5, 3, dilation=2))
    return Net(run, first, second, nn.Conv1d(2, 5, 1), nn.Linear(5, 4))


def _transposed() -> nn.Module:
    """An autoencoder whose decoder is of transposed convolutions."""
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(3, 4, 3, 2, 1)),
        *(nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1), nn.ReLU(), nn.ConvTranspose2d(3, 1, 4, 2, 1)),
        nn.Sigmoid(),
    )


def _segmenter() -> nn.Module:
    """A small U-Net with a class for each place, its image enlarged by repeating."""

    def run(parts: Any, x: Tensor) -> Any:
        y = parts[0](x)
        z = F.interpolate(parts[1](F.max_pool2d(y, 2)), scale_factor=2)
        return parts[2](torch.cat([z, y], 1))

    down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
    deep = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
    return Net(run, down, deep, nn.Conv2d(10, 3, 1))


class _Mixer(nn.Module):
    """Layers over patches and over channels in turn, with norms by roots of mean squares."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norm, self.scale = (
            nn.Conv2d(1, 6, 4, 4),
            nn.LayerNorm(6),
            nn.Parameter(torch.ones(6)),
        )
        self.tokens = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 4))
        self.channels, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = y + self.tokens(self.norm(y).transpose(1, 2)).transpose(1, 2)
        z = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5) * self.scale
        found: Tensor = self.out((y + F.gelu(self.channels(z))).mean(1))
        return found


def _siamese() -> nn.Module:
    """Two inputs through one net, compared by the cosine of their angle."""

    def run(parts: Any, left: Tensor, right: Tensor) -> Any:
        return F.cosine_similarity(parts[0](left), parts[0](right)).unsqueeze(1)

    return Net(run, nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 6)))


def _triplet() -> nn.Module:
    """An anchor nearer to one input than to another by a margin."""

    def run(parts: Any, *inputs: Tensor) -> Any:
        a, n, f = map(parts[0], inputs)
        return F.relu((a - n).pow(2).sum(1) - (a - f).pow(2).sum(1).sqrt() + (a - f).abs().mean(1) + 1.0)

    return Net(run, nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 6)))


def _causal() -> nn.Module:
    """Attention that looks back only."""

    def run(parts: Any, x: Tensor) -> Any:
        q, k, v = parts[0](x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return parts[1](y.transpose(1, 2).flatten(2)[:, -1])

    return Net(run, nn.Linear(8, 24), nn.Linear(8, 3))


def _points() -> nn.Module:
    """Points, each by itself, and the largest of each feature; lengths made one, spreads, bounds."""

    def run(parts: Any, x: Tensor) -> Any:
        y = F.normalize(x - x.mean(1, keepdim=True), dim=2).flatten(0, 1)
        y = parts[0](y).view(x.shape[0], -1, 6)
        largest = y.transpose(1, 2).amax(2).clamp(min=-0.5)
        return parts[1](torch.cat([y.amax(1), y.min(1).values, y.std(1), torch.log(1.5 + largest)], 1))

    each = nn.Sequential(nn.Linear(3, 8), nn.PReLU(), nn.Linear(8, 6), nn.PReLU(6, 0.1))
    return Net(run, each, nn.Linear(24, 4))


def _bags() -> nn.Module:
    """Bags of words: their mean, sum and largest, behind softplus."""

    def run(parts: Any, x: Tensor) -> Any:
        first, second, third = (F.softplus(bag(x)) for bag in parts[:3])
        return parts[3](first + second - third)

    return Net(run, *(nn.EmbeddingBag(9, 5, mode=mode) for mode in ("mean", "sum", "max")), nn.Linear(5, 3))


class _Rotary(nn.Module):
    """A decoder of words: angles by places, norms by roots of mean squares, gated layers, grouped keys."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.second = nn.Embedding(9, 8), nn.RMSNorm(8), nn.RMSNorm(8)
        self.query, self.keys = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.gate, self.up, self.down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
        self.out = nn.Linear(8, 9)

    @staticmethod
    def _turned(x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[2]).float(), 0.1 ** torch.arange(x.shape[3] // 2).float())
        first, second = x[..., ::2], x[..., 1::2]
        sine, cosine = angles.sin(), angles.cos()
        parts = [first * cosine - second * sine, first * sine + second * cosine]
        return torch.stack(parts, -1).flatten(-2)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        normed = self.first(x)
        query = self._turned(self.query(normed).unflatten(2, (2, 4)).transpose(1, 2))
        key, value = self.keys(normed).unflatten(2, (2, 4)).transpose(1, 2).chunk(2, 1)
        key, value = self._turned(key).repeat_interleave(2, 1), value.repeat_interleave(2, 1)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + y.transpose(1, 2).flatten(2)
        normed = self.second(x)
        x = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
        found: Tensor = self.out(x)
        return found


def _enlarged() -> nn.Module:
    """A small U-Net whose borders mirror the image and whose planes lie between those below."""

    def run(parts: Any, x: Tensor) -> Any:
        first, second, up, shared, out = parts
        y = torch.relu(first(x))
        z = up(torch.relu(second(F.avg_pool2d(y, 2))))
        return out(shared(torch.cat([y, z], 1)))

    first = nn.Conv2d(1, 3, 3, padding=1, padding_mode="reflect")
    second = nn.Conv2d(3, 4, 3, padding=1, padding_mode="replicate")
    up, shared = nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveAvgPool2d(5)
    return Net(run, first, second, up, shared, nn.Conv2d(7, 1, 1))


class _Experts(nn.Module):
    """The best two of four experts for each row, weighted; sorted, gated, summed so far."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.into, self.out = nn.Linear(6, 4), nn.Linear(6, 8), nn.Linear(8, 3)
        self.scales = nn.Parameter(torch.randn(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        best, at = self.gate(x).topk(2, 1)
        weights = torch.zeros(len(x), 4).scatter(1, at, best.softmax(1))
        y = self.into(x) * (weights @ self.scales)
        y = y + y.sort(1).values.cumsum(1) / 8 + F.glu(torch.cat([y, y.flip(1)], 1)) + torch.roll(y, 1, 1)
        found: Tensor = self.out(F.softshrink(y, 0.1))
        return found


class StrangeNet(NamedTuple):
    """How to build a net, the shapes of what it reads, and its loss."""

    build: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    loss: str = "cross-entropy"
    words: int = 0
    """Where not 0, inputs are whole numbers below it."""

    def inputs(self) -> tuple[Tensor, ...]:
        """Of one step."""
        if self.words:
            return tuple(torch.randint(self.words, shape) for shape in self.shapes)
        return tuple(torch.randn(shape) for shape in self.shapes)


NETS: dict[str, StrangeNet] = {
    "keyword-spotter": StrangeNet(_keyword_spotter, ((2, 1, 8, 4),)),
    "squeezed": StrangeNet(_squeezed, ((2, 3, 10, 10),)),
    "shuffled": StrangeNet(_shuffled, ((2, 3, 6, 6),)),
    "patches": StrangeNet(_Patches, ((2, 1, 8, 8),)),
    "dilated": StrangeNet(_dilated, ((2, 2, 10),)),
    "transposed": StrangeNet(_transposed, ((2, 1, 8, 8),), "mse"),
    "segmenter": StrangeNet(_segmenter, ((2, 1, 6, 6),)),
    "mixer": StrangeNet(_Mixer, ((2, 1, 8, 8),)),
    "siamese": StrangeNet(_siamese, ((3, 8), (3, 8)), "mse"),
    "triplet": StrangeNet(_triplet, ((3, 8), (3, 8), (3, 8)), "mse"),
    "causal": StrangeNet(_causal, ((2, 5, 8),)),
    "points": StrangeNet(_points, ((2, 7, 3),)),
    "bags": StrangeNet(_bags, ((3, 4),), words=9),
    "rotary": StrangeNet(_Rotary, ((2, 5),), "cross-entropy:dim=-1", words=9),
    "enlarged": StrangeNet(_enlarged, ((2, 1, 6, 8),), "bce-with-logits"),
    "experts": StrangeNet(_Experts, ((5, 6),)),
}
