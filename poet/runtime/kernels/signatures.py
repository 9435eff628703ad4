"""Signatures of the kernels that trust their caller: shapes, element types, whole numbers.

Autograd always calls them right, so torch does not look; a plan file of somebody else may not, and then they
read or write memory outside of their tensors. `poet.runtime.kernels.guards` holds a plan's calls against them
when it is opened; numbers in tensors that a kernel trusts are looked at in each run (`NUMBERS`).
Kernels without a row check what they are given: tests/runtime/test_trusting_kernels.py calls all of them
wrongly.

A signature has a word for each argument, in order:

- ``f[N,C,*S]``: a tensor of floats, of the element type of all other ``f`` of the call, with these sizes. A
  name is one size wherever it stands, ``*S`` the same sizes; ``4*h`` is four times ``h``, ``3`` just that.
- ``f{N,C}``: likewise, with as many elements as a tensor of these sizes has; ``f{}``: with one.
- ``p`` for ``f``: of that element type, or float32 where that has 16 bits. ``i``: int64; ``j``: int64 or
  int32; ``u``: uint8; ``x``: any.
- ``?`` behind it: or nothing. ``!``: it is contiguous; ``~``: in some order of its dimensions; ``'``: in its
  last one. ``0``: any of its sizes may be 0, not just the first.
- ``(*S)``: a list of sizes; ``C``: a whole number; ``3``, ``False``: just that; ``_``: anything but a tensor.
- ``|``: or the signature that follows.

What a call leaves out is torch's default. What is given beyond these words is no tensor.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from poet.ir.calls import Argument, TensorType
from poet.ir.op_spec import full_name
from poet.ir.operators import ATEN
from poet.runtime.kernels.arguments import operator

Given = Argument | TensorType
Sizes = dict[str, Any]
"""What names in a signature stand for: a size, or a tuple of sizes."""
Asked = tuple[npt.NDArray[Any], float, float]
"""Numbers, the least that each may be, and one too many."""

_MOST = float(np.finfo(np.float64).max)


class MadeBy(NamedTuple):
    """An argument whose content a kernel trusts, and what alone makes it.

    Attributes:
        place: of the argument.
        target, output: the operator, and which of its outputs it is.
        alike: pairs of places, of that operator and of this one, of arguments of one shape.
    """

    place: int
    target: str
    output: int
    alike: tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=4096, typed=True)
def signature_missed(target: str, /, *args: Given, **named: Given) -> str | None:
    """The signature that a call, with types for tensors, should have had; ``None``: it may run."""
    signature = SIGNATURES[target]
    given = bound(target, args, named)
    is_met = given and any(_Holding(target, words, given).fits() for words in _parsed(signature))
    return None if is_met else signature


def bound(target: str, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """What a call gives in the order of its operator, with defaults; ``None``: it takes no such thing."""
    if target not in ATEN:
        return None if named else tuple(args)
    rest = operator(target)._schema.arguments[len(args) :]
    if named.keys() - {item.name for item in rest}:
        return None
    return (*args, *(named.get(item.name, item.default_value) for item in rest))


_WORD = re.compile(r"([fpijux]?)([\[{(]?)([\w*,]*)[\]})]?([?!~'0]*)")
_FLOATS = ("float32", "float64", "bfloat16", "float16")
_LIES: dict[str, Callable[[TensorType], bool]] = {
    "!": lambda type_: type_.is_contiguous,
    "~": lambda type_: type_.is_dense,
    "'": lambda type_: type_.shape[-1:] == (1,) or type_.strides[-1:] == (1,),
}
_KINDS = {"i": ("int64",), "j": ("int64", "int32"), "u": ("uint8",)}


class _Word(NamedTuple):
    """A word of a signature; ``opening`` is the bracket before ``sizes``, empty for a whole number."""

    kind: str
    opening: str
    sizes: tuple[str, ...]
    flags: str


@functools.cache
def _parsed(signature: str) -> tuple[tuple[_Word, ...], ...]:
    return tuple(tuple(map(_word, words.split())) for words in signature.split("|"))


def _word(text: str) -> _Word:
    found = _WORD.fullmatch(text)
    assert found is not None, text
    kind, opening, sizes, flags = found.groups()
    if not opening:
        return _Word("", "", (kind + sizes + flags,), "")
    return _Word(kind, opening, tuple(item for item in sizes.split(",") if item), flags)


class _Holding:
    """A call beside one signature; ``sizes`` has what the names stand for, as far as it was read."""

    def __init__(self, target: str, words: Sequence[_Word], args: Sequence[Given]) -> None:
        self.target, self.sizes, self.element, self.args = target, Sizes(), "", args
        self.pairs = list(itertools.zip_longest(words, args[: len(words)]))
        self.rest = args[len(words) :]

    def fits(self) -> bool:
        """Whole numbers first, which tensors are held against; last what counts elements."""
        for opening in ("", "(", "[", "{"):
            for word, argument in self.pairs:
                if word.opening == opening and not self.fits_word(word, argument):
                    return False
        also = ALSO.get(self.target)
        tensors_left = any(isinstance(item, TensorType) for item in self.rest)
        return not tensors_left and (also is None or also(self.sizes, self.args))

    def fits_word(self, word: _Word, type_: Given) -> bool:
        if word.opening in ("", "("):
            if isinstance(type_, TensorType) or word.sizes == ("_",):
                return not isinstance(type_, TensorType)
            given = type_ if word.opening else (type_,)
            return isinstance(given, tuple) and self.fits_sizes(word.sizes, given)
        if not isinstance(type_, TensorType):
            return type_ is None and "?" in word.flags
        if not self.fits_kind(word.kind, type_.dtype) or (0 in type_.shape[1:] and "0" not in word.flags):
            return False
        if not all(_LIES[flag](type_) for flag in word.flags if flag in _LIES):
            return False
        if word.opening == "{":
            return type_.elements == math.prod(int(np.prod(self.sizes[name])) for name in word.sizes)
        return self.fits_sizes(word.sizes, type_.shape)

    def fits_kind(self, kind: str, dtype: str) -> bool:
        if kind not in ("f", "p"):
            return dtype in _KINDS.get(kind, (dtype,))
        if kind == "p" and dtype == "float32" and self.element != "float64":
            return True
        self.element = self.element or dtype
        return dtype == self.element and dtype in _FLOATS

    def fits_sizes(self, items: Sequence[str], given: Sequence[object]) -> bool:
        """Whether each is what its name stands for; a name that stands for nothing yet stands for it now."""
        expected: list[object] = []
        for item in items:
            if not item.startswith("*"):
                expected.append(item)
                continue
            if item[1:] not in self.sizes:
                others = (
                    len(self.sizes[other[1:]]) if other[0] == "*" else 1 for other in items if other != item
                )
                count, at = len(given) - sum(others), len(expected)
                if count < 0:
                    return False
                self.sizes[item[1:]] = tuple(given[at : at + count])
            expected += self.sizes[item[1:]]
        return len(expected) == len(given) and all(map(self.fits_size, expected, given))

    def fits_size(self, expected: object, found: object) -> bool:
        if isinstance(expected, str):
            factor, _, name = expected.rpartition("*")
            if name in ("True", "False"):
                return found is (name == "True")
            if name.isdecimal():
                expected = int(name)
            elif factor:
                expected = int(factor) * self.sizes[name]
            else:
                expected = self.sizes.setdefault(name, found)
        return type(found) is int and found == expected


def _resampled(sizes: Sizes, args: Sequence[Any]) -> bool:
    """Each scale is that between its sizes, as far as these were rounded."""
    scales = [item for item in args[2:] if not isinstance(item, bool | tuple)]
    given = zip(sizes["S"], sizes["O"], scales, strict=False)
    return all(
        scale is None or (isinstance(scale, int | float) and scale > 0 and abs(size * scale - made) <= 1)
        for size, made, scale in given
    )


def _convolved(sizes: Sizes, args: Sequence[Any]) -> bool:
    """The gradient is as large as the result of such a convolution of the source, and of its own padding."""
    rank, transposed = len(sizes["K"]), args[7]
    lists = [sizes[name] for name in ("s", "p", "d", "e")]
    pads = sizes.get("z", (0, 0) * rank)
    if not len(sizes["Q"]) == len(sizes["R"]) == rank == len(pads) / 2 or {*map(len, lists)} - {1, rank}:
        return False
    for dim, (made, whole, edge) in enumerate(zip(sizes["Q"], sizes["R"], sizes["K"], strict=True)):
        step, pad, apart, more = (item[dim if len(item) > 1 else 0] for item in lists)
        whole += sum(pads[2 * (rank - 1 - dim) :][:2])
        if step < 1 or pad < 0 or apart < 1 or more < 0:
            return False
        room = apart * (edge - 1) + 1 - 2 * pad
        if made != ((whole - 1) * step + room + more if transposed else (whole - room) // step + 1):
            return False
    return True


def _unfolded(sizes: Sizes, args: Sequence[Any]) -> bool:
    """The gradient has as many windows as there are along one dimension, and their length last."""
    whole, dim, length, step = (sizes[name] for name in "Sdns")
    if not whole:  # of one number, which is one window
        return dim in (0, -1) and length <= 1 <= step and bool(sizes["G"] == (length,))
    if not -len(whole) <= dim < len(whole) or step < 1 or not 0 <= length <= whole[dim]:
        return False
    counts = list(whole)
    counts[dim] = (whole[dim] - length) // step + 1
    return bool(sizes["G"] == (*counts, length))


def _apart(sizes: Sizes, args: Sequence[Any]) -> bool:
    """Distances between each row and each other one, of batches that are broadcast together."""
    return bool(sizes["G"] == (*_broadcast(sizes["A"], sizes["B"]), sizes["P"], sizes["Q"]))


def _masked(sizes: Sizes, args: Sequence[Any]) -> bool:
    """A mask of attention has a number for each score, or for several; heads share those of keys evenly."""
    scores = tuple(sizes[name] for name in "NHls")
    is_even = sizes["H"] % max(sizes["K"], 1) == 0
    return is_even and ("M" not in sizes or _broadcast(scores, sizes["M"]) == scores)


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """What both are broadcast to; some other shape where they cannot be."""
    pairs = itertools.zip_longest(reversed(one), reversed(other), fillvalue=1)
    return tuple(b if a == 1 else a if b in (1, a) else -1 for a, b in pairs)[::-1]


def _grouped(sizes: Sizes, args: Sequence[Any]) -> bool:
    """A gradient of what lies channel by channel is asked for: torch writes it in any case."""
    mask, source = args[9], torch.empty_strided(args[1].shape, args[1].strides, device="meta")
    is_asked = isinstance(mask, tuple) and mask[:1] == (True,)
    return is_asked or bool(suggest_memory_format(source) == torch.contiguous_format)


def _some_bags(sizes: Sizes, args: Sequence[Any]) -> bool:
    """There are bags; where the last one's end is given, that is no bag."""
    return bool(sizes["O"] - (args[7] is True) > 0)


