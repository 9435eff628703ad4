"""Makes results/c99-numbers.json: exported C against float64, beside PyTorch's float32.

Nets are trained on the digits that scikit-learn brings along, resized to what each reads, with everything
kept: 100 steps each from PyTorch's state, and 100 that run freely.

    python -m benchmarks c99-numbers [--only gru] [--kept folder]

With `--kept` rows that are done are read from that folder, so that a run that was cut off goes on. About
eight minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mlperf_tiny
import torch
from helpers.c_curves import ALLOWED, Curves, FreeStep, LockedStep, digit_batches, farthest
from result_file import RESULTS, write
from torch import Tensor, nn

PAGE = RESULTS / "c99-numbers.json"
HEAD = """# C beside PyTorch, against float64

Made by `python -m benchmarks c99-numbers`.
What an exported step computes in float32 is held against the same graph
in float64, and PyTorch's own float32 is the yardstick. One thread, gcc at -O2, everything kept; the other
plans of a graph have the same bits (`docs/guarantees.md`).

Each net on the digits of scikit-learn, enlarged to what it reads, SGD with momentum 0.9; those of MLPerf Tiny
are of full size.

*From PyTorch's state*: {steps} steps, each begun by C and by float64 with the parameters, the statistics and
the samples of PyTorch's. *All* is the Euclidean distance of all gradients together from float64, C's over
PyTorch's: the median and the worst step; {allowed:g} is allowed. *Each* is the largest distance in one
gradient, likewise, over all gradients of all steps; {allowed:g} times PyTorch's own error is allowed, and as
that may happen to be zero, 1e-4 of the gradient's largest element and 2^-21 of the largest of any. Left out
of the column are gradients that are zero but for rounding, below that last share. *Beyond* counts the
gradients of single steps that needed this allowance. *Over all steps* needs none: C's largest error in a
gradient over all steps over PyTorch's largest in the same gradient, of the worst one; {allowed:g} is allowed.

MobileNetV1 has two classes: the gradient of its last bias is one number and its negative. In some steps
PyTorch's sum happens to come out within a unit or two of the last place of float64, which its inputs are far
from: the largest entry under *each* is such a step. Over all steps the same gradient has no more than the
column for that says.

*Sides*: an input of a rectifier that is zero but for rounding lies on either side of it, and the gradient
jumps there. C and PyTorch are each compared with a float64 that has every rectifier on the same side as they.
Counted is on how many elements of all steps each of the two had another side than float64 of its own.

*Freely*: the three train on for {steps} steps from the same weights. *Off by* is the farthest that a loss was
from that of float64; at most twice PyTorch's is what C is meant to have. Where that is far above 1e-6, an
element on another side of a rectifier has set all three on ways of their own: then both are samples of how
far float32 drifts, and say little of the kernels.

| net | batch | rate | all, median | all, worst | each, worst | beyond | over all steps \
| sides, C and PyTorch | loss, first and last | C off by | PyTorch off by | ratio |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
"""


@dataclass(frozen=True)
class CurveNet:
    """How to build a net, what it reads, and how it is trained."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    learning_rate: float
    loss: str = "cross-entropy"


class _Convolutional(nn.Module):
    """A TCN over the eight rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv1d(8, 16, 3, padding=2, dilation=2), nn.BatchNorm1d(16)
        self.second, self.out = nn.Conv1d(16, 16, 3, padding=1), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, 8, T]."""
        y = torch.relu(self.norm(self.first(x)))
        scores: Tensor = self.out((y + torch.relu(self.second(y))).mean(2))
        return scores


class _Recurrent(nn.Module):
    """A layer that reads a digit row by row."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.layer, self.out = kind(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, T, 8]."""
        scores: Tensor = self.out(self.layer(x)[0][:, -1])
        return scores


class _Attending(nn.Module):
    """A layer of a transformer's encoder over the rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 24), nn.Linear(24, 10)
        self.layer = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, activation="gelu", batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes; ``x`` is [N, T, 8]."""
        scores: Tensor = self.out(self.layer(self.into(x)).mean(1))
        return scores


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 32), nn.Sigmoid(), nn.Linear(32, 10))


def _tiny(name: str, batch: int, learning_rate: float) -> CurveNet:
    net = mlperf_tiny.NETS[name]
    return CurveNet(net.build, (batch, *net.shape[1:]), learning_rate, net.loss)


