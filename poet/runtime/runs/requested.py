"""Training as a `RunRequest` says, in this process or in a confined one, and its validation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from poet.plans.plan_file import PlanFile
from poet.plans.run_request import Epoch, RateSchedule, RunRequest, Validation
from poet.plans.training_plan import Plan
from poet.runtime.data.metrics import chosen_metrics
from poet.runtime.runs.fit import Allowance, Samples, Spending, fit, load_samples
from poet.runtime.runs.watching import MemoryWatcher
from poet.runtime.training.evaluation import Batch
from poet.runtime.training.trainer import Trainer


def open_trainer(file: PlanFile, request: RunRequest) -> Trainer:
    """The plan, open for the training that is asked for; errors as of `Trainer.open`."""
    trainer = Trainer.of(
        file,
        page_file=request.page_file,
        learning_rate=request.learning_rate,
        seed=request.seed,
        resume=request.resume,
        arena="require" if request.arena == "require" else bool(request.arena),
        allow_nan=request.allow_nan,
    )
    trainer.allow_over_budget = request.allow_over_budget
    return trainer


def validation_samples(plan: Plan, request: RunRequest) -> Samples | None:
    """What is evaluated after each epoch, where that is asked for; errors as of `load_samples`."""
    if request.validate is None:
        return None
    return load_samples(request.validate, plan, allow_nan=request.allow_nan, least=1)


class Validator:
    """Judges epochs by the loss on samples that are not trained on.

    Attributes:
        is_over: whether training should end.
    """

    def __init__(self, trainer: Trainer, samples: Samples, request: RunRequest) -> None:
        """Prepare.

        Raises:
            PlanError: the plan has no evaluation.
            InputError: there is no such metric, or the best state would replace what the run reads.
        """
        trainer.check_evaluates()
        chosen_metrics(trainer.plan, request.metrics or None)
        if request.best is not None:
            trainer.check_save_path(request.best)
        self._trainer, self._samples, self._request = trainer, samples, request
        self._least: float | None = None
        self._waited = 0
        self.is_over = False

    def judged(self, epoch: Epoch) -> Epoch:
        """``epoch`` with its validation; the state is kept where it is the best so far."""
        found = self._trainer.evaluate(self._batches(), self._request.metrics or None)
        is_best = found.loss is not None and (self._least is None or found.loss < self._least)
        if is_best:
            self._least, self._waited = found.loss, 0
            if self._request.best is not None:
                self._trainer.save(Path(self._request.best))
        else:
            self._waited += 1
        patience = self._request.patience
        self.is_over = patience is not None and self._waited >= patience
        validation = Validation(
            loss=found.loss,
            metrics=found.metrics,
            samples=found.samples,
            seconds=found.seconds,
            is_best=is_best,
            ends=self.is_over,
        )
        return replace(epoch, validation=validation)

    def _batches(self) -> Iterator[Batch]:
        """The samples in their order; the last batch may have fewer."""
        evaluation = self._trainer.plan.evaluation
        assert evaluation is not None
        size = evaluation.given_types[0].shape[0]
        for start in range(0, self._samples.count, size):
            parts = tuple(tensor[start : start + size] for tensor in self._samples.tensors)
            inputs = len(parts) - self._samples.targets
            yield parts[:inputs], parts[inputs:]


def metered_epochs(
    trainer: Trainer, samples: Samples, request: RunRequest, validation: Samples | None = None
) -> Iterator[tuple[Epoch, int | None]]:
    """What each epoch gave, and its peak of tensor memory in bytes where that can be measured.

    Saves, ends and fails as `fit` does; where other samples are evaluated, it may end earlier. What cannot be
    evaluated is refused before the first step, when this is called. An evaluation may be over budget, too.
    """
    allowance = Allowance(request.stop_joules, request.stop_seconds, request.stop_written_bytes)
    spending = None if allowance == Allowance() else Spending(trainer.plan, allowance)
    validator = None if validation is None else Validator(trainer, validation, request)
    training = fit(
        trainer,
        samples,
        epochs=request.epochs,
        save_path=request.output,
        save_every=request.save_every,
        save_seconds=request.save_seconds,
        keep_previous=request.keep_previous,
        spending=spending,
        watcher=MemoryWatcher(trainer) if request.watch_memory else None,
        schedule=None if request.schedule is None else RateSchedule.parse(request.schedule),
    )
    return _metered(trainer, training, validator)


def _metered(
    trainer: Trainer, training: Iterator[Epoch], validator: Validator | None
) -> Iterator[tuple[Epoch, int | None]]:
    for number in itertools.count():
        with trainer.peak_meter() as meter:
            epoch = next(training, None)
            if epoch is not None and validator is not None:
                epoch = validator.judged(epoch)
        if epoch is None:
            return
        yield epoch, meter.peak.bytes
        if number or meter.peak.is_counted:  # the kernel's mark has the libraries that a first epoch loads
            trainer.check_budget(meter.peak)
        if validator is not None and validator.is_over:
            return
