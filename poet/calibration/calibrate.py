"""Measure a machine part by part into one raw file, which an interrupted calibration goes on with.

Each part is written to the file as it ends. A part during which the clock fell or the firmware throttled is
measured again after a pause, a few times; what could not be measured undisturbed is marked.
"""

from __future__ import annotations

import functools
import math
import operator
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from poet.calibration.bench import LOADS, Bench
from poet.calibration.nets import FIT_KINDS, FIT_SIZES, JUDGING_NETS
from poet.devices.machine import (
    THROTTLED,
    UNDER_VOLTAGE,
    EnergyMeter,
    Host,
    Machine,
    PowerSource,
    State,
    power_sources,
    throttle_words,
)
from poet.devices.measurements import (
    FIT,
    JUDGE,
    Measurements,
    PowerPhase,
    StepTime,
    read_own,
    write_measurements,
)
from poet.errors import InputError, PoetError


class Watch:
    """Samples of a machine's state and of one power source."""

    def __init__(self, machine: Machine, source: PowerSource | None = None) -> None:
        self._machine = machine
        self._states: list[State] = []
        self._meter = None if source is None else EnergyMeter(source, machine.clock)

    def sample(self) -> None:
        """Read every sensor once."""
        self._states.append(self._machine.state())
        if self._meter is not None:
            self._meter.sample()

    @property
    def mean_watts(self) -> float | None:
        """Of the source; ``None``: it told too little."""
        return None if self._meter is None else self._meter.mean_watts

    @property
    def state(self) -> State:
        """The usual clock, the highest temperature, and every bit of throttling that was set."""
        clocks = [state.clock_hertz for state in self._states if state.clock_hertz is not None]
        heats = [state.celsius for state in self._states if state.celsius is not None]
        bits = [state.throttled for state in self._states if state.throttled is not None]
        throttled = functools.reduce(operator.or_, bits) if bits else None
        return State(statistics.median(clocks) if clocks else None, max(heats, default=None), throttled)


@contextmanager
def watched(
    machine: Machine, source: PowerSource | None = None, *, every_seconds: float | None
) -> Iterator[Watch]:
    """The block runs while a thread samples; without an interval, whoever runs in it samples."""
    watch, ended = Watch(machine, source), threading.Event()

    def keep_sampling() -> None:
        while not ended.wait(every_seconds):
            watch.sample()

    if source is not None:
        watch.sample()
    thread = threading.Thread(target=keep_sampling, daemon=True)
    if every_seconds is not None:
        thread.start()
    try:
        yield watch
    finally:
        ended.set()
        if thread.is_alive():
            thread.join()
        watch.sample()


TIME_LIMIT_SECONDS = 600.0
SLOWED_SHARE = 0.97
"""Of the highest clock seen: below it, a part is measured again."""

MOST_ATTEMPTS = 3
COOL_SECONDS = 60.0
"""The longest pause before another attempt."""

COOLED_BY_CELSIUS = 8.0
MARKER_PULSES, MARKER_SECONDS = 3, 1.0
"""Of full load, with pauses as long: by them a meter's log is brought to the machine's clock."""

_POLL_SECONDS = 2.0
_TRANSFERS, _POWER = "transfers", "power"


@dataclass(frozen=True, slots=True)
class Settings:
    """How to calibrate.

    Attributes:
        time_limit_seconds: for all sessions on one file together.
        power: the sensor to use by name; ``None``: the best one that there is; ``none``: none.
        ask_watts: asked what a meter shows during a phase, by its name; ``None``: nobody is there to tell.
        markers: go through the power phases for a meter's log, even without a sensor.
        phase_seconds: of each power phase.
        cool_seconds: the longest pause before a part is measured again.
        sample_seconds: between samples of the sensors; ``None``: the bench samples.
        storage: what is written to, for people; empty: nothing is.
    """

    time_limit_seconds: float = TIME_LIMIT_SECONDS
    power: str | None = None
    ask_watts: Callable[[str], float | None] | None = None
    markers: bool = False
    phase_seconds: float = 10.0
    cool_seconds: float = COOL_SECONDS
    sample_seconds: float | None = 1.0
    storage: str = ""


@dataclass(frozen=True, slots=True)
class _Part:
    """``name`` of the file's ``done``; a step's net, role and threads where it is one."""

    name: str
    net: str = ""
    role: str = FIT
    threads: int = 0


