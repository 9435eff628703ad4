"""Training as a `RunRequest` says, in this process or in a confined one."""

from __future__ import annotations

from collections.abc import Iterator

from poet.plan_file import PlanFile
from poet.run_request import Epoch, RunRequest
from poet.runtime.fit import Samples, fit
from poet.runtime.trainer import Trainer


def open_trainer(file: PlanFile, request: RunRequest) -> Trainer:
    """The plan, open for the training that is asked for; errors as of `Trainer.open`."""
    return Trainer.of(
        file,
        page_file=request.page_file,
        learning_rate=request.learning_rate,
        seed=request.seed,
        resume=request.resume,
        arena="require" if request.arena == "require" else bool(request.arena),
        allow_nan=request.allow_nan,
    )


def metered_epochs(
    trainer: Trainer, samples: Samples, request: RunRequest
) -> Iterator[tuple[Epoch, int | None]]:
    """What each epoch gave, and its peak of tensor memory in bytes where that can be measured.

    Saves, ends and fails as `fit` does.
    """
    training = fit(
        trainer, samples, epochs=request.epochs, save_path=request.output, save_every=request.save_every
    )
    while True:
        with trainer.peak_meter() as meter:
            epoch = next(training, None)
        if epoch is None:
            return
        yield epoch, meter.peak.bytes
