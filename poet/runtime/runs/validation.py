"""What happens after each epoch of a run that validates: evaluate, keep the best state, know when to end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from poet.plans.run_request import Epoch, RunRequest, Validation
from poet.runtime.runs.fit import Samples
from poet.runtime.training.evaluation import Batch, chosen_metrics
from poet.runtime.training.trainer import Trainer


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
