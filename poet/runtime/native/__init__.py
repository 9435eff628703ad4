"""A native CPU allocator for torch: counts every allocation, caps them, places a step's in one arena.

    allocator = load()                       # None where it cannot be: see why_unavailable()
    with allocator.tracking() as tracked:    # live bytes and high-water mark, hidden temporaries included
        train_step()
    with allocator.recording() as recording: # after a first step that set everything up
        for _ in range(3):                   # in the first, what lives across steps is not known yet
            with recording.step():
                train_step()                 # allocator.mark(k) before op k, if ops matter
    placement = place(recording.steps)
    with allocator.arena(placement.arena_bytes) as arena, arena.replay(placement) as replay:
        with replay.step():
            train_step()                     # same bits, one block of memory

What stays outside: memory that MKL, oneDNN and OpenMP take for themselves (packed panels, generated code,
thread stacks), and what Python and numpy allocate.
"""

from __future__ import annotations

import threading

import torch

from poet.errors import ReplayError
from poet.runtime.native.allocator import (
    ArenaMemory,
    Counts,
    Library,
    MemoryUsage,
    NativeAllocator,
    Recording,
    Replay,
    Tracking,
)
from poet.runtime.native.build import Unavailable, build_library, torch_release
from poet.runtime.native.placement import (
    ON_HEAP,
    Allocation,
    Placement,
    RecordedStep,
    place,
    place_run,
)

__all__ = [
    "ON_HEAP", "WITHOUT", "Allocation", "ArenaMemory", "Counts", "MemoryUsage", "NativeAllocator",
    "Placement", "RecordedStep", "Recording", "Replay", "Tracking", "available", "load", "place", "place_run",
    "why_unavailable",
]  # fmt: skip

WITHOUT = (
    "without the native allocator the peak is measured after the fact instead of enforced, allocations that "
    "exceed the budget are not refused, and freed memory may stay with the process"
)
"""What cannot be promised where `load` gives ``None``."""


_loaded: tuple[NativeAllocator | None, str] | None = None
_lock = threading.Lock()


def load() -> NativeAllocator | None:
    """The process's native allocator, compiled at first use; ``None`` where `why_unavailable` says why."""
    return _load()[0]


def available() -> bool:
    """Whether `load` gives an allocator; compiles it if need be."""
    return _load()[0] is not None


def why_unavailable() -> str:
    """One line; empty where the allocator is available."""
    return _load()[1]


def _load() -> tuple[NativeAllocator | None, str]:
    global _loaded
    with _lock:
        if _loaded is None:
            try:
                _loaded = _open(), ""
            except Unavailable as error:
                _loaded = None, str(error)
        return _loaded


def _open() -> NativeAllocator:
    """The library, after it proved to count what torch allocates."""
    path = build_library()
    try:
        library = Library(str(path))
    except (OSError, AttributeError) as error:
        raise Unavailable(f"{path} cannot be loaded, remove it: {error}") from error
    built_for = library.c.poet_torch_version().decode()
    if built_for != torch_release():
        raise Unavailable(f"torch's headers are of version {built_for}, torch is {torch.__version__}")
    allocator = NativeAllocator(library)
    try:
        with allocator.tracking() as tracked:
            probe = torch.empty(1000, dtype=torch.uint8)
            counted_bytes = tracked.live_bytes
            del probe
    except ReplayError as error:
        raise Unavailable(str(error)) from error
    if counted_bytes != 1000 or tracked.live_bytes != 0:
        raise Unavailable(f"a tensor of 1000 bytes was counted as {counted_bytes}, then {tracked.live_bytes}")
    return allocator
