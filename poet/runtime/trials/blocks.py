"""What a strip gives and takes: whether it makes the bits that its calls make whole, and in which time.

A matrix product may sum in another order where it has fewer rows, so no rule says which strips are exact:
each distinct one runs whole and in blocks on random tensors (`poet.runtime.trials.trial`).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from poet.ir.graph import ITEM_BYTES, Ref, Strip, Value
from poet.ir.kernel_facts import KernelAllocation, peak_bytes
from poet.ir.micro import IS_FIRST
from poet.ir.operators import WRITES
from poet.runtime import kernels, native
from poet.runtime.kernels import arguments
from poet.runtime.kernels.cells import view_of
from poet.runtime.kernels.strips import StripRun, signature
from poet.runtime.trials import trial
from poet.runtime.trials.measure import asks_in_order, clock, recorded
from poet.runtime.trials.trial import Trial, random_elements, same_bits

WHOLE = 0
"""In place of a number of blocks."""

_LEAST_PAIRS, _MOST_PAIRS = 3, 9
_CLEAR_PAIRS = 2  # are enough where blocks were no slower in any, and one thread's own time was taken
_TIMING_SECONDS = 0.03  # more pairs of runs than the least only within this time
_WALL_TIMING_SECONDS = 0.1  # by the wall's clock
_SCALARS = {"lr": 0.05, "gradient_share": 0.9, "decay_factor": 0.999, "step_size": 0.05, IS_FIRST: 0.0}

BLOCK_COUNTS = (16, 8, 4, 2)
"""That are tried, the best first: each halving of a block's memory matters less than the one before."""

LEAST_BLOCK_BYTES = 64 * 1024
"""More blocks than leave so much in memory at once save nothing worth a call; two are always tried."""

_offers: dict[Any, Offer | None] = {}


@dataclass(frozen=True, slots=True)
class Offer:
    """What one op could run in, and what that takes and saves.

    Attributes:
        blocks: the most that give every bit.
        saved_bytes: of what is held at once while it runs, with so many blocks.
        block_seconds: that each block after the first makes it last longer; 0 where blocks are no slower.
    """

    blocks: int
    saved_bytes: int
    block_seconds: float

    def saves(self, blocks: int) -> float:
        """Bytes, in so many blocks: what is held falls with their number."""
        return self.saved_bytes * (1 - 1 / blocks) / (1 - 1 / self.blocks)

    def takes(self, blocks: int) -> float:
        """Seconds more than whole, in so many blocks."""
        return (blocks - 1) * self.block_seconds


def strip_trial(
    strip: Strip,
    outputs: Sequence[str | None],
    values: Mapping[str, Value],
    bench: StripBench | None = None,
) -> Trial:
    """The trial of ``strip`` in its number of blocks.

    Args:
        strip: of which each call is run whole, and block by block.
        outputs: of its op.
        values: of the graph, by name.
        bench: of the same strip, where there is one already.
    """

    @functools.cache
    def made() -> StripBench:
        return bench or StripBench(strip, outputs, values)

    key = ("strip", signature(strip, outputs, values), strip.blocks)
    return Trial(key, lambda: _needed_bytes(strip, values), lambda: made().is_exact(strip.blocks))


def is_exact(strip: Strip, outputs: Sequence[str | None], values: Mapping[str, Value]) -> bool:
    """Whether ``strip`` in its number of blocks is exact here, see `poet.runtime.trials.trial`."""
    return trial.is_exact(strip_trial(strip, outputs, values))


def offer(
    strip: Strip,
    outputs: Sequence[str | None],
    values: Mapping[str, Value],
    *,
    counts: Iterable[int] = BLOCK_COUNTS,
) -> Offer | None:
    """The largest of ``counts`` in which ``strip`` is exact with torch's threads, what it saves and takes.

    ``None`` where no count is, where none saves memory, or where this machine has none to try. Once per
    process for each distinct strip; torch's generator is left as it was.

    Args:
        strip: with any number of blocks.
        outputs: of its op.
        values: of the graph, by name.
        counts: to be tried, in this order.
    """
    counts = tuple(counts)
    threads = torch.get_num_threads()
    key = (signature(strip, outputs, values), counts, threads)
    if key not in _offers:
        digest = trial.digest_of(("offer" if threads == 1 else "offer by least times", key))
        if _is_offer(told := trial.told(digest), counts):
            _offers[key] = None if told is None else Offer(*told)
            return _offers[key]
        if not strip_trial(strip, outputs, values).fits:
            return None
        try:
            found = _offered(strip, outputs, values, counts)
        except trial.FAILURES:
            found = None
        _offers[key] = found
        trial.note(digest, None if found is None else (found.blocks, found.saved_bytes, found.block_seconds))
    return _offers[key]


def _is_offer(told: object, counts: Container[int]) -> bool:
    """Whether a record says what an offer of so many blocks was, or that there was none."""
    if told is None:
        return True
    if not isinstance(told, list) or [type(item) for item in told] != [int, int, float]:
        return False
    blocks, saved_bytes, block_seconds = told
    return blocks in counts and saved_bytes > 0 and 0 <= block_seconds < math.inf


