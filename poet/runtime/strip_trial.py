"""What a strip gives and takes: whether it makes the bits that its calls make whole, and in which time.

A matrix product may sum in another order where it has fewer rows, so no rule says which strips are exact.
Each distinct one runs whole and in blocks on random tensors, and every bit of what it makes is compared: when
a model is imported, to choose the number of blocks; when a plan is opened, on the machine that will train.
"""

from __future__ import annotations

import logging
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from poet.errors import PlanError, ReplayError
from poet.graph import ITEM_BYTES, Graph, Op, Ref, Strip, Value
from poet.kernel_allocations import KernelAllocation, peak_bytes
from poet.micro import IS_FIRST
from poet.operators import WRITES
from poet.runtime import kernels, native
from poet.runtime.cells import view_of
from poet.runtime.kernel_clock import asks_in_order, clock, recorded
from poet.runtime.memory import available_bytes
from poet.runtime.process import is_fork, torch_threads
from poet.runtime.strips import StripRun, signature

BLOCK_COUNTS = (16, 8, 4, 2)
"""That are tried, the best first: each halving of a block's memory matters less than the one before."""

LEAST_BLOCK_BYTES = 64 * 1024
"""More blocks than leave so much in memory at once save nothing worth a call; two are always tried."""

_LEAST_PAIRS, _MOST_PAIRS = 3, 9
_TIMING_SECONDS = 0.03  # more pairs of runs than the least only within this time
_RAM_SHARE = 0.5  # of what is available, that a trial may take
_TILE_ELEMENTS = 500_009  # a prime: no two rows of a tensor that is filled with tiles are alike
_SCALARS = {"lr": 0.05, "gradient_share": 0.9, "decay_factor": 0.999, "step_size": 0.05, IS_FIRST: 0.0}
_WHOLE = 0  # in place of a number of blocks

_log = logging.getLogger("poet.runtime")


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


_offers: dict[Any, Offer | None] = {}
_exact: dict[Any, bool] = {}


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
    types = {name: value.type for name, value in values.items()}
    key = (signature(strip, outputs, types), tuple(counts), torch.get_num_threads())
    if key not in _offers:
        try:
            _offers[key] = _offered(strip, outputs, values, tuple(counts))
        except _FAILURES:
            _offers[key] = None
    return _offers[key]


def is_exact(strip: Strip, outputs: Sequence[str | None], values: Mapping[str, Value]) -> bool:
    """Whether ``strip`` in its number of blocks is exact here, with one thread, torch's number and all cores.

    torch's generator and number of threads are left as they were.
    """
    types = {name: value.type for name, value in values.items()}
    try:
        return _exact_here(
            signature(strip, outputs, types),
            strip.blocks,
            lambda: _Trial(strip, outputs, values),
            _thread_counts(),
        )
    except _FAILURES:
        return False


def check_strips(graph: Graph) -> None:
    """Refuse a graph of which a strip gives other bits on this machine, at torch's number of threads.

    What this machine has no memory to try whole is not tried, and logged.

    Raises:
        ReplayError: names the op.
    """
    values = {value.name: value for value in graph.values}
    types = {name: value.type for name, value in values.items()}
    threads, untried = torch.get_num_threads(), []
    for op in graph.ops:
        if op.strip is None or op.strip.is_whole:
            continue
        key = (signature(op.strip, op.outputs, types), op.strip.blocks, threads)
        if key not in _exact:
            if not _fits(op.strip, values):
                untried.append(op)
                continue
            try:
                _exact[key] = _Trial(op.strip, op.outputs, values).is_exact(op.strip.blocks)
            except _FAILURES as error:
                raise ReplayError(f"op {op.name} cannot run in blocks here: {error}") from None
        if not _exact[key]:
            raise ReplayError(_refusal(op, op.strip, threads))
    if untried:
        _log.warning(
            "poet: %d ops that run in strips were not tried against whole runs, which this machine has no "
            "memory for (%s first)",
            len(untried),
            untried[0].name,
        )


def _refusal(op: Op, strip: Strip, threads: int) -> str:
    return (
        f"op {op.name} in {len(strip.bounds)} blocks gives other bits here, with {threads} threads, than run "
        "whole; plan on this machine with as many threads, or with --gradients keep"
    )


