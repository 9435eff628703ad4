"""What a strip gives and takes: whether it makes the bits that its calls make whole, and in which time.

A matrix product may sum in another order where it has fewer rows, so no rule says which strips are exact.
Each distinct one runs whole and in blocks on random tensors, and every bit of what it makes is compared: when
a model is imported, to choose the number of blocks; when a plan is opened, on the machine that will train.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from poet.errors import PlanError, ReplayError
from poet.graph import Graph, Op, Strip, Value
from poet.runtime.kernels import overwriting
from poet.runtime.system.process import likely_thread_counts, torch_threads
from poet.runtime.trials import trial_record
from poet.runtime.trials.strips import signature
from poet.runtime.trials.trial_bench import WHOLE, Trial, fits

BLOCK_COUNTS = (16, 8, 4, 2)
"""That are tried, the best first: each halving of a block's memory matters less than the one before."""

LEAST_BLOCK_BYTES = 64 * 1024
"""More blocks than leave so much in memory at once save nothing worth a call; two are always tried."""

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
    counts = tuple(counts)
    threads = torch.get_num_threads()
    key = (signature(strip, outputs, values), counts, threads)
    if key not in _offers:
        digest = trial_record.digest_of(("offer" if threads == 1 else "offer by least times", key))
        if _is_offer(told := trial_record.told(digest), counts):
            _offers[key] = None if told is None else Offer(*told)
            return _offers[key]
        if not fits(strip, values):
            return None
        try:
            found = _offered(strip, outputs, values, counts)
        except _FAILURES:
            found = None
        _offers[key] = found
        trial_record.note(
            digest, None if found is None else (found.blocks, found.saved_bytes, found.block_seconds)
        )
    return _offers[key]


def _is_offer(told: object, counts: Container[int]) -> bool:
    """Whether a record says what an offer of so many blocks was, or that there was none."""
    if told is None:
        return True
    if not isinstance(told, list) or [type(item) for item in told] != [int, int, float]:
        return False
    blocks, saved_bytes, block_seconds = told
    return blocks in counts and saved_bytes > 0 and 0 <= block_seconds < math.inf


def is_exact(strip: Strip, outputs: Sequence[str | None], values: Mapping[str, Value]) -> bool:
    """Whether ``strip`` in its number of blocks is exact here, with one thread, torch's number and all cores.

    torch's generator and number of threads are left as they were.
    """
    try:
        return _exact_here(
            signature(strip, outputs, values),
            strip.blocks,
            lambda: Trial(strip, outputs, values),
            likely_thread_counts(),
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
        if op.strip is None or (op.strip.is_whole and overwriting.operand_of(op.strip, types) is None):
            continue
        key = (signature(op.strip, op.outputs, values), op.strip.blocks, threads)
        if key not in _exact:
            if not fits(op.strip, values):
                untried.append(op)
                continue
            try:
                _exact[key] = Trial(op.strip, op.outputs, values).is_exact(op.strip.blocks)
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
    how = "written over an operand" if strip.is_whole else f"in {len(strip.bounds)} blocks"
    return (
        f"op {op.name} {how} gives other bits here, with {threads} threads, than run "
        f"whole; plan on this machine with as many threads, {trial_record.VARIABLE}=anew in the environment, "
        "or with --gradients keep"
    )


_FAILURES = (RuntimeError, AttributeError, IndexError, TypeError, ValueError, PlanError)
"""What kernels and the runtime say of arguments that they do not take."""


def _offered(
    strip: Strip, outputs: Sequence[str | None], values: Mapping[str, Value], counts: tuple[int, ...]
) -> Offer | None:
    trial = Trial(strip, outputs, values)
    held_bytes = trial.held_bytes(WHOLE)
    counts = tuple(
        count
        for count in counts
        if count <= strip.size and (count == min(counts) or count * LEAST_BLOCK_BYTES <= held_bytes)
    )

    def is_exact_in(count: int) -> bool:
        return _exact_here(trial.distinct, count, lambda: trial, (torch.get_num_threads(),))

    if not counts or not (is_exact_in(counts[0]) or is_exact_in(counts[-1])):
        return None  # where neither the most nor the fewest are, those between rarely are
    for count in filter(is_exact_in, counts):
        saved_bytes = held_bytes - trial.held_bytes(count)
        if saved_bytes <= LEAST_BLOCK_BYTES:
            return None  # fewer blocks save less
        if trial.is_as_steady(count):
            return Offer(count, saved_bytes, max(0.0, trial.slowdown_seconds(count)) / (count - 1))
    return None


def _exact_here(
    distinct: object, count: int, trial: Callable[[], Trial], thread_counts: Iterable[int]
) -> bool:
    """Whether so many blocks are exact with each of ``thread_counts``; what is known is not tried again."""
    tried: Trial | None = None
    for threads in thread_counts:
        key = (distinct, count, threads)
        digest = trial_record.digest_of(("exact", key))
        told = trial_record.told(digest)
        if key not in _exact and not isinstance(told, bool):
            tried = tried or trial()
            with torch_threads(threads):
                _exact[key] = tried.is_exact(count)
            trial_record.note(digest, _exact[key])
        if not _exact.get(key, told):
            return False
    return True
