"""A calibration of this machine against nets that it has not seen: docs/calibration-table.md.

    python tests/benchmarks/calibration_table.py [FOLDER]

Measures into FOLDER (default: build/calibration), where files that are there already are used.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from interval_table import ends_of, interval

from poet.calibration.nets import JUDGING_NETS
from poet.devices.fitted_profile import fit_profile, predicted_seconds, stored_line, typed_watts
from poet.devices.fitting import RESAMPLINGS
from poet.devices.load import load_profile
from poet.devices.measurements import FIT, JUDGE, Measurements, OpTime, TransferTime, read_measurements
from poet.devices.profile import Profile

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "calibration-table.md"
BENCH = Path(__file__).with_name("calibration_bench.py")
THREADS, ROUNDS = (1, 2), 4
FIT_SIZES_BYTES = (4096, 16384, 65536, 262144, 1048576, 4194304)
BASES = ("rpi4b-xnnpack", "rpi4b", "rpi5", "x86-host")
DRAWS, FEW_OPS = 6, 10
WATTS = {"idle": 1.0, "busy": 2.0}
"""No times depend on them, and a fit refuses to go without."""


def measured(threads: int, folder: Path) -> Measurements:
    """The raw file of so many threads, made where it is not there."""
    path = folder / f"raw-{threads}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        paths = os.pathsep.join((str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")))
        subprocess.run(
            [sys.executable, str(BENCH), str(threads), str(path), str(ROUNDS)],
            env={**os.environ, "PYTHONPATH": paths, "OMP_WAIT_POLICY": "passive"},
            check=True,
        )
    return read_measurements(path)


def fitted(found: Measurements, base: Profile | None = None) -> Profile:
    """The profile of the measured steps; its intervals are not looked at."""
    typed = replace(found, phases=typed_watts((), WATTS), transfers=())
    return fit_profile(typed, name="here", base=base, resamplings=2)[0]


def errors_of(ratios: Sequence[float]) -> str:
    """Median and worst error of predicted over measured."""
    errors = [abs(ratio - 1.0) for ratio in ratios]
    return (
        f"median error {statistics.median(errors):.0%}, worst {max(errors):.0%} "
        f"({min(ratios):.2f} to {max(ratios):.2f})"
    )


def held(found: Measurements, resamplings: int = RESAMPLINGS) -> dict[str, tuple[float, float, bool]]:
    """By net: the ends of its interval over its measured seconds; whether the profile judged itself by it.

    The profile is what `poet devices fit` makes of such a calibration, which has four nets to judge by.
    """
    own = {net.name for net in JUDGING_NETS}
    kept = tuple(step for step in found.steps if step.role != JUDGE or step.name in own)
    typed = replace(found, steps=kept, phases=typed_watts((), WATTS), transfers=())
    profile = fit_profile(typed, name="here", resamplings=resamplings)[0]
    ends = ends_of(profile)
    told = {}
    for step in found.steps:
        if step.role == JUDGE:
            low, _, high = interval(profile, ends, partial(predicted_seconds, step=step))
            told[step.name] = low / step.seconds, high / step.seconds, step.name in own
    return told


def few_ops(found: Measurements, base: Profile, seed: int) -> list[float]:
    """Predicted over measured seconds of unseen steps, by a fit to ten ops drawn at random."""
    ops: list[OpTime] = [op for step in found.steps if step.role == FIT for op in step.ops]
    judged = [step for step in found.steps if step.role == JUDGE]
    first = next(step for step in found.steps if step.role == FIT)
    drawn = tuple(random.Random(seed).sample(ops, FEW_OPS))
    profile = fitted(replace(found, steps=(replace(first, ops=drawn), *judged)), base)
    return [predicted_seconds(profile, step) / step.seconds for step in judged]


def paging(found: Measurements) -> Iterator[tuple[str, int, float]]:
    """Direction, size and predicted over measured mean seconds, at sizes that are in no fit."""
    for direction in ("read", "write"):
        items: list[TransferTime] = [item for item in found.transfers if item.direction == direction]
        latency, bandwidth = stored_line([item for item in items if item.size_bytes in FIT_SIZES_BYTES])
        for item in items:
            if item.size_bytes not in FIT_SIZES_BYTES:
                predicted = latency.value + item.size_bytes / bandwidth.value
                yield direction, item.size_bytes, predicted / item.mean_seconds


def _steps(by_threads: dict[int, Measurements]) -> Iterator[str]:
    for threads, found in by_threads.items():
        profile = fitted(found)
        judged = [step for step in found.steps if step.role == JUDGE]
        ratios = [predicted_seconds(profile, step) / step.seconds for step in judged]
        busy = statistics.median(step.busy_ratio for step in found.steps)
        made = profile.calibration
        assert made is not None
        told = errors_of(ratios)
        plural = "s" * (threads != 1)
        yield f"\n**{threads} thread{plural}**: {made.ops} ops in the fit, {len(judged)} nets in none."
        yield f"{told[0].upper()}{told[1:]}; wall clock over processor time {busy:.1f}."
        yield f"Classes refused: {made.refused or 'none'}."
        ends = held(found)
        others = [low <= 1.0 <= high for low, high, own in ends.values() if not own]
        inside = sum(low <= 1.0 <= high for low, high, _ in ends.values())
        yield (
            f"Inside the [interval](profiles.md) of nine cases of ten: {inside} of {len(ends)}, "
            f"{sum(others)} of the {len(others)} by which the profile did not judge itself.\n"
        )
        yield "| net | measured ms | predicted / measured | interval / measured |\n|---|---|---|---|"
        for step, ratio in zip(judged, ratios, strict=True):
            low, high, _ = ends[step.name]
            yield f"| {step.name} | {step.seconds * 1e3:.3g} | {ratio:.2f} | {low:.2f} to {high:.2f} |"


def _paging(by_threads: dict[int, Measurements]) -> Iterator[str]:
    yield "| direction | KiB | predicted / measured |\n|---|---|---|"
    errors = []
    for found in by_threads.values():
        for direction, size, ratio in paging(found):
            errors.append(abs(ratio - 1.0))
            yield f"| {direction} | {size // 1024} | {ratio:.2f} |"
    yield f"\nMedian error {statistics.median(errors):.0%}."


def _few(found: Measurements) -> Iterator[str]:
    yield "| base | as it is, median error | ten ops, median error | of single steps |\n|---|---|---|---|"
    judged = [step for step in found.steps if step.role == JUDGE]
    for name in BASES:
        base = load_profile(name)
        raw = statistics.median(abs(predicted_seconds(base, step) / step.seconds - 1.0) for step in judged)
        draws = [few_ops(found, base, seed) for seed in range(DRAWS)]
        medians = [statistics.median(abs(ratio - 1.0) for ratio in ratios) for ratios in draws]
        every = sorted(math.log(ratio) for ratios in draws for ratio in ratios)
        low, high = (math.exp(every[int(share * (len(every) - 1))]) for share in (0.05, 0.95))
        yield f"| `{name}` | {raw:.0%} | {statistics.median(medians):.0%} | {low:.2f} to {high:.2f} |"


HEAD = """# A calibration against steps that it has not seen

