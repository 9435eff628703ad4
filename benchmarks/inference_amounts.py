"""What published inferences and small steps amount to: FLOPs and bytes, in published/inference_amounts.csv.

    python -m benchmarks inference-amounts [--only NET ...]

Nets of 224x224 pixels are built by timm (``pip install timm``) without weights, SqueezeNet 1.1 and nets of
fully connected layers here. As inference libraries run them, a convolution has its batch norm and its ReLU in
it: neither is an op. Each net is traced over fake tensors at batch 1, its ops are counted by the cost table.
AIfES's MNIST nets are counted as inferences and as steps of its example (Adam, cross-entropy), with their
ReLUs. ``interval_table.py`` reads the result.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from poet.devices.costs import estimate
from poet.devices.load import load_profile
from poet.frontend.evaluation import trace_evaluation
from poet.frontend.trace import trace_training_step
from poet.ir.graph import Graph, Op
from poet.ir.optimizer import OptimizerSpec

AMOUNTS = Path(__file__).parent / "published" / "inference_amounts.csv"
HEADINGS = ("net", "class", "flops", "bytes", "runs")
Row = tuple[str, int, int, int]
TIMM_NAMES = {
    "mobilenet": "mobilenetv1_100", "mobilenet_v2": "mobilenetv2_100", "mnasnet": "mnasnet_100",
    "efficientnet_b0": "efficientnet_b0", "resnet18": "resnet18", "resnet50": "resnet50", "vgg16": "vgg16",
}  # fmt: skip
"""Nets of ncnn's table by their names in timm."""

DATASETS = {"iris": (4, 3), "wine": (13, 3), "breast-cancer": (30, 2), "digits": (64, 10)}
"""Features and classes, of TinyML-Benchmark-NNs-on-MCUs."""

HIDDEN = {"fc-1x10": (10,), "fc-10x10": (10,) * 10, "fc-10+50": (10, 50)}
"""Widths of the hidden layers of its nets."""

AIFES = {"aifes-cnn": None, "aifes-10+50": (10, 50), "aifes-10x10": (10,) * 10, "aifes-1x10": (10,)}
"""AIfES's example nets of 28x28 pixels by widths of hidden layers; the first is its CNN."""

AIFES_BATCHES = (1, 5)
"""Of the steps that are counted: one image, and the five of its sketch."""

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


def aifes(hidden: tuple[int, ...] | None, classes: int = 10) -> nn.Module:
    """A net of AIfES's examples/6_MNIST_Dataset; between its fully connected layers is no activation."""
    if hidden is None:
        first = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)
        second = nn.Conv2d(4, 8, 3), nn.ReLU(), nn.MaxPool2d(2)
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(200, classes))
    widths = (28 * 28, *hidden, classes)
    return nn.Sequential(nn.Flatten(), *(nn.Linear(*pair) for pair in itertools.pairwise(widths)))


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


def nets() -> dict[str, Callable[[], Iterator[Row]]]:
    """How to count each net."""
    found = {net: partial(_of_timm, name) for net, name in TIMM_NAMES.items()}
    small = {
        f"{kind} {dataset}": partial(_small, features, hidden, classes)
        for kind, hidden in HIDDEN.items()
        for dataset, (features, classes) in DATASETS.items()
    }
    of_mnist = {
        net: partial(amounts_of_inference, aifes(hidden), torch.zeros(1, 1, 28, 28))
        for net, hidden in AIFES.items()
    }
    steps = {
        f"{net} step of {batch}": partial(amounts_of_step, aifes(hidden), torch.zeros(batch, 1, 28, 28))
        for net, hidden in AIFES.items()
        for batch in AIFES_BATCHES
    }
    squeezed = partial(amounts_of_inference, squeezenet(), torch.zeros(1, 3, 227, 227))
    return {**found, "squeezenet": squeezed, **small, **of_mnist, **steps}


def _of_timm(name: str) -> Iterator[Row]:
    built: nn.Module = importlib.import_module("timm").create_model(name, num_classes=1000)
    return amounts_of_inference(fused(built), torch.zeros(1, 3, 224, 224))


def _small(features: int, hidden: tuple[int, ...], classes: int) -> Iterator[Row]:
    return amounts_of_inference(fully_connected(features, hidden, classes), torch.zeros(1, features))


def amounts_of_inference(module: nn.Module, example: Tensor) -> Iterator[Row]:
    """Of the forward pass in evaluation mode; ops of a loss behind it are left out."""
    training = trace_training_step(module, example, optimizer=OptimizerSpec("sgd"), measure=False)
    graph = trace_evaluation(module, example, training, measure=False).graph
    return amounts(graph, needed(graph))


def amounts_of_step(module: nn.Module, example: Tensor) -> Iterator[Row]:
    """Of a training step with Adam."""
    graph = trace_training_step(module, example, optimizer=OptimizerSpec("adam"), measure=False).graph
    return amounts(graph, graph.ops)


def needed(graph: Graph) -> Iterator[Op]:
    """Ops that the predictions need."""
    wanted = {graph.buffer_of(value) for value in graph.predictions}
    for op in reversed(graph.ops):
        if wanted.intersection(graph.writes(op)):
            wanted.update(graph.reads(op.call))
            yield op


def amounts(graph: Graph, ops: Iterable[Op]) -> Iterator[Row]:
    """Class, FLOPs, bytes moved and how many ops are so, per kind of op."""
    costs = estimate(graph, load_profile("rpi4b"))
    used = [costs.ops[op.name] for op in ops]
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
        rows[net] = [(net, *kind) for kind in makers[net]()]
    partial = AMOUNTS.with_suffix(".partial")
    with partial.open("w", encoding="utf-8", newline="") as file:
        file.write("# Made by inference_amounts.py: FLOPs and bytes of each kind of op per run\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADINGS)
        for net in sorted(rows):
            writer.writerows(rows[net])
    partial.replace(AMOUNTS)


if __name__ == "__main__":
    main()
