"""Operators that are others while a step is traced; outside of tracing nothing changes.

A recurrent layer is one op per direction, and not a dozen for every moment. Connectionist temporal
classification has tensors as wide as the targets' tensor, whatever is in it. For libraries of few operators,
recurrent layers, attention and bags of rows are products and sums instead (`small_operators`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from poet.runtime.kernels import ctc, recurrent

_ARE_WANTED: ContextVar[bool] = ContextVar("small operators", default=False)


@contextlib.contextmanager
def small_operators(*, are_wanted: bool = True) -> Iterator[None]:
    """Inside, steps are traced and made in plain PyTorch with them, where they ask for `as_wanted`."""
    token = _ARE_WANTED.set(are_wanted)
    try:
        yield
    finally:
        _ARE_WANTED.reset(token)


def are_wanted() -> bool:
    """Whether this is inside `small_operators`."""
    return _ARE_WANTED.get()


@contextlib.contextmanager
def as_wanted() -> Iterator[None]:
    """A model runs with them, if they are wanted.

    While one of its LSTMs runs, oneDNN is off for the whole process: other threads' convolutions and products
    may then have other bits.
    """
    if not are_wanted():
        yield
        return
    with sdpa_kernel(SDPBackend.MATH), _WithoutOneDnn(), _SideBySide():
        yield


class _WithoutOneDnn(TorchFunctionMode):
    """Inside, LSTMs are torch's own; this thread's convolutions and products stay what they are."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """``func``, an LSTM without oneDNN, a bag of rows as the rows and what becomes of them."""
        if func is torch.nn.functional.embedding_bag:
            made = _rows_of_bags(*args, **(kwargs or {}))
            if made is not None:
                return made
        if getattr(func, "__name__", "") != "lstm":
            return func(*args, **(kwargs or {}))
        switch: Any = torch.backends.mkldnn.set_flags  # `flags` sets more than it is asked
        before = switch(False)[0]
        try:
            return func(*args, **(kwargs or {}))
        finally:
            switch(before)


_NAMES = (
    "convolution max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d "
    "upsample_nearest2d upsample_bilinear2d reflection_pad2d replication_pad2d native_batch_norm "
    "native_group_norm mse_loss binary_cross_entropy _prelu_kernel"
)
_OTHERS = (
    "_native_batch_norm_legit constant_pad_nd empty_like flip index linalg_vector_norm pixel_shuffle "
    "pixel_unshuffle sort where"
)
_LAID_OUT = frozenset(
    [*(f"aten.{name}{end}" for name in _NAMES.split() for end in ("", "_backward"))]
    + [f"aten.{name}" for name in _OTHERS.split()]
)
"""Operators whose results lie in torch as their operands do, and whose kernels in C read and write only
what lies side by side; of ``empty_like`` the memory for the numbers of a dropout."""


class _SideBySide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, `_LAID_OUT` are given copies of operands that lie otherwise, as turned images do.

    A tensor is copied once for all that read it, as in the backward pass.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._copies: Any = WeakIdKeyDictionary()  # a version and a copy, by tensor

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """``func`` on what lies side by side."""
        if str(func.overloadpacket) in _LAID_OUT:
            args = pytree.tree_map_only(Tensor, self._copy, args)
        return func(*args, **(kwargs or {}))

    def _copy(self, tensor: Tensor) -> Tensor:
        if tensor.is_contiguous():
            return tensor
        version, copy = self._copies.get(tensor, (None, None))
        if copy is None or version != tensor._version:
            copy = tensor.contiguous()
            self._copies[tensor] = tensor._version, copy
        made: Tensor = copy
        return made


def _rows_of_bags(
    input: Tensor,  # as torch names it
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor | None:
    """Bags of one size, which are rows of ``input``, looked up and added; ``None``: it is something else.

    torch's operator for bags gives tensors of bookkeeping, which differ with the kernel that it takes.
    """
    del norm_type, include_last_offset
    is_plain = offsets is None and max_norm is None and not (scale_grad_by_freq or sparse)
    if not is_plain or padding_idx is not None or input.dim() != 2 or not input.shape[1]:
        return None
    rows = torch.nn.functional.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if mode == "max":
        return rows.amax(1)
    return rows.mean(1) if mode == "mean" else rows.sum(1)


FORWARD, BACKWARD, LSTM = "poet.recurrent", "poet.recurrent_backward", "poet.lstm_without_gradients"
CTC_FORWARD, CTC_BACKWARD = "poet.ctc_loss", "poet.ctc_loss_backward"
"""Our operators' names in a graph."""


def _types(kind: str, products: Tensor, initial: Sequence[Tensor], *rest: object) -> list[Tensor]:
    stacked = [products.new_empty((products.shape[0], *item.shape)) for item in initial]
    return [*stacked, *map(torch.empty_like, initial)]


def _gradient_types(*given: Any) -> list[Tensor]:
    """Those of `poet.runtime.kernels.recurrent.backward`, with the same arguments."""
    _, _, products, initial, weight, bias, *_, wanted = given
    groups = [[products], initial, [weight], [] if bias is None else [bias]]
    asked = [*wanted, False][: len(groups)]
    return [item.new_empty(item.shape) for group in itertools.compress(groups, asked) for item in group]


