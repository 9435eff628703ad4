"""What one run of an operator amounts to: its class, its FLOPs, the bytes it moves.

Each follows from the operator's row in `poet.ir.operators`, and from the rules of `poet.devices.cost_rules`
that the row names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from poet.devices.cost_rules import BYTES, CLASSES, DENSE_CONVOLUTIONS, FLOPS, Operands
from poet.devices.figures import OpClass
from poet.errors import GraphError, UnsupportedOperator, nearest
from poet.ir.graph import ITEM_BYTES, TensorType
from poet.ir.op_spec import OpSpec
from poet.ir.operators import SPECS


def row_of(target: str) -> OpSpec:
    """The row of an operator by its full name, ``aten.add.Tensor`` or ``poet.sgd``.

    Raises:
        UnsupportedOperator: it has none.
    """
    row = SPECS.get(target)
    if row is None:
        raise UnsupportedOperator(f"operator {target} has no known cost{nearest(target, SPECS)}")
    return row


def class_of(operands: Operands) -> OpClass:
    """What limits this run."""
    row = row_of(operands.call.target)
    special = row.special_class
    return row.op_class if special is None else CLASSES[special.name](operands, *special.given)


def flops(operands: Operands) -> float:
    """That the result of this run takes."""
    rule = row_of(operands.call.target).flops
    return FLOPS[rule.name](operands, *rule.given)


def channels_of(operands: Operands) -> tuple[int, int] | None:
    """The first two sizes of the weight, where the run is a convolution of all channels with all."""
    weight = row_of(operands.call.target).weight
    if weight is None or class_of(operands) not in DENSE_CONVOLUTIONS:
        return None
    made, summed = operands.tensor(weight).shape[:2]
    return made, summed


def bytes_moved(operands: Operands) -> int:
    """Bytes read and written: each distinct value by its own element count, however it is viewed.

    What stays in the cache is not among them.
    """
    row = row_of(operands.call.target)
    written = sum(_touched_bytes(output) for output in operands.written)
    written -= sum(_touched_bytes(output) for output in operands.cached_outputs)
    cached = operands.cached
    read = [
        0 if name in cached else _touched_bytes(value)
        for name, value in zip(dict.fromkeys(operands.call.refs()), operands.inputs, strict=True)
    ]
    if row.gathers and read:
        read[0] = min(read[0], written)
    extra = row.more_bytes
    more = 0 if extra is None else int(BYTES[extra.name](operands, *extra.given))
    return row.input_passes * sum(read) + written + operands.updated_bytes + more


def _touched_bytes(value: TensorType) -> int:
    """Bytes of the elements that lie apart in memory; a broadcast dimension repeats the same ones."""
    sizes = (
        size for size, stride in zip(value.shape, value.strides, strict=True) if stride != 0 or size == 0
    )
    return math.prod(sizes) * ITEM_BYTES[value.dtype]


@dataclass(frozen=True, slots=True)
class Amounts:
    """What one run of an op amounts to.

    Attributes:
        op_class: what limits it.
        flops: that its result takes.
        bytes_moved: to and from RAM.
        channels: the first two sizes of a dense convolution's weight; ``None`` for all else.
    """

    op_class: OpClass
    flops: float
    bytes_moved: int
    channels: tuple[int, int] | None = None

    def padded_flops(self, block_channels: int) -> float:
        """FLOPs of a kernel that works on so many channels at once, and so fills up the last block.

        Fewer channels than a block, of those that are summed over, are read as they lie: the kernels of a
        first layer (oneDNN, ``is_1stconv`` in ``jit_avx512_common_conv_kernel.cpp``).
        """
        if self.channels is None:
            return self.flops
        made, summed = self.channels
        factor = math.ceil(made / block_channels) * block_channels / made
        if summed >= block_channels:
            factor *= math.ceil(summed / block_channels) * block_channels / summed
        return self.flops * factor


def amounts_for(operands: Operands, who: str, operator: str) -> Amounts:
    """Of one run on ``operands``; messages name ``who`` makes it, and the ``operator``.

    Raises:
        UnsupportedOperator: there is no row for it.
        GraphError: its arguments are not those of its operator.
    """
    row_of(operands.call.target)
    try:
        return Amounts(class_of(operands), flops(operands), bytes_moved(operands), channels_of(operands))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # the rules read arguments as torch's exporters write them; a stranger's plan may hold others
        raise GraphError(
            f"{who}: its arguments are not those of {operator} ({type(error).__name__}: {error})"
        ) from None
