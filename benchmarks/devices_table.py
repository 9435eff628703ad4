"""Published training steps against the cost model: results/devices-table.json, and the fits of two profiles.

    python -m benchmarks devices-table [--fits]

Each net's published seconds stand beside those that profiles predict from its ops (step_amounts.csv). The fit
finds the speeds of the cost model that fit a board's nets best; each net is also predicted by a fit
that has not seen it. ``--fits`` prints the fitted figures with the interval in which nine of ten fits to
resampled nets lie: the profiles ``rpi4b`` and ``rpi5`` hold them.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from result_file import RESULTS, write
from scipy.optimize import least_squares

from poet.devices.cost_table import Amounts
from poet.devices.costs import op_seconds
from poet.devices.figures import OpClass
from poet.devices.load import load_profile
from poet.devices.profile import Profile

FOLDER = Path(__file__).parent / "published"
STEPS, AMOUNTS = FOLDER / "steps.csv", FOLDER / "step_amounts.csv"
PAGE = RESULTS / "devices-table.json"
SPEEDS = (
    OpClass.MATMUL, OpClass.CONVOLUTION, OpClass.CONVOLUTION_BACKWARD, OpClass.POINTWISE,
    OpClass.POINTWISE_BACKWARD, OpClass.DEPTHWISE, OpClass.DEPTHWISE_BACKWARD, OpClass.GROUPED,
)  # fmt: skip
"""Classes whose FLOP/s are fitted; the others keep the base profile's, and are held by the memory."""

PRIOR = (40e9, 25e9, 25e9, 15e9, 15e9, 0.4e9, 0.4e9, 2e9, 0.8e9, 0.3)
"""Of `SPEEDS` in FLOP/s, of the memory in B/s, and of decoding 16 images in seconds: where a fit begins."""

STIFFNESS = {"rpi4": 0.05, "rpi5": 0.5}
"""Weight of a figure's distance from its prior, in logarithms, against that of a net's error: the
Raspberry Pi 5 has six nets for ten figures and keeps the 4's proportions where they do not contradict."""

OUTLIER = 0.15
"""Relative error from which a net pulls no harder."""

RESAMPLINGS = 40
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """A published training step.

    Attributes:
        board, net: whose.
        head_only: only the classifier was trained.
        seconds: published.
        in_fit: fits may see it.
    """

    board: str
    net: str
    head_only: bool
    seconds: float
    in_fit: bool


@dataclass(frozen=True)
class StepAmounts:
    """Ops of one step, alike ones together: class, FLOPs, bytes moved and number of each."""

    classes: tuple[OpClass, ...]
    flops: Floats
    moved_bytes: Floats
    runs: Floats


def read(path: Path) -> Iterator[dict[str, str]]:
    """Rows of a table whose comments begin with ``#``."""
    with path.open(encoding="utf-8") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def published_steps() -> list[Step]:
    """Those of `STEPS`."""
    found = []
    for row in read(STEPS):
        for column, head_only in (("all_parameters_s", False), ("head_only_s", True)):
            if row[column]:
                in_fit = row["role"] == "fit" and not head_only
                found.append(Step(row["board"], row["net"], head_only, float(row[column]), in_fit))
    return found


def step_amounts() -> dict[tuple[str, bool], StepAmounts]:
    """By net, and whether only its head is trained."""
    rows: dict[tuple[str, bool], list[dict[str, str]]] = {}
    for row in read(AMOUNTS):
        rows.setdefault((row["net"], row["trained"] == "head"), []).append(row)

    def column(items: list[dict[str, str]], name: str) -> Floats:
        return np.array([float(item[name]) for item in items])

    return {
        key: StepAmounts(
            tuple(OpClass(item["class"]) for item in items),
            column(items, "flops"), column(items, "bytes"), column(items, "runs"),
        )
        for key, items in rows.items()
    }  # fmt: skip


def by_profile(profile: Profile, amounts: StepAmounts) -> float:
    """Seconds of a step by the cost model."""
    kinds = zip(amounts.classes, amounts.flops, amounts.moved_bytes, amounts.runs, strict=True)
    return math.fsum(
        runs * op_seconds(profile, Amounts(op_class, flops, int(moved)))
        for op_class, flops, moved, runs in kinds
    )


# --- the fit ----------------------------------------------------------------------------------


