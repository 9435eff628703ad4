"""The losses a step may be trained with, and the scores that they are given.

Losses of classes make probabilities of scores themselves: `with_output` has a model give what its last
softmax or sigmoid is given.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from poet.errors import ModelError
from poet.ir.loss import LOGITS, OF_CLASSES, PYTHON, LossSpec

LossFunction = Callable[[Any, Any], Tensor]
"""``loss(outputs, targets)``: what the model returned, and the targets, one tensor or a tuple."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss.

    Attributes:
        name: as `poet.ir.loss` reads it.
        apply: the scalar from (output, targets).
        targets_like: uninitialised targets for an output, on the output's device; ``None``: it has none.
        takes_everything: whether ``apply`` is given all that the model returned, not its first output.
    """

    name: str
    apply: LossFunction
    targets_like: Callable[[Tensor], Tensor | None]
    takes_everything: bool = False

    def of(self, returned: object, targets: Sequence[Tensor]) -> Tensor:
        """The loss of what the model ``returned``.

        Raises:
            ModelError: it is not a single number.
        """
        if self.takes_everything:
            loss = self.apply(returned, targets[0] if len(targets) == 1 else tuple(targets))
        else:
            first = next(item for item in pytree.tree_leaves(returned) if isinstance(item, Tensor))
            loss = self.apply(first, targets[0] if targets else None)
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            found = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ModelError(f"loss {self.name} gives {found}; a step minimises a tensor of a single number")
        return loss


def as_loss(loss: str | LossFunction) -> Loss:
    """The loss of that name, or the function or module ``loss(outputs, targets)`` as one.

    Raises:
        ModelError: there is none of that name, or the module has parameters of its own.
    """
    if isinstance(loss, str):
        return loss_named(loss)
    if isinstance(loss, nn.Module) and any(item.requires_grad for item in loss.parameters()):
        raise ModelError(
            f"{type(loss).__name__} has parameters of its own, which no step would train; "
            "make the loss a part of the model and plan with loss='output'"
        )
    name = (
        getattr(loss, "__qualname__", type(loss).__name__)
        .replace("<locals>.", "")
        .replace("<lambda>", "lambda")
    )
    try:
        spec = LossSpec.parse(f"{PYTHON}:{name}")
    except ModelError:
        spec = LossSpec.parse(f"{PYTHON}:{type(loss).__name__}")
    return Loss(str(spec), loss, lambda output: None, takes_everything=True)


def loss_named(name: str) -> Loss:
    """The loss of that name and these options, as `poet.ir.loss` reads them.

    Raises:
        ModelError: there is none.
    """
    spec = LossSpec.parse(name)
    if spec.name == PYTHON:
        raise ModelError(
            f"the loss {spec.function} is a function of Python's, which no file holds; give it from Python: "
            "poet.plan(loss=...), poet.verify(..., loss=...)"
        )
    function, targets_like = _LOSSES.get(spec.name, (_of_torch, _same))
    return Loss(name, functools.partial(function, spec), functools.partial(targets_like, spec))


def _of_torch(spec: LossSpec, output: Tensor, targets: Tensor) -> Tensor:
    """A loss of torch whose options are its arguments."""
    options: dict[str, Any] = dict(spec.options)
    if "pos_weight" in options:
        options["pos_weight"] = torch.tensor(options["pos_weight"], dtype=output.dtype)
    return _FUNCTIONS[spec.name](output, targets, **options)


def _same(spec: LossSpec, output: Tensor) -> Tensor:
    return torch.empty_like(output)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
    "smooth-l1": F.smooth_l1_loss,
    "bce": F.binary_cross_entropy,
    "bce-with-logits": F.binary_cross_entropy_with_logits,
    "kl-div": functools.partial(F.kl_div, reduction="batchmean"),  # torch warns of its own default
}


def _of_classes(spec: LossSpec, output: Tensor, targets: Tensor) -> Tensor:
    """Torch's own, of [N,C,...]; where the classes stand in another dim, of the [N*...,C] it flattens to."""
    options: dict[str, Any] = {key: value for key, value in spec.options if key not in ("dim", "weight")}
    weight = spec.option("weight")
    dim = spec.class_dim(output.dim())
    classes = output.shape[dim]
    if isinstance(weight, tuple):
        if len(weight) != classes:
            raise ModelError(f"loss '{spec}' weighs {len(weight)} classes; the first output has {classes}")
        options["weight"] = torch.tensor(weight, dtype=output.dtype)
    function: Callable[[Tensor, Tensor], Tensor] = functools.partial(_CLASS_FUNCTIONS[spec.name], **options)
    if dim == min(1, output.dim() - 1):
        return function(output, targets)
    flat_output = output.movedim(dim, -1).reshape(-1, classes)
    if targets.shape == output.shape:  # probabilities
        return function(flat_output, targets.movedim(dim, -1).reshape(-1, classes))
    return function(flat_output, targets.reshape(-1))


def _nll(output: Tensor, targets: Tensor, *, log: bool = False, **options: Any) -> Tensor:
    return F.nll_loss(output.log() if log else output, targets, **options)