def _bagged(sizes: Sizes, args: Sequence[Any]) -> bool:
    """Each number of a row says in which bag it is, or none does; of a largest one each element says."""
    of_largest = sizes.get("m") != 2 or sizes["M"] == (sizes["B"], sizes["D"])
    return math.prod(sizes["X"]) in (0, sizes["I"]) and of_largest and sizes["O"] - sizes["B"] in (0, 1)


def _resamplings(*, backward: bool) -> list[str]:
    found = (target.split(".")[1] for target in sorted(ATEN) if "upsample" in target)
    return [name for name in found if name.endswith("_backward") == backward]


_IGNORED = "I f{}"  # the class that is left out, and the weight of all others


def _reduced(scores_and_classes: str) -> str:
    return " | ".join(f"f{{}} {scores_and_classes} f[C]? {how} {_IGNORED}" for how in (1, 2))


def _either(rest: str) -> str:
    """Back through a convolution, or through a transposed one."""
    ways = (("f[O,c,*K]", False), ("f[I,c,*K]", True))
    return " | ".join(
        f"f[N,O,*Q] f[N,I,*R] {weight} _ (*s) (*p) (*d) {way} (*e) {rest}" for weight, way in ways
    )


_NORM = "f[N,C,*S] p[C]? p[C]?"
_NORM_BACK = "f[N,C,*S] f[N,C,*S] p[C]?"


