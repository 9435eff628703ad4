"""What backward asks of an activation in fewer bytes: a bit of each element, or a byte for a maximum's place.

Eager keeps the output of a rectifier for one question per element, a mask of dropout as numbers of which
there are two, and the place of a pooling's maximum as 8 bytes. The kernels here make and read the compressed
activations block by block: nothing of the full size is made beside it. Results are torch's, bit for bit.

A plan holds what memory a kernel took where it was measured, which may be a machine without the compiled
kernels. So both kinds ask torch for the same memory, also for what only one of them needs, and blocks are
small.

Bits stand in rows, each begun at a byte of its own: one row of all elements, or one for each index of the
first dimension where gradients come as slices of something wider.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from poet.errors import PlanError
from poet.runtime import native
from poet.runtime.native.allocator import Library

_BLOCK_ELEMENTS = 1 << 13
"""Handled at once, a multiple of 8: calls cost little beside them, and their numbers take 32 KiB or so.

NumPy has a byte of its own for each of them for a moment, which torch's allocator does not see.
"""

_POOLED_ELEMENTS = 1 << 16
"""Of a pooling forward, which torch shares out among threads by channels."""


def row_bytes(elements: int) -> int:
    """How many bytes a row of so many bits takes."""
    return -(-elements // 8)


# --- rectifiers -------------------------------------------------------------------------------


def relu(source: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """`torch.relu`, and a set bit wherever backward lets the gradient through.

    Returns:
        output of the type of ``source``, which is contiguous; uint8[rows, bytes of a row].
    """
    output = torch.ops.aten.relu.default(source)
    bits = torch.empty(rows, row_bytes(output.numel() // max(rows, 1)), dtype=torch.uint8)
    flags, library = _scratch(output, torch.bool), _library()
    if library is not None and output.dtype in (torch.float32, torch.float64):
        _packed_by(library, output, bits)
        return output, bits
    # not "greater than": NaN lets gradients through, as it does in threshold_backward
    _pack(output, bits, torch.le, flags)
    torch.bitwise_not(bits, out=bits)
    return output, bits


def relu_backward(gradient: Tensor, bits: Tensor) -> Tensor:
    """``threshold_backward`` at 0 by the bits of `relu`.

    Returns:
        contiguous, of the shape and element type of ``gradient``.
    """
    return relu_backward_into(gradient, bits, out=torch.empty(gradient.shape, dtype=gradient.dtype))


def relu_backward_into(gradient: Tensor, bits: Tensor, *, out: Tensor) -> Tensor:
    """`relu_backward` written into ``out``, which is contiguous and may be ``gradient``."""
    numbers, library = _scratch(out, out.dtype), _library()
    if library is not None:
        for part, packed, made in _rows_of(gradient, bits, out):
            size = (made.element_size(), made.numel())
            library.c.poet_gate(part.data_ptr(), packed.data_ptr(), *size, made.data_ptr())
        return out
    for given, open_, made in _blocks_of(gradient, bits, out, numbers):
        torch.ops.aten.threshold_backward.grad_input(given, open_, 0, grad_input=made)
    return out


# --- dropout ----------------------------------------------------------------------------------


def bernoulli(
    generator: torch.Generator, shape: Sequence[int], element: torch.dtype, p: float, rows: int
) -> Tensor:
    """The ones among what ``torch.empty(shape, dtype=element).bernoulli_(p)`` draws, as bits."""
    drawn = torch.empty(shape, dtype=element).bernoulli_(p, generator=generator)
    bits = torch.empty(rows, row_bytes(drawn.numel() // max(rows, 1)), dtype=torch.uint8)
    flags, library = _scratch(drawn, torch.bool), _library()
    if library is not None and drawn.dtype in (torch.float32, torch.float64):
        _packed_by(library, drawn, bits)  # what is drawn is 0 or 1, so that above 0 is not 0
    else:
        _pack(drawn, bits, torch.ne, flags)
    return bits


def masked(source: Tensor, bits: Tensor, factor: float) -> Tensor:
    """``source`` times a mask that is ``factor`` where a bit is set and 0 elsewhere.

    It multiplies, as eager does: infinities that are dropped become NaN, negative numbers -0.0.

    Returns:
        contiguous, of the shape and element type of ``source``.
    """
    return masked_into(source, bits, factor, out=torch.empty(source.shape, dtype=source.dtype))


def masked_into(source: Tensor, bits: Tensor, factor: float, *, out: Tensor) -> Tensor:
    """`masked` written into ``out``, which is contiguous and may be ``source``."""
    numbers, library = _scratch(out, out.dtype), _library()
    if library is not None and source.dtype == torch.float32:
        for part, packed, made in _rows_of(source, bits, out):
            library.c.poet_masked(part.data_ptr(), packed.data_ptr(), made.numel(), factor, made.data_ptr())
        return out
    for given, ones, made in _blocks_of(source, bits, out, numbers):
        torch.mul(given, ones.mul_(factor), out=made)
    return out


# --- max pooling ------------------------------------------------------------------------------


def max_pool(
    source: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Tensor, Tensor]:
    """``max_pool2d_with_indices``, with places in the window, row by row, in place of places in the plane.

    Args:
        source: [N,C,H,W].
        kernel: rows and columns of a window.
        stride: from one window to the next, down and across.
        padding: rows above and below, columns left and right.
        dilation: from one element of a window to the next, down and across.
        ceil_mode: as torch has it.

    Returns:
        contiguous maxima [N,C,h,w]; their places, uint8 of the same shape.
    """
    size = pooled_size(source.shape[2:], kernel, stride, padding, dilation, ceil_mode)
    shape = (*source.shape[:2], *size)
    output, places = torch.empty(shape, dtype=source.dtype), torch.empty(shape, dtype=torch.uint8)
    settings = ([*kernel], [*stride], [*padding], [*dilation], ceil_mode)
    windows = _Windows(source.shape[3], size, kernel, stride, padding, dilation)
    table = windows.place_of_offset()
    library = _library()
    for sample, begin, end in _planes(shape, _POOLED_ELEMENTS):
        block, made = source[sample, begin:end], output[sample, begin:end]
        indices = torch.empty(made.shape, dtype=torch.int64)
        torch.ops.aten.max_pool2d_with_indices.out(block, *settings, out=made, indices=indices)
        found = places[sample, begin:end]
        if library is not None:
            spots = (windows.first.data_ptr(), table.data_ptr(), found.data_ptr())
            library.c.poet_places(indices.data_ptr(), end - begin, windows.first.numel(), *spots)
        else:
            torch.index_select(table, 0, indices.sub_(windows.first).view(-1), out=found.view(-1))
    return output, places


def max_pool_backward(
    gradient: Tensor,
    source: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    places: Tensor,
) -> Tensor:
    """``max_pool2d_with_indices_backward`` by the places of `max_pool`.

    Args:
        gradient: [N,C,h,w], of any strides.
        source: [N,C,H,W], of which the shape is read.
        kernel: as for `max_pool`, like all up to ``ceil_mode``.
        stride: likewise.
        padding: likewise.
        dilation: likewise.
        ceil_mode: likewise.
        places: uint8 [N,C,h,w].

    Returns:
        contiguous [N,C,H,W].
    """
    is_alike = gradient.shape == places.shape and places.shape[:2] == source.shape[:2]
    if not is_alike or places.dtype != torch.uint8 or not source.numel():
        raise PlanError(
            f"poet.max_pool_backward: places of shape {tuple(places.shape)} are not those of a gradient of "
            f"shape {tuple(gradient.shape)}"
        )
    result = torch.empty(source.shape, dtype=gradient.dtype)
    settings = ([*kernel], [*stride], [*padding], [*dilation], ceil_mode)
    windows = _Windows(source.shape[3], places.shape[2:], kernel, stride, padding, dilation)
    offsets = windows.offset_of_place()
    last = source.shape[2] * source.shape[3] - 1
    library, size = _library(), windows.first.numel()
    room = size * max(end - begin for _, begin, end in _planes(places.shape, _BLOCK_ELEMENTS))
    indices, known = (torch.empty(room, dtype=kind) for kind in (torch.int64, torch.int32))
    for sample, begin, end in _planes(places.shape, _BLOCK_ELEMENTS):
        found, given = places[sample, begin:end].contiguous(), gradient[sample, begin:end].contiguous()
        made = result[sample, begin:end]
        if library is not None:
            asked = (found.data_ptr(), end - begin, size)
            spots = (windows.first.data_ptr(), offsets.data_ptr(), len(offsets), last)
        if library is not None and gradient.dtype == torch.float32:
            library.c.poet_max_pool_backward(given.data_ptr(), *asked, *spots, made.data_ptr())
            continue
        spot = indices[: found.numel()]
        if library is not None:
            library.c.poet_indices(*asked, *spots, spot.data_ptr())
        else:
            place = known[: found.numel()].copy_(found.view(-1)).clamp_(max=len(offsets) - 1)
            torch.index_select(offsets, 0, place, out=spot)
            # whatever a stranger's plan has kept as places
            spot.view(end - begin, size).add_(windows.first.view(-1)).clamp_(0, last)
        torch.ops.aten.max_pool2d_with_indices_backward.grad_input(
            given, source[sample, begin:end], *settings, spot.view(found.shape), grad_input=made
        )
    return result


def pooled_size(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[int, ...]:
    """How many windows there are along each dimension; each begins in the input or the padding before it."""
    found = []
    for whole, edge, step, pad, apart in zip(size, kernel, stride, padding, dilation, strict=True):
        room = whole + 2 * pad - apart * (edge - 1) - 1
        count = (room + step - 1 if ceil_mode else room) // max(step, 1) + 1
        found.append(count - 1 if ceil_mode and (count - 1) * step >= whole + pad else count)
    return tuple(found)


class _Windows:
    """Where windows begin in a plane of rows of ``width`` (``first``: int64 [h,w]), and go on from there."""

    def __init__(
        self,
        width: int,
        size: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> None:
        if min(*kernel, *stride, *dilation) < 1:
            raise PlanError(
                f"no pooling has windows of {tuple(kernel)}, {tuple(stride)} and {tuple(dilation)}"
            )
        self.width, self.kernel, self.dilation = width, kernel, dilation
        rows = torch.arange(size[0]).mul_(stride[0]).sub_(padding[0]).mul_(width)
        columns = torch.arange(size[1]).mul_(stride[1]).sub_(padding[1])
        self.first = rows.unsqueeze(1) + columns

    def offset_of_place(self) -> Tensor:
        """int64: by the place in the window, how far on from the window's first element it is."""
        rows = torch.arange(self.kernel[0]).mul_(self.dilation[0] * self.width)
        columns = torch.arange(self.kernel[1]).mul_(self.dilation[1])
        return (rows.unsqueeze(1) + columns).view(-1)

    def place_of_offset(self) -> Tensor:
        """uint8: the reverse of `offset_of_place`."""
        offsets = self.offset_of_place()
        last = (self.kernel[0] - 1) * self.dilation[0] * self.width + (self.kernel[1] - 1) * self.dilation[1]
        table = torch.zeros(last + 1, dtype=torch.uint8)
        table[offsets] = torch.arange(len(offsets)).to(torch.uint8)
        return table