Made by `make calibration-table` on the server where poet is developed, while several other programs had
its two cores. So each net is measured in turn, over and over, and every op counts with the least processor
time of the thread that makes the step; with two threads, waiting ones sleep. Times are neither those of an
idle machine nor wall clock; predicted and measured were disturbed alike. With two threads the least time of
one thread is no step's time, for the other had to wait for a core: the errors below show it. No board was
at hand.

## Steps

The fit sees ops of 20 small nets of a calibration. The nets below are in none.
"""

PAGING = """
## Paging

Transfers of the page file at sizes between those of the calibration: the fitted line over the mean, of
which single slow transfers are a part. What a transfer waited for a processor that other programs had does
not count. First with the files of one thread, then with those of two.

"""

FEW = f"""
## {FEW_OPS} ops and the wrong base

One thread; {FEW_OPS} ops drawn at random from the calibration's, {DRAWS} times, with a base that is another
machine. *Of single steps*: predicted over measured, nine of ten draws and nets.

"""

LAST = """
Most ops of a step are short. {FEW} drawn at random mostly tell what calls cost, and little of the classes
that take the time: these keep the base's proportions, which are those of another machine. A calibration
of a minute (`--time-limit 60s`) has hundreds of ops.
"""


def page(folder: Path) -> str:
    """The page as text."""
    by_threads = {threads: measured(threads, folder) for threads in THREADS}
    parts = (
        *(HEAD.rstrip("\n"), *_steps(by_threads)),
        *(PAGING.rstrip("\n") + "\n", *_paging(by_threads)),
        *(FEW.rstrip("\n") + "\n", *_few(by_threads[1])),
        LAST.replace("{FEW}", "Ten").rstrip("\n"),
    )
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "calibration"
    PAGE.write_text(page(folder), encoding="utf-8")
