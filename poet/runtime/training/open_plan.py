"""A plan that is open: its tensors, its page file, and the replays of its schedules on them."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from poet.errors import ReplayError
from poet.ir.graph import TensorType, stored_row_bytes
from poet.plans.training_plan import Plan, Shape, shape_called
from poet.runtime.data.given import (
    Buckets,
    Given,
    GivenTensors,
    as_tensors,
    check_sizes,
    is_as_large,
    next_larger,
)
from poet.runtime.kernels.cells import Cells, Padded
from poet.runtime.kernels.guards import check_calls
from poet.runtime.steps.beside import Accumulation, Draws, StepBeside, slots_beside, slots_of
from poet.runtime.steps.instructions import Tap
from poet.runtime.steps.lasting import ArenaUse, LastingTensors
from poet.runtime.steps.replay import StepReplay
from poet.runtime.storage import state
from poet.runtime.storage.background import Pager
from poet.runtime.storage.page_file import PageFile
from poet.runtime.system.outputs import Outputs
from poet.runtime.system.process import check_computes, check_owns_pages
from poet.runtime.training.evaluation import Evaluations


def open_pages(plan: Plan, folder: Path, page_file: str | Path | None) -> PageFile | None:
    """The page file of ``plan``; ``None`` where it pages nothing.

    Args:
        plan: to train with.
        folder: for an unnamed file.
        page_file: its path; ``None``: an unnamed one.

    Raises:
        PageFileError: it cannot be had.
    """
    slots = slots_of(plan)
    if not slots:
        return None
    return PageFile(
        slots,
        path=None if page_file is None else Path(page_file),
        folder=folder,
        buffer_bytes=plan.page_buffer_bytes,
        row_bytes=stored_row_bytes(plan.graph),
    )


def pager_of(plan: Plan, pages: PageFile) -> Pager:
    """Moves what ``plan`` pages, beside its ops where the plan counts on that."""
    return Pager(pages, is_background=plan.problem.background_storage)


Made = tuple[float, Outputs]
"""A loss, and the model's outputs."""


class OpenShape:
    """A training step for batches of another shape.

    Attributes:
        given: what it takes.
    """

    def __init__(self, plan: Plan, compiled: Callable[[], StepBeside]) -> None:
        self.given = GivenTensors(plan)
        self._compiled = compiled

    @functools.cached_property
    def step(self) -> StepBeside:
        """Its compiled schedule; compiled when it is first asked for."""
        return self._compiled()