_FAILURES = (RuntimeError, IndexError, TypeError, ValueError, PlanError)
"""What kernels and the runtime say of arguments that they do not take."""


def _offered(
    strip: Strip, outputs: Sequence[str | None], values: Mapping[str, Value], counts: tuple[int, ...]
) -> Offer | None:
    if not _fits(strip, values):
        return None
    trial = _Trial(strip, outputs, values)
    held_bytes = trial.held_bytes(_WHOLE)
    for count in counts:
        if count > strip.size or (count > min(counts) and count * LEAST_BLOCK_BYTES > held_bytes):
            continue
        saved_bytes = held_bytes - trial.held_bytes(count)
        if saved_bytes <= LEAST_BLOCK_BYTES:
            return None  # fewer blocks save less
        if not trial.is_as_steady(count):
            continue
        if _exact_here(trial.distinct, count, lambda: trial, (torch.get_num_threads(),)):
            return Offer(count, saved_bytes, max(0.0, trial.slowdown_seconds(count)) / (count - 1))
    return None


def _exact_here(
    distinct: object, count: int, trial: Callable[[], _Trial], thread_counts: Iterable[int]
) -> bool:
    """Whether so many blocks are exact with each of ``thread_counts``; what is known is not tried again."""
    tried: _Trial | None = None
    for threads in thread_counts:
        key = (distinct, count, threads)
        if key not in _exact:
            tried = tried or trial()
            with torch_threads(threads):
                _exact[key] = tried.is_exact(count)
        if not _exact[key]:
            return False
    return True


def _thread_counts() -> tuple[int, ...]:
    """With which a step is likely to run."""
    threads = torch.get_num_threads()
    if is_fork():  # it has no further threads to compute with
        return (threads,)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return tuple(dict.fromkeys((threads, 1, cores)))


