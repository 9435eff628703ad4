"""What an evaluation counts: the weight of each batch's loss, and metrics, a row of a table each.

None asks torch for memory: a full arena leaves none beside it. Batches are counted in small pieces, some
samples or places of one, as NumPy sees them where they lie. What NumPy makes of a piece is the interpreter's
memory, as its numbers and names are: eight bytes for each of `PIECE_ELEMENTS` at most, or for the scores of
one place where those are more.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from poet.errors import InputError, nearest
from poet.ir.graph import TensorType
from poet.ir.loss import LossSpec
from poet.plans.training_plan import Plan

_AVERAGED_OVER_CLASSES = frozenset({"cross-entropy", "nll"})
_TORCHS_IGNORED = -100


class LossWeights:
    """By what a loss divides: samples, or what the classes that targets name weigh; see `poet.ir.loss`.

    Of a function of Python's and of a loss that the model computes it is not known; both are taken to be
    means over samples.

    Attributes:
        are_one: the loss is a sum, and what batches give is added up.
    """

    def __init__(self, plan: Plan) -> None:
        spec, graph = LossSpec.parse(plan.request.loss), plan.graph
        types = {value.name: value.type for value in graph.values}
        output = types[graph.predictions[0]].shape if graph.predictions else ()
        self.are_one = spec.option("reduction") == "sum" or (spec.name == "output" and len(output) > 0)
        is_by_class = spec.name in _AVERAGED_OVER_CLASSES and graph.targets == 1
        self._is_by_class = is_by_class and "int" in types[graph.inputs[-1]].dtype
        self._ignored = _TORCHS_IGNORED if spec.ignored_class is None else spec.ignored_class
        weights = spec.option("weight")
        self._weights = weights if isinstance(weights, tuple) else None

    def of(self, targets: Sequence[torch.Tensor], samples: int) -> float:
        """Of the first ``samples`` of a batch with these targets."""
        if self.are_one:
            return 1.0
        if not self._is_by_class:
            return float(samples)
        chosen = targets[0][:samples] if targets[0].dim() else targets[0]
        return weight_of_classes(chosen, self._ignored, self._weights)


def loss_of_all(losses: Sequence[float], weights: Sequence[float], *, are_one: bool) -> float:
    """Of the samples of all batches, from the loss of each; NaN where nothing was counted."""
    if are_one:
        return math.fsum(losses) if losses else math.nan
    if len(set(weights)) == 1 and weights[0]:
        return math.fsum(losses) / len(losses)
    counted = [(loss, weight) for loss, weight in zip(losses, weights, strict=True) if weight]
    if not counted:
        return math.nan
    return math.fsum(loss * weight for loss, weight in counted) / math.fsum(weight for _, weight in counted)


class Metric(Protocol):
    """Counts over batches.

    Attributes:
        name: for reports.
        is_better_high: whether a higher value is the better one.
    """

    name: str
    is_better_high: bool

    def add(self, output: torch.Tensor, targets: torch.Tensor) -> None:
        """Count the model's first output for a batch."""

    def value(self) -> float | None:
        """So far; ``None`` where nothing was counted."""


class _Classified:
    """Share of targets that are among the ``top`` classes of the highest scores."""

    is_better_high = True

    def __init__(self, name: str, top: int, dim: int, ignored: int | None) -> None:
        self.name = name
        self._dim, self._top, self._ignored = dim, top, ignored
        self._right = self._judged = 0

    def add(self, output: torch.Tensor, targets: torch.Tensor) -> None:
        right, judged = right_classes(output, targets, self._dim, self._top, self._ignored)
        self._right += right
        self._judged += judged

    def value(self) -> float | None:
        return self._right / self._judged if self._judged else None


class _AbsoluteError:
    """Mean over all numbers of the absolute difference of output and target."""

    name, is_better_high = "mae", False

    def __init__(self) -> None:
        self._sum, self._count = 0.0, 0

    def add(self, output: torch.Tensor, targets: torch.Tensor) -> None:
        for found, wanted in number_pieces(output, targets):
            self._sum += float(np.abs(found - wanted).sum(dtype=np.float64))
        self._count += targets.numel()

    def value(self) -> float | None:
        return self._sum / self._count if self._count else None


