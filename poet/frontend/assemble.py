"""From lowered ops to the graph of a training step: what is needed, in which order, in which role.

Ops that nothing needs are dropped, each parameter's update is put as early as it may stand, each buffer gets
its role, and ops are named after the module whose parameters they read (``layer1.0.conv1.convolution``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from poet.errors import ModelError
from poet.frontend.lower import Lowered
from poet.ir.graph import (
    ITEM_BYTES,
    Argument,
    Buffer,
    Call,
    Graph,
    Op,
    Parameter,
    Ref,
    Role,
    Symbol,
    TensorType,
    Value,
)
from poet.ir.micro import IS_FIRST
from poet.ir.named import Bounds
from poet.ir.optimizer import OptimizerSpec
from poet.ir.wholes import narrowed
from poet.passes.layouts import contiguous, dense_like, layout_arguments, same_layout
from poet.passes.part_uses import rows_alone
from poet.passes.rewrite import with_updates_placed

_NUMBER = re.compile(r"_*\d*$")
_MASKED = frozenset(
    f"aten.{name}_backward.default"
    for name in ("convolution", "native_batch_norm", "native_layer_norm", "native_group_norm")
)
"""Operators whose last argument says which of their results are wanted."""


def with_speaking_names(graph: Graph) -> Graph:
    """``graph`` with gradients named after their parameters and ops after their modules."""
    gradients = {item.gradient: item.name for item in graph.parameters if item.gradient is not None}
    owners = {graph.buffer_of(value): name for name, value in graph.states}
    owners |= {graph.buffer_of(item.value): item.name for item in graph.parameters}
    owners |= {graph.buffer_of(value): name for value, name in gradients.items()}
    taken = {value.name for value in graph.values} | {buffer.name for buffer in graph.buffers}
    taken_ops = {op.name for op in graph.ops}
    values, ops = {}, {}
    for gradient, parameter in gradients.items():
        values[gradient] = _free(f"{parameter}.grad", taken)
    for op in graph.ops:
        module = _module(op, graph, owners)
        if module and op.outputs:
            ops[op.name] = _free(_within(module, op.name), taken_ops)
            for output in op.outputs:
                if output is not None and output not in values:
                    values[output] = _free(_within(module, output), taken)
    return renamed(graph, values, ops)


def _module(op: Op, graph: Graph, owners: Mapping[str, str]) -> str:
    """The path of the module whose parameter or state the op reads or makes the gradient of, or ``""``."""
    for buffer in (*graph.reads(op.call), *graph.writes(op)):
        if buffer in owners:
            return owners[buffer].rpartition(".")[0]
    return ""


def _within(module: str, name: str) -> str:
    node, dot, part = name.partition(".")
    return f"{module}.{_NUMBER.sub('', node)}{dot}{part}"


def _free(wanted: str, taken: set[str]) -> str:
    numbered = (f"{wanted}_{number}" for number in itertools.count(1))
    name = next(name for name in itertools.chain((wanted,), numbered) if name not in taken)
    taken.add(name)
    return name


def renamed(graph: Graph, values: Mapping[str, str], ops: Mapping[str, str]) -> Graph:
    """``graph`` with new names for some values, for the buffers of the same names, and for some ops."""

    def value(old: str) -> str:
        return values.get(old, old)

    def argument(given: Argument) -> Argument:
        if isinstance(given, Ref):
            return Ref(value(given.value))
        return tuple(map(argument, given)) if isinstance(given, tuple) else given

    def call(given: Call) -> Call:
        named = tuple((key, argument(item)) for key, item in given.kwargs)
        return Call(given.target, tuple(map(argument, given.args)), named)

    def op(old: Op) -> Op:
        return replace(
            old,
            name=ops.get(old.name, old.name),
            call=call(old.call),
            repeat_call=call(old.repeat_call) if old.repeat_call is not None else None,
            outputs=tuple(value(item) if item is not None else None for item in old.outputs),
            updates=tuple(map(value, old.updates)),
        )

    return replace(
        graph,
        buffers=tuple(replace(item, name=value(item.name)) for item in graph.buffers),
        values=tuple(
            replace(item, name=value(item.name), buffer=value(item.buffer)) for item in graph.values
        ),
        ops=tuple(map(op, graph.ops)),
        inputs=tuple(map(value, graph.inputs)),
        loss=value(graph.loss),
        predictions=tuple(map(value, graph.predictions)),
        parameters=tuple(
            replace(item, gradient=value(item.gradient) if item.gradient is not None else None)
            for item in graph.parameters
        ),
    )


@dataclass(frozen=True, slots=True)
class StepNames:
    """The names of a traced step's sources and results, as values of the lowered graph.

    Attributes:
        model: the model's name.
        parameters, states, constants, inputs: of the sources; ``inputs`` end with the targets.
        targets: how many of ``inputs`` are targets.
        loss, predictions: results.
        gradients: per trained parameter its gradient; ``None`` where the loss does not depend on it.
    """

    model: str
    parameters: tuple[str, ...]
    states: tuple[str, ...]
    constants: tuple[str, ...]
    inputs: tuple[str, ...]
    targets: int
    loss: str
    predictions: tuple[str, ...]
    gradients: Mapping[str, str | None]


class Assembly:
    """What becomes the graph of a training step."""

    def __init__(
        self,
        lowered: Lowered,
        names: StepNames,
        optimizer: OptimizerSpec,
        *,
        accumulates: bool = False,
        is_updating: bool = True,
        is_less: bool = False,
        blocks: Mapping[str, Bounds] | None = None,
    ) -> None:
        """Begin with what was lowered.

        Args:
            lowered: the traced ops.
            names: of their sources and results.
            optimizer: makes the updates.
            accumulates: whether gradients are summed over micro-batches.
            is_updating: whether parameters are updated; of all micro-batches but the last they are not.
            is_less: fewer parameters are trained than when the ops were traced.
            blocks: of rows of a parameter that are trained, where not all of it is.
        """
        self.names = names
        self.is_updating = is_updating
        self.accumulates, self.is_less = accumulates, is_less
        self.blocks = {name: rows for name, rows in (blocks or {}).items() if rows}
        self.sums: dict[str, str] = {}  # by parameter
        self.nodes: dict[str, str] = {}  # of the trace, by the buffer of the finished graph that each makes
        self.optimizer = optimizer
        self.ops = list(lowered.ops)
        self.values = dict(lowered.values)
        self.size_bytes = dict(lowered.buffer_bytes)
        self.written = lowered.written
        self.persistent = {*names.parameters, *names.states, *names.constants}

    def graph(self) -> Graph:
        """The graph, with the updates in their places.

        Raises:
            ModelError: the model writes a trained parameter itself.
        """
        loss, *predictions = (self.own_result(name) for name in (self.names.loss, *self.names.predictions))
        gradients = {
            parameter: self.own_gradient(parameter, gradient)
            for parameter, gradient in self.names.gradients.items()
            if gradient is not None
        }
        gradients = self.in_blocks(gradients)
        backward_from = 1 + max(i for i, op in enumerate(self.ops) if self.buffer(loss) in self.writes(op))
        forward = {op.name for op in self.ops[:backward_from]}
        complete = self.accumulated(gradients) if self.accumulates else gradients
        updates = self.state_updates()
        if self.is_updating:
            updates += self.parameter_updates(self.clipped(complete))
        return self.finished(forward, loss, predictions, gradients, updates)

    def finished(
        self,
        forward: set[str],
        loss: str,
        predictions: Sequence[str],
        gradients: Mapping[str, str],
        updates: Sequence[Op],
    ) -> Graph:
        """The graph of what is needed for these results and ``updates``; ``forward`` are names of ops."""
        self.drop_unneeded({self.buffer(name) for name in (loss, *predictions, *gradients.values())}, updates)
        self.place(updates)
        roles = self.roles(forward, gradients)
        used = {*self.persistent, *self.names.inputs}
        for op in self.ops:
            used |= {self.buffer(name) for name in _mentions(op)}
        graph = Graph(
            name=self.names.model,
            buffers=tuple(Buffer(n, size, roles[n]) for n, size in self.size_bytes.items() if n in used),
            values=tuple(self.used_values(used, {loss, *predictions, *gradients.values()})),
            ops=tuple(self.ops),
            inputs=self.names.inputs,
            targets=self.names.targets,
            loss=loss,
            predictions=tuple(predictions),
            parameters=tuple(
                self.parameter(label, name, gradients.get(label))
                for name in self.names.parameters
                for label in (name, *self.labels(name))
            ),
            states=tuple((name, name) for name in self.names.states),
            constants=tuple((name, name) for name in self.names.constants),
        )
        spoken = with_speaking_names(graph)
        pairs = zip(graph.buffers, spoken.buffers, strict=True)
        self.nodes = {new.name: old.name.partition(".")[0] for old, new in pairs}
        return spoken

    # --- small helpers ------------------------------------------------------------------------

    def buffer(self, value: str) -> str:
        return self.values[value].buffer

    def writes(self, op: Op) -> set[str]:
        return {self.buffer(name) for name in op.outputs if name is not None}

    def add_value(self, name: str, type_: TensorType) -> str:
        self.values[name] = Value(name, name, type_)
        self.size_bytes[name] = type_.elements * ITEM_BYTES[type_.dtype]
        return name

    def copied(self, name: str, source: str, type_: TensorType) -> str:
        """An op that copies ``source`` into a buffer of its own; the copy's name."""
        self.add_value(name, type_)
        self.ops.append(Op(name, Call("poet.copy", (Ref(source), *layout_arguments(type_))), (name,)))
        return name

    # --- results ------------------------------------------------------------------------------

    @property
    def taken(self) -> set[str]:
        """Buffers that are not to be handed out: they live across steps, or are the caller's."""
        return {*self.persistent, *self.names.inputs}

    def own_result(self, name: str) -> str:
        """A result that an update would overwrite, or that no op makes, is handed out as a copy."""
        if self.buffer(name) in self.taken:
            type_ = self.values[name].type
            return self.copied(f"{name}.result", name, contiguous(type_.dtype, type_.shape))
        return name

    def own_gradient(self, parameter: str, gradient: str) -> str:
        """The gradient laid out as the parameter is, as autograd lays out ``.grad``."""
        wanted = self.values[parameter].type
        found = self.values[gradient].type
        own = self.buffer(gradient) not in self.taken
        if own and same_layout(found, wanted):
            return gradient
        return self.copied(f"{parameter}.grad", gradient, wanted)

    def clipped(self, gradients: Mapping[str, str]) -> dict[str, str]:
        """What parameters are updated by: their gradients, clipped and negated as the optimizer asks."""
        made = dict(gradients)
        if (largest := self.optimizer.clip_value) is not None:
            made = self.each(made, "clamped", lambda it: Call("aten.clamp.default", (it, -largest, largest)))
        if self.optimizer.clip_norm is not None and made:
            shared = Ref(self.clip_coefficient(made, self.optimizer.clip_norm))
            made = self.each(made, "clipped", lambda it: Call("aten.mul.Tensor", (it, shared)))
        if self.optimizer.maximize:
            made = self.each(made, "negated", lambda it: Call("aten.neg.default", (it,)))
        return made

    def each(self, gradients: Mapping[str, str], what: str, call: Callable[[Ref], Call]) -> dict[str, str]:
        """By parameter, what ``call`` makes of its gradient."""
        return {
            name: self.computed(f"{name}.grad.{what}", call(Ref(gradient)), self.values[gradient].type)
            for name, gradient in gradients.items()
        }

    def clip_coefficient(self, gradients: Mapping[str, str], norm: float) -> str:
        """The number by which the norm of all gradients together becomes at most ``norm``."""
        norms = []
        for name, gradient in _by_dtype(gradients, self.values):
            type_ = contiguous(self.values[gradient].type.dtype, ())
            call = Call("aten.linalg_vector_norm.default", (Ref(gradient), 2.0))
            norms.append(Ref(self.computed(f"{name}.grad.norm", call, type_)))
        dtype = self.values[norms[0].value].type.dtype
        call = Call("poet.clip_coefficient", (tuple(norms), norm))
        return self.computed("grad.clip_coefficient", call, contiguous(dtype, ()))

    def computed(self, name: str, call: Call, type_: TensorType) -> str:
        """An op that makes a value of its own; the value's name."""
        self.add_value(name, dense_like(type_))
        self.ops.append(Op(name, call, (name,)))
        return name

    # --- blocks of rows -----------------------------------------------------------------------

    def labels(self, name: str) -> list[str]:
        """Names of the blocks of a parameter that are trained."""
        return [f"{name}[{start}:{stop}]" for start, stop in self.blocks.get(name, ())]

    def in_blocks(self, gradients: Mapping[str, str]) -> dict[str, str]:
        """The same with those of blocks of a parameter in place of that of all of it.

        A block's gradient is made alone where that gives the bits of the whole's rows; else it is these rows.
        """
        made: dict[str, str] = {}
        for name, gradient in gradients.items():
            if name not in self.blocks:
                made[name] = gradient
            for label, rows in zip(self.labels(name), self.blocks.get(name, ()), strict=True):
                self.values[label] = Value(
                    label, self.buffer(name), narrowed(self.values[name].type, 0, *rows)
                )
                made[label] = self.made_alone(gradient, rows) or self.view(gradient, 0, rows)
        return made

    def view(self, value: str, dim: int, rows: tuple[int, int]) -> str:
        """A value on the same buffer."""
        name = f"{value}[{':,' * dim}{rows[0]}:{rows[1]}]"
        self.values[name] = Value(name, self.buffer(value), narrowed(self.values[value].type, dim, *rows))
        return name

    def made_alone(self, gradient: str, rows: tuple[int, int]) -> str | None:
        """A block of ``gradient`` made by an op of its own; ``None``: no such op gives its bits."""
        place = next((i for i, op in enumerate(self.ops) if gradient in op.outputs), None)
        if place is None:
            return None
        op, called = self.ops[place], f"{self.ops[place].name}[{rows[0]}:{rows[1]}]"
        name = f"{gradient}.rows[{rows[0]}:{rows[1]}]"
        if name in self.values:
            return name
        found = rows_alone(op.call, {key: value.type for key, value in self.values.items()}, rows)
        if found is None or op.updates or op.random:
            return None
        dim, call = found
        first = op.call.args[0]
        assert isinstance(first, Ref)
        call = replace(call, args=(Ref(self.view(first.value, dim, rows)), *call.args[1:]))
        outputs = tuple(
            None
            if it is None
            else self.add_value(f"{it}.rows[{rows[0]}:{rows[1]}]", self.rows_type(it, rows))
            for it in op.outputs
        )
        self.ops.insert(place + 1, Op(called, call, outputs))
        return name

    def rows_type(self, value: str, rows: tuple[int, int]) -> TensorType:
        """Of a tensor of its own with these rows."""
        return dense_like(narrowed(self.values[value].type, 0, *rows))

    # --- updates ------------------------------------------------------------------------------

    def accumulated(self, gradients: Mapping[str, str]) -> dict[str, str]:
        """What parameters are updated by: sums of gradients, each added to right where a gradient is made."""
        self.sums = {name: self.add_value(f"{name}.grad_sum", self.values[name].type) for name in gradients}
        self.persistent |= set(self.sums.values())
        first = Symbol("hyperparameter", IS_FIRST)
        ops = []
        for name, gradient in gradients.items():
            call = Call("poet.accumulate", (Ref(self.sums[name]), Ref(gradient), first))
            ops.append(Op(f"{name}.accumulate", call, (), updates=(self.sums[name],), repeatable=False))
        self.place(ops)
        return dict(self.sums)

    def state_updates(self) -> list[Op]:
        updates = []
        for name, value in self.written.items():
            if name in self.names.inputs:
                continue  # the caller's batch was copied in: nobody sees it change
            if name in self.names.gradients:
                raise ModelError(f"the model writes its parameter {name} itself; freeze it or train another")
            call = Call("poet.assign", (Ref(name), Ref(value)))
            updates.append(Op(f"{name}.assign", call, (), updates=(name,), repeatable=False))
        return updates

    def parameter_updates(self, gradients: Mapping[str, str]) -> list[Op]:
        updates = []
        for name, gradient in gradients.items():
            states = tuple(
                self.add_value(f"{name}.{state}", self.state_type(name)) for state in self.optimizer.states
            )
            call = self.optimizer.update(name, gradient, states)
            updated = (self.buffer(name), *states)
            updates.append(Op(f"{name}.update", call, (), updates=updated, repeatable=False))
            self.persistent |= set(states)
        return updates

    def state_type(self, name: str) -> TensorType:
        """Of what the optimizer keeps for a parameter, or for a block of one."""
        type_ = self.values[name].type
        return type_ if self.buffer(name) == name else dense_like(type_)

    def parameter(self, name: str, value: str, gradient: str | None) -> Parameter:
        if gradient is None:
            return Parameter(name, value)
        states = tuple((state, f"{name}.{state}") for state in self.optimizer.states)
        return Parameter(name, value, gradient, states if self.is_updating else (), self.sums.get(name))

    # --- order --------------------------------------------------------------------------------

    def drop_unneeded(self, needed: set[str], updates: Sequence[Op]) -> None:
        """Keep what leads to a needed buffer, to an update of persistent state, or moves the generator."""
        needed |= {self.buffer(name) for op in updates for name in op.call.refs()}
        kept: list[Op] = []
        for op in reversed(self.ops):
            lasting = any(name in self.persistent or name in needed for name in op.updates)
            if lasting or op.random or needed & self.writes(op):
                kept.append(self.masked(op, needed) if self.is_less else op)
                needed |= {self.buffer(name) for name in _mentions(op)}
        saved = {name for op in kept if op.repeat_call for name in op.repeat_call.refs()}
        self.ops = [op for op in reversed(kept) if op.call.target != "poet.rng_state" or op.name in saved]

    def masked(self, op: Op, needed: set[str]) -> Op:
        """``op`` without the gradients that nothing needs, as autograd asks for it where less is trained."""
        if op.call.target not in _MASKED:
            return op
        outputs = tuple(it if it is not None and self.buffer(it) in needed else None for it in op.outputs)
        mask = tuple(output is not None for output in outputs)
        return replace(op, call=replace(op.call, args=(*op.call.args[:-1], mask)), outputs=outputs)

    def place(self, updates: Iterable[Op]) -> None:
        """Insert each update right after the last op that makes or reads what it touches."""
        self.ops = with_updates_placed(self.ops, updates, self.buffer)

    # --- roles --------------------------------------------------------------------------------

    def roles(self, forward: set[str], gradients: Mapping[str, str]) -> dict[str, Role]:
        roles = dict.fromkeys(self.size_bytes, Role.ACTIVATION)
        made_forward = {name for op in self.ops if op.name in forward for name in self.writes(op)}
        for op in self.ops:
            if op.name not in forward:
                for name in op.call.refs():
                    if self.buffer(name) in made_forward:
                        roles[self.buffer(name)] = Role.SAVED
        roles |= {self.buffer(gradient): Role.GRADIENT for gradient in gradients.values()}
        roles |= dict.fromkeys(self.persistent, Role.OPTIMIZER_STATE)
        roles |= dict.fromkeys(self.sums.values(), Role.ACCUMULATED)
        roles |= dict.fromkeys((*self.names.states, *self.names.constants), Role.STATE)
        roles |= dict.fromkeys(self.names.parameters, Role.PARAMETER)
        return roles | dict.fromkeys(self.names.inputs, Role.INPUT)

    def used_values(self, used_buffers: set[str], results: set[str]) -> Iterable[Value]:
        used = {*results, *self.persistent, *self.names.inputs}
        for op in self.ops:
            used |= set(_mentions(op))
        return (
            value for value in self.values.values() if value.name in used and value.buffer in used_buffers
        )