class Model:
    """The cost model with `SPEEDS`, the memory's bandwidth and the decoding free, all else as in ``base``.

    Attributes:
        times: how many of the last figures are times, which a faster machine shortens.
    """

    times = 1

    def __init__(self, base: Profile, amounts: Mapping[tuple[str, bool], StepAmounts]) -> None:
        self.amounts = amounts
        self.base_speed = {
            op_class: np.inf if (found := base.compute.throughput(op_class)) is None
            else found.flops_per_second.value
            for op_class in OpClass
        }  # fmt: skip
        self.overhead = base.compute.call_overhead_seconds.value
        self.places = {
            key: np.array([SPEEDS.index(c) if c in SPEEDS else -1 for c in item.classes])
            for key, item in amounts.items()
        }

    def seconds(self, figures: Floats, net: str, head_only: bool = False) -> float:
        """Of a step of ``net``, images decoded."""
        item, places = self.amounts[net, head_only], self.places[net, head_only]
        fixed = np.array([self.base_speed[op_class] for op_class in item.classes])
        speed = np.where(places >= 0, figures[np.maximum(places, 0)], fixed)
        busy = np.maximum(item.flops / speed, item.moved_bytes / figures[-2])
        return float(np.sum(item.runs * (busy + self.overhead)) + figures[-1])

    def fit(self, steps: Sequence[Step], prior: Floats, stiffness: float) -> Floats:
        """Figures that fit ``steps``: their own distance from ``prior`` and a factor common to all."""
        faster = np.array([1.0] * (len(prior) - self.times) + [-1.0] * self.times)

        def figures(free: Floats) -> Floats:
            return np.asarray(prior * np.exp(free[:-1] + faster * free[-1]))

        def residuals(free: Floats) -> Floats:
            found = figures(free)
            errors = [np.log(self.seconds(found, step.net) / step.seconds) for step in steps]
            return np.concatenate([errors, stiffness * free[:-1]])

        start = np.zeros(len(prior) + 1)
        return figures(least_squares(residuals, start, loss="soft_l1", f_scale=OUTLIER).x)


@dataclass(frozen=True)
class BoardFit:
    """What was fitted to a board's nets.

    Attributes:
        figures: by all of them.
        intervals: per figure, of nine in ten fits to resampled nets.
        left_out: by net, its predicted over its published seconds by a fit without it.
    """

    figures: Floats
    intervals: tuple[tuple[float, float], ...]
    left_out: Mapping[str, float]


def fit_board(model: Model, steps: Sequence[Step], prior: Floats, stiffness: float) -> BoardFit:
    """Fit all nets, all but each, and nets drawn with replacement."""
    left_out = {}
    for step in steps:
        figures = model.fit([other for other in steps if other is not step], prior, stiffness)
        left_out[step.net] = model.seconds(figures, step.net) / step.seconds
    draw = np.random.default_rng(0)
    fits = [
        model.fit([steps[i] for i in draw.integers(0, len(steps), len(steps))], prior, stiffness)
        for _ in range(RESAMPLINGS)
    ]
    low, high = np.quantile(np.array(fits), (0.05, 0.95), axis=0)
    return BoardFit(
        model.fit(steps, prior, stiffness),
        tuple((float(a), float(b)) for a, b in zip(low, high, strict=True)),
        left_out,
    )


def fitted_boards(
    model: Model, steps: Sequence[Step], amounts: Mapping[tuple[str, bool], StepAmounts]
) -> dict[str, BoardFit]:
    """The Raspberry Pi 4 first: where its figures lie is where those of the 5 begin."""
    prior, fits = np.array(PRIOR), {}
    for board in ("rpi4", "rpi5"):
        used = [s for s in steps if s.board == board and s.in_fit and (s.net, False) in amounts]
        fits[board] = fit_board(model, used, prior, STIFFNESS[board])
        prior = fits[board].figures
    return fits


# --- the page ---------------------------------------------------------------------------------


def summary(ratios: Iterable[float]) -> str:
    found = list(ratios)
    errors = [abs(ratio - 1) for ratio in found]
    return (
        f"{len(found)} nets: median error {100 * statistics.median(errors):.0f} %, "
        f"worst {100 * max(errors):.0f} % ({min(found):.2f} to {max(found):.2f})"
    )


INTRODUCTION = """# Published training steps against the cost model

Made by `python -m benchmarks devices-table`
from `benchmarks/published/`, where the sources stand. Seconds of a PyTorch
training step (batch 16, 224x224 pixels, SGD, decoding of images included; torch 1.13.1), published by
jafermarq/federated-embedded-vision, and predicted / published. *Left out*: by a fit to the other nets.
*Head only*: the same nets with the classifier alone trained, used in no fit. The cost model's form:
`docs/boards.md`.

The clocks of the boards are not stated, and timm is newer here than where the nets were measured. FasterViTs
are no nets of timm and are missing.

Where a prediction is off by more than a fifth: ResNet-18, left out, takes with it most of what the fit knows
of convolutions over windows. Heads: whole steps do not separate the speed of a forward convolution from that
of its gradients. The GhostNetV2s: a call for each channel, below.
"""

