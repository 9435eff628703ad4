"""What runs on the machine while it is measured: training steps, transfers, and loads for its power."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch

from poet.calibration.nets import JUDGING_NETS, StepNet, fit_nets
from poet.calibration.step_times import op_times
from poet.devices.measurements import OpTime, TransferTime
from poet.errors import PageFileError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.optimizer import OptimizerSpec
from poet.plans.plan_parts import PageSlot
from poet.runtime.storage.page_file import PageFile
from poet.runtime.system.process import torch_threads

_LARGE_BYTES = 1024 * 1024
_PLACES = 8
_PAUSE_SECONDS = 0.005


@contextlib.contextmanager
def _page_file(folder: Path, buffer_bytes: int, size_bytes: int) -> Iterator[PageFile]:
    """With `_PLACES` slots of so many bytes, called by their numbers."""
    slots = [PageSlot(str(place), place * size_bytes, size_bytes) for place in range(_PLACES)]
    pages = PageFile(slots, path=None, folder=folder, buffer_bytes=buffer_bytes)
    try:
        yield pages
    finally:
        pages.close()


def transfer_seconds(
    folder: Path, *, buffer_bytes: int, counts: Mapping[int, int]
) -> tuple[dict[int, tuple[list[float], list[float]]], str]:
    """Seconds of every write and of every read, by size; the page file's mode.

    Sizes take turns, so that what disturbs the storage for a while disturbs all of them.

    Args:
        folder: on the storage in question.
        buffer_bytes: of the page file; see `PageFile`.
        counts: how many of each size in bytes.

    Raises:
        PageFileError: the storage cannot be used.
    """
    largest_bytes = max(counts)
    memory = memoryview(bytearray(_PLACES * largest_bytes))
    other = memoryview(bytearray(2 * _LARGE_BYTES))
    taken: dict[int, tuple[list[float], list[float]]] = {size_bytes: ([], []) for size_bytes in counts}
    with _page_file(folder, buffer_bytes, largest_bytes) as pages:
        for trial in range(max(counts.values())):
            place = trial % _PLACES
            for size_bytes, (writes, reads) in taken.items():
                if trial >= counts[size_bytes]:
                    continue
                part = memory[place * largest_bytes :][:size_bytes]
                part[:8] = trial.to_bytes(8, "little")
                for move, seconds in ((pages.write, writes), (pages.read_into, reads)):
                    _work_on(other)
                    begin = time.perf_counter()
                    move(str(place), part)
                    seconds.append(time.perf_counter() - begin)
        return taken, pages.mode


def keep_transferring(folder: Path, *, buffer_bytes: int, writes: bool, seconds: float) -> None:
    """Write, or read, transfer after transfer for so many seconds, for the power that it takes.

    Raises:
        PageFileError: the storage cannot be used.
    """
    part = memoryview(bytearray(_LARGE_BYTES))
    with _page_file(folder, buffer_bytes, _LARGE_BYTES) as pages:
        for place in range(_PLACES):
            pages.write(str(place), part)
        move, trial, end = (pages.write if writes else pages.read_into), 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            move(str(trial % _PLACES), part)
            trial += 1


def _work_on(memory: memoryview) -> None:
    half = len(memory) // 2
    end = time.perf_counter() + _PAUSE_SECONDS
    while time.perf_counter() < end:
        memory[:half] = memory[half:]


Sample = Callable[[], None]
"""To be called now and then by what takes long, where nothing else samples the sensors."""

LOADS = ("matmul", "convolution", "elementwise", "read", "write")
"""What the machine's power is measured under, beside idle."""

TRANSFER_COUNTS = {4096: 100, 16384: 100, 65536: 100, 262144: 50, 1048576: 30, 4194304: 10}
"""How many transfers of each size in bytes."""

_BUFFER_BYTES = 1 << 20
_SEED = 0


class Bench(Protocol):
    """What a calibration measures; a test puts a simulated one here."""

    @property
    def torch(self) -> str:
        """The version."""

    @property
    def threads(self) -> int:
        """Of torch by default."""

    def step(self, net: str, threads: int, sample: Sample) -> tuple[tuple[OpTime, ...], float]:
        """The ops of a training step of ``net``, and wall clock over the step's own time."""

    def transfers(self, sample: Sample) -> tuple[TransferTime, ...]:
        """Of all sizes in both directions; none where nothing can be paged."""

    def load(self, kind: str, seconds: float, sample: Sample) -> None:
        """Keep the machine busy with one of `LOADS`."""


class TorchBench:
    """The real one: PyTorch and the runtime."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: on the storage that is to be measured."""
        self._folder = folder
        self._nets = {net.name: net for net in (*fit_nets(), *JUDGING_NETS)}
        self._judging = {net.name for net in JUDGING_NETS}

    @property
    def torch(self) -> str:
        return torch.__version__

    @property
    def threads(self) -> int:
        return torch.get_num_threads()

    def step(self, net: str, threads: int, sample: Sample) -> tuple[tuple[OpTime, ...], float]:
        with torch_threads(threads):
            return op_times(traced(self._nets[net]), whole=net in self._judging)

    def transfers(self, sample: Sample) -> tuple[TransferTime, ...]:
        taken, mode = transfer_seconds(self._folder, buffer_bytes=_BUFFER_BYTES, counts=TRANSFER_COUNTS)
        return tuple(
            TransferTime(direction, size_bytes, tuple(both[place]), mode)
            for size_bytes, both in taken.items()
            for place, direction in enumerate(("write", "read"))
        )

    def load(self, kind: str, seconds: float, sample: Sample) -> None:
        if kind in ("read", "write"):
            keep_transferring(
                self._folder, buffer_bytes=_BUFFER_BYTES, writes=kind == "write", seconds=seconds
            )
            return
        once = _load(kind)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            once()


def _load(kind: str) -> Callable[[], object]:
    if kind == "matmul":
        wide = torch.ones(384, 384)
        return lambda: wide @ wide
    if kind == "convolution":
        image, weight = torch.ones(4, 32, 32, 32), torch.ones(32, 32, 3, 3)
        return lambda: torch.conv2d(image, weight, padding=1)
    long = torch.ones(1 << 22)
    target = torch.empty_like(long)
    return lambda: torch.add(long, long, out=target)


def traced(net: StepNet) -> TrainingStep:
    """One training step of ``net``; its weights are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        return trace_training_step(
            net.build(), net.inputs(), optimizer=OptimizerSpec(net.optimizer), name=net.name, gradients="keep"
        )


def storage_works(folder: Path) -> str:
    """Empty, or why nothing can be paged to ``folder``."""
    try:
        transfer_seconds(folder, buffer_bytes=_BUFFER_BYTES, counts={4096: 1})
    except (PageFileError, OSError) as error:
        return str(error)
    return ""
