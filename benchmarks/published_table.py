"""Published speeds of storage and energies of inference against profiles: results/devices-published.json.

    python -m benchmarks published-table

Data and sources: published/storage.csv, inference.csv and mlperf_tiny.csv beside this file.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import interval_table
from interval_table import Case
from result_file import RESULTS, write

from poet.devices.load import load_part, load_profile, profile_names
from poet.devices.profile import Direction, Part

FOLDER = Path(__file__).parent / "published"
PAGE = RESULTS / "devices-published.json"
SUBMISSION = "mlcommons/tiny_results_v1.3"
"""Of the energies: all nets of a board whose power, or an end of it, is from there count as fitted."""

KIB_BYTES = 1024
"""What the tables call a kilobyte: their accesses per second times 4 KiB make 1.024 times their MB/s."""


@dataclass(frozen=True)
class Access:
    """One published speed of a storage part, and what the part's file says of it.

    Attributes:
        part, device: the part's name, and what was measured.
        in_fit: the part's figures were fitted to it.
        access, size_bytes: of the transfer.
        published_seconds: of one transfer.
        low_seconds, stated_seconds, high_seconds: by the part.
    """

    part: str
    device: str
    in_fit: bool
    access: str
    size_bytes: int
    published_seconds: float
    low_seconds: float
    stated_seconds: float
    high_seconds: float

    @property
    def inside(self) -> bool:
        """Whether the published time is in the part's interval."""
        return self.low_seconds <= self.published_seconds <= self.high_seconds

    @property
    def width(self) -> float:
        """Of the interval: its upper over its lower end."""
        return self.high_seconds / self.low_seconds


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def _seconds(way: Direction, size_bytes: int) -> tuple[float, float, float]:
    """At the good end, as stated, at the bad end."""
    latency, speed = way.latency_seconds, way.bandwidth_bytes_per_second
    good = latency.interval[0] + size_bytes / speed.interval[1]
    bad = latency.interval[1] + size_bytes / speed.interval[0]
    return good, latency.value + size_bytes / speed.value, bad


def accesses() -> list[Access]:
    """Every published speed of storage."""
    parts: dict[str, Part] = {}
    found = []
    for row in _rows("storage.csv"):
        part = parts.setdefault(row["part"], load_part(row["part"]))
        size_bytes = int(row["size_bytes"])
        way = part.read if "read" in row["access"] else part.write
        published = size_bytes / (float(row["megabytes_per_second"]) * 1e3 * KIB_BYTES)
        ends = _seconds(way, size_bytes)
        fit = row["in_fit"] == "yes"
        found.append(Access(part.name, row["device"], fit, row["access"], size_bytes, published, *ends))
    return found


def _storage(found: list[Access]) -> Iterator[str]:
    yield "| part | measured | in the fit | inside | widest interval | stated / published, 4 KiB to 1 MiB |"
    yield "|---|---|---|---|---|---|"
    for key in dict.fromkeys((item.part, item.device, item.in_fit) for item in found):
        mine = [item for item in found if (item.part, item.device, item.in_fit) == key]
        ratios = [item.stated_seconds / item.published_seconds for item in mine]
        inside, width = sum(item.inside for item in mine), max(item.width for item in mine)
        fit = "yes" if key[2] else "no"
        yield (
            f"| `{key[0]}` | {key[1]} | {fit} | {inside} of {len(mine)} | x{width:.2f} | "
            f"{min(ratios):.2f} to {max(ratios):.2f} |"
        )
    inside = sum(item.inside for item in found)
    others = [item for item in found if not item.in_fit]
    yield ""
    yield (
        f"Together {inside} of {len(found)} are inside, {inside / len(found):.0%}; of those in no fit "
        f"{sum(item.inside for item in others)} of {len(others)}."
    )


# --- MLPerf Tiny ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inference:
    """One int8 inference of a net as published."""

    board: str
    net: str
    joules: float
    seconds: float


