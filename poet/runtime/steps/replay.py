"""The replay of a plan's schedule: one training step on the tensors that live across steps.

Updates are made in place, so what an error leaves behind depends on when it strikes. Before the step's
first update of a parameter or of module state, the training state is still that of the last committed step.
After it there is none, and `poet.runtime.steps.lasting.LastingTensors.broken` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from poet.errors import PlanError, PoetError, ReplayError
from poet.ir.micro import IS_FIRST
from poet.plans.training_plan import Plan
from poet.problem.schedule import Compute, Schedule
from poet.runtime.kernels.cells import Cells, Padded, Repeated
from poet.runtime.native.library import BETWEEN_STEPS
from poet.runtime.steps import program
from poet.runtime.steps.lasting import LastingTensors
from poet.runtime.storage.background import Pager

Tap = Callable[[str, torch.Tensor], None]
"""Called with a parameter's name and its gradient, which is only there during the call."""


class StepReplay:
    """The compiled schedule of a training step; the first run also checks what kernels give."""

    def __init__(
        self,
        plan: Plan,
        cells: Cells,
        tensors: LastingTensors,
        *,
        pager: Pager | None,
        generator: torch.Generator | None,
        sums_gradients: bool = False,
    ) -> None:
        """Compile the schedule.

        Args:
            plan: that is open for training, or one beside it.
            cells: of its graph, in which what lives across steps is while it runs.
            tensors: that live across steps.
            pager: of its page slots.
            generator: that random ops draw from.
            sums_gradients: whether it is told which micro-batch is the first of a step.

        Raises:
            PlanError: the plan asks for what this runtime does not have.
        """
        self._plan, self._tensors, self._cells = plan, tensors, cells
        self._pager, self._generator = pager, generator
        self._persistent = plan.graph.persistent()
        self._passing = [  # cells of what is not kept for the next step
            cell
            for buffer, values in cells.of_buffer.items()
            for cell, _ in values
            if buffer not in tensors.held
        ]
        self._given = [cells.value(name) for name in plan.graph.inputs]
        self._program = program.compile_plan(
            plan, self._cells, pages=pager, generator=generator, moving=tensors.moving
        )
        self._is_checked = False
        known = {*plan.optimizer.hyperparameters(1), *([IS_FIRST] if sums_gradients else [])}
        unknown = self._cells.hyperparameters - known
        if unknown:
            raise PlanError(f"optimizer {plan.optimizer.name} has no hyperparameter {min(unknown)!r}")

    def step(
        self,
        number: int | None,
        given: Sequence[torch.Tensor | Padded | Repeated],
        scalars: Mapping[str, float],
        *,
        mark: program.Mark,
        on_gradient: Tap | None = None,
        on_instruction: Callable[[int], object] | None = None,
    ) -> tuple[float, tuple[torch.Tensor, ...]]:
        """Make step ``number``; gives its loss and the model's outputs.

        Args:
            number: for messages; ``None``: it is an evaluation.
            given: inputs and targets, in the graph's order; copied.
            scalars: the hyperparameters of this step.
            mark: told of each instruction before it runs, where memory is placed.
            on_gradient: sees every gradient as it is made.
            on_instruction: called before each instruction with the index of its step in the schedule.

        Raises:
            ReplayError: it failed; see the module's docstring.
        """
        self._cells.set_hyperparameters(scalars)
        self._begin(given)
        called = "an evaluation" if number is None else f"step {number}"
        self._run(called, mark, on_gradient, on_instruction)
        return self._hand_over()

    def done(self) -> None:
        """A step was made: the next ones need no checks of what kernels give.

        There is one program at a time: its size is that of the schedule, and a process may be confined.
        """
        if self._is_checked:
            return
        self._is_checked = True
        oversized = self._program.oversized
        del self._program
        try:
            self._program = program.compile_plan(
                self._plan,
                self._cells,
                pages=self._pager,
                generator=self._generator,
                oversized=oversized,
                moving=self._tensors.moving,
            )
        except BaseException as error:
            self._tensors.broken = f"the next step could not be put together ({first_line(error)})"
            raise

    def _begin(self, given: Sequence[torch.Tensor | Padded | Repeated]) -> None:
        graph, contents = self._plan.graph, self._cells.contents
        for name, cell, tensor in zip(graph.inputs, self._given, given, strict=True):
            self._cells.allocate(graph.buffer_of(name))
            target = contents[cell]
            if isinstance(tensor, torch.Tensor):
                target.copy_(tensor)
            else:
                tensor.put(target)

    def _run(
        self,
        called: str,
        mark: program.Mark,
        on_gradient: Tap | None,
        on_instruction: Callable[[int], object] | None,
    ) -> None:
        program, in_tap = self._program, False
        program.reached = -1
        taps = program.gradients if on_gradient else {}
        try:
            if on_gradient is None and on_instruction is None:
                program.run(self._cells.contents, mark)
                return
            for index, run in program.instructions:
                program.reached = index
                if mark is not None:
                    mark(index + 1)
                if on_instruction is not None:
                    on_instruction(index)
                if on_gradient is None or index not in taps:
                    run()
                    continue
                if mark is not None:
                    mark(BETWEEN_STEPS)  # what is allocated for the caller is not the step's
                for tap in taps[index]:
                    tap.open()
                if mark is not None:
                    mark(index + 1)
                run()
                in_tap = True
                if mark is not None:
                    mark(BETWEEN_STEPS)
                for tap in taps[index]:
                    on_gradient(tap.name, tap.take())
                in_tap = False
        except BaseException as error:
            index = program.reached
            self._recover(called, index, error)
            if in_tap or isinstance(error, PoetError) or not isinstance(error, Exception):
                raise
            what = _in_words(self._plan.schedule, index)
            raise ReplayError(f"{called} failed at {what}: {first_line(error)}{_hint(error)}") from error

    def _recover(self, called: str, index: int, error: BaseException) -> None:
        """Go back to the last committed step after a failure at instruction ``index``, if possible."""
        for buffer in () if self._pager is None else self._pager.give_up():
            self._cells.clear(buffer)
        for buffer in self._cells.of_buffer:
            if buffer not in self._persistent:
                self._cells.clear(buffer)
        if index >= self._program.first_update:
            self._tensors.broken = f"{called} failed halfway ({error})"
            return
        try:
            self._tensors.restore(self._cells, self._pager)
        except ReplayError as second:
            self._tensors.broken = f"{called} failed ({error}) and so did the way back ({second})"

    def _hand_over(self) -> tuple[float, tuple[torch.Tensor, ...]]:
        graph, contents = self._plan.graph, self._cells.contents
        loss = float(contents[self._cells.value(graph.loss)])
        predictions = tuple(contents[self._cells.value(name)] for name in graph.predictions)
        for cell in self._passing:
            contents[cell] = None
        return loss, predictions


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _hint(error: BaseException) -> str:
    """What to do about an error of a kernel whose own words do not say; empty: they do."""
    if "all elements of input should be between 0 and 1" in str(error):
        return (
            "; the loss bce takes probabilities: end the model with a sigmoid, or plan with bce-with-logits"
        )
    return ""


def _in_words(schedule: Schedule, index: int) -> str:
    if index == len(schedule):
        return "moving tensors to where the step began"
    step = schedule[index]
    if isinstance(step, Compute):
        return f"running {step.op}"
    return f"{type(step).__name__} of {step.tensor}"
