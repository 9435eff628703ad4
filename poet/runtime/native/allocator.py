"""The native allocator from Python: its C interface, and scopes that count, cap, record and place.

Everything acts on the process, since torch has one CPU allocator; scopes may be nested. It is registered
with torch while a scope or an arena is open, and knows only what was allocated meanwhile.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from poet.errors import ReplayError
from poet.runtime.native.placement import Allocation, Placement, RecordedStep
from poet.util.reading import Closing
from poet.util.units import format_bytes

_PAGE_BYTES = 4096
_POINTER, _INT64, _INT64S = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)
_COUNTERS = ("requests", "placed", "unplanned", "misses", "conflicts", "foreign", "refused")


BETWEEN_STEPS = -1
"""The op where nothing is recorded or placed."""


class Gauge(ctypes.Structure):
    """Bytes now, and the most there have been."""

    _fields_ = [("now", _INT64), ("peak", _INT64)]
    now: int
    peak: int


Gauges = Gauge * 5
"""Heap, placed, live, footprint, of steps."""


class Counters(ctypes.Structure):
    """See `Counts`."""

    _fields_ = [(name, _INT64) for name in _COUNTERS]


class RecordedRequest(ctypes.Structure):
    """One recorded request; times in ticks, -1 where it is still alive."""

    _fields_ = [(name, _INT64) for name in ("bytes", "op", "born", "died", "died_op", "parallel", "address")]
    bytes: int
    op: int
    born: int
    died: int
    died_op: int
    parallel: int
    address: int


_SIGNATURES = {
    "poet_torch_version": (ctypes.c_char_p, ()),
    "poet_attached": (ctypes.c_int, ()),
    "poet_attach": (ctypes.c_int, ()),
    "poet_detach": (None, ()),
    "poet_read": (None, (ctypes.POINTER(Gauge), ctypes.POINTER(Counters))),
    "poet_start_peaks": (None, (ctypes.POINTER(Gauge),)),
    "poet_merge_peaks": (None, (ctypes.POINTER(Gauge),)),
    "poet_set_cap": (_INT64, (_INT64,)),
    "poet_mark": (None, (_INT64,)),
    "poet_count_begin": (ctypes.c_int, ()),
    "poet_count_end": (None, ()),
    "poet_record_begin": (ctypes.c_int, ()),
    "poet_record_position": (_INT64, (_INT64S,)),
    "poet_record_end": (None, (_INT64, ctypes.POINTER(RecordedRequest))),
    "poet_arena_open": (_POINTER, (_INT64, ctypes.c_int, ctypes.POINTER(ctypes.c_int))),
    "poet_arena_base": (_POINTER, (_POINTER,)),
    "poet_arena_close": (None, (_POINTER,)),
    "poet_arena_blocks": (_INT64, (_POINTER,)),
    "poet_appoint": (None, (_POINTER, _INT64, _INT64)),
    "poet_replay_begin": (ctypes.c_int, (_POINTER, _INT64, _INT64S, _INT64, _INT64S, _INT64S)),
    "poet_replay_end": (None, ()),
    "poet_quantise": (None, (_POINTER, _INT64, _INT64, _INT64, _POINTER)),
    "poet_dequantise": (None, (_POINTER, _INT64, _INT64, _INT64, _POINTER)),
    "poet_pack": (ctypes.c_int, (_POINTER, _INT64, _INT64, _POINTER)),
    "poet_gate": (None, (_POINTER, _POINTER, _INT64, _INT64, _POINTER)),
    "poet_masked": (None, (_POINTER, _POINTER, _INT64, ctypes.c_float, _POINTER)),
    "poet_places": (None, (_POINTER, _INT64, _INT64, _POINTER, _POINTER, _POINTER)),
    "poet_max_pool_backward": (
        None,
        (_POINTER, _POINTER, _INT64, _INT64, _POINTER, _POINTER, _INT64, _INT64, _POINTER),
    ),
    "poet_indices": (None, (_POINTER, _INT64, _INT64, _POINTER, _POINTER, _INT64, _INT64, _POINTER)),
}


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Bytes in use, and the most there have been since the innermost `NativeAllocator.tracking` began.

    Attributes:
        heap_bytes, heap_peak_bytes: tensors and temporaries on torch's heap.
        placed_bytes, placed_peak_bytes: those in arenas.
        live_bytes, live_peak_bytes: both.
        footprint_bytes, footprint_peak_bytes: heap and whole arenas, used or not: what a cap bounds.
    """

    heap_bytes: int
    heap_peak_bytes: int
    placed_bytes: int
    placed_peak_bytes: int
    live_bytes: int
    live_peak_bytes: int
    footprint_bytes: int
    footprint_peak_bytes: int


