"""Which numbers a training step can use: classes and rows of tables that exist, targets that are finite.

A kernel that meets another number fails in the middle of a step, after batch norm has updated its statistics,
or gives a loss that is no number. So what is given is looked through before the first op runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from poet.errors import InputError
from poet.ir.graph import Argument, Graph, Op, Ref
from poet.ir.graph_parts import stored_row_of
from poet.runtime.data.metrics import least_and_largest

_CHUNK = 4096  # elements looked at one by one at a time, where some are outside the usual range

_COPIES = frozenset({"aten._to_copy.default", "aten.clone.default", "poet.copy"})
"""Operators whose result holds the numbers of their first argument."""

_CLASSES = {"aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default"}
"""Arguments: scores, classes, weights, reduction, the number that is left out."""

_LOGITS = "poet.logits_loss"
"""Arguments: input, weight of a row per class, bias, classes, reduction, the number that is left out."""

_SEQUENCES = "poet.ctc_loss"
"""Arguments: scores [T, N, C], classes with anything below 0 behind them."""

_TABLES = {"aten.embedding.default": (0, 1), "aten._embedding_bag.default": (0, 1)}
"""Operator: where the table and the numbers of its rows stand."""

_PART_OF_TABLE = "poet.look_up"
"""Arguments: rows, numbers of rows, the first row's, how many the table has."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one input of a step may hold.

    Attributes:
        below: whole numbers from 0 up to this are allowed; ``None``: any.
        left_out: another one that is allowed; the loss leaves it out.
        padded: all below 0 are allowed too; they stand behind the last that counts.
        finite: whether NaN and infinities are refused.
        what: the numbers are of, for messages.
    """

    below: int | None = None
    left_out: int | None = None
    padded: bool = False
    finite: bool = False
    what: str = ""

    def __str__(self) -> str:
        if self.below is None:
            return "finite numbers are allowed (allow_nan=True, or poet run --allow-nan, takes others)"
        if self.padded:
            return f"the {self.what} are 0 to {self.below - 1}, and numbers below 0 stand behind the last"
        also = "" if self.left_out is None else f", and {self.left_out}, which the loss leaves out"
        return f"the {self.what} are 0 to {self.below - 1}{also}"


def rules(graph: Graph) -> dict[str, Rule]:
    """By name, what those inputs of ``graph`` may hold that must not hold everything of their type."""
    types = {value.name: value.type for value in graph.values}
    source = {graph.buffer_of(name): name for name in graph.inputs}
    found: dict[str, Rule] = {}
    for op in graph.ops:
        call = op.call
        if call.target in _COPIES and call.args and op.outputs and op.outputs[0] is not None:
            copied, output = _input(call.args[0], graph, source), op.outputs[0]
            if copied is not None and not types[output].dtype.startswith(("float", "bfloat")):
                source[graph.buffer_of(output)] = copied
        for name, rule in _asked(op, graph, source):
            found[name] = rule if name not in found else _both(found[name], rule)
    if graph.targets and types[graph.inputs[-1]].dtype.startswith(("float", "bfloat")):
        found[graph.inputs[-1]] = Rule(finite=True)
    return found


def check(where: str, tensor: torch.Tensor, rule: Rule, *, allow_nan: bool = False) -> None:
    """Refuse a tensor that holds what it must not; its first dimension counts samples.

    Raises:
        InputError: names the first such sample, its value and what is allowed.
    """
    if not tensor.numel() or (rule.below is None and (allow_nan or not rule.finite)):
        return
    low, high = least_and_largest(tensor)
    if rule.below is None:
        if math.isfinite(low) and math.isfinite(high):
            return
    elif (low >= 0 or rule.padded) and high < rule.below:
        return
    samples = tensor.unsqueeze(0) if tensor.dim() == 0 else tensor
    for number, sample in enumerate(samples):
        value = _first_outside(sample, rule)
        if value is not None:
            verb = "is" if tensor.dim() < 2 else "holds"
            raise InputError(f"{where}: sample {number} {verb} {value}; {rule}")


def _asked(op: Op, graph: Graph, source: Mapping[str, str]) -> list[tuple[str, Rule]]:
    """What ``op`` requires of the inputs that it reads numbers from."""
    types = {value.name: value.type for value in graph.values}
    args = op.call.args

    def size(argument: Argument, dimension: int) -> int | None:
        shape = types[argument.value].shape if isinstance(argument, Ref) else ()
        return shape[dimension] if len(shape) > dimension else None

    if op.call.target in _CLASSES and len(args) > 4:
        name = _input(args[1], graph, source)
        scores = args[0]
        is_single = isinstance(scores, Ref) and len(types[scores.value].shape) == 1
        classes, left_out = size(scores, 0 if is_single else 1), args[4]
        if name is not None and classes is not None and isinstance(left_out, int):
            return [(name, Rule(classes, left_out, what="classes"))]
    if op.call.target == _LOGITS:
        name, classes, left_out = _input(args[3], graph, source), size(args[1], 0), args[5]
        if name is not None and classes is not None and isinstance(left_out, int):
            return [(name, Rule(classes, left_out, what="classes"))]
    if op.call.target == _SEQUENCES and len(args) > 1:
        name, classes = _input(args[1], graph, source), size(args[0], 2)
        if name is not None and classes is not None:
            return [(name, Rule(classes, padded=True, what="classes"))]
    if op.call.target == _PART_OF_TABLE and len(args) > 3:
        name, count = _input(args[1], graph, source), args[3]
        if name is not None and isinstance(count, int):
            return [(name, Rule(count, what="rows of its table"))]
    if op.stored:
        name = _input(args[0], graph, source)
        if name is not None:
            return [(name, Rule(stored_row_of(op)[1], what="rows of its table"))]
    if op.call.target in _TABLES:
        table, numbers = _TABLES[op.call.target]
        name = _input(args[numbers], graph, source) if len(args) > numbers else None
        rows = size(args[table], 0) if args else None
        if name is not None and rows is not None:
            return [(name, Rule(rows, what="rows of its table"))]
    return []


def _input(argument: Argument, graph: Graph, source: Mapping[str, str]) -> str | None:
    return source.get(graph.buffer_of(argument.value)) if isinstance(argument, Ref) else None


def _both(first: Rule, second: Rule) -> Rule:
    """What satisfies both."""
    assert first.below is not None
    assert second.below is not None
    narrower = first if first.below <= second.below else second
    alike = first.left_out == second.left_out
    padded = first.padded and second.padded
    return Rule(narrower.below, first.left_out if alike else None, padded=padded, what=narrower.what)


def _first_outside(sample: torch.Tensor, rule: Rule) -> float | int | None:
    flat = sample.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        chunk = flat[start : start + _CHUNK]
        if rule.below is None:
            bad = ~chunk.isfinite()
        else:
            bad = chunk >= rule.below
            if not rule.padded:
                bad |= chunk < 0
            if rule.left_out is not None:
                bad &= chunk != rule.left_out
        if bad.any():
            value: float | int = chunk[bad][0].item()
            return value
    return None
