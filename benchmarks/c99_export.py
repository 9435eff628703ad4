"""Prints the table of export times in docs/microcontroller.md: `poet export c` of nets with everything kept.

    python -m benchmarks c99-export [NET ...]

The four nets of MLPerf Tiny, sequences of an MCU's size and MobileNetV2-0.35 (10 classes, 64 x 64), batch 1
(autoencoder 4), SGD. All are seconds of the processor, as the machine does other work as well: *export* of
the thread that reads the plan file and writes the folder, the least of three, which may be 2 s; *command* of
the whole process, with Python's start, its imports and torch's threads. About two minutes.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]

import torch  # noqa: E402
from helpers.sequence_nets import Convolutional  # noqa: E402
from mlperf_tiny import NETS  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from zoo.vision import MobileNetV2  # noqa: E402

import poet  # noqa: E402
from poet.c99.project import c_project  # noqa: E402
from poet.plans.plan_file import PlanFile  # noqa: E402

HEAD = "| net | ops | parameters | export | command |\n|---|--:|--:|--:|--:|\n"
Net = tuple[Callable[[], nn.Module], tuple[int, ...], str]


class _Last(nn.Module):
    """A recurrent or an attending layer over [N, T, 16], and classes of its last moment."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.out = inner, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(x)
        result: Tensor = self.out((found[0] if isinstance(found, tuple) else found)[:, -1])
        return result


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Sigmoid(), nn.Linear(64, 10))


def _recurrent() -> nn.Module:
    return _Last(nn.LSTM(16, 32, batch_first=True), 32)


def _mobile() -> nn.Module:
    return MobileNetV2(width=0.35, small_images=False)


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 4, 64, dropout=0.0, activation="gelu", batch_first=True)
    return _Last(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), 16)


def nets() -> Iterator[tuple[str, Net]]:
    """By name: how to build it, the shape of its input, its loss."""
    for name, net in NETS.items():
        yield name, (net.build, net.shape, net.loss)
    yield "mlp, 64-128-64-10", (_perceptron, (1, 64), "cross-entropy")
    yield "tcn", (Convolutional, (1, 3, 128), "cross-entropy")
    yield (
        "lstm, 32 moments",
        (lambda: _Last(nn.LSTM(16, 32, batch_first=True), 32), (1, 32, 16), "cross-entropy"),
    )
    yield "transformer, 2 layers, 32 tokens", (_transformer, (1, 32, 16), "cross-entropy")
    yield (
        "mobilenetv2-0.35",
        (lambda: MobileNetV2(width=0.35, small_images=False), (1, 3, 64, 64), "cross-entropy"),
    )


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(name: str, net: Net, work: Path) -> str:
    """The line of one net."""
    build, shape, loss = net
    torch.manual_seed(0)
    plan = work / "net.poet"
    poet.plan(
        build(), torch.randn(shape), device="nrf52840", ram="64MiB", recompute=False, paging=False,
        home="ram", loss=loss, time_limit_seconds=1.0, evaluation=False,
    ).save(plan)  # fmt: skip
    exports = []
    for index in range(3):
        begins = time.thread_time()
        with PlanFile(plan) as file:
            graph = file.plan.graph
            c_project(file).write(work / f"c{index}")
        exports.append(time.thread_time() - begins)
    before = _of_children()
    command = [sys.executable, "-m", "poet", "export", "c", str(plan), "-o", str(work / "by-command")]
    subprocess.run(command, check=True, capture_output=True)
    whole = _of_children() - before
    sizes = {value.name: value.type.elements for value in graph.values}
    parameters = sum(sizes[parameter.value] for parameter in graph.parameters)
    return f"| {name} | {len(graph.ops)} | {parameters:,} | {min(exports):.2f} s | {whole:.1f} s |\n"


def main() -> None:
    """Print the table, row by row."""
    print(HEAD, end="")
    for name, net in nets():
        if sys.argv[1:] and name.split(",")[0] not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as work:
            print(row(name, net, Path(work)), end="", flush=True)


if __name__ == "__main__":
    main()
