"""What the operands of one run of an operator tell: its FLOPs, the kernel it takes, bytes beside its values.

Counting conventions: a multiply-add is 2 FLOPs, a division or square root 4, one evaluation of exp, log,
tanh or erf is 1 FLOP of class ``transcendental``, one element copied is 1 FLOP of class ``movement``. Torch
is not imported: the rules see types and arguments alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poet.devices.figures import OpClass
from poet.errors import UnsupportedOperator
from poet.ir.graph import ITEM_BYTES, Argument, Blank, Call, Ref, TensorType


@dataclass(frozen=True, slots=True)
class Operands:
    """All that a rule may read.

    Attributes:
        call: the operator and its arguments.
        types: of the graph's values, by name.
        outputs: types of what it writes, ``None`` where the operator returns nothing.
        updated_bytes: written in place.
        cached: names of the inputs that are still in the processor's cache.
        cached_outputs: types of the outputs that are read again before they leave it.
    """

    call: Call
    types: Mapping[str, TensorType]
    outputs: tuple[TensorType | None, ...]
    updated_bytes: int = 0
    cached: frozenset[str] = frozenset()
    cached_outputs: tuple[TensorType, ...] = ()

    def argument(self, index: int) -> Argument:
        """Positional argument ``index``, ``None`` where it was left out."""
        return self.call.args[index] if index < len(self.call.args) else None

    def tensor(self, index: int) -> TensorType:
        """Type of the tensor that is positional argument ``index``.

        Raises:
            UnsupportedOperator: the argument is no tensor.
        """
        argument = self.argument(index)
        if isinstance(argument, Ref):
            return self.types[argument.value]
        if isinstance(argument, Blank):
            return argument.type
        raise UnsupportedOperator(
            f"{self.call.target}: argument {index} is no tensor, so its cost is not known"
        )

    @property
    def inputs(self) -> tuple[TensorType, ...]:
        """Types of the distinct values read, in order."""
        return tuple(self.types[name] for name in dict.fromkeys(self.call.refs()))

    @property
    def written(self) -> tuple[TensorType, ...]:
        """Types of the values allocated and written."""
        return tuple(output for output in self.outputs if output is not None)


# --- FLOPs ------------------------------------------------------------------------------------


def per_element(o: Operands, flops: float) -> float:
    """``flops`` per element of the largest tensor read or written."""
    return flops * max((t.elements for t in (*o.inputs, *o.written)), default=0)


def per_output(o: Operands, flops: float) -> float:
    """``flops`` per element written."""
    return flops * sum(output.elements for output in o.written)


def per_input(o: Operands, flops: float) -> float:
    """``flops`` per element of the first tensor."""
    return flops * o.tensor(0).elements


def per_read(o: Operands, flops: float) -> float:
    """``flops`` per element read."""
    return flops * sum(given.elements for given in o.inputs)


def per_picked(o: Operands, flops: float) -> float:
    """``flops`` per element of the second tensor, which picks from the first."""
    return flops * o.tensor(1).elements


def matrix_product(o: Operands, left: int) -> float:
    """2 × elements written × the inner size, which is the last of positional argument ``left``."""
    return 2.0 * sum(t.elements for t in o.written) * o.tensor(left).shape[-1]


def _macs(weight: TensorType, output: TensorType, input_: TensorType, transposed: Argument) -> float:
    """Multiply-adds of a convolution; a weight is (out, in / groups, kernel ...), transposed (in, ...)."""
    return float((input_ if transposed else output).elements * math.prod(weight.shape[1:]))


def bag(o: Operands, weight: int) -> float:
    """One FLOP per element of every row looked up; the indices follow the table of rows."""
    return float(o.tensor(weight + 1).elements * o.tensor(weight).shape[-1])


def convolution(o: Operands) -> float:
    """Its multiply-adds, and one FLOP per element for a bias."""
    output = o.written[0]
    bias_flops = output.elements if o.argument(2) is not None else 0
    return 2.0 * _macs(o.tensor(1), output, o.tensor(0), o.argument(6)) + bias_flops


def _kernel_of(weight: TensorType, groups: Argument) -> OpClass:
    """Which kernel a convolution takes; its weight is (out, in / groups, kernel ...)."""
    if isinstance(groups, int) and groups > 1:
        return OpClass.DEPTHWISE if weight.shape[1] == 1 else OpClass.GROUPED
    return OpClass.POINTWISE if set(weight.shape[2:]) == {1} else OpClass.CONVOLUTION


_BACKWARD = {
    OpClass.CONVOLUTION: OpClass.CONVOLUTION_BACKWARD,
    OpClass.DEPTHWISE: OpClass.DEPTHWISE_BACKWARD,
    OpClass.GROUPED: OpClass.GROUPED,
    OpClass.POINTWISE: OpClass.POINTWISE_BACKWARD,
}


DENSE_CONVOLUTIONS = frozenset(
    (OpClass.CONVOLUTION, OpClass.CONVOLUTION_BACKWARD, OpClass.POINTWISE, OpClass.POINTWISE_BACKWARD)
)
"""In which each output channel is a sum over all input channels."""


def convolution_class(o: Operands) -> OpClass:
    """Of the kernel that the weight and the groups ask for."""
    return _kernel_of(o.tensor(1), o.argument(8))


def convolution_backward_class(o: Operands) -> OpClass:
    """That of its forward kernel's gradients."""
    return _BACKWARD[_kernel_of(o.tensor(2), o.argument(9))]


