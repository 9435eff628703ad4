"""Training over the samples of a file, epoch by epoch."""

from __future__ import annotations

import hashlib
import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import torch

from poet.errors import InputError, NotFinite, OverBudget, PoetError
from poet.ir.loss import LossSpec
from poet.plans.run_request import Epoch, RateSchedule
from poet.plans.training_plan import Plan
from poet.runtime.data.counting import right_classes
from poet.runtime.data.samples import Samples as Samples
from poet.runtime.data.samples import batch_of as batch_of
from poet.runtime.data.samples import load_samples as load_samples
from poet.runtime.data.samples import trained_of as trained_of
from poet.runtime.runs.spending import Spending
from poet.runtime.runs.watching import MemoryWatcher
from poet.runtime.training.trainer import StepResult, Trainer
from poet.util.interrupts import answered

_log = logging.getLogger("poet.runtime")


def fit(
    trainer: Trainer,
    samples: Samples,
    *,
    epochs: int,
    seed: int | None = None,
    save_path: str | Path | None = None,
    save_every: int | None = None,
    save_seconds: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    schedule: RateSchedule | None = None,
    keep_previous: bool = False,
    spending: Spending | None = None,
    watcher: MemoryWatcher | None = None,
) -> Iterator[Epoch]:
    """Train for ``epochs`` passes over ``samples``, in a new order each, and yield what each gave.

    Where training stands follows from the trainer's count of steps: one that was resumed goes on with the
    samples that would have come next, and first ends an epoch that was begun. Samples that fill no batch are
    the last step of an epoch where the plan has one for as many, else left out, others in each.

    At Ctrl-C the step in flight ends and the incomplete epoch is yielded, the last. A second ends at once.

    Args:
        trainer: of the plan for which ``samples`` were loaded.
        samples: see `load_samples`.
        epochs: how many passes; what is left of one that was begun counts as one.
        seed: of the orders; ``None``: the trainer's, or 0.
        save_path: where the training state is saved after each epoch, an incomplete one too.
        save_every: steps after which it is saved as well.
        save_seconds: since the last save, after which it is saved as well, when the step in flight has ended.
        clock: gives seconds that rise.
        schedule: of the learning rates; one that does not say how many steps there are ends with this call.
        keep_previous: whether the state saved before the last one is kept too, see `Trainer.save`.
        spending: counts what the run may spend; it ends before the step that would exceed it.
        watcher: looks at the system before the first step and after each, and changes the budget where it
            must.

    Raises:
        InputError: ``save_path`` is the plan or the page file, or ``save_seconds`` is no time to wait, or the
            plan that the ``watcher`` went to at first takes more than the run may spend.
        NotFinite: the loss of a step, or the state to be saved, is not finite, and the trainer does not
            ``allow_nan``. The last save is kept.
        OverBudget: a step held more tensor memory than the plan's budget, and the trainer does not
            ``allow_over_budget``; see `Trainer.check_budget`. What was trained was saved.
        Infeasible: the ``watcher`` finds no plan for what the system leaves; what was trained since the last
            save was saved. So it was where a change of the budget failed (as of `MemoryWatcher.look`).
    """
    if save_path is not None:
        trainer.check_save_path(save_path)
    if save_seconds is not None and not 0 < save_seconds < math.inf:
        raise InputError(f"seconds between saves (--save-seconds) are more than 0, not {save_seconds:g}")
    plan = trainer.plan
    batch = batch_of(plan)
    trained = trained_of(samples.count, plan)
    per_epoch = -(-trained // batch)
    if seed is None:
        seed = trainer.seed or 0
    before, begun = divmod(trainer.steps, per_epoch)
    kept = _Kept(trainer, save_path, keep_previous=keep_previous, spending=spending, clock=clock)
    rates = trainer.learning_rates
    last_step = (before + epochs) * per_epoch
    if schedule is not None:
        schedule = schedule.over(last_step)
    if watcher is not None:
        _looked(watcher, kept)
        if why := kept.over():
            raise InputError(f"no step can be made: {why}")
    room = [torch.empty(1, dtype=torch.int64)]  # for the number that randperm allocates beside a full arena
    with _deferred_interrupt() as interrupted:
        for number in range(before + 1, before + epochs + 1):
            started = time.perf_counter()
            room.clear()
            order = torch.randperm(samples.count, generator=_generator_of(seed, number), out=samples.order)
            room.append(torch.empty(1, dtype=torch.int64))
            tally, stopped = _Tally(plan), ""
            for start in range(begun * batch, trained, batch):
                if schedule is not None:
                    factor = schedule.factor_of(trainer.steps)
                    trainer.learning_rates = tuple(rate * factor for rate in rates)
                result = _trained(trainer, samples, order[start : start + batch], tally)
                kept.check_loss(result)
                kept.check_budget()
                del result  # its outputs lie where the next step has planned other tensors
                by_steps = save_every is not None and trainer.steps % save_every == 0
                if by_steps or (save_seconds is not None and kept.seconds_since >= save_seconds):
                    kept.save()
                kept.count_step()
                if watcher is not None and trainer.steps < last_step:
                    _looked(watcher, kept)
                stopped = kept.over()
                if interrupted.is_set() or stopped:
                    break
            kept.save()
            complete = tally.steps == per_epoch - begun
            begun = 0
            seconds = time.perf_counter() - started
            yield replace(tally.epoch(number, seconds, is_complete=complete), stopped=stopped)
            if interrupted.is_set() or stopped:
                return


def _looked(watcher: MemoryWatcher, kept: _Kept) -> None:
    try:
        watcher.look()
    except (PoetError, OSError, RuntimeError, MemoryError):
        kept.rescue()
        raise


def _trained(trainer: Trainer, samples: Samples, chosen: torch.Tensor, tally: _Tally) -> StepResult:
    """One step on the samples with the numbers ``chosen``, in the plan's micro-batches."""
    *earlier, last = chosen.split(len(samples.staged[0]))  # type: ignore[no-untyped-call]
    losses = []
    for piece in earlier:
        inputs, targets = samples.batch(piece)
        result = trainer.accumulate(inputs, targets)
        losses.append(result.loss)
        tally.add(result, targets, ends_step=False)
        del result  # its outputs lie where the next micro-batch has planned other tensors
    inputs, targets = samples.batch(last)
    result = trainer.step(inputs, targets)
    tally.add(result, targets)
    return replace(result, loss=math.fsum([*losses, result.loss]) / (len(losses) + 1))


class _Kept:
    """The saved state, which is of a step after which everything was finite."""

    def __init__(
        self,
        trainer: Trainer,
        path: str | Path | None,
        *,
        keep_previous: bool,
        spending: Spending | None,
        clock: Callable[[], float],
    ) -> None:
        self._clock, self._last = clock, clock()
        self._keep_previous, self._spending = keep_previous, spending
        self._trainer, self._path = trainer, None if path is None else Path(path)
        self._saved_steps: int | None = None
        self._kept_steps = trainer.steps  # as they were begun with, or saved

    @property
    def seconds_since(self) -> float:
        """The last save, or the beginning."""
        return self._clock() - self._last

    def check_loss(self, result: StepResult) -> None:
        if not math.isfinite(result.loss) and not self._trainer.allow_nan:
            raise self._not_finite(f"the loss of step {self._trainer.steps} is {result.loss}")

    def check_budget(self) -> None:
        try:
            self._trainer.check_budget()
        except OverBudget:
            self.rescue()
            raise

    def save(self) -> None:
        if self._path is None:
            return
        name = None if self._trainer.allow_nan else self._trainer.not_finite()
        if name is not None:
            raise self._not_finite(f"after step {self._trainer.steps} {name} is not finite")
        self._trainer.save(self._path, keep_previous=self._keep_previous)
        self._saved_steps = self._kept_steps = self._trainer.steps
        self._last = self._clock()
        if self._spending is not None:
            self._spending.saved(self._path)

    def rescue(self) -> None:
        """Save what no save has yet; where that fails too, say so."""
        if self._path is None or self._trainer.steps == self._kept_steps:
            return
        try:
            self.save()
        except (PoetError, OSError, RuntimeError, MemoryError) as error:
            _log.warning("poet: the state after step %d was not saved: %s", self._trainer.steps, error)

    def count_step(self) -> None:
        if self._spending is not None:
            self._spending.step_done(self._trainer.plan)

    def over(self) -> str:
        """Why no other step is to be made; empty where one may be."""
        return "" if self._spending is None else self._spending.over(self._trainer.plan)

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


class _Tally:
    """Sums over the steps of an epoch."""

    def __init__(self, plan: Plan) -> None:
        self._class_dim = _class_dim(plan)
        self._ignored = LossSpec.parse(plan.request.loss).ignored_class
        self._losses: list[float] = []
        self._seconds: list[float] = []
        self._own_seconds: list[float] = []
        self._right = self._judged = 0
        self._begun_seconds = self._begun_own_seconds = 0.0

    @property
    def steps(self) -> int:
        return len(self._seconds)

    def add(self, result: StepResult, targets: tuple[torch.Tensor, ...], *, ends_step: bool = True) -> None:
        """Count a batch, or a micro-batch; the last one of a step ``ends_step``."""
        self._losses.append(result.loss)
        self._begun_seconds += result.seconds
        self._begun_own_seconds += result.own_seconds
        if ends_step:
            self._seconds.append(self._begun_seconds)
            self._own_seconds.append(self._begun_own_seconds)
            self._begun_seconds = self._begun_own_seconds = 0.0
        if self._class_dim is not None:
            output = result.outputs.in_place[0]
            right, judged = right_classes(output, targets[0], self._class_dim, ignored=self._ignored)
            self._right += right
            self._judged += judged

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
    if graph.targets != 1 or not graph.predictions:
        return None
    types = {value.name: value.type for value in graph.values}
    scores, targets = types[graph.predictions[0]].shape, types[graph.inputs[-1]]
    return loss.class_dim_of(scores, targets.shape) if scores and targets.dtype == "int64" else None


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; from the second on it interrupts as always."""
    event = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        event.set()
        restore()

    with answered(note) as restore:
        yield event
