"""From the first step to a replay in one arena, without the caller counting steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from poet.errors import ReplayError
from poet.runtime.native.allocator import NativeAllocator
from poet.runtime.native.arena import Replay
from poet.runtime.native.library import Counts
from poet.runtime.native.placement import Placement, place
from poet.runtime.native.recording import Recording

_RECORDED_STEPS = 2


class SteadySteps:
    """Runs the first step as it is, records the next two, and places all later ones.

    Wrap each training step in `step` and mark its ops (`NativeAllocator.mark`). Steps that allocate
    differently from each other are not placed; they run on the heap, counted and capped all the same.

    Attributes:
        placement: what is replayed; ``None`` before, and where steps differ.
        obstacle: why steps are not placed, in words; empty where they are or will be.
    """

    def __init__(self, allocator: NativeAllocator, *, time_limit_seconds: float = 2.0) -> None:
        self._allocator = allocator
        self._time_limit_seconds = time_limit_seconds
        self._scopes = ExitStack()
        self._is_warm = False
        self._recording: Recording | None = None
        self._recorded_steps = 0
        self._replay: Replay | None = None
        self.placement: Placement | None = None
        self.obstacle = ""

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block is one training step.

        Raises:
            ReplayError: the arena exceeds the cap; the step that found out is done.
        """
        if self._replay is not None:
            with self._replay.step():
                yield
            return
        if not self._is_warm or self.obstacle:
            yield
            self._is_warm = True
            return
        if self._recording is None:
            self._recording = self._scopes.enter_context(self._allocator.recording())
            self._recorded_steps = 0
        try:
            with self._recording.step():
                yield
        except BaseException:  # half a step is no record
            self._end_recording()
            raise
        self._recorded_steps += 1
        if self._recorded_steps == _RECORDED_STEPS:
            self._begin_replay(self._end_recording())

    def counts(self) -> Counts | None:
        """How requests were answered since the first placed step."""
        return None if self._replay is None else self._replay.counts()

    def close(self) -> None:
        """Place nothing any more; tensors stay valid."""
        self._scopes.close()
        self._recording, self._replay = None, None
        self.obstacle = self.obstacle or "it is closed"

    def _end_recording(self) -> Recording:
        assert self._recording is not None
        recording, self._recording = self._recording, None
        self._scopes.close()
        return recording

    def _begin_replay(self, recording: Recording) -> None:
        try:
            self.placement = place(recording.steps, time_limit_seconds=self._time_limit_seconds)
        except ReplayError as error:
            self.obstacle = str(error)
            return
        arena = self._scopes.enter_context(self._allocator.arena(self.placement.arena_bytes))
        self._replay = self._scopes.enter_context(arena.replay(self.placement))
