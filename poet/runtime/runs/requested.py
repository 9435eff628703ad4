"""Training as a `RunRequest` says, in this process or in a confined one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from poet.plans.plan_file import PlanFile
from poet.plans.run_request import Epoch, RateSchedule, RunRequest
from poet.plans.training_plan import Plan
from poet.runtime.runs.fit import Samples, fit, load_samples
from poet.runtime.runs.spending import Allowance, Spending
from poet.runtime.runs.validation import Validator
from poet.runtime.runs.watching import MemoryWatcher
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