@dataclass(frozen=True, slots=True)
class Counts:
    """How requests for memory were answered.

    Attributes:
        requests: of more than zero bytes.
        placed: at their planned offset.
        unplanned: predicted by the plan, and left on the heap by it.
        misses: by the replaying thread, but not predicted or a conflict; served from the heap.
        conflicts: predicted, but something was still alive at the planned offset.
        foreign: during a step, by threads that have no part in it; served from the heap.
        refused: over the cap.
    """

    requests: int
    placed: int
    unplanned: int
    misses: int
    conflicts: int
    foreign: int
    refused: int

    def since(self, earlier: Counts) -> Counts:
        """The difference."""
        return Counts(*(getattr(self, name) - getattr(earlier, name) for name in _COUNTERS))


class Library:
    """The loaded library; its functions are those of ``c``, but where they need Python's types.

    No call waits for Python, so none releases the interpreter lock.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: a function is missing.
    """

    def __init__(self, path: str) -> None:
        self.c: Any = ctypes.PyDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.c, name)
            function.restype, function.argtypes = result, arguments
        self._gauges, self._counters = Gauges(), Counters()  # of `of_steps_bytes`, which each step calls

    def read(self) -> tuple[MemoryUsage, Counts]:
        """Everything counted so far."""
        gauges, counters = Gauges(), Counters()
        self.c.poet_read(gauges, counters)
        usage = MemoryUsage(*(value for gauge in gauges[:4] for value in (gauge.now, gauge.peak)))
        return usage, Counts(*(getattr(counters, name) for name in _COUNTERS))

    def of_steps_bytes(self) -> tuple[int, int]:
        """What steps took on the heap, less what they gave back there: now, and at most."""
        self.c.poet_read(self._gauges, self._counters)
        of_steps = self._gauges[-1]
        return of_steps.now, of_steps.peak

    def start_peaks(self) -> ctypes.Array[Gauge]:
        """Let high-water marks begin at what is in use now; the old ones, for ``poet_merge_peaks``."""
        saved = Gauges()
        self.c.poet_start_peaks(saved)
        return saved

    def record_position(self) -> tuple[int, int]:
        """How many requests were recorded, and the tick."""
        tick = _INT64()
        requests: int = self.c.poet_record_position(tick)
        return requests, tick.value


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

    def close(self) -> None:
        """Keep the figures of this moment."""
        self._end = self._now()

    def _now(self) -> tuple[MemoryUsage, Counts]:
        return self._end or self._library.read()


class _Steps:
    """Steps, one after the other, of a recording or a replay; run each in `step`."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def begin(self) -> None:
        """A step begins, with op 0."""
        self._library.c.poet_mark(0)

    def end(self) -> None:
        """It has ended; nothing is noted or placed until the next one."""
        self._library.c.poet_mark(BETWEEN_STEPS)

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block is one step."""
        self.begin()
        try:
            yield
        finally:
            self.end()


class Recording(_Steps):
    """Requests with their births and deaths, step by step.

    Call `NativeAllocator.mark` before each op where ops matter, each once per step. A step's blocks may die
    in the next one (gradients usually do), so record two.

    Attributes:
        steps: recorded; there when the recording has ended.
    """

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self._starts: list[tuple[int, int]] = []
        self.steps: tuple[RecordedStep, ...] = ()

    def begin(self) -> None:
        """A step begins, with op 0."""
        self._starts.append(self._library.record_position())
        super().begin()

    def close(self) -> None:
        """End the recording, and with it the last step."""
        bounds = [*self._starts, self._library.record_position()]
        count = bounds[-1][0]
        requests = (RecordedRequest * count)()
        self._library.c.poet_record_end(count, requests)
        self.steps = tuple(
            RecordedStep(
                tuple(_allocation(request, tick) for request in requests[first:last]), next_tick - tick
            )
            for (first, tick), (last, next_tick) in pairwise(bounds)
        )


def _allocation(request: RecordedRequest, step_tick: int) -> Allocation:
    return Allocation(
        size_bytes=request.bytes,
        op=request.op,
        born_tick=request.born - step_tick,
        died_tick=None if request.died < 0 else request.died - step_tick,
        parallel=bool(request.parallel),
        address=request.address,
    )


class Replay(_Steps):
    """A replay in flight; mark ops as in the recording."""

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self._before = library.read()[1]
        self._counts: Counts | None = None

    def counts(self) -> Counts:
        """Requests answered since the replay began."""
        return self._counts or self._library.read()[1].since(self._before)

    def close(self) -> None:
        """Keep the figures of this moment."""
        self._counts = self.counts()


