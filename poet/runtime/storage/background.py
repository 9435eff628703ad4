"""Transfers of replayed schedules, where wanted beside compute: one thread that serves a page file in order.

Python's lock is released while bytes move, so ops run meanwhile. Whoever asks goes on at once and waits
only for the buffer that it needs next; `poet.runtime.steps.program` knows where that is. A source is held
until it has been written and a target from the moment it is asked for, which is how the simulator counts
them.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from poet.errors import PageFileError
from poet.problem import PageForm
from poet.runtime.storage.page_file import PageFile
from poet.runtime.storage.transfers import ChangeRow

_STACK_BYTES = 256 * 1024
"""Of the thread: it only moves bytes, and the default of 8 MiB would count against a data limit."""


@dataclass(slots=True)
class _Job:
    """A transfer that was asked for; ``memory`` is let go before ``is_done``."""

    move: Callable[[str, memoryview], None] | None
    tensor: str = ""
    memory: memoryview | None = None
    is_read: bool = False
    is_done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def run(self) -> BaseException | None:
        """Move the bytes; hands out what went wrong."""
        try:
            if self.move is not None and self.memory is not None:
                self.move(self.tensor, self.memory)
        except BaseException as error:
            return error.with_traceback(None)  # its frames would keep the memory
        return None

    def end(self, error: BaseException | None) -> None:
        """Let the memory go and whoever waits."""
        self.error, self.memory = error, None
        self.is_done.set()


@dataclass(slots=True)
class _Transfers:
    """What is in flight, for a `Pager` and for those that have other names."""

    jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    last: dict[str, _Job] = field(default_factory=dict)
    error: BaseException | None = None
    unread: set[str] = field(default_factory=set)
    thread: threading.Thread | None = None  # started by the first transfer
    is_closed: bool = False
    waited_seconds: float = 0.0

    def serve(self) -> None:
        while (job := self.jobs.get()) is not None:
            self.error = self.error or job.run()  # after a failure nothing is moved, and all get the error
            if self.error is not None and job.is_read:
                self.unread.add(job.tensor)
            job.end(self.error)
            del job

    def settle(self) -> None:
        """Until nothing is in flight."""
        if self.thread is not None:
            last = _Job(None)
            self.jobs.put(last)
            last.is_done.wait()
        self.last.clear()


class Pager:
    """Serves ``pages``: in a thread of its own, one transfer after the other, or before each call returns.

    Attributes:
        is_background: whether `wait` has to be called before what was asked for can be relied on.
    """

    def __init__(self, pages: PageFile, *, is_background: bool) -> None:
        self.is_background = is_background
        self._pages, self._transfers = pages, _Transfers()
        self._names: Mapping[str, str] = {}

    def renamed(self, names: Mapping[str, str]) -> Pager:
        """The same pager, for a schedule whose tensors have these names in the page file."""
        made = copy.copy(self)
        made._names = names
        return made

    @property
    def waited_seconds(self) -> float:
        """For how long whoever asked stood still so far: wall clock less processor time."""
        return self._transfers.waited_seconds

    def write(self, tensor: str, data: memoryview, form: PageForm | None = None) -> None:
        """Copy ``data`` to the slot of ``tensor``, in ``form``; in the background it must not
        change before `wait`.

        Raises:
            PageFileError: the storage refused it, or an earlier transfer has failed.
        """
        write = self._pages.write if form is None else functools.partial(self._pages.write, form=form)
        self._ask(write, tensor, data)

    def read_into(self, tensor: str, target: memoryview, form: PageForm | None = None) -> None:
        """Fill ``target`` with what was last written, in ``form``; in the background it must
        not be used before `wait`.

        Raises:
            PageFileError: that cannot be had, or an earlier transfer has failed.
        """
        read = self._pages.read_into if form is None else functools.partial(self._pages.read_into, form=form)
        self._ask(read, tensor, target, is_read=True)

    def read_row(self, tensor: str, row: int, target: memoryview) -> None:
        """Fill ``target`` with one row, once what was asked for before is done.

        Raises:
            PageFileError: that failed, or an earlier transfer.
        """
        with self._standing_still():
            self._settle()
            self._pages.read_row(self._name(tensor), row, target)

    def change_row(self, tensor: str, row: int, change: ChangeRow) -> None:
        """Write one row as ``change`` leaves it, once what was asked for before is done.

        Raises:
            PageFileError: that failed, or an earlier transfer.
        """
        with self._standing_still():
            self._settle()
            self._pages.change_row(self._name(tensor), row, change)

    def wait(self, tensor: str) -> None:
        """Until what was last asked for ``tensor`` is done.

        Raises:
            PageFileError: it failed.
        """
        job = self._transfers.last.pop(self._name(tensor), None)
        if job is not None:
            with self._standing_still():
                job.is_done.wait()
            if job.error is not None:
                raise job.error

    def drain(self) -> None:
        """Until everything that was asked for is done.

        Raises:
            PageFileError: something failed: the error of the first that did.
        """
        with self._standing_still():
            self._settle()

    def give_up(self) -> frozenset[str]:
        """`drain` for a step that is not gone on with; the tensors whose targets were not filled."""
        shared = self._transfers
        shared.settle()
        unread, shared.unread, shared.error = shared.unread, set(), None
        if not self._names:
            return frozenset(unread)
        return frozenset(tensor for tensor, name in self._names.items() if name in unread)

    def close(self) -> None:
        """End the thread, and leave the page file. A second call does nothing."""
        shared = self._transfers
        shared.is_closed = True
        if shared.thread is not None:
            shared.jobs.put(None)
            shared.thread.join()
            shared.thread = None

    def _name(self, tensor: str) -> str:
        return self._names.get(tensor, tensor)

    def _ask(
        self,
        move: Callable[[str, memoryview], None],
        tensor: str,
        memory: memoryview,
        *,
        is_read: bool = False,
    ) -> None:
        shared, name = self._transfers, self._name(tensor)
        if shared.error is not None:
            raise shared.error
        if shared.is_closed:
            raise PageFileError(f"page file {self._pages.path}: it is closed")
        if not self.is_background:
            with self._standing_still():
                move(name, memory)
            return
        shared.thread = shared.thread or _started(shared.serve)
        job = shared.last[name] = _Job(move, name, memory, is_read)
        shared.jobs.put(job)

    def _settle(self) -> None:
        self._transfers.settle()
        if self._transfers.error is not None:
            raise self._transfers.error

    @contextlib.contextmanager
    def _standing_still(self) -> Iterator[None]:
        began, busy_seconds = time.perf_counter(), -time.thread_time()
        try:
            yield
        finally:
            busy_seconds += time.thread_time()
            self._transfers.waited_seconds += max(0.0, time.perf_counter() - began - busy_seconds)


def _started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, name="poet transfers", daemon=True)
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread.start()
    finally:
        threading.stack_size(before)
    return thread
