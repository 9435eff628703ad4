"""A profile from measurements: fitted speeds, storage, power, and its error in steps it has not seen."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate
from typing import Any

import numpy as np
from scipy.optimize import nnls

from poet.devices.costs import amounts_of, op_seconds, row_key
from poet.devices.figures import PRIOR_FACTOR, OpClass
from poet.devices.fitting import MOST_FACTOR, RESAMPLINGS, TWINS, Known, Speeds, fit_speeds
from poet.devices.load import validated
from poet.devices.measurements import (
    FIT,
    JUDGE,
    RUN,
    TABLE,
    Measurements,
    OpTime,
    PowerPhase,
    StepTime,
    TransferTime,
)
from poet.devices.profile import Profile
from poet.devices.sense import contradictions
from poet.errors import InputError
from poet.ir.kernel_facts import PYTORCH

_LEAST_OPS = 5
_FITTED = (FIT, RUN, TABLE)
_NEEDED = (OpClass.MATMUL, OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.TRANSCENDENTAL)


def fit_profile(
    found: Measurements,
    *,
    name: str,
    base: Profile | None = None,
    threads: int | None = None,
    resamplings: int = RESAMPLINGS,
) -> tuple[Profile, tuple[str, ...]]:
    """The profile that describes what was measured, and what its owner should know about it.

    Args:
        found: a calibration.
        name: of the profile.
        base: what is known of the board, or of its like; its watts stand where none were measured.
        threads: whose steps to use; not given: the most of a calibration, or of what there is without one.
        resamplings: of the ops, for the intervals.

    Raises:
        InputError: too little was measured, there are neither watts nor a base, or that makes no profile.
    """
    counts = {step.threads for step in found.steps if step.role in _FITTED}
    if threads is None:
        calibrated = {step.threads for step in found.steps if step.role == FIT}
        threads = max(calibrated or counts, default=0)
    ops = _steady_ops(found, threads)
    if len(ops) < _LEAST_OPS:
        told = ", ".join(map(str, sorted(counts))) or "none"
        raise InputError(f"{len(ops)} ops were measured at {threads} threads (threads measured: {told})")
    speeds = fit_speeds(ops, base, resamplings=resamplings)
    notes = list(found.warnings)
    data = _skeleton(found, name, base, threads)
    data["compute"] = _compute(speeds, base, found, notes)
    bandwidth = speeds.bandwidth_bytes_per_second
    data["memory"]["bandwidth_bytes_per_second"] = _figure(bandwidth, found, f"{speeds.ops} ops")
    _set_storage(data, found, base)
    _set_power(data, found, base, notes)
    profile = validated(data, "the fit")
    judged = [step for step in found.steps if step.role == JUDGE and step.threads == threads]
    ratios = [predicted_seconds(profile, step) / step.seconds for step in judged]
    errors = [abs(ratio - 1.0) for ratio in ratios]
    data["calibration"] = {
        "measurements": found.digest, "date": found.date, "torch": found.host.torch, "threads": threads,
        "ops": speeds.ops, "steps": len(errors), "refused": ", ".join(c.value for c in speeds.refused),
        "busy": any(step.was_busy for step in found.steps),
    }  # fmt: skip
    if errors:
        data["calibration"] |= {
            "median_error": statistics.median(errors), "worst_error": max(errors),
            "worst_factor": max(max(ratio, 1.0 / ratio) for ratio in ratios),
        }  # fmt: skip
    else:
        notes.append("no whole step was measured that the fit has not seen: its error is not known")
    tables = [step for step in found.steps if step.role == TABLE]
    tabled = [step for step in tables if step.threads == threads]
    if tabled:
        data["op_times"] = _op_times(tabled, found, notes)
    notes += _left_out(tables, {step.name for step in tabled})
    profile = validated(data, "the fit")
    notes += [f"the figures contradict each other: {text}" for text in contradictions(profile)]
    return profile, tuple(notes)


def predicted_seconds(profile: Profile, step: StepTime) -> float:
    """Of a measured step's ops, by the cost model."""
    return math.fsum(op.runs * op_seconds(profile, amounts_of(op)) for op in step.ops)


def _steady_ops(found: Measurements, threads: int) -> list[OpTime]:
    """Those of steps at the machine's full clock, and of slowed ones the classes that no such step has."""
    steps = [step for step in found.steps if step.threads == threads and step.role in _FITTED]
    steady = [op for step in steps if not step.slowed for op in step.ops]
    told = {amounts_of(op).op_class for op in steady}
    slowed = [op for step in steps if step.slowed for op in step.ops]
    return steady + [op for op in slowed if amounts_of(op).op_class not in told]


