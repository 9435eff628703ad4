"""What a step asks for, request by request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from poet.runtime.native.library import BETWEEN_STEPS, Library, RecordedRequest
from poet.runtime.native.placement import Allocation, RecordedStep


class Recording:
    """Requests with their births and deaths, step by step.

    Run each step in `step`, and call `NativeAllocator.mark` before each op where ops matter, each once per
    step. A step's blocks may die in the next one (gradients usually do), so record two.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._starts: list[tuple[int, int]] = []
        self._steps: tuple[RecordedStep, ...] = ()

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block is one step and begins with op 0; requests outside of it are not noted."""
        self._starts.append(self._library.record_position())
        self._library.mark(0)
        try:
            yield
        finally:
            self._library.mark(BETWEEN_STEPS)

    @property
    def steps(self) -> tuple[RecordedStep, ...]:
        """The steps recorded; there when the recording has ended."""
        return self._steps

    def close(self) -> None:
        """End the recording, and with it the last step."""
        bounds = [*self._starts, self._library.record_position()]
        requests = self._library.record_end(bounds[-1][0])
        self._steps = tuple(
            RecordedStep(
                tuple(_allocation(request, tick) for request in requests[first:last]), next_tick - tick
            )
            for (first, tick), (last, next_tick) in pairwise(bounds)
        )


def _allocation(request: RecordedRequest, step_tick: int) -> Allocation:
    alive = request.died < 0
    return Allocation(
        size_bytes=request.bytes,
        op=request.op,
        born_tick=request.born - step_tick,
        died_tick=None if alive else request.died - step_tick,
        died_op=None if alive else request.died_op,
        parallel=bool(request.parallel),
        address=request.address,
    )
