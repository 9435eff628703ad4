"""Published inferences, training steps, transfers and energies against the intervals that profiles state.

Its sections are part of results/devices-published.json, which ``published_table.py`` writes. Sources:
published/inference.csv beside this file, and the tables of `devices_table` and `published_table`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import devices_table

from poet.devices.cost_table import Amounts
from poet.devices.costs import op_seconds
from poet.devices.figures import OpClass
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.devices.spread import (
    GROUPS,
    corner,
    good_end,
    likely_ends,
    model_factor,
    uncertain_figures,
    uncertain_groups,
)

INFERENCES = devices_table.FOLDER / "inference.csv"
SMALL_STEPS = devices_table.FOLDER / "small_steps.csv"
AMOUNTS = devices_table.FOLDER / "inference_amounts.csv"
DECODING_SECONDS = {"rpi4": 0.56, "rpi5": 0.27}
"""Of the 16 images of a published step, from the fits of `devices_table`."""

BOARDS = {"rpi4": "rpi4b", "rpi5": "rpi5"}

_WINOGRAD = "3x3 convolutions by Winograd's method: fewer operations than are counted"
REASONS = {
    ("rpi-zero-2w", "resnet18"): _WINOGRAD,
    ("rpi-zero-2w", "resnet50"): _WINOGRAD,
    ("rpi3b-plus", "resnet50"): _WINOGRAD,
    ("rpi4b-xnnpack", "vgg16"): _WINOGRAD,
    ("rpi4b-xnnpack", "resnet50"): _WINOGRAD,
    ("pixel", "resnet18"): _WINOGRAD,
    ("pixel", "vgg16"): _WINOGRAD,
    ("nrf52840", "fc-1x10 iris"): "what the program does beside the net, once per inference",
    ("stm32h743", "fc-1x10 iris"): "published: twice the time of the same net with more features",
    ("esp32-s3", "aifes-cnn"): "AIfES's convolution takes 66 cycles for a multiply-add",
    **{
        ("esp32-s3", f"aifes-{net}"): "AIfES's kernels take 11 cycles for a multiply-add"
        for net in ("10+50", "10x10", "1x10")
    },
}
"""Why a published time lies outside its interval; every one that does has an entry, as a test checks."""

Ops = Sequence[tuple[OpClass, float, int, int]]
"""Class, FLOPs, bytes moved, runs."""


@dataclass(frozen=True)
class Case:
    """A published value and the interval that a profile states for it.

    Attributes:
        kind, device, what: of the value.
        published: seconds, or joules.
        low, stated, high: by the profile; between the ends it lies in nine cases of ten.
        in_fit: whether the profile's figures were fitted to it.
    """

    kind: str
    device: str
    what: str
    published: float
    low: float
    stated: float
    high: float
    in_fit: bool = False

    @property
    def inside(self) -> bool:
        """Whether the published value is in the interval."""
        return self.low <= self.published <= self.high


def _seconds(profile: Profile, ops: Ops) -> float:
    return sum(
        runs * op_seconds(profile, Amounts(op_class, flops, moved)) for op_class, flops, moved, runs in ops
    )


Ends = tuple[dict[str, tuple[Profile, Profile]], tuple[Profile, Profile]]
"""A device with each group of figures at its good and bad end, and with all."""


def ends_of(profile: Profile) -> Ends:
    """``profile`` where its figures end."""
    paths = uncertain_figures(profile)

    def moved(*names: str) -> tuple[Profile, Profile]:
        good, bad = (
            corner(
                profile,
                {
                    path: good_end(path, good=good)
                    for path in paths
                    if any(GROUPS[name](path) for name in names)
                },
            )
            for good in (True, False)
        )
        return good, bad

    names = uncertain_groups(profile)
    return {name: moved(name) for name in names}, moved(*names)


def interval(
    profile: Profile, ends: Ends, seconds_on: Callable[[Profile], float]
) -> tuple[float, float, float]:
    """Low, stated and high seconds on a device, as a plan's answer has them."""

    def both(pair: tuple[Profile, Profile]) -> tuple[float, float]:
        return seconds_on(pair[0]), seconds_on(pair[1])

    stated, (groups, whole) = seconds_on(profile), ends
    low, high = likely_ends(stated, map(both, groups.values()), both(whole), model_factor(profile))
    return low, stated, high


@functools.cache
def _shipped(device: str) -> tuple[Profile, Ends]:
    profile = load_profile(device)
    return profile, ends_of(profile)


def _interval(device: str, ops: Ops, more_seconds: float = 0.0) -> tuple[float, float, float]:
    return interval(*_shipped(device), lambda profile: _seconds(profile, ops) + more_seconds)


def inferences() -> list[Case]:
    """Every published time of an inference."""
    amounts = _counted()
    found = []
    for row in devices_table.read(INFERENCES):
        ends = _interval(row["device"], amounts[row["net"]])
        found.append(Case("inference", row["device"], row["net"], float(row["seconds"]), *ends))
    return found