def _lstm_types(source: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, hidden, cell = rest[:6]
    outputs = source.new_empty(*source.shape[:2], hidden.shape[-1])
    return outputs, hidden.new_empty(hidden.shape), cell.new_empty(cell.shape)


_LIBRARY: Any = torch.library.Library("poet", "FRAGMENT")  # type: ignore[no-untyped-call]
for _name, _kernel, _made in (
    (FORWARD, recurrent.forward, _types),
    (BACKWARD, recurrent.backward, _gradient_types),
    (LSTM, recurrent.lstm_without_gradients, _lstm_types),
    (CTC_FORWARD, ctc.forward, ctc.forward_types),
    (CTC_BACKWARD, ctc.backward, ctc.backward_types),
):
    _own = _name.removeprefix("poet.")
    _LIBRARY.define(_own + torch.library.infer_schema(_kernel, mutates_args=()))
    _LIBRARY.impl(_own, _kernel, "CPU")
    torch.library.register_fake(f"poet::{_own}", _made, lib=_LIBRARY)


class _Recurrent(torch.autograd.Function):
    """The op with its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        reverse: bool,
        products: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *initial: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        found = torch.ops.poet.recurrent(kind, products, list(initial), weight, bias, reverse)
        ctx.kind, ctx.reverse, ctx.count = kind, reverse, len(initial)
        ctx.save_for_backward(products, weight, bias, *initial, *found[: len(initial)])
        cells = found[1 : len(initial)]
        ctx.mark_non_differentiable(*cells)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        products, weight, bias, *saved = ctx.saved_tensors
        initial, states = saved[: ctx.count], saved[ctx.count :]
        needs = ctx.needs_input_grad[2:]
        wanted = [needs[0], any(needs[3:]), needs[1], bias is not None and needs[2]]
        found = torch.ops.poet.recurrent_backward(
            ctx.kind, [gradients[0], *gradients[ctx.count :]], products, initial, weight, bias, states,
            ctx.reverse, wanted,
        )  # fmt: skip
        rest = iter(found)
        of_products = next(rest) if wanted[0] else None
        of_initial = [next(rest) if wanted[1] else None for _ in initial]
        of_weight = next(rest) if wanted[2] else None
        of_bias = next(rest) if wanted[3] else None
        return None, None, of_products, of_weight, of_bias, *of_initial


def layer(
    kind: str,
    x: Tensor,
    initial: Sequence[Tensor],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] = (None, None),
    *,
    reverse: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs (time, batch, size) and the last state of one direction over ``x`` (time, batch, features).

    ``weights`` and ``biases`` are those of the input and of the hidden state, in torch's order of gates.
    """
    products = F.linear(x, weights[0], biases[0])
    if (isinstance(x, FakeTensor) or x.is_meta) and not are_wanted():
        apply: Any = _Recurrent.apply
        found = apply(kind, reverse, products, weights[1], biases[1], *initial)
        return found[0], tuple(found[len(initial) :])
    states = recurrent.steps(kind, products, initial, weights[1], biases[1], reverse)
    return torch.stack([state[0] for state in states]), states[0 if reverse else -1]


_KINDS = frozenset({"gru", "rnn_tanh", "rnn_relu"})
_LENGTHS = ("input_lengths", "target_lengths")


class AsTraced(TorchFunctionMode):
    """Inside, ``nn.GRU`` and ``nn.RNN`` on padded batches are `layer` for each layer and direction.

    And ``torch.nn.functional.ctc_loss`` is given lengths as tensors; of numbers it makes real ones.
    """

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """``func`` itself, of that loss with other arguments, unless it is a recurrent layer."""
        given = kwargs or {}
        if func in (F.ctc_loss, torch.ctc_loss):
            args = (*args[:2], *map(_as_tensor, args[2:4]), *args[4:])
            given = {key: _as_tensor(item) if key in _LENGTHS else item for key, item in given.items()}
        kind = getattr(func, "__name__", "")
        is_layer = kind in _KINDS and not given and len(args) == 9 and isinstance(args[2], list | tuple)
        return _stack(kind, *args) if is_layer and not are_wanted() else func(*args, **given)


def _as_tensor(lengths: Tensor | Sequence[int]) -> Tensor:
    return lengths if isinstance(lengths, Tensor) else torch.tensor(lengths)


class OurKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, ``aten::_ctc_loss`` and its gradient are our own.

    And oneDNN's LSTM under ``torch.no_grad()`` is `LSTM`, in the trace as in plain PyTorch.
    """

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Ours for these, else ``func`` itself."""
        if func is torch.ops.aten.mkldnn_rnn_layer.default and not torch.is_grad_enabled():
            no_workspace = args[0].new_empty(0, dtype=torch.uint8)
            return *torch.ops.poet.lstm_without_gradients(*args), no_workspace
        return _OURS.get(func, func)(*args, **(kwargs or {}))


_OURS: dict[Any, Any] = {
    torch.ops.aten._ctc_loss.Tensor: torch.ops.poet.ctc_loss,
    torch.ops.aten._ctc_loss_backward.Tensor: torch.ops.poet.ctc_loss_backward,
}


def _stack(
    kind: str,
    x: Tensor,
    initial: Tensor,
    parameters: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor]:
    """All layers, as ``_rnn_impl_with_concat`` runs them."""
    x = x.transpose(0, 1) if batch_first else x
    directions, each = (2 if bidirectional else 1), (4 if has_biases else 2)
    groups = [parameters[start : start + each] for start in range(0, len(parameters), each)]
    states, last = initial.unbind(0), []
    for index in range(layers):
        outputs = []
        for direction in range(directions):
            place = index * directions + direction
            group = groups[place]
            biases = group[2:] if has_biases else (None, None)
            output, final = layer(kind, x, (states[place],), group[:2], biases, reverse=direction == 1)
            outputs.append(output)
            last.append(final[0])
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout and train and index < layers - 1:
            x = F.dropout(x, dropout, training=True)
    return x.transpose(0, 1) if batch_first else x, torch.stack(last, 0)