def inferences() -> list[Inference]:
    """Those of MLPerf Tiny v1.3."""
    return [
        Inference(
            row["board"], row["net"], float(row["millijoules"]) / 1e3,
            1.0 / float(row["inferences_per_second"]),
        )
        for row in _rows("mlperf_tiny.csv")
    ]  # fmt: skip


def power_from(two: list[Inference]) -> float:
    """The board's watts by the energy and the time of two nets: the geometric mean of their quotients."""
    return math.sqrt(math.prod(item.joules / item.seconds for item in two))


def held_out() -> list[tuple[Inference, float]]:
    """Each net with its predicted energy over the published one: the board's power, from the other two nets
    that are named first, times the net's own published time."""
    found = []
    for board in dict.fromkeys(item.board for item in inferences()):
        mine = [item for item in inferences() if item.board == board]
        watts = power_from(mine[:2])
        found += [(item, watts * item.seconds / item.joules) for item in mine[2:]]
    return found


def _energy() -> Iterator[str]:
    yield "| board | net | published | predicted / published |"
    yield "|---|---|---|---|"
    for item, ratio in held_out():
        yield f"| {item.board} | {item.net} | {item.joules * 1e3:.4g} mJ | {ratio:.2f} |"


# --- intervals --------------------------------------------------------------------------------


def storage_cases() -> list[Case]:
    """Accesses of storage as cases of `interval_table`."""
    return [
        Case("access", item.part, f"{item.access} {item.size_bytes}", item.published_seconds,
             item.low_seconds, item.stated_seconds, item.high_seconds, item.in_fit)
        for item in accesses()
    ]  # fmt: skip


def energy_cases() -> list[Case]:
    """Joules of an int8 inference: its published time at the busy power that the board's profile states."""
    found = []
    for item in inferences():
        if item.board not in profile_names():
            continue
        watts = load_profile(item.board).compute.active_watts
        low, high = (end * item.seconds for end in watts.interval)
        stated = watts.value * item.seconds
        fit = SUBMISSION in f"{watts.source} {watts.note}"
        found.append(Case("energy", item.board, item.net, item.joules, low, stated, high, fit))
    return found


def _intervals() -> Iterator[str]:
    steps = interval_table.training_steps()
    whole = [case for case in steps if case.kind == "training step"]
    heads = [case for case in steps if case.kind != "training step"]
    cases = interval_table.inferences()
    yield from interval_table.inference_lines(cases)
    yield SMALL_STEPS
    yield from interval_table.small_step_lines(interval_table.small_steps())
    yield COVERAGE.rstrip("\n") + "\n"
    yield from interval_table.coverage_lines(
        (("seconds of training steps", "2 boards, PyTorch", whole),
         ("seconds of training steps of the head", "2 boards, PyTorch", heads),
         ("seconds of inferences", f"{len({case.device for case in cases})} boards, 3 programs", cases))
    )  # fmt: skip
    cards = {item.device for item in accesses()}
    boards = {case.device for case in energy_cases()}
    yield "\n" + ENDS.strip() + "\n"
    yield from interval_table.coverage_lines(
        (("seconds of transfers", f"{len(cards)} cards and drives, 1 tester", storage_cases()),
         ("joules of inferences", f"{len(boards)} boards, 1 submission", energy_cases()))
    )  # fmt: skip


# --- kinds of figures -------------------------------------------------------------------------

KINDS = ("measured", "datasheet", "vendor-doc", "standard", "published", "derived", "assumed")


def shares() -> Iterator[tuple[str, Counter[str]]]:
    """Per profile that is no model of somebody else's, how many figures are of each kind."""
    for name in profile_names():
        if not name.startswith("compat-"):
            yield name, Counter(figure.kind for _, figure in load_profile(name).figures())


