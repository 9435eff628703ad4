"""FLOPs and bytes of measured ops, by the cost table of this poet."""

from __future__ import annotations

from dataclasses import dataclass

from poet.devices.cost_rules import Operands
from poet.devices.cost_table import row_of
from poet.devices.measurements import OpTime
from poet.devices.profile import OpClass
from poet.errors import GraphError


@dataclass(frozen=True, slots=True)
class Amounts:
    """What one run of an op amounts to."""

    op_class: OpClass
    flops: float
    bytes_moved: int


def amounts_of(op: OpTime) -> Amounts:
    """Of one run of ``op``.

    Raises:
        UnsupportedOperator: the cost table has no row for it.
        GraphError: its arguments are not those of its operator.
    """
    types = {f"v{index}": type_ for index, type_ in enumerate(op.types)}
    operands = Operands(op.call, types, op.outputs, op.updated_bytes)
    row = row_of(op.call.target)
    try:
        return Amounts(row.class_of(operands), row.flops(operands), row.bytes_moved(operands))
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise GraphError(
            f"{op.call.target}: its arguments are not those of the operator ({type(error).__name__}: {error})"
        ) from None
