"""The parameters of a graph as users know them: by the module's names, in parts or not, trained or not.

The loss is that of the model's first output. What leads only to others has no gradient, though it is computed
and handed over in every step.
"""

from __future__ import annotations

import enum
import fnmatch
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from poet.ir.graph import Graph, Parameter, TensorType, Whole
from poet.ir.loss import LossSpec, misfit
from poet.ir.packed import Packed

Bounds = tuple[tuple[int, int], ...]
"""First row of each part and the one after its last."""

_BLOCK = re.compile(r"(.+)\[(\d{1,9}):(\d{1,9})\]", re.DOTALL)


def block_of(name: str) -> tuple[str, tuple[int, int] | None]:
    """``"w[0:16]"``, rows of a parameter that are trained, as ``("w", (0, 16))``; another name alone."""
    found = _BLOCK.fullmatch(name)
    return (name, None) if found is None else (found[1], (int(found[2]), int(found[3])))


def row_blocks(names: Iterable[str]) -> dict[str, Bounds]:
    """Per parameter the blocks of rows that ``names`` have of it, no two of which overlap; none: it is whole.

    Where blocks overlap, they are cut where another begins or ends.
    """
    found: dict[str, set[tuple[int, int] | None]] = {}
    for name in names:
        whole, rows = block_of(name)
        found.setdefault(whole, set()).add(rows)
    made: dict[str, Bounds] = {}
    for whole, blocks in found.items():
        cut = [block for block in blocks if block is not None]
        ends = sorted({end for block in cut for end in block})
        pairs = () if None in blocks else tuple(itertools.pairwise(ends))
        made[whole] = tuple(p for p in pairs if any(a <= p[0] and p[1] <= b for a, b in cut))
    return made


@dataclass(frozen=True, slots=True)
class Joined:
    """A tensor that lives across steps, under a user's name.

    Attributes:
        name: of it.
        type: of all of it.
        values: that make it up, the first rows first; mostly one.
        bounds: of the rows of each; empty where there is one value.
    """

    name: str
    type: TensorType
    values: tuple[str, ...]
    bounds: Bounds = ()


