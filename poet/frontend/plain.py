"""One training step in plain eager PyTorch: what every plan must equal bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from poet.errors import InputError
from poet.files.tables import function_named, line_of
from poet.frontend.eager import as_exporters_do, evaluating, without_short_cuts
from poet.frontend.losses import LossFunction, as_loss
from poet.frontend.module_tensors import looks_at_contents
from poet.frontend.optimizers import torch_optimizer
from poet.frontend.traced_operators import as_wanted
from poet.ir.graph import Graph
from poet.ir.named import named_parameters
from poet.ir.optimizer import OptimizerSpec


class PlainTrainer:
    """Trains ``module`` itself, with `torch.optim` and ``loss.backward()``; see `poet.frontend.eager`.

    Batches stay as they are given, also where the module or the loss writes what it is given.

    Attributes:
        gradients: of the last step, by parameter name.
        is_exported: whether the module runs as exporters run it, as it then was planned; known after a step.
    """

    def __init__(
        self, module: nn.Module, *, loss: str | LossFunction, optimizer: OptimizerSpec, trained: Iterable[str]
    ) -> None:
        self._module = module
        self._loss = as_loss(loss)
        chosen = frozenset(trained)
        self._trained = {name: item for name, item in module.named_parameters() if name in chosen}
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(name in chosen)
        self.optimizer = torch_optimizer(optimizer, self._trained)
        self._clip_value, self._clip_norm = optimizer.clip_value, optimizer.clip_norm
        self.gradients: dict[str, Tensor] = {}
        self.is_exported: bool | None = None

    def step(
        self, inputs: Sequence[Tensor], targets: Tensor | Sequence[Tensor] | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Make one step; return the loss and the module's outputs."""
        self.optimizer.zero_grad(set_to_none=True)
        result = self.backward(inputs, targets)
        self.update()
        return result

    def step_in_pieces(
        self, pieces: Sequence[tuple[Sequence[Tensor], Tensor | Sequence[Tensor] | None]], *, divisor: int
    ) -> list[tuple[Tensor, list[Tensor]]]:
        """Make one step of micro-batches: a backward pass of the loss over ``divisor`` each, then update."""
        self.optimizer.zero_grad(set_to_none=True)
        results = [self.backward(inputs, targets, divisor=divisor) for inputs, targets in pieces]
        self.update()
        return results

    def backward(
        self, inputs: Sequence[Tensor], targets: Tensor | Sequence[Tensor] | None, *, divisor: int = 1
    ) -> tuple[Tensor, list[Tensor]]:
        """Add the gradients of one batch to ``.grad``; return the loss and the module's outputs."""
        if self.is_exported is None:
            self.is_exported = looks_at_contents(self._module, inputs)
        exported = as_exporters_do() if self.is_exported else contextlib.nullcontext()
        with without_short_cuts(), exported, as_wanted():
            returned = self._module(*_own(inputs))
            outputs = [item for item in pytree.tree_leaves(returned) if isinstance(item, Tensor)]
            loss = self._loss.of(returned, _own(targets))
            (loss if divisor == 1 else loss / divisor).backward()  # type: ignore[no-untyped-call]
        return loss.detach(), [output.detach() for output in outputs]

    def update(self) -> None:
        """Note the gradients, clip them, and update."""
        self.gradients = {
            name: parameter.grad.clone()
            for name, parameter in self._trained.items()
            if parameter.grad is not None
        }
        given_gradients = [item for item in self._trained.values() if item.grad is not None]
        if self._clip_value is not None:
            nn.utils.clip_grad_value_(given_gradients, self._clip_value)
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(given_gradients, self._clip_norm)
        self.optimizer.step()

    def predict(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The module's outputs in evaluation mode, under ``torch.no_grad()``, by the ops it is written in."""
        with self._evaluated(inputs) as returned:
            return [item for item in pytree.tree_leaves(returned) if isinstance(item, Tensor)]

    def evaluate(self, inputs: Sequence[Tensor], targets: Tensor | Sequence[Tensor] | None) -> Tensor:
        """The loss of the module in evaluation mode; likewise."""
        with self._evaluated(inputs) as returned:
            return self._loss.of(returned, _own(targets))

    @contextlib.contextmanager
    def _evaluated(self, inputs: Sequence[Tensor]) -> Iterator[object]:
        with evaluating(self._module), without_short_cuts(), torch.no_grad(), as_wanted():
            is_exported = looks_at_contents(self._module, inputs)
            with as_exporters_do() if is_exported else contextlib.nullcontext():
                returned = self._module(*_own(inputs))
            yield returned

    def optimizer_state(self) -> dict[tuple[str, str], Tensor]:
        """The optimizer's tensors by (parameter, state)."""
        return {
            (name, state): tensor
            for name, parameter in self._trained.items()
            for state, tensor in self.optimizer.state[parameter].items()
            if state not in ("step", "mu_product") and tensor is not None  # counts, of the whole tensor
        }


def _own(given: Tensor | Sequence[Tensor] | None) -> list[Tensor]:
    """Copies of the tensors ``given``."""
    return [item.clone() for item in ([given] if isinstance(given, Tensor) else given or ())]


def own_module(text: str) -> tuple[nn.Module, LossFunction | None]:
    """The module that ``module:function`` gives, and the loss where that comes with it; runs the user's code.

    Args:
        text: names a function that gives a module in the mode in which it was planned, or a tuple that begins
            with it and its loss; what follows, such as example inputs, is not looked at.

    Raises:
        InputError: there is no such function, it fails, or gives something else.
    """
    function = function_named(text)
    try:
        given = function()
    except Exception as error:
        raise InputError(f"--module {text}: it fails ({line_of(error)})") from None
    module, loss = (*given, None)[:2] if isinstance(given, tuple) and given else (given, None)
    if not isinstance(module, nn.Module):
        raise InputError(f"--module {text}: it gives {type(module).__name__}, not a module")
    if loss is not None and not callable(loss):
        raise InputError(f"--module {text}: the loss is {type(loss).__name__}, not a function or module")
    return module, loss


def check_is_planned(module: nn.Module, graph: Graph) -> None:
    """Do nothing if ``module`` has the parameters and the state of a plan's ``graph``.

    Raises:
        InputError: one is missing or of another shape.
    """
    there = dict(
        (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    )
    types = {value.name: value.type for value in graph.values}
    wanted = {item.name: item.content.type.shape for item in named_parameters(graph)}
    wanted |= {name: types[value].shape for name, value in graph.states}
    for name, shape in wanted.items():
        found = tuple(there[name].shape) if name in there else None
        if found != shape:
            said = "none of that name" if found is None else str(list(found))
            raise InputError(f"the plan is of another module: its {name} is {list(shape)}, here is {said}")
