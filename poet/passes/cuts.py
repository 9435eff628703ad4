"""Which arguments of a call are cut where one dimension of its output is, by the rules that rows name.

A rule says what makes sense by the operator's meaning. Whether a call on blocks gives the bits of the whole
is another question, which `poet.runtime.trials.blocks` answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from poet.ir.calls import Argument, Blank, Call, Ref, TensorType
from poet.ir.op_spec import Rule
from poet.ir.operators import spec_of
from poet.ir.strips import outermost

Cuts = tuple[tuple[int, int], ...]
"""(place, dimension), of arguments or of outputs."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A call in blocks.

    Attributes:
        arguments: that are cut.
        outputs: that come out in blocks then.
        sums: places of outputs that are sums over the blocks.
    """

    arguments: Cuts
    outputs: Cuts = ((0, 0),)
    sums: tuple[int, ...] = ()


Types = Mapping[str, TensorType]


def gradient_cut(call: Call, types: Types, dim: int) -> Cut | None:
    """How a call that makes a parameter's gradient is cut along ``dim`` of it; ``None``: not at all."""
    rule = spec_of(call.target).gradient_cut
    return None if rule is None else _CUTS[rule.name](call, types, dim)


def passing_cut(call: Call, types: Types, dim: int) -> Cut | None:
    """Likewise of a call that changes a gradient element by element; its tensors are cut alike."""
    rule = spec_of(call.target).passing_cut
    return None if rule is None else _CUTS[rule.name](call, types, dim)


def update_cut(call: Call, dim: int) -> Cut:
    """How an optimizer's update is cut along ``dim`` of its parameter: its tensors all alike."""
    return Cut(tuple((place, dim) for place, item in enumerate(call.args) if isinstance(item, Ref)), ())


def slice_cuts(call: Call, types: Types) -> Iterator[tuple[int, Cut]]:
    """Ways to cut ``call`` by itself, each with the elements along what is cut; none where none is known."""
    yield from _ways_of(spec_of(call.target).slices, call, types)


def sum_cuts(call: Call, types: Types) -> Iterator[tuple[int, Cut]]:
    """Likewise, where what ``call`` makes is a sum over the blocks."""
    yield from _ways_of(spec_of(call.target).sums, call, types)


def _ways_of(rule: Rule | None, call: Call, types: Types) -> Iterator[tuple[int, Cut]]:
    if rule is not None and not any(isinstance(item, Ref) for _, item in call.kwargs):
        yield from _SLICES[rule.name](call, types, *rule.given, **dict(rule.named))


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


def _logits_weight_gradient(call: Call, types: Types, dim: int) -> Cut | None:
    """By classes: rows of the weight, elements of the bias."""
    return Cut(_along(call, {2: 0, 3: 0, 11: 0}), ((0, 0), (1, 0))) if dim == 0 else None


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


# --- slices of one call -----------------------------------------------------------------------

Ways = Iterator[tuple[int, Cut]]


def _along(call: Call, dims: Mapping[int, int]) -> Cuts:
    """The cuts of those arguments that are there, by place."""
    return tuple(
        (place, dim) for place, dim in dims.items() if place < len(call.args) and call.args[place] is not None
    )


def _is_depthwise(call: Call, types: Types, *, source: int, groups: int) -> bool:
    """Whether each channel is convolved by itself, into one."""
    channels, kernels = _shape(call.args[source], types), _shape(call.args[2 if source else 1], types)
    return call.args[groups] == channels[1] == kernels[0] and kernels[1] == 1 < kernels[0]


def _convolution_slices(call: Call, types: Types) -> Ways:
    """By output channels; of one per channel, by channels."""
    transposed, groups, weight = call.args[6], call.args[8], _shape(call.args[1], types)
    if groups == 1:
        dim = 1 if transposed else 0
        yield weight[dim], Cut(_along(call, {1: dim, 2: 0}), ((0, 1),))
    elif not transposed and _is_depthwise(call, types, source=0, groups=8):
        yield weight[0], Cut(_along(call, {0: 1, 1: 0, 2: 0, 8: 0}), ((0, 1),))


