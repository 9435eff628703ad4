"""The kernels a plan may call: one table from operator name to torch callable, and nothing beside it.

The names are those of `poet.operators`, which says what they may do; whatever else a plan calls is refused.
"""

from __future__ import annotations

import functools
import mmap
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from poet.errors import ModelError, PlanError, nearest
from poet.graph import ITEM_BYTES, Argument, Blank, Call, Ref, Symbol, TensorType
from poet.operators import ATEN, OWN, RANDOM
from poet.runtime.kernels import ctc, logits, norms, packed, recurrent, tables, updates

LIBRARY = "pytorch-cpu"
"""What profiles and plans call torch's kernels."""
ALIGNMENT_BYTES = 64
"""What torch's CPU allocator aligns to."""

Kernel = Callable[..., Any]
"""Called with a call's arguments; returns a tensor, or a tuple or list of tensors and ``None``."""


def kernel(target: str, generator: torch.Generator | None = None) -> Kernel:
    """The torch callable behind an operator's name.

    Args:
        target: the name.
        generator: that a random operator draws from; ``None``: torch's default one. Nothing else is drawn
            from or set, so that other threads may draw meanwhile.

    Raises:
        PlanError: the name is not in the table, or this torch has no such operator.
    """
    if target in _DRAWN:
        return functools.partial(_DRAWN[target], torch.default_generator if generator is None else generator)
    if target in OWN_KERNELS:
        return OWN_KERNELS[target]
    if target in _WRAPPED:
        return _WRAPPED[target]
    if target not in ATEN:
        known = [*ATEN, *OWN]
        raise PlanError(f"operator {target!r} is not one that poet runs{nearest(target, known)}")
    return _aten(target)


def _aten(target: str) -> Kernel:
    """The ATen operator of that name, without Python in between."""
    _, name, overload = target.split(".")
    try:
        found: Kernel = getattr(getattr(torch.ops.aten, name), overload)._op
    except AttributeError:
        raise PlanError(f"operator {target!r} does not exist in torch {torch.__version__}") from None
    return found


# --- arguments --------------------------------------------------------------------------------


def dtype(name: str) -> torch.dtype:
    """Torch's element type of that name.

    Raises:
        PlanError: a graph has no such element type.
    """
    if name not in ITEM_BYTES:
        raise PlanError(f"element type {name!r} is not one of {', '.join(ITEM_BYTES)}")
    found: torch.dtype = getattr(torch, name)
    return found


