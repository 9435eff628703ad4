"""Prediction and evaluation inside the budget of training: the plan's forward-only schedules, on its tensors.

While one runs, what lives across steps is lent to it. It may move parts of that to storage and back, as its
schedule says; afterwards the trainer has it again, every bit as before.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from poet.errors import InputError, PlanError
from poet.ir.loss import LossSpec
from poet.plans.training_plan import EVALUATION, Plan, shape_called
from poet.runtime.data.given import Given, GivenTensors, as_tensors, holds_samples_of, is_as_large
from poet.runtime.data.metrics import LossWeights, Metric, chosen_metrics, fingerprint, loss_of_all
from poet.runtime.kernels.cells import Repeated
from poet.runtime.steps.beside import Draws, StepBeside
from poet.runtime.steps.lasting import LastingTensors
from poet.runtime.storage.background import Pager
from poet.util.brief import brief

Batch = tuple[torch.Tensor | Sequence[torch.Tensor], torch.Tensor | Sequence[torch.Tensor] | None]
"""A model's inputs, and the loss's targets where it has any; samples stand in the first dimension."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What an evaluation gave.

    Attributes:
        loss: of all samples, as the loss gives it of them in one batch; ``None`` where it is not finite.
        metrics: by name; ``None`` where nothing was counted.
        samples: that were counted.
        seconds: wall clock.
    """

    loss: float | None
    metrics: dict[str, float | None]
    samples: int
    seconds: float

    __repr__ = brief


class Evaluations:
    """What a trainer does in evaluation mode."""

    def __init__(
        self,
        plan: Plan,
        tensors: LastingTensors,
        given: Sequence[GivenTensors],
        draws: Draws,
        pager: Pager | None,
    ) -> None:
        """Nothing is compiled yet; ``given`` is what the plan's step and those of its other shapes take."""
        self._plan, self._tensors = plan, tensors
        self._draws = draws
        evaluations = [(EVALUATION, plan.evaluation)]
        for number, shape in enumerate(plan.shapes):
            evaluations.append((shape_called(number) + EVALUATION, shape.evaluation))
        self._shapes = [
            _OpenEvaluation(plan, evaluation, called, taken, tensors, pager, draws.generator)
            for (called, evaluation), taken in zip(evaluations, given, strict=True)
        ]

    def check(self) -> None:
        """Do nothing if the plan has an evaluation.

        Raises:
            PlanError: it has none.
        """
        _ = self._shapes[0].step

    def predict(self, inputs: Given) -> tuple[torch.Tensor, ...]:
        """See `poet.runtime.Trainer.predict`."""
        given, targets = as_tensors(inputs), self._plan.graph.targets
        taking = [
            item
            for item in self._shapes
            if is_as_large(given, item.given.types[: len(item.given.types) - targets])
        ]
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
        step, missing = chosen.step, len(chosen.given.types) - len(given)
        filled = [*map(Repeated, given), *[Repeated(None)] * missing]
        with torch.no_grad(), self._draws.undone_on_failure():
            return step.run(None, filled, {})


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
        generator: torch.Generator | None,
    ) -> None:
        self.given = given
        shape = given.types[0].shape if given.types else ()
        self.size = shape[0] if shape else 0
        self._plan, self._evaluation, self._called = plan, evaluation, called
        self._tensors, self._pager, self._generator = tensors, pager, generator
        self.is_checked = False  # whether samples are known not to depend on others of their batch

    def first_bits(self, outputs: Sequence[torch.Tensor]) -> int:
        """Of the outputs for the first sample; 0 where they are random, or samples do not come first."""
        ops = () if self._evaluation is None else self._evaluation.graph.ops
        time_first = LossSpec.parse(self._plan.request.loss).option("time_first")
        if time_first or any(op.random for op in ops):
            return 0
        alike = [output for output in outputs if output.dim() and len(output) == self.size]
        return hash(tuple(fingerprint(output[:1]) for output in alike))

    @property
    def is_there(self) -> bool:
        return self._evaluation is not None

    @functools.cached_property
    def step(self) -> StepBeside:
        if self._evaluation is None:
            of_what = "" if self._called == EVALUATION else f" for {self.given.types[0]}"
            raise PlanError(
                f"{self._plan.model.name}: the plan has no evaluation{of_what}; plan again (poet solve, "
                "poet.plan), which says why where none can be had"
            )
        return StepBeside(
            self._evaluation,
            self._tensors,
            called=self._called,
            pager=self._pager,
            generator=self._generator,
        )


class EvaluationTally:
    """Sums over the batches of an evaluation. It keeps no output: the next batch needs their places."""

    def __init__(self, metrics: Sequence[Metric], weights: LossWeights) -> None:
        self._metrics, self.weights = metrics, weights
        self._losses: list[float] = []
        self._weights: list[float] = []
        self._samples = 0
        self._started = time.perf_counter()

    def add(self, output: torch.Tensor, targets: torch.Tensor | None, samples: int) -> None:
        """Count the first ``samples`` of the model's output for a batch."""
        self._samples += samples
        if targets is not None:
            for metric in self._metrics:
                metric.add(output[:samples], targets[:samples])

    def add_loss(self, loss: float, weight: float) -> None:
        """Count the loss of a batch."""
        self._losses.append(loss)
        self._weights.append(weight)

    def result(self) -> EvaluationResult:
        """The loss and the metrics."""
        loss = loss_of_all(self._losses, self._weights, are_one=self.weights.are_one)
        return EvaluationResult(
            loss=loss if math.isfinite(loss) else None,
            metrics={metric.name: metric.value() for metric in self._metrics},
            samples=self._samples,
            seconds=time.perf_counter() - self._started,
        )


def counted_batches(
    batches: Iterable[Batch], size: int, is_planned: Callable[[Sequence[torch.Tensor]], bool]
) -> Iterator[tuple[list[torch.Tensor], int]]:
    """Each batch, and how many samples it has.

    One that ``is_planned`` need not have them in the first dimension of each; the last tensor counts.

    Raises:
        InputError: any other batch has no sample, or more than ``size``.
    """
    for inputs, targets in batches:
        given = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        given += [targets] if isinstance(targets, torch.Tensor) else list(targets or ())
        if is_planned(given):
            yield given, len(given[-1]) if given[-1].dim() else 1
            continue
        counts = {len(tensor) if tensor.dim() else 0 for tensor in given}
        count = counts.pop() if len(counts) == 1 else 0
        if not 0 < count <= size:
            raise InputError(f"a batch to evaluate has 1 to {size} samples, the same number in each tensor")
        yield given, count
