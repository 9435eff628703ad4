"""Trials of forms beside blocks: parameters in parts, the last layer in strips, rows updated in storage.

A product's rows and columns hardly ever depend on how many there are. A sum over parts does depend on where
they end: kernels add up stretches of their own length first. An update of single rows may treat the last
elements of each, which fill no vector, in another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from poet.ir.calls import blanked
from poet.ir.graph import ITEM_BYTES, STORED_ROWS_SGD, Argument, Blank, Call, Graph, Op, Ref, TensorType
from poet.ir.named import Bounds, block_of, bounds_of
from poet.ir.operators import WRITES
from poet.ir.wholes import Axis, PartedCall, cuts_of, result_dim, run_of
from poet.runtime import kernels
from poet.runtime.kernels import arguments, logits, overwriting, tables
from poet.runtime.trials.blocks import strip_trial, trial_scalar
from poet.runtime.trials.trial import Trial, is_exact, random_elements, refuse_inexact, same_bits

COUNTS = (16, 8, 4, 2)
"""Of strips of a last layer that are tried, the most first."""

_SO_FAR = "so far"
_LEAST_ROWS, _LEAST_ROWS_OF_BLOCKS = 8, 32
"""Of a strip, unless there are two: fewer make poor products, the more so with blocks of the weight."""
_WEIGHT_BLOCKS = ((384, True), (384, False), (768, False), (1536, False), (256, True))
"""Rows at which kernels' stretches of a long sum were seen to end, and whether threads share the sum out."""

_COLUMNS = 64  # blocks of classes are multiples of it
_LEFT_OUT = -100
_TABLE_ROWS, _LOOKED_UP, _RATE = 67, 96, 0.0371
_aten = torch.ops.aten

ROWS_DIM = {"aten.convolution_backward.default": 1, "aten.mm.default": 0}
"""Operators that can make some rows of a weight's gradient, and the dimension of these in what they read."""


def check_exact(graph: Graph) -> None:
    """Refuse a graph with forms of ops that give other bits on this machine, at torch's number of threads.

    What this machine has no memory to try whole is not tried, and logged.

    Raises:
        ReplayError: names the op or the parameter.
    """
    refuse_inexact(_trials_of(graph))


def _trials_of(graph: Graph) -> Iterator[tuple[str, Trial]]:
    values = {value.name: value for value in graph.values}
    types = {name: value.type for name, value in values.items()}
    for op in graph.ops:
        strip = op.strip
        if strip is not None and not (strip.is_whole and overwriting.operand_of(strip, types) is None):
            how = "written over an operand" if strip.is_whole else f"in {len(strip.bounds)} blocks"
            yield f"op {op.name} {how}", strip_trial(strip, op.outputs, values)
        width = op.call.args[2] if op.call.target == STORED_ROWS_SGD else None
        if isinstance(width, int):
            yield f"op {op.name}, which updates single rows of {width} numbers,", row_trial(width)
        for head, kind, step in _heads(op, types):
            yield f"op {op.name} in strips of {step} {kind}", head_trial(kind, head, step)
        yield from _blocks_alone(graph, op, types)
    for whole in graph.wholes:
        bounds = bounds_of(graph, whole)
        for parted in whole.calls:
            yield f"parameter {whole.name} in {len(bounds)} parts", part_trial(parted, bounds)


# --- rows of a stored table -----------------------------------------------------------------------


def row_trial(width: int) -> Trial:
    """Whether rows of so many elements, updated one by one, get the bits of an update of all."""
    return Trial(("rows", width), lambda: 0, lambda: _try_row_updates(width), without="--home ram")


