"""Training over the samples of a file, epoch by epoch."""

from __future__ import annotations

import hashlib
import math
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import numpy.typing as npt
import torch

from poet.errors import InputError, NotFinite
from poet.files.arrays import read_npz
from poet.files.kinds import FileKind, says_what_it_is
from poet.files.tensorfile import TensorFile
from poet.graph import TensorType
from poet.loss import LossSpec
from poet.rate_schedule import RateSchedule
from poet.run_request import Epoch
from poet.runtime import ranges
from poet.runtime.trainer import StepResult, Trainer
from poet.training_plan import Plan


@dataclass(frozen=True, slots=True)
class Samples:
    """What a model is trained on: one tensor per input of the plan, targets last, samples first.

    Attributes:
        tensors: all samples.
        staged: of the plan's shapes; each batch is copied there, so that a step allocates none.
        order: numbers of the samples, for each epoch anew; here, so that an epoch allocates none.
        targets: how many of the last tensors are the loss's.
    """

    tensors: tuple[torch.Tensor, ...]
    staged: tuple[torch.Tensor, ...]
    order: torch.Tensor
    targets: int

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.tensors[0])

    def batch(self, chosen: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """The inputs and the targets of the samples with the numbers ``chosen``; good until the next call."""
        for tensor, place in zip(self.tensors, self.staged, strict=True):
            torch.index_select(tensor, 0, chosen, out=place)
        inputs = len(self.staged) - self.targets
        return self.staged[:inputs], self.staged[inputs:]


@says_what_it_is(FileKind.NPZ, FileKind.TENSORS)
def load_samples(path: str | Path, plan: Plan, *, allow_nan: bool = False) -> Samples:
    """The arrays of a ``.npz`` or ``.safetensors`` file, checked against the plan.

    They are called like the plan's inputs; a plan with one input takes ``x`` or ``inputs`` too, and the
    targets may be called ``y`` or ``targets``. Every array has the samples in its first dimension.

    Args:
        path: of the file.
        plan: to train with.
        allow_nan: whether targets may be NaN or infinite.

    Raises:
        InputError: the file is not readable, an array is missing or of another shape or type, or a sample
            holds a class or a row that there is not, or a target that is not finite.
    """
    path = Path(path)
    graph = plan.graph
    types = {value.name: value.type for value in graph.values}
    found = _from_safetensors(path) if path.suffix == ".safetensors" else read_npz(path)
    if not graph.inputs or not all(types[name].shape for name in graph.inputs):
        raise InputError(f"{plan.model.name}: the plan takes no batches of samples, so it reads no data file")
    allowed = ranges.rules(graph)
    tensors = []
    for place, name in enumerate(graph.inputs):
        is_targets = graph.targets == 1 and place == len(graph.inputs) - 1
        names = [name]
        if is_targets or len(graph.inputs) - graph.targets == 1:
            names += ["y", "targets"] if is_targets else ["x", "inputs"]
        chosen = next((candidate for candidate in names if candidate in found), None)
        if chosen is None:
            wanted = " or ".join(repr(candidate) for candidate in dict.fromkeys(names))
            raise InputError(f"{path.name}: no array is called {wanted}; found {', '.join(found) or 'none'}")
        where = f"{path.name}: {chosen}"
        tensors.append(_samples(where, found[chosen], types[name]))
        if name in allowed:
            ranges.check(where, tensors[-1], allowed[name], allow_nan=allow_nan)
    if len({len(tensor) for tensor in tensors}) > 1:
        counts = ", ".join(str(len(tensor)) for tensor in tensors)
        raise InputError(f"{path.name}: the arrays have different numbers of samples ({counts})")
    batch = types[graph.inputs[0]].shape[0]
    if batch < 1:
        raise InputError(
            f"{plan.model.name}: the plan's batch has no samples, so there is nothing to train on"
        )
    if len(tensors[0]) < batch:
        raise InputError(f"{path.name}: {len(tensors[0])} samples, the plan's batch is {batch}")
    staged = tuple(torch.empty((batch, *tensor.shape[1:]), dtype=tensor.dtype) for tensor in tensors)
    order = torch.arange(len(tensors[0]))
    return Samples(tuple(tensors), staged, order, graph.targets)


def fit(
    trainer: Trainer,
    samples: Samples,
    *,
    epochs: int,
    seed: int | None = None,
    save_path: str | Path | None = None,
    save_every: int | None = None,
    schedule: RateSchedule | None = None,
    keep_previous: bool = False,
) -> Iterator[Epoch]:
    """Train for ``epochs`` passes over ``samples``, in a new order each, and yield what each gave.

    Where training stands follows from the trainer's count of steps: one that was resumed goes on with the
    samples that would have come next, and first ends an epoch that was begun.

    At Ctrl-C the step under way ends and the incomplete epoch is yielded, the last. A second ends at once.

    Args:
        trainer: of the plan for which ``samples`` were loaded.
        samples: see `load_samples`.
        epochs: how many passes; what is left of one that was begun counts as one.
        seed: of the orders; ``None``: the trainer's, or 0.
        save_path: where the training state is saved after each epoch, an incomplete one too.
        save_every: steps after which it is saved as well.
        schedule: of the learning rates; one that does not say how many steps there are ends with this call.
        keep_previous: whether the state saved before the last one is kept too, see `Trainer.save`.

    Raises:
        NotFinite: the loss of a step, or the state to be saved, is not finite, and the trainer does not
            ``allow_nan``. The last save is kept.
    """
    if save_path is not None:
        trainer.check_save_path(save_path)
    plan = trainer.plan
    batch = trainer.input_types[0].shape[0]
    per_epoch = samples.count // batch
    if seed is None:
        seed = trainer.seed or 0
    before, begun = divmod(trainer.steps, per_epoch)
    kept = _Kept(trainer, save_path, keep_previous=keep_previous)
    rates = trainer.learning_rates
    if schedule is not None:
        schedule = schedule.over((before + epochs) * per_epoch)
    with _deferred_interrupt() as interrupted:
        for number in range(before + 1, before + epochs + 1):
            started = time.perf_counter()
            generator = _generator_of(seed, number)
            order = torch.randperm(samples.count, generator=generator, out=samples.order)
            tally = _Tally(plan)
            for start in range(begun * batch, per_epoch * batch, batch):
                inputs, targets = samples.batch(order[start : start + batch])
                if schedule is not None:
                    factor = schedule.factor_of(trainer.steps)
                    trainer.learning_rates = tuple(rate * factor for rate in rates)
                result = trainer.step(inputs, targets)
                kept.check_loss(result)
                tally.add(result, targets)
                if save_every is not None and trainer.steps % save_every == 0:
                    kept.save()
                if interrupted.is_set():
                    break
            kept.save()
            complete = tally.steps == per_epoch - begun
            begun = 0
            yield tally.epoch(number, time.perf_counter() - started, is_complete=complete)
            if interrupted.is_set():
                return


class _Kept:
    """The saved state, which is of a step after which everything was finite."""

    def __init__(self, trainer: Trainer, path: str | Path | None, *, keep_previous: bool) -> None:
        self._keep_previous = keep_previous
        self._trainer, self._path = trainer, None if path is None else Path(path)
        self._saved_steps: int | None = None

    def check_loss(self, result: StepResult) -> None:
        if not math.isfinite(result.loss) and not self._trainer.allow_nan:
            raise self._not_finite(f"the loss of step {self._trainer.steps} is {result.loss}")

    def save(self) -> None:
        if self._path is None:
            return
        name = None if self._trainer.allow_nan else self._trainer.not_finite()
        if name is not None:
            raise self._not_finite(f"after step {self._trainer.steps} {name} is not finite")
        self._trainer.save(self._path, keep_previous=self._keep_previous)
        self._saved_steps = self._trainer.steps

    def _not_finite(self, what: str) -> NotFinite:
        kept = ""
        if self._path is not None and self._saved_steps is not None:
            kept = f"; {self._path} has the state after step {self._saved_steps}"
        elif self._path is not None:
            kept = f"; {self._path} was not written"
        return NotFinite(
            f"{what}{kept}; a smaller learning rate (--lr) may help, and allow_nan (--allow-nan) goes on"
        )


def _generator_of(seed: int, number: int) -> torch.Generator:
    """For the order of an epoch; of its own, so that any epoch can be the first."""
    digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def _from_safetensors(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    found = {}
    with TensorFile(path) as file:
        for name, entry in file.entries.items():
            if entry.dtype == "bfloat16":
                raise InputError(f"{path.name}: {name} is bfloat16; save samples as float32")
            array = np.empty(entry.shape, dtype=entry.dtype)
            file.read_into(name, array.reshape(-1).view(np.uint8).data)
            found[name] = array
    return found


class _Tally:
    """Sums over the steps of an epoch."""

    def __init__(self, plan: Plan) -> None:
        self._class_dim = _class_dim(plan)
        self._losses: list[float] = []
        self._seconds: list[float] = []
        self._own_seconds: list[float] = []
        self._right = self._judged = 0

    @property
    def steps(self) -> int:
        return len(self._losses)

    def add(self, result: StepResult, targets: tuple[torch.Tensor, ...]) -> None:
        self._losses.append(result.loss)
        self._seconds.append(result.seconds)
        self._own_seconds.append(result.own_seconds)
        if self._class_dim is not None:
            chosen = result.predictions[0].argmax(dim=self._class_dim)
            self._right += int((chosen == targets[0]).sum())
            self._judged += targets[0].numel()

    def epoch(self, number: int, seconds: float, *, is_complete: bool) -> Epoch:
        loss = statistics.fmean(self._losses)
        return Epoch(
            number=number,
            loss=loss if math.isfinite(loss) else None,
            accuracy=self._right / self._judged if self._judged else None,
            steps=self.steps,
            step_seconds=statistics.median(self._seconds),
            seconds=seconds,
            is_complete=is_complete,
            step_own_seconds=statistics.median(self._own_seconds),
        )


def _class_dim(plan: Plan) -> int | None:
    """Where the classes stand in the first output; ``None`` where the targets are not class numbers."""
    graph, loss = plan.graph, LossSpec.parse(plan.request.loss)
    if graph.targets != 1:
        return None
    types = {value.name: value.type for value in graph.values}
    scores, targets = types[graph.predictions[0]].shape, types[graph.inputs[-1]]
    return loss.class_dim_of(scores, targets.shape) if scores and targets.dtype == "int64" else None


def _samples(where: str, array: npt.NDArray[np.generic], kind: TensorType) -> torch.Tensor:
    """The array as a tensor of samples of the plan's type."""
    wanted = np.dtype("float32" if kind.dtype == "bfloat16" else kind.dtype)
    if array.shape[1:] != kind.shape[1:] or array.ndim != len(kind.shape):
        shape = ", ".join(["samples", *map(str, kind.shape[1:])])
        raise InputError(f"{where} has shape {list(array.shape)}, the plan takes [{shape}]")
    if not np.can_cast(array.dtype, wanted, casting="same_kind"):
        raise InputError(f"{where} has elements of type {array.dtype}, the plan takes {kind.dtype}")
    dtype: torch.dtype = getattr(torch, kind.dtype)
    return torch.from_numpy(np.ascontiguousarray(array, dtype=wanted)).to(dtype)


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; from the second on it interrupts as always."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(signum: int, frame: FrameType | None) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
