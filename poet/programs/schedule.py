"""A schedule as a function of tensors, for tracers: every run in its place, and nothing kept beyond a free.

Calls see tensors without content. What a runtime does with them is given as a function of one call, so that
the same walk writes down PyTorch's kernels or those of another library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from poet.errors import PlanError, PoetError
from poet.ir.graph import Argument, Blank, Call, Graph, Op, Ref, Symbol, TensorType
from poet.ir.named import Joined, named_parameters, packed_values
from poet.ir.operators import RANDOM
from poet.planning.exported import opened
from poet.plans.plan_file import PlanFile
from poet.plans.planned_step import PlannedStep
from poet.plans.training_plan import Plan
from poet.problem.schedule import Compute, Free, PageIn, PageOut
from poet.runtime.kernels import arguments
from poet.runtime.storage.state import pieces

Run = Callable[[Op, Call, Any], Sequence[Tensor | None]]
"""Makes the outputs of an op by a call, with what the `Walk` of the runtime holds."""


def lasting(graph: Graph, *, whole: bool = True) -> dict[str, Joined]:
    """What lives across steps, by the module's names: parameters, module state, then constants and the rest.

    What is tied stands under the first of its names.
    What the optimizer keeps stands under ``optimizer.STATE.PARAMETER``, so that names are attribute paths.
    Where they are not to be ``whole``, the parts of a tensor stand by themselves, as ``NAME.rows_FIRST``.
    """
    types = {value.name: value.type for value in graph.values}
    named = named_parameters(graph)
    found = [item.content for item in named]
    found += [Joined(name, types[value], (value,)) for name, value in (*graph.states, *graph.constants)]
    first: dict[tuple[str, ...], Joined] = {}
    for content in found:
        first.setdefault(content.values, content)
    by_name = {content.name: content for content in first.values()}
    for item in named:
        by_name |= {f"optimizer.{state}.{item.name}": joined for state, joined in item.optimizer_state}
    if whole:
        return by_name
    return {
        f"{name}.rows_{first}" if item.bounds else name: Joined(name, types[value], (value,))
        for name, item in by_name.items()
        for value, (first, _) in zip(item.values, item.bounds or ((0, 0),), strict=True)
    }


STEPS = "optimizer.steps"
"""The buffer that counts a program's steps, where its optimizer's numbers change with them."""


def changing(plan: Plan) -> list[str]:
    """The optimizer's numbers that change from step to step."""
    first, *later = (plan.optimizer.hyperparameters(step) for step in (1, 2, 3))
    return [name for name in first if any(each[name] != first[name] for each in later)]


def check(plan: Plan) -> None:
    """Do nothing if the plan's step can be one call of one program.

    Raises:
        PlanError: it cannot; the message names the way out.
    """
    slots = {slot.tensor for slot in plan.slots}
    lasting_slots = sorted(slots & plan.graph.persistent())
    formed = any(step.alternative for step in plan.schedule if isinstance(step, PageOut))
    formed |= any(tensor.page_form is not None for tensor in plan.problem.tensors if tensor.name in slots)
    random = [op.name for op in plan.graph.ops if op.random or any(map(_draws, _calls(op)))]
    reasons = {
        f"its plan pages {', '.join(lasting_slots[:1])}, which lives across steps; plan with --no-paging": (
            lasting_slots or any(op.stored for op in plan.graph.ops)
        ),
        "its plan pages in fewer bits; plan with --no-paging or without --allow": formed,
        "its step is several micro-batches; plan without --micro": plan.accumulation,
        "its base is packed, and a program has no kernel for that; plan without --base": (
            packed_values(plan.graph)
        ),
        f"op {', '.join(random[:1])} draws random numbers, and a program has no generator to rerun it with; "
        "plan the model without dropout": random,
    }
    if why := next((why for why, is_so in reasons.items() if is_so), None):
        raise PlanError(f"{plan.model.name} cannot be a program: {why}")


def _scalars(plan: Plan, steps: Any) -> dict[str, Any]:
    """The optimizer's numbers as expressions of ``steps``, those made with this one.

    Raises:
        PlanError: they are no such expressions.
    """
    try:
        return plan.optimizer.scalars_of_any(steps)
    except Exception as error:
        raise PlanError(
            f"{plan.model.name} cannot be a program: {changing(plan)[0]} of optimizer {plan.optimizer.name} "
            "is no plain expression of the step; plan with --optimizer sgd, momentum, adam or adamw"
        ) from error


def _calls(op: Op) -> list[Call]:
    return [op.call] if op.strip is None else [link.call for link in op.strip.links]


def _draws(call: Call) -> bool:
    return call.target in RANDOM or "rng" in call.target


