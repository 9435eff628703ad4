"""Prediction and evaluation with an open plan: single batches, and sums over many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from poet.errors import PoetError, ReplayError
from poet.runtime.background import Pager
from poet.runtime.draws import Draws
from poet.runtime.evaluation import (
    Batch,
    EvaluationResult,
    EvaluationTally,
    Evaluator,
    chosen_metrics,
    counted_batches,
)
from poet.runtime.given import Given, GivenTensors
from poet.runtime.lasting import LastingTensors
from poet.runtime.replay import first_line
from poet.training_plan import Plan


class Evaluations:
    """What a trainer does in evaluation mode."""

    def __init__(
        self, plan: Plan, tensors: LastingTensors, given: GivenTensors, draws: Draws, pager: Pager | None
    ) -> None:
        self._plan, self._tensors, self._given = plan, tensors, given
        self._draws, self._pager = draws, pager
        self._made: Evaluator | None = None

    def check(self) -> None:
        """Do nothing if the plan has an evaluation.

        Raises:
            PlanError: it has none.
        """
        self._evaluator()

    def predict(self, inputs: Given) -> tuple[torch.Tensor, ...]:
        """See `poet.runtime.Trainer.predict`."""
        # the originals lie where the next step needs the room
        return tuple(output.clone() for output in self._forward(inputs, None)[1])

    def evaluate(self, batches: Iterable[Batch], metrics: Sequence[str] | None) -> EvaluationResult:
        """See `poet.runtime.Trainer.evaluate`."""
        shape = self._given.types[0].shape
        size = shape[0] if shape else 0
        tally = EvaluationTally(chosen_metrics(self._plan, metrics))
        for given, samples in counted_batches(batches, size):
            self._add_batch(given, samples, tally, is_whole=samples == size)
        return tally.result()

    def _add_batch(
        self, given: Sequence[torch.Tensor], samples: int, tally: EvaluationTally, *, is_whole: bool
    ) -> None:
        """In a function of its own, so that the outputs have given up their places when the next begins."""
        targets = self._plan.graph.targets
        inputs, wanted = given[: len(given) - targets], given[len(given) - targets :]
        loss, outputs = self._forward(inputs, wanted, samples=samples)
        only = wanted[0] if targets == 1 else None
        tally.add(loss, outputs[0], only, samples, is_whole=is_whole)

    def _forward(
        self, inputs: Given, targets: Given | None, *, samples: int | None = None
    ) -> tuple[float, tuple[torch.Tensor, ...]]:
        self._tensors.check_usable()
        given = self._given.checked(inputs, targets, needs_targets=targets is not None, samples=samples)
        evaluator = self._evaluator()
        try:
            with torch.no_grad(), self._draws.undone_on_failure():
                return evaluator.run(given, placed=self._tensors.placed, generator=self._draws.generator)
        except BaseException as error:
            if not self._tensors.is_all_there:
                self._tensors.broken = f"an evaluation failed ({error})"
            if isinstance(error, PoetError) or not isinstance(error, Exception):
                raise
            raise ReplayError(f"an evaluation failed: {first_line(error)}") from error

    def _evaluator(self) -> Evaluator:
        if self._made is None:
            self._made = Evaluator(self._plan, self._tensors.cells, self._pager)
        return self._made