def _convolution_backward_slices(call: Call, types: Types) -> Ways:
    """The input's gradient by input channels, the weight's by output or input channels."""
    transposed, groups, mask = call.args[7], call.args[9], call.args[10]
    if not isinstance(mask, tuple):
        return
    weight = _shape(call.args[2], types)
    if groups != 1:
        if not transposed and _is_depthwise(call, types, source=1, groups=9):
            bias = {3: 0} if mask[2] else {}
            made = tuple(item for item, wanted in zip(((0, 1), (1, 0), (2, 0)), mask, strict=True) if wanted)
            yield weight[0], Cut(_along(call, {0: 1, 1: 1, 2: 0, 9: 0, **bias}), made)
        return
    incoming, outgoing = (0, 1) if transposed else (1, 0)
    if mask[0] and not (mask[1] or mask[2]):
        yield weight[incoming], Cut(_along(call, {1: 1, 2: incoming}), ((0, 1),))
    elif mask[1] and not mask[0]:
        bias = {3: 0} if mask[2] else {}
        made = ((1, outgoing), (2, 0)) if mask[2] else ((1, outgoing),)
        yield weight[outgoing], Cut(_along(call, {0: 1, 2: outgoing, **bias}), made)
        if not mask[2]:
            yield weight[incoming], Cut(_along(call, {1: 1, 2: incoming}), ((1, incoming),))


def _input_gradient_sums(call: Call, types: Types) -> Ways:
    """A convolution's gradient of its input is a sum over output channels."""
    transposed, groups, mask = call.args[7], call.args[9], call.args[10]
    if groups == 1 and isinstance(mask, tuple) and mask[0] and not (mask[1] or mask[2]):
        outgoing = 1 if transposed else 0
        yield _shape(call.args[2], types)[outgoing], Cut(_along(call, {0: 1, 2: outgoing}), (), (0,))


def _batch_norm_backward_slices(call: Call, types: Types) -> Ways:
    """By channels."""
    channels = _shape(call.args[1], types)[1]
    yield channels, Cut(_along(call, {0: 1, 1: 1, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0}), ((0, 1), (1, 0), (2, 0)))


def _row_slices(call: Call, types: Types, *places: int, dim: int) -> Ways:
    """Along any dimension but that in argument ``dim``, the largest first."""
    shape, own = _shape(call.args[0], types), call.args[dim]
    if not isinstance(own, int):
        return
    for along in sorted(range(len(shape)), key=lambda place: -shape[place]):
        if along != own % len(shape):
            yield shape[along], Cut(tuple((place, along) for place in places), ((0, along),))


def _head_slices(call: Call, types: Types, *places: int, outputs: int) -> Ways:
    """By heads."""
    shapes = [_shape(call.args[place], types) for place in places]
    if all(len(shape) > 1 and shape[1] == shapes[0][1] for shape in shapes):
        cut = Cut(tuple((place, 1) for place in places), tuple((place, 1) for place in range(outputs)))
        yield shapes[0][1], cut


def _bmm_slices(call: Call, types: Types) -> Ways:
    """By product."""
    yield _shape(call.args[0], types)[0], Cut(((0, 0), (1, 0)))


_CUTS: Mapping[str, Callable[[Call, Types, int], Cut | None]] = {
    "mm": _mm,
    "convolution_backward": _convolution_backward,
    "table_rows": _embedding_backward,
    "classes": _logits_weight_gradient,
    "elementwise": _elementwise,
    "copy": _copy,
}
"""Given a call, the types of values and the dimension of the first output that is to be cut."""

_SLICES: Mapping[str, Callable[..., Ways]] = {
    "convolution": _convolution_slices,
    "convolution_backward": _convolution_backward_slices,
    "input_gradient": _input_gradient_sums,
    "channels": _batch_norm_backward_slices,
    "rows": _row_slices,
    "heads": _head_slices,
    "products": _bmm_slices,
}
"""Given a call and the types of values, the ways to cut it with the elements along what is cut."""
