"""The watts of a fitted profile: measured, typed in, or those of its base."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poet.devices.measurements import Measurements, PowerPhase
from poet.devices.profile import Profile
from poet.errors import InputError
from poet.util.reading import read_regular

_WATTS_WIDTH = 0.02


def typed_watts(phases: tuple[PowerPhase, ...], watts: Mapping[str, float]) -> tuple[PowerPhase, ...]:
    """``phases`` with what their owner typed in: by the names of phases."""
    kept = tuple(phase for phase in phases if phase.name not in watts)
    return (
        *kept,
        *(
            PowerPhase(name, 0.0, 0.0, each, "typed in", "as its owner measured it")
            for name, each in watts.items()
        ),
    )


def set_power(data: dict[str, Any], found: Measurements, base: Profile | None, notes: list[str]) -> None:
    """Put measured watts into ``data``, a profile's tables; else the base's, as they stand there.

    Raises:
        InputError: none were measured and there is no base: none are made up.
    """
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


MAX_FILE_BYTES = 1 << 28
_GRID_SECONDS = 0.1
_EDGE_SECONDS = 0.5
_LEAST_CORRELATION = 0.5
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "sec": 1.0, "seconds": 1.0, "time": 1.0, "timestamp": 1.0}
_WATTS = {"w": 1.0, "watts": 1.0, "power": 1.0, "mw": 1e-3, "uw": 1e-6}
_AMPERES = {"a": 1.0, "ma": 1e-3, "ua": 1e-6}
Floats = NDArray[np.float64]


def phases_by_meter(
    phases: tuple[PowerPhase, ...], path: Path, *, volts: float | None = None
) -> tuple[PowerPhase, ...]:
    """``phases`` with the mean watts that the log at ``path`` has during each.

    Args:
        phases: of a calibration with ``--power meter``.
        path: of the log.
        volts: of the supply, where the log has amperes.

    Raises:
        InputError: it is no such log, or nothing in it looks like the phases.
    """
    seconds, watts = _read(path, volts)
    seconds = seconds + _shift(phases, seconds, watts, path)
    found = []
    for phase in phases:
        inside = (seconds >= phase.begin_seconds + _EDGE_SECONDS) & (
            seconds <= phase.end_seconds - _EDGE_SECONDS
        )
        mean = float(np.mean(watts[inside])) if phase.name != "marker" and inside.sum() > 1 else None
        found.append(replace(phase, watts=mean, source=path.name, rail="the meter's place", kind="measured"))
    return tuple(found)


def _shift(phases: tuple[PowerPhase, ...], seconds: Floats, watts: Floats, path: Path) -> float:
    """What to add to the log's seconds: where its power and the phases agree best."""
    begin, end = phases[0].begin_seconds, phases[-1].end_seconds
    grid = np.arange(begin, end, _GRID_SECONDS)
    busy = np.zeros(len(grid))
    for phase in phases:
        if phase.name != "idle":
            busy[(grid >= phase.begin_seconds) & (grid < phase.end_seconds)] = 1.0
    log = np.interp(np.arange(seconds[0], seconds[-1], _GRID_SECONDS), seconds, watts)
    if len(log) < len(busy):
        raise InputError(f"{path}: {len(log) * _GRID_SECONDS:.0f} s of log for phases of {end - begin:.0f} s")
    wave = (busy - busy.mean()) / (busy.std() + 1e-12)
    sums, squares = np.cumsum(np.insert(log, 0, 0.0)), np.cumsum(np.insert(log**2, 0, 0.0))
    count = len(wave)
    means = (sums[count:] - sums[:-count]) / count
    spread = np.sqrt(np.maximum((squares[count:] - squares[:-count]) / count - means**2, 1e-18))
    likeness = np.correlate(log, wave, mode="valid") / count / spread
    best = int(np.argmax(likeness))
    if likeness[best] < _LEAST_CORRELATION:
        raise InputError(f"{path}: nothing in it looks like the phases of the calibration")
    return float(begin - (seconds[0] + best * _GRID_SECONDS))


def _read(path: Path, volts: float | None) -> tuple[Floats, Floats]:
    try:
        text = read_regular(path, most_bytes=MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    rows = csv.reader(io.StringIO(text.lstrip("\ufeff")), delimiter=";" if ";" in text[:200] else ",")
    try:
        heads = [_words(head) for head in next(rows)]
        time, time_scale = _column(heads, _TIMES)
        power, scale = _column(heads, _WATTS)
        if power is None:
            power, scale = _column(heads, _AMPERES)
            scale *= volts if volts is not None else float("nan")
        if time is None or power is None:
            raise InputError(
                f"{path}: its first line names no column of seconds and none of watts or amperes"
            )
        if scale != scale:
            raise InputError(f"{path}: it has amperes; give the supply's --volts")
        pairs = np.array([(float(row[time]), float(row[power])) for row in rows if row])
    except (StopIteration, ValueError, IndexError, csv.Error):
        raise InputError(f"{path}: not a log of numbers, a line for each") from None
    if len(pairs) < 10 or not np.isfinite(pairs).all() or (np.diff(pairs[:, 0]) < 0).any():
        raise InputError(f"{path}: fewer than ten readings, or times that go back")
    return pairs[:, 0] * time_scale, pairs[:, 1] * scale


def _words(head: str) -> list[str]:
    return [word.lower() for word in head.replace("(", " ").replace(")", " ").replace("_", " ").split()]


def _column(heads: list[list[str]], units: dict[str, float]) -> tuple[int | None, float]:
    """The first column that one of the units heads; the last word of a heading is its unit."""
    for place, words in enumerate(heads):
        for word in reversed(words):
            if word in units:
                return place, units[word]
    return None, 1.0
