"""For libraries of kernels that have few operators: LSTMs and attention as products, sums and copies.

torch has an LSTM of oneDNN's and attention in one kernel, which begin and end in layouts and tensors of their
own. Inside `small_operators` both fall apart into operators of everyday nets, and so do recurrent layers that
poet itself makes one op of. The bits are those of torch with these two switched off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
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
        """``func``, an LSTM without oneDNN."""
        if getattr(func, "__name__", "") != "lstm":
            return func(*args, **(kwargs or {}))
        switch: Any = torch.backends.mkldnn.set_flags  # `flags` sets more than it is asked
        before = switch(False)[0]
        try:
            return func(*args, **(kwargs or {}))
        finally:
            switch(before)
