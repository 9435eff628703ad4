"""Optimizers of torch: the one that a spec describes, and the spec of one that exists."""

from __future__ import annotations

import glob
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from poet.errors import InputError
from poet.ir.optimizer import OptimizerSpec, ParameterGroup
from poet.ir.optimizer_kinds import NOT_HAD, OPTIONS


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
    given: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.decay, "maximize": spec.maximize}
    same = ("amsgrad", "rho", "momentum_decay", "decoupled_weight_decay")
    given |= {name: getattr(spec, name) for name in same if name in OPTIONS[spec.name]}
    if spec.name == "momentum":
        given |= {"momentum": spec.inertia, "dampening": spec.dampening, "nesterov": spec.nesterov}
    if "betas" in OPTIONS[spec.name]:
        given["betas"] = spec.both_betas
    if "eps" in OPTIONS[spec.name]:
        given["eps"] = spec.epsilon
    if spec.name == "rmsprop":
        given |= {"alpha": spec.alpha, "centered": spec.centered, "momentum": spec.inertia}
    if spec.name == "adagrad":
        given |= {"lr_decay": spec.lr_decay, "initial_accumulator_value": spec.initial}
    return given


_CLASSES: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "lion": Lion,
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
}
_NAMES = {
    torch.optim.SGD: "momentum",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adamw",
    torch.optim.RMSprop: "rmsprop",
    torch.optim.Adagrad: "adagrad",
    Lion: "lion",
    torch.optim.Adadelta: "adadelta",
    torch.optim.Adamax: "adamax",
    torch.optim.NAdam: "nadam",
    torch.optim.RAdam: "radam",
}
_OURS = {"initial_accumulator_value": "initial"}
_FOR_ANY = frozenset(
    {"params", "initial_lr", "foreach", "fused", "capturable", "differentiable", "param_names"}
)
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
        if ours in OPTIONS[name]:
            found[ours] = amount.item() if isinstance(amount, Tensor) else amount
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
