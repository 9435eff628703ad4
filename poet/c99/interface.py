"""What the caller of a C step fills and reads, what lives between two steps."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from poet.c99.calls import WORD_BYTES, Placed
from poet.c99.prediction import Prediction
from poet.c99.statements import Home, Statements
from poet.errors import UnsupportedOperator
from poet.ir.calls import Counted, counted
from poet.ir.graph import Graph, TensorType
from poet.ir.operators import TABLE_ROWS
from poet.ir.optimizer import OptimizerSpec

_NOT_IN_COMMENTS = re.compile(r"[^A-Za-z0-9_.:+ -]")


def comment(text: str) -> str:
    """``text`` without what could end a comment or a line."""
    return _NOT_IN_COMMENTS.sub("_", text)[:200]


@dataclass(frozen=True, slots=True)
class Interface:
    """What the caller fills and reads.

    Attributes:
        inputs: name and place of each input, the target not among them.
        rows: for each input how many rows the table has that its whole numbers look up; 0: it is of floats.
        target: name and place, where there is one.
        classes: how many there are, where the target is class numbers.
        ignored: the class number that counts for nothing.
        outputs: name and place of each prediction.
        loss: its place.
    """

    inputs: tuple[tuple[str, Placed], ...]
    rows: tuple[int, ...]
    target: tuple[str, Placed] | None
    classes: int | None
    ignored: int
    outputs: tuple[tuple[str, Placed], ...]
    loss: Placed


@dataclass(frozen=True, slots=True)
class Span:
    """What lives between two steps: its place, and where its first content is.

    Attributes:
        name: of the buffer.
        word: of the arena; -1: it is not there.
        words: how many.
        first: of the weights; ``None``: it begins filled with ``fill``.
        fill: bits of each word.
        is_in_ram: whether it is there between steps.
        home: its two places in storage, if it is there between steps and changes; with neither a constant.
        checksum: its number, of what has a home.
        is_checked: whether it changes and is of floats, so that NaN and infinities in it are not saved.
    """

    name: str
    word: int
    words: int
    first: int | None
    fill: int = 0
    is_in_ram: bool = True
    home: Home | None = None
    checksum: int | None = None
    is_checked: bool = False


@dataclass(frozen=True, slots=True)
class ExportedStep:
    """All that the text of a step is made of.

    Attributes:
        interface: what its caller sees.
        statements: what it does.
        spans: what lives between two steps.
        prediction: the forward pass in evaluation, or why there is none.
        optimizer: its numbers.
    """

    interface: Interface
    statements: Statements
    spans: tuple[Span, ...]
    prediction: Prediction | str
    optimizer: OptimizerSpec

    @property
    def arena_bytes(self) -> int:
        """Of the arena, whole words."""
        return -(-self.statements.arena_bytes // WORD_BYTES) * WORD_BYTES

    @property
    def page_bytes(self) -> int:
        """Of storage that a step uses."""
        return self.statements.page_bytes

    @property
    def commit_bytes(self) -> int:
        """Of storage, for one of the two records of commits and what lives in the arena beside it."""
        at = self.statements.commit
        return 0 if at is None else (self.page_bytes - at) // 2

    @property
    def commits(self) -> bool:
        """Whether something that changes lives in storage, so that steps are committed there."""
        return self.statements.commit is not None

    @property
    def has_homes(self) -> bool:
        """Whether something that lives between two steps is not in the arena."""
        return not all(span.is_in_ram for span in self.spans)


def interface_of(graph: Graph, statements: Statements) -> Interface:
    """What the caller of a step of ``graph`` sees.

    Raises:
        UnsupportedOperator: an input is not of floats side by side nor of numbers of rows of tables, or the
            target neither that nor classes.
    """
    count = len(graph.inputs) - graph.targets
    inputs = tuple((name, statements.given[name]) for name in graph.inputs[:count])
    outputs = tuple((name, statements.left[name]) for name in graph.predictions)
    target = graph.inputs[count] if graph.targets else None
    placed = (target, statements.given[target]) if target is not None else None
    classes, ignored = None, 0
    rows = tuple(
        _rows(graph, name, place.type) if place.type.dtype == "int64" else 0 for name, place in inputs
    )
    floats = [item for item, count in zip(inputs, rows, strict=True) if not count] + [*outputs]
    if placed is not None and placed[1].type.dtype == "int64":
        classes, ignored = _classes(graph, placed[0])
    elif placed is not None:
        floats.append(placed)
    for name, where in floats:
        if where.type.dtype != "float32" or not where.is_dense:
            raise UnsupportedOperator(
                f"{name} is {where.type} with strides {list(where.type.strides)}; "
                "in C a step is given and gives back floats side by side"
            )
    return Interface(inputs, rows, placed, classes, ignored, outputs, statements.left[graph.loss])


def _counts(graph: Graph, name: str, *, of_rows: bool) -> list[Counted]:
    """What the calls say that read an input as numbers, of rows or of classes."""
    types = {value.name: value.type for value in graph.values}
    found = (counted(op.call, types) for op in graph.ops)
    buffer = graph.buffer_of(name)
    return [
        item
        for item in found
        if item is not None
        and graph.buffer_of(item.value) == buffer
        and (item.numbers.what == TABLE_ROWS) == of_rows
    ]


def _rows(graph: Graph, name: str, kind: TensorType) -> int:
    """How many rows the smallest table has that an input looks up; 0: its numbers are no numbers of rows."""
    if kind.strides != _dense(kind):
        return 0
    return min((item.below for item in _counts(graph, name, of_rows=True)), default=0)


def _dense(kind: TensorType) -> tuple[int, ...]:
    return tuple(math.prod(kind.shape[d + 1 :]) for d in range(len(kind.shape)))


def _classes(graph: Graph, target: str) -> tuple[int, int]:
    """How many classes there are, and which number is ignored."""
    for found in _counts(graph, target, of_rows=False):
        return found.below, -100 if found.ignored is None else found.ignored
    raise UnsupportedOperator(f"{target}: whole numbers that are no classes of a loss have no C kernel")
