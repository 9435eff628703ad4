"""What the machine's sensors say while something runs on it."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from poet.devices.machine import Machine, State
from poet.devices.power import EnergyMeter, PowerSource


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
        throttled = None
        if bits:
            throttled = 0
            for each in bits:
                throttled |= each
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

    watch.sample() if source is not None else None
    thread = None if every_seconds is None else threading.Thread(target=keep_sampling, daemon=True)
    if thread is not None:
        thread.start()
    try:
        yield watch
    finally:
        ended.set()
        if thread is not None:
            thread.join()
        watch.sample()
