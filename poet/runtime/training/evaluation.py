"""Evaluation inside the budget of training: the plan's forward-only schedule, on the trainer's own tensors.

While it runs, what lives across steps is handed over to the evaluation, which may move parts of it to storage
and back, as its schedule says; afterwards the trainer has it again, every bit as before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from poet.errors import InputError, ReplayError
from poet.plans.training_plan import Plan
from poet.runtime.data.metrics import LossWeights, Metric, loss_of_all, metric_named
from poet.runtime.kernels.cells import Cells
from poet.runtime.steps import program
from poet.runtime.steps.beside import CompanionPages
from poet.runtime.steps.instructions import Mark, Program, page_in
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


class Evaluator:
    """An evaluation of an open plan.

    Attributes:
        graph: of its forward pass and loss.
    """

    def __init__(
        self, plan: Plan, evaluation: Plan, tensors: LastingTensors, pager: Pager | None, *, called: str
    ) -> None:
        """Bind it.

        Args:
            plan: that is open for training.
            evaluation: of the plan, or of one of its other shapes.
            tensors: that live across steps.
            pager: of the trainer's page file, which has the slots of
            `poet.runtime.steps.beside.slots_of`.
            called: what begins the names of its page slots.
        """
        self._plan, self._evaluation = plan, evaluation
        self.graph = self._evaluation.graph
        self._tensors, self._theirs = tensors, tensors.cells
        self._cells = Cells(self.graph)
        self._pages = None if pager is None else CompanionPages(called, self._evaluation, pager)
        self._program: Program | None = None
        persistent = self.graph.persistent()
        self._held = [name for name in program.initially_in_ram(plan) if name in persistent]

    def run(
        self,
        given: Sequence[torch.Tensor],
        *,
        generator: torch.Generator | None,
    ) -> tuple[float, tuple[torch.Tensor, ...]]:
        """The loss and the model's outputs for one batch.

        Args:
            given: the model's inputs and the targets; targets may be left out, and zeros stand for them.
            generator: that random ops draw from.

        Raises:
            ReplayError: what was moved to storage could not be had back; the trainer must not go on.
        """
        if self._program is None:
            self._program = program.compile_plan(
                self._evaluation,
                self._cells,
                pages=self._pages,
                generator=generator,
                moving=self._tensors.moving,
            )
        placed = self._tensors.placed
        try:
            self._take()
            if placed is None:
                self._replay(self._program, given, None)
            else:
                with placed.beside(self._evaluation) as mark:
                    self._replay(self._program, given, mark)
            contents, value = self._cells.contents, self._cells.value
            loss = float(contents[value(self.graph.loss)])
            return loss, tuple(contents[value(name)] for name in self.graph.predictions)
        except BaseException:
            for buffer in () if self._pages is None else self._pages.give_up():
                self._cells.clear(buffer)
            raise
        finally:
            self._give_back()

    def _replay(self, compiled: Program, given: Sequence[torch.Tensor], mark: Mark) -> None:
        for place, name in enumerate(self.graph.inputs):
            buffer = self.graph.buffer_of(name)
            self._cells.allocate(buffer)
            target = self._cells.contents[self._cells.value(name)]
            if place < len(given):
                _fill(target, given[place])
            else:
                target.zero_()
        compiled.run(self._cells.contents, mark)

    def _take(self) -> None:
        for buffer in self._held:
            self._cells.install(buffer, self._theirs.raw(buffer))
            self._theirs.clear(buffer)

    def _give_back(self) -> None:
        """The trainer has again what it had; what an error left in storage is fetched."""
        for buffer in self._held:
            if not self._cells.holds(buffer):
                if self._theirs.holds(buffer):  # it was never taken
                    continue
                if self._pages is None:
                    raise ReplayError(f"{buffer} was lost in an evaluation that failed")
                page_in(buffer, self._cells, self._pages)
                self._pages.drain()
            self._theirs.install(buffer, self._cells.raw(buffer))
        for buffer in self._cells.of_buffer:
            self._cells.clear(buffer)


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


def _fill(target: torch.Tensor, given: torch.Tensor) -> None:
    """Copy ``given`` into ``target``; where it has fewer samples, it begins again with its first."""
    if given.shape == target.shape:
        target.copy_(given)
        return
    for start in range(0, len(target), len(given)):
        part = target[start : start + len(given)]
        part.copy_(given[: len(part)])


def chosen_metrics(plan: Plan, names: Sequence[str] | None) -> list[Metric]:
    """Metrics by name, for the plan's first output; not given: that which suits its targets.

    Raises:
        InputError: there is no such metric, or the output has no classes.
    """
    return [metric_named(name, plan) for name in (default_metrics(plan) if names is None else names)]


def default_metrics(plan: Plan) -> tuple[str, ...]:
    """What suits the plan's targets: accuracy of classes, mean absolute error of numbers, else nothing."""
    graph = plan.graph
    if not graph.targets:
        return ()
    for name in ("accuracy", "mae"):
        try:
            metric_named(name, plan)
        except InputError:
            continue
        return (name,)
    return ()