def tensor_type(tensor: Tensor, where: str) -> TensorType:
    """The type of a strided tensor.

    Raises:
        ModelError: it is sparse, quantised, complex or of another element type without a row.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or name not in ITEM_BYTES:
        raise ModelError(
            f"{where} is a {name} tensor with layout {str(tensor.layout).removeprefix('torch.')}; "
            f"supported are dense tensors of {', '.join(ITEM_BYTES)}"
        )
    return TensorType(name, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


def same_layout(one: TensorType, other: TensorType) -> bool:
    """Whether two types lay the same elements out alike, wherever they begin.

    The stride of a dimension of one element is no matter.
    """
    return (one.dtype, one.shape) == (other.dtype, other.shape) and all(
        size == 1 or mine == theirs
        for size, mine, theirs in zip(one.shape, one.strides, other.strides, strict=True)
    )


_SYMBOLS: dict[tuple[str, str], object] = {
    ("layout", "strided"): torch.strided,
    ("device", "cpu"): torch.device("cpu"),
    **{
        ("memory_format", name): getattr(torch, name)
        for name in ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
    },
}


def constant(argument: Argument) -> object:
    """What torch is given for an argument that is neither a value nor a hyperparameter.

    Raises:
        PlanError: a symbol that torch does not know.
    """
    if isinstance(argument, Blank):
        return blank(argument.type)
    if isinstance(argument, Symbol):
        if argument.kind == "dtype":
            return dtype(argument.name)
        if (argument.kind, argument.name) not in _SYMBOLS:
            raise PlanError(f"{argument.kind} {argument.name!r} is not one that poet runs")
        return _SYMBOLS[argument.kind, argument.name]
    return argument


def resolve(
    argument: Argument, tensor: Callable[[str], Tensor], hyperparameter: Callable[[str], float]
) -> object:
    """What torch is given for ``argument``; tuples become lists of what their items become."""
    if isinstance(argument, Ref):
        return tensor(argument.value)
    if isinstance(argument, Symbol) and argument.kind == "hyperparameter":
        return hyperparameter(argument.name)
    if isinstance(argument, tuple):
        return [resolve(item, tensor, hyperparameter) for item in argument]
    return constant(argument)


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


_blanks: list[Tensor] = []  # the largest mapping so far
_blanks_lock = threading.Lock()


def _untouched_pages(size_bytes: int) -> mmap.mmap:
    try:
        if sys.platform == "win32":
            return mmap.mmap(-1, size_bytes, access=mmap.ACCESS_READ)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return mmap.mmap(-1, size_bytes, flags=flags, prot=mmap.PROT_READ)
    except OSError as error:
        raise PlanError(f"no room in the address space for a tensor of {size_bytes} bytes") from error


def blank(type_: TensorType) -> Tensor:
    """A tensor of this type that takes no memory: a view of pages that are mapped and never touched.

    Its bytes cannot be written; reading them gives zeros.

    Raises:
        PlanError: the address space is limited and has no room for it.
    """
    size_bytes = max(type_.extent_bytes, 1)
    with _blanks_lock:
        if not _blanks or _blanks[0].numel() < size_bytes:
            pages = _untouched_pages(size_bytes)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given buffer is not writable")
                _blanks[:] = [torch.frombuffer(pages, dtype=torch.uint8)]
        largest = _blanks[0]
    item_bytes = ITEM_BYTES[type_.dtype]
    whole = largest[: largest.numel() // item_bytes * item_bytes].view(dtype(type_.dtype))
    return whole.as_strided(type_.shape, type_.strides, type_.offset)


# --- operators that need a word more ----------------------------------------------------------


def _mkldnn_rnn_layer(*args: object) -> Any:
    """Gives the workspace that its backward needs only where gradients are enabled."""
    with torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)


_WRAPPED: dict[str, Kernel] = {"aten.mkldnn_rnn_layer.default": _mkldnn_rnn_layer}


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


# --- operators that draw: each is given the generator, and does with it what torch does with its own ----


def _accumulate(total: Tensor, gradient: Tensor, is_first: float) -> None:
    """What autograd does with ``.grad``: the first backward pass sets it, later ones add to it in place."""
    if is_first:
        total.copy_(gradient)
    else:
        total.add_(gradient)


def _native_dropout(
    generator: torch.Generator, source: Tensor, p: float, train: bool | None
) -> tuple[Tensor, Tensor]:
    """`torch.native_dropout`, which takes no generator, by the steps of its CPU kernel."""
    if source.numel() == 0 or train is False:
        return _aten("aten.native_dropout.default")(source, p, train)  # type: ignore[no-any-return]
    kept_share = 1.0 - p
    mask = torch.empty_like(source, dtype=torch.bool)
    mask.bernoulli_(kept_share, generator=generator)
    scale = 0.0 if kept_share == 0.0 else 1.0 / kept_share
    scaled = _aten("aten.mul_.Scalar")(source.mul(mask), scale)  # a tensor's method rounds bfloat16 otherwise
    return scaled, mask


def _given(target: str, overload: str | None = None) -> Kernel:
    """An ATen operator that takes a generator, under this or another overload's name."""
    name = target if overload is None else f"{target.rpartition('.')[0]}.{overload}"

    def drawn(generator: torch.Generator, *args: object, **kwargs: object) -> Any:
        return _aten(name)(*args, **kwargs, generator=generator)

    return drawn


def _empty_like(source: Tensor, **kwargs: object) -> Tensor:
    return _aten("aten.empty_like.default")(source, **kwargs)  # type: ignore[no-any-return]


def _rand_like(generator: torch.Generator, source: Tensor, **kwargs: object) -> Tensor:
    return _empty_like(source, **kwargs).uniform_(generator=generator)


def _randn_like(generator: torch.Generator, source: Tensor, **kwargs: object) -> Tensor:
    return _empty_like(source, **kwargs).normal_(generator=generator)


def _randint_like(generator: torch.Generator, source: Tensor, *bounds: int, **kwargs: object) -> Tensor:
    low, high = bounds if len(bounds) == 2 else (0, *bounds)
    return _empty_like(source, **kwargs).random_(low, high, generator=generator)