class _Trial:
    """One strip with random tensors to run it on."""

    def __init__(self, strip: Strip, outputs: Sequence[str | None], values: Mapping[str, Value]) -> None:
        self._strip, self._outputs = strip, outputs
        self._types = {name: value.type for name, value in values.items()}
        self.distinct = signature(strip, outputs, self._types)
        self._memory: dict[str, Tensor] = {}  # by buffer
        self._begin: dict[str, Tensor] = {}  # of what is updated
        self._tensors: dict[str, Tensor] = {}
        below, written = _whole_numbers_below(strip), _written(strip, values)
        for name in strip.call.refs():
            value = values[name]
            if value.buffer not in self._memory:
                content = _random(value, _extent_bytes(strip, values, value.buffer), below.get(name, 1))
                if value.buffer in written:
                    content.abs_()  # as second moments are
                    self._begin[value.buffer] = content.clone()
                self._memory[value.buffer] = content
            self._tensors[name] = view_of(self._memory[value.buffer].untyped_storage(), value.type)
        self._runs: dict[int, StripRun] = {}
        self._allocations: dict[int, tuple[KernelAllocation, ...]] = {}
        self._whole_at: dict[int, _Result] = {}

    def is_exact(self, count: int) -> bool:
        """Whether ``count`` blocks give every bit that the whole gives, at torch's number of threads."""
        threads = torch.get_num_threads()
        if threads not in self._whole_at:
            self._whole_at.clear()  # of another number of threads
            self._whole_at[threads] = self._whole()
        whole, equal = self._whole_at[threads], True

        def compare(name: str, dim: int, block: Tensor, start: int) -> None:
            nonlocal equal
            expected = whole.inner[name].narrow(dim, start, block.shape[dim])
            equal = equal and _same_bits(expected, block)

        results = self._run(count, compare)
        return (
            equal
            and all(_same_bits(self._memory[name], item) for name, item in whole.updated.items())
            and all(
                one is None or (other is not None and _same_bits(one, other))
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
            or not asks_in_order(allocator, lambda: self._once(_WHOLE))
        )

    def slowdown_seconds(self, count: int) -> float:
        """How much longer ``count`` blocks take than the whole, each in memory that is mapped already.

        The median over pairs of runs right after each other: what else the machine does comes to both.
        """
        more_seconds: list[float] = []
        spent_seconds = 0.0
        with self._placed((_WHOLE, count)) as run:
            for warms in (_WHOLE, count):
                run(warms)
            while len(more_seconds) < _LEAST_PAIRS or (
                len(more_seconds) < _MOST_PAIRS and spent_seconds < _TIMING_SECONDS
            ):
                whole, blocks = _seconds_of(run, _WHOLE), _seconds_of(run, count)
                more_seconds.append(blocks - whole)
                spent_seconds += whole + blocks
        return statistics.median(more_seconds)

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
            self._run(count)  # libraries make their own tables
            self._allocations[count] = recorded(allocator, lambda: self._once(count))
        return self._allocations[count]

    def _once(self, count: int) -> tuple[Tensor | None, ...]:
        return self._runs[count].run(self._tensors.__getitem__, _scalar)

    def _whole(self) -> _Result:
        inner: dict[str, Tensor] = {}

        def take(name: str, dim: int, block: Tensor, start: int) -> None:
            inner[name] = block

        outputs = self._run(_WHOLE, take)
        return _Result(inner, {name: self._memory[name].clone() for name in self._begin}, outputs)

    def _run(
        self, count: int, see: Callable[[str, int, Tensor, int], None] | None = None
    ) -> tuple[Tensor | None, ...]:
        for name, content in self._begin.items():
            self._memory[name].copy_(content)
        if count not in self._runs:
            strip = self._strip if count == _WHOLE else replace(self._strip, blocks=count)
            self._runs[count] = StripRun(strip, self._outputs, self._types, is_whole=count == _WHOLE)
        return self._runs[count].run(self._tensors.__getitem__, _scalar, see)


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


def _scalar(name: str) -> float:
    """One of the optimizer's scalars."""
    return _SCALARS.get(name, 0.5)


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _same_bits(one: Tensor, other: Tensor) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    kind = _INTEGERS[one.element_size()]
    return torch.equal(one.view(kind), other.view(kind))


def _written(strip: Strip, values: Mapping[str, Value]) -> set[str]:
    """The buffers that the strip updates."""
    return {
        values[argument.value].buffer
        for link in strip.links
        for place in WRITES.get(link.call.target, ())
        if isinstance(argument := link.call.args[place], Ref)
    }


def _whole_numbers_below(strip: Strip) -> dict[str, int]:
    """Of values that number the rows of a table: how many it has."""
    found = {}
    for link in strip.links:
        if link.call.target == "aten.embedding_dense_backward.default":
            numbers, rows = link.call.args[1:3]
            if isinstance(numbers, Ref) and isinstance(rows, int):
                found[numbers.value] = rows
    return found


def _extent_bytes(strip: Strip, values: Mapping[str, Value], buffer: str) -> int:
    """Of the values on ``buffer`` that the strip is given."""
    on_it = (values[name] for name in strip.call.refs())
    return max(value.type.extent_bytes for value in on_it if value.buffer == buffer)


def _fits(strip: Strip, values: Mapping[str, Value]) -> bool:
    """Whether a trial finds memory: what the calls are given, what they update three times, results twice."""
    given = {values[name].buffer for name in strip.call.refs()}
    written = _written(strip, values)
    size_bytes = sum(_extent_bytes(strip, values, name) * (3 if name in written else 1) for name in given)
    results = sum(
        values[name].type.extent_bytes
        for link in strip.links
        for name in link.outputs
        if name is not None and name in values
    )
    return size_bytes + 2 * (strip.whole_bytes + results) <= _RAM_SHARE * available_bytes()


_tile: list[Tensor] = []


def _random(value: Value, size_bytes: int, below: int) -> Tensor:
    """Contents for a buffer: normally distributed, or whole numbers from 0 to below ``below``."""
    element = kernels.dtype(value.type.dtype)
    content = torch.empty(size_bytes // ITEM_BYTES[value.type.dtype], dtype=element)
    generator = torch.Generator().manual_seed(len(content))
    if not element.is_floating_point:
        return content.random_(0, max(below, 1), generator=generator)
    if not _tile:
        _tile.append(torch.randn(_TILE_ELEMENTS, generator=torch.Generator().manual_seed(0)))
    for start in range(0, len(content), _TILE_ELEMENTS):
        part = content[start : start + _TILE_ELEMENTS]
        part.copy_(_tile[0][: len(part)])
    return content
