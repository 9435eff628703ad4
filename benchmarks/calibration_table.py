"""A calibration of this machine against nets that it has not seen: results/calibration-table.json.

    python -m benchmarks calibration-table [FOLDER]

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
from result_file import RESULTS, write

from poet.calibration.nets import JUDGING_NETS
from poet.devices.costs import amounts_of, op_seconds
from poet.devices.fitted_profile import fit_profile, predicted_seconds, stored_line
from poet.devices.fitting import RESAMPLINGS, fit_speeds
from poet.devices.load import load_profile
from poet.devices.measurements import (
    FIT,
    JUDGE,
    Measurements,
    OpKey,
    OpTime,
    StepTime,
    TransferTime,
    read_measurements,
    typed_watts,
)
from poet.devices.profile import Profile

ROOT = Path(__file__).parents[1]
PAGE = RESULTS / "calibration-table.json"
BENCH = Path(__file__).with_name("calibration_bench.py")
THREADS, ROUNDS = (1, 2), 12
FIT_SIZES_BYTES = (4096, 16384, 65536, 262144, 1048576, 4194304)
BASES = ("rpi4b-xnnpack", "rpi4b", "rpi5", "x86-host")
DRAWS, FEW_OPS = 20, 10
CHOSEN = (
    ("matmul", 0.75), ("convolution", 0.0), ("convolution_backward", 0.75), ("pointwise_backward", 0.75),
    ("depthwise_backward", 0.75), ("elementwise", 0.8), ("elementwise", 0.1), ("batch_norm", 0.75),
    ("reduction", 0.75), ("adaptive_update", 0.75),
)  # fmt: skip
"""Ten ops that tell of all families: the class of each, and the share of its class's ops that are smaller.
The small ones tell what calls cost. Attention, which is products and more, stands for none."""

MACHINES = (
    "rpi4b", "rpi4b-xnnpack", "rpi5", "rpi-zero-2w", "rpi3b-plus", "jetson-nano", "jetson-orin-nano", "pixel",
    "x86-host",
)  # fmt: skip
"""Shipped profiles, each of which is simulated, with each other as its base."""

NOISE = 0.2
"""Of each op of a simulated machine, as the deviation of a logarithm."""

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
            env={**os.environ, "PYTHONPATH": paths},
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


def drawn_ops(ops: Sequence[OpTime], seed: int) -> tuple[OpTime, ...]:
    """Ten, at random."""
    return tuple(random.Random(seed).sample(list(ops), FEW_OPS))


def chosen_ops(ops: Sequence[OpTime], chosen: Sequence[tuple[str, float]] = CHOSEN) -> tuple[OpTime, ...]:
    """Those that are ``chosen``; an op is as large as its FLOPs or the elements that it moves."""
    by_class: dict[str, dict[OpKey, tuple[float, OpTime]]] = {}
    for op in ops:
        if "attention" in op.call.target:
            continue
        amounts = amounts_of(op)
        size = max(amounts.flops, amounts.bytes_moved / 4)
        by_class.setdefault(amounts.op_class.value, {}).setdefault(op.key, (size, op))
    found = []
    for name, share in chosen:
        sized = sorted(by_class[name].values(), key=lambda pair: pair[0])
        found.append(sized[int(share * len(sized))][1])
    return tuple(found)


def few_ops(found: Measurements, base: Profile, ops: tuple[OpTime, ...]) -> list[float]:
    """Predicted over measured seconds of unseen steps, by a fit to ``ops``."""
    judged = [step for step in found.steps if step.role == JUDGE]
    first = next(step for step in found.steps if step.role == FIT)
    profile = fitted(replace(found, steps=(replace(first, ops=ops), *judged)), base)
    return [predicted_seconds(profile, step) / step.seconds for step in judged]


def ops_of(found: Measurements) -> list[OpTime]:
    """That a fit may see, of steps at the machine's full clock."""
    return [op for step in found.steps if step.role == FIT and not step.slowed for op in step.ops]


def simulated(found: Measurements, machine: Profile, seed: int) -> Measurements:
    """``found`` as it would be on ``machine``, were its cost model true but for noise in each kind of op."""
    draw, known = random.Random(seed), {}

    def seconds(op: OpTime) -> float:
        if op.key not in known:
            stated = op_seconds(machine, amounts_of(op))
            known[op.key] = stated * math.exp(draw.gauss(0.0, NOISE))
        return known[op.key]

    def made(step: StepTime) -> StepTime:
        return replace(step, ops=tuple(replace(op, seconds=seconds(op)) for op in step.ops))

    return replace(found, steps=tuple(made(step) for step in found.steps))


def median_error(ratios: Sequence[float]) -> float:
    """Of predicted over measured."""
    return statistics.median(abs(ratio - 1.0) for ratio in ratios)