@dataclass(frozen=True, slots=True)
class Named:
    """A parameter as users know it.

    Attributes:
        content: its elements, under the module's own name; packed ones have that of their format behind it.
        optimizer_state: per state name the elements.
        parts: names of the graph's parameters that make it up; its own where it is in no parts.
        is_trained: whether it has a gradient.
        packed: how the bytes of ``content`` are to be read; ``None``: as they are.
        blocks: names of the blocks of its rows that are trained, where not all of it is.
    """

    content: Joined
    optimizer_state: tuple[tuple[str, Joined], ...]
    parts: tuple[str, ...]
    is_trained: bool
    packed: Packed | None = None
    blocks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The module's own name."""
        return self.content.name.removesuffix("" if self.packed is None else f".{self.packed.format}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the module's own tensor."""
        return self.content.type.shape if self.packed is None else self.packed.shape


def named_parameters(graph: Graph) -> tuple[Named, ...]:
    """The parameters of ``graph`` as users know them, in the module's order."""
    types = {value.name: value.type for value in graph.values}
    parameters = {parameter.name: parameter for parameter in graph.parameters}
    whole_of = {part: whole for whole in graph.wholes for part in whole.parts}
    found = []
    blocks: dict[str, list[Parameter]] = {}
    for parameter in graph.parameters:
        blocks.setdefault(parameter.value, []).append(parameter)
    for parameter in graph.parameters:
        first, *others = blocks[parameter.value]
        if parameter is not first:
            continue
        whole = whole_of.get(parameter.name)
        if whole is None:
            made = _named(parameter.name, types[parameter.value], (parameter,), ())
            found.append(_in_blocks(made, others, types) if others else made)
        elif parameter.name == whole.parts[0]:
            parts = tuple(parameters[name] for name in whole.parts)
            found.append(_named(whole.name, whole.type, parts, bounds_of(graph, whole)))
    return tuple(found)


def _in_blocks(whole: Named, blocks: Sequence[Parameter], types: Mapping[str, TensorType]) -> Named:
    """A parameter of which only some rows are trained; the optimizer's tensors are of these."""
    states = tuple(
        (
            f"{state}{block.name[len(whole.name) :]}",
            Joined(f"optimizer/{block.name}/{state}", types[value], (value,)),
        )
        for block in blocks
        for state, value in block.optimizer_state
    )
    names = tuple(block.name for block in blocks)
    return replace(whole, optimizer_state=states, is_trained=True, blocks=names)


def _named(name: str, type_: TensorType, parts: tuple[Parameter, ...], bounds: Bounds) -> Named:
    states = [state for state, _ in parts[0].optimizer_state]
    values = zip(*([value for _, value in part.optimizer_state] for part in parts), strict=True)
    packed = parts[0].packed and parts[0].packed.with_rows(type_.shape[0])
    return Named(
        content=Joined(
            name if packed is None else f"{name}.{packed.format}",
            type_,
            tuple(part.value for part in parts),
            bounds,
        ),
        optimizer_state=tuple(
            (state, Joined(f"optimizer/{name}/{state}", type_, tuple(column), bounds))
            for state, column in zip(states, values, strict=True)
        ),
        parts=tuple(part.name for part in parts),
        is_trained=parts[0].gradient is not None,
        packed=packed,
    )


def bounds_of(graph: Graph, whole: Whole) -> Bounds:
    """First row of each part of ``whole``, and the one after its last."""
    types = {value.name: value.type for value in graph.values}
    values = {parameter.name: parameter.value for parameter in graph.parameters}
    rows = [types[values[name]].shape[0] for name in whole.parts]
    return tuple(itertools.pairwise(itertools.accumulate(rows, initial=0)))


def packed_values(graph: Graph) -> dict[str, Packed]:
    """How the bytes of packed parameters are to be read, by value; those in parts part by part."""
    return {item.value: item.packed for item in graph.parameters if item.packed is not None}


def trained_in_words(graph: Graph) -> str:
    """For people: how many of the module's parameters are trained."""
    named = named_parameters(graph)
    return f"{sum(item.is_trained for item in named)} of {len(named)} parameters"


# --- what is not trained ----------------------------------------------------------------------


class Why(enum.Enum):
    """Why parameters are not trained; the value says it of several."""

    NOT_ASKED = "they are not among the parameters to train"
    OTHER_OUTPUT = "they lead only to outputs that the loss does not read"
    CONSTANT = "they lie in Constant nodes, and are trained only where --train (train=) names them"
    NO_OUTPUT = "no output depends on them"
    NO_GRADIENT = "no gradient comes back to them from the loss, or they are frozen"


def untrained(graph: Graph, train: Sequence[str] = ("*",)) -> dict[str, Why]:
    """Per parameter of ``graph`` that has no gradient the reason, in the graph's order.

    Args:
        graph: of a training step.
        train: patterns of the names that were to be trained.
    """
    of_loss = _leading_to(graph, [graph.loss])
    of_outputs = _leading_to(graph, graph.predictions)
    found = {}
    for parameter in named_parameters(graph):
        if parameter.is_trained:
            continue
        buffer = graph.buffer_of(parameter.content.values[0])
        if not any(fnmatch.fnmatchcase(parameter.name, block_of(pattern)[0]) for pattern in train):
            found[parameter.name] = Why.NOT_ASKED
        else:
            found[parameter.name] = why(leads_to_loss=buffer in of_loss, leads_out=buffer in of_outputs)
    return found


def why(*, leads_to_loss: bool, leads_out: bool) -> Why:
    """Why a parameter has no gradient that was to be trained."""
    if leads_to_loss:
        return Why.NO_GRADIENT
    return Why.OTHER_OUTPUT if leads_out else Why.NO_OUTPUT


def unread_outputs(graph: Graph) -> tuple[int, ...]:
    """Numbers from 1 of the model's outputs on which the loss does not depend."""
    of_loss = _leading_to(graph, [graph.loss])
    unread = (graph.buffer_of(name) not in of_loss for name in graph.predictions)
    return tuple(number for number, is_unread in enumerate(unread, start=1) if is_unread and number > 1)


def loss_misfit(graph: Graph, loss: str) -> str:
    """What `poet.ir.loss.misfit` says of the first output of ``graph``."""
    spec = LossSpec.parse(loss)
    if not graph.predictions:
        return ""
    shape = next(value.type.shape for value in graph.values if value.name == graph.predictions[0])
    makers = {buffer: op for op in graph.ops for buffer in graph.writes(op)}
    maker = makers.get(graph.buffer_of(graph.predictions[0]))
    while maker is not None and maker.call.target in _COPIES:
        maker = makers.get(graph.buffer_of(next(maker.call.refs())))
    has_classes = spec.targets_are_classes and len(shape) > 1
    classes = shape[spec.class_dim(len(shape))] if has_classes else None
    return misfit(spec, _ENDINGS.get(maker.call.target) if maker is not None else None, classes)


_ENDINGS = {"aten._softmax.default": "softmax", "aten.sigmoid.default": "sigmoid"}
_COPIES = ("poet.copy", "aten.clone.default", "aten._to_copy.default")


def in_words(
    reasons: Mapping[str, Why], outputs: Sequence[str], *, parameters: int, listed: int = 4
) -> list[str]:
    """Lines for people: each output that the loss does not read, then each reason with its parameters.

    Args:
        reasons: per parameter that is not trained.
        outputs: that the loss does not read, as people know them.
        parameters: how many there are, trained or not.
        listed: how many names a line has at most.
    """
    lines = [f"the loss does not read {output}: it is that of the first output" for output in outputs]
    for reason in Why:
        names = [name for name, found in reasons.items() if found is reason]
        if names:
            more = f" and {len(names) - listed} more" if len(names) > listed else ""
            shown = ", ".join(names[:listed])
            lines.append(
                f"{len(names)} of {parameters} parameters are not trained: {reason.value} ({shown}{more})"
            )
    return lines


def _leading_to(graph: Graph, values: Iterable[str]) -> set[str]:
    """The buffers on which ``values`` depend."""
    makers = {buffer: op for op in graph.ops for buffer in graph.writes(op)}
    found: set[str] = set()
    pending = [graph.buffer_of(name) for name in values]
    while pending:
        buffer = pending.pop()
        if buffer in found:
            continue
        found.add(buffer)
        if buffer in makers:
            pending += graph.reads(makers[buffer].call)
    return found
