"""A linear layer with its cross-entropy, in strips: the logits exist some rows or some columns at a time.

The loss and the gradient of the layer's input are made by rows: a token's logits, their log-softmax and their
gradient depend on no other row. The weight's gradient sums over all rows, so it is made by columns, a
block of classes for all rows; what their log-softmax needs of the other classes are two numbers for each row:
the largest logit, and the logarithm of the sum, with the opposite sign. The kernels that are called are those
of plain PyTorch; whether products give the same bits in strips is found by trial
(`poet.runtime.trials.forms`).

Shapes: T rows of width H, a weight of V classes (V, H); floats are float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from poet.runtime.kernels.dequantised import dequantise_into

_aten = torch.ops.aten
_LEFT_OUT = -100  # of the stand-ins for classes; torch's default


def loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    classes: Tensor,
    reduction: int,
    ignored: int,
    rows: int,
    format: str = "",
    block: int = 0,
    is_shared: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss of ``hidden @ weight.T + bias``, ``rows`` rows at a time.

    Args:
        hidden: (T, H).
        weight: (V, H), or packed rows of it.
        bias: (V,) or ``None``.
        classes: (T,) of each row.
        reduction: 1: mean, 2: sum.
        ignored: the class that is left out.
        rows: of a strip.
        format: how rows of the weight are packed; empty: they are not.
        block: rows of the weight that are used at a time; 0: all.
        is_shared: sums over classes are made as where each thread has an even share of them.

    Returns:
        The loss and the weight of the rows in it, as ``nll_loss_forward`` gives them; of each row the largest
        logit (T, 1), and the logarithm of the sum, with the opposite sign (T, 1).
    """
    if block >= len(weight):
        weight, format = _whole(weight, format, hidden.shape[1]), ""
    count = len(hidden)
    picked, largest, shift = (hidden.new_empty(count, 1) for _ in range(3))
    taken = _stand_ins(classes, ignored)
    safe = classes.masked_fill(classes == ignored, 0).unsqueeze(1)
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        scores = _logits(hidden[start:stop], weight, bias, format, block)
        largest[start:stop] = scores.amax(1, keepdim=True)
        _aten._log_softmax.out(scores, 1, False, out=scores)
        shift[start:stop] = scores.amax(1, keepdim=True)  # the largest logit's own is 0 - the logarithm
        picked[start:stop] = scores.gather(1, safe[start:stop])
        del scores
    made, total = _aten.nll_loss_forward.default(picked, taken, None, reduction, _LEFT_OUT)
    return made, total, largest, shift


def hidden_gradient(
    gradient: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    classes: Tensor,
    total: Tensor,
    reduction: int,
    ignored: int,
    rows: int,
    format: str = "",
    block: int = 0,
    is_shared: bool = False,
    largest: Tensor | None = None,
    shift: Tensor | None = None,
) -> Tensor:
    """The gradient of ``hidden`` (T, H), ``rows`` rows at a time; ``gradient`` is that of the loss.

    With ``largest`` and ``shift``, of `loss`, it is made a block of classes at a time, for all rows: each
    block of the weight is made float32 once.
    """
    if block >= len(weight):
        weight, format = _whole(weight, format, hidden.shape[1]), ""
    if largest is not None and shift is not None:
        of_class = _of_class(gradient, classes, total, reduction, ignored)

        def of_logits_in(first: int, last: int, part: Tensor) -> Tensor:
            some = None if bias is None else bias[first:last]
            return _block_gradient(_product(hidden, part, some), classes - first, largest, shift, of_class)

        return _summed(hidden, weight, format, block, of_logits_in, is_shared=is_shared)
    made = torch.empty_like(hidden)
    for start in range(0, len(hidden), rows):
        stop = min(start + rows, len(hidden))
        scores = _product(hidden[start:stop], weight, bias)
        _aten._log_softmax.out(scores, 1, False, out=scores)
        of_scores = _aten.nll_loss_backward.default(
            gradient, scores, classes[start:stop], None, reduction, ignored, total
        )
        _aten._log_softmax_backward_data.out(of_scores, scores, 1, torch.float32, out=of_scores)
        del scores
        made[start:stop] = _aten.mm.default(of_scores, weight)
        del of_scores
    return made


def weight_gradient(
    first: int,
    gradient: Tensor,
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    classes: Tensor,
    total: Tensor,
    largest: Tensor,
    shift: Tensor,
    reduction: int,
    ignored: int,
    columns: int,
    count: int,
) -> tuple[Tensor, Tensor | None]:
    """The gradients of some rows of the weight and the bias, if there is one; ``columns`` classes at a time.

    ``weight`` (count, H) and ``bias`` (count,) are the rows of ``count`` classes from ``first`` on.
    """
    of_class = _of_class(gradient, classes, total, reduction, ignored)
    made = torch.empty_like(weight)
    of_bias = None if bias is None else bias.new_empty(count)
    for start in range(0, count, columns):
        stop = min(start + columns, count)
        block = None if bias is None else bias[start:stop]
        of_logits = _block_gradient(
            _product(hidden, weight[start:stop], block), classes - (first + start), largest, shift, of_class
        )
        made[start:stop] = _aten.mm.default(of_logits.t(), hidden)
        if of_bias is not None:
            of_bias[start:stop] = _aten.sum.dim_IntList(of_logits, [0], True).view(-1)
        del of_logits
    return made, of_bias