def _planes(shape: Sequence[int], elements: int) -> Iterator[tuple[int, int, int]]:
    """Channels from one to another of a sample, about so many elements of [N,C,h,w] at a time."""
    together = max(1, elements // max(1, math.prod(shape[2:])))
    for sample in range(shape[0]):
        for begin in range(0, shape[1], together):
            yield sample, begin, min(begin + together, shape[1])


# --- rows and blocks --------------------------------------------------------------------------


def _library() -> Library | None:
    """The compiled kernels, where there are any; the Python beside each call gives the same bits."""
    allocator = None if _is_traced() else native.load()
    return None if allocator is None else allocator.library


def _is_traced() -> bool:
    """Whether tensors have no content now: `poet.programs` writes calls down, and NumPy is not among them."""
    return torch._C._len_torch_dispatch_stack() > 0


def _scratch(made: Tensor, element: torch.dtype) -> Tensor:
    """Room for so many numbers as there are in a block of ``made``."""
    return torch.empty(min(_BLOCK_ELEMENTS, made.numel()), dtype=element)


def _packed_by(library: Library, tensor: Tensor, bits: Tensor) -> None:
    """Set a bit wherever an element of a contiguous tensor of floats is not at most 0."""
    for row, packed in zip(tensor.view(len(bits), -1) if tensor.numel() else (), bits, strict=False):
        library.c.poet_pack(row.data_ptr(), row.element_size(), row.numel(), packed.data_ptr())


def _pack(tensor: Tensor, bits: Tensor, compared: Callable[..., Tensor], flags: Tensor) -> None:
    """Set a bit wherever an element of a contiguous tensor and 0 are as ``compared`` asks."""
    if not tensor.numel():
        return
    if _is_traced():
        for row, packed in zip(tensor.view(len(bits), -1), bits, strict=True):
            for begin, end in _blocks(row.numel()):
                some = compared(row[begin:end], 0, out=flags[: end - begin])
                some = torch.constant_pad_nd(some.view(torch.uint8), (0, -len(some) % 8))
                some = torch.bitwise_left_shift(some.view(-1, 8), _places_of_bits())
                torch.sum(some, 1, dtype=torch.uint8, out=packed[begin // 8 : row_bytes(end)])
        return
    for row, packed in zip(tensor.view(len(bits), -1), bits.numpy(), strict=True):
        for begin, end in _blocks(row.numel()):
            some = compared(row[begin:end], 0, out=flags[: end - begin])
            packed[begin // 8 : row_bytes(end)] = np.packbits(some.numpy(), bitorder="little")


def _rows_of(given: Tensor, bits: Tensor, made: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Elements of ``given``, their bits, and elements of ``made``, row by row.

    Raises:
        PlanError: the bits are not those of so many elements.
    """
    rows, elements = len(bits), made.numel() // max(1, len(bits))
    fits = rows * elements == made.numel() and bits.shape == (rows, row_bytes(elements))
    if not fits or bits.dtype != torch.uint8 or not bits.is_contiguous():
        raise PlanError(
            f"bits of shape {tuple(bits.shape)} are not those of a tensor of shape {tuple(made.shape)}"
        )
    parts = (given,) if rows == 1 else given.unbind(0)
    for part, packed, target in zip(parts, bits, made.view(rows, elements), strict=True):
        yield part.reshape(-1).contiguous(), packed, target


def _blocks_of(
    given: Tensor, bits: Tensor, made: Tensor, numbers: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Elements of ``given``, their bits as numbers 0 and 1 of its type, and of ``made``, block by block."""
    for part, packed, target in _rows_of(given, bits, made):
        for begin, end in _blocks(len(target)):
            short = packed[begin // 8 : row_bytes(end)]
            if _is_traced():
                shifted = torch.bitwise_right_shift(short.unsqueeze(1), _places_of_bits())
                flags = shifted.bitwise_and_(1).view(-1)[: end - begin]
            else:
                found = np.unpackbits(short.numpy(), count=end - begin, bitorder="little")
                flags = torch.from_numpy(found)
            yield part[begin:end], numbers[: end - begin].copy_(flags), target[begin:end]


def _places_of_bits() -> Tensor:
    return torch.arange(8, dtype=torch.uint8)


def _blocks(elements: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, elements, _BLOCK_ELEMENTS):
        yield begin, min(begin + _BLOCK_ELEMENTS, elements)
