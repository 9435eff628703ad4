"""Fixed places by constraint programming, beside the greedy orders of `poet.memory.layout`.

Offsets for blocks whose times are known are a packing of rectangles (for the problem and for hard instances
of it see Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning",
ASPLOS 2023). CP-SAT finds them where orders of placing do not, or proves that there are none; on some layouts
it is the other way round. Needs OR-tools.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poet.errors import InputError
from poet.memory.layout import Block, Layout, check_layout, lower_bound_bytes
from poet.solvers.engines import has_cpsat
from poet.solvers.engines.process import Child
from poet.util.brief import brief
from poet.util.clock import WALL, Clock

_LISTEN_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Exact:
    """What was found.

    Attributes:
        layout: inside the room; ``None``: none was found.
        is_impossible: whether it is proven that there is none.
    """

    layout: Layout | None
    is_impossible: bool

    __repr__ = brief


_NOTHING = Exact(None, is_impossible=False)


def exact_layout(
    blocks: Sequence[Block],
    room_bytes: int,
    *,
    near_bytes: Sequence[int] = (),
    time_limit_seconds: float = 10.0,
    seed: int = 0,
    clock: Clock = WALL,
) -> Exact:
    """Offsets for ``blocks`` inside ``room_bytes``, judged; nothing is known without OR-tools.

    Args:
        blocks: what to place. Those that are always there are stacked on top.
        room_bytes: what the arena may take.
        near_bytes: offsets to begin with, of a layout that is too large.
        time_limit_seconds: of all, by ``clock``: the half second in which the process comes up is of it.
        seed: of its choices.
        clock: by which that is counted.
    """
    least = lower_bound_bytes(blocks)
    if least > room_bytes:
        return Exact(None, is_impossible=True)
    if not has_cpsat() or not blocks:
        return _NOTHING
    end = max(last for block in blocks for _, last in block.spans)
    always = [number for number, block in enumerate(blocks) if block.spans == ((0, end),)]
    others = sorted(set(range(len(blocks))) - set(always))
    alignment = max(block.alignment_bytes for block in blocks)
    if not others or any(block.size_bytes % alignment for block in blocks):
        return _NOTHING  # offsets that are sums of sizes would not be aligned
    unit = math.gcd(*(blocks[number].size_bytes for number in others))
    room = (room_bytes - sum(blocks[number].size_bytes for number in always)) // unit
    request = {
        "sizes": [blocks[number].size_bytes // unit for number in others],
        "spans": [blocks[number].spans for number in others],
        "hints": [near_bytes[number] // unit if near_bytes else 0 for number in others],
        "room": room,
        "seconds": time_limit_seconds,
        "counted": clock.counts_work,
        "seed": seed,
    }
    answer = _answer(request, clock)
    starts = answer.get("starts")
    if starts is None:
        return Exact(None, is_impossible=answer.get("status") == "infeasible")
    offsets = dict(zip(others, (start * unit for start in starts), strict=True))
    top = max(offsets[number] + blocks[number].size_bytes for number in others)
    for number in always:
        offsets[number], top = top, top + blocks[number].size_bytes
    layout = Layout(tuple(blocks), tuple(offsets[number] for number in range(len(blocks))), top, least)
    check_layout(layout)
    return Exact(layout, is_impossible=False)


def _answer(request: dict[str, Any], clock: Clock) -> dict[str, Any]:
    """What the child says; empty where it says nothing in time.

    Raises:
        InputError: it does not run here.
    """
    begun = time.monotonic()  # one clock for all processes of a machine
    request = {**request, "begun": begun}
    deadline = math.inf if clock.counts_work else begun + request["seconds"]
    with Child("poet.planning.layout_search") as child:
        child.send(request)
        while time.monotonic() < deadline:
            for answer in child.messages(_LISTEN_SECONDS):
                clock.spend(programs=1, engine_seconds=answer["counted_seconds"])
                return dict(answer)
            if child.gone:
                failure = child.failure()
                if failure is not None:
                    raise InputError(f"engine 'cpsat' does not run here: {failure}")
                break
    return {}