def pairs(
    found: Measurements,
    chosen: Sequence[tuple[str, float]] = CHOSEN,
    names: Sequence[str] = MACHINES,
) -> dict[tuple[str, str], tuple[float, float]]:
    """Median errors by machine and base: of ten drawn ops, and of the ten chosen ones."""
    told = {}
    for number, name in enumerate(names):
        machine = simulated(found, load_profile(name), number)
        ops = ops_of(machine)
        for other, base in enumerate(names):
            if base != name:
                profile = load_profile(base)
                told[name, base] = (
                    median_error(few_ops(machine, profile, drawn_ops(ops, 100 * number + other))),
                    median_error(few_ops(machine, profile, chosen_ops(ops, chosen))),
                )
    return told


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
        block = profile.compute.convolution_block_channels
        channels = 1 if block is None else block.value
        factors = fit_speeds(ops_of(found), resamplings=2).factors
        widest = max(factors, key=lambda op_class: factors[op_class])
        yield f"Channels on which convolutions work at once, by the fit: {channels}."
        yield (
            f"Half of the ops of each of {len(factors)} classes are within a factor of {factors[widest]:.2f} "
            f"(`{widest.value}`) of the fit."
        )
        yield f"Classes refused: {made.refused or 'none'}."
        ends = held(found)
        others = [low <= 1.0 <= high for low, high, own in ends.values() if not own]
        inside = sum(low <= 1.0 <= high for low, high, _ in ends.values())
        yield (
            f"Inside the interval (`docs/boards.md`) of nine cases of ten: {inside} of {len(ends)}, "
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
    yield "| base | as it is | ten drawn | of single steps | ten chosen | of single steps |"
    yield "|---|---|---|---|---|---|"
    judged, ops = [step for step in found.steps if step.role == JUDGE], ops_of(found)
    for name in BASES:
        base = load_profile(name)
        raw = median_error([predicted_seconds(base, step) / step.seconds for step in judged])
        draws = [few_ops(found, base, drawn_ops(ops, seed)) for seed in range(DRAWS)]
        every = sorted(math.log(ratio) for ratios in draws for ratio in ratios)
        low, high = (math.exp(every[int(share * (len(every) - 1))]) for share in (0.05, 0.95))
        chosen = few_ops(found, base, chosen_ops(ops))
        yield (
            f"| `{name}` | {raw:.0%} | {statistics.median(map(median_error, draws)):.0%} | "
            f"{low:.2f} to {high:.2f} | {median_error(chosen):.0%} | {min(chosen):.2f} to {max(chosen):.2f} |"
        )


def _simulated(found: Measurements) -> Iterator[str]:
    told = pairs(found)
    yield "| ten ops | median of pairs | three of four pairs within | worst pair |\n|---|---|---|---|"
    for label, place in (("drawn", 0), ("chosen", 1)):
        errors = sorted(both[place] for both in told.values())
        yield (
            f"| {label} | {statistics.median(errors):.0%} | {errors[int(0.75 * len(errors))]:.0%} | "
            f"{errors[-1]:.0%} |"
        )


HEAD = """# A calibration against steps that it has not seen

Made by `python -m benchmarks calibration-table`
on the server where poet is developed, two cores of it. Each net is measured
in turn, over and over, and every op counts with the least processor time of the thread that makes the step.
That is wall clock where nothing else runs, as the ratio below tells. Where other programs have a core, two
threads wait for each other: on a busy day the steps of two threads were up to 45 % off. No board was at hand.

## Steps

The fit sees ops of 24 small nets of a calibration. The nets below are in none.
"""

PAGING = """
## Paging

Transfers of the page file at sizes between those of the calibration: the fitted line over the mean, of
which single slow transfers are a part. First with the files of one thread, then with those of two.

"""

FEW = f"""
## {FEW_OPS} ops and the wrong base

One thread; {FEW_OPS} of the calibration's ops, with a base that is another machine: median error of unseen
steps, and predicted over measured of single ones. *Drawn*: at random, {DRAWS} times, nine of ten draws and
nets. *Chosen*: of products, convolutions, convolutions of single pixels and of single channels, sums, batch
norms, updates and passes over memory one larger op each, and two tiny ones that tell what calls cost, of a
convolution and of another. Attention stands for no product.

"""

SIMULATED = f"""
The same on simulated machines: {len(MACHINES)} shipped profiles, each with every other as its base, noise of
{NOISE:.0%} in each kind of op.

"""

LAST = """
Most ops of a step are short. Ten drawn at random mostly tell what calls cost, and little of the classes
that take the time: these keep the base's proportions, which are those of another machine. One of each family
moves its family as well. A calibration of a minute (`--time-limit 60s`) has hundreds of ops.
"""


def page(folder: Path) -> str:
    """The page as text."""
    by_threads = {threads: measured(threads, folder) for threads in THREADS}
    parts = (
        *(HEAD.rstrip("\n"), *_steps(by_threads)),
        *(PAGING.rstrip("\n") + "\n", *_paging(by_threads)),
        *(FEW.rstrip("\n") + "\n", *_few(by_threads[1])),
        *(SIMULATED.rstrip("\n") + "\n", *_simulated(by_threads[1])),
        LAST.rstrip("\n"),
    )
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "calibration"
    write(PAGE, page(folder))