def _lstm(rest: str) -> str:
    """With biases, or with something in their places."""
    layer = f"f[T,N,I]! f[4*h,I] f[4*h,h] f[4*h] f[4*h] f[N,h]! f[N,h]! {rest}"
    return f"{layer} | {layer.replace('f[4*h] f[4*h]', 'x[*A] x[*B]')}".replace("%", "True", 1).replace(
        "%", "False"
    )


_ROWS = {
    "f[*S]0 f[*S]0": "gelu_backward _log_softmax_backward_data _softmax_backward_data",
    "f[*B,C,h,w] f[*B,C,H,W]": "_adaptive_avg_pool2d_backward avg_pool2d_backward",
    "f[*B,C,d,h,w] f[*B,C,D,H,W]": "_adaptive_avg_pool3d_backward avg_pool3d_backward",
    "f[*B,C,w] f[*B,C,W] (m,n)": "reflection_pad1d_backward replication_pad1d_backward",
    "f[*B,C,h,w] f[*B,C,H,W] (m,n,o,p)": "reflection_pad2d_backward replication_pad2d_backward",
    "f[*B,C,d,h,w] f[*B,C,D,H,W] (m,n,o,p,q,r)": "reflection_pad3d_backward replication_pad3d_backward",
    "f[*B,C,h,w] f[*B,C,H,W] i[*B,C,h,w]": "adaptive_max_pool2d_backward",
    "f[*B,C,d,h,w] f[*B,C,D,H,W] i[*B,C,d,h,w]": "adaptive_max_pool3d_backward",
    "f[*B,C,h,w] f[*B,C,H,W] _ _ _ _ _ i[*B,C,h,w]": "max_pool2d_with_indices_backward",
    "f[*B,C,d,h,w] f[*B,C,D,H,W] _ _ _ _ _ i[*B,C,d,h,w]": "max_pool3d_with_indices_backward",
    _either("G"): "convolution_backward",
    _either("G _ (*z)"): "poet.padded_convolution_backward",
    f"f[N] f[N,C] x[N] f[C]? 0 {_IGNORED} | f{{}} f[C] x{{}} f[C]? 0 {_IGNORED} | "
    f"{_reduced('f[N,C] x[N]')} | {_reduced('f[C] x{}')}":
        "nll_loss_backward",
    f"f[N,h,w] f[N,C,h,w] i[N,h,w] f[C]? 0 {_IGNORED} | {_reduced('f[N,C,h,w] i[N,h,w]')}":
        "nll_loss2d_backward",
    "f{} f[*S,C] i[*T] _ _ f[C]? | f{} f[] i[*T] | f[N] f[N,C] i[N] _ _ f[C]? 0":
        "multi_margin_loss_backward",
    "f[N,C,h,w] f[N,C,H,W] f[N,h,w,2]": "grid_sampler_2d_backward",
    "f[N,C,d,h,w] f[N,C,D,H,W] f[N,d,h,w,3]": "grid_sampler_3d_backward",
    "x[N,C,*S] (*O)": " ".join(_resamplings(backward=False)),
    "f[N,C,*O] (*O) (N,C,*S)": " ".join(_resamplings(backward=True)),
    "f[*I,D] j[*I]": "embedding_dense_backward",
    "f[V,D] j[I]! j[O]! _ m False f[I]?": "_embedding_bag _embedding_bag_forward_only",
    "f[B,D] j[I]! j[O]! j[*X]0! j[B]! j[*M]0! V _ m False f[I]?": "_embedding_bag_backward",
    "f[B,D] f[V,D] j[I]! j[O]! j[*X]0!": "_embedding_bag_per_sample_weights_backward",
    f"{_NORM} p[C]? p[C]? True | {_NORM} p[C] p[C] False": "native_batch_norm poet.norm_relu",
    f"{_NORM} True": "_native_batch_norm_legit.no_stats",
    f"{_NORM_BACK} x[*A]?0 x[*B]?0 p[C] p[C] True | {_NORM_BACK} p[C] p[C] x[*A]?0 x[*B]?0 False":
        "native_batch_norm_backward",
    f"{_NORM_BACK} p[C]? p[C] p[C] True": "poet.norm_relu_backward",
    "f[N,C,*S]~ p[C]?! p[C]?! N C": "native_group_norm",
    "f[N,C,*S]~ f[N,C,*S]~ p[N,G]! p[N,G]! p[C]?! N C _ G": "native_group_norm_backward",
    "f[*L,*K] f[*L,*K] (*K) p{L}! p{L}! p[*K]? p[*K]?": "native_layer_norm_backward",
    "f[*L,*K] f[*L,*K] (*K) p{L}! p[*K]?": "_fused_rms_norm_backward",
    "f[O,*R]! f{O}! 0 | f[*R,O]! f{O}! d": "_weight_norm_interface",
    "f[O,*R]! f[O,*R]! f{O}! p{O}! 0 | f[*R,O]! f[*R,O]! f{O}! p{O}! d": "_weight_norm_interface_backward",
    "f[N,H,l,D]' f[N,K,s,D]' f[N,K,s,D]' _ _ x[*M]?": "_scaled_dot_product_flash_attention_for_cpu",
    "f[N,H,l,D]' f[N,H,l,D]' f[N,K,s,D]' f[N,K,s,D]' f[N,H,l,D]' p[N,H,l] _ _ x[*M]?":
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    _lstm("_ _ 2 h _ %"): "mkldnn_rnn_layer poet.lstm_without_gradients",
    _lstm("f[T,N,h]! f[N,h]! f[N,h]! f[T,N,h]? f[N,h]? f[N,h]? _ 2 h _ % _ _ _ _ u[W]!"):
        "mkldnn_rnn_layer_backward",
    "f[*G]0 f[*A,P,R]0 f[*B,Q,R]0 _ f[*G]0": "_cdist_backward",
    "f[*S]! 1 | f[r,*S]! r": "poet.relu",
    "x[*S] u[1,b]! | x[r,*S] u[r,b]!": "poet.relu_backward poet.masked",
    "f[N,C,H,W] (a,b) (c,d) (e,f) (g,i)": "poet.max_pool",
    "f[N,C,h,w] f[N,C,H,W] (a,b) (c,d) (e,f) (g,i) _ u[N,C,h,w]": "poet.max_pool_backward",
    "f[*G] (*S) d n s": "unfold_backward",
}  # fmt: skip
SIGNATURES = {full_name(name): signature for signature, names in _ROWS.items() for name in names.split()}
"""By operator: the signature of its calls."""