def _bernoulli(
    generator: torch.Generator,
    shape: Sequence[int],
    strides: Sequence[int],
    element: torch.dtype,
    p: float,
) -> Tensor:
    return _empty(shape, strides, element).bernoulli_(p, generator=generator)


def _uniform(
    generator: torch.Generator,
    shape: Sequence[int],
    strides: Sequence[int],
    element: torch.dtype,
    low: float,
    high: float,
) -> Tensor:
    return _empty(shape, strides, element).uniform_(low, high, generator=generator)


def _normal(
    generator: torch.Generator,
    shape: Sequence[int],
    strides: Sequence[int],
    element: torch.dtype,
    mean: float,
    std: float,
) -> Tensor:
    return _empty(shape, strides, element).normal_(mean, std, generator=generator)


def _rng_state(generator: torch.Generator) -> Tensor:
    return generator.get_state()


def _with_rng_state(
    _: torch.Generator, state: Tensor, target: str, /, *args: object, **kwargs: object
) -> Any:
    """Run a random operator from a generator state taken earlier, in a generator of its own."""
    if target not in RANDOM:
        raise PlanError(f"operator {target!r} is not random and needs no generator state")
    again = torch.Generator()
    again.set_state(state)
    return kernel(target, again)(*args, **kwargs)


_DRAWN: dict[str, Kernel] = {
    **{f"aten.bernoulli.{name}": _given(f"aten.bernoulli.{name}") for name in ("default", "p", "Tensor")},
    "aten.multinomial.default": _given("aten.multinomial.default"),
    "aten.native_dropout.default": _native_dropout,
    **{
        f"aten.normal.{name}": _given(f"aten.normal.{name}")
        for name in ("Tensor_Tensor", "Tensor_float", "float_Tensor")
    },
    "aten.rand.default": _given("aten.rand.default", "generator"),
    "aten.rand_like.default": _rand_like,
    "aten.randint.default": _given("aten.randint.default", "generator"),
    "aten.randint.low": _given("aten.randint.low", "low_generator"),
    "aten.randint_like.default": _randint_like,
    "aten.randint_like.low_dtype": _randint_like,
    "aten.randn.default": _given("aten.randn.default", "generator"),
    "aten.randn_like.default": _randn_like,
    "aten.randperm.default": _given("aten.randperm.default", "generator"),
    "poet.bernoulli": _bernoulli,
    "poet.bernoulli_bits": packed.bernoulli,
    "poet.uniform": _uniform,
    "poet.normal": _normal,
    "poet.rng_state": _rng_state,
    "poet.with_rng_state": _with_rng_state,
}
"""Every operator of `RANDOM`, and those that keep a generator's state; first comes the generator."""

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
    "poet.sgd": updates.sgd,
    "poet.momentum": updates.momentum,
    "poet.adamw": updates.adamw,
    "poet.adam": updates.adam,
    "poet.adamw_amsgrad": updates.adamw_amsgrad,
    "poet.adam_amsgrad": updates.adam_amsgrad,
    "poet.rmsprop": updates.rmsprop,
    "poet.adagrad": updates.adagrad,
    "poet.lion": updates.lion,
    "poet.clip_coefficient": _clip_coefficient,
    "poet.callers_loss": _callers_loss,
    "poet.accumulate": _accumulate,
    "poet.look_up": tables.look_up,
    "poet.look_up_backward": tables.look_up_backward,
    "poet.logits_loss": logits.loss,
    "poet.logits_hidden_gradient": logits.hidden_gradient,
    "poet.logits_weight_gradient": functools.partial(logits.weight_gradient, 0),
    "poet.relu": packed.relu,
    "poet.relu_backward": packed.relu_backward,
    "poet.masked": packed.masked,
    "poet.norm_relu": norms.norm_relu,
    "poet.norm_relu_backward": norms.norm_relu_backward,
    "poet.max_pool": packed.max_pool,
    "poet.max_pool_backward": packed.max_pool_backward,
    **{
        name: functools.partial(row, torch.default_generator)
        for name, row in _DRAWN.items()
        if name.startswith("poet.")
    },
}
"""The kernels of our own operators, one per name in `poet.operators.OWN`."""