SHORT_ROW_ELEMENTS = 16
"""A row of fewer is computed one by one where vectors have as many numbers (AVX-512): 15 ns each on a server
core, against 1 ns in rows of 16. With shorter vectors the difference is less."""


def row_class(o: Operands, dim: int) -> OpClass:
    """Of softmax along the dimension in positional argument ``dim``."""
    shape, along = o.tensor(0).shape, o.argument(dim)
    is_row = isinstance(along, int) and along in (-1, len(shape) - 1)
    is_short = is_row and shape[-1] < SHORT_ROW_ELEMENTS
    return OpClass.SHORT_ROWS if is_short else OpClass.TRANSCENDENTAL


def time_convolution(o: Operands) -> float:
    """The weight is (kernel, in, out)."""
    return 2.0 * o.written[0].elements * math.prod(o.tensor(1).shape[:2])


def convolution_backward(o: Operands) -> float:
    """Each of the input's and the weight's gradient costs a forward pass, the bias's one sum."""
    grad_output, mask = o.tensor(0), o.argument(10)
    wanted = mask if isinstance(mask, tuple) else (True, True, False)
    macs = _macs(o.tensor(2), grad_output, o.tensor(1), o.argument(7))
    return 2.0 * macs * (bool(wanted[0]) + bool(wanted[1])) + grad_output.elements * bool(wanted[2])


def attention(o: Operands, query: int, products: float) -> float:
    """``products`` / 2 × (2 L S E + 2 L S Ev) per head; query, key and value follow one another."""
    q, k, v = (o.tensor(query + offset) for offset in range(3))
    return products * q.elements * k.shape[-2] * (1 + v.shape[-1] / q.shape[-1])


def recurrent(o: Operands, passes: float) -> float:
    """Every element of both weight matrices meets every time step of every sequence."""
    steps = math.prod(o.tensor(0).shape[:2])
    return passes * 2.0 * steps * (o.tensor(1).elements + o.tensor(2).elements)


def recurrent_steps(o: Operands, passes: float) -> float:
    """Every element of the hidden weights meets every step of every sequence; the gates count a little more.

    The arguments are those of `poet.runtime.kernels.recurrent`, the products of the input first among
    tensors; the backward makes each step again.
    """
    first = 1 if passes == 1.0 else 2
    products, weight = o.tensor(first), o.tensor(first + 2)
    return passes * (2.0 * math.prod(products.shape[:2]) * weight.elements + 3.0 * products.elements)


def linear_backward(o: Operands) -> float:
    """Both gradients of a linear layer given (input, grad, weight): a product each."""
    return 2 * 2.0 * o.tensor(1).elements * o.tensor(0).shape[-1]


def distances(o: Operands) -> float:
    """Three FLOPs per coordinate of every pair; the points are the last two matrices given."""
    first = 1 if o.call.target.startswith("aten._cdist_backward") else 0
    left, right = o.tensor(first), o.tensor(first + 1)
    return 3.0 * left.elements * right.shape[-2]


