"""Eight nets in plain torch, each in a small and in a realistic size, some also between, and their exports.

net = NETS["resnet18"]
module = net.small.build()
inputs, targets = net.small.inputs(batch=4), net.small.targets(batch=4)
export(module, inputs, "resnet18.onnx", exporter="dynamo", training=True)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from zoo.export import EXPORTERS as EXPORTERS
from zoo.export import export as export
from zoo.sequence import GPT, Bert, LSTMClassifier, ViT
from zoo.vision import ConvNeXt, MobileNetV2, ResNet, UNet

__all__ = ["EXPORTERS", "LARGE", "NETS", "Net", "Size", "export"]


@dataclass(frozen=True)
class Size:
    """One size of a net: how to build it, and the shapes of one sample (without the batch dimension).

    ``words`` is the vocabulary where the input is token ids, else ``None``. ``classes`` is the number
    of classes of integer targets, else ``None``: then targets are zeros and ones of ``target_shape``.
    """

    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...] = ()
    words: int | None = None
    classes: int | None = None

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Random inputs for ``build()(*inputs)``."""
        shape = (batch, *self.input_shape)
        return (torch.randn(shape) if self.words is None else torch.randint(self.words, shape),)

    def targets(self, batch: int = 2) -> Tensor:
        """Random targets for the net's loss."""
        shape = (batch, *self.target_shape)
        if self.classes is None:
            return torch.randint(2, shape).to(torch.float32)
        return torch.randint(self.classes, shape)


@dataclass(frozen=True)
class Net:
    """A net in two sizes or three, and the name of the loss it is trained with."""

    small: Size
    full: Size
    loss: str = "cross-entropy"
    medium: Size | None = None

    @property
    def sizes(self) -> dict[str, Size]:
        """The sizes that there are, by name."""
        named = {"small": self.small, "medium": self.medium, "full": self.full}
        return {name: size for name, size in named.items() if size is not None}


def _image(build: Callable[[], nn.Module], pixels: int) -> Size:
    return Size(build, (3, pixels, pixels), classes=10)


NETS: dict[str, Net] = {
    "resnet18": Net(
        _image(partial(ResNet, (1, 1), width=8), 16),
        _image(partial(ResNet, stem="imagenet"), 224),
        medium=_image(ResNet, 32),
    ),
    "mobilenet_v2": Net(
        _image(partial(MobileNetV2, ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 1, 2)), width=0.5, head=32), 16),
        _image(MobileNetV2, 32),
        medium=_image(partial(MobileNetV2, width=0.35, small_images=False), 64),
    ),
    "bert": Net(
        Size(partial(Bert, layers=2, width=32, heads=4, words=50, length=16), (12,), words=50, classes=2),
        Size(partial(Bert, layers=12), (128,), words=30522, classes=2),
        medium=Size(partial(Bert, layers=4, width=256, heads=4), (128,), words=30522, classes=2),
    ),
    "vit": Net(
        _image(partial(ViT, layers=2, width=32, heads=4, image=16, patch=4), 16),
        _image(ViT, 224),
    ),
    "unet": Net(
        Size(partial(UNet, width=4, depth=2), (3, 16, 16), (1, 16, 16)),
        Size(UNet, (3, 128, 128), (1, 128, 128)),
        loss="bce-with-logits",
    ),
    "lstm": Net(
        Size(partial(LSTMClassifier, layers=2, width=16, words=50), (6,), words=50, classes=2),
        Size(LSTMClassifier, (64,), words=10000, classes=2),
    ),
    "convnext": Net(
        _image(partial(ConvNeXt, (1, 1), (16, 32), patch=2), 16),
        _image(ConvNeXt, 224),
    ),
    "gpt": Net(
        Size(
            partial(GPT, layers=2, width=32, heads=4, words=50, length=16), (12,), (12,), words=50, classes=50
        ),
        Size(GPT, (128,), (128,), words=50257, classes=50257),
    ),
}

LARGE: dict[str, Net] = {
    "resnet50": Net(
        _image(partial(ResNet, (1, 1), width=8, bottleneck=True), 16),
        _image(partial(ResNet, (3, 4, 6, 3), classes=1000, stem="imagenet", bottleneck=True), 224),
    ),
    "bert": NETS["bert"],
    "mobilenet_v2": Net(NETS["mobilenet_v2"].small, _image(MobileNetV2, 224)),
    "unet": Net(
        NETS["unet"].small,
        Size(partial(UNet, width=64), (3, 256, 256), (1, 256, 256)),
        loss="bce-with-logits",
    ),
    "gpt": NETS["gpt"],
    "bert_24": Net(
        NETS["bert"].small, Size(partial(Bert, layers=24, width=512, heads=8), (128,), words=30522, classes=2)
    ),
    "resnet152": Net(
        _image(partial(ResNet, (1, 1), width=8, bottleneck=True), 16),
        _image(partial(ResNet, (3, 8, 36, 3), classes=1000, stem="imagenet", bottleneck=True), 224),
    ),
}
"""Nets at the sizes at which they are known, BERT of 24 layers at half its width: 250 to 2,000 ops."""
