"""The kernels a plan may call: one table from operator name to torch callable, and nothing beside it.

The names are those of `poet.ir.operators`, which says what they may do; all else is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from poet.errors import PlanError, nearest
from poet.ir.graph import STORED_ROWS, STORED_ROWS_SGD, Call
from poet.ir.kernel_facts import PYTORCH
from poet.ir.operators import ATEN, OWN, RANDOM, UPDATES
from poet.runtime.kernels import composed, ctc, dequantised, logits, packed, recurrent, tables, updates
from poet.runtime.kernels.arguments import Kernel, aten, resolve
from poet.runtime.kernels.signatures import NUMBERS, looked_at

LIBRARY = PYTORCH
"""What profiles and plans call torch's kernels."""
ALIGNMENT_BYTES = 64
"""What torch's CPU allocator aligns to."""


def kernel(
    target: str, generator: torch.Generator | None = None, table: tables.StoredTable | None = None
) -> Kernel:
    """The torch callable behind an operator's name.

    Args:
        target: the name.
        generator: that a random operator draws from; ``None``: torch's default one. Nothing else is drawn
            from or set, so that other threads may draw meanwhile.
        table: in storage, whose rows an operator reads or updates there.

    Raises:
        PlanError: the name is not in the table, or this torch has no such operator.
    """
    if target in _DRAWN:
        return functools.partial(_DRAWN[target], torch.default_generator if generator is None else generator)
    if target in _STORED and table is not None:
        return functools.partial(_STORED[target], table)
    if target in OWN_KERNELS:
        return OWN_KERNELS[target]
    if target not in ATEN:
        known = [*ATEN, *OWN]
        raise PlanError(f"operator {target!r} is not one that poet runs{nearest(target, known)}")
    found = _WRAPPED.get(target) or aten(target)
    return found if target not in NUMBERS else functools.partial(looked_at, target, found)


def run(
    call: Call, tensor: Callable[[str], Tensor], hyperparameter: Callable[[str], float]
) -> tuple[Tensor | None, ...]:
    """Run one call: look the kernel up, resolve the arguments, return the outputs as a tuple."""
    given = [resolve(argument, tensor, hyperparameter) for argument in call.args]
    named = {key: resolve(argument, tensor, hyperparameter) for key, argument in call.kwargs}
    return outputs_of(kernel(call.target)(*given, **named))


def outputs_of(result: Any) -> tuple[Tensor | None, ...]:
    """A kernel's return value as a tuple with one place per output, ``None`` for what is no tensor."""
    if result is None:
        return ()
    if isinstance(result, Tensor):
        return (result,)
    return tuple(item if isinstance(item, Tensor) else None for item in result)


# --- operators that need a word more ----------------------------------------------------------


def _mkldnn_rnn_layer(*args: object) -> Any:
    """Gives the workspace that its backward needs only where gradients are enabled."""
    with torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)


# For these torch lists the places that are chosen, in memory that depends on how many there are.


def _embedding_bag_backward(gradient: Tensor, *args: Any) -> Any:
    """Of the largest in each bag: empty bags are taken as others, and give zeros to the first row."""
    # an end of the last bag is left out: torch would put numbers behind it into a bag that is not there
    indices, starts, bags, bag_size, largest, rows, by_frequency, mode = args[:8]
    if mode == _OF_LARGEST:
        is_empty = (bag_size == 0).unsqueeze(1)
        gradient, largest = gradient.masked_fill(is_empty, 0.0), largest.masked_fill(is_empty, 0)
        bag_size = torch.ones_like(bag_size)
    given = (indices, starts[: len(gradient)], bags, bag_size, largest, rows, by_frequency, mode, *args[8:])
    return torch.ops.aten._embedding_bag_backward.default(gradient, *given)


def _bag_weights_backward(gradient: Tensor, *args: Any) -> Any:
    table, indices, starts, *rest = args
    given = (table, indices, starts[: len(gradient)], *rest)
    return torch.ops.aten._embedding_bag_per_sample_weights_backward.default(gradient, *given)


def _index_put(source: Tensor, indices: Sequence[Any], values: Tensor, accumulate: bool = False) -> Any:
    """Of one mask, which puts the same values into each row that it chooses: a pass over all rows."""
    mask = indices[0]
    rest = source.dim() if mask is None else source.dim() - mask.dim()
    if len(indices) > 1 or accumulate or mask is None or mask.dtype != torch.bool or values.dim() > rest:
        return torch.ops.aten.index_put.default(source, indices, values, accumulate)
    chosen = mask.reshape(*mask.shape, *[1] * rest)
    return torch.where(chosen, values, source, out=torch.empty_like(source))


