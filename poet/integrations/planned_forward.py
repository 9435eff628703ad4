"""A model of a library's own training loop, whose forward is planned where the loop first calls it.

    poet.plan_forward(model, ram="1GiB")

The model stays an object of its class: it is saved, evaluated and looked at as before. Training batches need
no examples: each kind of batch (shapes, types, arguments) is planned when the first one of it comes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from poet.errors import InputError
from poet.frontend.wrapped import Structure, check_leaves
from poet.integrations.wrapping import HOOKS, Wrapped, wrap
from poet.runtime.steps.passes import rest

_Model = TypeVar("_Model", bound=nn.Module)


def plan_forward(
    model: _Model,
    *,
    ram: str | int | None,
    page_file: str | Path | None = None,
    most_plans: int = 16,
    **options: Any,
) -> _Model:
    """Let training passes through ``model`` replay plans, made for each kind of batch when it first comes.

    The backward pass starts from the output ``loss`` where the model returns one, else from all outputs.
    Other outputs may be read; who goes back through them is refused. Outputs of the first batch of each kind
    are compared with the model's own: what differs in a bit is refused.

    Args:
        model: on the CPU; changed in place, and planned in the mode it has when it is called.
        ram: budget of a pass, as of `poet.wrap`.
        page_file: where tensors are paged; the second plan's has ``.1`` at its end, and so on.
        most_plans: kinds of batches; one more is refused.
        options: others of `poet.wrap`: ``device``, ``deadline``, ``recompute``, ``paging``,
            ``time_limit_seconds`` (of each search) and so on.

    Returns:
        ``model``. `release` makes it what it was.

    Raises:
        InputError: it is planned already, or recomputes by itself (gradient checkpointing).
    """
    if planned_forward_of(model) is not None or isinstance(model, Wrapped):
        raise InputError(f"{type(model).__name__} is planned already")
    vars(model)["forward"] = PlannedForward(model, page_file, most_plans, {**options, "ram": ram})
    return model


def planned_forward_of(model: nn.Module) -> PlannedForward | None:
    """What `plan_forward` put into ``model``; ``None``: it is not planned."""
    found = vars(model).get("forward")
    return found if isinstance(found, PlannedForward) else None


def release(model: nn.Module) -> None:
    """Give ``model`` its own forward back, and close the page files; nothing where it is not planned."""
    found = planned_forward_of(model)
    if found is not None:
        found.close()


class PlannedForward:
    """Stands in the place of a model's ``forward``.

    Attributes:
        plans: a wrapped model for each kind of batch, in the order in which they came.
    """

    def __init__(
        self, model: nn.Module, page_file: str | Path | None, most_plans: int, options: dict[str, Any]
    ) -> None:
        functools.update_wrapper(self, model.forward)  # its signature, which loops look at
        self._model, self._page_file, self._most, self._options = model, page_file, most_plans, options
        self._own_forward = vars(model).get("forward")
        self._names = [
            item.name
            for item in inspect.signature(model.forward).parameters.values()
            if item.kind in (item.POSITIONAL_OR_KEYWORD, item.POSITIONAL_ONLY)
        ]
        self.plans: dict[object, Wrapped] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model's own forward returns; errors as of `poet.wrap`."""
        with self._as_it_was():
            if not (torch.is_grad_enabled() and self._model.training):
                rest()
                return self._model.forward(*args, **kwargs)
            self._check()
            named = self._named(args, kwargs)
            if (known := self.plans.get(self._kind(named))) is not None:
                return _guarded(known(**named))
            rest()
            own = self._own_outputs(named)  # before planning: a model may settle its configuration here
            wrapped = self.plans.get(self._kind(named)) or self._planned(named)
            returned = wrapped(**named)
            if not _equal(own, returned):
                own = self._own_outputs(named, with_gradients=True)
            if not _equal(own, returned):
                raise InputError(
                    f"{type(self._model).__name__} does not give the bits of its plan for this batch: it "
                    "looks at what a batch holds; pass what it looks at (such as a mask) otherwise, or "
                    "train without a plan"
                )
            return _guarded(returned)

    def close(self) -> None:
        """Give the model its forward back."""
        if vars(self._model).get("forward") is self:
            self._put_own_forward()
        for wrapped in self.plans.values():
            wrapped.close()
        self.plans.clear()

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise InputError("a planned model is bound to its plans; copy it before plan_forward, or release it")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InputError("a planned model cannot be pickled; save its state_dict(), or release it first")

    @contextlib.contextmanager
    def _as_it_was(self) -> Iterator[None]:
        """The model with its own forward, and without its hooks, which torch calls around this one."""
        own = vars(self._model)
        put_aside = {key: own[key] for key in HOOKS} | {"forward": own.get("forward")}
        try:
            own.update({key: type(own[key])() for key in HOOKS})
            self._put_own_forward()
            yield
        finally:
            own.update(put_aside)

    def _put_own_forward(self) -> None:
        del vars(self._model)["forward"]
        if self._own_forward is not None:
            vars(self._model)["forward"] = self._own_forward

    def _check(self) -> None:
        if any(getattr(part, "gradient_checkpointing", False) is True for part in self._model.modules()):
            raise InputError(
                f"gradient checkpointing of {type(self._model).__name__} is on, and a plan recomputes by "
                "itself; call gradient_checkpointing_disable(), or leave gradient_checkpointing out"
            )

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) > len(self._names):
            raise InputError("the model takes any number of positional arguments; pass them by name")
        named = dict(zip(self._names, args, strict=False)) | kwargs
        return dict(pytree.tree_map_only(Tensor, _without_gaps, named))

    def _kind(self, named: Mapping[str, Any]) -> object:
        """What makes another plan: all of a call but what is in its tensors, and the configuration."""
        structure = Structure.of(((), dict(named)))
        check_leaves(structure, f"{type(self._model).__name__} is called with")
        found = [
            (item.dtype, item.shape, item.stride(), item.requires_grad)
            if isinstance(item, Tensor)
            else (type(item), item)
            for item in pytree.tree_leaves(named)
        ]
        seen = [
            bool(item.all())
            for name, item in named.items()
            if "mask" in name and isinstance(item, Tensor) and not item.is_floating_point()
        ]  # models leave out a mask that masks nothing
        settings = getattr(self._model, "config", None)
        return repr((structure.spec, found, seen, getattr(settings, "__dict__", settings)))

    def _planned(self, named: dict[str, Any]) -> Wrapped:
        number = len(self.plans)
        if number >= self._most:
            shapes = {key: list(item.shape) for key, item in named.items() if isinstance(item, Tensor)}
            raise InputError(
                f"a batch of another kind came ({shapes}) after {number}, and most_plans is {self._most}; "
                "pad to fewer lengths (pad_to_multiple_of of the collator), or give more plans"
            )
        path = f"{self._page_file}.{number}" if self._page_file and number else self._page_file
        options = {**self._options, "backward_from": "loss", "page_file": path}
        state = torch.get_rng_state()
        try:
            made = wrap(self._model, named, **options)
        finally:
            torch.set_rng_state(state)
        self.plans[self._kind(named)] = made
        return made

    def _own_outputs(self, named: dict[str, Any], *, with_gradients: bool = False) -> list[object]:
        """What the model itself returns; generator and module state are left as they were."""
        state = torch.get_rng_state()
        buffers = [(part._buffers, dict(part._buffers)) for part in self._model.modules()]
        kept = [(item, item.detach().clone()) for item in self._model.buffers()]
        try:
            with torch.set_grad_enabled(with_gradients):
                returned = pytree.tree_leaves(self._model.forward(**named))
            return [item.detach() if isinstance(item, Tensor) else item for item in returned]
        finally:
            torch.set_rng_state(state)
            for own, those in buffers:  # a forward pass may put others into their places
                own.update(those)
            with torch.no_grad():
                for item, before in kept:
                    item.copy_(before)


