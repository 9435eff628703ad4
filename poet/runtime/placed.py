"""Steps in one piece of memory: recorded, placed, and replayed at the same offsets from then on.

Giving every freed tensor back to the system costs a page fault per page and step. With the native
allocator (`poet.runtime.native`) a step's tensors and hidden temporaries get planned places in an arena
that stays mapped. Where it cannot be had, or would not fit, steps stay on the heap and `how` says why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from poet.errors import ReplayError
from poet.runtime import native
from poet.units import format_bytes

_SETTLING_STEPS = 1  # checks its results, and libraries set themselves up
_RECORDED_STEPS = 3  # in the first, what lives across steps was still allocated unseen
_PLACING_SECONDS = 1.0


class PlacedSteps:
    """Where the memory of a trainer's steps comes from.

    Attributes:
        how: for reports, where it comes from now.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        """Prepare; ``limit_bytes`` is what the arena may take, ``None``: anything."""
        self._limit_bytes = limit_bytes
        self._scopes = contextlib.ExitStack()
        self._allocator = native.load()
        self._recording: native.Recording | None = None
        self._arena: native.Arena | None = None
        self._replay: native.Replay | None = None
        self._steps = self._replayed_steps = 0
        self.how = "heap" if self._allocator is not None else f"heap: {native.why_unavailable()}"

    @property
    def mark(self) -> Callable[[int], object] | None:
        """To be called with the number of each instruction before it runs, if there is one to call."""
        if self._allocator is None or (self._recording is None and self._replay is None):
            return None
        return self._allocator.mark

    @property
    def resident_bytes(self) -> int:
        """What the arena holds between steps."""
        return self._arena.size_bytes if self._arena is not None and self._replayed_steps else 0

    @property
    def misses(self) -> int:
        """Requests that had to be served from the heap since steps are placed."""
        return 0 if self._replay is None else self._replay.counts().misses

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """The block is one step."""
        if self._allocator is not None and self._replay is None and self._steps == _SETTLING_STEPS:
            self._record(self._allocator)
        under_way = self._replay or self._recording
        with contextlib.nullcontext() if under_way is None else under_way.step():
            yield
        self._steps += 1
        self._replayed_steps += self._replay is not None
        if self._recording is not None and self._steps == _SETTLING_STEPS + _RECORDED_STEPS:
            self._place()

    def close(self) -> None:
        """Place nothing any more."""
        self._scopes.close()
        self._recording = self._replay = self._arena = None

    def _record(self, allocator: native.NativeAllocator) -> None:
        try:
            self._recording = self._scopes.enter_context(allocator.recording())
        except ReplayError as error:
            self._stay_on_the_heap(str(error))

    def _place(self) -> None:
        """End the recording and open the arena."""
        assert self._recording is not None
        assert self._allocator is not None
        self._scopes.close()
        recorded, self._recording = self._recording.steps, None
        try:
            placement = native.place(recorded, time_limit_seconds=_PLACING_SECONDS)
            if self._limit_bytes is not None and placement.arena_bytes > self._limit_bytes:
                size, limit = format_bytes(placement.arena_bytes), format_bytes(self._limit_bytes)
                raise ReplayError(f"the arena would take {size}, the budget leaves {limit}")
            self._arena = self._scopes.enter_context(self._allocator.arena(placement.arena_bytes))
            self._replay = self._scopes.enter_context(self._arena.replay(placement))
        except ReplayError as error:
            self.close()
            self._stay_on_the_heap(str(error))
            return
        self.how = f"arena of {format_bytes(self._arena.size_bytes)}"

    def _stay_on_the_heap(self, reason: str) -> None:
        self._allocator = None
        self.how = f"heap: {reason}"