def lstm_cell(o: Operands) -> float:
    """Three sigmoids and two tanhs per unit; the first tensor holds the four gates."""
    return 5.0 * o.tensor(0).elements / 4


def sorting(o: Operands) -> float:
    """Comparisons of a merge sort along rows as long as the tensor at most."""
    elements = o.tensor(0).elements
    return elements * math.log2(max(elements, 2))


def pooling(o: Operands) -> float:
    """One FLOP per element of every window of the result."""
    return float(o.written[0].elements * _area(o, 1))


def pooling_backward(o: Operands) -> float:
    """Likewise of the gradient's."""
    return float(o.tensor(0).elements * _area(o, 2))


def _area(o: Operands, window: int) -> int:
    """Elements of a window, whose shape positional argument ``window`` gives."""
    shape, spatial = o.argument(window), len(o.tensor(0).shape) - 2
    sizes = [size for size in shape if isinstance(size, int)] if isinstance(shape, tuple) else []
    return sizes[0] ** spatial if len(sizes) == 1 else math.prod(sizes)


def indices_bytes(o: Operands) -> float:
    """Of the indices that torch's kernel gives, block by block, before places are made of them."""
    return 2.0 * ITEM_BYTES["int64"] * o.written[0].elements


def row_passes(o: Operands) -> float:
    """Bytes of as many rows as the gradient has: their sums made and read, the rows read and written."""
    gradient = o.tensor(4)
    return 4.0 * gradient.elements * ITEM_BYTES[gradient.dtype]


def drawn_bytes(o: Operands) -> float:
    """Of the numbers drawn, of 4 bytes each, before bits are made of them."""
    return 2.0 * 4 * 8 * sum(output.elements for output in o.written)


def drawn_bits(o: Operands) -> float:
    """As for each number drawn; eight of them are a byte of the output."""
    return 10.0 * 8 * sum(output.elements for output in o.written)


def logits(o: Operands, hidden: int, products: float) -> float:
    """So many products of the input with the weight after it, and an exponential for each logit."""
    given, weight = o.tensor(hidden), o.tensor(hidden + 1)
    return (2.0 * products * given.shape[1] + 1.0) * given.shape[0] * weight.shape[0]


def logits_bytes(o: Operands, hidden: int, passes: int, rows: int | None) -> float:
    """Logits go to RAM or back in each of the ``passes`` over them.

    Each strip of rows, as many as argument ``rows`` says, reads the weight again, and makes float32 of it
    where it is packed; each block of classes, of the size in argument 10, reads the input. With what argument
    12 has of each row, one strip has all rows.
    """
    given, weight = o.tensor(hidden), o.tensor(hidden + 1)
    size = o.argument(rows) if rows is not None else o.argument(10)
    if rows is not None and o.argument(12) is not None:
        size = given.shape[0]
    whole, again = (given, weight) if rows is not None else (weight, given)
    strips = -(-whole.shape[0] // size) if isinstance(size, int) and size > 0 else 1
    repeated = (strips - 1.0) * again.elements * ITEM_BYTES[again.dtype]
    if weight.dtype == "uint8":
        repeated += 2.0 * strips * weight.shape[0] * given.shape[1] * ITEM_BYTES[given.dtype]
    return passes * given.shape[0] * weight.shape[0] * ITEM_BYTES[given.dtype] + repeated


FLOPS: Mapping[str, Callable[..., float]] = {
    rule.__name__: rule
    for rule in (
        *(per_element, per_output, per_input, per_read, per_picked, matrix_product, bag, convolution),
        *(convolution_backward, time_convolution, attention, recurrent, recurrent_steps, linear_backward),
        *(distances, lstm_cell, sorting, pooling, pooling_backward, drawn_bits, logits),
    )
}
BYTES: Mapping[str, Callable[..., float]] = {
    rule.__name__: rule for rule in (indices_bytes, row_passes, drawn_bytes, logits_bytes)
}
CLASSES: Mapping[str, Callable[..., OpClass]] = {
    rule.__name__: rule for rule in (convolution_class, convolution_backward_class, row_class)
}
"""The rules that rows of `poet.ir.operators` name; each is given the operands, then what the row says."""
