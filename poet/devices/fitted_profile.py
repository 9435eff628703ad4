"""A profile from measurements: fitted speeds, storage, power, and its error in steps it has not seen."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
from scipy.optimize import nnls

from poet.devices.amounts import amounts_of
from poet.devices.costs import op_seconds
from poet.devices.fitted_power import set_power
from poet.devices.fitting import MOST_FACTOR, RESAMPLINGS, Speeds, fit_speeds
from poet.devices.known_figures import Known
from poet.devices.load import validated
from poet.devices.measurements import (
    FIT,
    JUDGE,
    RUN,
    TABLE,
    Measurements,
    OpTime,
    StepTime,
    TransferTime,
)
from poet.devices.op_rows import rows_of
from poet.devices.profile import OpClass, Profile, Throughput
from poet.devices.proportions import share_by_evidence, with_share
from poet.devices.sense import contradictions
from poet.errors import InputError
from poet.kernel_facts import PYTORCH

_LEAST_OPS = 5
_FITTED = (FIT, RUN, TABLE)
_GRADIENT_OF = {
    OpClass.CONVOLUTION_BACKWARD: OpClass.CONVOLUTION,
    OpClass.DEPTHWISE_BACKWARD: OpClass.DEPTHWISE,
    OpClass.POINTWISE_BACKWARD: OpClass.POINTWISE,
    OpClass.BATCH_NORM_BACKWARD: OpClass.BATCH_NORM,
}
_TWIN = {**_GRADIENT_OF, **{forward: backward for backward, forward in _GRADIENT_OF.items()}}
"""Classes of which the one tells of the other: a kernel and that of its gradients."""

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
    share = 1.0 if base is None else share_by_evidence(ops, base)
    believed = None if base is None else with_share(base, share)
    speeds = fit_speeds(ops, believed, resamplings=resamplings)
    notes = list(found.warnings)
    data = _skeleton(found, name, base, threads)
    data["compute"] = _compute(speeds, believed, share, found, notes)
    bandwidth = speeds.bandwidth_bytes_per_second
    data["memory"]["bandwidth_bytes_per_second"] = _figure(bandwidth, found, f"{speeds.ops} ops")
    _set_storage(data, found, base)
    set_power(data, found, base, notes)
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
        "title": re.sub(r"\b\d+x |[\d.]+ ?[GM]Hz", "", f"{host.title} by PyTorch").strip(),
        "notes": f"Fitted to measurements of {found.date} with torch {host.torch}, {threads_told}{beside}.",
        "kernels": {"name": PYTORCH},
        "memory": memory,
    }


def _figure(known: Known, found: Measurements, locator: str, kind: str = "measured") -> dict[str, Any]:
    low, high = known.interval
    return {
        "value": known.value, "kind": kind, "locator": locator,
        "source": f"poet devices fit to measurements {found.digest} of {found.date}",
        "range": (min(low, known.value), max(high, known.value)),
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


def _compute(
    speeds: Speeds, base: Profile | None, share: float, found: Measurements, notes: list[str]
) -> dict[str, Any]:
    compute: dict[str, Any] = {}
    overheads = list(speeds.overhead_seconds.values())
    usual = sorted(overheads, key=lambda known: known.value)[len(overheads) // 2]
    compute["call_overhead_seconds"] = _figure(usual, found, "of the middle class")
    notes += _refusals(speeds)
    if speeds.block_channels > 1:
        compute["convolution_block_channels"] = _block(speeds, base, found)
    for op_class, speed in speeds.flops_per_second.items():
        if op_class in speeds.refused and op_class not in _NEEDED:
            continue
        factor = f"half of its ops within a factor of {speeds.factors[op_class]:.2f}"
        compute[op_class.value] = {
            "flops_per_second": _figure(speed, found, factor),
            "call_overhead_seconds": _figure(speeds.overhead_seconds[op_class], found, factor),
        }
    for op_class in OpClass:
        if op_class in speeds.flops_per_second:
            continue
        own = None if base is None else getattr(base.compute, op_class.value)
        if base is not None and (op_class in _NEEDED or _TWIN.get(op_class) in speeds.flops_per_second):
            own = own or base.compute.throughput(op_class)
        if base is not None and own is not None:
            compute[op_class.value] = _carried_over(op_class, own, speeds, base, share, found)
        elif op_class in _NEEDED:
            raise InputError(f"no op of the class {op_class.value} was measured; name a --base that has it")
    return compute


def _block(speeds: Speeds, base: Profile | None, found: Measurements) -> dict[str, Any]:
    """On how many channels convolutions work at once."""
    own = None if base is None else base.compute.convolution_block_channels
    if own is not None and own.value == speeds.block_channels:
        return own.model_dump(exclude_none=True)
    return {
        "value": speeds.block_channels, "kind": "measured", "uncertainty": 0.0,
        "source": f"poet devices fit to measurements {found.digest} of {found.date}",
        "locator": "the count of a few with which convolutions fit best",
    }  # fmt: skip


def _carried_over(
    op_class: OpClass, own: Throughput, speeds: Speeds, base: Profile, share: float, found: Measurements
) -> dict[str, Any]:
    """The base's figures of a class that was not measured, as measured classes differ from theirs.

    ``base`` has so much of its proportions left as the ``share`` says.
    """
    tables: dict[str, Any] = {}
    twin = _TWIN.get(op_class)
    faster = speeds.speed_factors[op_class]
    if twin is not None and twin in speeds.flops_per_second:
        twins_own = base.compute.throughput(twin)
        if twins_own is not None:
            faster = speeds.flops_per_second[twin].value / twins_own.flops_per_second.value
    for name, figure, factor, whose in (
        (
            "flops_per_second",
            own.flops_per_second,
            faster,
            f"{base.name}'s, with {share:.0%} of the distance from its products,",
        ),
        (
            "call_overhead_seconds",
            own.call_overhead_seconds or base.compute.call_overhead_seconds,
            speeds.call_factors[op_class],
            f"{base.name}'s",
        ),
    ):
        known = Known(figure.value, figure.interval).times(factor)
        told = f"{whose} times {factor:.3g}, by the measured classes"
        tables[name] = _figure(known, found, told, "derived")
    return tables


def _op_times(steps: Sequence[StepTime], found: Measurements, notes: list[str]) -> dict[str, Any]:
    """Rows of the steps of models that were measured for this."""
    rows = rows_of(steps)
    if rows.left_out:
        notes.append(f"{rows.left_out} rows of the shortest ops are left out: a profile holds so many")
    width = Known(1.0, (1.0 - rows.width, 1.0 + rows.width))
    repeated = f"{len(steps)} measured steps of {', '.join(rows.models)}"
    return {
        "models": rows.models,
        "ratio": _figure(width, found, repeated),
        "seconds": dict(rows.seconds),
    }


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