def _mentions(op: Op) -> list[str]:
    """Names of all values that an op is given or makes, on its first run or a later one."""
    again = op.recall.refs() if op.recall is not None else ()
    return [*op.call.refs(), *again, *(name for name in op.outputs if name is not None)]


def _by_dtype(gradients: Mapping[str, str], values: Mapping[str, Value]) -> list[tuple[str, str]]:
    """In torch's order of norms: those of one element type together, types as they first come."""
    types = list(dict.fromkeys(values[gradient].type.dtype for gradient in gradients.values()))
    return sorted(gradients.items(), key=lambda item: types.index(values[item[1]].type.dtype))


def with_persistent_of(graph: Graph, training: Graph) -> Graph:
    """``graph`` with everything that lives across steps of ``training``, whether it reads it or not."""
    there, named = {item.name for item in graph.buffers}, {item.name for item in graph.values}
    persistent = training.persistent()
    values = {value for _, value in (*training.states, *training.constants)}
    values |= {item.value for item in training.parameters}
    values |= {value for item in training.parameters for _, value in item.optimizer_state}
    values |= {item.accumulator for item in training.parameters if item.accumulator is not None}
    buffers = (item for item in training.buffers if item.name in persistent and item.name not in there)
    added = (item for item in training.values if item.name in values and item.name not in named)
    return replace(
        graph,
        buffers=(*graph.buffers, *buffers),
        values=(*graph.values, *added),
        parameters=tuple(replace(item, gradient=None) for item in training.parameters),
        states=training.states,
        constants=training.constants,
    )
