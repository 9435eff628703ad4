"""One piece of memory in which a step's blocks are placed as planned."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from poet.errors import ReplayError
from poet.runtime.native.library import BETWEEN_STEPS, Counts, Library
from poet.runtime.native.placement import Placement
from poet.util.reading import Closing


class Replay:
    """A replay in flight: run each step in `step`, and mark ops as in the recording."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._before = library.read()[1]
        self._counts: Counts | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block is one step and begins with op 0; outside of it nothing is placed."""
        self._library.mark(0)
        try:
            yield
        finally:
            self._library.mark(BETWEEN_STEPS)

    def counts(self) -> Counts:
        """Requests answered since the replay began."""
        return self._counts or self._library.read()[1].since(self._before)

    def close(self) -> None:
        """Keep the figures of this moment."""
        self._counts = self.counts()


class ArenaMemory(Closing):
    """Memory to place blocks in. Tensors in it stay valid after `close`, which only ends its use."""

    def __init__(self, library: Library, handle: int, size_bytes: int) -> None:
        self._library = library
        self._handle: int | None = handle
        self.size_bytes = size_bytes
        self.address: int = library.arena_base(handle)
        """Of the first byte; a multiple of 4096."""

    def close(self) -> None:
        """Place nothing here any more. The memory goes back when the last tensor in it is gone."""
        if self._handle is not None:
            self._library.arena_close(self._handle)
            self._handle = None
            self._library.detach()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether its memory begins here."""
        return 0 <= tensor.untyped_storage().data_ptr() - self.address < self.size_bytes

    def empty(self, offset_bytes: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor at ``offset_bytes``, uninitialised; for what lives longer than a step.

        Raises:
            ReplayError: the place is taken or outside.
        """
        size_bytes = math.prod(shape) * dtype.itemsize
        self._library.appoint(self._opened(), offset_bytes, size_bytes)
        try:
            tensor = torch.empty(tuple(shape), dtype=dtype)
        finally:
            self._library.appoint(None, 0, 0)
        if size_bytes and tensor.data_ptr() != self.address + offset_bytes:
            raise ReplayError(
                f"bytes {offset_bytes} to {offset_bytes + size_bytes} of an arena of {self.size_bytes} bytes "
                "are taken or outside"
            )
        return tensor

    @contextmanager
    def replay(self, placement: Placement) -> Iterator[Replay]:
        """Place the requests of this thread, and of the parallel regions it opens, as ``placement`` says.

        Raises:
            ReplayError: the placement needs a larger arena, or a replay is in flight.
        """
        needed_bytes = placement.arena_bytes
        if needed_bytes > self.size_bytes:
            raise ReplayError(f"the placement needs {needed_bytes} bytes, the arena has {self.size_bytes}")
        if not self._library.replay_begin(
            self._opened(), placement.op_bounds, placement.sizes_bytes, placement.offsets_bytes
        ):
            raise ReplayError("a replay is under way; end it before beginning another")
        replay = Replay(self._library)
        try:
            yield replay
        finally:
            replay.close()
            self._library.replay_end()

    def _opened(self) -> int:
        if self._handle is None:
            raise ReplayError("the arena is closed")
        return self._handle
