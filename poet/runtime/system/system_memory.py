"""What the system leaves a process: limits of its control groups, available memory, pressure.

Read from ``/proc`` and ``/sys`` (proc(5), the kernel's pages on cgroup v2, on cgroup v1 and on pressure stall
information). What a system does not have is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from poet.errors import PoetError


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """One look at the system.

    Attributes:
        room_bytes: that the process may still take, by the tightest of all that was read.
        bound_by: for people, what that was.
        stalled_share: of the last ten seconds, how much some task of the control group, or of the system
            where the group does not say it, stood still for memory; ``None``: the kernel does not say it.
    """

    room_bytes: int
    bound_by: str
    stalled_share: float | None


_UNLIMITED_BYTES = 1 << 60


class SystemMemory:
    """Reads what is left; the roots may be folders that look like those of a system."""

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc, self._groups = proc, sys / "fs" / "cgroup"

    def read(self) -> MemoryReading:
        """What is left now.

        Raises:
            PoetError: the system says nothing about its memory.
        """
        rooms = [*self._group_rooms(), *self._available()]
        if not rooms:
            raise PoetError(
                f"{self._proc / 'meminfo'} does not say what memory is available: watching needs Linux"
            )
        room_bytes, bound_by = min(rooms)
        return MemoryReading(max(0, room_bytes), bound_by, self._stalled_share())

    def _available(self) -> Iterator[tuple[int, str]]:
        for line in _lines(self._proc / "meminfo"):
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024, "the system's available memory"

    def _group_rooms(self) -> Iterator[tuple[int, str]]:
        """Of each control group that the process is in, what its limits leave.

        Pages of files that were not used lately are reclaimed before a limit strikes, so they count as free.
        """
        for folder in self._own_groups():
            used_bytes = next((int(line) for line in _lines(folder / "memory.current")), None)
            if used_bytes is None:
                continue
            statistics = (line.split() for line in _lines(folder / "memory.stat"))
            files_bytes = next((int(words[1]) for words in statistics if words[0] == "inactive_file"), 0)
            for name in ("memory.max", "memory.high"):
                for limit in _lines(folder / name):
                    if limit != "max":
                        yield int(limit) - used_bytes + files_bytes, f"{name} of control group {folder.name}"
        yield from self._first_group_rooms()

    def _first_group_rooms(self) -> Iterator[tuple[int, str]]:
        """Likewise of control groups v1, as older systems have them; where there is no limit it is huge."""
        for folder in self._own_groups("memory"):
            used = [int(line) for line in _lines(folder / "memory.usage_in_bytes")]
            limits = [int(line) for line in _lines(folder / "memory.limit_in_bytes")]
            if not used or not limits or limits[0] >= _UNLIMITED_BYTES:
                continue
            statistics = (line.split() for line in _lines(folder / "memory.stat"))
            files_bytes = next(
                (int(words[1]) for words in statistics if words[0] == "total_inactive_file"), 0
            )
            yield limits[0] - used[0] + files_bytes, f"memory.limit_in_bytes of control group {folder.name}"

    def _own_groups(self, controller: str = "") -> Iterator[Path]:
        """From the process's own control group upwards; with a ``controller``, in its hierarchy of v1."""
        lines = (line.split(":", 2) for line in _lines(self._proc / "self" / "cgroup"))
        own = next(
            (words[2] for words in lines if len(words) == 3 and controller in words[1].split(",")), None
        )
        if own is None:
            return
        parts = [part for part in own.split("/") if part not in ("", "..")]
        for length in range(len(parts), -1, -1):
            yield self._groups.joinpath(controller, *parts[:length])

    def _stalled_share(self) -> float | None:
        own = next(self._own_groups(), None)
        files = (self._proc / "pressure" / "memory",)
        for path in files if own is None else (own / "memory.pressure", *files):
            for line in _lines(path):
                kind, *figures = line.split()
                found = dict(figure.split("=") for figure in figures)
                if kind == "some" and "avg10" in found:
                    return float(found["avg10"]) / 100.0
        return None


def _lines(path: Path) -> list[str]:
    """Of a small file of the kernel; none where it is not there or may not be read."""
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError:
        return []
