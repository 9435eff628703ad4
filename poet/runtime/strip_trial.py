"""Whether a strip gives the bits that its calls give whole, and takes no longer: found by trying.

A matrix product may sum in another order where it has fewer rows, so no rule says which strips are exact.
Each distinct one runs whole and in blocks on random tensors, and every bit of what it makes is compared: when
a model is imported, to choose the number of blocks; when a plan is opened, on the machine that will train.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from poet.errors import PlanError, ReplayError
from poet.graph import ITEM_BYTES, Graph, Op, Ref, Strip, Value
from poet.kernel_allocations import KernelAllocation
from poet.operators import WRITES
from poet.runtime import kernels, native
from poet.runtime.cells import view_of
from poet.runtime.kernel_clock import clock, in_an_arena, recorded
from poet.runtime.memory import available_bytes
from poet.runtime.process import torch_threads
from poet.runtime.strips import StripRun, signature

BLOCK_COUNTS = (16, 8, 4, 2)
"""That are tried, the best first: each halving of a block's memory matters less than the one before."""

_SLOWER = 1.02  # than the calls whole: what a strip may take
_HOPELESS = 1.3  # one run tells that it takes too long
_LEAST_RUNS = 2  # of each, where blocks are not faster at once
_TIMING_SECONDS = 0.01  # more runs only within this time
_RAM_SHARE = 0.5  # of what is available, that a trial may take
_TILE_ELEMENTS = 500_009  # a prime: no two rows of a tensor that is filled with tiles are alike
_SCALARS = {"lr": 0.05, "gradient_share": 0.9, "decay_factor": 0.999, "step_size": 0.05}
_WHOLE = 0  # in place of a number of blocks

_log = logging.getLogger("poet.runtime")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of the trials of one strip.

    Attributes:
        blocks: the largest count that is exact and fast enough; ``None``: there is none.
        inexact: counts that gave other bits.
        slower: exact counts that took longer than the calls whole.
        untried: whether this machine lacks the memory to try.
    """

    blocks: int | None
    inexact: tuple[int, ...] = ()
    slower: tuple[int, ...] = ()
    untried: bool = False


_verdicts: dict[Any, Verdict] = {}
_exact: dict[Any, bool] = {}


def best_blocks(
    strip: Strip,
    outputs: Sequence[str | None],
    values: Mapping[str, Value],
    *,
    counts: Iterable[int] = BLOCK_COUNTS,
) -> Verdict:
    """In how many blocks ``strip`` is best run here, at torch's number of threads; exact at one as well.

    Once per process for each distinct strip. torch's generator and number of threads are left as they were.

    Args:
        strip: with any number of blocks.
        outputs: of its op.
        values: of the graph, by name.
        counts: to be tried, in this order.
    """
    types = {name: value.type for name, value in values.items()}
    distinct = signature(strip, outputs, types)
    key = (distinct, tuple(counts), torch.get_num_threads())
    if key not in _verdicts:
        _verdicts[key] = _tried(strip, outputs, values, tuple(counts), distinct)
    return _verdicts[key]


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
        if op.strip is None:
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
        "whole; plan on this machine, or with --gradients keep"
    )


_FAILURES = (RuntimeError, IndexError, TypeError, ValueError, PlanError)
"""What kernels and the runtime say of arguments that they do not take."""


def _tried(
    strip: Strip,
    outputs: Sequence[str | None],
    values: Mapping[str, Value],
    counts: tuple[int, ...],
    distinct: object,
) -> Verdict:
    if not _fits(strip, values):
        return Verdict(None, untried=True)
    threads = torch.get_num_threads()
    inexact: list[int] = []
    slower: list[int] = []
    per_block = 0.0  # of the time whole: what each block of a larger count cost too much
    try:
        trial = _Trial(strip, outputs, values)
        for count in counts:
            if count > strip.size:
                continue
            if per_block > 0 and count * per_block > _HOPELESS - 1:
                slower.append(count)
                continue
            found = {threads: trial.is_exact(count)}
            if found[threads] and (slowdown := trial.slowdown(count)) > _SLOWER:
                per_block = (slowdown - 1) / count
                slower.append(count)
                continue
            if found[threads] and threads > 1:
                with torch_threads(1):
                    found[1] = trial.is_exact(count)
            _exact.update({(distinct, count, at): exact for at, exact in found.items()})
            if all(found.values()):
                return Verdict(count, tuple(inexact), tuple(slower))
            inexact.append(count)
    except _FAILURES:
        return Verdict(None, counts)
    return Verdict(None, tuple(inexact), tuple(slower))


class _Trial:
    """One strip with random tensors to run it on."""

    def __init__(self, strip: Strip, outputs: Sequence[str | None], values: Mapping[str, Value]) -> None:
        self._strip, self._outputs = strip, outputs
        self._types = {name: value.type for name, value in values.items()}
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
        self._seconds: dict[int, float] = {}
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

    def slowdown(self, count: int) -> float:
        """How often as long ``count`` blocks take as the whole, each in memory that is mapped already."""
        if _WHOLE not in self._seconds:
            self._time(_WHOLE, at_most_seconds=0.0)
        self._time(count, at_most_seconds=self._seconds[_WHOLE])
        if 1.0 < self._seconds[count] / self._seconds[_WHOLE] < _HOPELESS:  # a close thing: both once more
            self._time(_WHOLE, at_most_seconds=0.0)
            self._time(count, at_most_seconds=self._seconds[_WHOLE])
        return self._seconds[count] / self._seconds[_WHOLE]

    def _time(self, count: int, *, at_most_seconds: float) -> None:
        """Some runs, fewer if one takes at most so long; what disturbs a run only makes it longer."""
        runs, spent_seconds = 0, 0.0
        fastest = self._seconds.get(count, math.inf)
        with self._placed(count) as run:
            while runs < _LEAST_RUNS or spent_seconds < _TIMING_SECONDS:
                begin = clock()
                run()
                seconds = clock() - begin
                runs, spent_seconds, fastest = runs + 1, spent_seconds + seconds, min(fastest, seconds)
                if fastest <= at_most_seconds:
                    break
        self._seconds[count] = fastest

    @contextmanager
    def _placed(self, count: int) -> Iterator[Callable[[], object]]:
        """A way to run so many blocks in memory that is mapped already."""

        def once() -> tuple[Tensor | None, ...]:
            return self._runs[count].run(self._tensors.__getitem__, _scalar)

        allocator = native.load()
        if allocator is None:
            yield once
            return
        if count not in self._allocations:
            self._allocations[count] = recorded(allocator, once)
        with in_an_arena(allocator, self._allocations[count]) as placed:
            run = placed(once)
            run()  # maps the memory
            yield run

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
