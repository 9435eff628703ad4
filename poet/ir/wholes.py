"""Parameters that exist in parts: some rows of a weight are one tensor, the next rows another.

A part is a parameter like any other: it has a buffer, perhaps a gradient and optimizer state, and what is
planned for it is planned for it alone. What users see is the whole parameter, under its own name. A call
that reads the whole runs once for each part, along one of the axes of `Axis`; whether that gives the same
bits is found by trial (`poet.runtime.trials.forms`).
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from poet.errors import GraphError
from poet.ir.calls import Argument, Blank, Call, TensorType, contiguous
from poet.ir.operators import WRITES

Cuts = tuple[tuple[int, int], ...]
"""(place among the arguments, dimension) of what a run on a part is given a part of."""

FACTORS = {"aten.mm.default": 0, "aten.addmm.default": 1}
"""Products of matrices, and where the first of the two factors stands."""


class Axis(enum.Enum):
    """Along which dimension of a call's work its runs on parts divide it."""

    ROWS = "rows"  # of a product, or of a sum of two tensors: each run gives rows of the result
    COLUMNS = "columns"  # of a product: each run gives columns of the result
    SUM = "sum"  # of a product: each run adds its share to what the runs before it gave
    LOOK_UP = "look-up"  # in a table: each run finds those of its rows that are asked for
    TABLE = "table"  # the gradient of a table: each run makes that of some of its rows
    ELEMENTS = "elements"  # of an update in place: each run changes rows of every tensor


@dataclass(frozen=True, slots=True)
class PartedCall:
    """A call that runs once for each part.

    Attributes:
        call: as it would run whole; blanks stand for its tensors.
        axis: along which it is divided.
    """

    call: Call
    axis: Axis


@dataclass(frozen=True, slots=True)
class Whole:
    """A parameter of the module that exists in parts.

    Attributes:
        name: the module's own name for it.
        type: of all of it; its elements lie in C order.
        parts: names of the graph's parameters that are its rows, the first rows first.
        calls: what read it, made its gradient or updated it, each distinct one once.
    """

    name: str
    type: TensorType
    parts: tuple[str, ...]
    calls: tuple[PartedCall, ...] = ()


def cuts_of(parted: PartedCall) -> Cuts:
    """Which arguments of a call are divided, and along which dimension.

    Raises:
        GraphError: the call has no such axis.
    """
    call, axis = parted.call, parted.axis
    refusal = GraphError(f"{call.target} is not divided along {axis.value}")
    is_sum = axis is Axis.ROWS and _is_sum(call)
    if axis is Axis.ELEMENTS or is_sum:
        if not is_sum and not _is_update(call):
            raise refusal
        return tuple((place, 0) for place, item in enumerate(call.args) if isinstance(item, Blank))
    if axis is Axis.LOOK_UP or axis is Axis.TABLE:
        if not _is_of_table(call, axis):
            raise refusal
        return ((0, 0),) if axis is Axis.LOOK_UP else ()
    first = FACTORS.get(call.target)
    if (
        first is None
        or call.kwargs
        or len(call.args) != first + 2
        or not all(_is_blank(item, range(3)) for item in call.args[:first])
        or not all(_is_blank(item, (2,)) for item in call.args[first:])
    ):
        raise refusal
    if axis is Axis.SUM:
        return (first, 1), (first + 1, 0)
    dim = 0 if axis is Axis.ROWS else 1
    factor = (first + dim, dim)
    added = call.args[0]
    assert isinstance(added, Blank)
    along = len(added.type.shape) - 2 + dim
    if not first or along < 0 or added.type.shape[along] == 1:
        return (factor,)
    return (0, along), factor


def result_dim(axis: Axis) -> int | None:
    """The dimension along which runs on parts give parts of the result; ``None``: nothing is joined."""
    return {Axis.ROWS: 0, Axis.COLUMNS: 1, Axis.TABLE: 0}.get(axis)


