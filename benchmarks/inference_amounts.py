"""What published inferences amount to: FLOPs and bytes by class of op, in published/inference_amounts.csv.

    python -m benchmarks inference-amounts [--only NET ...]

Nets of 224x224 pixels are built by timm (``pip install timm``) without weights, SqueezeNet 1.1 and nets of
fully connected layers here. As inference libraries run them, a convolution has its batch norm and its ReLU in
it: neither is an op. Each net is traced over fake tensors at batch 1, its ops are counted by the cost table.
``interval_table.py`` reads the result.
"""

from __future__ import annotations

import argparse
import csv
import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from poet.devices.costs import estimate
from poet.devices.load import load_profile
from poet.frontend.trace import trace_evaluation, trace_training_step
from poet.ir.graph import Graph, Op
from poet.ir.optimizer import OptimizerSpec

AMOUNTS = Path(__file__).parent / "published" / "inference_amounts.csv"
HEADINGS = ("net", "class", "flops", "bytes", "runs")
TIMM_NAMES = {
    "mobilenet": "mobilenetv1_100", "mobilenet_v2": "mobilenetv2_100", "mnasnet": "mnasnet_100",
    "efficientnet_b0": "efficientnet_b0", "resnet18": "resnet18", "resnet50": "resnet50", "vgg16": "vgg16",
}  # fmt: skip
"""Nets of ncnn's table by their names in timm."""

DATASETS = {"iris": (4, 3), "wine": (13, 3), "breast-cancer": (30, 2), "digits": (64, 10)}
"""Features and classes, of TinyML-Benchmark-NNs-on-MCUs."""

HIDDEN = {"fc-1x10": (10,), "fc-10x10": (10,) * 10, "fc-10+50": (10, 50)}
"""Widths of the hidden layers of its nets."""

_FUSED = (nn.BatchNorm2d, nn.ReLU, nn.ReLU6)


class Fire(nn.Module):
    """SqueezeNet's block: few channels, then two convolutions side by side."""

    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.one = nn.Conv2d(squeezed, expanded, 1)
        self.three = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        narrow = self.squeeze(image)
        return torch.cat([self.one(narrow), self.three(narrow)], dim=1)


def squeezenet() -> nn.Module:
    """SqueezeNet 1.1."""
    pool = (3, 2, 0, 1, False, True)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2), nn.MaxPool2d(*pool), Fire(64, 16, 64), Fire(128, 16, 64),
        nn.MaxPool2d(*pool), Fire(128, 32, 128), Fire(256, 32, 128), nn.MaxPool2d(*pool),
        Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256),
        nn.Conv2d(512, 1000, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def fully_connected(features: int, hidden: tuple[int, ...], classes: int) -> nn.Module:
    """Linear layers with ReLU between them, and the softmax that the published code ends with."""
    layers: list[nn.Module] = []
    width = features
    for wide in hidden:
        layers += [nn.Linear(width, wide), nn.ReLU()]
        width = wide
    return nn.Sequential(*layers, nn.Linear(width, classes), nn.Softmax(dim=1))


def fused(module: nn.Module) -> nn.Module:
    """``module`` without batch norms and ReLUs, which its convolutions have in them."""
    for name, child in module.named_children():
        if isinstance(child, _FUSED):
            after = getattr(child, "act", None)  # timm's batch norm with an activation in it
            kept = after is not None and not isinstance(after, (nn.Identity, *_FUSED))
            setattr(module, name, after if kept else nn.Identity())
        else:
            fused(child)
    return module


def nets() -> dict[str, Callable[[], tuple[nn.Module, Tensor]]]:
    """How to make each net and its input."""
    found = {net: partial(_of_timm, name) for net, name in TIMM_NAMES.items()}
    small = {
        f"{kind} {dataset}": partial(_small, features, hidden, classes)
        for kind, hidden in HIDDEN.items()
        for dataset, (features, classes) in DATASETS.items()
    }
    return {**found, "squeezenet": lambda: (squeezenet(), torch.zeros(1, 3, 227, 227)), **small}


def _of_timm(name: str) -> tuple[nn.Module, Tensor]:
    built: nn.Module = importlib.import_module("timm").create_model(name, num_classes=1000)
    return fused(built), torch.zeros(1, 3, 224, 224)


def _small(features: int, hidden: tuple[int, ...], classes: int) -> tuple[nn.Module, Tensor]:
    return fully_connected(features, hidden, classes), torch.zeros(1, features)


def inference(module: nn.Module, example: Tensor) -> Graph:
    """The graph whose ops `needed` picks: of the forward pass in evaluation mode, with a loss behind it."""
    training = trace_training_step(module, example, optimizer=OptimizerSpec("sgd"), measure=False)
    return trace_evaluation(module, example, training, measure=False).graph


def needed(graph: Graph) -> Iterator[Op]:
    """Ops that the predictions need: those of the loss are left out."""
    wanted = {graph.buffer_of(value) for value in graph.predictions}
    for op in reversed(graph.ops):
        if wanted.intersection(graph.writes(op)):
            wanted.update(graph.reads(op.call))
            yield op


def amounts(graph: Graph) -> Iterator[tuple[str, int, int, int]]:
    """Class, FLOPs, bytes moved and how many ops are so, per kind of op."""
    costs = estimate(graph, load_profile("rpi4b"))
    used = [costs.ops[op.name] for op in needed(graph)]
    counted = Counter((cost.op_class.value, round(cost.flops), cost.bytes_moved) for cost in used)
    return ((*kind, runs) for kind, runs in sorted(counted.items()))


def main() -> None:
    """Write the table; rows of nets that are not asked for stay as they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", default=None, metavar="NET")
    makers = nets()
    wanted = parser.parse_args().only or list(makers)
    rows: dict[str, list[tuple[object, ...]]] = {}
    if AMOUNTS.exists():
        with AMOUNTS.open(encoding="utf-8") as file:
            for row in csv.reader(line for line in file if not line.startswith(("#", "net,"))):
                rows.setdefault(row[0], []).append(tuple(row))
    for net in wanted:
        rows[net] = [(net, *kind) for kind in amounts(inference(*makers[net]()))]
    partial = AMOUNTS.with_suffix(".partial")
    with partial.open("w", encoding="utf-8", newline="") as file:
        file.write("# Made by inference_amounts.py: FLOPs and bytes of each kind of op in one inference\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADINGS)
        for net in sorted(rows):
            writer.writerows(rows[net])
    partial.replace(AMOUNTS)


if __name__ == "__main__":
    main()
