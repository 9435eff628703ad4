"""Zeros behind an image as part of the convolution that reads them, and of its ways back.

For libraries whose kernels look where a window ends: what is padded then lies nowhere, neither the image nor
its gradient. TensorFlow's padding "same" of a stride of two is of that kind: one row below, one column to the
right. Elsewhere the kernels would be slower with the padding than with a copy, and the copy stays.
"""

from __future__ import annotations

import math
from dataclasses import replace

from poet.graph import Argument, Blank, Call, Graph, Op, Ref, TensorType

_PAD = "aten.constant_pad_nd.default"
_THERE, _BACK = "aten.convolution.default", "aten.convolution_backward.default"
FORWARD, BACKWARD = "poet.padded_convolution", "poet.padded_convolution_backward"
_ROLLING: tuple[Argument, ...] = ((2, 2), (0, 0), (1, 1), False, (0, 0))
"""Stride, padding, dilation, transposed, output padding of a window that rolls over an edge."""


def with_padded_windows(graph: Graph) -> Graph:
    """``graph`` with paddings that only convolutions read, and cuts of their gradients, as part of them."""
    uses = _Uses(graph)
    made: dict[str, Op] = {}  # by the name of the op that it stands in the place of
    gone: list[Op] = []
    for op in graph.ops:
        found = uses.windows(op) or uses.cut(op)
        if found:
            gone.append(op)
            made.update((item.name, item) for item in found)
    if not made:
        return graph
    kept = {graph.buffer_of(name) for op in made.values() for name in op.outputs if name is not None}
    pads = {graph.buffer_of(str(op.outputs[0])) for op in gone}
    inner = {uses.source(op) for op in gone if uses.is_cut(op)}
    dropped = (pads | inner) - kept
    names = {op.name for op in gone}
    return replace(
        graph,
        ops=tuple(made.get(op.name, op) for op in graph.ops if op.name not in names),
        buffers=tuple(item for item in graph.buffers if item.name not in dropped),
        values=tuple(value for value in graph.values if value.buffer not in dropped),
    )


class _Uses:
    """Who reads what in a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.types = {value.name: value.type for value in graph.values}
        self.places = {op.name: place for place, op in enumerate(graph.ops)}
        self.kept = {graph.buffer_of(name) for name in (graph.loss, *graph.predictions)}
        self._readers: dict[str, list[Op]] = {}
        self._makers: dict[str, Op] = {}
        for op in graph.ops:
            again = graph.reads(op.recall) if op.recall is not None else ()
            for name in {*graph.reads(op.call), *again, *op.updates}:
                self._readers.setdefault(name, []).append(op)
            for output in filter(None, op.outputs):
                self._makers[graph.buffer_of(output)] = op

    def source(self, op: Op) -> str:
        """The buffer that a padding or a cut reads."""
        source = op.call.args[0]
        return self.graph.buffer_of(source.value) if isinstance(source, Ref) else ""

    def is_cut(self, op: Op) -> bool:
        """Whether ``op`` cuts off what a padding added."""
        return self._pads(op, -1) is not None

    def windows(self, op: Op) -> list[Op]:
        """The convolutions and ways back to weights that are to pad for themselves what ``op`` pads."""
        pads = self._pads(op, 1)
        padded = op.outputs[0] if pads is not None else None
        if pads is None or padded is None or self.graph.buffer_of(padded) in self.kept:
            return []
        readers = self._readers.get(self.graph.buffer_of(padded), [])
        found = [self._padded(reader, padded, op.call.args[0], pads) for reader in readers]
        is_changed = any(self._changes(self.source(op), op, reader) for reader in readers)
        return [] if None in found or is_changed else [item for item in found if item is not None]

    def _padded(self, op: Op, padded: str, source: Argument, pads: tuple[int, ...]) -> Op | None:
        """``op`` on what was padded, where it can pad for itself."""
        place = {_THERE: 0, _BACK: 1}.get(op.call.target)
        if place is None or list(op.call.refs()).count(padded) != 1 or op.call.args[place] != Ref(padded):
            return None
        mask = op.call.args[10] if place else None
        if not self._rolls(op) or (isinstance(mask, tuple) and mask[0]):
            return None
        return _with_pads(op, place, source, pads)

    def cut(self, op: Op) -> list[Op]:
        """The way back to a padded image that ``op`` cuts, as one that makes no more than what is left."""
        pads = self._pads(op, -1)
        if pads is None:
            return []
        maker, source, left = self._makers.get(self.source(op)), op.call.args[0], op.outputs[0]
        if maker is None or left is None or not isinstance(source, Ref):
            return []
        only = self._readers.get(self.source(op), [])
        is_whole = maker.call.target == _BACK and maker.call.args[10] == (True, False, False)
        if not is_whole or maker.outputs[0] != source.value or only != [op] or not self._rolls(maker):
            return []
        given = maker.call.args[1]
        if not isinstance(given, Blank) or self.source(op) in self.kept:
            return []
        back = _with_pads(maker, 1, Blank(self.types[left]), pads)
        return [replace(back, outputs=(left, *back.outputs[1:]))]

    def _pads(self, op: Op, sign: int) -> tuple[int, ...] | None:
        """Zeros on the left, right, top and bottom of dense images, or with ``sign`` -1 as many cut off."""
        args = op.call.args
        is_plain = op.call.target == _PAD and op.strip is None and op.repeatable and not op.call.kwargs
        if not is_plain or len(args) < 2 or not isinstance(args[0], Ref) or (len(args) > 2 and args[2] != 0):
            return None
        pads = args[1]
        types = (self.types[args[0].value], self.types[str(op.outputs[0])])
        if not isinstance(pads, tuple) or len(pads) != 4 or not all(_is_dense(kind) for kind in types):
            return None
        numbers = tuple(sign * pad for pad in pads if isinstance(pad, int))
        is_behind = len(numbers) == 4 and numbers[0] == numbers[2] == 0 and {*numbers} == {0, 1}
        return numbers if is_behind else None

    def _rolls(self, op: Op) -> bool:
        """Whether a convolution is of windows of 3 x 3 that move by two."""
        first = 3 if op.call.target == _THERE else 4
        weight = op.call.args[first - 2]
        kind = self.types[weight.value] if isinstance(weight, Ref) else None
        kind = weight.type if isinstance(weight, Blank) else kind
        is_rolling = op.call.args[first : first + 5] == _ROLLING
        is_plain = op.strip is None and op.repeat_call is None and not op.call.kwargs
        return is_plain and is_rolling and kind is not None and kind.shape[2:] == (3, 3)

    def _changes(self, buffer: str, since: Op, before: Op) -> bool:
        """Whether an op changes ``buffer`` between two ops."""
        between = self.graph.ops[self.places[since.name] : self.places[before.name]]
        return any(buffer in op.updates for op in between)


def _with_pads(op: Op, place: int, source: Argument, pads: tuple[int, ...]) -> Op:
    target = BACKWARD if op.call.target == _BACK else FORWARD
    args = (*op.call.args[:place], source, *op.call.args[place + 1 :], pads)
    return replace(op, call=Call(target, args))


def _is_dense(kind: TensorType) -> bool:
    return len(kind.shape) == 4 and kind.strides == tuple(math.prod(kind.shape[d + 1 :]) for d in range(4))
