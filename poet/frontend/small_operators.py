"""For libraries of kernels that have few operators: LSTMs, attention, bags of rows as products and sums.

torch has an LSTM of oneDNN's and attention in one kernel, which begin and end in layouts and tensors of their
own. Inside `small_operators` both fall apart into operators of everyday nets, and so do recurrent layers that
poet itself makes one op of, and bags of rows of a table. The bits are those of torch with these switched off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

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
    with sdpa_kernel(SDPBackend.MATH), _WithoutOneDnn():
        yield


class _WithoutOneDnn(TorchFunctionMode):
    """Inside, LSTMs are torch's own; this thread's convolutions and products stay what they are."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
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