class _IntersectionOverUnion:
    """Mean over the classes that occur, as targets or as answers, of what both are over what either is."""

    name, is_better_high = "iou", True

    def __init__(self, dim: int, ignored: int | None, classes: int) -> None:
        self._dim, self._ignored, self._classes = dim, ignored, classes
        self._both = np.zeros(classes, dtype=np.int64)
        self._either = np.zeros(classes, dtype=np.int64)

    def add(self, output: torch.Tensor, targets: torch.Tensor) -> None:
        for scores, wanted in class_pieces(output, targets, self._dim, self._ignored):
            chosen = scores.argmax(axis=-1)
            both = np.bincount(wanted[chosen == wanted], minlength=self._classes)
            counts = [np.bincount(item, minlength=self._classes) for item in (chosen, wanted)]
            self._both += both
            self._either += counts[0] + counts[1] - both

    def value(self) -> float | None:
        occurs = self._either > 0
        if not bool(occurs.any()):
            return None
        return float((self._both[occurs] / self._either[occurs]).mean())


def _of_classes(make: Callable[[int, int | None, int], Metric]) -> Callable[[str, Plan], Metric]:
    def row(name: str, plan: Plan) -> Metric:
        output, targets = _types(plan)
        loss = LossSpec.parse(plan.request.loss)
        dim = loss.class_dim_of(output.shape, targets.shape)
        if dim is None or targets.dtype not in ("int64", "int32", "uint8"):
            raise InputError(f"metric {name!r} is for classes; {plan.request.loss} takes other targets")
        return make(dim, loss.ignored_class, output.shape[dim])

    return row


def _of_numbers(name: str, plan: Plan) -> Metric:
    output, targets = _types(plan)
    if output.shape != targets.shape:
        raise InputError(f"metric {name!r} is for targets as large as the output: {targets} is not {output}")
    return _AbsoluteError()


METRICS: dict[str, Callable[[str, Plan], Metric]] = {
    "accuracy": _of_classes(lambda dim, ignored, _: _Classified("accuracy", 1, dim, ignored)),
    "top-5": _of_classes(lambda dim, ignored, _: _Classified("top-5", 5, dim, ignored)),
    "iou": _of_classes(_IntersectionOverUnion),
    "mae": _of_numbers,
}
"""By the name that it has on the command line."""


def metric_named(name: str, plan: Plan) -> Metric:
    """A new metric of that name for the first output of ``plan``.

    Raises:
        InputError: there is none, or it is not for such targets.
    """
    if name not in METRICS:
        raise InputError(f"metric {name!r} is not one of {', '.join(METRICS)}{nearest(name, METRICS)}")
    return METRICS[name](name, plan)


def _types(plan: Plan) -> tuple[TensorType, TensorType]:
    """Of the first output and of the targets."""
    graph = plan.graph
    if not graph.targets:
        raise InputError("metrics hold the model's output against targets, and the plan's loss has none")
    if not graph.predictions:
        raise InputError(
            "metrics hold the model's output against targets; a plan of --gradients logits has none"
        )
    types = {value.name: value.type for value in graph.values}
    return types[graph.predictions[0]], types[graph.inputs[-1]]


def chosen_metrics(plan: Plan, names: Sequence[str] | None) -> list[Metric]:
    """Metrics by name, for the plan's first output; not given: that which suits its targets.

    Raises:
        InputError: there is no such metric, or the output has no classes.
    """
    return [metric_named(name, plan) for name in (default_metrics(plan) if names is None else names)]


def default_metrics(plan: Plan) -> tuple[str, ...]:
    """What suits the plan's targets: accuracy of classes, mean absolute error of numbers, else nothing."""
    graph = plan.graph
    if not graph.targets:
        return ()
    for name in ("accuracy", "mae"):
        try:
            metric_named(name, plan)
        except InputError:
            continue
        return (name,)
    return ()