NETS = {
    "ds-cnn": _tiny("ds-cnn", 8, 0.0005),
    "resnet-8": _tiny("resnet-8", 8, 0.0005),
    "mobilenetv1": _tiny("mobilenetv1", 4, 0.0002),
    "autoencoder": _tiny("autoencoder", 16, 0.0005),
    "tcn": CurveNet(_Convolutional, (16, 8, 8), 0.02),
    "mlp": CurveNet(_perceptron, (16, 64), 0.05),
    "gru": CurveNet(lambda: _Recurrent(nn.GRU), (16, 8, 8), 0.05),
    "lstm": CurveNet(lambda: _Recurrent(nn.LSTM), (16, 8, 8), 0.05),
    "transformer": CurveNet(_Attending, (16, 8, 8), 0.01),
}


def curves_of(name: str, steps: int, folder: Path) -> tuple[list[LockedStep], list[FreeStep]]:
    """So many steps of a net from PyTorch's state, and freely."""
    net = NETS[name]
    torch.manual_seed(0)
    curves = Curves(net.build(), torch.randn(net.shape), folder / name, loss=net.loss, lr=net.learning_rate)
    batches = digit_batches(curves, steps)
    return curves.locked(batches), curves.free(batches)


def check(name: str, locked: Sequence[LockedStep]) -> None:
    """Do nothing if all steps from PyTorch's state are as near to float64 as they have to be.

    Raises:
        SystemExit: one is not.
    """
    worst = max((item for step in locked for item in step.errors), key=lambda item: item.share)
    if not worst.share <= 1.0:
        sys.exit(f"{name}: the gradient of {worst.parameter} is {worst.share:.3g} times what is allowed")
    parameter, ratio = max(over_all_steps(locked).items(), key=lambda item: item[1])
    if not ratio <= ALLOWED:
        sys.exit(f"{name}: the largest error of {parameter} is {ratio:.3g} times PyTorch's largest")
    ratio = max(step.ratio for step in locked)
    if not ratio <= ALLOWED:
        sys.exit(f"{name}: all gradients together are {ratio:.3g} times as far away as PyTorch's")


def over_all_steps(locked: Sequence[LockedStep]) -> dict[str, float]:
    """Of each gradient, C's largest error over all steps over PyTorch's largest; not of what is zero."""
    of_c: dict[str, float] = {}
    of_torch: dict[str, float] = {}
    for item in (item for step in locked for item in step.errors if not item.is_zero):
        of_c[item.parameter] = max(of_c.get(item.parameter, 0.0), item.of_c)
        of_torch[item.parameter] = max(of_torch.get(item.parameter, 0.0), item.of_torch)
    return {name: of_c[name] / of_torch[name] for name in of_c if of_c[name]}


def beyond(locked: Sequence[LockedStep]) -> int:
    """How many gradients of single steps have an error above what PyTorch's own alone would allow."""
    return sum(item.ratio > ALLOWED for step in locked for item in step.errors if not item.is_zero)


def row(name: str, locked: Sequence[LockedStep], free: Sequence[FreeStep]) -> str:
    """A row of the table."""
    errors = [item for step in locked for item in step.errors if not item.is_zero]
    of_c, of_torch = farthest(free)
    net, each = NETS[name], max(item.ratio for item in errors)
    ratios = [step.ratio for step in locked]
    return (
        f"| {name} | {net.shape[0]} | {net.learning_rate:g} | {statistics.median(ratios):.2f} "
        f"| {max(ratios):.2f} | {each:.1f} | {beyond(locked)} of {len(errors)} "
        f"| {max(over_all_steps(locked).values()):.2f} | {sum(step.flips for step in locked)}, "
        f"{sum(step.torch_flips for step in locked)} | {free[0].exact:.3f}, {free[-1].exact:.3f} "
        f"| {of_c:.1e} | {of_torch:.1e} | {of_c / of_torch:.2f} |"
    )


def _kept(folder: Path | None, name: str, make: Callable[[], str]) -> str:
    """What ``make`` gives, or gave a run before this one."""
    path = None if folder is None else folder / f"{name}.md"
    if path is not None and path.exists():
        return path.read_text()
    text = make()
    print(text, flush=True)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return text


def main() -> None:
    """Make every row, print it, and write the page where all was asked for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", action="append", choices=NETS)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--kept", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    names = asked.only or list(NETS)
    lines = [_kept(asked.kept, name, partial(_row, name, asked.steps)) for name in names]
    if asked.only:
        return
    head = HEAD.format(steps=asked.steps, allowed=ALLOWED)
    write(PAGE, head + "\n".join(lines) + "\n")


def _row(name: str, steps: int) -> str:
    with tempfile.TemporaryDirectory() as work:
        locked, free = curves_of(name, steps, Path(work))
    check(name, locked)
    return row(name, locked, free)


if __name__ == "__main__":
    main()
