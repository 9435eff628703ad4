"""Tiny named nets, one for each way in which a training step can be difficult."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class TinyNet:
    """How to build a net, what to give it, and what it is trained with."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    targets: Callable[[], Tensor | None]
    loss: str = "cross-entropy"
    train: tuple[str, ...] | None = None


class Net(nn.Module):
    """Modules and a function that puts them together."""

    def __init__(self, run: Callable[..., object], *parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        self.parts = nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> object:
        return self.run(self.parts, *inputs)


def _classes(count: int, of: int = 10) -> Callable[[], Tensor]:
    return lambda: torch.randint(of, (count,))


def _normal(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(shape),)


def small_net() -> nn.Sequential:
    """Batch norm, dropout and a view, of inputs (batch, 2, 8, 8): what makes recomputation and paging err."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.4),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 5),
    ).train()


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


def _mobile() -> nn.Module:
    def run(parts: nn.ModuleList, x: Tensor) -> object:
        x = parts[0](x)
        x = x + parts[1](x)
        return parts[2](x.mean((2, 3)))

    def normed(width_in: int, width: int, size: int, groups: int = 1) -> nn.Sequential:
        convolution = nn.Conv2d(width_in, width, size, padding=size // 2, groups=groups, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(width), nn.ReLU6(inplace=True))

    block = nn.Sequential(normed(8, 16, 1), normed(16, 16, 3, groups=16), nn.Conv2d(16, 8, 1))
    return Net(run, normed(3, 8, 3), block, nn.Linear(8, 10))


def _dropout() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 128),
        nn.Dropout(0.3),
        nn.GELU(),
        nn.Dropout(0.5, inplace=True),
        nn.AlphaDropout(0.1),
        nn.Linear(128, 10),
    )


def _noise() -> nn.Module:
    def run(parts: nn.ModuleList, x: Tensor) -> object:
        return parts[0](x + torch.randn_like(x) * 0.1 + torch.rand(x.shape).bernoulli(0.5))

    return Net(run, nn.Linear(600, 10))


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.1)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Net(lambda parts, x: parts[1](parts[0](x).mean(1)), encoder, nn.Linear(16, 10))


def _masked_attention() -> nn.Module:
    def run(parts: nn.ModuleList, x: Tensor) -> object:
        query, key, value = parts[0](x).view(2, 7, 3, 4, 4).permute(2, 0, 3, 1, 4)
        mask = torch.ones(7, 7, dtype=torch.bool).tril()
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=0.2)
        return parts[1](y.transpose(1, 2).reshape(2, 7, 16).amax(1))

    return Net(run, nn.Linear(16, 48), nn.Linear(16, 10))


def _gpt() -> nn.Module:
    def run(parts: nn.ModuleList, tokens: Tensor) -> object:
        x = parts[0](tokens) + parts[1](torch.arange(tokens.shape[1]))
        query, key, value = parts[2](parts[3](x)).chunk(3, dim=-1)
        query, key, value = (item.unflatten(2, (2, 8)).transpose(1, 2) for item in (query, key, value))
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + y.transpose(1, 2).flatten(2)
        return F.linear(parts[4](x), torch.as_tensor(parts[0].weight))

    sizes = nn.Embedding(30, 16), nn.Embedding(12, 16), nn.Linear(16, 48), nn.LayerNorm(16), nn.LayerNorm(16)
    return Net(run, *sizes)


def _recurrent(cell: nn.Module, width: int) -> nn.Module:
    return Net(lambda parts, x: parts[1](parts[0](x)[0][:, -1]), cell, nn.Linear(width, 10))


def _lstm() -> nn.Module:
    cell = nn.LSTM(6, 8, num_layers=2, bidirectional=True, batch_first=True, dropout=0.2)
    return _recurrent(cell, 16)


def _unet() -> nn.Module:
    def run(parts: nn.ModuleList, x: Tensor) -> object:
        wide = F.relu(parts[0](x), inplace=True)
        pooled, indices = F.max_pool2d(wide, 2, return_indices=True)
        deep = F.leaky_relu_(parts[1](pooled))
        ups = [
            parts[2](deep),
            F.interpolate(deep, scale_factor=2.0, mode="bilinear", align_corners=False),
            F.interpolate(pooled, scale_factor=2.0, mode="nearest"),
            F.max_unpool2d(pooled, indices, [2, 2]),
        ]
        return parts[3](torch.cat([*ups, wide], 1))

    convolutions = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
    return Net(run, *convolutions, nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(24, 5, 1))


class Tied(nn.Module):
    """Token ids to scores of words through one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.inner = nn.Linear(8, 8)
        self.scores = nn.Linear(8, 20, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.scores(torch.tanh(self.inner(self.words(tokens))))
        return scores


def _norms() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(2, 8),
        nn.SiLU(inplace=True),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.Hardswish(inplace=True),
        nn.AvgPool2d(2),
        nn.LocalResponseNorm(3),
        nn.Flatten(),
        nn.LayerNorm(72),
        nn.Linear(72, 32),
        nn.RMSNorm(32),
        nn.GLU(),
        nn.Linear(16, 10),
    )


def _channels_last() -> nn.Module:
    return _cnn().to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


def _writes() -> nn.Module:
    def run(parts: nn.ModuleList, x: Tensor) -> object:
        y = parts[0](x)
        first, second, third = y.chunk(3, 1)
        z = first * second.exp().clamp(max=5) + third.roll(1, 1)
        z[:, 2:4] = 1.5
        z[:, 5] += first[:, 1]
        z[0] = z[1] * 2
        w = z.masked_fill(z > 2, 2.0)
        added = torch.zeros_like(w).scatter_add_(1, torch.arange(8).expand(4, 8) % 3, w)
        added.index_add_(1, torch.tensor([0, 1]), w[:, :2])
        parcels = [w, added, w.topk(3, 1)[0], w[:, [1, 2]], y.cumsum(1)[:, :3], w.sort(1)[0], w.t().t()]
        return parts[1](torch.cat(parcels, 1).unsqueeze_(0).squeeze(0))

    return Net(run, nn.Linear(6, 24), nn.Linear(40, 10))


class OwnState(nn.Module):
    """Updates buffers of its own in forward, a transposed one in part, and holds a plain constant."""

    mean: Tensor
    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 10)
        self.register_buffer("mean", torch.zeros(10))
        self.register_buffer("counts", torch.zeros(3, 4).t())
        self.scale = torch.linspace(0.5, 1.5, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x) * self.scale.view(1, 10)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(y.mean(0), alpha=0.1)
            self.counts[1:3] += 1
        return y - self.mean + self.counts.sum()