# --- in pieces ---

Array = npt.NDArray[Any]

PIECE_ELEMENTS = 4096


def class_pieces(
    output: Tensor, targets: Tensor, dim: int, ignored: int | None = None
) -> Iterator[tuple[Array, Array]]:
    """Scores (n, C) and classes (n,) of places that have a class; ``output`` has scores along ``dim``.

    A number that is no class, or the ``ignored`` one, stands where there is none.
    """
    for scores, wanted in _pieces(output.detach().movedim(dim, -1), targets):
        found, classes = _array(scores), _array(wanted)
        counted = (classes >= 0) & (classes < found.shape[-1])
        if ignored is not None:
            counted &= classes != ignored
        if counted.all():  # where they lie: a row of many classes may be larger than all that is left
            yield found.reshape(-1, found.shape[-1]), classes.reshape(-1)
        elif counted.any():
            yield found[counted], classes[counted]


def number_pieces(output: Tensor, targets: Tensor) -> Iterator[tuple[Array, Array]]:
    """Numbers of the output with those of the targets."""
    for found, wanted in _pieces(output.detach().unsqueeze(-1), targets):
        yield _array(found)[..., 0], _array(wanted)


def right_classes(
    output: Tensor, targets: Tensor, dim: int, top: int = 1, ignored: int | None = None
) -> tuple[int, int]:
    """How many targets are among the ``top`` classes of the highest scores, and how many there are.

    Targets that are no class are not counted, see `class_pieces`. Of equal scores the first class's is the
    higher one; NaN is above all.
    """
    right = judged = 0
    for scores, classes in class_pieces(output, targets, dim, ignored):
        judged += len(classes)
        if top == 1:
            right += int(np.count_nonzero(scores.argmax(axis=-1) == classes))
        else:
            right += sum(_rank(row, int(wanted)) < top for row, wanted in zip(scores, classes, strict=True))
    return right, judged


def weight_of_classes(targets: Tensor, ignored: int, weights: Sequence[float] | None) -> float:
    """How many targets are not the ``ignored`` number, or the sum of their classes' ``weights``."""
    total = 0.0
    for piece, _ in _pieces(targets.detach(), targets):
        classes = _array(piece).reshape(-1).astype(np.int64)
        counted = classes[classes != ignored]
        total += len(counted) if weights is None else float(np.asarray(weights)[counted].sum())
    return total


def fingerprint(tensor: Tensor) -> int:
    """The same for the same bits."""
    found = 0
    for piece, _ in _pieces(tensor.detach(), tensor):
        found = zlib.crc32(_array(piece).tobytes(), found)
    return found


def least_and_largest(tensor: Tensor) -> tuple[float, float]:
    """Of all numbers, at least one; NaN where one is."""
    if tensor.dtype == torch.bfloat16:
        low, high = torch.aminmax(tensor)
        return low.item(), high.item()
    array = _array(tensor.detach())
    return array.min().item(), array.max().item()


def _rank(scores: Array, place: int) -> int:
    """How many of ``scores`` are above that at ``place``."""
    unknown = np.isnan(scores)
    if unknown[place]:
        return int(np.count_nonzero(unknown[:place]))
    above = np.count_nonzero(scores > scores[place]) + np.count_nonzero(unknown)
    return int(above + np.count_nonzero(scores[:place] == scores[place]))


def _pieces(output: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of (..., C) numbers and of (...) targets, each of few elements."""
    if not targets.dim() or output.numel() <= PIECE_ELEMENTS:
        yield output, targets
        return
    step = max(1, PIECE_ELEMENTS * len(targets) // output.numel())
    for start in range(0, len(targets), step):
        if step == 1:
            yield from _pieces(output[start], targets[start])
        else:
            yield output[start : start + step], targets[start : start + step]


def _array(tensor: Tensor) -> Array:
    """The numbers where they lie; NumPy has no bfloat16, whose numbers are copied."""
    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.tolist(), dtype=np.float32)
    made: Array = tensor.numpy()
    return made
