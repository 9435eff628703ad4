"""FLOPs and bytes of measured ops, by the cost table of this poet."""

from __future__ import annotations

import math
from dataclasses import dataclass

from poet.devices.cost_rules import Operands
from poet.devices.cost_table import row_of
from poet.devices.measurements import OpTime
from poet.devices.profile import OpClass
from poet.errors import GraphError


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


def amounts_of(op: OpTime) -> Amounts:
    """Of one run of ``op``.

    Raises:
        UnsupportedOperator: the cost table has no row for it.
        GraphError: its arguments are not those of its operator.
    """
    types = {f"v{index}": type_ for index, type_ in enumerate(op.types)}
    operands = Operands(op.call, types, op.outputs, op.updated_bytes)
    return amounts_for(operands, op.call.target, "the operator")


def amounts_for(operands: Operands, who: str, operator: str) -> Amounts:
    """Of one run on ``operands``; messages name ``who`` makes it, and the ``operator``.

    Raises:
        UnsupportedOperator: the cost table has no row for it.
        GraphError: its arguments are not those of its operator.
    """
    row = row_of(operands.call.target)
    try:
        return Amounts(
            row.class_of(operands),
            row.flops(operands),
            row.bytes_moved(operands),
            row.channels_of(operands),
        )
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        # the rules read arguments as torch's exporters write them; a stranger's plan may hold others
        raise GraphError(
            f"{who}: its arguments are not those of {operator} ({type(error).__name__}: {error})"
        ) from None