def _normed_weights() -> nn.Module:
    wrap = torch.nn.utils.parametrizations
    plain, spectral = wrap.weight_norm(nn.Linear(6, 8)), wrap.spectral_norm(nn.Linear(8, 10))
    return nn.Sequential(plain, nn.ReLU(), spectral)


def _shared_norm() -> nn.Module:
    def run(parts: nn.ModuleList, x: Tensor) -> object:
        return parts[2](parts[1](F.relu(parts[1](parts[0](x)))).mean((2, 3)))

    return Net(run, nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 10))


def _checkpointed() -> nn.Module:
    def run(parts: nn.ModuleList, x: Tensor) -> object:
        inner = checkpoint(lambda y: F.relu(parts[0](y)), x, use_reentrant=False)
        return parts[1](inner)

    return Net(run, nn.Linear(6, 8), nn.Linear(8, 10))


class Sums(nn.Module):
    """Gradients that are views: expanded, shared by two parameters, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.randn(3, 4))
        self.two = nn.Parameter(torch.randn(3, 4))
        self.turned = nn.Parameter(torch.randn(4, 3).t())

    def forward(self, x: Tensor) -> Tensor:
        return self.one + self.two + self.turned * x


def _bags() -> nn.Module:
    def run(parts: nn.ModuleList, words: Tensor, bag: Tensor) -> object:
        return parts[2](torch.cat([parts[0](words).mean(1), parts[1](bag)], 1))

    return Net(run, nn.Embedding(30, 8, padding_idx=0), nn.EmbeddingBag(20, 4), nn.Linear(12, 10))


NETS: dict[str, TinyNet] = {
    "cnn": TinyNet(_cnn, _normal(4, 3, 12, 12), _classes(4)),
    "mobile": TinyNet(_mobile, _normal(4, 3, 8, 8), _classes(4)),
    "dropout": TinyNet(_dropout, _normal(32, 64), _classes(32)),
    "noise": TinyNet(_noise, _normal(4, 600), _classes(4)),
    "transformer": TinyNet(_transformer, _normal(4, 7, 16), _classes(4)),
    "masked-attention": TinyNet(_masked_attention, _normal(2, 7, 16), _classes(2)),
    "gpt": TinyNet(
        _gpt,
        lambda: (torch.randint(30, (2, 12)),),
        lambda: torch.randint(30, (2, 12)),
        loss="cross-entropy:dim=-1",
    ),
    "lstm": TinyNet(_lstm, _normal(4, 7, 6), _classes(4)),
    "gru": TinyNet(lambda: _recurrent(nn.GRU(6, 8, batch_first=True), 8), _normal(4, 3, 6), _classes(4)),
    "unet": TinyNet(_unet, _normal(2, 3, 8, 8), lambda: torch.randint(5, (2, 8, 8))),
    "tied": TinyNet(
        Tied,
        lambda: (torch.randint(20, (3, 5)),),
        lambda: torch.randint(20, (3, 5)),
        loss="cross-entropy:dim=-1",
    ),
    "frozen": TinyNet(_cnn, _normal(4, 3, 12, 12), _classes(4), train=("4.*", "9.*")),
    "norms": TinyNet(_norms, _normal(4, 3, 8, 8), _classes(4)),
    "channels-last": TinyNet(
        _channels_last,
        lambda: (torch.randn(4, 3, 12, 12).to(memory_format=torch.channels_last),),
        _classes(4),
    ),
    "evaluating": TinyNet(lambda: _cnn().eval(), _normal(4, 3, 12, 12), _classes(4)),
    "writes": TinyNet(_writes, _normal(4, 6), _classes(4)),
    "own-state": TinyNet(OwnState, _normal(4, 6), lambda: torch.randn(4, 10), loss="mse"),
    "normed-weights": TinyNet(_normed_weights, _normal(4, 6), _classes(4)),
    "shared-norm": TinyNet(_shared_norm, _normal(4, 3, 8, 8), _classes(4)),
    "checkpointed": TinyNet(_checkpointed, _normal(4, 6), _classes(4)),
    "sums": TinyNet(Sums, _normal(3, 4), lambda: None, loss="output"),
    "bags": TinyNet(_bags, lambda: (torch.randint(30, (4, 5)), torch.randint(20, (4, 6))), _classes(4)),
    "bce": TinyNet(lambda: nn.Linear(6, 3), _normal(4, 6), lambda: torch.rand(4, 3), loss="bce-with-logits"),
    "bfloat16": TinyNet(
        lambda: Net(lambda parts, x: parts[0](x.bfloat16()).float(), nn.Linear(6, 10).bfloat16()),
        _normal(4, 6),
        _classes(4),
    ),
}
