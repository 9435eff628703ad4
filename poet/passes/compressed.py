"""What backward needs in few bytes: signs of rectifiers, masks of dropout as bits, places of maxima as bytes.

Of an activation backward may ask only the sign; a mask of dropout has two numbers; a maximum's index lies in
its window. Eager keeps 4 or 8 bytes of each element for that. Here the op that makes the long form makes the
short one, or both, and backward reads the short one (`poet.runtime.kernels.packed`). Bits of results are the
same.

What something else reads stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain

import torch

from poet.ir.calls import contiguous
from poet.ir.graph import Argument, Blank, Call, Graph, Op, Ref, Role, TensorType, Value
from poet.ir.operators import spec_of
from poet.passes.rewrite import GraphUses, Rewrite, Technique, is_pure, rewritten
from poet.runtime.kernels.arguments import dtype, same_layout
from poet.runtime.kernels.packed import row_bytes

LEAST_BYTES = 4096
"""Of what is saved: less is little beside what a call costs."""

_BYTE_PLACES = 256
_FLOATING = frozenset(("float64", "float32", "float16", "bfloat16"))
_POOL_BACKWARD = "aten.max_pool2d_with_indices_backward.default"


def compressible(graph: Graph) -> dict[str, Rewrite]:
    """What may be saved compressed, by the op that makes the full tensor; no two change the same op."""
    uses = _Uses(graph)
    found: dict[str, Rewrite] = {}
    changed: set[str] = set()
    for op in graph.ops:
        rule = _RULES.get(spec_of(op.call.target).saved)
        is_plain = op.strip is None and not op.updates and not uses.is_backward(op)
        change = None if rule is None or not is_plain else rule(uses, op)
        if change is not None and not changed & change.ops.keys():
            found[op.name] = replace(change, technique=Technique.COMPRESSED)
            changed |= change.ops.keys()
    return found


def with_compressed(graph: Graph, rewrites: Collection[Rewrite]) -> Graph:
    """``graph`` with these of its `compressible` activations; what backward no longer reads is not saved."""
    if not rewrites:
        return graph
    backward = {op.name for op in graph.ops[GraphUses(graph).backward_place :]}
    made = rewritten(graph, rewrites)
    read = {name for op in made.ops if op.name in backward for name in made.reads(op.call)}
    return replace(
        made,
        buffers=tuple(
            replace(item, role=Role.ACTIVATION) if item.role is Role.SAVED and item.name not in read else item
            for item in made.buffers
        ),
    )


class _Uses(GraphUses):
    """What the rules ask of a graph."""

    def readers_back(self, value: str) -> list[Op]:
        """Of the ops that read ``value``, those of the backward pass."""
        return [op for op in self.readers_of(value) if self.is_backward(op)]

    def is_floating(self, value: str) -> bool:
        """Whether ``value`` is contiguous and of floating-point numbers."""
        return self.types[value].dtype in _FLOATING and _is_contiguous(self.types[value])

    def are_alike(self, *values: str) -> bool:
        """Whether all are of one shape and element type."""
        return len({(self.types[name].dtype, self.types[name].shape) for name in values}) == 1

    def rows(self, values: Iterable[str]) -> int | None:
        """In how many rows bits stand, so that each of ``values`` has its elements of a row in one piece."""
        types = [self.types[value] for value in values]
        if all(map(_is_contiguous, types)):
            return 1
        parts = (TensorType(kind.dtype, kind.shape[1:], kind.strides[1:]) for kind in types)
        return types[0].shape[0] if all(map(_is_contiguous, parts)) else None


def _is_contiguous(kind: TensorType) -> bool:
    return same_layout(kind, contiguous(kind.dtype, kind.shape))


def _bits(name: str, elements: int, rows: int) -> Value:
    return Value(name, name, contiguous("uint8", (rows, row_bytes(elements // rows))))


# --- rectifiers -------------------------------------------------------------------------------


def _signs(uses: _Uses, op: Op) -> Rewrite | None:
    """A rectifier whose output backward reads for nothing but its sign."""
    output = op.outputs[0]
    if output is None or uses.is_kept(output) or not uses.is_floating(output) or not is_pure(op):
        return None
    kind = uses.types[output]
    readers = uses.readers_back(output)
    gradients = [name for reader in readers if (name := _threshold_gradient(uses, reader, output))]
    if not readers or len(gradients) < len(readers):
        return None
    rows = uses.rows(gradients)
    if rows is None:
        return None
    signs = _bits(f"{output}.signs", kind.elements, rows)
    if kind.extent_bytes - signs.type.extent_bytes < LEAST_BYTES:
        return None
    ops: dict[str, Op | None] = {
        op.name: replace(op, call=Call("poet.relu", (*op.call.args, rows)), outputs=(output, signs.name))
    }
    for reader in readers:
        call = Call("poet.relu_backward", (reader.call.args[0], Ref(signs.name)))
        ops[reader.name] = replace(reader, call=call)
    return Rewrite(ops, (signs,))


def _threshold_gradient(uses: _Uses, reader: Op, output: str) -> str | None:
    """The gradient that ``reader`` is given, if it asks ``output`` only whether it is above 0."""
    call = reader.call
    if call.target != "aten.threshold_backward.default" or call.kwargs or not is_pure(reader):
        return None
    gradient, read, threshold = call.args
    made = reader.outputs[0]
    if not isinstance(gradient, Ref) or read != Ref(output) or threshold != 0 or made is None:
        return None
    if uses.graph.buffer_of(gradient.value) == uses.graph.buffer_of(output) or not uses.is_floating(made):
        return None
    return gradient.value if uses.are_alike(output, gradient.value, made) else None


# --- dropout ----------------------------------------------------------------------------------


def _mask(uses: _Uses, op: Op) -> Rewrite | None:
    """A mask that is drawn, perhaps divided by its share of ones, and multiplied with others of its shape."""
    drawn = op.outputs[0]
    if drawn is None or uses.is_kept(drawn) or not uses.is_floating(drawn):
        return None
    mask, factor = drawn, 1.0
    divided = _divided(uses, drawn)
    if divided is not None:
        mask = str(divided[0].outputs[0])
        factor = torch.ones((), dtype=dtype(uses.types[drawn].dtype)).div_(divided[1]).item()
    readers = uses.readers_of(mask)
    given = [name for reader in readers if (name := _multiplied(uses, reader, mask))]
    if uses.is_kept(mask) or len(given) < len(readers) or not any(map(uses.is_backward, readers)):
        return None
    rows, kind = uses.rows(given), uses.types[drawn]
    if rows is None:
        return None
    bits = _bits(drawn, kind.elements, rows)
    if kind.extent_bytes - bits.type.extent_bytes < LEAST_BYTES:
        return None
    ops = _drawn_as_bits(uses, op, rows, bits.type.extent_bytes)
    for reader, name in zip(readers, given, strict=True):
        ops[reader.name] = replace(reader, call=Call("poet.masked", (Ref(name), Ref(drawn), factor)))
    if divided is not None:
        ops[divided[0].name] = None
    lost = (uses.graph.writes(item) for item in uses.graph.ops if ops.get(item.name, item) is None)
    return Rewrite(ops, (bits,), tuple(chain.from_iterable(lost)))


def _divided(uses: _Uses, drawn: str) -> tuple[Op, float] | None:
    """The one op that reads ``drawn``, if it divides it by a positive number, and that number."""
    readers = uses.readers_of(drawn)
    call = readers[0].call if len(readers) == 1 else None
    if call is None or call.target != "aten.div.Scalar" or call.args[0] != Ref(drawn):
        return None
    by, output = call.args[1], readers[0].outputs[0]
    if not isinstance(by, int | float) or not 0 < by < math.inf:
        return None
    if output is None or not is_pure(readers[0]):
        return None
    return (readers[0], float(by)) if uses.types[output] == uses.types[drawn] else None


def _multiplied(uses: _Uses, reader: Op, mask: str) -> str | None:
    """What ``reader`` multiplies with ``mask``, where it does that and both are of one shape."""
    call, made = reader.call, reader.outputs[0] if reader.outputs else None
    if call.target != "aten.mul.Tensor" or call.kwargs or made is None or not is_pure(reader):
        return None
    others = [item.value for item in call.args if isinstance(item, Ref) and item.value != mask]
    if len(others) != 1 or uses.graph.buffer_of(others[0]) == uses.graph.buffer_of(mask):
        return None
    return others[0] if uses.is_floating(made) and uses.are_alike(mask, others[0], made) else None


def _drawn_as_bits(uses: _Uses, op: Op, rows: int, bits_bytes: int) -> dict[str, Op | None]:
    """``op`` drawing bits; the generator's state before it goes, where keeping what was drawn is cheaper."""
    shape, _, element, share = op.call.args
    given = (shape, element, share, rows)
    call, again = Call("poet.bernoulli_bits", given), op.repeat_call
    if again is None:
        return {op.name: replace(op, call=call)}
    state = next(again.refs())
    kept = uses.makers[uses.graph.buffer_of(state)]
    if bits_bytes <= uses.types[state].extent_bytes and uses.readers_of(state) == [op]:
        return {kept.name: None, op.name: replace(op, call=call, repeatable=False, repeat_call=None)}
    repeat_call = Call("poet.with_rng_state", (Ref(state), call.target, *given))
    return {op.name: replace(op, call=call, repeat_call=repeat_call)}