class Walk:
    """The tensors in RAM while a schedule is walked.

    Attributes:
        scalars: of the optimizer, by name.
        graph: that the schedule is of.
        types: of its values.
    """

    def __init__(
        self, step: PlannedStep, run: Run, scalars: Mapping[str, Any], page_file: str | None = None
    ) -> None:
        self.graph, self._schedule, self._run = step.graph, step.schedule, run
        self.scalars = scalars
        self._values = {value.name: value for value in step.graph.values}
        self.types = {value.name: value.type for value in step.graph.values}
        self._sizes_bytes = {buffer.name: buffer.size_bytes for buffer in step.graph.buffers}
        self._held: dict[str, tuple[Tensor, int]] = {}  # by buffer, and the element where it begins
        self._kinds: dict[str, TensorType] = {}
        self._views: dict[str, dict[str, Tensor]] = {}
        self._persistent = step.graph.persistent()
        self._page_file, self._slots = page_file, {slot.tensor: slot for slot in step.slots}
        self._paged: dict[str, str] = {}  # by buffer, the value that was paged out

    def install(self, value: str, tensor: Tensor) -> None:
        """Let ``tensor`` be ``value``, and all other values of its buffer views of it."""
        buffer, kind = self._values[value].buffer, self._values[value].type
        self._held[buffer], self._kinds[buffer] = (tensor, int(tensor.storage_offset()) - kind.offset), kind
        self._views[buffer] = {value: tensor}

    def tensor(self, value: str) -> Tensor:
        """What ``value`` is now."""
        buffer, kind = self._values[value].buffer, self._values[value].type
        views = self._views[buffer]
        if value not in views:
            whole, begin = self._held[buffer]
            if whole.dtype != arguments.dtype(kind.dtype):
                raise PlanError(f"value {value} views memory of {whole.dtype} as {kind.dtype}")
            views[value] = whole.as_strided(kind.shape, kind.strides, begin + kind.offset)
        return views[value]

    def given(self, argument: Argument) -> Any:
        """What a kernel is given for ``argument``."""
        if isinstance(argument, Blank):
            return self.blank(argument.type)
        if isinstance(argument, Ref):
            return self.tensor(argument.value)
        if isinstance(argument, Symbol) and argument.kind == "hyperparameter":
            return self.scalars[argument.name]
        if isinstance(argument, tuple):
            return [self.given(item) for item in argument]
        return arguments.constant(argument)

    def blank(self, kind: TensorType) -> Tensor:
        """A tensor whose contents nothing reads: memory that is there already, or none at all."""
        for buffer, (whole, begin) in self._held.items():
            if (
                whole.dtype == arguments.dtype(kind.dtype)
                and kind.extent_bytes <= self._sizes_bytes[buffer]
                and not begin
            ):
                return whole.as_strided(kind.shape, kind.strides, 0)
        made = empty(kind)
        torch.ops.inductor.resize_storage_bytes_(made, 0)
        return made

    @staticmethod
    def number(tensor: Tensor) -> Any:
        """What stands for the element of ``tensor`` in numbers that kernels are given."""
        return tensor.item()

    def walk(self) -> tuple[Tensor, ...]:
        """Run the schedule on what was installed; the loss, then the predictions.

        Raises:
            PlanError: an op cannot be written down.
        """
        ops, ran = {op.name: op for op in self.graph.ops}, set[str]()
        for step in self._schedule:
            if isinstance(step, Free):
                del self._held[step.tensor], self._views[step.tensor]
            elif isinstance(step, PageOut):
                value = self._paged[step.tensor] = next(iter(self._views[step.tensor]))
                self._page_out(value, self._offset_bytes(value))
            elif isinstance(step, PageIn):
                value = self._paged[step.tensor]
                self.install(value, self._page_in(value, self._offset_bytes(value)))
            elif isinstance(step, Compute):
                op = ops[step.op]
                call = op.recall if op.name in ran and op.recall is not None else op.call
                ran.add(op.name)
                self._compute(op, call)
        return tuple(self.tensor(name) for name in (self.graph.loss, *self.graph.predictions))

    def _offset_bytes(self, value: str) -> int:
        """Where the slot begins of all of the buffer that ``value`` is."""
        buffer = self._values[value].buffer
        if self.types[value].extent_bytes != self._sizes_bytes[buffer]:
            raise PlanError(f"{buffer} is paged and larger than {value}; plan with --no-paging")
        return self._slots[buffer].offset_bytes

    def _page_out(self, value: str, offset_bytes: int) -> None:
        self._page_of(value, offset_bytes).copy_(self.tensor(value))

    def _page_in(self, value: str, offset_bytes: int) -> Tensor:
        return empty(self.types[value]).copy_(self._page_of(value, offset_bytes))

    def _page_of(self, value: str, offset_bytes: int) -> Tensor:
        """The slot of ``value`` in the page file, which is mapped for as long."""
        kind, slots = self.types[value], self._slots.values()
        element = arguments.dtype(kind.dtype)
        count = max(slot.offset_bytes + slot.size_bytes for slot in slots) // element.itemsize
        whole: Tensor = torch.ops.aten.from_file.default(self._page_file, True, count, dtype=element)
        return whole.as_strided(kind.shape, kind.strides, offset_bytes // element.itemsize + kind.offset)

    def _compute(self, op: Op, call: Call) -> None:
        try:
            made = self._run(op, call, self)
        except PoetError:
            raise
        except Exception as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise PlanError(f"op {op.name} ({call.target}) cannot be written down: {said}") from error
        for place, name in enumerate(op.outputs):
            if name is None or self._values[name].buffer in self._held:
                continue
            result, kind = made[place], self._values[name].type
            if result is None:
                raise PlanError(f"op {op.name} ({call.target}) gives no {name}")
            is_so = (result.dtype, tuple(result.shape))
            if is_so != (arguments.dtype(kind.dtype), kind.shape):
                raise PlanError(f"{name} came out as {is_so}, the plan says {kind}")
            self.install(name, self._as_planned(result, kind, self._sizes_bytes[self._values[name].buffer]))

    def _as_planned(self, result: Tensor, kind: TensorType, size_bytes: int) -> Tensor:
        """``result`` in no more memory than the plan has for it, with the plan's strides."""
        if result.untyped_storage().nbytes() > size_bytes:
            return empty(kind).copy_(result)
        if result.stride() != kind.strides:
            return result.as_strided(kind.shape, kind.strides, result.storage_offset())
        return result


def contents(file: PlanFile, state: str | Path | None, *, whole: bool = True) -> dict[str, Tensor]:
    """What `lasting` names, with what ``state`` holds of it; ``None``: as the plan begins.

    Raises:
        PlanError: a file is damaged, or the state is of another plan's model.
    """
    found = {}
    with opened(file, state) as source:
        for name, item in lasting(file.plan.graph, whole=whole).items():
            found[name] = empty(item.type)
            for value, part in pieces(item, found[name]):
                source.fill(value, part)
        if changing(file.plan):
            found[STEPS] = torch.tensor(float(source.steps))  # of float32, as torch.optim counts
    return found


@contextlib.contextmanager
def _mapped_files() -> Iterator[None]:
    """In the block, tracers know what ``aten.from_file`` gives; torch itself does not say."""
    library: Any = torch.library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]

    def from_file(name: str, shared: bool, size: int, *, dtype: torch.dtype, **_: Any) -> Tensor:
        return torch.empty(size, dtype=dtype, device="meta")

    library.impl("from_file", from_file)
    try:
        yield
    finally:
        library._destroy()