class ArenaMemory(Closing):
    """Memory to place blocks in. Tensors in it stay valid after `close`, which gives the rest back."""

    def __init__(self, library: Library, handle: int, size_bytes: int) -> None:
        self._library = library
        self._handle: int | None = handle
        self.size_bytes = size_bytes
        self.address: int = library.c.poet_arena_base(handle)
        """Of the first byte; a multiple of 4096."""

    def close(self) -> None:
        """Place nothing here any more. The memory goes back when the last tensor in it is gone."""
        if self._handle is not None:
            self._library.c.poet_arena_close(self._handle)
            self._handle = None
            self._library.c.poet_detach()

    @property
    def is_empty(self) -> bool:
        """Whether no tensor lies here."""
        return not self._library.c.poet_arena_blocks(self._opened())

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether its memory begins here."""
        return 0 <= tensor.untyped_storage().data_ptr() - self.address < self.size_bytes

    def empty(self, offset_bytes: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor at ``offset_bytes``, uninitialised; for what lives longer than a step.

        Raises:
            ReplayError: the place is taken or outside.
        """
        size_bytes = math.prod(shape) * dtype.itemsize
        self._library.c.poet_appoint(self._opened(), offset_bytes, size_bytes)
        try:
            tensor = torch.empty(tuple(shape), dtype=dtype)
        finally:
            self._library.c.poet_appoint(None, 0, 0)
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
            MemoryError: there is no memory to note the places in.
        """
        needed_bytes = placement.arena_bytes
        if needed_bytes > self.size_bytes:
            raise ReplayError(f"the placement needs {needed_bytes} bytes, the arena has {self.size_bytes}")
        sizes_bytes, bounds = placement.sizes_bytes, placement.op_bounds
        began: int = self._library.c.poet_replay_begin(
            self._opened(),
            len(bounds) - 1,
            (_INT64 * len(bounds))(*bounds),
            len(sizes_bytes),
            (_INT64 * len(sizes_bytes))(*sizes_bytes),
            (_INT64 * len(sizes_bytes))(*placement.offsets_bytes),
        )
        if began < 0:
            raise MemoryError("no memory to note the places of a step in")
        if not began:
            raise ReplayError("a replay is in flight; end it before beginning another")
        replay = Replay(self._library)
        try:
            yield replay
        finally:
            replay.close()
            self._library.c.poet_replay_end()

    def _opened(self) -> int:
        if self._handle is None:
            raise ReplayError("the arena is closed")
        return self._handle


class NativeAllocator:
    """torch's CPU allocator while one of the scopes below is open.

    Attributes:
        mark: ``mark(op)``: what is allocated from now on belongs to op number ``op`` of the step.
    """

    def __init__(self, library: Library) -> None:
        self._library = self.library = library
        self.mark = library.c.poet_mark

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
                self._library.c.poet_merge_peaks(saved)

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
            before_bytes = self._library.c.poet_set_cap(limit_bytes)
            try:
                yield
            finally:
                self._library.c.poet_set_cap(before_bytes)

    @contextmanager
    def taking(self, under_way: Recording | Replay | None) -> Iterator[Callable[[], int] | None]:
        """The block is one step; gives what says how many bytes it took on the heap at most so far.

        What this thread and its parallel regions took within ops (see `mark`), less what they gave back.
        ``None`` where another trainer's steps are replayed: it is not counted then.

        Args:
            under_way: the replay or recording that is told of the step, if there is one.
        """
        library = self._library
        self._attach()
        saved = library.start_peaks()
        begins = under_way is None and bool(library.c.poet_count_begin())
        begun_bytes, _ = library.of_steps_bytes()
        try:
            if under_way is not None:
                under_way.begin()
            is_counted = begins or under_way is not None
            yield (lambda: library.of_steps_bytes()[1] - begun_bytes) if is_counted else None
        finally:
            if under_way is not None:
                under_way.end()
            if begins:
                library.c.poet_count_end()
            library.c.poet_merge_peaks(saved)
            library.c.poet_detach()

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Note every request of this thread and its parallel regions; see `Recording`."""
        with self._attachment():
            if not self._library.c.poet_record_begin():
                raise ReplayError("a recording is in flight; end it before beginning another")
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
        over_cap = ctypes.c_int()
        handle: int | None = self._library.c.poet_arena_open(size_bytes, huge_pages, over_cap)
        if handle is None:
            self._library.c.poet_detach()
            why = "more than the cap leaves" if over_cap.value else "more than the system gives"
            raise ReplayError(f"an arena of {format_bytes(size_bytes)} is {why}")
        return ArenaMemory(self._library, handle, size_bytes)

    def _attach(self) -> None:
        if not self._library.c.poet_attach():
            raise ReplayError(
                "another library has replaced torch's CPU allocator; train in a process without it"
            )

    @contextmanager
    def _attachment(self) -> Iterator[None]:
        self._attach()
        try:
            yield
        finally:
            self._library.c.poet_detach()
