"""A training that makes room when the system needs memory, and takes it again when there is some.

watcher = MemoryWatcher(trainer)
for inputs, targets in batches:
watcher.look()
trainer.step(inputs, targets)
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from poet.errors import Infeasible, InputError, OutOfTime, PoetError
from poet.runtime.training.trainer import Trainer
from poet.runtime.training.training_state import Planner
from poet.util.units import format_bytes, parse_bytes


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


_log = logging.getLogger("poet.runtime")

RESERVE = "32MiB"
MOST_STALLED_SHARE = 0.1
STALLS_FORGOTTEN_SECONDS = 10.0
"""Over which the kernel averages how long tasks stood still (``avg10``)."""
_EIGHTHS = 8


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """A watcher went from one budget to another.

    Attributes:
        before_bytes, after_bytes: the budgets; the same where a better plan took the place of the guard's.
        why: for people.
    """

    before_bytes: int
    after_bytes: int
    why: str


class MemoryWatcher:
    """Looks at the system between steps and changes the trainer's budget.

    The budgets are those that the plan file has plans for, and those that `Trainer.set_budget` planned; with
    a ``planner``, every eighth of the largest one as well. The largest is taken that has room: in what the
    trainer holds and what the system leaves beside a reserve. A budget without room is left at once, a larger
    one is taken when it had room for ``calm_seconds``; a change that need not be and fails is tried again
    after as long. While tasks stand still for memory, the next smaller one is taken, and then none for 10 s,
    over which the kernel's average forgets. With a ``guard``, room is made by its plan, at once; the
    ``planner`` is asked for a better one after ``calm_seconds`` without a change, once for each budget.
    """

    def __init__(
        self,
        trainer: Trainer,
        *,
        planner: Planner | None = None,
        guard: Planner | None = None,
        reserve: str | int = RESERVE,
        every_seconds: float = 1.0,
        calm_seconds: float = 30.0,
        system: SystemMemory | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to watch.

        Args:
            trainer: of a plan with a budget, opened from a file.
            planner: makes plans that the file does not have: ``poet.plan_again``.
            guard: makes them where the system wants room and a search has to wait: ``poet.plan_again`` with a
                time limit of 0, which asks an online policy. Where it fails, the planner is asked.
            reserve: memory to leave to others, in bytes or as text.
            every_seconds: `look` does nothing where the last look is less long ago.
            calm_seconds: for how long a larger budget must have had room, and between attempts that failed.
            system: what is looked at.
            clock: gives seconds that rise.

        Raises:
            InputError: the plan has no budget.
        """
        if trainer.plan.request.limits.ram_budget_bytes is None:
            raise InputError("the plan has no RAM budget, so there is none to watch; plan with ram=")
        self._trainer, self._planner, self._clock = trainer, planner, clock
        self._guard = guard
        self._searched: set[int] = set()  # budgets inside which a better plan than the guard's was searched
        self._quiet_since: float | None = None  # no change of the budget, in seconds of the clock
        self._reserve_bytes = parse_bytes(reserve) if isinstance(reserve, str) else reserve
        self._every_seconds, self._calm_seconds = every_seconds, calm_seconds
        self._system = system or SystemMemory()
        self._looked_at: float | None = None
        self._roomy_since: float | None = None
        self._waits_until = -math.inf  # before which no change is made but one that must be

    def look(self) -> BudgetChange | None:
        """Between two steps: change the budget where the system asks for it, and say so.

        Raises:
            Infeasible: the system leaves less than any plan needs; the training may be saved, and go on when
                there is more.
            ReplayError, PageFileError, OSError, RuntimeError, MemoryError: the system asked for room and the
                change failed, as of `Trainer.set_budget`; or any change did and the trainer may not go on.
        """
        now = self._clock()
        if self._looked_at is not None and now - self._looked_at < self._every_seconds:
            return None
        self._looked_at = now
        reading = self._system.read()
        room_bytes = reading.room_bytes + self._trainer.held_bytes - self._reserve_bytes
        is_stalled = (reading.stalled_share or 0.0) > MOST_STALLED_SHARE
        fitting = [size for size in self._sizes() if size <= room_bytes]
        if self._now_bytes > room_bytes:
            self._roomy_since = self._quiet_since = None
            return self._shrink(fitting, max(0, room_bytes), reading)
        if is_stalled:
            self._roomy_since = None
            smaller = [size for size in fitting if size < self._now_bytes]
            return self._relieved(smaller, reading, now) if smaller and now >= self._waits_until else None
        if not fitting or fitting[-1] <= self._now_bytes:
            self._roomy_since = None
            return self._bettered(now)
        self._roomy_since = now if self._roomy_since is None else self._roomy_since
        if now - self._roomy_since < self._calm_seconds or now < self._waits_until:
            return None
        self._roomy_since = None
        why = f"there is room for {format_bytes(room_bytes)} again"
        return self._tried(lambda: self._changed(fitting[-1], why, self._planner), now)

    @property
    def _now_bytes(self) -> int:
        return self._trainer.plan.request.limits.ram_budget_bytes or 0

    def _sizes(self) -> list[int]:
        """The budgets, rising, that may be taken."""
        known = {self._now_bytes, *self._trainer.budgets_bytes}
        if self._planner is None and self._guard is None:
            return sorted(known)
        return sorted(known | {max(known) * part // _EIGHTHS for part in range(1, _EIGHTHS)})

    def _tried(self, change: Callable[[], BudgetChange | None], now: float) -> BudgetChange | None:
        """A change that need not be: where it fails and the trainer may go on, it waits and says so.

        ``now``, in seconds, is the time of the look.
        """
        try:
            return change()
        except (PoetError, OSError, RuntimeError, MemoryError) as error:
            if not self._trainer.may_go_on:
                raise
            self._waits_until = now + self._calm_seconds
            _log.warning("poet: the budget stays %s: %s", format_bytes(self._now_bytes), error)
            return None

    def _bettered(self, now: float) -> BudgetChange | None:
        """Search at leisure for a better plan than the guard's inside the budget; ``now`` in seconds."""
        budget_bytes, planner = self._now_bytes, self._planner
        is_online = self._trainer.plan.outcome.is_online
        if planner is None or not is_online or budget_bytes in self._searched:
            return None
        self._quiet_since = now if self._quiet_since is None else self._quiet_since
        if now - self._quiet_since < self._calm_seconds or now < self._waits_until:
            return None
        self._searched.add(budget_bytes)

        def searched() -> BudgetChange | None:
            before = self._trainer.plan
            self._trainer.set_budget(budget_bytes, planner=planner)
            if self._trainer.plan == before:
                return None
            return BudgetChange(budget_bytes, budget_bytes, "a search found a better plan than the guard's")

        return self._tried(searched, now)

    def _shrink(self, fitting: list[int], room_bytes: int, reading: MemoryReading) -> BudgetChange:
        try:
            return self._first(fitting, f"{reading.bound_by} leaves {format_bytes(room_bytes)}")
        except (Infeasible, OutOfTime) as error:
            raise Infeasible(
                f"no plan fits into what the system leaves this training, {format_bytes(room_bytes)} beside "
                f"a reserve of {format_bytes(self._reserve_bytes)} ({error}); save it and go on when there "
                "is more"
            ) from None

    def _relieved(self, smaller: list[int], reading: MemoryReading, now: float) -> BudgetChange | None:
        share = reading.stalled_share or 0.0
        why = f"tasks stood still for memory for {share:.0%} of the time"
        change = self._tried(lambda: self._first(smaller, why), now)  # without one others have to give way
        if change is not None:
            self._waits_until = now + STALLS_FORGOTTEN_SECONDS
        return change

    def _first(self, sizes: list[int], why: str) -> BudgetChange:
        """Go to the largest that has a plan."""
        refused: Infeasible | OutOfTime = Infeasible(f"the smallest is {format_bytes(self._sizes()[0])}")
        for planner in (self._planner,) if self._guard is None else (self._guard, self._planner):
            for size in reversed(sizes):
                try:
                    return self._changed(size, why, planner)
                except (Infeasible, OutOfTime) as error:
                    refused = error
        raise refused

    def _changed(self, size_bytes: int, why: str, planner: Planner | None) -> BudgetChange:
        change = BudgetChange(self._now_bytes, size_bytes, why)
        self._trainer.set_budget(size_bytes, planner=planner)
        self._quiet_since = None
        _log.warning(
            "poet: %s: from a budget of %s to one of %s after step %d",
            why,
            format_bytes(change.before_bytes),
            format_bytes(size_bytes),
            self._trainer.steps,
        )
        return change