# --- max pooling ------------------------------------------------------------------------------


def _places(uses: _Uses, op: Op) -> Rewrite | None:
    """A pooling whose indices only its backward reads."""
    maxima, indices = op.outputs
    source = op.call.args[0]
    if maxima is None or indices is None or not isinstance(source, Ref) or not is_pure(op):
        return None
    readers = uses.readers_of(indices)
    back = readers[0] if len(readers) == 1 else None
    if back is None or uses.is_kept(indices) or not _is_pool_backward(uses, back, indices):
        return None
    gradient, pooled, *sizes, ceil_mode, _ = back.call.args
    kind, made = uses.types[source.value], back.outputs[0]
    settings = _pairs(sizes)
    if settings is None or made is None or not isinstance(pooled, Blank) or len(kind.shape) != 4:
        return None
    kernel, dilation = settings[0], settings[3]
    fits_byte = math.prod(kernel) <= _BYTE_PLACES and (kernel[1] - 1) * dilation[1] < kind.shape[3]
    tensors = (uses.types[maxima], uses.types[indices], uses.types[made])
    if not fits_byte or pooled.type.shape != kind.shape or not all(map(_is_contiguous, tensors)):
        return None
    places = Value(indices, indices, contiguous("uint8", tensors[1].shape))
    if tensors[1].extent_bytes - places.type.extent_bytes < LEAST_BYTES:
        return None
    given: tuple[Argument, ...] = (*settings, ceil_mode)
    forward = Call("poet.max_pool", (source, *given))
    backward = Call("poet.max_pool_backward", (gradient, pooled, *given, Ref(indices)))
    return Rewrite({op.name: replace(op, call=forward), back.name: replace(back, call=backward)}, (places,))


def _is_pool_backward(uses: _Uses, back: Op, indices: str) -> bool:
    call = back.call
    is_whole = call.target == _POOL_BACKWARD and len(call.args) == 8 and not call.kwargs
    return is_whole and call.args[7] == Ref(indices) and is_pure(back) and uses.is_backward(back)


def _pairs(sizes: Iterable[Argument]) -> tuple[tuple[int, int], ...] | None:
    """Kernel, stride, padding and dilation, two numbers each, as torch completes them."""
    found: list[tuple[int, int]] = []
    for size in sizes:
        numbers = [item for item in size if isinstance(item, int)] if isinstance(size, tuple) else []
        if len(numbers) not in (0, 1, 2) or (not numbers and len(found) != 1):
            return None
        found.append((numbers[0], numbers[-1]) if numbers else found[0])  # no stride: the kernel's size
    return tuple(found)


_RULES: Mapping[str, Callable[[_Uses, Op], Rewrite | None]] = {
    "signs": _signs,
    "mask": _mask,
    "places": _places,
}
"""By what rows of operators say is saved."""
