"""The last layer with its loss in strips: a training step that never holds its logits whole.

A linear layer whose output the loss alone reads, by cross-entropy with classes, becomes three ops in place of
its products, softmax and loss: the loss, the gradient of the layer's input, and that of its weight. Each
makes the logits again, some rows or some classes at a time (`poet.runtime.kernels.logits`). The step then
hands no logits to its caller. Of what strips are is found by trial.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from poet.errors import ModelError
from poet.ir.calls import contiguous
from poet.ir.graph import Argument, Call, Graph, Op, Ref, TensorType, Value
from poet.ir.wholes import FACTORS
from poet.passes.rewrite import GraphUses, Rewrite, rewritten
from poet.runtime.trials.forms import Head, exact_columns, exact_rows, in_blocks
from poet.runtime.trials.trial import recalled

_SOFTMAX, _SOFTMAX_BACKWARD = "aten._log_softmax.default", "aten._log_softmax_backward_data.default"
_LOSS, _LOSS_BACKWARD = "aten.nll_loss_forward.default", "aten.nll_loss_backward.default"
_MEAN_OR_SUM = (1, 2)
_ADVICE = "leave --gradients logits out"


class _Whole(Exception):
    """The logits have to stay whole; says why."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The ops of a last layer and its loss.

    Attributes:
        product, softmax, loss: of the forward pass.
        loss_backward, softmax_backward: of the way back.
        of_hidden, of_weight, of_bias: what makes gradients from that of the logits, where they are wanted.
        weight: the value that is a row per class.
    """

    product: Op
    softmax: Op
    loss: Op
    loss_backward: Op
    softmax_backward: Op
    of_hidden: Op | None
    of_weight: Op | None
    of_bias: Op | None
    weight: str

    @property
    def hidden(self) -> Argument:
        """What the layer is given."""
        return self.product.call.args[FACTORS[self.product.call.target]]

    @property
    def bias(self) -> Argument:
        """What it adds; ``None``: nothing."""
        return self.product.call.args[0] if FACTORS[self.product.call.target] else None


def with_logits_in_strips(graph: Graph, *, in_blocks: bool = False) -> Graph:
    """``graph`` with its last layer and the loss in strips that give the same bits here.

    ``in_blocks``: a frozen weight is used some rows at a time.

    Raises:
        ModelError: the loss is no cross-entropy that alone reads a linear layer, or no strips are exact.
    """
    try:
        with recalled():
            return _Rewriting(graph, in_blocks=in_blocks).graph()
    except _Whole as why:
        raise ModelError(f"the logits cannot be made in strips: {why}; {_ADVICE}") from None


class _Rewriting:
    def __init__(self, graph: Graph, *, in_blocks: bool) -> None:
        self._graph, self._uses, self._in_blocks = graph, GraphUses(graph), in_blocks
        self._types = self._uses.types

    def graph(self) -> Graph:
        found = self._found()
        hidden, weight = self._type(found.hidden), self._types[found.weight]
        reduction, ignored = found.loss.call.args[3:5]
        assert isinstance(reduction, int)
        head = Head(hidden.shape[0], hidden.shape[1], weight.shape[0], found.bias is not None, reduction)
        heads = [head]
        if self._in_blocks and found.of_weight is None:
            heads = [*in_blocks(head)]
        head, rows = next(((each, rows) for each in heads if (rows := exact_rows(each))), (head, None))
        blocks, columns = ("", head.block, head.is_shared) if head.block else (), None
        by_class = 0 < head.block < head.classes
        if rows is None:
            raise _Whole("no strips of rows give every bit here, or there is no memory to try them")
        if found.of_weight is not None:
            columns = exact_columns(head)
            if columns is None:
                raise _Whole("no blocks of classes give every bit here, or there is no memory to try them")
        is_kept = columns is not None or by_class
        kept = [f"{found.loss.name}.{what}" if is_kept else None for what in ("largest", "shift")]
        given = (found.hidden, Ref(found.weight), found.bias, found.loss.call.args[1])
        made = {found.loss.name: self._loss(found, (*given, *found.loss.call.args[3:5], rows, *blocks), kept)}
        back = (found.loss_backward.call.args[0], *given, Ref(_output(found.loss, 1)))
        if found.of_hidden is not None:
            shifts = map(_ref, kept) if by_class else ()
            call = Call("poet.logits_hidden_gradient", (*back, reduction, ignored, rows, *blocks, *shifts))
            made[found.of_hidden.name] = replace(found.of_hidden, call=call)
        if found.of_weight is not None and columns is not None:
            numbers = (reduction, ignored, columns, head.classes)
            call = Call("poet.logits_weight_gradient", (*back, *map(_ref, kept), *numbers))
            bias = None if found.of_bias is None else _output(found.of_bias, 0)
            outputs = (_output(found.of_weight, 0), bias)
            made[found.of_weight.name] = replace(found.of_weight, call=call, outputs=outputs)
        return self._replaced(found, made, [name for name in kept if name is not None], hidden.shape[0])

    def _loss(self, found: _Found, args: tuple[Argument, ...], kept: list[str | None]) -> Op:
        call = Call("poet.logits_loss", args)
        return replace(found.loss, call=call, outputs=(*found.loss.outputs, *kept))

    def _replaced(self, found: _Found, made: dict[str, Op], kept: list[str], rows: int) -> Graph:
        """``graph`` with the ops ``made`` in the place of those of their names, and without the logits."""
        graph = self._graph
        gone = [found.product, found.softmax, found.loss_backward, found.softmax_backward]
        buffers = tuple(buffer for op in gone for buffer in graph.writes(op))
        if found.of_bias is not None:
            gone.append(found.of_bias)
        added = tuple(Value(name, name, contiguous("float32", (rows, 1))) for name in kept)
        ops: dict[str, Op | None] = {**dict.fromkeys(op.name for op in gone), **made}
        flat = None if found.of_bias is None else _output(found.of_bias, 0)
        values = (
            replace(item, type=_flat(item.type)) if item.name == flat else item for item in graph.values
        )
        graph = replace(graph, values=tuple(values))
        return rewritten(graph, [Rewrite(ops, added, buffers)], predictions=())

    # --- the pattern ---

    def _found(self) -> _Found:
        losses = [op for op in self._graph.ops if op.call.target == _LOSS]
        if len(losses) != 1:
            raise _Whole("the loss is no cross-entropy of one output with classes")
        (loss,) = losses
        scores, classes, weights, reduction, _ = loss.call.args
        if weights is not None or reduction not in _MEAN_OR_SUM:
            raise _Whole("classes are weighted, or the loss is no mean or sum")
        softmax = self._maker(scores, _SOFTMAX)
        if softmax.call.args[1:] != (1, False):
            raise _Whole("the softmax is not over classes in the last dimension")
        product = self._maker(softmax.call.args[0], *FACTORS)
        weight = self._weight(product)
        backward = self._way_back(loss, softmax, classes)
        of_logits = _output(backward[1], 0)
        found = _Found(
            product, softmax, loss, *backward, *self._gradients(of_logits, product, weight), weight
        )
        self._check_alone(found)
        return found

    def _maker(self, argument: Argument, *targets: str) -> Op:
        """The op that makes ``argument`` as it is, no view of it."""
        op = self._uses.maker_of(argument.value) if isinstance(argument, Ref) else None
        if op is None or op.call.target not in targets or op.strip is not None or op.call.kwargs:
            raise _Whole("the loss does not read the output of a linear layer, or reads more than that")
        kind = self._types[_output(op, 0)]
        if self._type(argument) != kind or kind != contiguous("float32", kind.shape):
            raise _Whole("the logits are no float32 matrix of a row per sample")
        return op

    def _weight(self, product: Op) -> str:
        """The parameter whose rows are the classes'."""
        hidden, turned = product.call.args[FACTORS[product.call.target] :]
        if not isinstance(turned, Ref) or self._type(hidden) != contiguous(
            "float32", self._type(hidden).shape
        ):
            raise _Whole("the last layer's input has gaps")
        buffer = self._graph.buffer_of(turned.value)
        for parameter in self._graph.parameters:
            kind = self._types[parameter.value]
            if self._graph.buffer_of(parameter.value) == buffer and len(kind.shape) == 2:
                mirrored = TensorType(kind.dtype, kind.shape[::-1], kind.strides[::-1], kind.offset)
                if kind == contiguous("float32", kind.shape) and mirrored == self._type(turned):
                    return parameter.value
        raise _Whole("the last layer's weight is no parameter with a row for each class")

    def _way_back(self, loss: Op, softmax: Op, classes: Argument) -> tuple[Op, Op]:
        total = Ref(_output(loss, 1))
        backward = [op for op in self._graph.ops if op.call.target == _LOSS_BACKWARD]
        if len(backward) != 1 or backward[0].call.args[2:] != (classes, None, *loss.call.args[3:5], total):
            raise _Whole("the way back is not that of one cross-entropy")
        readers = self._uses.readers_of(_output(backward[0], 0))
        if [op.call.target for op in readers] != [_SOFTMAX_BACKWARD]:
            raise _Whole("something else reads the gradient of the log-softmax, as label smoothing does")
        expected = (Ref(_output(backward[0], 0)), Ref(_output(softmax, 0)), 1)
        if readers[0].call.args[:3] != expected:
            raise _Whole("the way back is not that of one cross-entropy")
        return backward[0], readers[0]

    def _gradients(self, of_logits: str, product: Op, weight: str) -> tuple[Op | None, Op | None, Op | None]:
        """What reads the gradient of the logits: for the layer's input, its weight and its bias."""
        kind, hidden = self._types[of_logits], product.call.args[FACTORS[product.call.target]]
        turned = TensorType(kind.dtype, kind.shape[::-1], kind.strides[::-1])
        found: dict[str, Op] = {}
        for op in self._uses.readers_of(of_logits):
            what = "another"
            if op.call.target == "aten.mm.default":
                left, right = op.call.args
                if self._type(left) == kind and right == Ref(weight):
                    what = "hidden"
                elif self._type(left) == turned and self._is_alike(right, hidden):
                    what = "weight"
            elif op.call.target == "aten.sum.dim_IntList" and op.call.args == (Ref(of_logits), (0,), True):
                what = "bias"
            if what == "another" or what in found or op.strip is not None:
                raise _Whole(f"{op.name} reads the gradient of the logits as well")
            found[what] = op
        if "bias" in found and "weight" not in found:
            raise _Whole("the last layer's bias is trained, and its weight is not")
        if "bias" in found:
            self._check_flat(found["bias"])
        return found.get("hidden"), found.get("weight"), found.get("bias")

    def _check_flat(self, of_bias: Op) -> None:
        """The bias's gradient is read as a row, not as a matrix of one."""
        name = _output(of_bias, 0)
        for op in self._uses.readers_of(name):
            if name in op.call.refs():
                raise _Whole(f"{op.name} reads the gradient of the bias in another shape")

    def _check_alone(self, found: _Found) -> None:
        graph = self._graph
        logits, scores = (graph.buffer_of(_output(op, 0)) for op in (found.product, found.softmax))
        names = {op.name for op in self._uses.readers[logits]}
        names |= {op.name for op in self._uses.readers[scores]}
        if names - {found.softmax.name, found.loss.name, found.softmax_backward.name}:
            raise _Whole("something else reads the logits, as label smoothing does")
        if [graph.buffer_of(name) for name in graph.predictions] != [logits]:
            raise _Whole("the model gives other outputs beside them")

    def _is_alike(self, one: Argument, other: Argument) -> bool:
        if not isinstance(one, Ref) or not isinstance(other, Ref):
            return False
        same = self._graph.buffer_of(one.value) == self._graph.buffer_of(other.value)
        return same and self._type(one) == self._type(other)

    def _type(self, argument: Argument) -> TensorType:
        if not isinstance(argument, Ref):
            raise _Whole("a tensor is missing")
        return self._types[argument.value]


def _output(op: Op, place: int) -> str:
    name = op.outputs[place]
    if name is None:
        raise _Whole(f"{op.name} does not give all that it might")
    return name


def _flat(kind: TensorType) -> TensorType:
    return contiguous(kind.dtype, (kind.elements,))


def _ref(name: str | None) -> Argument:
    return None if name is None else Ref(name)
