"""The raw file of a calibration: every timing of ops, transfers and power phases, and the machine's state.

It is written on the board and read anywhere; no torch, and nothing of planning. An op is kept as its call on
types, so that its FLOPs and bytes are those that the rules give of whoever reads it. Watts may be typed in,
or come from the log of a meter.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import secrets
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from poet.devices.machine import UNKNOWN, Host, State
from poet.errors import InputError
from poet.ir.calls import Argument, Call, Ref, TensorType
from poet.util import codec
from poet.util.reading import LARGEST_AMOUNT, parse_json, read_regular

FORMAT, FORMAT_VERSION = "poet-measurements", 1
MAX_FILE_BYTES = 1 << 27
_MOST_BUSY = 1.25  # as `poet.plans.run_request` has it for trainings
FIT, JUDGE, TABLE, RUN = "fit", "judge", "table", "run"
ROLES = (FIT, JUDGE, TABLE, RUN)
"""What a measured step is for: a fit sees its ops; a fit is checked against it; it stands in the table of a
model; it was made by a training."""


_LEAST_SECONDS = 1e-15
_TIME = f"{_LEAST_SECONDS:g} to {LARGEST_AMOUNT:g} seconds"


def _is_time(seconds: float) -> bool:
    """Whether something took so long: sums and quotients of such seconds are finite."""
    return _LEAST_SECONDS <= seconds <= LARGEST_AMOUNT


OpKey = tuple[Call, tuple[TensorType, ...], tuple[TensorType | None, ...]]


@dataclass(frozen=True, slots=True)
class OpTime:
    """An op of a measured step, or several alike.

    Attributes:
        call: whose values are named ``v0``, ``v1`` ... in the order in which they are given.
        types: of these values.
        outputs: types of what it writes, ``None`` where the operator returns nothing.
        updated_bytes: that it writes in place.
        seconds: of one run, the mean of those alike.
        runs: how many are alike in the step.
    """

    call: Call
    types: tuple[TensorType, ...]
    outputs: tuple[TensorType | None, ...]
    updated_bytes: int
    seconds: float
    runs: int = 1

    def __post_init__(self) -> None:
        if not _is_time(self.seconds) or self.runs < 1:
            raise InputError(f"{self.runs} runs of {self.seconds:g} seconds; expected {_TIME}")
        if {f"v{index}" for index in range(len(self.types))} != set(self.call.refs()):
            raise InputError(f"{self.call.target}: its values are not the {len(self.types)} that have types")

    @property
    def key(self) -> OpKey:
        """Equal for ops that are alike: operator, arguments, shapes, element types."""
        return self.call, self.types, self.outputs


def op_time(
    call: Call,
    types: Mapping[str, TensorType],
    outputs: Iterable[TensorType | None],
    *,
    updated_bytes: int,
    seconds: float,
) -> OpTime:
    """The record of a call on values of any names."""
    names = {name: f"v{index}" for index, name in enumerate(dict.fromkeys(call.refs()))}

    def renamed(argument: Argument) -> Argument:
        if isinstance(argument, Ref):
            return Ref(names[argument.value])
        return tuple(map(renamed, argument)) if isinstance(argument, tuple) else argument

    anonymous = Call(
        call.target,
        tuple(map(renamed, call.args)),
        tuple((key, renamed(argument)) for key, argument in call.kwargs),
    )
    return OpTime(anonymous, tuple(types[name] for name in names), tuple(outputs), updated_bytes, seconds)


def alike_together(ops: Iterable[OpTime]) -> tuple[OpTime, ...]:
    """One record for ops that are alike, with the mean of their seconds."""
    groups: dict[OpKey, list[OpTime]] = {}
    for op in ops:
        groups.setdefault(op.key, []).append(op)
    return tuple(
        replace(
            group[0],
            seconds=math.fsum(op.seconds * op.runs for op in group) / sum(op.runs for op in group),
            runs=sum(op.runs for op in group),
        )
        for group in groups.values()
    )


@dataclass(frozen=True, slots=True)
class StepTime:
    """A training step that was made again and again.

    Attributes:
        name: of the net.
        role: one of `ROLES`.
        threads: of torch.
        ops: all of it; of a calibration's step to fit to, all but the last, which would have with it what a
            step does before its first op and after its last.
        busy_ratio: wall clock over the step's own time.
        before, after: the machine's state.
        attempts: that were made; the last, or the fastest-clocked, is what stands here.
        slowed: that even so the clock was below the highest seen, or the firmware throttled.
    """

    name: str
    role: str
    threads: int
    ops: tuple[OpTime, ...]
    busy_ratio: float = 1.0
    before: State = UNKNOWN
    after: State = UNKNOWN
    attempts: int = 1
    slowed: bool = False

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InputError(f"the role {self.role!r} is not one of {', '.join(ROLES)}")
        if self.threads < 1 or not self.ops:
            raise InputError(f"step {self.name}: it has no ops, or ran with {self.threads} threads")

    @property
    def was_busy(self) -> bool:
        """Whether other programs had the processor meanwhile."""
        return self.busy_ratio > _MOST_BUSY

    @property
    def seconds(self) -> float:
        """Of a whole step."""
        return math.fsum(op.seconds * op.runs for op in self.ops)


@dataclass(frozen=True, slots=True)
class TransferTime:
    """Transfers of one size to or from the page file.

    Attributes:
        direction: ``read`` or ``write``.
        size_bytes: of each.
        seconds: of every one, in order.
        mode: of the page file.
    """

    direction: str
    size_bytes: int
    seconds: tuple[float, ...]
    mode: str = ""

    def __post_init__(self) -> None:
        if self.direction not in ("read", "write") or self.size_bytes < 1 or len(self.seconds) < 2:
            raise InputError(f"{len(self.seconds)} transfers of {self.size_bytes} bytes, {self.direction!r}")
        if not all(map(_is_time, self.seconds)):
            raise InputError(f"a transfer of no time, or of endless time; expected {_TIME}")

    @property
    def mean_seconds(self) -> float:
        """With every slow one in it: what a plan pays in the long run."""
        return statistics.fmean(self.seconds)

    def quantile_seconds(self, share: float) -> float:
        """The time that so large a share of transfers does not exceed."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1 if share > 0 else 0)]


