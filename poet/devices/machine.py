"""What Linux tells about the machine: processor, clocks, temperature, throttling, power. No torch.

Everything is read below a root folder and timed by clocks that the caller gives, so that a test can put a
machine of files in its place.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

_CPUS = "sys/devices/system/cpu"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MOST_TEXT = 1 << 20
_COMMAND_SECONDS = 5.0
_SAME_RAM = 0.02
UNDER_VOLTAGE, CAPPED, THROTTLED, SOFT_LIMIT = 1, 2, 4, 8
"""Bits of ``vcgencmd get_throttled`` that hold now; shifted by 16: since the board was started
(raspberrypi/documentation, os/graphics-utilities, "get_throttled")."""

THROTTLE_WORDS = {
    UNDER_VOLTAGE: "too little voltage",
    CAPPED: "clock capped",
    THROTTLED: "throttled",
    SOFT_LIMIT: "at the soft temperature limit",
}


@dataclass(frozen=True, slots=True)
class State:
    """Of a machine at one moment; ``None``: it does not tell.

    Attributes:
        clock_hertz: of the fastest core.
        celsius: of the hottest zone.
        throttled: bits, as `UNDER_VOLTAGE` and its kin.
    """

    clock_hertz: float | None = None
    celsius: float | None = None
    throttled: int | None = None

    @property
    def is_throttled(self) -> bool:
        """Now, by the firmware's word."""
        return bool((self.throttled or 0) & 0xF)


UNKNOWN = State()


@dataclass(frozen=True, slots=True)
class Host:
    """Which machine it is.

    Attributes:
        title: of the board, or of the processor.
        architecture: as ``uname -m`` has it.
        system: kernel's release.
        cores: that are online.
        clock_hertz: the most that a core may have; ``None``: not told.
        cache_bytes: of the largest cache; ``None``: not told.
        ram_bytes: in all.
        torch: its version; empty where none was asked.
        threads: of torch by default.
    """

    title: str
    architecture: str
    system: str
    cores: int
    ram_bytes: int
    clock_hertz: float | None = None
    cache_bytes: int | None = None
    torch: str = ""
    threads: int = 1

    def contradictions(self, other: Host, *, any_threads: bool = False) -> list[str]:
        """What tells people that ``other`` is another machine, or has another torch or other threads.

        Another kernel makes no other machine, nor does a little more or less RAM: of that kernels keep some.
        """
        ignored = ("system", "ram_bytes", "threads") if any_threads else ("system", "ram_bytes")
        names = [field.name for field in fields(self) if field.name not in ignored]
        if abs(self.ram_bytes - other.ram_bytes) > _SAME_RAM * max(self.ram_bytes, other.ram_bytes):
            names.append("ram_bytes")
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in names)
        return [f"{name} {mine!r}, here {theirs!r}" for name, mine, theirs in pairs if mine != theirs]


class Machine:
    """A Linux machine below a root folder.

    Attributes:
        root: ``/``, or a folder that stands for it.
        clock: seconds that never go back.
        wall: seconds since 1970, to meet a meter's log.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.root, self.clock, self.wall, self.sleep = root, clock, wall, sleep

    def text(self, path: str) -> str | None:
        """Of a file below the root, without blanks and zero bytes at its ends; ``None``: not readable."""
        try:
            with (self.root / path).open("rb") as file:
                return file.read(_MOST_TEXT).decode("utf-8", "replace").strip("\0 \t\r\n")
        except OSError:
            return None

    def number(self, path: str) -> float | None:
        """The number that a file holds."""
        try:
            return float(self.text(path) or "")
        except ValueError:
            return None

    def folders(self, path: str, pattern: str) -> list[str]:
        """Paths below the root of what is in a folder and matches, sorted."""
        try:
            names = sorted(entry.name for entry in (self.root / path).iterdir())
        except OSError:
            return []
        return [f"{path}/{name}" for name in names if re.fullmatch(pattern, name)]

    def command(self, name: str, *arguments: str) -> str | None:
        """What a program in ``usr/bin`` prints; ``None``: there is none, or it fails."""
        program = self.root / "usr" / "bin" / name
        if not program.is_file():
            return None
        try:
            done = subprocess.run(
                [str(program), *arguments],
                capture_output=True, text=True, errors="replace", timeout=_COMMAND_SECONDS, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout

    def state(self) -> State:
        """Clock, temperature and throttling now."""
        clocks = [self.number(f"{cpu}/cpufreq/scaling_cur_freq") for cpu in self._cpus()]
        zones = [
            self.number(f"{zone}/temp") for zone in self.folders("sys/class/thermal", r"thermal_zone\d+")
        ]
        return State(
            max((1e3 * clock for clock in clocks if clock), default=None),
            max((zone / 1e3 for zone in zones if zone is not None), default=None),
            self._throttled(),
        )

    def host(self, *, torch: str = "", threads: int = 1) -> Host:
        """Which machine this is; with the version and threads of the torch that is to be measured."""
        clocks = [self.number(f"{cpu}/cpufreq/cpuinfo_max_freq") for cpu in self._cpus()]
        return Host(
            title=self._title(),
            architecture=self.text("proc/sys/kernel/arch") or "",
            system=self.text("proc/sys/kernel/osrelease") or "",
            cores=max(1, len(self._cpus())),
            ram_bytes=self._ram_bytes(),
            clock_hertz=max((1e3 * clock for clock in clocks if clock), default=None),
            cache_bytes=max(self._caches(), default=None),
            torch=torch,
            threads=threads,
        )

    def _cpus(self) -> list[str]:
        return self.folders(_CPUS, r"cpu\d+")

    def _title(self) -> str:
        board = self.text("proc/device-tree/model")
        found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", self.text("proc/cpuinfo") or "", re.MULTILINE)
        return board or (found[1].strip() if found else "") or "an unknown machine"

    def _ram_bytes(self) -> int:
        found = re.search(r"^MemTotal:\s*(\d+) kB", self.text("proc/meminfo") or "", re.MULTILINE)
        return int(found[1]) * 1024 if found else 0

    def _caches(self) -> Iterator[int]:
        for index in self.folders(f"{_CPUS}/cpu0/cache", r"index\d+"):
            found = re.fullmatch(r"(\d+)([KMG]?)", self.text(f"{index}/size") or "")
            if found and self.text(f"{index}/type") != "Instruction":
                yield int(found[1]) * _UNITS.get(found[2], 1)

    def _throttled(self) -> int | None:
        found = re.search(r"throttled=0x([0-9a-fA-F]{1,8})", self.command("vcgencmd", "get_throttled") or "")
        return int(found[1], 16) if found else None


def throttle_words(bits: int) -> str:
    """What the low four bits say."""
    return ", ".join(word for bit, word in THROTTLE_WORDS.items() if bits & bit)


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