ALSO: dict[str, Callable[[Sizes, Sequence[Any]], bool]] = {
    **{target: _resampled for target in ATEN if "upsample" in target},
    "aten.convolution_backward.default": _convolved,
    "poet.padded_convolution_backward": _convolved,
    "aten.unfold_backward.default": _unfolded,
    "aten._cdist_backward.default": _apart,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _masked,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": _masked,
    "aten.native_group_norm_backward.default": _grouped,
    "aten._embedding_bag.default": _some_bags,
    "aten._embedding_bag_forward_only.default": _some_bags,
    "aten._embedding_bag_backward.default": _bagged,
    "aten._embedding_bag_per_sample_weights_backward.default": _bagged,
}
"""By operator: whether the arguments fit together in other ways as well."""

_POOLS = {f"max_pool{n}d_with_indices": 7 for n in (2, 3)} | {f"adaptive_max_pool{n}d": 2 for n in (2, 3)}
MADE_BY = {
    **{
        full_name(f"{name}_backward"): MadeBy(place, full_name(name), 1, ((0, 1),))
        for name, place in _POOLS.items()
    },
    full_name("mkldnn_rnn_layer_backward"): MadeBy(22, full_name("mkldnn_rnn_layer"), 3, ((0, 0), (1, 1))),
}
"""By operator: the argument whose content it trusts."""