BOARDS = {
    "rpi4": ("Raspberry Pi 4", "rpi4b-xnnpack", "rpi4b"),
    "rpi5": ("Raspberry Pi 5", None, "rpi5"),
}


BATCH = 16
WINDOWS = (3, 5, 7, 9, 11, 21, 25, 49, 81, 121)
"""Weights per channel: of windows of 1 x 3 to 11 x 11."""

BEGIN_SECONDS = 3e-5
"""Of a call, where the fit begins."""

CHANNELS_TOLD = """## A call for each channel

PyTorch 1.13 runs a convolution of groups that no library takes as one convolution for each group, one
after another (`Convolution.cpp`, a loop over `params.groups`): a depthwise one makes a call per channel,
where the cost model counts one per op. GhostNetV2s have more channels for their arithmetic than most nets
here. With one figure more, of seconds per channel, fitted to the same nets of the Raspberry Pi 4:"""

CHANNELS_LAST = """The cost model has no such figure, and the profiles stand without it: to it an op has a
class, FLOPs and bytes. Whole steps come out better with it, and heads, which no fit sees, worse: one figure
more explains the same seconds, and how forward convolutions of single pixels differ from their gradients is
left open."""


def channels_of(flops: float, moved_bytes: float) -> int | None:
    """Of a depthwise convolution without bias over a square picture, from what it computes and moves.

    FLOPs are two per weight and output, bytes those of input, output and weights: one window fits.
    """
    for window in WINDOWS:
        outputs = flops / (2 * window)
        for stride in (1, 2, 3):
            channels = (moved_bytes / 4 - outputs * (1 + stride**2)) / window
            if channels < 1 or abs(channels - round(channels)) > 1e-6:
                continue
            side = math.sqrt(outputs / BATCH / round(channels))
            if abs(side - round(side)) < 1e-6:
                return round(channels)
    return None


def channel_calls(amounts: StepAmounts) -> float:
    """Of all channels of a whole step's depthwise convolutions: forward and both gradients.

    A forward one with a bias is not read; its gradients are. A step of the head alone
    has a third of these.
    """
    found = 0.0
    for op_class, flops, moved, runs in zip(
        amounts.classes, amounts.flops, amounts.moved_bytes, amounts.runs, strict=True
    ):
        if op_class is OpClass.DEPTHWISE_BACKWARD:
            found += float(runs) * (channels_of(float(flops), float(moved)) or 0)
    return 1.5 * found


class PerChannel(Model):
    """The cost model and, as the last figure, seconds for each channel of a depthwise convolution."""

    times = 2

    def __init__(self, amounts: Mapping[tuple[str, bool], StepAmounts]) -> None:
        super().__init__(load_profile("rpi4b-xnnpack"), amounts)
        whole = {net: channel_calls(item) for (net, head_only), item in amounts.items() if not head_only}
        self.calls = {
            (net, head_only): whole.get(net, 0.0) / (3.0 if head_only else 1.0) for net, head_only in amounts
        }

    def seconds(self, figures: Floats, net: str, head_only: bool = False) -> float:
        """Of a step of ``net``, images decoded."""
        return super().seconds(figures[:-1], net, head_only) + float(figures[-1]) * self.calls[net, head_only]


def channel_fit(
    steps: Sequence[Step], amounts: Mapping[tuple[str, bool], StepAmounts], *, left_out: bool = True
) -> tuple[float, dict[str, float], dict[str, float], dict[str, float]]:
    """Seconds per channel on the Raspberry Pi 4; predicted / published by net: fitted, left out, heads."""
    model, prior = PerChannel(amounts), np.array([*PRIOR, BEGIN_SECONDS])
    used = [s for s in steps if s.board == "rpi4" and s.in_fit and (s.net, False) in amounts]
    stiffness = STIFFNESS["rpi4"]

    def ratio(step: Step, others: Sequence[Step]) -> float:
        return model.seconds(model.fit(others, prior, stiffness), step.net) / step.seconds

    figures = model.fit(used, prior, stiffness)
    return (
        float(figures[-1]),
        {step.net: model.seconds(figures, step.net) / step.seconds for step in used},
        {step.net: ratio(step, [s for s in used if s is not step]) for step in used} if left_out else {},
        {
            step.net: model.seconds(figures, step.net, head_only=True) / step.seconds
            for step in steps
            if step.board == "rpi4"
            and step.head_only
            and {(step.net, True), (step.net, False)} <= amounts.keys()
        },
    )