def _offered(
    strip: Strip, outputs: Sequence[str | None], values: Mapping[str, Value], counts: tuple[int, ...]
) -> Offer | None:
    bench, threads = StripBench(strip, outputs, values), torch.get_num_threads()
    held_bytes = bench.held_bytes(WHOLE)
    counts = tuple(
        count
        for count in counts
        if count <= strip.size and (count == min(counts) or count * LEAST_BLOCK_BYTES <= held_bytes)
    )

    def is_exact_in(count: int) -> bool:
        return trial.is_exact(strip_trial(replace(strip, blocks=count), outputs, values, bench), (threads,))

    if not counts or not (is_exact_in(counts[0]) or is_exact_in(counts[-1])):
        return None  # where neither the most nor the fewest are, those between rarely are
    for count in filter(is_exact_in, counts):
        saved_bytes = held_bytes - bench.held_bytes(count)
        if saved_bytes <= LEAST_BLOCK_BYTES:
            return None  # fewer blocks save less
        if bench.is_as_steady(count):
            return Offer(count, saved_bytes, max(0.0, bench.slowdown_seconds(count)) / (count - 1))
    return None


class StripBench:
    """One strip with random tensors to run it on, whole and in blocks: its bits, its memory and its time."""

    def __init__(self, strip: Strip, outputs: Sequence[str | None], values: Mapping[str, Value]) -> None:
        self._strip, self._outputs = strip, outputs
        self._types = {name: value.type for name, value in values.items()}
        self._memory: dict[str, Tensor] = {}  # by buffer
        self._begin: dict[str, Tensor] = {}  # of what is updated
        self._tensors: dict[str, Tensor] = {}
        below, written = _whole_numbers_below(strip), _written(strip, values)
        overwritten = _written(strip, values, by=("poet.assign",))
        for name in strip.call.refs():
            value = values[name]
            if value.buffer not in self._memory:
                content = random_elements(
                    _extent_bytes(strip, values, value.buffer) // ITEM_BYTES[value.type.dtype],
                    arguments.dtype(value.type.dtype),
                    below=below.get(name, 1),
                )
                if value.buffer in written:
                    if value.buffer not in overwritten:
                        content.abs_()  # as second moments are
                    self._begin[value.buffer] = content.clone()
                self._memory[value.buffer] = content
            self._tensors[name] = view_of(self._memory[value.buffer].untyped_storage(), value.type)
        self._runs: dict[int, StripRun] = {}
        self._allocations: dict[int, tuple[KernelAllocation, ...]] = {}
        self._whole_at: dict[int, _Result] = {}

    def is_exact(self, count: int) -> bool:
        """Whether ``count`` blocks give every bit that the whole gives, at torch's number of threads."""
        whole, equal = self._whole_here(), True

        def compare(name: str, dim: int, block: Tensor, start: int) -> None:
            nonlocal equal
            expected = whole.inner[name]
            if block.dim():  # a single number has no dimension to be cut along
                expected = expected.narrow(dim, start, block.shape[dim])
            equal = equal and same_bits(expected, block)

        results = self._run(count, compare)
        return (
            equal
            and all(same_bits(self._memory[name], item) for name, item in whole.updated.items())
            and all(
                one is None or (other is not None and same_bits(one, other))
                for one, other in zip(whole.outputs, results, strict=True)
            )
        )

    def held_bytes(self, count: int) -> int:
        """The most that a run allocates at once; without the native allocator, what is made inside."""
        allocator = native.load()
        if allocator is None:
            return self._strip.whole_bytes // max(count, 1)
        return peak_bytes(self._recorded(allocator, count), alignment_bytes=kernels.ALIGNMENT_BYTES)

    def is_as_steady(self, count: int) -> bool:
        """Whether ``count`` blocks ask for memory in the same order each time, if the whole does.

        What is asked for in another order than was recorded has no place of its own in an arena.
        """
        allocator = native.load()
        return (
            allocator is None
            or asks_in_order(allocator, lambda: self._once(count))
            or not asks_in_order(allocator, lambda: self._once(WHOLE))
        )

    def slowdown_seconds(self, count: int) -> float:
        """How much longer ``count`` blocks take than the whole, each in memory that is mapped already.

        One thread has a clock of its own: the median over pairs of runs right after each other. The wall's
        clock, by which several are timed, also counts the time in which others have the processors, often
        more than a run's own: the least of the runs of each.
        """
        own_time = torch.get_num_threads() == 1
        timing_seconds = _TIMING_SECONDS if own_time else _WALL_TIMING_SECONDS
        whole_seconds: list[float] = []
        blocks_seconds: list[float] = []
        more_seconds: list[float] = []
        with self._placed((WHOLE, count)) as run:
            for warms in (WHOLE, count):
                run(warms)
            while len(more_seconds) < _LEAST_PAIRS or (
                len(more_seconds) < _MOST_PAIRS and sum(whole_seconds + blocks_seconds) < timing_seconds
            ):
                whole_seconds.append(_seconds_of(run, WHOLE))
                blocks_seconds.append(_seconds_of(run, count))
                more_seconds.append(blocks_seconds[-1] - whole_seconds[-1])
                if own_time and len(more_seconds) == _CLEAR_PAIRS and max(more_seconds) <= 0:
                    break
        return statistics.median(more_seconds) if own_time else min(blocks_seconds) - min(whole_seconds)

    @contextmanager
    def _placed(self, counts: Sequence[int]) -> Iterator[Callable[[int], object]]:
        """A way to run one of so many blocks in memory that the first runs map."""
        allocator = native.load()
        if allocator is None:
            yield self._once
            return
        placements = {count: native.place_run(self._recorded(allocator, count)) for count in counts}
        with allocator.arena(max(placement.arena_bytes for placement in placements.values())) as arena:

            def run(count: int) -> None:
                with arena.replay(placements[count]) as replay, replay.step():
                    self._once(count)

            yield run

    def _recorded(self, allocator: native.NativeAllocator, count: int) -> tuple[KernelAllocation, ...]:
        if count not in self._allocations:
            if count not in self._runs:  # libraries make their own tables
                self._whole_here() if count == WHOLE else self._run(count)
            self._allocations[count] = recorded(allocator, lambda: self._once(count))
        return self._allocations[count]

    def _once(self, count: int) -> tuple[Tensor | None, ...]:
        return self._runs[count].run(self._tensors.__getitem__, trial_scalar)

    def _whole_here(self) -> _Result:
        """What the whole gives at torch's number of threads."""
        threads = torch.get_num_threads()
        if threads not in self._whole_at:
            self._whole_at.clear()  # of another number of threads
            self._whole_at[threads] = self._whole()
        return self._whole_at[threads]

    def _whole(self) -> _Result:
        inner: dict[str, Tensor] = {}

        def take(name: str, dim: int, block: Tensor, start: int) -> None:
            inner[name] = block

        outputs = self._run(WHOLE, take)
        return _Result(inner, {name: self._memory[name].clone() for name in self._begin}, outputs)

    def _run(
        self, count: int, see: Callable[[str, int, Tensor, int], None] | None = None
    ) -> tuple[Tensor | None, ...]:
        for name, content in self._begin.items():
            self._memory[name].copy_(content)
        if count not in self._runs:
            strip = self._strip if count == WHOLE else replace(self._strip, blocks=count)
            self._runs[count] = StripRun(strip, self._outputs, self._types, is_whole=count == WHOLE)
        return self._runs[count].run(self._tensors.__getitem__, trial_scalar, see)


