"""What of a model imports and trains; what a step trains: its loss, and what runs in blocks and in parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from poet.errors import InputError
from poet.ir.graph import ITEM_BYTES, Graph, Op, Symbol, TensorType
from poet.ir.loss import LossSpec
from poet.ir.named import Why, in_words, loss_misfit, named_parameters, unread_outputs, untrained
from poet.report import Column, table
from poet.util.units import format_bytes

if TYPE_CHECKING:
    from poet.frontend.onnx.check import CheckReport, InputCheck, NodeRemark

MOST_INPUTS = 8
"""How many inputs are listed; old files list their weights as inputs, too."""

LARGEST_PARAMETERS = 10
"""How many parameters are listed unless all are wanted."""


def check_report(report: CheckReport, *, every_parameter: bool = False) -> RenderableType:
    """Inputs, ops by kind, what does not import or stops the gradient, parameters, and the answer."""
    parts: list[RenderableType] = [
        Text(f"{report.model}: ONNX, opset {report.opset}"),
        *(Text(line) for line in _inputs(report.inputs)),
        *(Text(line) for line in _dimensions(report)),
        Text(f"loss: {report.loss}"),
        Text(),
        table(report.operators, *_OPERATORS),
    ]
    for heading, remarks in (
        ("does not import", report.not_imported),
        ("not checked, as it follows one that does not import", report.not_checked),
        ("has no gradient", report.gradient_stops),
    ):
        parts += [Text(), *_remarks(heading, remarks)] if remarks else []
    parts += [Text(), _parameters(report, every_parameter=every_parameter), Text()]
    untrained = list(_untrained(report))
    parts += [*untrained, Text()] if untrained else []
    answer = "it can be trained" if report.can_train else "it cannot be trained"
    parts += [Text(answer, style="bold"), *(Text(f"  {obstacle}") for obstacle in report.obstacles)]
    return Group(*parts)


def kernels_report(library: str, ops: int, lacking: Sequence[str]) -> RenderableType:
    """What a library of kernels lacks of a training step of so many ops."""
    if not lacking:
        return Text(f"{library}: all {ops} ops of its training step have a kernel")
    return Group(
        Text(f"{library}: not all of the {ops} ops of its training step have a kernel", style="bold"),
        *(Text(f"  {why}") for why in lacking),
    )


def _inputs(inputs: Sequence[InputCheck]) -> Iterator[str]:
    for item in inputs[:MOST_INPUTS]:
        yield f"input {item.name}: {item.dtype}[{','.join(map(str, item.dims))}]"
    if len(inputs) > MOST_INPUTS:
        yield f"and {len(inputs) - MOST_INPUTS} more inputs"


def _dimensions(report: CheckReport) -> Iterator[str]:
    if report.open_dims:
        assumed = ", ".join(f"{name}={size}" for name, size in report.assumed.items())
        taken = f" (checked with {assumed})" if assumed else ""
        yield f"open dimensions: {', '.join(report.open_dims)}; bind with {report.bind_hint}{taken}"
    elif report.bind_hint:
        yield f"the batch can be changed with {report.bind_hint}"


_OPERATORS = (
    Column("operator", "op"),
    Column("nodes", "count", "right"),
    Column("import", "imported", "right"),
    Column("constant", "constant", "right", sparse=True),
    Column("with gradient", "with_gradient", "right", sparse=True),
)
_PARAMETERS = (
    Column("parameter", "name"),
    Column("type", lambda item: f"{item.dtype}[{','.join(map(str, item.shape))}]"),
    Column("bytes", "size_bytes", "B"),
    Column("trainable", lambda item: "yes" if item.trainable else "no"),
)


def _remarks(heading: str, remarks: Sequence[NodeRemark]) -> Iterator[Text]:
    yield Text(f"{heading}:", style="bold")
    for remark in remarks:
        yield Text(f"  {remark.node}: {remark.reason}")


def _untrained(report: CheckReport) -> Iterator[Text]:
    """Outputs that the loss does not read, and parameters that no gradient reaches."""
    count = len(report.outputs)
    outputs = [
        f"output {report.outputs.index(name) + 1} of {count} ({name})" for name in report.unread_outputs
    ]
    reasons = {item.name: item.why for item in report.parameters if item.why is not None}
    for line in in_words(reasons, outputs, parameters=len(report.parameters)):
        yield Text(line)


def _parameters(report: CheckReport, *, every_parameter: bool) -> RenderableType:
    total_bytes = sum(item.size_bytes for item in report.parameters)
    trainable = [item for item in report.parameters if item.trainable]
    summary = (
        f"{len(report.parameters)} parameters, {format_bytes(total_bytes)}; "
        f"a gradient reaches {len(trainable)}, {format_bytes(sum(item.size_bytes for item in trainable))}"
    )
    shown = list(report.parameters)
    if not every_parameter:
        shown = sorted(shown, key=lambda item: -item.size_bytes)[:LARGEST_PARAMETERS]
    hidden = len(report.parameters) - len(shown)
    more = [Text(f"and {hidden} smaller ones (--parameters lists all)")] if hidden else []
    return Group(Text(summary), Text(), table(shown, *_PARAMETERS, left=2), *more)


# --- of a training step ------------------------------------------------------------------------


def loss_reads(graph: Graph, loss: str) -> str:
    """What ``loss`` reads in ``graph``: ``cross-entropy over dim 1, 5 classes, targets int64[8,9]``."""
    types = {value.name: value.type for value in graph.values}
    if not graph.predictions:
        return loss
    output, spec = types[graph.predictions[0]], LossSpec.parse(loss)
    targets = types[graph.inputs[-1]] if graph.targets else None
    try:
        if (
            targets is not None
            and spec.targets_are_classes
            and targets.shape != output.shape
            and spec.class_dim_of(output.shape, targets.shape) is None
        ):
            return f"{loss} of {output} with targets {targets}, as an earlier poet read it"
        return spec.reads(output.shape, output.dtype, None if targets is None else str(targets))
    except InputError as error:
        return f"{loss}; {error}"


def untrained_lines(graph: Graph, train: Sequence[str] = ("*",)) -> list[str]:
    """Outputs that the loss does not read, and parameters that were to be trained and are not."""
    reasons = {name: why for name, why in untrained(graph, train).items() if why is not Why.NOT_ASKED}
    outputs = [f"output {number} of {len(graph.predictions)}" for number in unread_outputs(graph)]
    return in_words(reasons, outputs, parameters=len(named_parameters(graph)))


def strip_lines(graph: Graph) -> list[str]:
    """How many ops run in strips and what the largest saves; in slices; in place. Nothing where none does."""
    every = [(op.name, op.strip) for op in graph.ops if op.strip is not None and op.strip.overwritten is None]
    strips = [(name, strip) for name, strip in every if strip.inner]
    slices = len(every) - len(strips)
    sliced = [f"{_ops(slices)} in slices, whose kernels then need a smaller workspace"] if slices else []
    others = [*sliced, *_in_place(graph)]
    if not strips:
        return others
    name, largest = max(strips, key=lambda item: item[1].whole_bytes - item[1].block_bytes)
    ops = _ops(len(strips))
    return [
        f"{ops} block by block: {format_bytes(sum(strip.whole_bytes for _, strip in strips))} of gradients "
        f"never exist whole; the largest, {name}, takes {format_bytes(largest.block_bytes)} in "
        f"{len(largest.bounds)} blocks instead of {format_bytes(largest.whole_bytes)}",
        *others,
    ]


def _in_place(graph: Graph) -> list[str]:
    """How many ops write their first result over an operand, in place, and how large the largest is."""
    over = [op.strip for op in graph.ops if op.strip is not None and op.strip.overwritten is not None]
    if not over:
        return []
    largest_bytes = max(value.type.extent_bytes for strip in over for value in strip.inner)
    ops = _ops(len(over))
    return [f"{ops} with an in-place update, the largest {format_bytes(largest_bytes)}"]


@dataclass(frozen=True, slots=True)
class PackedSaves:
    """Tensors that are saved for backward as bits or bytes: how many, what they take and would take whole."""

    tensors: int
    short_bytes: int
    whole_bytes: int


def packed_saves(graph: Graph) -> PackedSaves:
    """What ``graph`` saves for backward as bits or bytes."""
    types = {value.name: value.type for value in graph.values}
    packed = [op for op in graph.ops if op.call.target in _PACKING]
    return PackedSaves(
        tensors=len(packed),
        short_bytes=sum(
            types[name].extent_bytes for op in packed for name in op.outputs[-1:] if name is not None
        ),
        whole_bytes=sum(_whole_bytes(op, types) for op in packed),
    )


def packed_lines(graph: Graph) -> list[str]:
    """How many tensors are saved for backward as bits or bytes, and what they would take."""
    packed = packed_saves(graph)
    if not packed.tensors:
        return []
    what = "1 tensor" if packed.tensors == 1 else f"{packed.tensors} tensors"
    taken = f"{format_bytes(packed.short_bytes)} instead of {format_bytes(packed.whole_bytes)}"
    return [f"{what} saved for backward in bits and bytes: {taken}"]


_PACKING = ("poet.relu", "poet.bernoulli_bits", "poet.max_pool")


def _whole_bytes(op: Op, types: Mapping[str, TensorType]) -> int:
    """What the last output of ``op`` takes in plain training."""
    if op.call.target == "poet.bernoulli_bits":
        shape, element = (*op.call.args[:2], None, None)[:2]
        sizes = [size for size in shape if isinstance(size, int)] if isinstance(shape, tuple) else [0]
        return math.prod(sizes) * (ITEM_BYTES.get(element.name, 0) if isinstance(element, Symbol) else 0)
    output = types[op.outputs[0]] if op.outputs and op.outputs[0] is not None else None
    if output is None:
        return 0
    return output.extent_bytes if op.call.target == "poet.relu" else output.elements * ITEM_BYTES["int64"]


def part_lines(graph: Graph) -> list[str]:
    """How many parameters are in parts, and the largest; none where none is."""
    named = [item.content for item in named_parameters(graph) if item.content.bounds]
    if not named:
        return []
    largest = max(named, key=lambda item: item.type.extent_bytes)
    count = "1 parameter is" if len(named) == 1 else f"{len(named)} parameters are"
    whole_bytes, (start, stop) = largest.type.extent_bytes, largest.bounds[0]
    part_bytes = whole_bytes * (stop - start) // largest.type.shape[0]
    return [
        f"{count} fetched, used and updated part by part; the largest, {largest.name} of "
        f"{format_bytes(whole_bytes)}, in {len(largest.bounds)} parts of up to {format_bytes(part_bytes)}"
    ]


def row_lines(graph: Graph) -> list[str]:
    """How many look-ups read rows of tables in storage, and how many rows at most are read and updated there.

    None where none does.
    """
    by_row = [op for op in graph.ops if op.stored]
    readers = [op for op in by_row if not op.updates]
    if not readers:
        return []
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    counts = {value.name: value.type.elements for value in graph.values}
    read, updated = (
        sum(counts[next(op.call.refs())] for op in by_row if bool(op.updates) is changes)
        for changes in (False, True)
    )
    rows_bytes = sum(sizes_bytes[name] for op in readers for name in graph.writes(op))
    tables_bytes = sum(sizes_bytes[name] for name in {name for op in readers for name in op.stored})
    look_ups = "1 look-up reads" if len(readers) == 1 else f"{len(readers)} look-ups read"
    there = f"; {updated} at most are updated there" if updated else ""
    return [
        f"{look_ups} rows where the table lies in storage: at most {read} of them, "
        f"{format_bytes(rows_bytes)} of {format_bytes(tables_bytes)}{there}"
    ]


def _ops(count: int) -> str:
    return "1 op runs" if count == 1 else f"{count} ops run"


def base_lines(graph: Graph) -> Iterator[str]:
    """How many frozen parameters are packed, if any are, and in how many bytes."""
    frozen = [item for item in named_parameters(graph) if not item.is_trained]
    packed = [item for item in frozen if item.packed is not None]
    if packed:
        formats = ", ".join(sorted({item.packed.format for item in packed if item.packed is not None}))
        own_bytes = sum(item.content.type.extent_bytes for item in packed)
        plain_bytes = sum(4 * math.prod(item.shape) for item in packed)
        sizes = f"{format_bytes(own_bytes)} in place of {format_bytes(plain_bytes)}"
        yield (
            f"{len(packed)} of {len(frozen)} frozen parameters in {formats}: {sizes}; "
            "the step is that of a model with the weights that these stand for"
        )


def technique_lines(graph: Graph) -> Iterator[tuple[str, str]]:
    """What is run block by block, saved in bits, in parts and in storage: the technique and a line."""
    found = (
        ("strips", strip_lines), ("packed", packed_lines), ("parts", part_lines), ("rows", row_lines),
        ("base", base_lines),
    )  # fmt: skip
    return ((technique, line) for technique, lines in found for line in lines(graph))


def training_lines(graph: Graph, loss: str, train: Sequence[str] = ("*",)) -> list[str]:
    """What a survey says first."""
    doubt = loss_misfit(graph, loss)
    return [
        f"loss: {loss_reads(graph, loss)}",
        *([f"loss: {doubt}"] if doubt else []),
        *(f"{technique}: {line}" for technique, line in technique_lines(graph)),
        *untrained_lines(graph, train),
    ]


def strips_data(graph: Graph) -> list[dict[str, Any]]:
    """Per op that runs block by block: into how many, and the bytes of what never exists whole."""
    return [
        {
            "op": op.name,
            "blocks": len(op.strip.bounds),
            "whole_bytes": op.strip.whole_bytes,
            "block_bytes": op.strip.block_bytes,
            "saved_bytes": op.strip.whole_bytes - op.strip.block_bytes,
        }
        for op in graph.ops
        if op.strip is not None and op.strip.overwritten is None
    ]


def parts_data(graph: Graph) -> list[dict[str, Any]]:
    """Per parameter in parts: its name and bytes, and the rows at which its parts begin."""
    return [
        {
            "parameter": item.name,
            "bytes": item.content.type.extent_bytes,
            "begin": [start for start, _ in item.content.bounds],
        }
        for item in named_parameters(graph)
        if item.content.bounds
    ]
