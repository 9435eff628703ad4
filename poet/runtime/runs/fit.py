"""Training over the samples of a file, epoch by epoch, and what it may spend before it stops."""

from __future__ import annotations

import hashlib
import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import torch

from poet.errors import InputError, NotFinite, OverBudget, PoetError
from poet.plans.run_request import Epoch, RateSchedule
from poet.plans.training_plan import Plan
from poet.runtime.data.metrics import default_metrics, metric_named
from poet.runtime.data.samples import Samples as Samples
from poet.runtime.data.samples import batch_of as batch_of
from poet.runtime.data.samples import load_samples as load_samples
from poet.runtime.data.samples import trained_of as trained_of
from poet.runtime.runs.watching import MemoryWatcher
from poet.runtime.training.trainer import StepResult, Trainer
from poet.util.interrupts import answered
from poet.util.units import format_bytes, format_joules, format_seconds

_log = logging.getLogger("poet.runtime")

_ROUNDING = 1e-9  # of joules


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a run of training may spend; ``None``: as much as it takes.

    Attributes:
        joules: by the plan's figures, or by a meter.
        seconds: by the clock.
        written_bytes: to storage, by the plan's figures, and the sizes of the states that are saved.
    """

    joules: float | None = None
    seconds: float | None = None
    written_bytes: int | None = None


class Spending:
    """Counts what a run has spent, and says when there is no room for another step."""

    def __init__(
        self,
        plan: Plan,
        allowance: Allowance,
        *,
        meter: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin to count.

        Args:
            plan: on which the first step is made; `step_done` and `over` may be told of others.
            allowance: of the run.
            meter: gives joules that rise, those of a battery's gauge for example, in place of the plan's.
            clock: gives seconds that rise.

        Raises:
            InputError: not even one step is allowed.
        """
        self._plan, self._allowance = plan, allowance
        self._meter, self._clock = meter, clock
        self._began, self._began_joules = clock(), 0.0 if meter is None else meter()
        self._steps = self._steps_written_bytes = self._saved_bytes = self._last_save_bytes = 0
        self._steps_joules = 0.0
        if why := self.over():
            raise InputError(f"no step can be made: {why}")

    def step_done(self, plan: Plan | None = None) -> None:
        """A step was made, on ``plan``; ``None``: on that of the step before."""
        self._plan = plan or self._plan
        self._steps += 1
        self._steps_joules += self._plan.step_joules
        self._steps_written_bytes += self._plan.step_written_bytes

    def saved(self, path: Path) -> None:
        """A state was written at ``path``."""
        self._last_save_bytes = path.stat().st_size
        self._saved_bytes += self._last_save_bytes

    @property
    def joules(self) -> float:
        """Spent so far."""
        if self._meter is not None:
            return self._meter() - self._began_joules
        return self._steps_joules

    @property
    def written_bytes(self) -> int:
        """Written so far."""
        return self._steps_written_bytes + self._saved_bytes

    def over(self, plan: Plan | None = None) -> str:
        """Which allowance the next step, and a save after it, would exceed; empty: none.

        The step is made on ``plan``; ``None``: on that of the step before.
        """
        allowed, plan = self._allowance, plan or self._plan
        if allowed.joules is not None:
            needed = self.joules + plan.step_joules
            if needed > allowed.joules * (1 + _ROUNDING):
                return (
                    f"another step makes {format_joules(needed)}, {format_joules(allowed.joules)} are allowed"
                )
        if allowed.seconds is not None:
            passed = self._clock() - self._began
            needed = passed + (passed / self._steps if self._steps else 0.0)
            if needed > allowed.seconds:
                shown = format_seconds(allowed.seconds)
                return f"another step ends after {format_seconds(needed)}, {shown} are allowed"
        if allowed.written_bytes is not None:
            bytes_needed = self.written_bytes + plan.step_written_bytes + self._last_save_bytes
            if bytes_needed > allowed.written_bytes:
                shown = format_bytes(allowed.written_bytes)
                return f"another step makes {format_bytes(bytes_needed)} written, {shown} are allowed"
        return ""


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
    plan, factors = trainer.plan, schedule
    batch, trained = batch_of(plan), trained_of(samples.count, plan)
    per_epoch = -(-trained // batch)
    before, begun = divmod(trainer.steps, per_epoch)
    last_step = (before + epochs) * per_epoch
    rates = trainer.learning_rates
    if factors is not None:
        factors = factors.over(last_step)
    if seed is None:
        seed = trainer.seed or 0
    kept = _Kept(
        trainer,
        save_path,
        every=save_every,
        seconds=save_seconds,
        clock=clock,
        keep_previous=keep_previous,
        spending=spending,
        watcher=watcher,
    )
    kept.begin()
    room = [torch.empty(1, dtype=torch.int64)]  # for the number that randperm allocates beside a full arena
    with _deferred_interrupt() as interrupted:
        for number in range(before + 1, before + epochs + 1):
            started = time.perf_counter()
            room.clear()
            order = torch.randperm(samples.count, generator=_generator_of(seed, number), out=samples.order)
            room.append(torch.empty(1, dtype=torch.int64))
            tally, stopped = _Tally(plan), ""
            for start in range(begun * batch, trained, batch):
                if factors is not None:
                    factor = factors.factor_of(trainer.steps)
                    trainer.learning_rates = tuple(rate * factor for rate in rates)
                loss = _trained(trainer, samples, order[start : start + batch], tally)
                stopped = kept.after_step(loss, is_last=trainer.steps == last_step)
                if interrupted.is_set() or stopped:
                    break
            kept.save()
            complete = tally.steps == per_epoch - begun
            begun = 0
            seconds = time.perf_counter() - started
            yield replace(tally.epoch(number, seconds, is_complete=complete), stopped=stopped)
            if interrupted.is_set() or stopped:
                return


def _trained(trainer: Trainer, samples: Samples, chosen: torch.Tensor, tally: _Tally) -> float:
    """The loss of one step on the samples with the numbers ``chosen``, in the plan's micro-batches.

    No result outlives it: its outputs lie where the next step, or micro-batch, has planned other tensors.
    """
    *earlier, last = chosen.split(len(samples.staged[0]))  # type: ignore[no-untyped-call]
    losses = []
    for piece in earlier:
        inputs, targets = samples.batch(piece)
        result = trainer.accumulate(inputs, targets)
        losses.append(result.loss)
        tally.add(result, targets, ends_step=False)
        del result
    inputs, targets = samples.batch(last)
    result = trainer.step(inputs, targets)
    tally.add(result, targets)
    return math.fsum([*losses, result.loss]) / (len(losses) + 1)


class _Kept:
    """What happens after each step: checks, saves of a state in which everything is finite, a look around."""

    def __init__(
        self,
        trainer: Trainer,
        path: str | Path | None,
        *,
        every: int | None,
        seconds: float | None,
        clock: Callable[[], float],
        keep_previous: bool,
        spending: Spending | None,
        watcher: MemoryWatcher | None,
    ) -> None:
        if path is not None:
            trainer.check_save_path(path)
        if seconds is not None and not 0 < seconds < math.inf:
            raise InputError(f"seconds between saves (--save-seconds) are more than 0, not {seconds:g}")
        self._trainer, self._path = trainer, None if path is None else Path(path)
        self._every, self._seconds, self._clock = every, seconds, clock
        self._keep_previous, self._spending, self._watcher = keep_previous, spending, watcher
        self._last = clock()  # save, or the beginning
        self._saved_steps: int | None = None
        self._kept_steps = trainer.steps  # as they were begun with, or saved

    def begin(self) -> None:
        """Before the first step.

        Raises:
            InputError: the plan that the watcher went to takes more than the run may spend.
        """
        if self._watcher is not None:
            self._look(self._watcher)
            if why := self._over():
                raise InputError(f"no step can be made: {why}")

    def after_step(self, loss: float, *, is_last: bool) -> str:
        """Why no other step is to be made; empty where one may be. Errors as of `fit`."""
        steps = self._trainer.steps
        if not math.isfinite(loss) and not self._trainer.allow_nan:
            raise self._not_finite(f"the loss of step {steps} is {loss}")
        try:
            self._trainer.check_budget()
        except OverBudget:
            self._rescue()
            raise
        is_due = self._every is not None and steps % self._every == 0
        if is_due or (self._seconds is not None and self._clock() - self._last >= self._seconds):
            self.save()
        if self._spending is not None:
            self._spending.step_done(self._trainer.plan)
        if self._watcher is not None and not is_last:
            self._look(self._watcher)
        return self._over()

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

    def _look(self, watcher: MemoryWatcher) -> None:
        try:
            watcher.look()
        except (PoetError, OSError, RuntimeError, MemoryError):
            self._rescue()
            raise

    def _rescue(self) -> None:
        """Save what no save has yet; where that fails too, say so."""
        if self._path is None or self._trainer.steps == self._kept_steps:
            return
        try:
            self.save()
        except (PoetError, OSError, RuntimeError, MemoryError) as error:
            _log.warning("poet: the state after step %d was not saved: %s", self._trainer.steps, error)

    def _over(self) -> str:
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
        is_classified = plan.graph.targets == 1 and "accuracy" in default_metrics(plan)
        self._accuracy = metric_named("accuracy", plan) if is_classified else None
        self._losses: list[float] = []
        self._seconds: list[float] = []
        self._own_seconds: list[float] = []
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
        if self._accuracy is not None:
            self._accuracy.add(result.outputs.in_place[0], targets[0])

    def epoch(self, number: int, seconds: float, *, is_complete: bool) -> Epoch:
        loss = statistics.fmean(self._losses)
        return Epoch(
            number=number,
            loss=loss if math.isfinite(loss) else None,
            accuracy=None if self._accuracy is None else self._accuracy.value(),
            steps=self.steps,
            step_seconds=statistics.median(self._seconds),
            seconds=seconds,
            is_complete=is_complete,
            step_own_seconds=statistics.median(self._own_seconds),
        )


@contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event; from the second on it interrupts as always."""
    event = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        event.set()
        restore()

    with answered(note) as restore:
        yield event