def parts_of(threads: int, *, storage: bool, power: bool) -> tuple[_Part, ...]:
    """All there is to measure, the most telling first."""
    counts = (threads, 1) if threads > 1 else (1,)
    steps: list[_Part] = []
    for count in counts:
        steps += [_step(f"{kind}-{size}", FIT, count) for size in FIT_SIZES[:2] for kind in FIT_KINDS]
        steps += [_step(net.name, JUDGE, count) for net in JUDGING_NETS]
    for count in counts:
        steps += [_step(f"{kind}-{size}", FIT, count) for size in FIT_SIZES[2:] for kind in FIT_KINDS]
    early = 2 * len(FIT_KINDS) + len(JUDGING_NETS)
    others = [_Part(_TRANSFERS)] * storage + [_Part(_POWER)] * power
    return (*steps[:early], *others, *steps[early:])


def _step(net: str, role: str, threads: int) -> _Part:
    return _Part(f"{net} at {threads}", net, role, threads)


def calibrate(
    machine: Machine, bench: Bench, path: Path, settings: Settings, tell: Callable[[str], None]
) -> Measurements:
    """Measure what the file at ``path`` does not have yet; the file after the last part.

    Args:
        machine: whose sensors are read.
        bench: what runs.
        path: of the raw file, new, or of an earlier calibration of this machine.
        settings: limits, power, storage.
        tell: is given a line now and then.

    Raises:
        InputError: the file is of another machine, or cannot be written.
    """
    return _Calibration(machine, bench, path, settings, tell).run()


