"""A model without the softmax or sigmoid that its first output is made by: what it gives are scores.

Losses of classes make probabilities of scores themselves. A model that ends in a softmax would be trained on
probabilities of probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from poet.errors import ModelError
from poet.loss import LOGITS

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
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
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
