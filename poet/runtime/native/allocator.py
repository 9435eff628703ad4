"""The native allocator from Python: scopes that count, cap, record and place.

Everything acts on the process, since torch has one CPU allocator; scopes may be nested. It is registered
with torch while a scope or an arena is open, and knows only what was allocated meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from poet.errors import ReplayError
from poet.runtime.native.arena import ArenaMemory
from poet.runtime.native.library import Counts, Library, MemoryUsage
from poet.runtime.native.placement import Recording
from poet.util.units import format_bytes

_PAGE_BYTES = 4096


class Tracking:
    """Growth since the scope began; frozen when it ends."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._begin = library.read()
        self._end: tuple[MemoryUsage, Counts] | None = None

    def usage(self) -> MemoryUsage:
        """Absolute bytes; the peaks are those of this scope."""
        return self._now()[0]

    def counts(self) -> Counts:
        """Requests answered in this scope."""
        return self._now()[1].since(self._begin[1])

    @property
    def live_bytes(self) -> int:
        """Bytes allocated minus bytes freed; negative where blocks from before were freed."""
        return self.usage().live_bytes - self._begin[0].live_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that `live_bytes` has been."""
        return self.usage().live_peak_bytes - self._begin[0].live_bytes

    @property
    def footprint_growth_bytes(self) -> int:
        """The most that heap and whole arenas have been above what they were when the scope began."""
        return self.usage().footprint_peak_bytes - self._begin[0].footprint_bytes

    def close(self) -> None:
        """Keep the figures of this moment."""
        self._end = self._now()

    def _now(self) -> tuple[MemoryUsage, Counts]:
        return self._end or self._library.read()


class NativeAllocator:
    """torch's CPU allocator while one of the scopes below is open.

    Attributes:
        mark: ``mark(op)``: what is allocated from now on belongs to op number ``op`` of the step.
    """

    def __init__(self, library: Library) -> None:
        self._library = self.library = library
        self.mark = library.mark

    def usage(self) -> MemoryUsage:
        """Bytes in use, of what was allocated while attached."""
        return self._library.read()[0]

    @contextmanager
    def tracking(self) -> Iterator[Tracking]:
        """Count what is allocated and freed in the block."""
        with self._attachment():
            saved = self._library.start_peaks()
            tracked = Tracking(self._library)
            try:
                yield tracked
            finally:
                tracked.close()
                self._library.merge_peaks(saved)

    @contextmanager
    def capped(self, limit_bytes: int) -> Iterator[None]:
        """Refuse, in the block, requests that would lift the footprint above ``limit_bytes``.

        Raises:
            torch.OutOfMemoryError: by torch, at the request; it names the bytes and the cap. Nothing
                was allocated, and training can go on with less.
        """
        if limit_bytes < 0:
            raise ReplayError(f"a cap of {limit_bytes} bytes cannot be; it is 0 or more")
        with self._attachment():
            before_bytes = self._library.set_cap(limit_bytes)
            try:
                yield
            finally:
                self._library.set_cap(before_bytes)

    @contextmanager
    def taking(self, *, is_marked: bool) -> Iterator[Callable[[], int] | None]:
        """The block is one step; gives what says how many bytes it took on the heap at most so far.

        What this thread and its parallel regions took within ops (see `mark`), less what they gave back.
        ``None`` where another trainer's steps are replayed: it is not counted then.

        Args:
            is_marked: whether a replay or a recording is told of the step.
        """
        library = self._library
        with self._attachment():
            saved = library.start_peaks()
            begins = not is_marked and bool(library.count_begin())
            begun_bytes, _ = library.of_steps_bytes()
            try:
                yield (lambda: library.of_steps_bytes()[1] - begun_bytes) if is_marked or begins else None
            finally:
                if begins:
                    library.count_end()
                library.merge_peaks(saved)

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Note every request of this thread and its parallel regions; see `Recording`."""
        with self._attachment():
            if not self._library.record_begin():
                raise ReplayError("a recording is under way; end it before beginning another")
            recording = Recording(self._library)
            try:
                yield recording
            finally:
                recording.close()

    def arena(self, size_bytes: int, *, huge_pages: bool = False) -> ArenaMemory:
        """Memory to place blocks in; whole pages, counted in the footprint at once.

        Raises:
            ReplayError: the cap or the system refuses it.
        """
        self._attach()
        size_bytes = max(-(-size_bytes // _PAGE_BYTES), 1) * _PAGE_BYTES
        handle, over_cap = self._library.arena_open(size_bytes, huge_pages)
        if handle is None:
            self._library.detach()
            why = "more than the cap leaves" if over_cap else "more than the system gives"
            raise ReplayError(f"an arena of {format_bytes(size_bytes)} is {why}")
        return ArenaMemory(self._library, handle, size_bytes)

    def _attach(self) -> None:
        if not self._library.attach():
            raise ReplayError(
                "another library has replaced torch's CPU allocator; train in a process without it"
            )

    @contextmanager
    def _attachment(self) -> Iterator[None]:
        self._attach()
        try:
            yield
        finally:
            self._library.detach()