def _skeleton(found: Measurements, name: str, base: Profile | None, threads: int) -> dict[str, Any]:
    host = found.host
    exact = {"kind": "measured", "source": "what the system tells", "uncertainty": 0.0}
    memory: dict[str, Any] = {
        "ram_bytes": {"value": host.ram_bytes, **exact},
        "alignment_bytes": {
            "value": 64, "kind": "vendor-doc", "source": "PyTorch CPU allocator (c10/core/alignment.h)",
            "locator": "gAlignment", "uncertainty": 0.0,
        },
    }  # fmt: skip
    if host.cache_bytes:
        memory["cache_bytes"] = {"value": host.cache_bytes, **exact}
    threads_told = f"{threads} thread" + "s" * (threads != 1)
    beside = "" if base is None else f", beside the profile {base.name}"
    return {
        "version": 1,
        "name": name,
        "title": f"{host.title} by PyTorch",
        "notes": f"Fitted to measurements of {found.date} with torch {host.torch}, {threads_told}{beside}.",
        "kernels": {"name": PYTORCH},
        "memory": memory,
    }


def _source(found: Measurements) -> str:
    return f"poet devices fit to measurements {found.digest} of {found.date}"


def _figure(known: Known, found: Measurements, locator: str, kind: str = "measured") -> dict[str, Any]:
    low, high = known.interval
    ends = min(low, known.value), max(high, known.value)
    return {
        "value": known.value, "kind": kind, "locator": locator, "source": _source(found), "range": ends
    }  # fmt: skip


def _refusals(speeds: Speeds) -> Iterator[str]:
    """Classes that the model does not describe, each with the factor by which half of its ops are off."""

    def told(classes: Sequence[OpClass]) -> str:
        return ", ".join(f"{c.value} (by {speeds.factors[c]:.2g})" for c in classes)

    refused = speeds.refused
    if left := [op_class for op_class in refused if op_class not in _NEEDED]:
        yield (
            f"refused, for half of a class's ops are off by a factor above {MOST_FACTOR:g}: {told(left)}; "
            "each costs what its parent does"
        )
    if stands := [op_class for op_class in refused if op_class in _NEEDED]:
        yield (
            f"half of a class's ops are off by a factor above {MOST_FACTOR:g}: {told(stands)}; their fits "
            "stand all the same, for no profile does without them"
        )
    if 2 * len(refused) > len(speeds.factors):
        yield (
            "most classes are not described by their ops' sizes, as on a busy machine: calibrate again, into "
            "another file, when nothing else runs"
        )


