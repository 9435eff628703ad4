"""Eager training steps on the plain heap and in an arena of the native allocator, side by side.

    python -m benchmarks native-allocator [net:size:batch:threads ...]

Each row is a process of its own. Ratios are medians over pairs of steps in alternating order, by wall
clock and by the process's CPU time (which a busy machine disturbs less). "Outside" is what the kernel saw
grow during a replayed step: memory that is neither in the arena nor was there before the step.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch.nn import functional
from zoo import NETS

from poet.runtime import native
from poet.runtime.system.memory import PeakMeter, return_freed_memory

ROWS = (
    "resnet18:full:1:1",
    "mobilenet_v2:full:8:1",
    "bert:full:1:1",
    "unet:full:1:1",
    "lstm:full:4:1",
    "gpt:small:8:1",
)
PAIRS = 8
WARM_STEPS = 2
CHECKED_STEPS = 3

Step = Callable[[], float]


def training(net: str, size: str, batch: int) -> tuple[torch.nn.Module, Step]:
    """A net of the zoo and its eager step: forward, loss, backward, SGD with momentum."""
    torch.manual_seed(0)
    chosen = getattr(NETS[net], size)
    module = chosen.build()
    inputs, targets = chosen.inputs(batch), chosen.targets(batch)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)

    def step() -> float:
        optimizer.zero_grad()
        outputs = module(*inputs)
        if NETS[net].loss == "bce-with-logits":
            loss = functional.binary_cross_entropy_with_logits(outputs, targets)
        else:
            loss = functional.cross_entropy(outputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    return module, step


def is_exact(
    net: str, size: str, batch: int, step: Step, arena: native.ArenaMemory, placement: native.Placement
) -> bool:
    """Whether the losses of replayed steps are those of plain ones."""
    random_state = torch.get_rng_state()
    plain_step = training(net, size, batch)[1]
    plain = [plain_step() for _ in range(WARM_STEPS + 2 + CHECKED_STEPS)]
    del plain_step
    torch.set_rng_state(random_state)
    with arena.replay(placement) as replay:
        return [_replayed(replay, step) for _ in range(CHECKED_STEPS)] == plain[-CHECKED_STEPS:]


def _replayed(replay: native.Replay, step: Step) -> float:
    with replay.step():
        return step()


def _timed(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds of a second run; the first one swaps the places of what lives across steps."""
    run()
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(net: str, size: str, batch: int, threads: int) -> dict[str, object]:
    """One row."""
    allocator = native.load()
    if allocator is None:
        raise SystemExit(native.why_unavailable())
    torch.set_num_threads(threads)
    step = training(net, size, batch)[1]
    for _ in range(WARM_STEPS):
        step()
    with allocator.recording() as recording, allocator.tracking() as tracked:
        for _ in range(2):
            with recording.step():
                step()
    placement = native.place(recording.steps)
    with allocator.arena(placement.arena_bytes) as arena:
        exact = is_exact(net, size, batch, step, arena, placement)
        ratios: dict[str, list[tuple[float, float]]] = {"arena": [], "counted": []}
        heap_seconds = []

        def on_heap() -> tuple[float, float]:
            return _timed(step)

        def in_arena() -> tuple[float, float]:
            with arena.replay(placement) as replay:
                return _timed(lambda: _replayed(replay, step))

        def counted() -> tuple[float, float]:
            with allocator.tracking():
                return _timed(step)

        with allocator.tracking() as timed_scope:
            for pair in range(PAIRS):
                for name, run in (("arena", in_arena), ("counted", counted)):
                    if pair % 2:
                        mine, heap = run(), on_heap()
                    else:
                        heap, mine = on_heap(), run()
                    heap_seconds.append(heap[0])
                    ratios[name].append((mine[0] / heap[0], mine[1] / heap[1]))
        misses = timed_scope.counts().misses
        return_freed_memory()
        with arena.replay(placement) as replay:
            _replayed(replay, step)
            with PeakMeter(0) as meter:
                for _ in range(CHECKED_STEPS):
                    _replayed(replay, step)
    medians = {
        f"{name}_{clock}": round(statistics.median(pair[index] for pair in pairs), 3)
        for name, pairs in ratios.items()
        for index, clock in enumerate(("wall", "cpu"))
    }
    return {
        "row": f"{net}:{size}:{batch}:{threads}",
        "requests": len(placement.sizes_bytes),
        "peak_mib": round(tracked.usage().live_peak_bytes / 2**20, 1),
        "arena_mib": round(placement.arena_bytes / 2**20, 1),
        "efficiency": round(tracked.usage().live_peak_bytes / max(placement.arena_bytes, 1), 4),
        "exact": exact,
        "misses": misses,
        "heap_ms": round(1e3 * statistics.median(heap_seconds), 1),
        **medians,
        "outside_mib": None if meter.peak.bytes is None else round(meter.peak.bytes / 2**20, 2),
    }


def main(arguments: list[str]) -> None:
    """Print one line per row."""
    if arguments[:1] == ["--row"]:
        net, size, batch, threads = arguments[1].split(":")
        print(json.dumps(measure(net, size, int(batch), int(threads))))
        return
    for row in arguments or ROWS:
        done = subprocess.run(
            [sys.executable, __file__, "--row", row], stdout=subprocess.PIPE, text=True, check=True
        )
        print("  ".join(f"{key} {value}" for key, value in json.loads(done.stdout).items()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
