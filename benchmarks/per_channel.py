"""Whether a call for each channel explains what the cost model leaves open of the published training steps.

PyTorch 1.13 runs a convolution of groups that no library takes as one convolution for each group
(aten/src/ATen/native/Convolution.cpp, ``SlowDilated2d`` and its like: a loop over ``params.groups`` and a
``cat``), so that a depthwise one makes a call per channel. The cost model has a call per op.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from devices_table import PRIOR, STIFFNESS, Floats, Model, Step, StepAmounts, summary

from poet.devices.figures import OpClass
from poet.devices.load import load_profile

BATCH = 16
WINDOWS = (3, 5, 7, 9, 11, 21, 25, 49, 81, 121)
"""Weights per channel: of windows of 1 x 3 to 11 x 11."""

BEGIN_SECONDS = 3e-5
"""Of a call, where the fit begins."""

TOLD = """## A call for each channel

PyTorch 1.13 runs a convolution of groups that no library takes as one convolution for each group, one
after another (`Convolution.cpp`, a loop over `params.groups`): a depthwise one makes a call per channel,
where the cost model counts one per op. GhostNetV2s have more channels for their arithmetic than most nets
here. With one figure more, of seconds per channel, fitted to the same nets of the Raspberry Pi 4:"""

LAST = """The cost model has no such figure, and the profiles stand without it: to it an op has a class, FLOPs
and bytes. Whole steps come out better with it, and heads, which no fit sees, worse: one figure more explains
the same seconds, and how forward convolutions of single pixels differ from their gradients is left open."""


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


def calls(amounts: StepAmounts) -> float:
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
        whole = {net: calls(item) for (net, head_only), item in amounts.items() if not head_only}
        self.calls = {
            (net, head_only): whole.get(net, 0.0) / (3.0 if head_only else 1.0) for net, head_only in amounts
        }

    def seconds(self, figures: Floats, net: str, head_only: bool = False) -> float:
        """Of a step of ``net``, images decoded."""
        return super().seconds(figures[:-1], net, head_only) + float(figures[-1]) * self.calls[net, head_only]


def fitted(
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


def lines(steps: Sequence[Step], amounts: Mapping[tuple[str, bool], StepAmounts]) -> Iterator[str]:
    """The part of the page."""
    seconds, ratios, left_out, heads = fitted(steps, amounts)
    inside = sum(0.7 <= ratio <= 1.4 for ratio in heads.values())
    ghosts = ", ".join(f"{net} {ratios[net]:.2f}" for net in ratios if net.startswith("ghost"))
    yield TOLD + f" {1e3 * seconds:.2g} ms.\n"
    yield f"- fitted to them: {summary(ratios.values())}"
    yield f"- left out of the fit: {summary(left_out.values())}"
    yield f"- head only: {summary(heads.values())}; {inside} of them within 0.7 to 1.4"
    yield f"- of those fitted: {ghosts}\n"
    yield LAST
