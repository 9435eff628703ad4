"""Prediction and evaluation with an open plan: single batches, and sums over many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from poet.errors import PlanError, PoetError, ReplayError
from poet.graph import TensorType
from poet.plans.training_plan import Plan
from poet.runtime.data.given import Given, GivenTensors, as_tensors
from poet.runtime.steps.companions import EVALUATION, shape_called
from poet.runtime.steps.draws import Draws
from poet.runtime.steps.lasting import LastingTensors
from poet.runtime.steps.replay import first_line
from poet.runtime.storage.background import Pager
from poet.runtime.training.evaluation import (
    Batch,
    EvaluationResult,
    EvaluationTally,
    Evaluator,
    chosen_metrics,
    counted_batches,
)
from poet.runtime.training.shapes import OpenShape, holds_samples_of, is_as_large


class Evaluations:
    """What a trainer does in evaluation mode."""

    def __init__(
        self,
        plan: Plan,
        tensors: LastingTensors,
        given: GivenTensors,
        draws: Draws,
        pager: Pager | None,
        shapes: Sequence[OpenShape],
    ) -> None:
        """Nothing is compiled yet; ``given`` is of the training step, ``shapes`` are the plan's others."""
        self._plan, self._tensors = plan, tensors
        self._draws = draws
        evaluation = plan.evaluation
        if evaluation is not None and evaluation.given_types != plan.given_types:  # it is of one micro-batch
            given = GivenTensors(evaluation)
        self._shapes = [_OpenEvaluation(plan, evaluation, EVALUATION, given, tensors, pager)]
        for number, (shape, opened) in enumerate(zip(plan.shapes, shapes, strict=True)):
            called = shape_called(number) + EVALUATION
            its = _OpenEvaluation(plan, shape.evaluation, called, opened.given, tensors, pager)
            self._shapes.append(its)

    def allow_nan(self, allowed: bool) -> None:
        """Whether targets may be NaN or infinite."""
        self._shapes[0].given.allow_nan = allowed

    def check(self) -> None:
        """Do nothing if the plan has an evaluation.

        Raises:
            PlanError: it has none.
        """
        self._shapes[0].evaluator()

    def predict(self, inputs: Given) -> tuple[torch.Tensor, ...]:
        """See `poet.runtime.Trainer.predict`."""
        given, targets = as_tensors(inputs), self._plan.graph.targets
        taking = [item for item in self._shapes if is_as_large(given, _less(item.given.types, targets))]
        chosen = max(taking, key=lambda item: item.is_there, default=self._shapes[0])
        # the originals lie where the next step needs the room
        return tuple(output.clone() for output in self._forward(chosen, given, None)[1])

    def evaluate(self, batches: Iterable[Batch], metrics: Sequence[str] | None) -> EvaluationResult:
        """See `poet.runtime.Trainer.evaluate`."""
        sizes = [item.size for item in self._shapes if item.is_there] or [self._shapes[0].size]
        tally = EvaluationTally(chosen_metrics(self._plan, metrics))
        for given, samples in counted_batches(batches, max(sizes), self._is_whole):
            self._add_batch(given, samples, tally)
        return tally.result()

    def _is_whole(self, given: Sequence[torch.Tensor]) -> bool:
        return any(is_as_large(given, item.given.types) for item in self._shapes)

    def _add_batch(self, given: Sequence[torch.Tensor], samples: int, tally: EvaluationTally) -> None:
        """In a function of its own, so that the outputs have given up their places when the next begins."""
        fitting = [item for item in self._shapes if holds_samples_of(given, item.given.types)]
        chosen = min(fitting, key=lambda item: (not item.is_there, item.size), default=self._shapes[0])
        targets = self._plan.graph.targets
        inputs, wanted = given[: len(given) - targets], given[len(given) - targets :]
        is_whole = is_as_large(given, chosen.given.types)
        loss, outputs = self._forward(chosen, inputs, wanted, samples=None if is_whole else samples)
        only = wanted[0] if targets == 1 else None
        tally.add(loss, outputs[0], only, samples, is_whole=is_whole)

    def _forward(
        self,
        chosen: _OpenEvaluation,
        inputs: Given,
        targets: Given | None,
        *,
        samples: int | None = None,
    ) -> tuple[float, tuple[torch.Tensor, ...]]:
        self._tensors.check_usable()
        given = chosen.given.checked(inputs, targets, needs_targets=targets is not None, samples=samples)
        evaluator = chosen.evaluator()
        try:
            with torch.no_grad(), self._draws.undone_on_failure():
                return evaluator.run(given, generator=self._draws.generator)
        except BaseException as error:
            if not self._tensors.is_all_there:
                self._tensors.broken = f"an evaluation failed ({error})"
            if isinstance(error, PoetError) or not isinstance(error, Exception):
                raise
            raise ReplayError(f"an evaluation failed: {first_line(error)}") from error


class _OpenEvaluation:
    """The evaluation of one shape; compiled when it is first asked for."""

    def __init__(
        self,
        plan: Plan,
        evaluation: Plan | None,
        called: str,
        given: GivenTensors,
        tensors: LastingTensors,
        pager: Pager | None,
    ) -> None:
        self.given = given
        shape = given.types[0].shape if given.types else ()
        self.size = shape[0] if shape else 0
        self._plan, self._evaluation, self._called = plan, evaluation, called
        self._tensors, self._pager = tensors, pager
        self._made: Evaluator | None = None

    @property
    def is_there(self) -> bool:
        return self._evaluation is not None

    def evaluator(self) -> Evaluator:
        if self._evaluation is None:
            of_what = "" if self._called == EVALUATION else f" for {self.given.types[0]}"
            raise PlanError(
                f"{self._plan.model.name}: the plan has no evaluation{of_what}; plan again (poet solve, "
                "poet.plan), which says why where none can be had"
            )
        if self._made is None:
            self._made = Evaluator(
                self._plan, self._evaluation, self._tensors, self._pager, called=self._called
            )
        return self._made


def _less(types: tuple[TensorType, ...], targets: int) -> tuple[TensorType, ...]:
    """Of what a step takes, the model's inputs."""
    return types[: len(types) - targets]