def _focal(
    output: Tensor, targets: Tensor, *, gamma: float = 2.0, reduction: str = "mean", ignore_index: int = -100
) -> Tensor:
    """Lin et al., "Focal loss for dense object detection", 2017, eq. 4, over classes."""
    each = F.cross_entropy(output, targets, reduction="none", ignore_index=ignore_index)
    weighted = (1 - torch.exp(-each)) ** gamma * each
    return weighted.sum() if reduction == "sum" else weighted.mean()


_CLASS_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "cross-entropy": F.cross_entropy,
    "nll": _nll,
    "focal": _focal,
}


def _class_targets(spec: LossSpec, output: Tensor) -> Tensor:
    dim = spec.class_dim(output.dim())
    shape = (*output.shape[:dim], *output.shape[dim + 1 :])
    return torch.empty(shape, dtype=torch.int64, device=output.device)


def _distillation(spec: LossSpec, output: Tensor, targets: Tensor) -> Tensor:
    """Hinton et al., "Distilling the knowledge in a neural network", 2015: T^2 KL(teacher || student)."""
    temperature = spec.number("temperature", 2.0)
    dim = spec.class_dim(output.dim())
    ours = F.log_softmax(output / temperature, dim=dim)
    theirs = F.log_softmax(targets / temperature, dim=dim)
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True) * temperature**2


def _ctc(spec: LossSpec, output: Tensor, targets: Tensor) -> Tensor:
    """Graves et al., "Connectionist temporal classification", 2006; below 0 is what pads the targets."""
    samples, moments, _, _ = spec.sequences(output.shape)
    scores = output if spec.option("time_first") else output.transpose(0, 1)
    options = {key: value for key, value in spec.options if key not in ("length", "time_first")}
    every = torch.full((int(samples),), int(moments), dtype=torch.int64)
    function: Callable[..., Tensor] = F.ctc_loss
    return function(F.log_softmax(scores, dim=-1), targets, every, (targets >= 0).sum(1), **options)


def _ctc_targets(spec: LossSpec, output: Tensor) -> Tensor:
    samples, _, _, longest = spec.sequences(output.shape)
    return torch.empty((int(samples), int(longest)), dtype=torch.int64, device=output.device)


def _output(spec: LossSpec, output: Tensor, targets: Tensor | None) -> Tensor:
    return output if output.dim() == 0 else output.sum()


_LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor | None]]] = {
    **dict.fromkeys(OF_CLASSES, (_of_classes, _class_targets)),
    "ctc": (_ctc, _ctc_targets),
    "distillation": (_distillation, _same),
    "output": (_output, lambda spec, output: None),
}
"""What computes a loss from its spec, output and targets, and makes targets for an output."""

_ENDINGS = frozenset({"softmax", "log_softmax", "sigmoid", "logsigmoid", "expit"})
_OF_SHAPE_OR_TYPE = frozenset(
    ("reshape", "view", "view_as", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute",
     "movedim", "swapaxes", "t", "getitem", "select", "to", "type", "float", "double", "half", "bfloat16",
     "contiguous", "clone", "alias")
)  # fmt: skip


def with_output(module: nn.Module, output: str | None) -> nn.Module:
    """``module``, or where its ``logits`` are asked for, another that shares all it has and gives those.

    Raises:
        ModelError: it is scripted, so that what it calls is not seen; or something else is asked for.
    """
    if output is None:
        return module
    if output != LOGITS:
        raise ModelError(f"output {output!r} is not {LOGITS!r}")
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError("output='logits' needs the module that was scripted: what scripts call is not seen")
    made: nn.Module = object.__new__(type(type(module).__name__, (_Scores, type(module)), {}))
    made.__dict__.update(vars(module))
    return made


class _Scores(nn.Module):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _Watch() as watch:
            returned = super().__call__(*args, **kwargs)
        leaves, tree = pytree.tree_flatten(returned)
        first = next((place for place, item in enumerate(leaves) if isinstance(item, Tensor)), None)
        if first is None:
            return returned
        leaves[first] = watch.scores(leaves[first], type(self).__name__)
        return pytree.tree_unflatten(leaves, tree)


class _Watch(TorchFunctionMode):
    """Knows of results of a softmax, and of their views and copies, what they were made of."""

    def __init__(self) -> None:
        super().__init__()
        self._made: Any = WeakTensorKeyDictionary()

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """``func`` itself."""
        result, given = func(*args, **(kwargs or {})), dict(kwargs or {})
        source, *others = args or (given.pop("input", None),)
        name = getattr(func, "__name__", "").partition(".")[0].strip("_")
        if isinstance(result, Tensor) and source is not result and name in _ENDINGS | _OF_SHAPE_OR_TYPE:
            again = None if name in _ENDINGS else lambda found: func(found, *others, **given)
            self._made[result] = source, again, result._version
        return result

    def scores(self, output: Tensor, model: str) -> Tensor:
        """What the softmax behind ``output`` was given, in the shape and type of ``output``.

        Raises:
            ModelError: there is none.
        """
        source, again, version = self._made.get(output, (None, None, 0))
        if source is None or version != output._version:
            raise ModelError(
                f"{model}: its first output is not what a softmax, log_softmax or sigmoid gives, so that it "
                "has no logits to train on; leave output='logits' (--output logits) out"
            )
        found: Tensor = source if again is None else again(self.scores(source, model))
        return found
