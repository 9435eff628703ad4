"""Whether the last layer with its loss gives the same bits in strips as in the calls of plain PyTorch.

Each distinct one is tried on random tensors, against those calls: when a model is imported, to choose the
strips; when a plan is opened, on the machine that will train.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from poet.calls import Argument, Ref
from poet.errors import ReplayError
from poet.graph import Graph, Op
from poet.runtime.kernels import logits
from poet.runtime.system.memory import available_bytes
from poet.runtime.system.process import likely_thread_counts, torch_threads
from poet.runtime.trials import trial_record
from poet.runtime.trials.trial_bench import same_bits

COUNTS = (16, 8, 4, 2)
"""Of strips that are tried, the most first."""

_LEAST_ROWS = 8  # of a strip: fewer make poor products, unless there are two strips
_COLUMNS = 64  # blocks of classes are multiples of it
_RAM_SHARE = 0.5  # of what is available, that a trial may take
_LEFT_OUT = -100
_aten = torch.ops.aten
_exact: dict[tuple[object, ...], bool] = {}
_log = logging.getLogger("poet.runtime")


@dataclass(frozen=True, slots=True)
class Head:
    """What two last layers have in common that do the same work.

    Attributes:
        rows: T, samples or tokens.
        width: H, of each.
        classes: V.
        has_bias: whether one is added.
        reduction: of the loss, 1: mean, 2: sum.
    """

    rows: int
    width: int
    classes: int
    has_bias: bool
    reduction: int

    @property
    def trial_bytes(self) -> int:
        """That a trial takes at its fullest: five tensors of logits, and thrice the weight."""
        return 4 * self.classes * (5 * self.rows + 3 * self.width)


def row_steps(head: Head) -> Iterator[int]:
    """Numbers of rows that a strip may have, the fewest first."""
    for count in COUNTS:
        rows = -(-head.rows // count)
        if rows < head.rows and (rows >= _LEAST_ROWS or count == min(COUNTS)):
            yield rows


def column_steps(head: Head) -> Iterator[int]:
    """Numbers of classes that a block may have, the fewest first."""
    for count in COUNTS:
        share = -(-head.classes // count)
        columns = -(-share // _COLUMNS) * _COLUMNS
        if columns < head.classes:
            yield columns


def exact_rows(head: Head) -> int | None:
    """The fewest rows of a strip with which loss and the input's gradient are exact here, if any are."""
    return next((rows for rows in row_steps(head) if _known("rows", head, rows)), None)


def exact_columns(head: Head) -> int | None:
    """The fewest classes of a block with which the weight's gradient is exact here, if any are."""
    return next((columns for columns in column_steps(head) if _known("columns", head, columns)), None)


def check_logits(graph: Graph) -> None:
    """Refuse a graph of which a last layer in strips gives other bits here, at torch's number of threads.

    What this machine has no memory to try whole is not tried, and logged.

    Raises:
        ReplayError: names the op.
    """
    for name, head, kind, step in _strips(graph):
        if head.trial_bytes > _RAM_SHARE * available_bytes():
            _log.warning("poet: op %s in strips was not tried against the whole, for want of memory", name)
            continue
        threads = torch.get_num_threads()
        if not _tried(kind, head, step, threads):
            raise ReplayError(
                f"op {name} in strips of {step} {kind} gives other bits here, with {threads} threads, than "
                "plain PyTorch; plan on this machine with as many threads, or without --gradients logits"
            )


def _known(kind: str, head: Head, step: int) -> bool:
    """Whether so large a strip is exact at every number of threads that is likely; records are believed."""
    if head.trial_bytes > _RAM_SHARE * available_bytes():
        return False
    for threads in likely_thread_counts():
        digest = trial_record.digest_of(("logits", kind, head, step, threads))
        told = trial_record.told(digest)
        if not isinstance(told, bool):
            told = _tried(kind, head, step, threads)
            trial_record.note(digest, told)
        if not told:
            return False
    return True


def _tried(kind: str, head: Head, step: int, threads: int) -> bool:
    key = (kind, head, step, threads)
    if key not in _exact:
        with torch_threads(threads), torch.no_grad():
            _exact[key] = _TRIALS[kind](head, step)
    return _exact[key]


def _given(head: Head) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Input, weight, bias, and classes of which one is left out."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(head.rows, head.width, generator=generator)
    weight = torch.randn(head.classes, head.width, generator=generator) / head.width**0.5
    bias = torch.randn(head.classes, generator=generator) if head.has_bias else None
    classes = torch.randint(0, head.classes, (head.rows,), generator=generator)
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
    hidden, weight, bias, classes = given = _given(head)
    loss, total, one, of_logits = _plain(head, *given)
    found, weighed, _, _ = logits.loss(hidden, weight, bias, classes, head.reduction, _LEFT_OUT, rows)
    expected = _aten.mm.default(of_logits, weight)
    of_hidden = logits.hidden_gradient(
        one, hidden, weight, bias, classes, total, head.reduction, _LEFT_OUT, rows
    )
    pairs = ((loss, found), (total, weighed), (expected, of_hidden))
    return all(same_bits(plain, ours) for plain, ours in pairs)


def _try_columns(head: Head, columns: int) -> bool:
    hidden, weight, bias, classes = given = _given(head)
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


_TRIALS: dict[str, Callable[[Head, int], bool]] = {"rows": _try_rows, "columns": _try_columns}


# --- what a graph has -------------------------------------------------------------------------


def _strips(graph: Graph) -> Iterator[tuple[str, Head, str, int]]:
    """Of each op of a last layer in strips its name, its work, what its strips are of, and how many."""
    types = {value.name: value.type for value in graph.values}

    def shape(argument: Argument) -> tuple[int, ...]:
        return types[argument.value].shape if isinstance(argument, Ref) else ()

    for op in graph.ops:
        for target, args in _calls(op):
            if target not in _PLACES:
                continue
            kind, hidden, reduction, step = _PLACES[target]
            (rows, width), (classes, _) = shape(args[hidden]), shape(args[hidden + 1])
            number, size = args[reduction], args[step]
            assert isinstance(number, int)
            assert isinstance(size, int)
            yield op.name, Head(rows, width, classes, args[hidden + 2] is not None, number), kind, size


def _calls(op: Op) -> Iterator[tuple[str, tuple[Argument, ...]]]:
    links = [op.call] if op.strip is None else [link.call for link in op.strip.links]
    yield from ((call.target, call.args) for call in links)


_PLACES = {
    "poet.logits_loss": ("rows", 0, 4, 6),
    "poet.logits_hidden_gradient": ("rows", 1, 6, 8),
    "poet.logits_weight_gradient": ("columns", 1, 8, 10),
}
"""Per operator what its strips are of, and the places of the input, the reduction and the size of a strip."""
