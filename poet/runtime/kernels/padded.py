"""Convolutions that pad for themselves, made of torch's own calls: the bits are those of the two apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_aten = torch.ops.aten


def convolution(source: Tensor, weight: Tensor, bias: Tensor | None, *rest: object) -> Tensor:
    """``aten.convolution`` of ``source`` [images, channels, height, width] with zeros around it.

    Args:
        source: without them.
        weight: as ``aten.convolution`` takes it.
        bias: likewise.
        rest: its other arguments, then the zeros on the left, right, top and bottom.
    """
    *given, pads = rest
    made: Tensor = _aten.convolution.default(
        _aten.constant_pad_nd.default(source, pads), weight, bias, *given
    )
    return made


def convolution_backward(
    gradient: Tensor, source: Tensor, weight: Tensor, *rest: object
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The way back through it: what ``aten.convolution_backward`` gives, the zeros' gradient cut off.

    Args:
        gradient: of its result.
        source: as it was given; where a gradient of it is wanted alone only its type counts.
        weight: likewise.
        rest: the other arguments of ``aten.convolution_backward``, then the zeros.
    """
    *given, pads = rest
    assert isinstance(pads, Sequence)
    padded = _aten.constant_pad_nd.default(source, pads)
    to_source, to_weight, to_bias = _aten.convolution_backward.default(gradient, padded, weight, *given)
    if to_source is not None:
        to_source = _aten.constant_pad_nd.default(to_source, [-pad for pad in pads])
    return to_source, to_weight, to_bias