def traced(plan: Plan, run: Run, *, walk: type[Walk] = Walk, page_file: str | None = None) -> fx.GraphModule:
    """The schedule of ``plan`` as a graph of what ``run`` calls; it takes `lasting`, then inputs.

    Raises:
        PlanError: the plan cannot be a program, or an op cannot be written down.
    """
    check(plan)
    named, is_counted = lasting(plan.graph, whole=walk is Walk), bool(changing(plan))

    def step(*tensors: Tensor) -> tuple[Tensor, ...]:
        scalars: dict[str, Any] = plan.optimizer.hyperparameters(1)
        inputs = tensors[len(named) + is_counted :]
        if is_counted:
            steps = tensors[len(named)]
            scalars = _scalars(plan, walk.number(steps.copy_(steps + 1)))
        held = walk(plan, run, scalars, page_file)
        for item, whole in zip(named.values(), tensors, strict=False):
            for value, part in pieces(item, whole):
                held.install(value, part)
        for value, given in zip(plan.graph.inputs, inputs, strict=True):
            held.install(value, given)
        return (*([steps] if is_counted and walk is not Walk else []), *held.walk())

    with _mapped_files(), FakeTensorMode(shape_env=ShapeEnv()), torch.no_grad():
        given = [empty(item.type) for item in named.values()]
        given += [torch.zeros(())] * is_counted
        given += [empty(kind) for kind in plan.given_types]
        made: fx.GraphModule = make_fx(step, tracing_mode="fake")(*given)
    made.graph.eliminate_dead_code()  # outputs that no call reads; what writes in place stays
    return made


def empty(kind: TensorType) -> Tensor:
    """A tensor of this type."""
    return torch.empty_strided(kind.shape, kind.strides, dtype=arguments.dtype(kind.dtype))