def _kinds() -> Iterator[str]:
    yield f"| profile | figures | {' | '.join(KINDS)} |"
    yield "|---|---|" + "---|" * len(KINDS)
    for name, counts in shares():
        total = sum(counts.values())
        cells = " | ".join(f"{100 * counts[kind] / total:.0f} %" for kind in KINDS)
        yield f"| `{name}` | {total} | {cells} |"


HEAD = """# Profiles against what is published

Made by `python -m benchmarks published-table`. Training steps have results of their own, `devices-table`.

## Storage

Times of reads, writes, random reads and random writes of 4 KiB to 1 MiB as published, and what the
storage part says: *inside* its interval, which spans so much (upper over lower end). Parts were
fitted to one card or drive each; the others are of the same class. Queue depths are not stated
there, and NVMe drives must have had many small accesses in flight: one by itself takes longer.

"""

MIDDLE = """
Of those outside, most are small writes of other makers' cards of the same class: class A1 promises
a third of what the fitted card writes. A card of your own needs a part of its own.

## Energy of one int8 inference, MLPerf Tiny v1.3

A board's power from the first two nets (resnet-8, ds-cnn), times the time published for each of the
two others.

"""

INFERENCE = """

## Time of one fp32 inference

Libraries for inference, which are not those that train: ncnn on four threads, and fully connected nets
on microcontrollers. ncnn's program allows itself to hold numbers in 16 bits where the processor can;
that these do not is no more than likely. Interval: what a plan's answer would state as likely (see
below). The Pixel's figures are held against a Snapdragon 820, which has the same clocks; those of
`nrf52840` against an Arduino Nano 33, of which the publication says no more than Cortex-M4 at 64 MHz.

"""

SMALL_STEPS = """
## Training on a microcontroller, published

AIfES's MNIST nets with Adam on an ESP32-S3. Its sketches time an epoch of ten images in two steps of five,
with a pass for the loss; its table says no more than *Training*. As that epoch the three fully connected nets
are where they are predicted, at 0.93 to 0.94 of the published time, though their single inferences are
slower than predicted. The CNN is slower than its interval by any reading: the profile's speeds are those of
other kernels than AIfES's convolution.
"""

COVERAGE = """
## Do the intervals hold?

A plan's answer has an interval that is meant to hold nine cases of ten
(`docs/boards.md`). These values are held against that interval; they are of
few boards and programs, those of one board are no independent cases, and of those in no fit fewer than
nine of ten are inside. *Usual width*: upper over lower end.
"""

ENDS = """
A transfer and a power are held against the ends of the figures themselves, for no plan's answer is made
of them alone; that says nothing of the interval above. Joules are those of a board's power at the
published time. None is independent: the power of `stm32u575` is that of one of its nets, and the lower
end of that of `stm32l4r5` was moved onto one of its nets after the comparison, before which none of the
four was inside.
"""

LAST = """

The energy of a training step in fp32 is neither in MLPerf Tiny's tables nor in any other that was found:
that no profile lets one cost less than its forward pass costs there is a test.

## Where figures come from

A figure that is computed with something assumed counts as assumed. In no profile are these more than a
quarter, as a test checks.

"""

END = """

## What cannot be shown without the boards

No board was at hand. Nothing here tells how far off the joules of a training step are: no
publication has them. Speeds of fp32 kernels on microcontrollers are derived or assumed. An owner of
a board closes the gap for it: with PyTorch, by `main.py` of jafermarq/federated-embedded-vision and
a meter at the supply, its seconds into `benchmarks/published/steps.csv` and `python
-m benchmarks devices-table`;
without, by `poet export c model.onnx` for a net that fits, and the time of a step
on the board.
"""


def page() -> str:
    """The page as text."""
    return (
        HEAD
        + "\n".join(_storage(accesses()))
        + MIDDLE
        + "\n".join(_energy())
        + INFERENCE
        + "\n".join(_intervals())
        + LAST
        + "\n".join(_kinds())
        + END
    )


if __name__ == "__main__":
    write(PAGE, page())