def _bags(rows: int, numbers: Tensor, starts: Tensor) -> Iterator[Asked]:
    """Numbers of rows, and where each bag of them begins: the first at 0, others not before the last."""
    yield numbers.numpy(), 0, rows
    yield starts.numpy()[:1], 0, 1
    yield starts.numpy(), 0, len(numbers) + 1
    yield np.diff(starts.numpy()), 0, len(numbers) + 1


def _made_bags(
    rows: int, bags: Tensor, numbers: Tensor, starts: Tensor, of_numbers: Tensor
) -> Iterator[Asked]:
    """Likewise in the backward pass, where the bag of each number is given or counted from the offsets."""
    yield from _bags(rows, numbers, starts)
    yield of_numbers.numpy(), 0, len(bags)


def _places(
    gradient: Tensor, source: Tensor, grid: Tensor, mode: int, padding: int, *_: object
) -> Iterator[Asked]:
    """A grid's numbers, which are clipped or reflected to places in the source: only finite ones can be."""
    if padding:
        is_short = grid.dtype == torch.bfloat16
        bits = grid.view(torch.int16).numpy().astype(np.uint32) << 16 if is_short else np.empty(0)
        yield bits.view(np.float32) if is_short else grid.numpy(), -_MOST, np.inf


def _classes(gradient: Tensor, scores: Tensor, classes: Tensor, *rest: Any) -> Iterator[Asked]:
    """Classes, but for the one that is left out."""
    found = classes.numpy()
    yield found[found != rest[2]], 0, scores.shape[1 if scores.dim() > 1 else 0]


