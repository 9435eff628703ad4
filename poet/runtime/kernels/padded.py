"""Convolutions that pad for themselves, made of torch's own calls: the bits are those of the two apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_aten = torch.ops.aten


def convolution(
    source: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    pads: Sequence[int],
) -> Tensor:
    """``aten.convolution`` of ``source`` [images, channels, height, width] with zeros around it: ``pads`` of
    them on the left, right, top and bottom; all else is as ``aten.convolution`` takes it.
    """
    made: Tensor = _aten.convolution.default(
        _aten.constant_pad_nd.default(source, pads),
        weight, bias, stride, padding, dilation, transposed, output_padding, groups,
    )  # fmt: skip
    return made


def convolution_backward(
    gradient: Tensor,
    source: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
    pads: Sequence[int],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The way back through it: what ``aten.convolution_backward`` gives, the zeros' gradient cut off.

    Where a gradient of the source is wanted alone, only the type of ``source`` counts.
    """
    to_source, to_weight, to_bias = _aten.convolution_backward.default(
        gradient, _aten.constant_pad_nd.default(source, pads),
        weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask,
    )  # fmt: skip
    if to_source is not None:
        to_source = _aten.constant_pad_nd.default(to_source, [-pad for pad in pads])
    return to_source, to_weight, to_bias
