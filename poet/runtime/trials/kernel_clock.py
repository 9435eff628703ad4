"""The clock by which kernels are timed, and the memory that they are timed in: mapped, as in a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from poet.kernel_allocations import KernelAllocation
from poet.runtime import native


def clock() -> float:
    """Seconds; of one thread its own, which stand still while others have the processor."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def recorded(
    allocator: native.NativeAllocator, once: Callable[[], tuple[Tensor | None, ...]]
) -> tuple[KernelAllocation, ...]:
    """What one run asks for, and which of it the outputs are."""
    with allocator.recording() as recording:
        with recording.step():
            results = once()
        places = {
            item.untyped_storage().data_ptr(): place
            for place, item in enumerate(results)
            if item is not None and item.untyped_storage().nbytes()
        }
    (step,) = recording.steps
    return tuple(
        KernelAllocation(
            asked.size_bytes,
            asked.born_tick,
            asked.died_tick,
            places.get(asked.address) if asked.died_tick is None else None,
        )
        for asked in step.allocations
    )


def asks_in_order(allocator: native.NativeAllocator, once: Callable[[], tuple[Tensor | None, ...]]) -> bool:
    """Whether a run asks for memory in the same order each time: never where several threads work.

    Where torch computes with one thread it always does.
    """
    if torch.get_num_threads() == 1:
        return True
    with allocator.recording() as recording, recording.step():
        once()
    return not any(asked.parallel for step in recording.steps for asked in step.allocations)


@contextmanager
def in_an_arena(
    allocator: native.NativeAllocator, allocations: tuple[KernelAllocation, ...]
) -> Iterator[Callable[[Callable[[], object]], Callable[[], None]]]:
    """A way to run a kernel in memory that is mapped already, as a replayed step does."""
    placement = native.place_run(allocations)
    with allocator.arena(placement.arena_bytes) as arena, arena.replay(placement) as replay:

        def placed(once: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                with replay.step():
                    once()

            return run

        yield placed