def _seconds_of(run: Callable[[int], object], count: int) -> float:
    begin = clock()
    run(count)
    return clock() - begin


@dataclass(frozen=True, slots=True)
class _Result:
    """Of the whole calls: inner values, updated memory by buffer, outputs."""

    inner: dict[str, Tensor]
    updated: dict[str, Tensor]
    outputs: tuple[Tensor | None, ...]


def trial_scalar(name: str) -> float:
    """One of the optimizer's scalars."""
    return _SCALARS.get(name, 0.5)


def _written(strip: Strip, values: Mapping[str, Value], by: Container[str] = WRITES) -> set[str]:
    """The buffers that calls of ``by`` update in the strip."""
    return {
        values[argument.value].buffer
        for link in strip.links
        if link.call.target in by
        for place in WRITES.get(link.call.target, ())
        if isinstance(argument := link.call.args[place], Ref)
    }


def _whole_numbers_below(strip: Strip) -> dict[str, int]:
    """Of values that number the rows of a table, or classes: how many there are."""
    found = {}
    for link in strip.links:
        if link.call.target == "aten.embedding_dense_backward.default":
            numbers, rows = link.call.args[1:3]
            if isinstance(numbers, Ref) and isinstance(rows, int):
                found[numbers.value] = rows
        if link.call.target == "poet.logits_weight_gradient":
            numbers, rows = link.call.args[4], link.call.args[11]
            if isinstance(numbers, Ref) and isinstance(rows, int):
                found[numbers.value] = rows
    return found


def _extent_bytes(strip: Strip, values: Mapping[str, Value], buffer: str) -> int:
    """Of the values on ``buffer`` that the strip is given."""
    on_it = (values[name] for name in strip.call.refs())
    return max(value.type.extent_bytes for value in on_it if value.buffer == buffer)


def _needed_bytes(strip: Strip, values: Mapping[str, Value]) -> int:
    """Of a trial: what the calls are given, what they update three times, results twice."""
    given = {values[name].buffer for name in strip.call.refs()}
    written = _written(strip, values)
    size_bytes = sum(_extent_bytes(strip, values, name) * (3 if name in written else 1) for name in given)
    results = sum(
        values[name].type.extent_bytes
        for link in strip.links
        for name in link.outputs
        if name is not None and name in values
    )
    return size_bytes + 2 * (strip.whole_bytes + results)
