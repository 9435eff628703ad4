"""What a plan means in use: battery, energy budget, flash life, time, carbon, and waiting for data.

Terms and differential measurement of data stalls are those of DS-Analyzer (Mohan et al., "Analyzing and
mitigating data stalls in DNN training", VLDB 2021): a fetch stall is waiting for storage, a prep stall for
decoding.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poet.devices.figures import OpClass
from poet.devices.profile import Profile
from poet.errors import InputError
from poet.files.arrays import read_npy, read_npz
from poet.files.tensorfile import TensorFile
from poet.plans.page_slots import Wear, life_steps, step_wear
from poet.plans.plan_parts import Endurance
from poet.problem.schedule import Schedule
from poet.whatif.grid import DataSupply, Duty
from poet.whatif.result import DataStall, FoundPlan, Setting, Usage

Array = NDArray[Any]

DAYS_PER_YEAR = 365.25


def endurance_of(profile: Profile | None) -> Endurance:
    """What the storage of a device survives."""
    storage = profile.storage if profile is not None else None
    if storage is None:
        return Endurance()
    cycles = storage.block_cycles
    written_bytes = storage.lifetime_written_bytes if cycles is None else None
    return Endurance(written_bytes, cycles, storage.erase_block_bytes)


def wear_of(setting: Setting, schedule: Schedule, accumulating: Schedule | None) -> Wear:
    """What a step takes of the storage, all its pieces together; schedules are those of a `FoundPlan`."""
    made = (schedule, accumulating)
    runs = [
        (part.problem, each, times)
        for (part, times), each in zip(setting.schedules, made, strict=False)
        if each is not None
    ]
    return step_wear(runs, endurance_of(setting.profile).block_bytes)


def life_of(plan: FoundPlan, setting: Setting) -> float | None:
    """Steps until the storage is worn out; infinite where nothing is written, ``None``: not known."""
    return life_steps(endurance_of(setting.profile), wear_of(setting, plan.schedule, plan.accumulating))


def usage_of(
    plan: FoundPlan, setting: Setting, duty: Duty, stall_seconds: float = 0.0, stall_joules: float = 0.0
) -> Usage:
    """What ``plan`` means under ``duty``; each step also waits ``stall_seconds`` for its data."""
    step_joules = plan.joules + stall_joules
    session_joules = step_joules * duty.steps_per_session
    battery, budget, grams = duty.battery_joules, duty.energy_budget, duty.grid_grams_per_joule
    steps = None if budget is None else _times(budget.joules * (1 + 1e-12), step_joules)
    samples = None if steps is None or setting.batch is None else steps * setting.batch
    life = life_of(plan, setting)
    steps_per_year = duty.steps_per_session * duty.sessions_per_day * DAYS_PER_YEAR
    return Usage(
        joules_per_sample=None if setting.batch is None else step_joules / setting.batch,
        session_joules=session_joules,
        session_seconds=(plan.seconds + stall_seconds) * duty.steps_per_session,
        battery_share_per_session=None if battery is None else session_joules / battery,
        sessions_per_charge=None if battery is None else _times(battery, session_joules),
        budget_steps=steps,
        budget_samples=samples,
        budget_epochs=None if samples is None or not duty.dataset_samples else samples / duty.dataset_samples,
        flash_life_steps=life,
        flash_life_years=None if life is None else life / steps_per_year,
        session_grams=None if grams is None else session_joules * grams,
    )


def _times(joules: float, each_joules: float) -> int | None:
    """How often ``joules`` are enough; ``None``: for any number, as each time takes none."""
    return math.floor(joules / each_joules) if each_joules else None


# --- data stalls ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shares:
    """Seconds of one step: what computes, what pages, and what brings the data.

    Preparing runs on the processor that trains. Fetching uses the flash that pages use: where storage works
    in the background, pages and data queue on it; where it blocks, all add up.
    """

    compute_seconds: float
    paging_seconds: float
    plan_seconds: float
    fetch_seconds: float
    prepare_seconds: float
    background: bool

    @property
    def flash_seconds(self) -> float:
        """That pages and data keep the storage busy."""
        return self.paging_seconds + self.fetch_seconds

    @property
    def step_seconds(self) -> float:
        """Of the step with its data."""
        if self.background:
            return max(self.plan_seconds + self.prepare_seconds, self.flash_seconds)
        return self.plan_seconds + self.prepare_seconds + self.fetch_seconds

    @property
    def bound_by(self) -> str:
        """What, made free, would shorten the step most."""
        waiting = max(0.0, self.plan_seconds - self.compute_seconds)
        without = {
            "compute": replace(self, plan_seconds=waiting, compute_seconds=0.0),
            "paging": replace(self, plan_seconds=self.plan_seconds - waiting, paging_seconds=0.0),
            "data": replace(self, fetch_seconds=0.0, prepare_seconds=0.0),
        }
        return min(without, key=lambda name: without[name].step_seconds)


def data_stall(number: int, plan: FoundPlan, setting: Setting, data: DataSupply) -> DataStall:
    """How ``data`` changes the step of ``plan``, which serves the point with that ``number``.

    Raises:
        InputError: the data are to be fetched from a storage that the setting does not describe.
    """
    shares = Shares(
        compute_seconds=plan.compute_seconds,
        paging_seconds=plan.page_in_seconds + plan.page_out_seconds,
        plan_seconds=plan.seconds,
        fetch_seconds=fetch_seconds(data, setting),
        prepare_seconds=data.prepare_seconds * (setting.batch or 1),
        background=setting.problem.background_storage,
    )
    cached = _with_cache(shares, data)
    return DataStall(
        point=number,
        bound_by=shares.bound_by,
        plan_seconds=shares.plan_seconds,
        step_seconds=shares.step_seconds,
        fetch_seconds=shares.fetch_seconds,
        prepare_seconds=shares.prepare_seconds,
        stall_seconds=shares.step_seconds - shares.plan_seconds,
        flash_seconds=shares.flash_seconds,
        stall_joules=_joules(shares, setting.profile),
        cache_bytes=data.cache_bytes,
        cached_share=_cached_share(data),
        cached_step_seconds=None if cached is None else cached.step_seconds,
    )


def fetch_seconds(data: DataSupply, setting: Setting) -> float:
    """Of a step: given; else one read of its bytes from the device's storage; else as measured here.

    Raises:
        InputError: the data are to be fetched from a storage that the setting does not describe.
    """
    samples = setting.batch or 1
    storage = setting.profile.storage if setting.profile is not None else None
    if data.fetch_seconds is not None:
        return data.fetch_seconds * samples
    if data.bytes == 0:
        return 0.0
    if storage is None:
        if data.host_fetch_seconds is None:
            raise InputError(f"{setting.device} has no storage to fetch data from; give --fetch-seconds")
        return data.host_fetch_seconds * samples
    pages = -(-data.bytes * samples // storage.page_bytes.value)
    stored_bytes = pages * storage.page_bytes.value
    return storage.read.latency_seconds.value + stored_bytes / storage.read.bandwidth_bytes_per_second.value


def _cached_share(data: DataSupply) -> float | None:
    """Of the bytes: a cache keeps a fixed part of the data and never evicts it, as the paper's MinIO does."""
    if data.cache_bytes is None or not data.dataset_bytes:
        return None
    return min(1.0, data.cache_bytes / data.dataset_bytes)


