"""Power sensors of a Linux machine, read below the root of a `Machine`, and energy over a span of time.

A source gives joules that only grow (RAPL) or watts at a moment (all others), which are summed over time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from poet.devices.machine import Machine

PMIC_FACTOR, PMIC_WATTS = 1.1451, 0.5879
"""A Raspberry Pi 5's rails times the one plus the other are what its input draws: a fit by the board's owners
to a USB meter (pitop's guide, "Power tab"). The rails alone leave out what their converter loses."""

_CHIPS = re.compile(r"ina2\d\d|ina3221|ina2xx|ltc\d+|pac19\d\d|isl28022|max\d+")
"""Names of hwmon chips that measure a supply; those of fans and GPUs are no part of it."""

_WHOLE_INPUT = re.compile(r"VDD_IN|POM_5V_IN|5V_IN|VIN_SYS", re.IGNORECASE)
"""Labels of the channel that has all others behind it."""


@dataclass(frozen=True, slots=True)
class PowerSource:
    """A sensor.

    Attributes:
        name: as a user chooses it: ``hwmon``, ``pmic``, ``battery``, ``rapl``.
        rail: what it measures.
        kind: of figures that come from it: ``measured``, or ``derived`` where a fit is between.
        watts: now; ``None``: it counts joules, or cannot be read.
        counted_joules: of each counter since some moment, and where it wraps; ``None``: it gives watts.
    """

    name: str
    rail: str
    kind: str
    watts: Callable[[], float | None] | None = None
    counted_joules: Callable[[], list[tuple[float, float]] | None] | None = None


def power_sources(machine: Machine) -> tuple[PowerSource, ...]:
    """Those that can be read now, the nearest to the board's whole input first."""
    found = (_hwmon(machine), _pmic(machine), _battery(machine), _rapl(machine))
    return tuple(source for source in found if source is not None)


class EnergyMeter:
    """Sums up what a source gives; `sample` often."""

    def __init__(self, source: PowerSource, clock: Callable[[], float]) -> None:
        self.source, self._clock = source, clock
        self.joules, self.samples = 0.0, 0
        self._watts: tuple[float, float] | None = None  # at the last sample: seconds, watts
        self._counts: list[float] | None = None  # likewise: joules of each counter
        self._begin = self._end = clock()

    def sample(self) -> None:
        """Read the source once."""
        now = self._clock()
        if not (self._count() if self.source.counted_joules is not None else self._integrate(now)):
            return
        if not self.samples:
            self._begin = now
        self._end = now
        self.samples += 1

    def _count(self) -> bool:
        counted = None if self.source.counted_joules is None else self.source.counted_joules()
        if counted is None:
            return False
        for (joules, wrap), before in zip(counted, self._counts or (), strict=False):
            self.joules += (joules - before) % wrap if wrap else max(0.0, joules - before)
        self._counts = [joules for joules, _ in counted]
        return True

    def _integrate(self, now: float) -> bool:
        watts = None if self.source.watts is None else self.source.watts()
        if watts is None:
            return False
        if self._watts is not None:
            self.joules += 0.5 * (watts + self._watts[1]) * (now - self._watts[0])
        self._watts = now, watts
        return True

    @property
    def mean_watts(self) -> float | None:
        """From the first sample to the last; ``None``: there were not two."""
        spent_seconds = self._end - self._begin
        return self.joules / spent_seconds if self.samples > 1 and spent_seconds > 0 else None


def _hwmon(machine: Machine) -> PowerSource | None:
    for chip in machine.folders("sys/class/hwmon", r"hwmon\d+"):
        name = machine.text(f"{chip}/name") or ""
        if not _CHIPS.fullmatch(name):
            continue
        channels = _channels(machine, chip)
        whole = [channel for channel in channels if _WHOLE_INPUT.search(channel[0])]
        used = whole[:1] or channels
        if used:
            labels = " + ".join(label for label, _ in used)
            return PowerSource("hwmon", f"{name}: {labels}", "measured", watts=_sum([r for _, r in used]))
    return None


def _channels(machine: Machine, chip: str) -> list[tuple[str, Callable[[], float | None]]]:
    """Label and reading of each channel that gives power, or voltage and current."""
    found = []
    for number in range(1, 9):
        power, current = f"{chip}/power{number}_input", f"{chip}/curr{number}_input"
        label = machine.text(f"{chip}/in{number}_label") or machine.text(f"{chip}/power{number}_label")
        if machine.number(power) is not None:
            found.append((label or f"channel {number}", _scaled(machine, 1e-6, power)))
        elif machine.number(current) is not None:
            # the bus voltage is in1 of chips with one channel, beside a shunt's in0, and in[n] of the others
            voltage = f"{chip}/in{number}_input"
            if machine.number(voltage) is not None:
                found.append((label or f"channel {number}", _scaled(machine, 1e-6, voltage, current)))
    return found


def _battery(machine: Machine) -> PowerSource | None:
    for supply in machine.folders("sys/class/power_supply", r"[^/]+"):
        is_battery = machine.text(f"{supply}/type") == "Battery"
        if not is_battery or machine.text(f"{supply}/status") != "Discharging":
            continue  # while it charges, its current is not what the machine draws
        title = f"battery {supply.rpartition('/')[2]}"
        if machine.number(f"{supply}/power_now") is not None:
            return PowerSource(
                "battery", title, "measured", watts=_scaled(machine, 1e-6, f"{supply}/power_now")
            )
        both = f"{supply}/voltage_now", f"{supply}/current_now"
        if all(machine.number(path) is not None for path in both):
            return PowerSource("battery", title, "measured", watts=_scaled(machine, 1e-12, *both))
    return None


def _rapl(machine: Machine) -> PowerSource | None:
    zones = machine.folders("sys/class/powercap", r"intel-rapl:\d+(:\d+)?")
    used = [zone for zone in zones if re.match(r"package|dram|psys", machine.text(f"{zone}/name") or "")]
    whole = [zone for zone in used if machine.text(f"{zone}/name") == "psys"]
    used = whole or used  # the platform's counter has the others in it
    if not used or machine.number(f"{used[0]}/energy_uj") is None:
        return None

    def counted() -> list[tuple[float, float]] | None:
        pairs = [
            (machine.number(f"{zone}/energy_uj"), machine.number(f"{zone}/max_energy_range_uj"))
            for zone in used
        ]
        known = [(1e-6 * joules, 1e-6 * (wrap or 0.0)) for joules, wrap in pairs if joules is not None]
        return known if len(known) == len(pairs) else None

    rail = " + ".join(machine.text(f"{zone}/name") or "" for zone in used)
    return PowerSource("rapl", f"RAPL: {rail}", "measured", counted_joules=counted)


def _pmic(machine: Machine) -> PowerSource | None:
    if not _rails(machine):
        return None

    def watts() -> float | None:
        rails = _rails(machine)
        return PMIC_FACTOR * sum(rails.values()) + PMIC_WATTS if rails else None

    return PowerSource("pmic", "Raspberry Pi 5, all rails of its power chip", "derived", watts=watts)


def _rails(machine: Machine) -> dict[str, float]:
    """Watts of each rail that has a current and a voltage."""
    told = machine.command("vcgencmd", "pmic_read_adc") or ""
    currents = dict(re.findall(r"(\w+)_A current\(\d+\)=(\d+\.?\d*)A", told))
    voltages = dict(re.findall(r"(\w+)_V volt\(\d+\)=(\d+\.?\d*)V", told))
    return {rail: float(currents[rail]) * float(voltages[rail]) for rail in currents.keys() & voltages.keys()}


def _scaled(machine: Machine, factor: float, *paths: str) -> Callable[[], float | None]:
    """The product of what the files hold, as an amount."""

    def read() -> float | None:
        product = factor
        for path in paths:
            found = machine.number(path)
            if found is None:
                return None
            product *= found
        return abs(product)  # discharging counts as negative in some drivers

    return read


def _sum(readings: list[Callable[[], float | None]]) -> Callable[[], float | None]:
    def read() -> float | None:
        found = [reading() for reading in readings]
        known = [amount for amount in found if amount is not None]
        return sum(known) if len(known) == len(found) else None

    return read