class OpenPlan:
    """What a trainer has of one plan.

    Attributes:
        plan: that is replayed.
        pages: where it pages to; ``None``: it does not.
        given: what its steps take.
        tensors: that live across steps.
        draws: the random numbers of the training.
        accumulation: of micro-batches.
        shapes: steps for batches of other shapes.
        evaluations: forward passes in evaluation mode.
    """

    def __init__(
        self,
        plan: Plan,
        source: state.Source,
        *,
        folder: Path,
        page_file: str | Path | None,
        arena: ArenaUse,
    ) -> None:
        """Compile the schedules of ``plan`` and fill its tensors; see `poet.runtime.Trainer.open`.

        Args:
            plan: to train with.
            source: of its tensors.
            folder: for an unnamed page file.
            page_file: its path; ``None``: an unnamed one.
            arena: whether the memory of steps is placed.

        Raises:
            PageFileError: the page file cannot be had.
            PlanError: the plan asks for what this runtime does not have.
            ReplayError: an arena is required and cannot be had.
        """
        self.plan, self.pages = plan, open_pages(plan, folder, page_file)
        self._folder, self._page_file = folder, page_file
        with contextlib.ExitStack() as undo:
            if self.pages is not None:
                undo.callback(self.pages.close)
            self._compile(source)
            undo.callback(self.tensors.close)
            self.tensors.fill(source, arena=arena)
            undo.pop_all()

    def _compile(self, source: state.Source) -> None:
        plan, pages = self.plan, self.pages
        state.check_fillable(plan.graph)
        for graph in (plan.graph, *(other.plan.graph for other in plan.auxiliaries)):
            check_calls(graph)
        self._pager = None if pages is None else pager_of(plan, pages)
        self.given = GivenTensors(plan)
        self.draws = Draws(plan, source.random_state)
        self.tensors = LastingTensors(plan, Cells(plan.graph), pages)
        generator = self.draws.generator
        cells = self.tensors.cells
        self._replay = StepReplay(
            plan,
            cells,
            self.tensors,
            pager=self._pager,
            generator=generator,
            sums_gradients=plan.accumulation is not None,
        )
        self.accumulation = Accumulation(plan, self.tensors, self._pager, generator)
        self.shapes = [
            self._open_shape(shape.step, shape_called(number)) for number, shape in enumerate(plan.shapes)
        ]
        taken = [self.given, *(shape.given for shape in self.shapes)]
        self.evaluations = Evaluations(plan, self.tensors, taken, self.draws, self._pager)
        self._added = 0  # shapes, since the plan was opened
        self._opened_in = os.getpid()

    def step(
        self,
        number: int,
        inputs: Given,
        targets: Given | None,
        scalars: Mapping[str, float],
        *,
        buckets: Buckets | None = None,
        on_gradient: Tap | None = None,
        on_instruction: Callable[[int], object] | None = None,
    ) -> Made:
        """Make step ``number``: that for this shape, or sum micro-batches and update with the last.

        Arguments and errors as of `poet.runtime.Trainer.step`; ``scalars`` are the hyperparameters.
        """
        shape, padded = self._padded(inputs, targets, buckets)
        if padded is None:
            shape = self._taking(inputs, targets)
        if shape is not None:
            given = shape.given.checked(inputs, targets) if padded is None else padded
            with torch.no_grad(), self.draws.undone_on_failure():
                loss, outputs = shape.step.run(
                    number, given, scalars, on_gradient=on_gradient, on_instruction=on_instruction
                )
            return loss, self.tensors.hand_over(outputs)
        earlier: list[tuple[torch.Tensor, ...]] = []
        last: Sequence[torch.Tensor | Padded]
        if padded is None:
            *earlier, last = self.given.pieces(inputs, targets)
        else:
            last = padded
        losses: list[float] = []
        try:
            losses.extend(self.accumulate(number, given, scalars)[0] for given in earlier)
            placed = self.tensors.placed
            memory = (
                contextlib.nullcontext() if placed is None else placed.step(is_watchable=on_gradient is None)
            )
            with torch.no_grad(), self.draws.undone_on_failure(), memory:
                loss, predictions = self._replay.step(
                    number,
                    last,
                    {**scalars, **self.accumulation.scalars},
                    mark=None if placed is None else placed.mark,
                    on_gradient=on_gradient,
                    on_instruction=on_instruction,
                )
        except BaseException as error:
            if losses and self.tensors.broken is None:
                self.tensors.broken = f"step {number} failed after {len(losses)} micro-batches ({error})"
            raise
        self.accumulation.count = 0
        self._replay.done()
        return math.fsum([*losses, loss]) / (len(losses) + 1), self.tensors.hand_over(predictions)

    def takes(self, inputs: Given, targets: Given | None, buckets: Buckets | None = None) -> bool:
        """Whether a step takes batches of this shape, or none can be had: there are micro-batches.

        Args:
            inputs: of the model.
            targets: of the loss.
            buckets: which pad them to a larger shape.

        Raises:
            InputError: something is no tensor and no array of numbers.
        """
        if self.plan.request.micro is not None:
            return True
        given = (*as_tensors(inputs), *as_tensors(targets))
        if buckets is not None and next_larger(given, self._types) is not None:
            return True
        return any(is_as_large(given, types) for types in self._types)

    def _taking(self, inputs: Given, targets: Given | None) -> OpenShape | None:
        """The other shape that batches like this one have; ``None``: there is none."""
        if not self.shapes:
            return None
        given = (*as_tensors(inputs), *as_tensors(targets))
        return next((shape for shape in self.shapes if is_as_large(given, shape.given.types)), None)

    def _open_shape(self, plan: Plan, called: str) -> OpenShape:
        return OpenShape(
            plan,
            functools.partial(
                StepBeside,
                plan,
                self.tensors,
                called=called,
                pager=self._pager,
                generator=self.draws.generator,
            ),
        )

    @property
    def _types(self) -> list[tuple[TensorType, ...]]:
        """What the steps take, the plan's own first."""
        return [self.given.types, *(shape.given.types for shape in self.shapes)]

    def _padded(
        self, inputs: Given, targets: Given | None, buckets: Buckets | None
    ) -> tuple[OpenShape | None, Sequence[torch.Tensor | Padded] | None]:
        """The shape (``None``: the plan's own) to which ``buckets`` pads a batch, and that; or nothing."""
        if buckets is None or self.takes(inputs, targets):
            return None, None
        given = (*as_tensors(inputs), *as_tensors(targets))
        number = next_larger(given, self._types)
        if number is None:
            return None, None
        check_sizes(given, self.plan.graph.inputs, self._types)
        shape = self.shapes[number - 1] if number else None
        return shape, (self.given if shape is None else shape.given).padded(given, buckets)

    def add_shape(self, shape: Shape) -> None:
        """From now on batches of ``shape`` have its step, in place of one that there was for them.

        Args:
            shape: beside the plan's step; it has no evaluation.

        Raises:
            PlanError: it is no auxiliary schedule of the plan.
            PageFileError: there is no room for what it pages.
        """
        types = shape.step.given_types
        others = [
            (made, its)
            for made, its in zip(self.plan.shapes, self.shapes, strict=True)
            if its.given.types != types
        ]
        # plans for other budgets have no such shape
        plan = replace(self.plan, shapes=(*(made for made, _ in others), shape), budgets=())
        self._added += 1
        called = f"added{self._added}/"
        slots = slots_beside(called, shape.step, () if self.pages is None else self.pages.slots)
        if slots and self.pages is None:
            path = None if self._page_file is None else Path(self._page_file)
            self.pages = PageFile(slots, path=path, folder=self._folder, buffer_bytes=0)
            self._pager = pager_of(plan, self.pages)
        elif slots and self.pages is not None:
            self.pages.extend(slots)
        opened = self._open_shape(shape.step, called)
        opened.given.allow_nan = self.given.allow_nan
        self.shapes[:] = [*(its for _, its in others), opened]
        self.plan = plan

    def accumulate(self, number: int, given: Sequence[torch.Tensor], scalars: Mapping[str, float]) -> Made:
        """Sum the gradients of one micro-batch of step ``number``; errors as of `Accumulation.run`."""
        with torch.no_grad(), self.draws.undone_on_failure():
            loss, outputs = self.accumulation.run(number, given, scalars)
        return loss, self.tensors.hand_over(outputs)

    def allow_nan(self, allowed: bool) -> None:
        """Whether targets may be NaN or infinite."""
        for given in (self.given, *(shape.given for shape in self.shapes)):
            given.allow_nan = allowed

    def check_may_run(self) -> None:
        """Do nothing if a step or an evaluation may begin.

        Raises:
            ReplayError: it may not; nothing has happened.
        """
        self.tensors.check_usable()
        check_computes()
        if self.pages is not None:
            check_owns_pages(self._opened_in)
        placed = self.tensors.placed
        if placed is not None and placed.refusal:
            raise ReplayError(placed.refusal)

    @property
    def hyperparameters(self) -> frozenset[str]:
        """Names of the scalars that the plan's updates are given in each step."""
        return self.tensors.cells.hyperparameters

    @property
    def waited_seconds(self) -> float:
        """For how long steps stood still for storage, so far."""
        return 0.0 if self._pager is None else self._pager.waited_seconds

    def close(self) -> None:
        """Give the memory and the page file back; a second call does nothing."""
        if self._pager is not None:
            self._pager.close()  # what is in flight needs its memory and the file to the end
        self.tensors.close()
        if self.pages is not None:
            self.pages.close()