def _counted() -> dict[str, list[tuple[OpClass, float, int, int]]]:
    amounts: dict[str, list[tuple[OpClass, float, int, int]]] = {}
    for row in devices_table.read(AMOUNTS):
        item = OpClass(row["class"]), float(row["flops"]), int(row["bytes"]), int(row["runs"])
        amounts.setdefault(row["net"], []).append(item)
    return amounts


def small_steps() -> list[Case]:
    """Every published training on a microcontroller, by each reading of what was timed."""
    amounts = _counted()
    found = []
    for row in devices_table.read(SMALL_STEPS):
        device, net, seconds = row["device"], row["net"], float(row["seconds"])
        one, five = (amounts[f"{net} step of {batch}"] for batch in (1, 5))
        readings = {
            "a step of one image": one,
            "a step of five images": five,
            "the sketch's epoch": [*five * 2, *amounts[net] * 10],
        }
        for reading, ops in readings.items():
            found.append(Case(reading, device, net, seconds, *_interval(device, ops)))
    return found


def small_step_lines(cases: Sequence[Case]) -> Iterator[str]:
    """The table of trainings on microcontrollers."""
    yield "| device | net | published ms | read as | predicted ms | interval | inside |"
    yield "|---|---|---|---|---|---|---|"
    for case in cases:
        yield (
            f"| `{case.device}` | {case.what} | {case.published * 1e3:.4g} | {case.kind} | "
            f"{case.stated * 1e3:.3g} | {case.low * 1e3:.3g} to {case.high * 1e3:.3g} | "
            f"{'yes' if case.inside else 'no'} |"
        )


def training_steps() -> list[Case]:
    """Every published training step of a net whose ops are known."""
    amounts = devices_table.step_amounts()
    found = []
    for step in devices_table.published_steps():
        item = amounts.get((step.net, step.head_only))
        if item is None:
            continue
        moved, runs = map(int, item.moved_bytes), map(int, item.runs)
        ops = list(zip(item.classes, map(float, item.flops), moved, runs, strict=True))
        device = BOARDS[step.board]
        ends = _interval(device, ops, DECODING_SECONDS[step.board])
        kind = "head's training step" if step.head_only else "training step"
        found.append(Case(kind, device, step.net, step.seconds, *ends, step.in_fit))
    return found


def inference_lines(cases: Sequence[Case]) -> Iterator[str]:
    """The table of inferences."""
    yield "| device | net | published ms | predicted / published | interval / published | inside |"
    yield "|---|---|---|---|---|---|"
    for case in cases:
        low, high = case.low / case.published, case.high / case.published
        told = "yes" if case.inside else f"no: {REASONS[case.device, case.what]}"
        yield (
            f"| `{case.device}` | {case.what} | {case.published * 1e3:.4g} | "
            f"{case.stated / case.published:.2f} | {low:.2f} to {high:.2f} | {told} |"
        )
    inside = sum(case.inside for case in cases)
    yield ""
    yield f"Together {inside} of {len(cases)} are inside, {inside / len(cases):.0%}."
    yield from _one_sided(cases)


def _one_sided(cases: Sequence[Case]) -> Iterator[str]:
    """Devices of which every prediction is less than half, or more than twice, of what is published."""
    for device in dict.fromkeys(case.device for case in cases):
        mine = [case for case in cases if case.device == device]
        ratios = [case.stated / case.published for case in mine]
        if max(ratios) < 0.5 or min(ratios) > 2.0:
            inside = sum(case.inside for case in mine)
            though = f", though {inside} count as inside: its interval is wide" if inside else ""
            yield (
                f"All {len(mine)} predictions of `{device}` are {min(ratios):.2f} to {max(ratios):.2f} of "
                f"what is published{though}."
            )


def coverage_lines(groups: Sequence[tuple[str, str, Sequence[Case]]]) -> Iterator[str]:
    """How many published values of each kind lie in their intervals, and how wide these are.

    Args:
        groups: what is published, of what, and the cases.
    """
    yield "| published | of | values | inside | in no fit | inside | usual width |"
    yield "|---|---|---|---|---|---|---|"
    every: list[Case] = []
    for name, whose, cases in groups:
        every += cases
        yield _coverage(name, whose, cases)
    yield _coverage("all of these", "", every)


def _coverage(name: str, whose: str, cases: Sequence[Case]) -> str:
    others = [case for case in cases if not case.in_fit]
    widths = sorted(case.high / case.low for case in cases)
    told = (
        f"{len(found)} | {sum(case.inside for case in found)}, "
        f"{sum(case.inside for case in found) / len(found):.0%}"
        if found
        else "0 | "
        for found in (cases, others)
    )
    return f"| {name} | {whose} | {' | '.join(told)} | x{widths[len(widths) // 2]:.1f} |"
