"""What one row of the table of operators holds: all that poet knows of an operator, as data.

Costs, kernels, cuts and C are functions of packages above this one. A row names them (`Rule`), and each
package finds its own by that name; tests hold that every name has its function.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, NamedTuple


class OpClass(enum.Enum):
    """What limits an op. A device has one throughput per class; they lie up to 100 times apart."""

    MATMUL = "matmul"  # matrix products, attention, recurrent layers
    CONVOLUTION = "convolution"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"  # sums, norms, pooling
    TRANSCENDENTAL = "transcendental"  # exp, log, tanh ...: one evaluation counts as one FLOP
    MOVEMENT = "movement"  # copies, concatenation, gathers: one element counts as one FLOP
    CONVOLUTION_BACKWARD = "convolution_backward"  # gradients of a convolution
    DEPTHWISE = "depthwise"  # convolution of each channel by itself
    DEPTHWISE_BACKWARD = "depthwise_backward"
    GROUPED = "grouped"  # convolution of groups of channels, and its gradients
    POINTWISE = "pointwise"  # convolution of single pixels, across all channels
    POINTWISE_BACKWARD = "pointwise_backward"
    POOLING = "pooling"  # maxima and means of windows
    GELU = "gelu"  # and its gradient
    BATCH_NORM = "batch_norm"
    BATCH_NORM_BACKWARD = "batch_norm_backward"
    ADAPTIVE_UPDATE = "adaptive_update"  # Adam and its kin: several kernels for each parameter
    RANDOM = "random"  # numbers drawn from a generator
    TANH = "tanh"
    SHORT_ROWS = "short_rows"  # softmax and its logarithm of rows that fill no vector


class Rule(NamedTuple):
    """A function of a package above this one, by name, and what it is given beside the op."""

    name: str
    given: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()


class Out(NamedTuple):
    """Which of torch's kernels writes the result over an operand.

    Attributes:
        places: of the operands that it may overwrite.
        kernel: the ATen operator; ``""``: one of our own.
        keyword: of the tensor that it writes, where that is not the name of the overload.
        in_rows: it asks for no strides, and writes as many elements as there are one after the other.
        is_copied: blocks of the result are made apart and copied over the operand.
    """

    places: tuple[int, ...]
    kernel: str = ""
    keyword: str = ""
    in_rows: bool = False
    is_copied: bool = False


class Numbers(NamedTuple):
    """An argument of whole numbers that count something.

    Attributes:
        place: of the argument.
        what: they are numbers of, for messages.
        table: the place of a tensor, and its dimension that has one element for each.
        total: in its stead, the place of an argument that says how many there are.
        ignored: the place of one more number that is allowed, and left out.
        padded: whether all below 0 are allowed too, behind the last that counts.
    """

    place: int
    what: str
    table: tuple[int, int] = (0, 0)
    total: int | None = None
    ignored: int | None = None
    padded: bool = False


class CKernel(NamedTuple):
    """How a run of an operator becomes calls of C functions.

    Attributes:
        rule: ``module.function`` of `poet.c99.rules`.
        over: places of the operands that the first result may be written over.
        dense: places of the operands that torch's own kernel copies where they do not lie side by side, or
            reads to the same bits as a copy.
        hands_on: whether it hands on the elements of a gradient as it makes them.
    """

    rule: Rule
    over: tuple[int, ...] = ()
    dense: tuple[int, ...] = ()
    hands_on: bool = False


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One operator, or in the table several of which all that is known is the same.

    Attributes:
        name: ``aten.<name>.<overload>``, or ``poet.<name>`` of one of our own; in the table names, shorter.
        op_class: what limits it, whatever its arguments.
        flops: of one run (`poet.devices.cost_rules`, as the next two).
        special_class: the class of a run, where that follows from its arguments.
        more_bytes: moved beside inputs and outputs, each once.
        input_passes: how often the inputs are read from memory.
        gathers: of its first input it reads only as many elements as it writes.
        weight: the positional argument that is a convolution's.
        count: the place of a number of groups, or of rows that it makes, of which it can take some alone.
        arguments: their names, of an operator of our own.
        writes: places of the tensors that it writes; all else is functional.
        is_random: it draws from torch's default generator.
        is_mis_traced: the sizes of its outputs are known when it has run, not from the trace.
        divides: by whole numbers it is given, which must not be 0.
        shape_only: names of arguments of which it reads shape and strides and never the contents.
        saved: in what few bytes backward may read what it saves (`poet.passes.compressed`).
        gradient_cut: how its run is cut that makes a parameter's gradient (`poet.passes.cuts`, as the rest).
        passing_cut: likewise, of one that changes a gradient element by element.
        slices: ways to cut it by itself.
        sums: likewise, where its result is a sum over the blocks.
        out: the kernel of torch that writes over an operand.
        numbers: an argument that counts something.
        c: its kernel in C.
    """

    name: str
    op_class: OpClass
    flops: Rule
    _: KW_ONLY
    special_class: Rule | None = None
    more_bytes: Rule | None = None
    input_passes: int = 1
    gathers: bool = False
    weight: int | None = None
    count: int | None = None
    arguments: str = ""
    writes: tuple[int, ...] = ()
    is_random: bool = False
    is_mis_traced: bool = False
    divides: bool = False
    shape_only: tuple[str, ...] = ()
    saved: str = ""
    gradient_cut: Rule | None = None
    passing_cut: Rule | None = None
    slices: Rule | None = None
    sums: Rule | None = None
    out: Out | None = None
    numbers: Numbers | None = None
    c: CKernel | None = None

    def named(self) -> Iterator[OpSpec]:
        """One for each of the names."""
        for name in self.name.split():
            yield replace(self, name=full_name(name))


def full_name(name: str) -> str:
    """``aten.<name>.<overload>`` of an ATen operator; a name of one of our own as it is."""
    if name.startswith("poet."):
        return name
    return f"aten.{name if '.' in name else name + '.default'}"


# --- what rows are written with ---------------------------------------------------------------


def rule(name: str, *given: Any, **named: Any) -> Rule:
    """A function by name."""
    return Rule(name, given, tuple(named.items()))


def per_element(flops: float) -> Rule:
    """So many FLOPs per element of the largest tensor read or written."""
    return rule("per_element", flops)


def per_input(flops: float) -> Rule:
    """So many FLOPs per element of the first tensor."""
    return rule("per_input", flops)


def per_output(flops: float) -> Rule:
    """So many FLOPs per element written."""
    return rule("per_output", flops)


def c(
    name: str,
    *given: Any,
    over: tuple[int, ...] = (),
    dense: tuple[int, ...] = (),
    hands_on: bool = False,
    **named: Any,
) -> CKernel:
    """The kernel in C that rule ``module.function`` calls."""
    return CKernel(rule(name, *given, **named), over, dense, hands_on)


def each(function: str, *read: int, numbers: tuple[Any, ...] = (), over: tuple[int, ...] = ()) -> CKernel:
    """A C function that goes through its operands element by element.

    Args:
        function: ``poet_...``.
        read: places of the operands, the first alone if none is named.
        numbers: places of the numbers that it is given; a pair is a place and the default.
        over: as in `CKernel`.
    """
    return CKernel(Rule("elementwise.each", (function, read or (0,), numbers)), over)