def _with_cache(shares: Shares, data: DataSupply) -> Shares | None:
    share = _cached_share(data)
    return None if share is None else replace(shares, fetch_seconds=shares.fetch_seconds * (1 - share))


def _joules(shares: Shares, profile: Profile | None) -> float:
    """Of fetching and preparing, and of idling for as long as the step is longer."""
    if profile is None:
        return 0.0
    read = profile.storage.read.active_watts.value if profile.storage is not None else None
    fetch_watts = 0.0 if read is None else profile.marginal_watts(read)
    prepare_watts = profile.marginal_watts(profile.compute.watts(OpClass.ELEMENTWISE))
    waiting_seconds = shares.step_seconds - shares.plan_seconds
    return (
        shares.fetch_seconds * fetch_watts
        + shares.prepare_seconds * prepare_watts
        + waiting_seconds * profile.charged_idle_watts
    )


# --- measuring --------------------------------------------------------------------------------

SUFFIXES = (".npy", ".npz", ".safetensors")
MOST_FILES = 10_000
MOST_STEPS = 200
PASSES = 3


def measure_data(path: Path, batch: int = 1) -> DataSupply:
    """What fetching and preparing a sample of the data at ``path`` costs on this machine.

    An epoch is read from batches in memory, from files in the page cache, and from files that were dropped
    from it. Preparing costs the second less the first, fetching the third less the second.

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
    synthetic, cached = (_sample_seconds(each, batch) for each in (lambda: iter(prepared), epoch))
    real = _sample_seconds(epoch, batch, before=lambda: _forget(files))
    samples = sum(len(arrays[0]) if arrays and arrays[0].ndim else 1 for arrays in map(_read, files))
    return _supply(synthetic, cached, real, sum(file.stat().st_size for file in files), samples)


def measure_loader(epoch: Callable[[], Iterable[Any]], *, batch: int, sample_bytes: int = 0) -> DataSupply:
    """The same of a loader: ``epoch()`` gives an epoch's batches, such as ``lambda: data_loader``.

    The first pass counts as the real one, later ones as cached: start with a cold page cache.
    """
    started = time.perf_counter()
    kept = list(islice(epoch(), MOST_STEPS))
    if not kept:
        raise InputError("the loader gives no batch")
    samples = len(kept) * batch
    real = (time.perf_counter() - started) / samples
    synthetic, cached = (_sample_seconds(each, batch) for each in (lambda: kept, epoch))
    return _supply(synthetic, cached, real, sample_bytes * samples, samples)


def _supply(synthetic: float, cached: float, real: float, dataset_bytes: int, samples: int) -> DataSupply:
    """Of seconds per sample in three kinds of pass."""
    return DataSupply(
        prepare_seconds=max(0.0, cached - synthetic),
        bytes=dataset_bytes // max(1, samples),
        dataset_bytes=dataset_bytes or None,
        host_fetch_seconds=max(0.0, real - cached),
    )


def _sample_seconds(
    epoch: Callable[[], Iterable[Any]], batch: int, before: Callable[[], object] = lambda: None
) -> float:
    """Of the fastest of `PASSES`, as any disturbance only slows one."""
    fastest = math.inf
    for _ in range(PASSES):
        before()
        started = time.perf_counter()
        steps = sum(1 for _ in islice(epoch(), MOST_STEPS))
        fastest = min(fastest, (time.perf_counter() - started) / (steps * batch))
    return fastest


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


def _forget(files: list[Path]) -> None:
    """Ask the kernel to drop the files' pages from its cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
