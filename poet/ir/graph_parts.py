"""Parts of the training graph: buffers, ops and parameters, and what an op says of rows in storage."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from poet.errors import GraphError
from poet.ir.calls import ITEM_BYTES, Call, Ref, Symbol, Value
from poet.ir.strips import Strip
from poet.ir.wholes import Whole

STORED_ROWS = "poet.stored_rows"
"""The operator that looks rows of a table up where it lies in storage."""
STORED_ROWS_SGD = "poet.stored_rows_sgd"
"""The operator that updates the rows of a table that were looked up, where it lies in storage."""

LARGEST_WRITTEN_ROW_BYTES = 48 * 1024
"""A row that is changed in storage passes the smallest page buffer whole, with the pages around it."""
STORED_ARGUMENTS = {STORED_ROWS: 4, STORED_ROWS_SGD: 7}
"""Operators that read rows in storage, and how many arguments they have."""


class Role(enum.Enum):
    """What a buffer is for; every memory report is broken down by it."""

    INPUT = "input"
    PARAMETER = "parameter"
    STATE = "module state"  # batch-norm statistics, constants: in RAM across steps, not trained
    OPTIMIZER_STATE = "optimizer state"
    ACCUMULATED = "accumulated gradient"  # summed over the micro-batches of a step
    GRADIENT = "gradient"  # of a trained parameter
    ACTIVATION = "activation"  # forward values that no backward op reads, and backward's own values
    SAVED = "saved-for-backward"
    WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class Buffer:
    """``size_bytes`` bytes behind one or more values."""

    name: str
    size_bytes: int
    role: Role

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise GraphError(f"buffer {self.name}: size {self.size_bytes} is negative")


@dataclass(frozen=True, slots=True)
class Op:
    """One call, what it writes, and how to get its outputs again.

    Attributes:
        name: unique among ops.
        call: the first run.
        outputs: names of the values it allocates, each the first value of a buffer of its own;
            ``None`` where the operator returns nothing in that place.
        updates: buffers that the first run writes in place (parameters, statistics), in storage where they
            are ``stored``.
        repeatable: whether the op may be run again.
        repeat_call: the call that gives the same outputs again without the first run's effects;
            ``None`` where that is ``call`` itself, as it is for a pure op.
        random: the first run draws from the generator, so first runs keep their order.
        strip: the calls that run block by block in place of ``call``, which then names what they are given;
            ``None``: the op is the one call.
        stored: buffers of which each run reads rows where they lie in storage: a table's, its first rows
            first. They need not be in RAM, and the call does not name them.
    """

    name: str
    call: Call
    outputs: tuple[str | None, ...]
    updates: tuple[str, ...] = ()
    repeatable: bool = True
    repeat_call: Call | None = None
    random: bool = False
    strip: Strip | None = None
    stored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.repeat_call is None and self.repeatable and (self.updates or self.random):
            raise GraphError(f"op {self.name} has an effect: it needs a repeat_call or is not repeatable")

    @property
    def recall(self) -> Call | None:
        """The call that recomputes the outputs, or ``None`` where the op must not run again."""
        return (self.repeat_call or self.call) if self.repeatable else None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor of the module that lives across steps.

    Attributes:
        name: the module's own name for it, e.g. ``layer4.0.conv1.weight``.
        value: its value in the graph.
        gradient: the value of its gradient, perhaps an inner one of a strip; where rows of it are updated in
            storage, that of what was looked up; ``None`` where it is frozen.
        optimizer_state: per state name (``momentum_buffer``, ``exp_avg`` ...) the value.
        accumulator: the value that sums its gradient over micro-batches; ``None``: there are none.
    """

    name: str
    value: str
    gradient: str | None = None
    optimizer_state: tuple[tuple[str, str], ...] = ()
    accumulator: str | None = None


@dataclass(frozen=True, slots=True)
class GraphParts:
    """The parts of a training graph, and where to find them; `poet.ir.graph.Graph` is a well-formed one.

    Attributes:
        name: of the model.
        buffers, values, ops: the parts; a buffer without a producing op is present from the start.
        inputs: values the caller gives each step, the model's inputs first, then the targets.
        targets: how many of ``inputs`` are targets of the loss, usually 0 or 1.
        loss: the scalar value that is minimised.
        predictions: the model's outputs, handed back to the caller.
        parameters: trained and frozen, in the module's order.
        states: the module's buffers, as (module's name, value).
        constants: values baked into the model, as (name, value).
        wholes: parameters of the module that are several of ``parameters`` here, some rows each.
    """

    name: str
    buffers: tuple[Buffer, ...]
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    targets: int
    loss: str
    predictions: tuple[str, ...]
    parameters: tuple[Parameter, ...] = ()
    states: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, str], ...] = ()
    wholes: tuple[Whole, ...] = ()
    _buffer_of: dict[str, str] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._buffer_of.update({value.name: value.buffer for value in self.values})

    def buffer_of(self, value: str) -> str:
        """The name of the buffer behind ``value``."""
        return self._buffer_of[value]

    def reads(self, call: Call) -> tuple[str, ...]:
        """Names of the buffers that ``call`` reads or updates, each once, in order."""
        return tuple(dict.fromkeys(self._buffer_of[name] for name in call.refs()))

    def writes(self, op: Op) -> tuple[str, ...]:
        """Names of the buffers that ``op`` allocates."""
        return tuple(self._buffer_of[name] for name in op.outputs if name is not None)

    def persistent(self) -> frozenset[str]:
        """Buffers that hold parameters, optimizer state, sums of gradients, module state or constants."""
        values = [p.value for p in self.parameters]
        values += [p.accumulator for p in self.parameters if p.accumulator is not None]
        values += [value for p in self.parameters for _, value in p.optimizer_state]
        values += [value for _, value in (*self.states, *self.constants)]
        return frozenset(self._buffer_of[value] for value in values)

    def classes_in_strips(self) -> int | None:
        """How many classes the last layer has whose logits are made in strips; ``None``: there is none."""
        for op in self.ops:
            if op.call.target == "poet.logits_loss":
                weight = op.call.args[1]
                assert isinstance(weight, Ref)
                return next(value.type.shape[0] for value in self.values if value.name == weight.value)
        return None


def lasting_of(parameter: Parameter) -> tuple[tuple[str, str], ...]:
    """What lives across steps for a parameter, as (what it is, its value); first the parameter itself."""
    summed = parameter.accumulator
    sums = () if summed is None else (("its sum of gradients", summed),)
    return (("its content", parameter.value), *parameter.optimizer_state, *sums)


def stored_row_of(op: Op) -> tuple[int, int]:
    """Bytes of a row of the table that ``op`` reads by row in storage, and how many rows that has.

    Raises:
        GraphError: its arguments do not say.
    """
    _, count, width, element = (*op.call.args[:4], None, None, None, None)[:4]
    item_bytes = ITEM_BYTES.get(element.name, 0) if isinstance(element, Symbol) else 0
    sizes = [item for item in (count, width) if type(item) is int and item > 0]
    arguments = STORED_ARGUMENTS.get(op.call.target)
    if len(sizes) < 2 or not item_bytes or len(op.call.args) != arguments or op.call.kwargs:
        raise GraphError(f"op {op.name}: {op.call} does not say what rows it reads")
    return sizes[1] * item_bytes, sizes[0]
