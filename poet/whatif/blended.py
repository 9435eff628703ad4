"""Problems whose joules are those of several corners of a device's figures.

A problem has one price for each op and transfer. A blend charges weighted means of what the corners charge.
At the pace of `joules_as_seconds` its deadline limits the joules at one corner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from poet.problem import Problem, Tensor, Transfer


def at_pace(corner: Problem, slow: Problem) -> Problem:
    """``corner``'s joules with the seconds of ``slow``: what is cheapest here and in time there.

    Idle power becomes part of the joules of what makes the step longer. Where transfers run beside the ops it
    is charged for the ops alone, so that no plan is made more expensive than it is.
    """
    return blend([corner], [1.0], slow)


def joules_as_seconds(corner: Problem, unit_joules: float) -> Problem:
    """``corner`` with seconds that say how many ``unit_joules`` an op or a transfer takes there.

    Idle power is in them. Only where transfers do not run beside the ops is a step's duration their sum.
    """
    priced = blend([corner], [1.0 / unit_joules], corner)

    def timed(transfer: Transfer | None) -> Transfer | None:
        return None if transfer is None else replace(transfer, seconds=transfer.joules)

    return replace(
        priced,
        ops=tuple(replace(op, seconds=op.joules) for op in priced.ops),
        tensors=tuple(
            replace(tensor, page_in=timed(tensor.page_in), page_out=timed(tensor.page_out))
            for tensor in priced.tensors
        ),
    )


def blend(problems: Sequence[Problem], weights: Sequence[float], pace: Problem) -> Problem:
    """The weighted sum of the joules of ``problems``, at the seconds of ``pace``, idle power as above."""
    beside = pace.background_storage
    ops = tuple(
        replace(
            op,
            joules=sum(
                weight * (each.ops[index].joules + each.idle_watts * each.ops[index].seconds)
                for weight, each in zip(weights, problems, strict=True)
            ),
        )
        for index, op in enumerate(pace.ops)
    )

    def blended(index: int, tensor: Tensor, pick: Callable[[Tensor], Transfer | None]) -> Transfer | None:
        paced = pick(tensor)
        if paced is None:
            return None
        joules = 0.0
        for weight, each in zip(weights, problems, strict=True):
            transfer = pick(each.tensors[index])
            assert transfer is not None
            joules += weight * (transfer.joules + (0.0 if beside else each.idle_watts * transfer.seconds))
        return Transfer(paced.seconds, joules)

    tensors = tuple(
        replace(
            tensor,
            page_in=blended(index, tensor, lambda item: item.page_in),
            page_out=blended(index, tensor, lambda item: item.page_out),
        )
        for index, tensor in enumerate(pace.tensors)
    )
    return replace(pace, ops=ops, tensors=tensors, idle_watts=0.0)
