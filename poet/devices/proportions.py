"""How much of a base's proportions a fit should believe: as much as the measured ops speak for them.

Proportions are how the speeds of a profile's classes relate to that of its matrix products. They belong to a
library of kernels as much as to a machine: PyTorch's depthwise convolutions are a hundredth as fast as its
products on one board and a fifth on another. A base of another library has them wrong. So a share of them, as
an exponent, is kept: the mean of `SHARES`, each weighted by the evidence that the ops give for it. Ops that
tell nothing of it leave it at a half, which errs less on either side than all or nothing would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from poet.devices.fitting import log_evidence
from poet.devices.measurements import OpTime
from poet.devices.profile import Figure, OpClass, Profile

SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
"""From the base as it stands to one whose classes are all as fast as its products."""


def with_share(base: Profile, share: float) -> Profile:
    """``base`` with so much of its proportions; its products, memory and calls stay as they are."""
    products = base.compute.throughput(OpClass.MATMUL)
    if products is None:
        return base
    top = products.flops_per_second.value
    tables = {}
    for name in ("all", *(op_class.value for op_class in OpClass)):
        own = getattr(base.compute, name)
        if own is not None:
            factor = (top / own.flops_per_second.value) ** (1.0 - share)
            figure = _scaled(own.flops_per_second, factor)
            tables[name] = own.model_copy(update={"flops_per_second": figure})
    return base.model_copy(update={"compute": base.compute.model_copy(update=tables)})


def _scaled(figure: Figure, factor: float) -> Figure:
    span = figure.range
    scaled = None if span is None else (span[0] * factor, span[1] * factor)
    return figure.model_copy(update={"value": figure.value * factor, "range": scaled})


def share_by_evidence(ops: Sequence[OpTime], base: Profile) -> float:
    """The share of ``base``'s proportions that ``ops`` speak for, 0 to 1.

    Raises:
        UnsupportedOperator: an op has no row in the cost table.
    """
    found = [log_evidence(ops, with_share(base, share)) for share in SHARES]
    weights = [math.exp(each - max(found)) for each in found]
    products = (weight * share for weight, share in zip(weights, SHARES, strict=True))
    return math.fsum(products) / math.fsum(weights)