@dataclass(frozen=True, slots=True)
class PowerPhase:
    """A span of time in which the machine did one thing.

    Attributes:
        name: ``idle``, a class of op, ``read``, ``write``, or ``marker``.
        begin_seconds, end_seconds: since 1970, by the machine's clock.
        watts: mean; ``None``: no sensor told.
        source, rail, kind: of the watts, as `poet.devices.machine.PowerSource` has them.
    """

    name: str
    begin_seconds: float
    end_seconds: float
    watts: float | None = None
    source: str = ""
    rail: str = ""
    kind: str = "measured"


@dataclass(frozen=True)  # no slots: the digest is kept
class Measurements:
    """All that was measured on one machine.

    Attributes:
        host: which machine.
        date: of the first measurement, as 2026-11-23.
        steps, transfers, phases: what was measured.
        done: names of the finished parts of a calibration, so that it can be resumed.
        spent_seconds: on all of it.
        storage: what was written to, for people.
        warnings: sentences about what may have gone wrong.
    """

    host: Host
    date: str
    steps: tuple[StepTime, ...] = ()
    transfers: tuple[TransferTime, ...] = ()
    phases: tuple[PowerPhase, ...] = ()
    done: tuple[str, ...] = ()
    spent_seconds: float = 0.0
    storage: str = ""
    warnings: tuple[str, ...] = ()

    def to_bytes(self, encoded: dict[int, str] | None = None) -> bytes:
        """The file's content.

        Args:
            encoded: what steps came to before, by their ids; it is added to.
        """
        encoded = {} if encoded is None else encoded
        for step in self.steps:
            if id(step) not in encoded:
                encoded[id(step)] = _json(codec.encode(step))
        rest = {"format": FORMAT, "version": FORMAT_VERSION, **codec.encode(replace(self, steps=()))}
        steps = ",\n".join(encoded[id(step)] for step in self.steps)
        return f'{_json(rest)[:-1]},"steps":[{steps}]}}\n'.encode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, shortened: which measurements a profile was fitted to."""
        return hashlib.sha256(self.to_bytes()).hexdigest()[:16]


def read_measurements(path: Path) -> Measurements:
    """What `write_measurements` wrote.

    Raises:
        InputError: it cannot be read, or is no such file.
    """
    try:
        data = parse_json(read_regular(path, most_bytes=MAX_FILE_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path}: not a file of measurements ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputError(f"{path}: not a file of measurements; `poet devices calibrate` writes one")
    if data.get("version") != FORMAT_VERSION:
        raise InputError(f"{path}: version {data.get('version')!r}, this poet reads {FORMAT_VERSION}")
    fields = {key: item for key, item in data.items() if key not in ("format", "version")}
    return codec.decode(Measurements, fields, where=path.name)


def read_own(path: Path, host: Host, *, any_threads: bool = False) -> Measurements:
    """What `write_measurements` wrote on this machine.

    Args:
        path: of the file.
        host: this machine.
        any_threads: whatever torch's number of threads was by default.

    Raises:
        InputError: it is of another machine or another torch, it cannot be read, or is no such file.
    """
    found = read_measurements(path)
    if differing := found.host.contradictions(host, any_threads=any_threads):
        raise InputError(
            f"{path}: was measured on another machine, or with another torch "
            f"({'; '.join(differing)}); give another path"
        )
    return found


def _json(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def write_measurements(path: Path, measurements: Measurements, encoded: dict[int, str] | None = None) -> None:
    """Whole or not at all; for ``encoded`` see `Measurements.to_bytes`.

    Raises:
        InputError: the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(measurements.to_bytes(encoded))
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        temporary.unlink(missing_ok=True)


# --- watts from elsewhere ----------------------------------------------------------------------


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


_MOST_LOG_BYTES = 1 << 28
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
    seconds, watts = _read_log(path, volts)
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


def _read_log(path: Path, volts: float | None) -> tuple[Floats, Floats]:
    try:
        text = read_regular(path, most_bytes=_MOST_LOG_BYTES).decode("utf-8", "replace")
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