def _without_gaps(tensor: Tensor) -> Tensor:
    """A slice of a batch in memory of its own, as a plan takes it."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor if span == tensor.numel() else tensor.contiguous()


def _equal(own: Sequence[object], returned: object) -> bool:
    leaves = pytree.tree_leaves(returned)
    return len(own) == len(leaves) and all(
        torch.equal(one, other.detach()) if isinstance(one, Tensor) else one == other
        for one, other in zip(own, leaves, strict=True)
    )


def _guarded(returned: Any) -> Any:
    """``returned``, whose outputs beside those that backward begins from refuse to be gone back through."""
    leaves, spec = pytree.tree_flatten(returned)
    loss = next(item for item in leaves if isinstance(item, Tensor) and item.requires_grad)
    for place, item in enumerate(leaves):
        if isinstance(item, Tensor) and item.is_floating_point() and not item.requires_grad:
            leaves[place] = _LeftOut.apply(loss, item)  # type: ignore[no-untyped-call]
    return pytree.tree_unflatten(leaves, spec)


class _LeftOut(torch.autograd.Function):
    """An output from which a plan makes no gradients."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, output: Tensor) -> Tensor:
        """See `torch.autograd.Function.forward`."""
        return output.view_as(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> NoReturn:
        """See `torch.autograd.Function.backward`."""
        raise InputError(
            "the loop goes back through an output beside the model's own loss, and its plan has no gradient "
            "of that; call the model without labels, or choose the outputs with poet.wrap(backward_from=...)"
        )
