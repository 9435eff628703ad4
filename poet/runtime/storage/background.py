"""Transfers beside compute: one thread that serves a page file in the order in which it is asked.

Python's lock is released while bytes move, so ops run meanwhile. Whoever asks goes on at once and waits
only for the buffer that it needs next; `poet.runtime.steps.program` knows where that is. A source is held
until it has been written and a target from the moment it is asked for, which is how the simulator counts
them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from poet.errors import PageFileError
from poet.runtime.storage.page_file import PageFile
from poet.runtime.storage.transfers import ChangeRow

_STACK_BYTES = 256 * 1024
"""Of the thread: it only moves bytes, and the default of 8 MiB would count against a data limit."""


class Pager(Protocol):
    """What a replayed schedule asks for: a `PageFile`, which is done when it returns, or `Background`."""

    @property
    def is_background(self) -> bool:
        """Whether `wait` has to be called before what was asked for can be relied on."""

    def write(self, tensor: str, data: memoryview) -> None:
        """Copy ``data`` to the slot of ``tensor``."""

    def read_into(self, tensor: str, target: memoryview) -> None:
        """Fill ``target`` with what was last written for ``tensor``."""

    def read_row(self, tensor: str, row: int, target: memoryview) -> None:
        """Fill ``target`` with one row of what was last written for ``tensor``, before it returns."""

    def change_row(self, tensor: str, row: int, change: ChangeRow) -> None:
        """Write one row of ``tensor`` as ``change`` leaves it, before it returns."""

    def wait(self, tensor: str) -> None:
        """Until the last transfer of ``tensor`` is done; raises what it raised."""

    def drain(self) -> None:
        """Until every transfer is done; raises what the first that failed raised."""

    def give_up(self) -> frozenset[str]:
        """`drain` for a step that is not gone on with; the tensors whose targets were not filled."""

    def close(self) -> None:
        """Ask for nothing any more; a second call does nothing."""


class Timed:
    """A pager that counts for how long whoever asked stood still; it does what ``pager`` does.

    Attributes:
        waited_seconds: wall clock less processor time of the calls so far.
    """

    def __init__(self, pager: Pager) -> None:
        self._pager = pager
        self.waited_seconds = 0.0

    @property
    def is_background(self) -> bool:
        """See `Pager`."""
        return self._pager.is_background

    def write(self, tensor: str, data: memoryview) -> None:
        """See `Pager`."""
        self._timed(self._pager.write, tensor, data)

    def read_into(self, tensor: str, target: memoryview) -> None:
        """See `Pager`."""
        self._timed(self._pager.read_into, tensor, target)

    def read_row(self, tensor: str, row: int, target: memoryview) -> None:
        """See `Pager`."""
        self._timed(self._pager.read_row, tensor, row, target)

    def change_row(self, tensor: str, row: int, change: ChangeRow) -> None:
        """See `Pager`."""
        self._timed(self._pager.change_row, tensor, row, change)

    def wait(self, tensor: str) -> None:
        """See `Pager`."""
        self._timed(self._pager.wait, tensor)

    def drain(self) -> None:
        """See `Pager`."""
        self._timed(self._pager.drain)

    def give_up(self) -> frozenset[str]:
        """See `Pager`."""
        return self._pager.give_up()

    def close(self) -> None:
        """See `Pager`."""
        self._pager.close()

    def _timed(self, transfer: Callable[..., None], *given: object) -> None:
        began, busy_seconds = time.perf_counter(), -time.thread_time()
        try:
            transfer(*given)
        finally:
            busy_seconds += time.thread_time()
            self.waited_seconds += max(0.0, time.perf_counter() - began - busy_seconds)


@dataclass(slots=True)
class _Job:
    """A transfer that was asked for; ``memory`` is let go before ``is_done``."""

    move: Callable[[str, memoryview], None]
    tensor: str
    memory: memoryview | None
    is_done: threading.Event
    is_read: bool = False
    error: BaseException | None = None

    def run(self) -> BaseException | None:
        """Move the bytes; hands out what went wrong."""
        assert self.memory is not None
        try:
            self.move(self.tensor, self.memory)
        except BaseException as error:
            return error.with_traceback(None)  # its frames would keep the memory
        return None

    def end(self, error: BaseException | None) -> None:
        """Let the memory go and whoever waits."""
        self.error, self.memory = error, None
        self.is_done.set()


class Background:
    """Serves ``pages`` from a thread of its own, one transfer after the other."""

    is_background = True

    def __init__(self, pages: PageFile) -> None:
        self._pages = pages
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._last: dict[str, _Job] = {}
        self._error: BaseException | None = None
        self._unread: set[str] = set()
        self._thread: threading.Thread | None = None  # started by the first transfer
        self._is_closed = False

    def write(self, tensor: str, data: memoryview) -> None:
        """Ask for ``data`` to be copied to the slot of ``tensor``; it must not change before `wait`.

        Raises:
            PageFileError: an earlier transfer has failed.
        """
        self._ask(_Job(self._pages.write, tensor, data, threading.Event()))

    def read_into(self, tensor: str, target: memoryview) -> None:
        """Ask for ``target`` to be filled; it must not be used before `wait`.

        Raises:
            PageFileError: an earlier transfer has failed.
        """
        self._ask(_Job(self._pages.read_into, tensor, target, threading.Event(), is_read=True))

    def read_row(self, tensor: str, row: int, target: memoryview) -> None:
        """Fill ``target``, once what was asked for before is done.

        Raises:
            PageFileError: that failed, or an earlier transfer.
        """
        self.drain()
        self._pages.read_row(tensor, row, target)

    def change_row(self, tensor: str, row: int, change: ChangeRow) -> None:
        """Change the row, once what was asked for before is done.

        Raises:
            PageFileError: that failed, or an earlier transfer.
        """
        self.drain()
        self._pages.change_row(tensor, row, change)

    def wait(self, tensor: str) -> None:
        """Until what was last asked for ``tensor`` is done.

        Raises:
            PageFileError: it failed.
        """
        job = self._last.pop(tensor, None)
        if job is not None:
            job.is_done.wait()
            if job.error is not None:
                raise job.error

    def drain(self) -> None:
        """Until everything that was asked for is done.

        Raises:
            PageFileError: something failed.
        """
        self._drain()
        if self._error is not None:
            raise self._error

    def give_up(self) -> frozenset[str]:
        """`drain` for a step that is not gone on with; the tensors whose targets were not filled."""
        self._drain()
        unread, self._unread, self._error = frozenset(self._unread), set(), None
        return unread

    def close(self) -> None:
        """End the thread; a second call does nothing."""
        self._is_closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _ask(self, job: _Job) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise PageFileError(f"page file {self._pages.path}: it is closed")
        self._thread = self._thread or _started(self._serve)
        self._last[job.tensor] = job
        self._jobs.put(job)

    def _drain(self) -> None:
        if self._thread is not None:
            last = _Job(_nothing, "", memoryview(b""), threading.Event())
            self._jobs.put(last)
            last.is_done.wait()
        self._last.clear()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._error = self._error or job.run()  # after a failure nothing is moved, and all get the error
            if self._error is not None and job.is_read:
                self._unread.add(job.tensor)
            job.end(self._error)
            del job


def _nothing(tensor: str, memory: memoryview) -> None:
    del tensor, memory


def _started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="poet transfers", daemon=True)
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread.start()
    finally:
        threading.stack_size(before)
    return thread
