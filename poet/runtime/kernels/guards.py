"""What some kernels trust their caller for and do not check: memory they would read or write elsewhere.

Autograd always calls them right, so torch does not look; a stranger's plan may not. What is asked for here is
what every traced plan has, and costs nothing while it is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from poet.errors import PlanError
from poet.graph import Argument, Blank, Call, Graph, Link, Op, Ref, TensorType
from poet.operators import WRITES

_POOLS = {
    "aten.max_pool2d_with_indices_backward.default": (7, "aten.max_pool2d_with_indices.default"),
    "aten.max_pool3d_with_indices_backward.default": (7, "aten.max_pool3d_with_indices.default"),
    "aten.adaptive_max_pool2d_backward.default": (2, "aten.adaptive_max_pool2d.default"),
    "aten.adaptive_max_pool3d_backward.default": (2, "aten.adaptive_max_pool3d.default"),
}
"""Backward operator: the place of the indices that it writes to, and the operator that makes them."""


_AVERAGES = {"aten.avg_pool2d_backward.default": 2, "aten.avg_pool3d_backward.default": 3}
"""Backward operator: dimensions that are pooled; the others are those of what was pooled."""


def check_calls(graph: Graph) -> None:
    """Refuse calls that kernels would not survive.

    Raises:
        PlanError: names the op and what it lacks.
    """
    trust = _Trust(graph)
    for op in graph.ops:
        links = () if op.strip is None else op.strip.links
        is_cut = op.strip is not None and not op.strip.is_whole
        for call in (op.call, op.recall, *(() if is_cut else (link.call for link in links))):
            if call is not None:
                trust.check(op, call)
        for link in links if is_cut else ():
            trust.check_block(op, link)
        _check_written(op, trust.types)


class _Trust:
    """What a kernel trusts of a graph's calls."""

    def __init__(self, graph: Graph) -> None:
        self.types = {value.name: value.type for value in graph.values}
        self._buffer_of = graph.buffer_of
        self._made_by = {
            name: (op, place) for op in graph.ops for place, name in enumerate(op.outputs) if name
        }
        self._written = {buffer for op in graph.ops for buffer in op.updates}

    def check(self, op: Op, call: Call) -> None:
        """A call on whole values."""
        if call.target in _POOLS:
            _require(op, call, 1 + _POOLS[call.target][0], self._pooled_from, "indices of the same pooling")
        elif call.target in _AVERAGES:
            _require(op, call, 2, self._keeps_batch, "a gradient of what it pooled")
        elif call.target in _BATCH_NORMS:
            _require(op, call, 1 + _BATCH_NORMS[call.target].mode, self._has_statistics, "its statistics")

    def check_block(self, op: Op, link: Link) -> None:
        """What holds of the whole is known; of blocks it is where everything is cut by channel."""
        call = link.call
        if call.target not in {*_POOLS, *_AVERAGES, *_BATCH_NORMS}:
            return
        if call.target != _BATCH_NORM_BACKWARD or not all(name in self.types for name in call.refs()):
            raise PlanError(f"op {op.name} calls {call.target} in blocks, which poet does not")
        self.check(op, call)
        norm = _BATCH_NORMS[call.target]
        dims = dict.fromkeys(norm.per_channel, 0) | {0: 1, norm.source: 1}
        if dict(link.cuts) != {place: dim for place, dim in dims.items() if call.args[place] is not None}:
            raise PlanError(f"op {op.name} calls {call.target} in other blocks than of channels")

    def _shape(self, argument: Argument) -> tuple[int, ...] | None:
        if isinstance(argument, Blank):
            return argument.type.shape
        return self.types[argument.value].shape if isinstance(argument, Ref) else None

    def _pooled_from(self, call: Call) -> bool:
        """The indices are those of the pooling of a tensor of the same shape, and untouched."""
        place, forward = _POOLS[call.target]
        indices, pooled = call.args[place], call.args[1]
        if not isinstance(indices, Ref) or self._buffer_of(indices.value) in self._written:
            return False
        op, output = self._made_by.get(indices.value, (None, 0))
        return (
            op is not None
            and (op.call.target, output) == (forward, 1)
            and (op.repeat_call is None or op.repeat_call.target == forward)
            and self._shape(op.call.args[0]) == self._shape(pooled)
            and self._shape(call.args[0]) == self.types[indices.value].shape
        )

    def _has_statistics(self, call: Call) -> bool:
        """One number per channel each, and those that the mode reads are there."""
        norm = _BATCH_NORMS[call.target]
        source = self._shape(call.args[norm.source])
        if source is None or len(source) < 2:
            return False
        given = [self._shape(call.args[place]) for place in norm.per_channel]
        is_training = call.args[norm.mode] is True
        needed = norm.when_training if is_training else norm.otherwise
        return (
            all(found in (None, (source[1],)) for found in given)
            and needed is not None
            and all(self._shape(call.args[place]) == (source[1],) for place in needed)
            and (norm.source == 0 or self._shape(call.args[0]) == source)
        )

    def _keeps_batch(self, call: Call) -> bool:
        """The gradient has the batch and the channels of what was pooled."""
        pooled, gradient = self._shape(call.args[1]), self._shape(call.args[0])
        last = _AVERAGES[call.target]
        return pooled is not None and gradient is not None and pooled[:-last] == gradient[:-last]


def _check_written(op: Op, types: Mapping[str, TensorType]) -> None:
    """What is written in place has a place of its own for each element."""
    links = () if op.strip is None else op.strip.links
    for call in (op.call, op.recall, *(link.call for link in links)):
        places = () if call is None else WRITES.get(call.target, ())
        for argument in (call.args[place] for place in places if call and place < len(call.args)):
            name = argument.value if isinstance(argument, Ref) else ""
            kind = types.get(name)
            if kind is not None and kind.overlaps_itself:
                raise PlanError(
                    f"op {op.name} writes {name}, which is {kind} with strides {kind.strides}: its elements "
                    "overlap"
                )


class _BatchNorm:
    """Where a batch norm's arguments stand; ``None``: it cannot run in that mode."""

    def __init__(
        self,
        source: int,
        per_channel: tuple[int, ...],
        mode: int,
        when_training: tuple[int, ...],
        otherwise: tuple[int, ...] | None,
    ) -> None:
        self.source, self.per_channel, self.mode = source, per_channel, mode
        self.when_training, self.otherwise = when_training, otherwise


_BATCH_NORM_BACKWARD = "aten.native_batch_norm_backward.default"
_BATCH_NORMS = {
    "aten.native_batch_norm.default": _BatchNorm(0, (1, 2, 3, 4), 5, (), (3, 4)),
    "aten._native_batch_norm_legit.no_stats": _BatchNorm(0, (1, 2), 3, (), None),
    "poet.norm_relu": _BatchNorm(0, (1, 2, 3, 4), 5, (), (3, 4)),
    "poet.norm_relu_backward": _BatchNorm(1, (2, 3, 4, 5), 6, (4, 5), None),
    _BATCH_NORM_BACKWARD: _BatchNorm(1, (2, 3, 4, 5, 6), 7, (5, 6), (3, 4)),
}


def _require(op: Op, call: Call, places: int, holds: Callable[[Call], bool], what: str) -> None:
    if call.kwargs or len(call.args) < places or not holds(call):
        raise PlanError(f"op {op.name} calls {call.target} without {what}")
