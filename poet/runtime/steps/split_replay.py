"""Replays a plan in two halves, around the moment at which the caller computes the loss.

The caller owns parameters, module state, the batch, the outputs and the gradients; in between the memory is
the plan's. One pass at a time: the schedule has room for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from poet.errors import InputError, PlanError, PoetError, ReplayError
from poet.ir.graph import Op, TensorType
from poet.plans.training_plan import Plan
from poet.problem.schedule import Compute
from poet.runtime.kernels import arguments
from poet.runtime.kernels.cells import Cells
from poet.runtime.kernels.guards import check_calls
from poet.runtime.steps import program
from poet.runtime.storage.background import Pager
from poet.runtime.storage.page_file import PageFile
from poet.runtime.system.process import check_computes
from poet.util.reading import Closing

_CALLERS_LOSS = "poet.callers_loss"


class SplitReplay(Closing):
    """A plan without loss and update, bound to tensors that its caller keeps.

    Attributes:
        read_after: values among inputs, parameters and outputs whose contents backward reads.
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
        self._program = program.compile_plan(plan, self._cells, pages=self._pager)
        self._is_checked = False
        self._persistent = plan.graph.persistent()
        self._bound: dict[str, tuple[int, torch.dtype]] = {}
        outputs = set(self._loss_op.call.refs())
        self._outputs = [name for name in plan.graph.predictions if name in outputs]
        self._gradients = plan.graph.predictions[len(self._outputs) :]
        self.read_after = self._read_after((*plan.graph.inputs, *self._outputs))
        self.is_under_way = False

    def bind(self, values: Mapping[str, torch.Tensor]) -> None:
        """Let the plan work on these tensors themselves: of parameters, module state and constants.

        Raises:
            InputError: one is of another type or shape than the plan's.
        """
        for name, tensor in values.items():
            known = (tensor.data_ptr(), tensor.dtype)
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
        self._run(0, self._pause)
        if self._pager is not None:
            self._drain()
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
        self._run(self._pause + 1, len(self.plan.schedule))
        made = tuple(self._cells.contents[self._cells.value(name)] for name in self._gradients)
        self.discard()
        if not self._is_checked:
            self._is_checked = True
            self._program = program.compile_plan(
                self.plan, self._cells, pages=self._pager, oversized=self._program.oversized
            )
        return made

    def discard(self) -> None:
        """Release what lives between forward and backward."""
        if self._pager is not None:
            self._pager.give_up()
        for buffer in self._cells.of_buffer:
            if buffer not in self._persistent:
                self._cells.clear(buffer)
        self.is_under_way = False

    def close(self) -> None:
        """Give the memory and the page file back; a second call does nothing."""
        self.discard()
        if self._pager is not None:
            self._pager.close()
        if self._pages is not None:
            self._pages.close()

    # --- inside ---

    def _run(self, begin: int, end: int) -> None:
        index = begin
        try:
            with torch.no_grad():
                for index, run in self._program.instructions:
                    if begin <= index < end:
                        run()
        except BaseException as error:
            self.discard()
            if isinstance(error, PoetError) or not isinstance(error, Exception):
                raise
            step = self.plan.schedule[index]
            what = step.op if isinstance(step, Compute) else step.tensor
            line = (str(error).splitlines() or [type(error).__name__])[0]
            raise ReplayError(f"a replay failed at {what}: {line}") from error

    def _drain(self) -> None:
        assert self._pager is not None
        try:
            self._pager.drain()
        except BaseException:
            self.discard()
            raise

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
