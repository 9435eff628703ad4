"""What Linux tells about the machine: processor, clocks, temperature, throttling. No torch, no privileges.

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
