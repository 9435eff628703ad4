"""The samples that a plan is trained on: from files, folders, tables, images or a function.

What is large stays where it is and is read batch by batch; see `poet.files.arrays`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from poet.errors import InputError
from poet.files.arrays import (
    MOST_HELD_BYTES,
    Array,
    ArrayColumn,
    Column,
    StoredColumn,
    npy_column,
    npz_columns,
)
from poet.files.kinds import FileKind, says_what_it_is
from poet.files.tables import image_columns, is_function, spooled_columns, table_columns
from poet.files.tensorfile import TensorFile
from poet.ir.graph import TensorType
from poet.plans.training_plan import Plan
from poet.runtime.data import ranges
from poet.util.reading import open_regular

_CHECKED_ROWS = 1024  # that are looked at together, of what is not in memory
_PIXEL = 255.0


class StoredSamples:
    """One input of the plan for all samples, read when asked for; it is sliced as a tensor is."""

    def __init__(self, column: Column, kind: TensorType, where: str) -> None:
        self._column, self._kind, self._where = column, kind, where
        self.shape = (column.shape[0], *kind.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, part: slice) -> torch.Tensor:
        return self.rows(range(*part.indices(len(self))))

    def rows(self, numbers: Sequence[int]) -> torch.Tensor:
        """The samples with these numbers, in this order."""
        return as_samples(self._where, self._column.rows(numbers), self._kind)

    @property
    def dtype(self) -> torch.dtype:
        """Of the plan's input."""
        dtype: torch.dtype = getattr(torch, self._kind.dtype)
        return dtype


