"""What runs on the machine while it is measured: training steps, transfers, and loads for its power."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch

from poet.calibration.nets import JUDGING_NETS, StepNet, fit_nets
from poet.calibration.step_times import op_times
from poet.calibration.transfers import keep_transferring, transfer_seconds
from poet.devices.measurements import OpTime, TransferTime
from poet.errors import PageFileError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.optimizer import OptimizerSpec
from poet.runtime.system.process import torch_threads

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
        """See `Bench`."""
        return torch.__version__

    @property
    def threads(self) -> int:
        """See `Bench`."""
        return torch.get_num_threads()

    def step(self, net: str, threads: int, sample: Sample) -> tuple[tuple[OpTime, ...], float]:
        """See `Bench`."""
        with torch_threads(threads):
            return op_times(traced(self._nets[net]), whole=net in self._judging)

    def transfers(self, sample: Sample) -> tuple[TransferTime, ...]:
        """See `Bench`."""
        taken, mode = transfer_seconds(self._folder, buffer_bytes=_BUFFER_BYTES, counts=TRANSFER_COUNTS)
        return tuple(
            TransferTime(direction, size_bytes, tuple(both[place]), mode)
            for size_bytes, both in taken.items()
            for place, direction in enumerate(("write", "read"))
        )

    def load(self, kind: str, seconds: float, sample: Sample) -> None:
        """See `Bench`."""
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
