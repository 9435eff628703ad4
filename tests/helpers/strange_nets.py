"""Small nets of kinds that people bring to a microcontroller, each with operators or layouts of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _KeywordSpotter(nn.Module):
    """A convolution before a GRU that reads both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = (
            nn.Conv2d(1, 4, (5, 3), stride=(2, 1), padding=(2, 1)),
            nn.BatchNorm2d(4),
        )
        self.layer = nn.GRU(4 * 4, 5, batch_first=True, bidirectional=True)
        self.out = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.convolution(x))).permute(0, 3, 1, 2).flatten(2)
        found: Tensor = self.out(self.layer(y)[0][:, -1])
        return found


class _Squeezed(nn.Module):
    """A mobile block with squeeze-and-excitation and hard swish."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.Hardswish())
        self.wide = nn.Sequential(nn.Conv2d(4, 8, 5, 1, 2, groups=4, bias=False), nn.BatchNorm2d(8))
        self.down, self.up = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.narrow = nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.out = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 6), nn.Hardswish())

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.wide(x)
        y = y * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(y, 1)))))
        found: Tensor = self.out(x + self.narrow(F.hardswish(y)))
        return found


class _Shuffled(nn.Module):
    """Channels split, one half through convolutions, and shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.branch = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.BatchNorm2d(3), nn.ReLU())
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, 1)
        y = torch.cat([left, self.branch(right)], 1)
        y = y.view(-1, 2, 3, *y.shape[2:]).transpose(1, 2).flatten(1, 2)
        found: Tensor = self.out(y.mean((2, 3)))
        return found


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


class _Dilated(nn.Module):
    """A temporal convolution net with weight norm."""

    def __init__(self) -> None:
        super().__init__()
        normed = nn.utils.parametrizations.weight_norm
        self.first, self.second = normed(nn.Conv1d(2, 5, 3)), normed(nn.Conv1d(5, 5, 3, dilation=2))
        self.beside, self.out = nn.Conv1d(2, 5, 1), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first(F.pad(x, (2, 0))))
        y = F.relu(self.second(F.pad(y, (4, 0))))
        found: Tensor = self.out(F.relu(y + self.beside(x))[:, :, -1])
        return found


class _Transposed(nn.Module):
    """An autoencoder whose decoder is of transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 3, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(3, 4, 3, 2, 1))
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1), nn.ReLU(), nn.ConvTranspose2d(3, 1, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.sigmoid(self.decoder(self.encoder(x)))
        return found


class _Segmenter(nn.Module):
    """A small U-Net with a class for each place, its image enlarged by repeating."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.deep = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.out = nn.Conv2d(10, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(x)
        z = F.interpolate(self.deep(F.max_pool2d(y, 2)), scale_factor=2)
        found: Tensor = self.out(torch.cat([z, y], 1))
        return found


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


class _Siamese(nn.Module):
    """Two inputs through one net, compared by the cosine of their angle."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 6))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return F.cosine_similarity(self.layers(left), self.layers(right)).unsqueeze(1)


class _Triplet(nn.Module):
    """An anchor nearer to one input than to another by a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 6))

    def forward(self, anchor: Tensor, near: Tensor, far: Tensor) -> Tensor:
        a, n, f = self.layers(anchor), self.layers(near), self.layers(far)
        return F.relu((a - n).pow(2).sum(1) - (a - f).pow(2).sum(1).sqrt() + (a - f).abs().mean(1) + 1.0)


class _Causal(nn.Module):
    """Attention that looks back only."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inner(x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.out(y.transpose(1, 2).flatten(2)[:, -1])
        return found


class _Points(nn.Module):
    """Points, each by itself, and the largest of each feature; lengths made one, spreads, bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 8), nn.PReLU(), nn.Linear(8, 6), nn.PReLU(6, 0.1))
        self.out = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.normalize(x - x.mean(1, keepdim=True), dim=2).flatten(0, 1)
        y = self.each(y).view(x.shape[0], -1, 6)
        largest = y.transpose(1, 2).amax(2).clamp(min=-0.5)
        parts = [y.amax(1), y.min(1).values, y.std(1), torch.log(1.5 + largest)]
        found: Tensor = self.out(torch.cat(parts, 1))
        return found


class _Bags(nn.Module):
    """Bags of words: their mean, sum and largest, behind softplus."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(9, 5, mode=mode) for mode in ("mean", "sum", "max"))
        self.out = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = (F.softplus(bag(x)) for bag in self.bags)
        found: Tensor = self.out(first + second - third)
        return found


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


class _Enlarged(nn.Module):
    """A small U-Net whose borders mirror the image and whose planes lie between those below."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1, padding_mode="reflect")
        self.second = nn.Conv2d(3, 4, 3, padding=1, padding_mode="replicate")
        self.up, self.shared = nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveAvgPool2d(5)
        self.out = nn.Conv2d(7, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        z = self.up(torch.relu(self.second(F.avg_pool2d(y, 2))))
        found: Tensor = self.out(self.shared(torch.cat([y, z], 1)))
        return found


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
    "keyword-spotter": StrangeNet(_KeywordSpotter, ((2, 1, 8, 4),)),
    "squeezed": StrangeNet(_Squeezed, ((2, 3, 10, 10),)),
    "shuffled": StrangeNet(_Shuffled, ((2, 3, 6, 6),)),
    "patches": StrangeNet(_Patches, ((2, 1, 8, 8),)),
    "dilated": StrangeNet(_Dilated, ((2, 2, 10),)),
    "transposed": StrangeNet(_Transposed, ((2, 1, 8, 8),), "mse"),
    "segmenter": StrangeNet(_Segmenter, ((2, 1, 6, 6),)),
    "mixer": StrangeNet(_Mixer, ((2, 1, 8, 8),)),
    "siamese": StrangeNet(_Siamese, ((3, 8), (3, 8)), "mse"),
    "triplet": StrangeNet(_Triplet, ((3, 8), (3, 8), (3, 8)), "mse"),
    "causal": StrangeNet(_Causal, ((2, 5, 8),)),
    "points": StrangeNet(_Points, ((2, 7, 3),)),
    "bags": StrangeNet(_Bags, ((3, 4),), words=9),
    "rotary": StrangeNet(_Rotary, ((2, 5),), "cross-entropy:dim=-1", words=9),
    "enlarged": StrangeNet(_Enlarged, ((2, 1, 6, 8),), "bce-with-logits"),
    "experts": StrangeNet(_Experts, ((5, 6),)),
}