NUMBERS: dict[str, Callable[..., Iterator[Asked]]] = {
    "aten.embedding_dense_backward.default": lambda gradient, numbers, rows, *_: iter(
        [(numbers.numpy(), 0, rows)]
    ),
    "aten.grid_sampler_2d_backward.default": _places,
    "aten.nll_loss_backward.default": _classes,
    "aten.nll_loss2d_backward.default": _classes,
    "aten._embedding_bag.default": lambda table, *given: _bags(len(table), *given[:2]),
    "aten._embedding_bag_forward_only.default": lambda table, *given: _bags(len(table), *given[:2]),
    "aten._embedding_bag_backward.default": lambda bags, *given: itertools.chain(
        _made_bags(given[5], bags, *given[:3]), [(given[4].numpy(), -1, given[5])] * (given[7] == 2)
    ),
    "aten._embedding_bag_per_sample_weights_backward.default": lambda bags, table, *given: _made_bags(
        len(table), bags, *given[:3]
    ),
}
"""By operator: from its arguments, the numbers that it trusts."""


def looked_at(target: str, kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run ``kernel``, the operator ``target``, once the numbers that it trusts are in range.

    NumPy looks at them, which asks torch for no memory: a full arena has none. A trace has none to look at.

    Raises:
        IndexError: they are not.
    """
    for numbers, low, high in () if any(map(_is_traced, args)) else NUMBERS[target](*args):
        if numbers.size and not (numbers.min().item() >= low and numbers.max().item() < high):
            raise IndexError(f"{target} is given a number that is not from {low} up to {high}")
    return kernel(*args, **kwargs)


def _is_traced(argument: object) -> bool:
    return type(argument).__name__ == "FakeTensor"
