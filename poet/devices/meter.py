"""Watts of each phase from the log of a power meter: a CSV file with a column of seconds and one of power.

The meter's clock is not the machine's: the log is moved to where its power is high while the machine was busy
and low while it was idle, marker pulses among that.
"""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poet.devices.measurements import PowerPhase
from poet.errors import InputError
from poet.files.reading import read_regular

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