def _try_row_updates(width: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(_TABLE_ROWS, width, generator=generator)
    gradient = torch.randn(_LOOKED_UP, width, generator=generator)
    numbers = torch.randint(_TABLE_ROWS, (_LOOKED_UP,), generator=generator)
    by_row = _InRam(table.clone())
    whole = _aten.embedding_dense_backward.default(gradient, numbers, _TABLE_ROWS, 0, False)
    table.add_(whole, alpha=-_RATE)
    tables.stored_rows_sgd(by_row, numbers, _TABLE_ROWS, width, torch.float32, gradient, _RATE, 0)
    return same_bits(table, by_row.table)


class _InRam:
    """A `StoredTable` that lies in RAM."""

    def __init__(self, table: Tensor) -> None:
        self.table = table
        self._rows = table.view(torch.uint8).numpy()

    def read(self, row: int, memory: memoryview) -> None:
        memory[:] = self._rows[row].data

    def change(self, row: int, change: Callable[[memoryview], None]) -> None:
        change(self._rows[row].data)


# --- parameters in parts --------------------------------------------------------------------------


def part_trial(parted: PartedCall, bounds: Bounds) -> Trial:
    """Whether a call that runs once for each part of a parameter is exact."""
    return Trial(("part", parted, bounds), lambda: _needed_bytes(parted), lambda: _try_parts(parted, bounds))


def is_exact_in_parts(parted: PartedCall, bounds: Bounds) -> bool:
    """Whether a call in parts is exact here, with one thread, torch's number and that of all cores."""
    return is_exact(part_trial(parted, bounds))


def rows_trial(whole: Call, alone: Call, dim: int, rows: tuple[int, int]) -> Trial:
    """Whether ``alone``, given ``rows`` of its first argument in ``dim``, makes these rows of the results."""

    def run() -> bool:
        given = _tensors(PartedCall(whole, Axis.ROWS))
        start, count = rows[0], rows[1] - rows[0]
        cut = dict(given)
        for place, item in enumerate(alone.args):
            if place == 0:
                cut[0] = given[0].narrow(dim, start, count)
            elif isinstance(item, Blank) and item.type.shape != given[place].shape:
                cut[place] = given[place].narrow(0, start, count)
        results = (
            _results(replace(call, args=_given(call)), _named(tensors))
            for call, tensors in ((whole, given), (alone, cut))
        )
        return all(same_bits(one.narrow(0, start, count), other) for one, other in zip(*results, strict=True))

    needed_bytes = sum(3 * item.type.extent_bytes for item in whole.args if isinstance(item, Blank))
    return Trial(
        ("rows alone", whole, alone, dim, rows), lambda: needed_bytes, run, without="whole parameters"
    )


def _blocks_alone(graph: Graph, op: Op, types: Mapping[str, TensorType]) -> Iterator[tuple[str, Trial]]:
    """Of each gradient of a block of a parameter's rows that ``op`` makes alone."""
    links = [(op.call, op.outputs)]
    if op.strip is not None:
        links = [(link.call, link.outputs) for link in op.strip.links]
        types = {**types, **{value.name: value.type for value in op.strip.inner}}
    parts = {part for whole in graph.wholes for part in whole.parts}
    for item in graph.parameters:
        rows, count = block_of(item.name)[1], (*types[item.value].shape, 0)[0]
        if item.gradient is None or item.name in parts or rows is None or not 0 <= rows[0] < rows[1] <= count:
            continue
        for call, outputs in links:
            if item.gradient in outputs and call.target in ROWS_DIM:
                alone, dim = blanked(call, types), ROWS_DIM[call.target]
                args = list(alone.args)
                for place, at in ((0, dim), (2, 0)):
                    if isinstance(blank := (*args, None, None)[place], Blank):
                        shape = [*blank.type.shape]
                        shape[at] = count
                        args[place] = Blank(replace(blank.type, shape=tuple(shape)))
                if len(args) > 3 and args[3] is not None:
                    args[3] = (count,)
                whole = replace(alone, args=tuple(args))
                alone = replace(alone, args=(args[0], *alone.args[1:]))
                yield f"op {op.name}, a block of a gradient alone,", rows_trial(whole, alone, dim, rows)


def _written(call: Call) -> list[int]:
    """The places of the tensors that it updates."""
    return [place for place in WRITES.get(call.target, ()) if isinstance(call.args[place], Blank)]


def _tensors(parted: PartedCall) -> dict[int, Tensor]:
    """Something for each tensor that the whole is given, by its place."""
    written, call = _written(parted.call), parted.call
    return {
        place: _random(item.type, place, is_positive=place in written)
        if item.type.dtype.startswith(("float", "bfloat"))
        else _row_numbers(item.type, _table_rows(parted))
        for place, item in enumerate(call.args)
        if isinstance(item, Blank)
    }


def _table_rows(parted: PartedCall) -> int:
    """Of the table that the call looks numbers up in, or makes the gradient of."""
    first, *_ = parted.call.args
    count = parted.call.args[2] if parted.axis is Axis.TABLE else None
    return count if isinstance(count, int) else first.type.shape[0] if isinstance(first, Blank) else 1


def _try_parts(parted: PartedCall, bounds: Bounds) -> bool:
    """Run it whole and in parts; whether every bit is the same."""
    call, tensors = parted.call, _tensors(parted)
    if parted.axis is Axis.ELEMENTS:
        return _updates_alike(parted, bounds, tensors, _written(call))
    whole = _run(replace(call, args=_given(call)), _named(tensors))
    runs = _runs(parted, bounds, tensors)
    dim = result_dim(parted.axis)
    if dim is None:
        *_, last = runs
        return same_bits(whole, last)
    return all(
        same_bits(whole.narrow(dim, start, stop - start), made)
        for (start, stop), made in zip(bounds, runs, strict=True)
    )


def _runs(parted: PartedCall, bounds: Bounds, tensors: dict[int, Tensor]) -> Iterator[Tensor]:
    """What each run on a part gives; where no parts of the result are joined, all so far."""
    cuts, args = dict(cuts_of(parted)), _given(parted.call)
    so_far: Tensor | None = None
    for start, stop in bounds:
        cut = {
            place: tensor.narrow(cuts[place], start, stop - start) if place in cuts else tensor
            for place, tensor in tensors.items()
        }
        known = _named(cut) | ({} if so_far is None else {_SO_FAR: so_far})
        call = run_of(parted, args, (start, stop), None if so_far is None else Ref(_SO_FAR))
        made = _run(call, known)
        so_far = made if result_dim(parted.axis) is None else None
        yield made


def _given(call: Call) -> tuple[Argument, ...]:
    """Its arguments, with the tensor at each place under the name of that place."""
    return tuple(Ref(str(place)) if isinstance(item, Blank) else item for place, item in enumerate(call.args))


def _named(tensors: dict[int, Tensor]) -> dict[str, Tensor]:
    return {str(place): tensor for place, tensor in tensors.items()}


def _updates_alike(
    parted: PartedCall, bounds: Bounds, tensors: dict[int, Tensor], written: Sequence[int]
) -> bool:
    begun = {place: tensors[place].clone() for place in written}
    _run(replace(parted.call, args=_given(parted.call)), _named(tensors))
    whole = {place: tensors[place] for place in written}
    again = tensors | begun
    for _ in _runs(parted, bounds, again):
        pass
    return all(same_bits(whole[place], again[place]) for place in written)


def _run(call: Call, tensors: dict[str, Tensor]) -> Tensor:
    """The first output; one of what is updated where there is none."""
    made = _results(call, tensors)
    return made[0] if made else next(iter(tensors.values()))


def _results(call: Call, tensors: dict[str, Tensor]) -> list[Tensor]:
    given = [arguments.resolve(item, tensors.__getitem__, trial_scalar) for item in call.args]
    return [item for item in kernels.outputs_of(kernels.kernel(call.target)(*given)) if item is not None]


def _needed_bytes(parted: PartedCall) -> int:
    """Of a trial: what the call is given, what it updates twice, its result three times.

    Kernels copy what overlaps itself, so each tensor counts as much as all of its elements at least.
    """
    types = [item.type for item in parted.call.args if isinstance(item, Blank)]
    given_bytes = sum(max(item.extent_bytes, item.elements * ITEM_BYTES[item.dtype]) for item in types)
    if parted.axis is Axis.ELEMENTS:
        return 3 * given_bytes
    result_bytes = _result_elements(parted, types) * ITEM_BYTES[types[0].dtype]
    return given_bytes + 3 * result_bytes


def _result_elements(parted: PartedCall, types: Sequence[TensorType]) -> int:
    if parted.axis is Axis.LOOK_UP:
        return types[1].elements * types[0].shape[1]
    if parted.axis is Axis.TABLE:
        return _table_rows(parted) * types[0].shape[-1]
    return max(types[0].elements, types[-2].shape[0] * types[-1].shape[1])


def _row_numbers(type_: TensorType, rows: int) -> Tensor:
    """Numbers of rows, every other one there twice."""
    content = _content(type_, below=rows)
    content[1::2] = content[: len(content) // 2]
    return content.as_strided(type_.shape, type_.strides, type_.offset)


def _random(type_: TensorType, number: int, *, is_positive: bool) -> Tensor:
    """A tensor of this type, normally distributed; each ``number`` gives another."""
    content = _content(type_, shift=number * 7919)
    if is_positive:
        content.abs_()  # as second moments are
    return content.as_strided(type_.shape, type_.strides, type_.offset)


def _content(type_: TensorType, *, below: int = 1, shift: int = 0) -> Tensor:
    count = type_.extent_bytes // ITEM_BYTES[type_.dtype]
    return random_elements(count, arguments.dtype(type_.dtype), below=below, shift=shift)


# --- the last layer with its loss -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Head:
    """What two last layers have in common that do the same work.

    Attributes:
        rows: T, samples or tokens.
        width: H, of each.
        classes: V.
        has_bias: whether one is added.
        reduction: of the loss, 1: mean, 2: sum.
        block: rows of the weight that are used at a time; 0: all.
        is_shared: sums over classes are made as where each thread has an even share of them.
    """

    rows: int
    width: int
    classes: int
    has_bias: bool
    reduction: int
    block: int = 0
    is_shared: bool = False

    @property
    def trial_bytes(self) -> int:
        """That a trial takes at its fullest: five tensors of logits, and thrice the weight."""
        return 4 * self.classes * (5 * self.rows + 3 * self.width)


def head_trial(kind: str, head: Head, step: int) -> Trial:
    """Whether strips of so many ``rows``, or blocks of so many ``columns``, are exact."""
    run = _HEAD_TRIALS[kind]
    key = ("logits", kind, head, step)
    return Trial(key, lambda: head.trial_bytes, lambda: run(head, step), without="--gradients stream")


def row_steps(head: Head) -> Iterator[int]:
    """Numbers of rows that a strip may have, the fewest first."""
    least = _LEAST_ROWS_OF_BLOCKS if head.block else _LEAST_ROWS
    for count in COUNTS:
        rows = -(-head.rows // count)
        if rows < head.rows and (rows >= least or count == min(COUNTS)):
            yield rows


def in_blocks(head: Head) -> Iterator[Head]:
    """``head`` with the weight used some rows at a time, in the ways in which that may be exact."""
    for block, is_shared in _WEIGHT_BLOCKS:
        if block < head.classes:
            yield replace(head, block=block, is_shared=is_shared)
    yield replace(head, block=head.classes)


def column_steps(head: Head) -> Iterator[int]:
    """Numbers of classes that a block may have, the fewest first."""
    for count in COUNTS:
        share = -(-head.classes // count)
        columns = -(-share // _COLUMNS) * _COLUMNS
        if columns < head.classes:
            yield columns


def exact_rows(head: Head) -> int | None:
    """The fewest rows of a strip with which loss and the input's gradient are exact here, if any are."""
    return next((step for step in row_steps(head) if is_exact(head_trial("rows", head, step))), None)


def exact_columns(head: Head) -> int | None:
    """The fewest classes of a block with which the weight's gradient is exact here, if any are."""
    return next((step for step in column_steps(head) if is_exact(head_trial("columns", head, step))), None)


def _head_tensors(head: Head) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Input, weight, bias, and classes of which one is left out."""

    def made(*shape: int, shift: int) -> Tensor:
        return random_elements(math.prod(shape), torch.float32, shift=shift).view(shape)

    hidden = made(head.rows, head.width, shift=1)
    weight = made(head.classes, head.width, shift=0).div_(head.width**0.5)
    bias = made(head.classes, shift=2) if head.has_bias else None
    classes = random_elements(head.rows, torch.int64, below=head.classes)
    if head.rows > 2:
        classes[head.rows // 3] = _LEFT_OUT
    return hidden, weight, bias, classes


def _plain(
    head: Head, hidden: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, its total weight, its own gradient, and that of the logits, by the calls of plain PyTorch."""
    if bias is None:
        found = _aten.mm.default(hidden, weight.t())
    else:
        found = _aten.addmm.default(bias, hidden, weight.t())
    scores = _aten._log_softmax.default(found, 1, False)
    del found
    loss, total = _aten.nll_loss_forward.default(scores, classes, None, head.reduction, _LEFT_OUT)
    one = torch.ones_like(loss)
    of_scores = _aten.nll_loss_backward.default(one, scores, classes, None, head.reduction, _LEFT_OUT, total)
    return loss, total, one, _aten._log_softmax_backward_data.default(of_scores, scores, 1, torch.float32)


def _try_rows(head: Head, rows: int) -> bool:
    hidden, weight, bias, classes = given = _head_tensors(head)
    loss, total, one, of_logits = _plain(head, *given)
    expected = _aten.mm.default(of_logits, weight)
    del of_logits
    numbers = head.reduction, _LEFT_OUT, rows, "", head.block, head.is_shared
    found, weighed, largest, shift = logits.loss(hidden, weight, bias, classes, *numbers)
    by_class = (largest, shift) if 0 < head.block < head.classes else ()
    of_hidden = logits.hidden_gradient(one, hidden, weight, bias, classes, total, *numbers, *by_class)
    pairs = ((loss, found), (total, weighed), (expected, of_hidden))
    return all(same_bits(plain, ours) for plain, ours in pairs)


def _try_columns(head: Head, columns: int) -> bool:
    hidden, weight, bias, classes = given = _head_tensors(head)
    _, total, one, of_logits = _plain(head, *given)
    rows = next(row_steps(head), head.rows)
    _, _, largest, shift = logits.loss(hidden, weight, bias, classes, head.reduction, _LEFT_OUT, rows)
    of_weight, of_bias = logits.weight_gradient(
        0, one, hidden, weight, bias, classes, total, largest, shift, head.reduction, _LEFT_OUT, columns,
        head.classes,
    )  # fmt: skip
    if of_bias is not None and not same_bits(_aten.sum.dim_IntList(of_logits, [0], True).view(-1), of_bias):
        return False
    return same_bits(_aten.mm.default(of_logits.t(), hidden), of_weight)


_HEAD_TRIALS: dict[str, Callable[[Head, int], bool]] = {"rows": _try_rows, "columns": _try_columns}


def _heads(op: Op, types: dict[str, TensorType]) -> Iterator[tuple[Head, str, int]]:
    """Of each call of a last layer in strips its work, what its strips are of, and how large they are."""

    def shape(argument: Argument) -> tuple[int, ...]:
        return types[argument.value].shape if isinstance(argument, Ref) else ()

    for call in [op.call] if op.strip is None else [link.call for link in op.strip.links]:
        if call.target not in _PLACES:
            continue
        kind, hidden, reduction, step = _PLACES[call.target]
        (rows, width), (classes, *_) = shape(call.args[hidden]), shape(call.args[hidden + 1])
        number, size = call.args[reduction], call.args[step]
        assert isinstance(number, int)
        assert isinstance(size, int)
        block, is_shared = (
            call.args[step + 2 : step + 4] if kind == "rows" and call.args[step + 2 :] else (0, False)
        )
        assert isinstance(block, int)
        has_bias = call.args[hidden + 2] is not None
        yield Head(rows, width, classes, has_bias, number, block, is_shared is True), kind, size


_PLACES = {
    "poet.logits_loss": ("rows", 0, 4, 6),
    "poet.logits_hidden_gradient": ("rows", 1, 6, 8),
    "poet.logits_weight_gradient": ("columns", 1, 8, 10),
}
"""Per operator what its strips are of, and the places of the input, the reduction and the size of a strip."""
