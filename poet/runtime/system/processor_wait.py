"""What a call takes without the time for which its thread waited for a processor that others had."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_SCHEDULED = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a processor, nanoseconds waiting for one while ready to run, and turns; Linux's
Documentation/scheduler/sched-stats.rst."""


class UndisturbedClock:
    """Seconds of calls of the thread that made it; where its waits are not told, by the wall clock."""

    def __init__(self, path: Path = _SCHEDULED) -> None:
        try:
            self._file: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def seconds(self, call: Callable[[], object]) -> float:
        """Of ``call``: what it waited for storage counts, what it waited for a processor does not."""
        begin = time.perf_counter()
        waited = self._waited_seconds()
        call()
        waited = self._waited_seconds() - waited
        return max(time.perf_counter() - begin - waited, 0.0)

    def _waited_seconds(self) -> float:
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, 96, 0).split()[1]) * 1e-9
        except (OSError, ValueError, IndexError):
            return 0.0
