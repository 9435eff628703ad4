"""Prediction and evaluation with an open plan: single batches, and sums over many."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from poet.errors import InputError, PlanError, PoetError, ReplayError
from poet.ir.graph import TensorType
from poet.ir.loss import LossSpec
from poet.plans.training_plan import EVALUATION, Plan, shape_called
from poet.runtime.data.counting import fingerprint
from poet.runtime.data.given import Given, GivenTensors, as_tensors
from poet.runtime.data.metrics import LossWeights
from poet.runtime.steps.beside import Draws
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
        tally = EvaluationTally(chosen_metrics(self._plan, metrics), LossWeights(self._plan))
        for given, samples in counted_batches(batches, max(sizes), self._is_whole):
            self._add_batch(given, samples, tally)
        return tally.result()

    def _is_whole(self, given: Sequence[torch.Tensor]) -> bool:
        return any(is_as_large(given, item.given.types) for item in self._shapes)

    def _add_batch(self, given: Sequence[torch.Tensor], samples: int, tally: EvaluationTally) -> None:
        """In a function of its own, so that the outputs have released their places when the next begins."""
        fitting = [item for item in self._shapes if holds_samples_of(given, item.given.types)]
        chosen = min(fitting, key=lambda item: (not item.is_there, item.size), default=self._shapes[0])
        targets = self._plan.graph.targets
        inputs, wanted = given[: len(given) - targets], given[len(given) - targets :]
        only = wanted[0] if targets == 1 else None
        weight = tally.weights.of(wanted, samples)
        if is_as_large(given, chosen.given.types):
            loss, outputs = self._forward(chosen, inputs, wanted)
            tally.add(outputs[0], only, samples)
            tally.add_loss(loss, weight)
            return
        tally.add_loss(self._sum_of_few(chosen, given, samples, tally) / (weight or math.nan), weight)

    def _sum_of_few(
        self, chosen: _OpenEvaluation, given: Sequence[torch.Tensor], samples: int, tally: EvaluationTally
    ) -> float:
        """The loss of fewer samples than a batch of ``chosen`` has, times what they weigh.

        A batch is filled up with them: each is there so many times, and the first ones once more. What those
        add is found from a batch that is filled up with them alone, and so on, until none are left over.

        Raises:
            InputError: the output for a sample depends on the others in the batch.
        """
        targets = given[len(given) - self._plan.graph.targets :]
        sums: list[tuple[int, float]] = []
        of_first: list[int] = []
        count = samples
        while count:
            times, rest = divmod(chosen.size, count)
            loss, bits = self._filled(chosen, given, count, None if sums else tally)
            of_first.append(bits)
            weight = times * tally.weights.of(targets, count) + tally.weights.of(targets, rest)
            weight = 1.0 if tally.weights.are_one else weight
            sums.append((times, loss * weight if weight else 0.0))
            count = rest
        if samples > 1 and len(of_first) == 1 and not chosen.is_checked:
            of_first.append(self._filled(chosen, given, 1, None)[1])
        chosen.is_checked = True
        if len(set(of_first)) > 1:
            raise InputError(
                f"{self._plan.model.name}: in evaluation mode its output for a sample depends on the others "
                f"of the batch, so that a step for {chosen.size} samples cannot evaluate {samples}; plan for "
                "that size too (poet solve --shape, shapes=), or leave them out"
            )
        total = 0.0
        for times, whole in reversed(sums):
            total = (whole - total) / times
        return total

    def _filled(
        self,
        chosen: _OpenEvaluation,
        given: Sequence[torch.Tensor],
        count: int,
        tally: EvaluationTally | None,
    ) -> tuple[float, int]:
        """The loss of a batch of the first ``count`` samples over and over, and what the first one gives."""
        part = [tensor[:count] for tensor in given]
        first = len(part) - self._plan.graph.targets
        loss, outputs = self._forward(chosen, part[:first], part[first:], samples=count)
        if tally is not None:
            tally.add(outputs[0], part[-1] if len(part) - first == 1 else None, count)
        return loss, chosen.first_bits(outputs)

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
        self.is_checked = False  # whether samples are known not to depend on others of their batch

    def first_bits(self, outputs: Sequence[torch.Tensor]) -> int:
        """Of the outputs for the first sample; 0 where they are random, or samples do not come first."""
        graph = self.evaluator().graph
        time_first = LossSpec.parse(self._plan.request.loss).option("time_first")
        if time_first or any(op.random for op in graph.ops):
            return 0
        alike = [output for output in outputs if output.dim() and len(output) == self.size]
        return hash(tuple(fingerprint(output[:1]) for output in alike))

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