_OF_LARGEST = 2  # among torch's modes of bags
_WRAPPED: dict[str, Kernel] = {
    "aten.mkldnn_rnn_layer.default": _mkldnn_rnn_layer,
    "aten._embedding_bag_backward.default": _embedding_bag_backward,
    "aten._embedding_bag_per_sample_weights_backward.default": _bag_weights_backward,
    "aten.index_put.default": _index_put,
    "aten.div.Tensor_mode": composed.divided,
    "aten.div.Scalar_mode": composed.divided,
}


# --- operators of our own ---------------------------------------------------------------------


def _empty(shape: Sequence[int], strides: Sequence[int], element: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=element)


def _full(shape: Sequence[int], strides: Sequence[int], element: torch.dtype, fill: float) -> Tensor:
    return _empty(shape, strides, element).fill_(fill)


def _copy(source: Tensor, shape: Sequence[int], strides: Sequence[int], element: torch.dtype) -> Tensor:
    """``source``, broadcast and converted, in the given layout."""
    return _empty(shape, strides, element).copy_(source)


def _scatter(
    base: Tensor, source: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int
) -> Tensor:
    """A copy of ``base`` with the elements of one of its views replaced by ``source``."""
    result = base.clone()
    result.as_strided(shape, strides, offset).copy_(source)
    return result


def _assign(state: Tensor, source: Tensor) -> None:
    state.copy_(source)


def _clip_coefficient(norms: Sequence[Tensor], largest: float) -> Tensor:
    """What `torch.nn.utils.clip_grad_norm_` multiplies each gradient by, from the norm of each."""
    total = torch.linalg.vector_norm(torch.stack(list(norms)), 2.0)
    return torch.clamp(largest / (total + 1e-6), max=1.0)


def _callers_loss(
    outputs: Sequence[Tensor], gradients: Sequence[tuple[Sequence[int], Sequence[int], torch.dtype]]
) -> tuple[Tensor, ...]:
    """Memory for the gradients of ``outputs`` that a caller gives; the replay puts his in their place."""
    loss = torch.zeros(())
    return (loss, *(_empty(shape, strides, element) for shape, strides, element in gradients))


def _accumulate(total: Tensor, gradient: Tensor, is_first: float) -> None:
    """What autograd does with ``.grad``: the first backward pass sets it, later ones add to it in place."""
    if is_first:
        total.copy_(gradient)
    else:
        total.add_(gradient)


def _with_rng_state(
    _: torch.Generator, state: Tensor, target: str, /, *args: object, **kwargs: object
) -> Any:
    """Run a random operator from a generator state taken earlier, in a generator of its own."""
    if target not in RANDOM:
        raise PlanError(f"operator {target!r} is not random and needs no generator state")
    again = torch.Generator()
    again.set_state(state)
    return kernel(target, again)(*args, **kwargs)


_DRAWN: dict[str, Kernel] = {**composed.DRAWN, "poet.with_rng_state": _with_rng_state}
"""Every operator that is given a generator, before all else."""

_STORED: dict[str, Kernel] = {
    STORED_ROWS: tables.stored_rows,
    STORED_ROWS_SGD: tables.stored_rows_sgd,
}
"""Every operator that is given a table in storage, before all else."""

OWN_KERNELS: dict[str, Kernel] = {
    "poet.full": _full,
    "poet.copy": _copy,
    "poet.scatter": _scatter,
    "poet.assign": _assign,
    "poet.recurrent": recurrent.forward,
    "poet.recurrent_backward": recurrent.backward,
    "poet.lstm_without_gradients": recurrent.lstm_without_gradients,
    "poet.ctc_loss": ctc.forward,
    "poet.ctc_loss_backward": ctc.backward,
    **{target: vars(updates)[target.removeprefix("poet.")] for target in UPDATES},
    "poet.clip_coefficient": _clip_coefficient,
    "poet.callers_loss": _callers_loss,
    "poet.accumulate": _accumulate,
    "poet.look_up": tables.look_up,
    "poet.look_up_backward": tables.look_up_backward,
    **{name: functools.partial(own, tables.NO_STORAGE) for name, own in _STORED.items()},
    "poet.dequantise": dequantised.dequantise,
    "poet.logits_loss": logits.loss,
    "poet.logits_hidden_gradient": logits.hidden_gradient,
    "poet.logits_weight_gradient": functools.partial(logits.weight_gradient, 0),
    "poet.relu": packed.relu,
    "poet.relu_backward": packed.relu_backward,
    "poet.masked": packed.masked,
    "poet.norm_relu": composed.norm_relu,
    "poet.norm_relu_backward": composed.norm_relu_backward,
    "poet.padded_convolution": composed.convolution,
    "poet.padded_convolution_backward": composed.convolution_backward,
    "poet.max_pool": packed.max_pool,
    "poet.max_pool_backward": packed.max_pool_backward,
    **{
        name: functools.partial(row, torch.default_generator)
        for name, row in _DRAWN.items()
        if name.startswith("poet.")
    },
}
"""The kernels of our own operators, one per name in `poet.ir.operators.OWN`."""
