"""What of a model imports and trains, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from poet.ir.untrained import in_words
from poet.report.rows import Column, table
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
