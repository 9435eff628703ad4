"""One training step in plain eager PyTorch: what every plan must equal bit for bit.

And torch's optimizers: the one that a spec describes, and the spec of one that exists.
"""

from __future__ import annotations

import contextlib
import glob
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils import _pytree as pytree

from poet.errors import InputError
from poet.files.tables import function_named, line_of
from poet.frontend.eager import as_exporters_do, evaluating, without_short_cuts
from poet.frontend.losses import LossFunction, as_loss
from poet.frontend.module_tensors import looks_at_contents
from poet.frontend.traced_operators import as_wanted
from poet.ir.graph import Graph
from poet.ir.named import named_parameters, packed_values, row_blocks
from poet.ir.optimizer import OptimizerSpec, ParameterGroup
from poet.ir.optimizer_kinds import KINDS, NOT_HAD, OPTIONS


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
        blocks = row_blocks(trained)
        chosen = frozenset(blocks)
        self._blocks = {name: rows for name, rows in blocks.items() if rows}
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
        self.look(inputs)
        exported = as_exporters_do() if self.is_exported else contextlib.nullcontext()
        with without_short_cuts(), exported, as_wanted():
            returned = self._module(*_own(inputs))
            outputs = [item for item in pytree.tree_leaves(returned) if isinstance(item, Tensor)]
            loss = self._loss.of(returned, _own(targets))
            (loss if divisor == 1 else loss / divisor).backward()  # type: ignore[no-untyped-call]
        return loss.detach(), [output.detach() for output in outputs]

    def look(self, inputs: Sequence[Tensor]) -> None:
        """Find out by one run, before the first step, whether the module runs as exporters run it."""
        if self.is_exported is None:
            self.is_exported = looks_at_contents(self._module, inputs)

    def update(self) -> None:
        """Note the gradients, clip them, and update."""
        self.gradients = {
            label: part.clone()
            for name, parameter in self._trained.items()
            if parameter.grad is not None
            for label, part in self._parts(name, parameter.grad)
        }
        before = {name: self._trained[name].detach().clone() for name in self._blocks}
        given_gradients = [item for item in self._trained.values() if item.grad is not None]
        if self._clip_value is not None:
            nn.utils.clip_grad_value_(given_gradients, self._clip_value)
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(given_gradients, self._clip_norm)
        self.optimizer.step()
        for name, whole in before.items():  # rows of no block stay
            now = self._trained[name].detach()
            for (_, part), (_, kept) in zip(self._parts(name, now), self._parts(name, whole), strict=True):
                kept.copy_(part)
            now.copy_(whole)

    def _parts(self, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The parts of a trained parameter, or of what is as large, that are trained, by name."""
        if name not in self._blocks:
            yield name, tensor
        for start, stop in self._blocks.get(name, ()):
            yield f"{name}[{start}:{stop}]", tensor[start:stop]

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
            (name, f"{state}{label[len(name) :]}"): part
            for name, parameter in self._trained.items()
            for state, tensor in self.optimizer.state[parameter].items()
            if state not in ("step", "mu_product") and tensor is not None  # counts, of the whole tensor
            for label, part in self._parts(name, tensor)
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
    wanted = {name: types[value].shape for name, value in graph.states}
    packed = packed_values(graph)
    wanted |= {name: packed[value].shape for name, value in graph.states if value in packed}
    wanted |= {item.name: item.shape for item in named_parameters(graph)}
    for name, shape in wanted.items():
        found = tuple(there[name].shape) if name in there else None
        if found != shape:
            said = "none of that name" if found is None else str(list(found))
            raise InputError(f"the plan is of another module: its {name} is {list(shape)}, here is {said}")


class Lion(torch.optim.Optimizer):
    """Lion, which torch has not: Chen et al., "Symbolic discovery of optimization algorithms", 2023."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["exp_avg"] = torch.zeros_like(parameter)
                if group["weight_decay"]:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                gradient = -parameter.grad if group["maximize"] else parameter.grad
                average = state["exp_avg"]
                update = average.mul(beta1).add_(gradient, alpha=1 - beta1).sign_()
                parameter.add_(update, alpha=-group["lr"])
                average.mul_(beta2).add_(gradient, alpha=1 - beta2)


def torch_optimizer(spec: OptimizerSpec, parameters: Mapping[str, Tensor]) -> torch.optim.Optimizer:
    """The optimizer that ``spec`` describes, of parameters by name; group by group, as the spec has them."""
    members: dict[int, list[Tensor]] = {number: [] for number in range(len(spec.groups) + 1)}
    for name, parameter in parameters.items():
        members[spec.group_of(name)].append(parameter)
    groups = [
        {"params": tensors, **_arguments(spec.of_group(number))}
        for number, tensors in members.items()
        if tensors
    ]
    made: torch.optim.Optimizer = _CLASSES[spec.name](groups, **_arguments(spec))
    return made


def _arguments(spec: OptimizerSpec) -> dict[str, Any]:
    """What torch calls the settings."""
    return {_TORCHS.get(name, name): spec.in_force(name) for name in OPTIONS[spec.name]}


_TORCHS = {"initial": "initial_accumulator_value"}
"""What torch calls some settings."""
_CLASSES: dict[str, Any] = {
    name: getattr(torch.optim, kind.torch) if kind.torch else Lion for name, kind in KINDS.items()
}
_NAMES: dict[type, str] = {kind: name for name, kind in _CLASSES.items() if name != "sgd"}
_OURS = {torchs: ours for ours, torchs in _TORCHS.items()}
_FOR_ANY = frozenset({"params", "initial_lr", "foreach", "fused", "param_names"})
"""Of a group, what changes no bit here (``fused`` of SGD alone), or is no setting."""


def spec_of(optimizer: torch.optim.Optimizer, module: nn.Module) -> tuple[OptimizerSpec, tuple[str, ...]]:
    """What ``optimizer``, of parameters of ``module``, is here, and the names of what it trains.

    The first of its groups gives the settings; further ones become groups, name by name. A parameter that
    requires no gradient is not trained, as torch's step leaves it.

    Raises:
        InputError: it is not one that poet has, has begun, differs between groups in what cannot differ here,
            trains what is no parameter of the module, or none that requires a gradient.
    """
    kind = type(optimizer)
    where = f"torch.optim.{kind.__name__}"
    if kind not in _NAMES:
        known = ", ".join(each.__name__ for each in _NAMES)
        is_torchs = kind is getattr(torch.optim, kind.__name__, None)
        why = NOT_HAD.get(kind.__name__.lower()) if is_torchs else None
        if why is not None:
            raise InputError(f"{where} is not an optimizer that poet has: {why}")
        raise InputError(f"{where} is not an optimizer that poet has; it has: {known}")
    if any(state and float(state.get("step", 1)) > 0 for state in optimizer.state.values()):
        raise InputError(f"{where} has made steps already; plan with a new one, whose state begins here")
    step = vars(optimizer).get("step")  # schedulers put a counter around it
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    is_other = step is not None and not hasattr(step, "_wrapped_by_lr_sched")
    if is_other or any((*hooks, _global_optimizer_pre_hooks, _global_optimizer_post_hooks)):
        raise InputError(
            f"{where} has hooks on its steps, or another step, which plans never call; remove them, or keep "
            "your loop and its optimizer with poet.wrap"
        )
    if step is not None:
        warnings.warn(
            f"{where} has a learning-rate scheduler, which plans never call; make one of `trainer.optimizer`",
            stacklevel=2,
        )
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    first, *others = optimizer.param_groups
    name, given = _NAMES[kind], _settings(where, _NAMES[kind], first)
    if name == "momentum" and not given["momentum"]:
        name = "sgd"
    trained = [each for group in optimizer.param_groups for each in _trained(where, names, group)]
    if not trained:
        raise InputError(f"{where}: none of its parameters requires a gradient: nothing to train")
    groups = []
    for group in others:
        own = _settings(where, _NAMES[kind], group)
        differs = [key for key in own if own[key] != given[key]]
        fixed = [key for key in differs if key not in ("lr", "weight_decay", "momentum")]
        if fixed:
            raise InputError(f"{where}: {fixed[0]} differs between groups; lr, weight_decay, momentum may")
        if members := tuple(map(glob.escape, _trained(where, names, group))):
            groups.append(ParameterGroup(members, **{key: own[key] for key in differs}))
    kept = {key: amount for key, amount in given.items() if key in OPTIONS[name]}
    return OptimizerSpec(name, **kept, groups=tuple(groups)), tuple(map(glob.escape, trained))


def _settings(where: str, name: str, group: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for key, amount in group.items():
        ours = _OURS.get(key, key)
        if isinstance(amount, Tensor):
            raise InputError(f"{where}: {key} is a tensor, by which torch rounds otherwise; give a number")
        if ours in OPTIONS[name]:
            found[ours] = amount
        elif key == "fused" and amount and name != "momentum":
            raise InputError(f"{where}: fused=True rounds in another order than a plan does; leave it out")
        elif key not in _FOR_ANY and amount and not (key == "decoupled_weight_decay" and name == "adamw"):
            raise InputError(f"{where}: {key}={amount!r} is not something that poet has")
    return found


def _trained(where: str, names: Mapping[int, str], group: Mapping[str, Any]) -> list[str]:
    """Names of the group's parameters that require a gradient."""
    if any(id(tensor) not in names for tensor in group["params"]):
        raise InputError(f"{where}: it trains a tensor that is no parameter of the module")
    return [names[id(tensor)] for tensor in group["params"] if tensor.requires_grad]
