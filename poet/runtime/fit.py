"""Training over the samples of a file, epoch by epoch."""

from __future__ import annotations

import signal
import statistics
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import numpy.typing as npt
import torch

from poet.errors import InputError
from poet.file_kinds import Kind, says_what_it_is
from poet.graph import TensorType
from poet.runtime.trainer import StepResult, Trainer
from poet.tensorfile import TensorFile
from poet.training_plan import Plan
from poet.training_run import Epoch


@dataclass(frozen=True, slots=True)
class Samples:
    """What a model is trained on: one tensor per input of the plan, targets last, samples first.

    Attributes:
        tensors: all samples.
        staged: of the plan's shapes; each batch is copied there, so that a step allocates none.
        targets: 1 where the last tensor is the loss's, else 0.
    """

    tensors: tuple[torch.Tensor, ...]
    staged: tuple[torch.Tensor, ...]
    targets: int

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.tensors[0])

    def batch(self, chosen: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
        """The inputs and the targets of the samples with the numbers ``chosen``; good until the next call."""
        for tensor, place in zip(self.tensors, self.staged, strict=True):
            torch.index_select(tensor, 0, chosen, out=place)
        inputs = len(self.staged) - self.targets
        return self.staged[:inputs], self.staged[-1] if self.targets else None


@says_what_it_is(Kind.NPZ, Kind.TENSORS)
def load_samples(path: str | Path, plan: Plan) -> Samples:
    """The arrays of a ``.npz`` or ``.safetensors`` file, checked against the plan.

    They are called like the plan's inputs; a plan with one input takes ``x`` or ``inputs`` too, and the
    targets may be called ``y`` or ``targets``. Every array has the samples in its first dimension.

    Raises:
        InputError: the file is not readable, or an array is missing or of another shape or type.
    """
    path = Path(path)
    graph = plan.graph
    types = {value.name: value.type for value in graph.values}
    found = _from_safetensors(path) if path.suffix == ".safetensors" else _from_npz(path)
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
        tensors.append(_samples(f"{path.name}: {chosen}", found[chosen], types[name]))
    if len({len(tensor) for tensor in tensors}) > 1:
        counts = ", ".join(str(len(tensor)) for tensor in tensors)
        raise InputError(f"{path.name}: the arrays have different numbers of samples ({counts})")
    batch = types[graph.inputs[0]].shape[0]
    if len(tensors[0]) < batch:
        raise InputError(f"{path.name}: {len(tensors[0])} samples, the plan's batch is {batch}")
    staged = tuple(torch.empty((batch, *tensor.shape[1:]), dtype=tensor.dtype) for tensor in tensors)
    return Samples(tuple(tensors), staged, graph.targets)


def fit(
    trainer: Trainer,
    samples: Samples,
    *,
    epochs: int,
    seed: int = 0,
    save_path: str | Path | None = None,
    save_every: int | None = None,
) -> Iterator[Epoch]:
    """Train for ``epochs`` passes over ``samples``, in a new order each, and yield what each gave.

    Ctrl-C lets the step under way end, yields the incomplete epoch and stops; a second one ends at once.

    Args:
        trainer: of the plan for which ``samples`` were loaded.
        samples: see `load_samples`.
        epochs: how many passes.
        seed: of the orders.
        save_path: where the training state is saved after each epoch, an incomplete one too.
        save_every: steps after which it is saved as well.
    """
    plan = trainer.plan
    batch = trainer.input_types[0].shape[0]
    generator = torch.Generator().manual_seed(seed)
    with _deferred_interrupt() as interrupted:
        for number in range(1, epochs + 1):
            started = time.perf_counter()
            order = torch.randperm(samples.count, generator=generator)
            tally = _Tally(plan)
            for start in range(0, samples.count - batch + 1, batch):
                inputs, targets = samples.batch(order[start : start + batch])
                tally.add(trainer.step(inputs, targets), targets)
                if save_path is not None and save_every is not None and trainer.steps % save_every == 0:
                    trainer.save(save_path)
                if interrupted.is_set():
                    break
            if save_path is not None:
                trainer.save(save_path)
            complete = tally.steps == samples.count // batch
            yield tally.epoch(number, time.perf_counter() - started, is_complete=complete)
            if interrupted.is_set():
                return


def _from_npz(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as cause:
        raise InputError(f"{path}: not a readable .npz file ({cause})") from None


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
        self._has_classes = plan.request.loss == "cross-entropy" and plan.graph.targets == 1
        self._losses: list[float] = []
        self._seconds: list[float] = []
        self._right = self._judged = 0

    @property
    def steps(self) -> int:
        return len(self._losses)

    def add(self, result: StepResult, targets: torch.Tensor | None) -> None:
        self._losses.append(result.loss)
        self._seconds.append(result.seconds)
        if self._has_classes and targets is not None:
            scores = result.predictions[0]
            classes_last = scores.dim() == 3 and targets.shape == scores.shape[:-1]
            chosen = scores.argmax(dim=-1 if classes_last or scores.dim() == 1 else 1)
            self._right += int((chosen == targets).sum())
            self._judged += targets.numel()

    def epoch(self, number: int, seconds: float, *, is_complete: bool) -> Epoch:
        return Epoch(
            number=number,
            loss=statistics.fmean(self._losses),
            accuracy=self._right / self._judged if self._judged else None,
            steps=self.steps,
            step_seconds=statistics.median(self._seconds),
            seconds=seconds,
            is_complete=is_complete,
        )


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