@dataclass(frozen=True, slots=True)
class Samples:
    """What a model is trained on: one array per input of the plan, targets last, samples first.

    Attributes:
        tensors: all samples; in memory, or read when asked for.
        staged: of the plan's shapes; each batch is copied there, so that a step allocates none.
        order: numbers of the samples, set again for each epoch; here, so that an epoch allocates none.
        targets: how many of the last tensors are the loss's.
    """

    tensors: tuple[torch.Tensor | StoredSamples, ...]
    staged: tuple[torch.Tensor, ...]
    order: torch.Tensor
    targets: int

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.tensors[0])

    def batch(self, chosen: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """The inputs and the targets of the samples with the numbers ``chosen``; good until the next call."""
        staged = tuple(place[: len(chosen)] for place in self.staged)
        for tensor, place in zip(self.tensors, staged, strict=True):
            if isinstance(tensor, StoredSamples):
                place.copy_(tensor.rows(chosen.tolist()))
            else:
                torch.index_select(tensor, 0, chosen, out=place)
        inputs = len(staged) - self.targets
        return staged[:inputs], staged[inputs:]


@says_what_it_is(FileKind.NPZ, FileKind.TENSORS, FileKind.TABLE, FileKind.FOLDER)
def load_samples(
    path: str | Path, plan: Plan, *, allow_nan: bool = False, least: int | None = None
) -> Samples:
    """The samples at ``path``, checked against the plan.

    ``.npz``, ``.safetensors`` or a folder of ``.npy`` with an array per input; ``.csv``, ``.tsv``, a folder
    of images or ``module:function``, the user's own code (`poet.files.tables`). docs/training-loops.md has
    names and forms. Every array has the samples in its first dimension. Arrays of ``.npz`` up to 64 MiB are
    in memory.

    uint8 of samples with three dims, where the plan takes float, are images: divided by 255, and ``[H,W,C]``
    is turned into ``[C,H,W]``. Other uint8 keep their numbers.

    Args:
        path: of the file or folder; or the function's name.
        plan: to train with.
        allow_nan: whether targets may be NaN or infinite.
        least: how many samples there must be; not given: those of a batch.

    Raises:
        InputError: it is not readable, an array is missing or of another shape or type, or a sample
            holds a class or a row that there is not, or a target that is not finite.
    """
    graph = plan.graph
    types = {value.name: value.type for value in graph.values}
    if not graph.inputs or not all(types[name].shape for name in graph.inputs):
        _columns(path, plan)  # what is wrong with the file is said first
        raise InputError(f"{plan.model.name}: the plan takes no batches of samples, so it reads no data file")
    named = path.name if isinstance(path, Path) else Path(path).name
    found = _columns(path, plan)
    allowed = ranges.rules(graph)
    tensors: list[torch.Tensor | StoredSamples] = []
    for place, name in enumerate(graph.inputs):
        chosen = _chosen(plan, place, found, named)
        where = f"{named}: {chosen}"
        tensors.append(_samples(where, found[chosen], types[name]))
        if name in allowed:
            for part in _parts(tensors[-1]):
                ranges.check(where, part, allowed[name], allow_nan=allow_nan)
    if len({len(tensor) for tensor in tensors}) > 1:
        counts = ", ".join(str(len(tensor)) for tensor in tensors)
        raise InputError(f"{named}: the arrays have different numbers of samples ({counts})")
    batch = types[graph.inputs[0]].shape[0]
    if batch < 1:
        raise InputError(
            f"{plan.model.name}: the plan's batch has no samples, so there is nothing to train on"
        )
    if len(tensors[0]) < (batch_of(plan) if least is None else least):
        raise InputError(f"{named}: {len(tensors[0])} samples, the plan's batch is {batch_of(plan)}")
    staged = tuple(torch.empty((batch, *tensor.shape[1:]), dtype=tensor.dtype) for tensor in tensors)
    order = torch.arange(len(tensors[0]))
    return Samples(tuple(tensors), staged, order, graph.targets)


def trained_of(count: int, plan: Plan) -> int:
    """Of ``count`` samples, how many an epoch trains on: all, where the plan has a step for what is left."""
    left = count % batch_of(plan)
    whole = [kind.shape[1:] for kind in plan.given_types]
    for shape in plan.shapes:
        types = shape.step.given_types
        if [kind.shape[1:] for kind in types] == whole and {kind.shape[0] for kind in types} == {left}:
            return count
    return count - left


def batch_of(plan: Plan) -> int:
    """Samples of a whole step of ``plan``, in all its micro-batches."""
    types = {value.name: value.type for value in plan.graph.values}
    pieces = 1 if plan.request.micro is None else plan.request.micro.count
    return types[plan.graph.inputs[0]].shape[0] * pieces


def _chosen(plan: Plan, place: int, found: dict[str, Column], named: str) -> str:
    """Which array is the plan's input at ``place``."""
    graph = plan.graph
    is_targets = graph.targets == 1 and place == len(graph.inputs) - 1
    names = [graph.inputs[place]]
    if is_targets or len(graph.inputs) - graph.targets == 1:
        names += ["y", "targets"] if is_targets else ["x", "inputs"]
    chosen = next((candidate for candidate in names if candidate in found), None)
    if chosen is None:
        wanted = " or ".join(repr(candidate) for candidate in dict.fromkeys(names))
        raise InputError(f"{named}: no array is called {wanted}; found {', '.join(found) or 'none'}")
    return chosen


def _columns(path: str | Path, plan: Plan) -> dict[str, Column]:
    """The arrays at ``path`` by name."""
    graph = plan.graph
    if is_function(str(path)):
        return spooled_columns(str(path), list(graph.inputs), Path())
    path = Path(path)
    shapes = {value.name: value.type.shape for value in graph.values}
    input_shape = shapes[graph.inputs[0]][1:] if graph.inputs else ()
    if path.is_dir():
        files = sorted(path.glob("*.npy"))
        if files:
            return {file.stem: npy_column(file) for file in files}
        return image_columns(path, input_shape)
    if path.suffix.lower() in (".csv", ".tsv"):
        target_shape = shapes[graph.inputs[-1]][1:] if graph.inputs else ()
        return table_columns(path, input_shape=input_shape, target_shape=target_shape)
    return _from_safetensors(path) if path.suffix == ".safetensors" else npz_columns(path, Path())


def _from_safetensors(path: Path) -> dict[str, Column]:
    found: dict[str, Column] = {}
    with TensorFile(path) as file:
        for name, entry in file.entries.items():
            if entry.dtype == "bfloat16":
                raise InputError(f"{path.name}: {name} is bfloat16; save samples as float32")
            if entry.size_bytes > MOST_HELD_BYTES and entry.shape:
                stored = open_regular(path, buffering=0)
                found[name] = StoredColumn(stored, path.name, entry.start, entry.shape, np.dtype(entry.dtype))
                continue
            array = np.empty(entry.shape, dtype=entry.dtype)
            file.read_into(name, array.reshape(-1).view(np.uint8).data)
            found[name] = ArrayColumn(array)
    return found


def _parts(tensor: torch.Tensor | StoredSamples) -> Iterator[torch.Tensor]:
    """All samples; of stored ones a part at a time."""
    if isinstance(tensor, torch.Tensor):
        yield tensor
        return
    for start in range(0, len(tensor), _CHECKED_ROWS):
        yield tensor[start : start + _CHECKED_ROWS]


def _samples(where: str, column: Column, kind: TensorType) -> torch.Tensor | StoredSamples:
    """All samples of one input, in memory where they are there already."""
    if isinstance(column, ArrayColumn):
        return as_samples(where, column.array, kind)
    if not _is_turned(column.shape, column.dtype, kind):
        _check(where, column.shape, column.dtype, kind)
    return StoredSamples(column, kind, where)


def as_samples(where: str, array: Array, kind: TensorType) -> torch.Tensor:
    """The array as a tensor of samples of the plan's type.

    Raises:
        InputError: it has another shape or type; ``where`` names it.
    """
    wanted = np.dtype("float32" if kind.dtype == "bfloat16" else kind.dtype)
    if _is_turned(array.shape, array.dtype, kind):
        array = array.transpose(0, 3, 1, 2)
    _check(where, array.shape, array.dtype, kind)
    dtype: torch.dtype = getattr(torch, kind.dtype)
    tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=wanted)).to(dtype)
    is_image = array.dtype == np.uint8 and wanted.kind == "f" and len(kind.shape) == 4
    return tensor.div_(_PIXEL) if is_image else tensor


def _check(where: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], kind: TensorType) -> None:
    """Refuse an array of all samples that is not what the plan takes."""
    wanted = np.dtype("float32" if kind.dtype == "bfloat16" else kind.dtype)
    if shape[1:] != kind.shape[1:] or len(shape) != len(kind.shape):
        takes = ", ".join(["samples", *map(str, kind.shape[1:])])
        raise InputError(f"{where} has shape {list(shape)}, the plan takes [{takes}]")
    if not np.can_cast(dtype, wanted, casting="same_kind"):
        raise InputError(f"{where} has elements of type {dtype}, the plan takes {kind.dtype}")


def _is_turned(shape: tuple[int, ...], dtype: np.dtype[np.generic], kind: TensorType) -> bool:
    """Whether these are images whose channels come last, and the plan takes them first."""
    takes = kind.shape[1:]
    is_image = dtype == np.uint8 and kind.dtype in ("float32", "float64", "float16", "bfloat16")
    if not is_image or len(shape) != 4 or len(takes) != 3 or shape[1:] == takes:
        return False
    return shape[1:] == (*takes[1:], takes[0])