def run_of(parted: PartedCall, args: Sequence[Argument], bounds: tuple[int, int], so_far: Argument) -> Call:
    """The call of one run.

    Args:
        parted: what is divided.
        args: its arguments, each cut as `cuts_of` says.
        bounds: the part's first row and the one after its last.
        so_far: what the runs before it gave, where each goes on from that; ``None`` for the first.
    """
    call, (start, stop) = parted.call, bounds
    if parted.axis is Axis.LOOK_UP:
        table = call.args[0]
        assert isinstance(table, Blank)
        return Call("poet.look_up", (*args[:2], start, table.type.shape[0], so_far))
    if parted.axis is Axis.TABLE:
        return Call("poet.look_up_backward", (*args[:2], start, stop - start, args[3]))
    if parted.axis is Axis.SUM and so_far is not None:
        return Call("aten.addmm.default", (so_far, *args[-2:]))
    return Call(call.target, tuple(args))


def narrowed(type_: TensorType, dim: int, start: int, stop: int) -> TensorType:
    """Elements ``start`` to ``stop`` along ``dim`` of a view, on the same buffer."""
    shape = (*type_.shape[:dim], stop - start, *type_.shape[dim + 1 :])
    return TensorType(type_.dtype, shape, type_.strides, type_.offset + start * type_.strides[dim])


def check_whole(whole: Whole, parts: Sequence[Sequence[tuple[str, TensorType]]]) -> None:
    """A whole's parts are alike in all but their number of rows, and make it up.

    Args:
        whole: to be checked; its calls can be divided as they say.
        parts: per part all that lives across steps for it, as (what it is, its type); the part itself first.

    Raises:
        GraphError: they do not.
    """
    where = f"parameter {whole.name} in parts"
    shape = whole.type.shape
    if len(parts) < 2 or not shape or whole.type != contiguous(whole.type.dtype, shape):
        raise GraphError(f"{where}: {whole.type} in {len(parts)} parts is not rows in C order")
    rows = [part[0][1].shape[:1] for part in parts]
    if any(not row or not row[0] for row in rows):
        raise GraphError(f"{where}: a part has no rows")
    if sum(map(sum, rows)) != shape[0]:
        raise GraphError(f"{where}: its parts have not as many rows as it has")
    kept = [what for what, _ in parts[0]]
    if len(set(kept)) < len(kept):
        raise GraphError(f"{where}: its parts have something twice ({', '.join(kept)})")
    for part, (count, *_) in zip(parts, rows, strict=True):
        if [what for what, _ in part] != kept:
            raise GraphError(f"{where}: its parts are not trained alike")
        for what, type_ in part:
            wanted = contiguous(whole.type.dtype, (count, *shape[1:]))
            if type_ != wanted:
                raise GraphError(f"{where}: {what} of a part is {type_}, not {wanted} in C order")
    for parted in whole.calls:
        cuts_of(parted)


def _is_sum(call: Call) -> bool:
    """Whether it adds two tensors of one shape and type."""
    types = {item.type for item in call.args if isinstance(item, Blank)}
    is_plain = call.target == "aten.add.Tensor" and not call.kwargs and len(call.args) == 2
    return is_plain and all(map(_is_matrix, call.args)) and len(types) == 1


def _is_of_table(call: Call, axis: Axis) -> bool:
    """Whether it looks numbers up in a table, or makes the gradient of one that is not scaled."""
    target, places = (
        ("aten.embedding.default", 2)
        if axis is Axis.LOOK_UP
        else ("aten.embedding_dense_backward.default", 5)
    )
    if call.target != target or call.kwargs or len(call.args) < places:
        return False
    values, numbers, *more = call.args
    are_tensors = isinstance(values, Blank) and isinstance(numbers, Blank)
    if not are_tensors or any(isinstance(item, Blank) for item in more):
        return False
    return _is_matrix(values) if axis is Axis.LOOK_UP else _are_counts(more[:2]) and more[2] is False


def _is_matrix(argument: Argument) -> bool:
    return _is_blank(argument, (2,))


def _are_counts(arguments: Sequence[Argument]) -> bool:
    return all(type(item) is int for item in arguments)


def _is_update(call: Call) -> bool:
    """Whether it updates its first tensor in place, and all that it is given has the same rows."""
    shapes = {item.type.shape for item in call.args if isinstance(item, Blank)}
    places = WRITES.get(call.target, ()) if call.target.startswith("poet.") else ()
    return (
        bool(places)
        and max(places) < len(call.args)
        and isinstance(call.args[0], Blank)
        and len(shapes) == 1
        and () not in shapes
    )


def _is_blank(argument: Argument, dims: Collection[int]) -> bool:
    return isinstance(argument, Blank) and len(argument.type.shape) in dims
