"""Which arguments of a call are cut where one dimension of its output is: one row per operator.

A row says what makes sense by the operator's meaning. Whether a call on blocks gives the bits of the whole
is another question, which `poet.runtime.strip_trial` answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from poet.calls import Argument, Blank, Call, Ref, TensorType
from poet.strips import outermost

Cuts = tuple[tuple[int, int], ...]
"""(place, dimension), of arguments or of outputs."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A call in blocks.

    Attributes:
        arguments: that are cut.
        outputs: that come out in blocks then.
    """

    arguments: Cuts
    outputs: Cuts = ((0, 0),)


Types = Mapping[str, TensorType]
Rule = Callable[[Call, Types, int], Cut | None]
"""Given a call, the types of values and the dimension of the first output that is to be cut."""


def gradient_cut(call: Call, types: Types, dim: int) -> Cut | None:
    """How a call that makes a parameter's gradient is cut along ``dim`` of it; ``None``: not at all."""
    rule = _GRADIENTS.get(call.target)
    return None if rule is None else rule(call, types, dim)


def passing_cut(call: Call, types: Types, dim: int) -> Cut | None:
    """Likewise of a call that changes a gradient element by element; its tensors are cut alike."""
    rule = _PASSING.get(call.target)
    return None if rule is None else rule(call, types, dim)


def update_cut(call: Call, dim: int) -> Cut:
    """How an optimizer's update is cut along ``dim`` of its parameter: its tensors all alike."""
    return Cut(tuple((place, dim) for place, item in enumerate(call.args) if isinstance(item, Ref)), ())


def _shape(argument: Argument, types: Types) -> tuple[int, ...]:
    if isinstance(argument, Ref):
        return types[argument.value].shape
    return argument.type.shape if isinstance(argument, Blank) else ()


def _mm(call: Call, types: Types, dim: int) -> Cut | None:
    return Cut(((dim, dim),), ((0, dim),)) if dim < 2 else None


def _convolution_backward(call: Call, types: Types, dim: int) -> Cut | None:
    """The part for weight and bias: by output channels; of a transposed one, its weight's first dimension."""
    transposed, groups, mask = call.args[7], call.args[9], call.args[10]
    if call.kwargs or dim != 0 or groups != 1 or not isinstance(mask, tuple) or mask[0] or not mask[1]:
        return None
    if transposed:
        return None if mask[2] else Cut(((1, 1), (2, 0)), ((1, 0),))
    if not mask[2]:
        return Cut(((0, 1), (2, 0)), ((1, 0),))
    return Cut(((0, 1), (2, 0), (3, 0)), ((1, 0), (2, 0)))  # place 3 has the bias's sizes


def _embedding_backward(call: Call, types: Types, dim: int) -> Cut | None:
    """By rows of the table, where they are not scaled by how often they are read; by columns."""
    if call.kwargs or len(call.args) != 5:
        return None
    if dim == 1:
        return Cut(((0, len(_shape(call.args[0], types)) - 1),), ((0, 1),))
    return Cut(((2, 0),)) if call.args[4] is False else None


def _elementwise(call: Call, types: Types, dim: int) -> Cut | None:
    """All tensors of one shape."""
    places = [place for place, item in enumerate(call.args) if isinstance(item, Ref)]
    shapes = {_shape(call.args[place], types) for place in places}
    if len(shapes) != 1 or any(isinstance(item, Ref) for _, item in call.kwargs):
        return None
    return Cut(tuple((place, dim) for place in places), ((0, dim),))


def _copy(call: Call, types: Types, dim: int) -> Cut | None:
    """Into a layout of which a block is a stretch of memory, so that its strides are those of the whole."""
    source, shape, strides = call.args[:3]
    if not isinstance(shape, tuple) or not isinstance(strides, tuple) or _shape(source, types) != shape:
        return None
    sizes = tuple(size for size in shape if isinstance(size, int))
    steps = tuple(step for step in strides if isinstance(step, int))
    if outermost(TensorType("uint8", sizes, steps), sizes[dim]) != dim:
        return None
    return Cut(((0, dim), (1, dim)), ((0, dim),))


_GRADIENTS: dict[str, Rule] = {
    "aten.mm.default": _mm,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.embedding_dense_backward.default": _embedding_backward,
}
_PASSING: dict[str, Rule] = {
    "aten.add.Tensor": _elementwise,
    "aten.mul.Tensor": _elementwise,
    "aten.mul.Scalar": _elementwise,
    "aten.neg.default": _elementwise,
    "aten._to_copy.default": _elementwise,
    "poet.copy": _copy,
}
