"""Epochs over a data file: what ``poet run`` does with a `poet.runtime.Trainer`.

The data is an ``.npz`` file with one array per input of the plan, by the plan's names for them (the
loss's targets are called ``targets``; a model's only input may also be called ``inputs``). Each array
holds the samples along its first dimension. It is read without pickle.
"""

from __future__ import annotations

import statistics
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from poet.errors import InputError, nearest
from poet.graph import TensorType
from poet.plan import Plan
from poet.runtime import Trainer

ONLY_INPUT = "inputs"
"""What the array of a model's only input may be called, whatever the model calls it."""

Watch = Callable[[int, int, float], None]
"""Called after each step with its number in the epoch, the epoch's steps, and the mean loss so far."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Samples of a plan's inputs; ``arrays`` are in the order of the plan's inputs, targets last.

    Attributes:
        arrays: of equally many samples.
        batch: samples of one step.
    """

    arrays: tuple[Tensor, ...]
    batch: int

    @property
    def steps(self) -> int:
        """Whole batches in an epoch; what is left over changes with the shuffling."""
        return len(self.arrays[0]) // self.batch

    def batches(self, order: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """The whole batches of an epoch, samples in the given order."""
        for chosen in order[: self.steps * self.batch].split(self.batch):
            yield tuple(array[chosen] for array in self.arrays)


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass over the data gave.

    Attributes:
        number: from 1.
        steps: made.
        loss: mean over the steps, each before its update.
        accuracy: share of samples whose largest score was the target's, before each step's update;
            ``None`` where the loss is not cross-entropy.
        step_seconds: median wall clock of a step.
        peak_ram_bytes: measured over the epoch's steps (the very first step of all is left out);
            ``None`` where it cannot be measured.
    """

    number: int
    steps: int
    loss: float
    accuracy: float | None
    step_seconds: float
    peak_ram_bytes: int | None


def load_data(path: Path, plan: Plan) -> Dataset:
    """The samples in the ``.npz`` file at ``path``, of the types that the plan takes.

    Raises:
        InputError: the file is not readable, or an array is missing, superfluous or of another type.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            if isinstance(file, np.ndarray):
                raise InputError(f"{path.name}: a single array; save inputs and targets with numpy.savez")
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a readable .npz file ({' '.join(str(error).split())})") from None
    names, graph = plan.graph.inputs, plan.graph
    types = {value.name: value.type for value in graph.values}
    if len(names) - graph.targets == 1 and names[0] not in arrays and ONLY_INPUT in arrays:
        arrays[names[0]] = arrays.pop(ONLY_INPUT)
    for name in arrays:
        if name not in names:
            raise InputError(
                f"{path.name}: the plan has no input {name!r}{nearest(name, names)} ({', '.join(names)})"
            )
    samples = tuple(_samples(path, name, arrays, types[name]) for name in names)
    batch, counts = types[names[0]].shape[0], {len(array) for array in samples}
    if len(counts) > 1:
        raise InputError(f"{path.name}: its arrays hold {sorted(counts)} samples; expected equally many")
    if counts.pop() < batch:
        raise InputError(f"{path.name}: fewer samples than the plan's batch of {batch}")
    return Dataset(samples, batch)


def _samples(path: Path, name: str, arrays: Mapping[str, np.ndarray], kind: TensorType) -> Tensor:
    if name not in arrays:
        raise InputError(f"{path.name}: the array {name!r} is missing; it has {', '.join(arrays) or 'none'}")
    array, shape = arrays[name], kind.shape[1:]
    if not kind.shape:
        raise InputError(f"the plan's input {name} is a single number; it cannot come from a data file")
    if array.dtype.name != kind.dtype or array.shape[1:] != shape:
        wanted, found = ",".join(map(str, ("samples", *shape))), ",".join(map(str, array.shape))
        raise InputError(
            f"{path.name}: {name} is {array.dtype.name}[{found}], the plan takes {kind.dtype}[{wanted}]"
        )
    return torch.from_numpy(array)


def epochs(
    trainer: Trainer, data: Dataset, *, count: int, seed: int = 0, watch: Watch | None = None
) -> Iterator[Epoch]:
    """Train ``count`` epochs, each in an order of its own drawn from ``seed``; yields each when done."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(1, count + 1):
        order = torch.randperm(len(data.arrays[0]), generator=generator)
        yield _epoch(trainer, data, number, order, watch)


def _epoch(trainer: Trainer, data: Dataset, number: int, order: Tensor, watch: Watch | None) -> Epoch:
    targets = trainer.plan.graph.targets
    is_scored = trainer.plan.request.loss == "cross-entropy"
    losses: list[float] = []
    seconds: list[float] = []
    right = scored = 0
    batches = data.batches(order)

    def make_step(batch: tuple[Tensor, ...]) -> None:
        nonlocal right, scored
        result = trainer.step(batch[: len(batch) - targets], batch[-1] if targets else None)
        losses.append(result.loss)
        seconds.append(result.seconds)
        if is_scored:
            right += _right(result.predictions[0], batch[-1])
            scored += batch[-1].numel()
        if watch is not None:
            watch(len(losses), data.steps, statistics.fmean(losses))

    if trainer.steps == 0:
        make_step(next(batches))  # libraries load their code in the first step: no tensor memory
    with trainer.peak_meter() as meter:
        for batch in batches:
            make_step(batch)
    return Epoch(
        number=number,
        steps=len(losses),
        loss=statistics.fmean(losses),
        accuracy=right / scored if scored else None,
        step_seconds=statistics.median(seconds),
        peak_ram_bytes=meter.peak.bytes if len(losses) > 1 else None,
    )


def _right(scores: Tensor, targets: Tensor) -> int:
    """How many targets have the largest score; classes stand last in [N, T, C], else second."""
    is_last = scores.dim() == 3 and targets.shape == scores.shape[:-1]
    return int((scores.argmax(-1 if is_last or scores.dim() == 1 else 1) == targets).sum())