def channel_lines(steps: Sequence[Step], amounts: Mapping[tuple[str, bool], StepAmounts]) -> Iterator[str]:
    """What `PerChannel` explains, as a part of the page."""
    seconds, ratios, left_out, heads = channel_fit(steps, amounts)
    inside = sum(0.7 <= ratio <= 1.4 for ratio in heads.values())
    ghosts = ", ".join(f"{net} {ratios[net]:.2f}" for net in ratios if net.startswith("ghost"))
    yield CHANNELS_TOLD + f" {1e3 * seconds:.2g} ms.\n"
    yield f"- fitted to them: {summary(ratios.values())}"
    yield f"- left out of the fit: {summary(left_out.values())}"
    yield f"- head only: {summary(heads.values())}; {inside} of them within 0.7 to 1.4"
    yield f"- of those fitted: {ghosts}\n"
    yield CHANNELS_LAST


def page() -> str:
    """The whole page."""
    steps, amounts = published_steps(), step_amounts()
    fits = fitted_boards(Model(load_profile("rpi4b-xnnpack"), amounts), steps, amounts)
    parts = [INTRODUCTION]
    for board, (title, before, after) in BOARDS.items():
        parts.append(_board_part(board, title, before, after, steps, amounts, fits[board]))
    parts.append("\n".join(channel_lines(steps, amounts)) + "\n")
    return "\n".join(parts)


def _board_part(
    board: str, title: str, before: str | None, after: str, steps: Sequence[Step],
    amounts: Mapping[tuple[str, bool], StepAmounts], fit: BoardFit,
) -> str:  # fmt: skip
    decoding = float(fit.figures[-1])
    profiles = {name: load_profile(name) for name in (before, after) if name is not None}
    seconds = {(s.net, s.head_only): s.seconds for s in steps if s.board == board}
    held_back = {s.net for s in steps if s.board == board and not s.head_only and not s.in_fit}
    columns: dict[str, dict[tuple[str, bool], float]] = {name: {} for name in profiles}
    for key, published in seconds.items():
        for name, profile in profiles.items():
            if key in amounts:
                columns[name][key] = (by_profile(profile, amounts[key]) + decoding) / published
    nets = [net for net, head_only in seconds if not head_only and (net, False) in amounts]
    headings = ["net", "published s", *(f"`{name}`" for name in profiles), "left out", "head only s",
                *(f"head by `{name}`" for name in profiles)]  # fmt: skip
    lines = [f"## {title}", "", f"Decoding of 16 images: {decoding:.2f} s, from the fit.", ""]
    for name in profiles:
        used = {net: columns[name][net, False] for net in nets}
        seen = "which was fitted to them" if name == after else "as it is"
        lines.append(f"- `{name}`, {seen}: {summary(r for net, r in used.items() if net not in held_back)}")
        if held_back:
            lines.append(
                f"- `{name}`, nets in no fit: {summary(r for net, r in used.items() if net in held_back)}"
            )
        heads = [columns[name][net, True] for net in nets if (net, True) in columns[name]]
        inside = sum(0.7 <= ratio <= 1.4 for ratio in heads)
        lines.append(f"- `{name}`, head only: {summary(heads)}; {inside} of them within 0.7 to 1.4")
    lines.append(f"- left out of the fit: {summary(fit.left_out.values())}")
    lines += ["", f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    for net in nets:
        head = seconds.get((net, True))
        out = f"{fit.left_out[net]:.2f}" if net in fit.left_out else "in no fit"
        ratios = [f"{columns[name][net, False]:.2f}" for name in profiles]
        head_ratios = [
            f"{columns[name][net, True]:.2f}" if (net, True) in columns[name] else "" for name in profiles
        ]
        head_told = "" if head is None else f"{head:.2f}"
        cells = [net, f"{seconds[net, False]:.2f}", *ratios, out, head_told, *head_ratios]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or print the fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--fits", action="store_true", help="print the fitted figures")
    if not parser.parse_args().fits:
        write(PAGE, page())
        return
    amounts, steps = step_amounts(), published_steps()
    names = [*(op_class.value for op_class in SPEEDS), "memory", "decoding"]
    for board, fit in fitted_boards(Model(load_profile("rpi4b-xnnpack"), amounts), steps, amounts).items():
        print(board, summary(fit.left_out.values()))
        for name, value, (low, high) in zip(names, fit.figures, fit.intervals, strict=True):
            print(f"  {name}: {value:.3g} ({low:.3g} to {high:.3g})")


if __name__ == "__main__":
    main()
