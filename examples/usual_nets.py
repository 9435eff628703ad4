"""Fourteen nets as people write them, small: for the table of what imports, trains and goes back.

    net = USUAL["dropout-mobilenet"]
    module, inputs = net.build(), net.inputs()

Three come from transformers, built from a small configuration; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class UsualNet:
    """One net.

    Attributes:
        title: for tables.
        build: the module, in training mode.
        inputs: of one step.
        loss: the name of its loss.
        package: what must be installed beside torch, or ``None``.
    """

    title: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    loss: str = "cross-entropy"
    package: str | None = None


def _images(channels: int, pixels: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(2, channels, pixels, pixels),)


class DSCNN(nn.Module):
    """Depthwise-separable convolutions over a spectrogram, as for keyword spotting."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 8, (10, 4), stride=2, padding=(5, 1), bias=False), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                    nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
                )
                for _ in range(2)
            )
        )  # fmt: skip
        self.head = nn.Linear(8, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of 12 words."""
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


class ResidualMLP(nn.Module):
    """Linear blocks with layer norm, GELU, dropout and a way around each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(10, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
            for _ in range(2)
        )
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number per row."""
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)  # type: ignore[no-any-return]


class TCN(nn.Module):
    """Dilated causal convolutions with weight norm."""

    def __init__(self) -> None:
        super().__init__()
        weight_norm = torch.nn.utils.parametrizations.weight_norm
        self.convolutions = nn.ModuleList(
            weight_norm(nn.Conv1d(4 if index == 0 else 8, 8, 3, dilation=2**index)) for index in range(3)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of 5 classes from the last moment."""
        for index, convolution in enumerate(self.convolutions):
            x = F.relu(convolution(F.pad(x, (2 * 2**index, 0))))
        return self.head(x[:, :, -1])  # type: ignore[no-any-return]


class BiGRU(nn.Module):
    """Words, a bidirectional GRU of two layers over 20 steps, and a head on both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 12)
        self.rnn = nn.GRU(12, 10, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(20, 4)

    def forward(self, words: Tensor) -> Tensor:
        """Scores of 4 classes."""
        outputs, _ = self.rnn(self.embedding(words))
        return self.head(outputs.mean(1))  # type: ignore[no-any-return]


class DropoutMobileNet(nn.Module):
    """Inverted residuals with squeeze-excitation, hard swish and dropout in place, as in MobileNetV3."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(inplace=True)
        )
        self.expand = nn.Sequential(
            nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish(inplace=True),
            nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardswish(inplace=True),
        )  # fmt: skip
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 16, 1),
            nn.Hardsigmoid(inplace=True),
        )  # fmt: skip
        self.project = nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.classifier = nn.Sequential(
            nn.Linear(8, 16), nn.Hardswish(inplace=True), nn.Dropout(p=0.2, inplace=True), nn.Linear(16, 10)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scores of 10 classes."""
        x = self.stem(x)
        wide = self.expand(x)
        x = x + self.project(wide * self.squeeze(wide))
        return self.classifier(x.mean((2, 3)))  # type: ignore[no-any-return]


class MaskedAttention(nn.Module):
    """`nn.MultiheadAttention` with a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)
        self.register_buffer("mask", torch.full((6, 6), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        """Scores of 3 classes."""
        attended, _ = self.attention(x, x, x, attn_mask=self.mask, need_weights=False)
        return self.head(self.norm(x + attended).mean(1))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """`nn.TransformerEncoder` of two layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of 3 classes."""
        return self.head(self.encoder(x).mean(1))  # type: ignore[no-any-return]


class SmallUNet(nn.Module):
    """Down, up, and across; a class for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())
        self.bottom = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of 4 classes per pixel."""
        wide = self.down(x)
        return self.head(torch.cat([wide, self.up(self.bottom(wide))], 1))  # type: ignore[no-any-return]


class TwoHeads(nn.Module):
    """One trunk, a class and a box; the loss reads the class."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 16), nn.ReLU())
        self.label = nn.Linear(16, 3)
        self.box = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of 3 classes, and four numbers."""
        x = self.trunk(x)
        return self.label(x), self.box(x)


class Autoencoder(nn.Module):
    """Through a bottleneck of 3 numbers and back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 20))

    def forward(self, x: Tensor) -> Tensor:
        """What comes back."""
        return self.decoder(self.encoder(x))  # type: ignore[no-any-return]


class LoRALinear(nn.Module):
    """A frozen linear layer and a trained product of two thin matrices beside it."""

    def __init__(self, inputs: int, outputs: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, inputs) / inputs)
        self.b = nn.Parameter(torch.randn(outputs, rank) / 10)

    def forward(self, x: Tensor) -> Tensor:
        """Both, summed."""
        return self.base(x) + (x @ self.a.T) @ self.b.T  # type: ignore[no-any-return]


class LoRA(nn.Module):
    """Two layers with adapters; only the adapters and the head are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first = LoRALinear(12, 16)
        self.second = LoRALinear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of 5 classes."""
        return self.head(F.relu(self.second(F.relu(self.first(x)))))  # type: ignore[no-any-return]


class Scores(nn.Module):
    """A model of transformers as a module from tensors to scores; positional, without a cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: Tensor) -> Tensor:
        """The model's logits."""
        return self.model(given, return_dict=True).logits  # type: ignore[no-any-return]


class MaskedScores(Scores):
    """The same with an attention mask."""

    def forward(self, given: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """The model's logits."""
        return self.model(given, attention_mask=mask, return_dict=True).logits  # type: ignore[no-any-return]


def _vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16,
        patch_size=8, num_labels=4,
    )  # fmt: skip
    return Scores(ViTForImageClassification(config))


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, num_labels=3, use_cache=False,
        pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return Scores(GPT2ForSequenceClassification(config))


def _distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    config = DistilBertConfig(
        vocab_size=40, max_position_embeddings=16, dim=16, n_layers=2, n_heads=2, hidden_dim=32, num_labels=3
    )
    return MaskedScores(DistilBertForSequenceClassification(config))


def _words() -> tuple[Tensor, ...]:
    return (torch.randint(1, 40, (2, 8)),)


def _masked_words() -> tuple[Tensor, ...]:
    return (*_words(), torch.ones(2, 8, dtype=torch.int64))


USUAL: dict[str, UsualNet] = {
    "ds-cnn": UsualNet("DS-CNN", DSCNN, lambda: (torch.randn(2, 1, 49, 10),)),
    "residual-mlp": UsualNet("residual MLP", ResidualMLP, lambda: (torch.randn(4, 10),), "mse"),
    "tcn": UsualNet("weight-norm TCN", TCN, lambda: (torch.randn(2, 4, 16),)),
    "bigru": UsualNet("bidirectional GRU", BiGRU, lambda: (torch.randint(30, (2, 20)),)),
    "dropout-mobilenet": UsualNet("MobileNetV3-like, dropout in place", DropoutMobileNet, _images(3, 16)),
    "attention": UsualNet("MultiheadAttention, masked", MaskedAttention, lambda: (torch.randn(2, 6, 16),)),
    "encoder": UsualNet("TransformerEncoder", Encoder, lambda: (torch.randn(2, 6, 16),)),
    "unet": UsualNet("U-Net, loss per pixel", SmallUNet, _images(3, 8)),
    "two-heads": UsualNet("two heads", TwoHeads, lambda: (torch.randn(4, 10),)),
    "autoencoder": UsualNet("autoencoder", Autoencoder, lambda: (torch.randn(4, 20),), "mse"),
    "lora": UsualNet("LoRA", LoRA, lambda: (torch.randn(4, 12),)),
    "vit": UsualNet("ViT (transformers)", _vit, _images(3, 16), package="transformers"),
    "gpt2": UsualNet("GPT-2 (transformers)", _gpt2, _words, package="transformers"),
    "distilbert": UsualNet("DistilBERT (transformers)", _distilbert, _masked_words, package="transformers"),
}  # fmt: skip
"""By the name that the table's command takes."""
