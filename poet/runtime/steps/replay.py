"""The replay of a plan's schedule: a training step, or both halves of one around the caller's own loss.

Updates are made in place, so what an error leaves behind depends on when it strikes. Before the step's
first update of a parameter or of module state, the training state is still that of the last committed step.
After it there is none, and `poet.runtime.steps.lasting.LastingTensors.broken` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from poet.errors import InputError, PlanError, PoetError, ReplayError
from poet.ir.graph import Op, TensorType
from poet.ir.micro import IS_FIRST
from poet.plans.training_plan import Plan
from poet.problem.schedule import Compute, Schedule
from poet.runtime.kernels import arguments
from poet.runtime.kernels.cells import Cells, Padded, Repeated
from poet.runtime.kernels.guards import check_calls
from poet.runtime.steps import instructions, program
from poet.runtime.steps.instructions import Mark, Program, Tap
from poet.runtime.steps.lasting import LastingTensors
from poet.runtime.steps.passes import PassMemory
from poet.runtime.storage.background import Pager
from poet.runtime.storage.page_file import PageFile
from poet.runtime.system.process import check_computes
from poet.util.reading import Closing

_CALLERS_LOSS = "poet.callers_loss"


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
        """Compile the schedule of the plan that is open for training, or of an auxiliary one.

        Args:
            plan: whose schedule it is.
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
        mark: Mark,
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
        mark: Mark,
        on_gradient: Tap | None,
        on_instruction: Callable[[int], object] | None,
    ) -> None:
        compiled, contents = self._program, self._cells.contents
        try:
            with compiled.threads:
                if on_gradient is None and on_instruction is None:
                    compiled.run(contents, mark)
                else:
                    compiled.run_told(contents, mark, on_gradient, on_instruction)
        except BaseException as error:
            self._recover(called, compiled.reached, error)
            if compiled.is_in_tap or isinstance(error, PoetError) or not isinstance(error, Exception):
                raise
            what = _in_words(self._plan.schedule, compiled.reached)
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