def _of_class(gradient: Tensor, classes: Tensor, total: Tensor, reduction: int, ignored: int) -> Tensor:
    """What comes from the loss to the log-softmax of each row's class (T, 1)."""
    taken = _stand_ins(classes, ignored)
    stand_in = gradient.new_empty(len(classes), 1)
    made: Tensor = _aten.nll_loss_backward.default(
        gradient, stand_in, taken, None, reduction, _LEFT_OUT, total
    )
    return made


def _block_gradient(
    logits: Tensor, local: Tensor, largest: Tensor, shift: Tensor, of_class: Tensor
) -> Tensor:
    """The gradient of some columns of logits (T, n); ``local`` numbers the rows' classes from the first one.

    Softmax's backward wants of each row the sum of what comes from the loss, one number that is not zero. If
    that is in another column it stands in one more, beside the block.
    """
    count = logits.shape[1]
    scores = logits.new_empty(len(logits), count + 1)
    torch.sub(logits, largest, out=scores[:, :count])
    del logits
    scores[:, :count].add_(shift)
    scores[:, count].zero_()
    of_scores = torch.zeros_like(scores)
    column = torch.where((local >= 0) & (local < count), local, count).unsqueeze(1)
    of_scores.scatter_(1, column, of_class)
    of_logits = _aten._log_softmax_backward_data.default(of_scores, scores, 1, torch.float32)
    del of_scores, scores
    made: Tensor = of_logits[:, :count].contiguous()
    return made


@contextlib.contextmanager
def _by_one_thread() -> Iterator[None]:
    """Small products are not shared out: several threads would add up their elements in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _blocks(
    weight: Tensor, format: str, width: int, start: int, stop: int, block: int
) -> Iterator[tuple[int, int, Tensor]]:
    """Rows ``start`` to ``stop`` of a weight, some at a time: the first, the one after the last, float32."""
    room: Tensor | None = None
    for first in range(start, stop, block or max(stop - start, 1)):
        last = min(first + block, stop) if block else stop
        part = weight[first:last]
        if format:
            if room is None:
                room = torch.empty(last - first, width)  # the first is the largest
            part = dequantise_into(room[: last - first], part, format)
        yield first, last, part


def _whole(weight: Tensor, format: str, width: int) -> Tensor:
    """A weight as float32."""
    ((_, _, made),) = _blocks(weight, format, width, 0, len(weight), 0)
    return made


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, format: str, block: int) -> Tensor:
    """The logits of some rows, for all classes."""
    if not 0 < block < len(weight):
        return _product(hidden, weight, bias)
    made = hidden.new_empty(len(hidden), len(weight))
    with _by_one_thread():
        for start, stop, part in _blocks(weight, format, hidden.shape[1], 0, len(weight), block):
            found = made[:, start:stop]
            if bias is None:
                _aten.mm.out(hidden, part.t(), out=found)
            else:
                _aten.addmm.out(bias[start:stop], hidden, part.t(), out=found)
    return made


def _summed(
    hidden: Tensor,
    weight: Tensor,
    format: str,
    block: int,
    of_logits_in: Callable[[int, int, Tensor], Tensor],
    *,
    is_shared: bool,
) -> Tensor:
    """Products (T, H) of the logits' gradient with the weight, whose rows are added up block by block.

    ``of_logits_in`` gives that of the classes from the first to before the last, of the block's float32 rows.
    """
    made: Tensor | None = None
    count, shares = len(weight), torch.get_num_threads() if is_shared else 1
    with _by_one_thread():
        for share in range(shares):
            found: Tensor | None = None
            bounds = count * share // shares, count * (share + 1) // shares
            for first, last, part in _blocks(weight, format, hidden.shape[1], *bounds, block):
                given = of_logits_in(first, last, part)
                found = _aten.mm.default(given, part) if found is None else found.addmm_(given, part)
                del given
            if found is not None:
                made = found if made is None else made.add_(found)
    return torch.zeros_like(hidden) if made is None else made


def _product(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The logits of some rows and classes, by the call that plain PyTorch makes."""
    made: Tensor
    if bias is None:
        made = _aten.mm.default(hidden, weight.t())
    else:
        made = _aten.addmm.default(bias, hidden, weight.t())
    return made


def _stand_ins(classes: Tensor, ignored: int) -> Tensor:
    """For rows with one number each: class 0, or one that is left out."""
    return torch.zeros_like(classes).masked_fill_(classes == ignored, _LEFT_OUT)
