"""The C interface of ``allocator.cpp`` and ``packed.cpp``, typed: structs mirrored, functions as methods."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

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
    "poet_appoint": (None, (_POINTER, _INT64, _INT64)),
    "poet_replay_begin": (ctypes.c_int, (_POINTER, _INT64, _INT64S, _INT64, _INT64S, _INT64S)),
    "poet_replay_end": (None, ()),
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
        of_steps_bytes, of_steps_peak_bytes: what steps took on the heap, less what they gave back there.
    """

    heap_bytes: int
    heap_peak_bytes: int
    placed_bytes: int
    placed_peak_bytes: int
    live_bytes: int
    live_peak_bytes: int
    footprint_bytes: int
    footprint_peak_bytes: int
    of_steps_bytes: int
    of_steps_peak_bytes: int


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
    """The loaded library. No call waits for Python, so none releases the interpreter lock.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: a function is missing.
    """

    def __init__(self, path: str) -> None:
        self._c = ctypes.PyDLL(path)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self._c, name)
            function.restype, function.argtypes = result, arguments
        self.attach = self._c.poet_attach
        self.detach = self._c.poet_detach
        self.attached = self._c.poet_attached
        self.set_cap = self._c.poet_set_cap
        self.mark = self._c.poet_mark
        self.count_begin = self._c.poet_count_begin
        self.count_end = self._c.poet_count_end
        self.record_begin = self._c.poet_record_begin
        self.arena_base = self._c.poet_arena_base
        self.arena_close = self._c.poet_arena_close
        self.appoint = self._c.poet_appoint
        self.replay_end = self._c.poet_replay_end
        self.pack = self._c.poet_pack
        self.gate = self._c.poet_gate
        self.masked = self._c.poet_masked
        self.places = self._c.poet_places
        self.indices = self._c.poet_indices
        self.max_pool_backward = self._c.poet_max_pool_backward

    def torch_version(self) -> str:
        """Of the headers it was compiled with."""
        version: bytes = self._c.poet_torch_version()
        return version.decode()

    def read(self) -> tuple[MemoryUsage, Counts]:
        """Everything counted so far."""
        gauges, counters = Gauges(), Counters()
        self._c.poet_read(gauges, counters)
        usage = MemoryUsage(*(value for gauge in gauges for value in (gauge.now, gauge.peak)))
        return usage, Counts(*(getattr(counters, name) for name in _COUNTERS))

    def of_steps_bytes(self) -> tuple[int, int]:
        """Of `MemoryUsage`, what steps took on the heap: now, and at most."""
        gauges = Gauges()
        self._c.poet_read(gauges, Counters())
        return gauges[-1].now, gauges[-1].peak

    def start_peaks(self) -> ctypes.Array[Gauge]:
        """Let all high-water marks begin at what is in use now; returns the old ones for `merge_peaks`."""
        saved = Gauges()
        self._c.poet_start_peaks(saved)
        return saved

    def merge_peaks(self, saved: ctypes.Array[Gauge]) -> None:
        """Give old high-water marks back where they have not been surpassed."""
        self._c.poet_merge_peaks(saved)

    def record_position(self) -> tuple[int, int]:
        """How many requests were recorded, and the tick."""
        tick = _INT64()
        requests: int = self._c.poet_record_position(tick)
        return requests, tick.value

    def record_end(self, count: int) -> ctypes.Array[RecordedRequest]:
        """End the recording; its first ``count`` requests."""
        requests = (RecordedRequest * count)()
        self._c.poet_record_end(count, requests)
        return requests

    def arena_open(self, size_bytes: int, huge_pages: bool) -> tuple[int | None, bool]:
        """A handle, or ``None`` and whether it was the cap that refused it."""
        refused = ctypes.c_int()
        handle: int | None = self._c.poet_arena_open(size_bytes, huge_pages, refused)
        return handle, bool(refused.value)

    def replay_begin(
        self, arena: int, bounds: Sequence[int], sizes_bytes: Sequence[int], offsets_bytes: Sequence[int]
    ) -> bool:
        """False where another replay is in flight.

        Raises:
            MemoryError: there is no memory to note the places in.
        """
        began: int = self._c.poet_replay_begin(
            arena,
            len(bounds) - 1,
            (_INT64 * len(bounds))(*bounds),
            len(sizes_bytes),
            (_INT64 * len(sizes_bytes))(*sizes_bytes),
            (_INT64 * len(offsets_bytes))(*offsets_bytes),
        )
        if began < 0:
            raise MemoryError("no memory to note the places of a step in")
        return bool(began)