class SplitReplay(Closing):
    """A plan without loss and update, bound to tensors that its caller keeps.

    Attributes:
        read_after: values among inputs, parameters and outputs whose contents backward reads.
        memory: of its passes.
    """

    def __init__(self, plan: Plan, *, pages: PageFile | None) -> None:
        """Bind ``plan``, whose graph has one op that stands for the caller's loss.

        Raises:
            PlanError: it has none, or asks for an operator that there is not.
        """
        check_calls(plan.graph)
        self.plan, self._pages = plan, pages
        self._cells = Cells(plan.graph)
        in_background = plan.problem.background_storage
        self._pager = None if pages is None else Pager(pages, is_background=in_background)
        self._loss_op, self._pause = _callers_loss(plan)
        self._compile(None)
        self._is_checked = False
        self._persistent = plan.graph.persistent()
        self._bound: dict[str, tuple[object, ...]] = {}
        outputs = set(self._loss_op.call.refs())
        self._outputs = [name for name in plan.graph.predictions if name in outputs]
        self._gradients = plan.graph.predictions[len(self._outputs) :]
        self.read_after = self._read_after((*plan.graph.inputs, *self._outputs))
        made_outside = (name for name in self._loss_op.outputs if name is not None)
        callers = {plan.graph.buffer_of(name) for name in (*self._outputs, *made_outside)}
        self.memory = PassMemory(plan, callers)
        self.is_under_way = False

    def bind(self, values: Mapping[str, torch.Tensor]) -> None:
        """Let the plan work on these tensors themselves: of parameters, module state and constants.

        Raises:
            InputError: one is of another type or shape than the plan's.
        """
        for name, tensor in values.items():
            known = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if self._bound.get(name) != known:
                self._install(name, tensor.detach())
                self._bound[name] = known

    def forward(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run up to the outputs, which are the caller's from then on.

        Raises:
            InputError: a tensor has another shape or type than the plan's; nothing has happened.
            ReplayError: an op failed.
        """
        check_computes()
        for name, tensor in zip(self.plan.graph.inputs, inputs, strict=True):
            self._install(name, tensor.detach())
        self.is_under_way = True
        self.memory.begin()
        self._run(self._forward)
        contents = self._cells.contents
        return tuple(_alias(contents[self._cells.value(name)]) for name in self._outputs)

    def backward(self, gradients: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Run the rest, given the gradients of outputs; the gradients it makes, which are the caller's.

        Raises:
            ReplayError: an op failed.
        """
        names = [name for name in self._loss_op.outputs if name is not None]
        self._cells.contents[self._cells.value(names[0])] = torch.zeros(())
        for name, tensor in zip(names[1:], gradients, strict=True):
            self._install(name, tensor.detach())
        self._run(self._backward)
        made = tuple(self._cells.contents[self._cells.value(name)] for name in self._gradients)
        self.discard()
        if not self._is_checked:
            self._is_checked = True
            self._compile(self._backward.oversized)
        return made

    def zeros(self, output: str) -> torch.Tensor:
        """The gradient of an output that the loss does not use."""
        kind = self._cells.types[output]
        return torch.zeros(kind.shape, dtype=arguments.dtype(kind.dtype))

    def discard(self) -> None:
        """Release what lives between forward and backward."""
        if self._pager is not None:
            self._pager.give_up()
        for buffer in self._cells.of_buffer:
            if buffer not in self._persistent:
                self._cells.clear(buffer)
        self.memory.end()
        self.is_under_way = False

    def close(self) -> None:
        """Give the memory and the page file back; a second call does nothing."""
        self.discard()
        self.memory.close()
        if self._pager is not None:
            self._pager.close()
        if self._pages is not None:
            self._pages.close()

    # --- inside ---

    def _compile(self, oversized: set[str] | None) -> None:
        """Both halves; what the caller's loss frees, the second half begins with."""
        whole = program.compile_plan(self.plan, self._cells, pages=self._pager, oversized=oversized)
        for item in whole.instructions:
            if item.index == self._pause:
                item.kernel, item.fetch, item.outputs = instructions.no_kernel, instructions.no_arguments, ()
        self._forward = whole.part(0, self._pause)
        self._backward = whole.part(self._pause, len(self.plan.schedule) + 1)

    def _run(self, half: Program) -> None:
        try:
            with torch.no_grad(), half.threads, self.memory.half() as mark:
                half.run(self._cells.contents, mark)
        except BaseException as error:
            self.discard()
            if isinstance(error, PoetError) or not isinstance(error, Exception):
                raise
            what = _in_words(self.plan.schedule, half.reached)
            raise ReplayError(f"a replay failed at {what}: {first_line(error)}") from error

    def _install(self, name: str, tensor: torch.Tensor) -> None:
        """Make every cell of the value's buffer a view of ``tensor``; of a copy if it has other strides."""
        kind = self._cells.types[name]
        if tensor.device.type != "cpu":
            raise InputError(f"{name} is on device {tensor.device}; a plan runs on the CPU")
        if (str(tensor.dtype), tuple(tensor.shape)) != (f"torch.{kind.dtype}", kind.shape):
            found = f"{str(tensor.dtype).removeprefix('torch.')}[{','.join(map(str, tensor.shape))}]"
            raise InputError(f"{name} is {found}, the module was wrapped for {kind}")
        buffer = self.plan.graph.buffer_of(name)
        if tensor.stride() != kind.strides and tensor.numel() > 1:
            if buffer in self._persistent:
                raise InputError(f"{name} has other strides than when the module was wrapped; wrap it again")
            tensor = torch.empty_strided(kind.shape, kind.strides, dtype=tensor.dtype).copy_(tensor)
        storage, base_bytes = tensor.untyped_storage(), int(tensor.storage_offset()) * tensor.element_size()
        for number, view in self._cells.of_buffer[buffer]:
            self._cells.contents[number] = _view_at(storage, view, base_bytes)

    def _read_after(self, names: Sequence[str]) -> frozenset[str]:
        graph = self.plan.graph
        ops = {op.name: op for op in graph.ops}
        again = {step.op for step in self.plan.schedule[: self._pause] if isinstance(step, Compute)}
        read: set[str] = set()
        for step in self.plan.schedule[self._pause + 1 :]:
            if isinstance(step, Compute):
                op = ops[step.op]
                call = op.recall if op.name in again and op.recall is not None else op.call
                read.update(graph.reads(call))
                again.add(op.name)
        own = (*names, *(item.value for item in graph.parameters))
        return frozenset(name for name in own if graph.buffer_of(name) in read)


def _callers_loss(plan: Plan) -> tuple[Op, int]:
    """The op that stands for the caller's loss, and where the schedule has it.

    Raises:
        PlanError: there is not exactly one.
    """
    found = [op for op in plan.graph.ops if op.call.target == _CALLERS_LOSS]
    places = [index for index, step in enumerate(plan.schedule) if found and step == Compute(found[0].name)]
    if len(found) != 1 or len(places) != 1:
        raise PlanError(f"{plan.model.name}: the plan is not one of a wrapped module")
    return found[0], places[0]


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor of its own, whose writes torch counts from here on."""
    own = torch.empty(0, dtype=tensor.dtype)
    return own.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _view_at(storage: torch.UntypedStorage, kind: TensorType, base_bytes: int) -> torch.Tensor:
    empty = torch.empty(0, dtype=arguments.dtype(kind.dtype))
    offset = kind.offset + base_bytes // empty.element_size()
    return empty.set_(storage, offset, kind.shape, kind.strides)
