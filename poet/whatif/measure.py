"""Data stalls measured differentially, as DS-Analyzer does: synthetic, cached, real.

An epoch is read three times: from batches that lie prepared in memory, from files in the page cache, and
from files that were dropped from the page cache. Preparing costs the second less the first, fetching the
third less the second. Nothing of a stranger is executed: files are npy, npz (without objects) and
safetensors; a loader of one's own is measured by `measure_loader`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poet.errors import InputError
from poet.files.arrays import read_npy, read_npz
from poet.files.tensorfile import TensorFile
from poet.whatif.question import DataSupply

Array = NDArray[Any]

SUFFIXES = (".npy", ".npz", ".safetensors")
MOST_FILES = 10_000
MOST_STEPS = 200
PASSES = 3


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one kind of pass takes: the fastest of `PASSES`, as any disturbance only slows one."""

    seconds: float
    steps: int
    samples: int


def measure_data(path: Path, batch: int = 1) -> DataSupply:
    """What fetching and preparing a sample of the data at ``path`` costs on this machine.

    Args:
        path: a file whose arrays have the samples as their first dimension, or a folder of such files.
        batch: samples per step.

    Raises:
        InputError: there are no such files, or one is damaged.
    """
    files = _files(path)

    def epoch() -> Iterator[list[Array]]:
        return _batches((arrays for file in files for arrays in [_read(file)]), batch)

    prepared = [[array.copy() for array in arrays] for arrays in islice(epoch(), MOST_STEPS)]
    if not prepared:
        raise InputError(f"{path}: no batch of {batch} in it")
    synthetic = _timed(lambda: iter(prepared), before=_nothing)
    cached = _timed(epoch, before=_nothing)
    real = _timed(epoch, before=lambda: _forget(files))
    return _supply(synthetic, cached, real, sum(file.stat().st_size for file in files), _samples(files))


def measure_loader(epoch: Callable[[], Iterable[Any]], *, batch: int, sample_bytes: int = 0) -> DataSupply:
    """The same of a loader: ``epoch()`` gives an epoch's batches, such as ``lambda: data_loader``.

    The first pass counts as the real one, later ones as cached: start with a cold page cache.
    """
    started = time.perf_counter()
    kept = list(islice(epoch(), MOST_STEPS))
    if not kept:
        raise InputError("the loader gives no batch")
    real = _Pass(time.perf_counter() - started, len(kept), len(kept) * batch)
    cached = _timed(lambda: iter(epoch()), before=_nothing, batch=batch)
    synthetic = _timed(lambda: iter(kept), before=_nothing, batch=batch)
    return _supply(synthetic, cached, real, sample_bytes * real.samples, real.samples)


def _supply(synthetic: _Pass, cached: _Pass, real: _Pass, dataset_bytes: int, samples: int) -> DataSupply:
    prepare = cached.seconds / cached.samples - synthetic.seconds / synthetic.samples
    fetch = real.seconds / real.samples - cached.seconds / cached.samples
    return DataSupply(
        prepare_seconds=max(0.0, prepare),
        bytes=dataset_bytes // max(1, samples),
        dataset_bytes=dataset_bytes or None,
        host_fetch_seconds=max(0.0, fetch),
    )


def _timed(
    epoch: Callable[[], Iterator[Any]], *, before: Callable[[], None], batch: int | None = None
) -> _Pass:
    fastest = None
    for _ in range(PASSES):
        before()
        started = time.perf_counter()
        steps = samples = 0
        for arrays in islice(epoch(), MOST_STEPS):
            steps += 1
            samples += len(arrays[0]) if batch is None else batch
        taken = _Pass(time.perf_counter() - started, steps, samples)
        fastest = taken if fastest is None or taken.seconds < fastest.seconds else fastest
    assert fastest is not None
    return fastest


def _nothing() -> None:
    pass


# --- files ------------------------------------------------------------------------------------


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)[:MOST_FILES]
    else:
        found = [path] if path.suffix in SUFFIXES and path.is_file() else []
    if not found:
        raise InputError(f"{path}: no data; expected {', '.join(SUFFIXES)} files or a folder of them")
    return found


def _read(file: Path) -> list[Array]:
    """The arrays in ``file``, read into memory."""
    if file.suffix == ".safetensors":
        return _read_tensors(file)
    if file.suffix == ".npy":
        return [read_npy(file)]
    return [array for _, array in sorted(read_npz(file).items())]


def _read_tensors(file: Path) -> list[Array]:
    """Raw bytes per tensor, a row per sample."""
    tensors = TensorFile(file, error=InputError)
    try:
        arrays = []
        for name, entry in sorted(tensors.entries.items()):
            raw = np.frombuffer(tensors.read(name), dtype=np.uint8)
            rows = entry.shape[0] if entry.shape else 1
            arrays.append(raw.reshape(rows, -1).copy() if rows else raw)
        return arrays
    finally:
        tensors.close()


def _batches(shards: Iterable[list[Array]], batch: int) -> Iterator[list[Array]]:
    """Batches of ``batch`` samples, collated over shards as a step would take them."""
    waiting: list[list[Array]] = []
    count = 0
    for shard in shards:
        size = len(shard[0]) if shard and shard[0].ndim else 0
        shard = [array for array in shard if array.ndim and len(array) == size]
        start = 0
        while size - start + count >= batch and shard:
            need = batch - count
            waiting.append([array[start : start + need] for array in shard])
            yield [np.concatenate(parts) for parts in zip(*waiting, strict=False)]
            start, count, waiting = start + need, 0, []
        if start < size:
            waiting.append([array[start:] for array in shard])
            count += size - start


def _samples(files: list[Path]) -> int:
    return sum(len(arrays[0]) if arrays and arrays[0].ndim else 1 for arrays in map(_read, files))


def _forget(files: list[Path]) -> None:
    """Ask the kernel to drop the files' pages from its cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