def _compute(speeds: Speeds, base: Profile | None, found: Measurements, notes: list[str]) -> dict[str, Any]:
    """Tables of the measured classes, and of those of the base, moved by what they share with these."""
    compute: dict[str, Any] = {}
    overheads = sorted((speeds.overhead_seconds[c] for c in speeds.factors), key=lambda known: known.value)
    compute["call_overhead_seconds"] = _figure(overheads[len(overheads) // 2], found, "of the middle class")
    notes += _refusals(speeds)
    if speeds.block_channels > 1:
        compute["convolution_block_channels"] = {
            "value": speeds.block_channels, "kind": "measured", "uncertainty": 0.0,
            "source": _source(found), "locator": "the count of a few with which convolutions fit best",
        }  # fmt: skip
    told_by_twin = {c for twins in TWINS if speeds.factors.keys() & set(twins) for c in twins}
    for op_class in OpClass:
        is_needed = op_class in _NEEDED
        if op_class in speeds.factors:
            if op_class in speeds.refused and not is_needed:
                continue
            kind, told = "measured", f"half of its ops within a factor of {speeds.factors[op_class]:.2f}"
        elif (
            base is not None
            and base.compute.throughput(op_class) is not None
            and (is_needed or op_class in told_by_twin or getattr(base.compute, op_class.value) is not None)
        ):
            kind, told = "derived", f"{base.name}'s, as measured classes differ from theirs"
        elif is_needed:
            raise InputError(f"no op of the class {op_class.value} was measured; name a --base that has it")
        else:
            continue
        speed, overhead = speeds.flops_per_second[op_class], speeds.overhead_seconds[op_class]
        if kind == "derived":
            speed, overhead = speed.wider(PRIOR_FACTOR["derived"]), overhead.wider(PRIOR_FACTOR["derived"])
        compute[op_class.value] = {
            "flops_per_second": _figure(speed, found, told, kind),
            "call_overhead_seconds": _figure(overhead, found, told, kind),
        }
    return compute


def _op_times(steps: Sequence[StepTime], found: Measurements, notes: list[str]) -> dict[str, Any]:
    """Rows of the steps of models that were measured for this."""
    rows, left_out = rows_of(steps)
    if left_out:
        notes.append(f"{left_out} rows of the shortest ops are left out: a profile holds so many")
    models, width = tuple(dict.fromkeys(step.name for step in steps)), width_of(steps)
    ratio = Known(1.0, (1.0 - width, 1.0 + width))
    repeated = f"{len(steps)} measured steps of {', '.join(models)}"
    return {"models": models, "ratio": _figure(ratio, found, repeated), "seconds": rows}


def _left_out(tables: Sequence[StepTime], names: AbstractSet[str]) -> list[str]:
    """Of models that were measured, but at other threads than those of the profile."""
    counts: dict[str, set[int]] = {}
    for step in tables:
        if step.name not in names:
            counts.setdefault(step.name, set()).add(step.threads)
    return [
        f"the rows of {name} are left out, for the profile is of other threads than they: "
        f"{', '.join(map(str, sorted(threads)))}; --threads chooses"
        for name, threads in counts.items()
    ]


# --- storage ----------------------------------------------------------------------------------


def _set_storage(data: dict[str, Any], found: Measurements, base: Profile | None) -> None:
    by_direction = {
        direction: [item for item in found.transfers if item.direction == direction]
        for direction in ("read", "write")
    }
    if not all(by_direction.values()):
        return
    exact = {"kind": "standard", "source": "O_DIRECT works in blocks of 4096 bytes", "uncertainty": 0.0}
    storage: dict[str, Any] = {
        "title": f"storage of {data['name']}",
        "transfers": "blocking",
        "page_bytes": {"value": 4096, **exact},
    }
    for direction, items in by_direction.items():
        latency, bandwidth = stored_line(items)
        tails = "; ".join(
            f"{item.size_bytes} bytes: p50 {1e3 * item.quantile_seconds(0.5):.3g}, "
            f"p99 {1e3 * item.quantile_seconds(0.99):.3g} ms"
            for item in items
        )
        worst = max(max(item.seconds) for item in items)
        storage[direction] = {
            "latency_seconds": _figure(latency, found, tails),
            "bandwidth_bytes_per_second": _figure(bandwidth, found, tails),
            "worst_seconds": {**_figure(Known(worst, (worst, worst)), found, "the longest seen")},
        }
    if base is not None and base.storage is not None and base.storage.capacity_bytes is not None:
        storage["capacity_bytes"] = base.storage.capacity_bytes.model_dump(exclude_none=True)
    data["storage"] = storage


def stored_line(items: Sequence[TransferTime]) -> tuple[Known, Known]:
    """Latency and bandwidth by non-negative least squares of relative errors; intervals by resampling."""
    sizes = np.array([float(item.size_bytes) for item in items])

    def fitted(means: Any) -> tuple[float, float]:
        rows = np.column_stack([np.ones(len(sizes)), sizes / sizes.max()]) / means[:, None]
        solution, _ = nnls(rows, np.ones(len(sizes)))
        per_byte = max(float(solution[1]) / sizes.max(), 1e-13)
        return max(float(solution[0]), 1e-9), 1.0 / per_byte

    draw = np.random.default_rng(0)
    latency, bandwidth = fitted(np.array([item.mean_seconds for item in items]))
    drawn = np.array(
        [
            fitted(np.array([np.mean(draw.choice(item.seconds, len(item.seconds))) for item in items]))
            for _ in range(40)
        ]
    )
    low, high = np.quantile(drawn, (0.05, 0.95), axis=0)
    return Known(latency, (float(low[0]), float(high[0]))), Known(bandwidth, (float(low[1]), float(high[1])))


# --- power ------------------------------------------------------------------------------------

_WATTS_WIDTH = 0.02


def _set_power(data: dict[str, Any], found: Measurements, base: Profile | None, notes: list[str]) -> None:
    """Put measured watts into ``data``, a profile's tables; else the base's, as they stand there."""
    means: dict[str, list[PowerPhase]] = {}
    for phase in found.phases:
        if phase.watts is not None and phase.name != "marker":
            means.setdefault(phase.name, []).append(phase)
    busy_name = next(
        (name for name in ("matmul", "convolution", "busy", "elementwise") if name in means), None
    )
    if "idle" in means and busy_name is not None:
        _set_measured_power(data, found, means, busy_name)
    elif base is not None:
        notes.append(f"power was not measured: the watts are those of {base.name}, unchanged")
        data["energy"] = base.energy.model_dump(exclude_none=True)
        data["compute"]["active_watts"] = base.compute.active_watts.model_dump(exclude_none=True)
        for direction in ("read", "write"):
            if "storage" in data and base.storage is not None:
                watts = getattr(base.storage, direction).active_watts
                data["storage"][direction]["active_watts"] = watts.model_dump(exclude_none=True)
    else:
        raise InputError(
            "no power was measured, and watts are not made up: name a --base whose watts are taken over, "
            "a meter's log with --meter, or type --watts idle=2.7,busy=6"
        )
    if "storage" in data and any("active_watts" not in data["storage"][way] for way in ("read", "write")):
        del data["storage"]
        notes.append("the storage is left out: nothing tells what power its transfers take")


def _set_measured_power(
    data: dict[str, Any], found: Measurements, means: Mapping[str, list[PowerPhase]], busy_name: str
) -> None:
    idle_watts = statistics.fmean(phase.watts or 0.0 for phase in means["idle"])

    def figure(name: str) -> dict[str, Any]:
        phases = means[name]
        watts = statistics.fmean(phase.watts or 0.0 for phase in phases)
        watts = max(watts, idle_watts)  # a sensor's noise does not make being busy cheaper than being idle
        gap = watts - idle_watts if name != "idle" else watts
        low = watts - min(_WATTS_WIDTH * watts, 0.5 * gap)
        made = {"value": watts, "kind": phases[0].kind, "source": f"{phases[0].source}, {phases[0].rail}"}
        told = f"phase {name} of measurements {found.digest}"
        return {**made, "locator": told, "range": (low, watts * (1 + _WATTS_WIDTH))}

    data["energy"] = {
        "accounting": "total",
        "rail": means["idle"][0].rail or "the meter's place",
        "idle_watts": figure("idle"),
    }
    data["compute"]["active_watts"] = figure(busy_name)
    for name in ("matmul", "convolution", "elementwise"):
        if name in means and name in data["compute"]:
            data["compute"][name]["active_watts"] = figure(name)
    for direction in ("read", "write"):
        if "storage" in data and direction in means:
            data["storage"][direction]["active_watts"] = figure(direction)


# --- rows of measured ops ---------------------------------------------------------------------

MOST_ROWS_BYTES = 700_000
"""Of a profile, as its file has them, which `poet.devices.load.MAX_FILE_BYTES` limits; those that take the
most time in all are kept."""

LEAST_WIDTH = 0.05
"""Of the rows' time, either way: what a step differs by from day to day."""

_FIGURE_BYTES = 16
"""Of a row's line beside its key."""


def rows_of(steps: Sequence[StepTime]) -> tuple[dict[str, float], int]:
    """Seconds by `row_key` of the ops of ``steps``, each the median over the steps that have it.

    Beside them, how many of the shortest a profile has no room for.
    """
    taken: dict[str, list[float]] = {}
    weight: dict[str, float] = {}
    for step in steps:
        for op in step.ops:
            key = row_key(op)
            taken.setdefault(key, []).append(op.seconds)
            weight[key] = max(weight.get(key, 0.0), op.seconds * op.runs)
    keys = sorted(weight, key=lambda key: -weight[key])
    ends_bytes = accumulate(len(json.dumps(key)) + _FIGURE_BYTES for key in keys)
    kept = keys[: sum(end <= MOST_ROWS_BYTES for end in ends_bytes)]
    return {key: statistics.median(taken[key]) for key in sorted(kept)}, len(keys) - len(kept)


def width_of(steps: Sequence[StepTime]) -> float:
    """Half of how far steps of one name and the same ops lie apart, relative; `LEAST_WIDTH` to a half."""
    alike: dict[tuple[object, ...], list[float]] = {}
    for step in steps:
        key = (step.name, *sorted((row_key(op), op.runs) for op in step.ops))
        alike.setdefault(key, []).append(step.seconds)
    apart = max(math.log(max(seconds) / min(seconds)) for seconds in alike.values())
    return min(0.5, max(LEAST_WIDTH, 0.5 * apart))