class _Calibration:
    def __init__(
        self, machine: Machine, bench: Bench, path: Path, settings: Settings, tell: Callable[[str], None]
    ) -> None:
        self.machine, self.bench, self.path = machine, bench, path
        self.settings, self.tell = settings, tell
        self.source = _chosen_source(machine, settings.power)
        self.found = self._begun(machine.host(torch=bench.torch, threads=bench.threads))
        asks = settings.ask_watts is not None or settings.markers
        self.parts = parts_of(
            bench.threads, storage=bool(settings.storage), power=self.source is not None or asks
        )
        self.longest_seconds = 0.0
        self.encoded: dict[int, str] = {}

    def _begun(self, host: Host) -> Measurements:
        if not self.path.exists():
            date = time.strftime("%Y-%m-%d", time.gmtime(self.machine.wall()))
            return Measurements(host, date, storage=self.settings.storage)
        return read_own(self.path, host)

    def run(self) -> Measurements:
        waiting = [part for part in self.parts if part.name not in self.found.done]
        if self.found.done:
            self.tell(f"going on: {len(self.parts) - len(waiting)} of {len(self.parts)} parts are done")
        for number, part in enumerate(waiting, len(self.parts) - len(waiting) + 1):
            begin = self.machine.clock()
            if not self._has_time():
                break
            self.tell(f"{number} of {len(self.parts)}: {part.name} ({self.found.spent_seconds:.0f} s so far)")
            changed = self._measured(part)
            spent_seconds = self.machine.clock() - begin
            self.longest_seconds = max(self.longest_seconds, spent_seconds)
            self.found = replace(
                changed, done=(*changed.done, part.name), spent_seconds=changed.spent_seconds + spent_seconds
            )
            self._write()
        self._write()
        return self.found

    def _has_time(self) -> bool:
        left_seconds = self.settings.time_limit_seconds - self.found.spent_seconds
        return left_seconds > 0 and left_seconds >= self.longest_seconds

    def _write(self) -> None:
        self.found = replace(self.found, warnings=tuple(self._warnings()))
        write_measurements(self.path, self.found, self.encoded)

    def _measured(self, part: _Part) -> Measurements:
        if part.name == _TRANSFERS:
            try:
                return replace(self.found, transfers=self.bench.transfers(lambda: None))
            except PoetError as error:
                self.tell(f"the storage could not be measured: {error}")
                return self.found
        if part.name == _POWER:
            return replace(self.found, phases=tuple(self._phases()))
        return replace(self.found, steps=(*self.found.steps, self._steady_step(part)))

    # --- steps ------------------------------------------------------------------------------

    def _steady_step(self, part: _Part) -> StepTime:
        """The attempt at the highest clock; only one where nothing slowed it."""
        made: list[StepTime] = []
        for attempt in range(1, MOST_ATTEMPTS + 1):
            before = self.machine.state()
            with watched(self.machine, every_seconds=self.settings.sample_seconds) as watch:
                ops, busy_ratio = self.bench.step(part.net, part.threads, watch.sample)
            after = watch.state
            step = StepTime(part.net, part.role, part.threads, ops, busy_ratio, before, after, attempt)
            made.append(replace(step, slowed=self._is_slowed(after, made)))
            if not made[-1].slowed or attempt == MOST_ATTEMPTS or not self._has_time():
                break
            self._cool(after)
        best = max(made, key=lambda step: (not step.slowed, step.after.clock_hertz or 0.0, -step.seconds))
        return replace(best, attempts=len(made))

    def _is_slowed(self, state: State, made: list[StepTime]) -> bool:
        highest = max((step.after.clock_hertz or 0.0 for step in (*self.found.steps, *made)), default=0.0)
        return state.is_throttled or (state.clock_hertz or math.inf) < SLOWED_SHARE * highest

    def _cool(self, hot: State) -> None:
        """Wait until the machine is cooler and no longer throttled, or as long as is allowed."""
        at = "" if hot.celsius is None else f" at {hot.celsius:.0f} °C"
        self.tell(f"  slowed down{at}; waiting for up to {self.settings.cool_seconds:.0f} s, then again")
        end = self.machine.clock() + self.settings.cool_seconds
        while self.machine.clock() < end:
            self.machine.sleep(_POLL_SECONDS)
            now = self.machine.state()
            cooler = (
                hot.celsius is None or now.celsius is None or now.celsius <= hot.celsius - COOLED_BY_CELSIUS
            )
            if cooler and not now.is_throttled and hot.celsius is not None:
                return

    # --- power ------------------------------------------------------------------------------

    def _phases(self) -> Iterator[PowerPhase]:
        if self.settings.markers:
            for _ in range(MARKER_PULSES):
                yield self._phase("marker", MARKER_SECONDS)
                self.machine.sleep(MARKER_SECONDS)
        kinds = [kind for kind in LOADS if self.settings.storage or kind not in ("read", "write")]
        for kind in ("idle", *kinds, "idle"):
            self.tell(f"  power: {kind} for {self.settings.phase_seconds:.0f} s")
            yield self._phase(kind, self.settings.phase_seconds)

    def _phase(self, kind: str, seconds: float) -> PowerPhase:
        begin = self.machine.wall()
        source = None if self.settings.ask_watts is not None else self.source
        with watched(self.machine, source, every_seconds=self.settings.sample_seconds) as watch:
            if kind == "idle":
                self._rest(seconds, watch)
            else:
                self.bench.load("matmul" if kind == "marker" else kind, seconds, watch.sample)
        end = self.machine.wall()
        if self.settings.ask_watts is not None and kind != "marker":
            watts = self.settings.ask_watts(kind)
            return PowerPhase(kind, begin, end, watts, "typed in", "the meter's place", "measured")
        if source is None or kind == "marker":
            return PowerPhase(kind, begin, end)
        return PowerPhase(kind, begin, end, watch.mean_watts, source.name, source.rail, source.kind)

    def _rest(self, seconds: float, watch: Watch) -> None:
        end = self.machine.clock() + seconds
        while (left_seconds := end - self.machine.clock()) > 0:
            self.machine.sleep(min(1.0, left_seconds))
            if self.settings.sample_seconds is None:
                watch.sample()

    # --- what may have gone wrong -------------------------------------------------------------

    def _warnings(self) -> Iterator[str]:
        """Sentences that follow from what the file holds, so that a resumed one has the same."""
        found = self.found
        missing = [part.name for part in self.parts if part.name not in found.done]
        if missing:
            yield (
                f"{len(missing)} of {len(self.parts)} parts are not measured; the same command with a longer "
                "--time-limit goes on"
            )
        slowed = sorted({step.name for step in found.steps if step.slowed})
        if slowed:
            yield f"the machine was slowed down during {', '.join(slowed)}: cool it, or state its lower clock"
        busy = [step for step in found.steps if step.was_busy]
        if busy:
            yield (
                f"the machine was busy with other things during {len(busy)} of {len(found.steps)} steps: "
                "times are processor time, in caches that others used as well"
            )
        seen = functools.reduce(operator.or_, (step.after.throttled or 0 for step in found.steps), 0)
        bits = seen >> 16 | seen
        if bits & UNDER_VOLTAGE:
            yield "the firmware has seen too little voltage: use a better supply, and measure again"
        elif bits & THROTTLED and not slowed:
            yield f"since it was started the board has been {throttle_words(bits & 0xF)}"
        if _TRANSFERS in found.done and not found.transfers:
            yield "the storage could not be measured"
        if not any(phase.watts is not None for phase in found.phases):
            yield (
                "no power was measured: no sensor was found or none was wanted; "
                "fit takes watts from a meter's log (--meter), typed in (--watts), or from the base profile"
            )


def _chosen_source(machine: Machine, wanted: str | None) -> PowerSource | None:
    if wanted == "none":
        return None
    sources = power_sources(machine)
    if wanted is None:
        return sources[0] if sources else None
    for source in sources:
        if source.name == wanted:
            return source
    there = ", ".join(source.name for source in sources) or "none"
    raise InputError(f"--power {wanted}: there is no such sensor here (sensors that can be read: {there})")
