"""An optimizer of a plan with its settings: what it keeps per parameter and what changes with each step.

The arithmetic of the update itself is a kernel of the runtime (`poet.runtime.kernels`); here is what
`torch.optim` does in Python floats, operation for operation, so that replay gives the same bits.
"""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from poet.errors import InputError
from poet.ir.graph import Argument, Call, Ref, Symbol
from poet.ir.named import block_of
from poet.ir.operators import OWN, UPDATES
from poet.ir.optimizer_kinds import KINDS, MAXIMUM, OPTIONS, Kind, options_in, unknown, written

LARGEST_STEP = 2**24
"""`torch.optim` counts steps in a float32, which stays there."""

_MOST_GROUPS = 10_000
_OF_GROUPS = ("lr", "weight_decay", "momentum")


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters with settings of their own; what is ``None`` is the optimizer's.

    Attributes:
        patterns: of their names, as the shell has them: ``norm*.weight``; the first group that fits counts.
        lr, weight_decay, momentum: in place of the optimizer's.
    """

    patterns: tuple[str, ...]
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None

    def __post_init__(self) -> None:
        for field in _OF_GROUPS:
            _check_amount(f"parameter group {self.called!r}", field, getattr(self, field))

    @staticmethod
    def parse(text: str) -> ParameterGroup:
        """The group in ``PATTERN:lr=1e-4,weight_decay=0``.

        Raises:
            InputError: it is not of that form.
        """
        pattern, colon, written = text.rpartition(":")
        if not colon or not pattern:
            raise InputError(f"parameter group {text!r}: write for example 'norm*:lr=1e-4,weight_decay=0'")
        where = f"parameter group {text!r}"
        return ParameterGroup((pattern,), **options_in(where, "a group", written, _OF_GROUPS))

    @property
    def called(self) -> str:
        """Its first pattern, for messages."""
        return self.patterns[0] if self.patterns else ""

    def __str__(self) -> str:
        return f"{self.called}:{written(self, _OF_GROUPS)}"


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """An optimizer of `torch.optim` and its settings; those another optimizer uses are ignored.

    Attributes:
        name: ``sgd``, ``momentum`` (`torch.optim.SGD`), ``adam``, ``adamw``, ``rmsprop``, ``adagrad``,
            ``adadelta``, ``adamax``, ``nadam``, ``radam``, or ``lion`` (Chen et al., "Symbolic discovery of
            optimization algorithms", 2023, algorithm 2).
        lr: learning rate.
        weight_decay: ``None``: torch's default, 0.01 for ``adamw`` and 0 otherwise.
        momentum: of ``momentum`` and ``rmsprop``; ``None``: 0.9 of the first, none of the second.
        dampening, nesterov: of ``momentum``.
        betas, eps: of those that have them; ``None``: their defaults.
        alpha, centered: of ``rmsprop``.
        rho: of ``adadelta``: what is kept of both its averages, 0 to 1.
        momentum_decay: of ``nadam``.
        decoupled_weight_decay: of ``nadam`` and ``radam``: the decay is of the parameter, as AdamW has it,
            and does not pass through the gradient.
        lr_decay, initial: of ``adagrad``; ``initial`` is torch's ``initial_accumulator_value``.
        amsgrad: of ``adam`` and ``adamw``.
        maximize: whether the loss is made large: gradients are negated, after they are clipped.
        groups: parameters with settings of their own.
        clip_value: gradients are clamped to this first, as by `torch.nn.utils.clip_grad_value_`.
        clip_norm: the norm of all gradients together is then brought down to this, as
            `torch.nn.utils.clip_grad_norm_` does.
    """

    name: str = "sgd"
    lr: float = 1e-3
    weight_decay: float | None = None
    momentum: float | None = None
    dampening: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] | None = None
    eps: float | None = None
    alpha: float = 0.99
    centered: bool = False
    rho: float = 0.9
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False
    lr_decay: float = 0.0
    initial: float = 0.0
    amsgrad: bool = False
    maximize: bool = False
    groups: tuple[ParameterGroup, ...] = ()
    clip_value: float | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        where = f"optimizer {self.name}"
        if self.name not in KINDS:
            raise unknown(self.name)
        for field in ("lr", "weight_decay", "momentum", "dampening", "eps", "alpha", "lr_decay", "initial",
                      "rho", "momentum_decay", "clip_value", "clip_norm"):  # fmt: skip
            _check_amount(where, field, getattr(self, field))
        if not all(0.0 <= beta < 1.0 for beta in self.both_betas):
            raise InputError(f"{where}: betas are {self.betas}, not two numbers in [0, 1)")
        if self.rho > 1.0:
            raise InputError(f"{where}: rho is {self.rho}, not a number from 0 to 1")
        if self.nesterov and (self.inertia == 0.0 or self.dampening != 0.0):
            raise InputError(f"{where}: nesterov needs momentum and no dampening")
        if len(self.groups) > _MOST_GROUPS:
            raise InputError(f"{where}: {len(self.groups)} parameter groups; at most {_MOST_GROUPS}")
        for group in self.groups:
            if group.momentum is not None and not (self.inertia and group.momentum):
                raise InputError(
                    f"{where}: parameter group {group.called!r} has momentum {group.momentum}; "
                    "a momentum of its own needs one of the optimizer, and both above 0"
                )

    @staticmethod
    def parse(text: str) -> OptimizerSpec:
        """The optimizer in ``NAME`` or ``NAME:option=value,...``, such as ``rmsprop:alpha=0.9,centered=yes``.

        Raises:
            InputError: there is none of that name, or it has no such option or value.
        """
        name, colon, written = text.partition(":")
        if name not in KINDS:
            raise unknown(name)
        for option in (item.partition("=")[0] for item in written.split(",")):
            if option in ("clip_norm", "clip_value"):
                flag = f"--{option.replace('_', '-')}"
                raise InputError(
                    f"optimizer {text!r}: {option} is beside the optimizer: {flag} on the command line, "
                    f"{option}= of poet.plan in Python"
                )
        given = options_in(f"optimizer {text!r}", name, written, OPTIONS[name]) if colon else {}
        return OptimizerSpec(name, **given)

    def clipped(self, *, clip_norm: float | None = None, clip_value: float | None = None) -> OptimizerSpec:
        """The same with gradients clipped as given; what is ``None`` stays as it is."""
        given: dict[str, Any] = {"clip_norm": clip_norm, "clip_value": clip_value}
        return replace(self, **{name: amount for name, amount in given.items() if amount is not None})

    def __str__(self) -> str:
        """Name and settings; groups and clipping are given beside it."""
        return ":".join(filter(None, (self.name, written(self, OPTIONS[self.name]))))

    @property
    def kind(self) -> Kind:
        """What it is, whatever its settings."""
        return KINDS[self.name]

    def in_force(self, option: str) -> Any:
        """A setting: as given, or as usual for this optimizer."""
        given = getattr(self, option)
        return getattr(self.kind, option) if given is None else given

    @property
    def decay(self) -> float:
        """The weight decay in force."""
        return float(self.in_force("weight_decay"))

    @property
    def inertia(self) -> float:
        """The momentum in force."""
        return float(self.in_force("momentum"))

    @property
    def both_betas(self) -> tuple[float, float]:
        """The betas in force."""
        beta1, beta2 = self.in_force("betas")
        return beta1, beta2

    @property
    def epsilon(self) -> float:
        """The ``eps`` in force."""
        return float(self.in_force("eps"))

    @property
    def has_maximum(self) -> bool:
        """Whether the largest second moment so far is kept (AMSGrad)."""
        return self.amsgrad and "amsgrad" in OPTIONS[self.name]

    @property
    def driven(self) -> dict[str, float | tuple[float, float]]:
        """What schedulers may change beside the learning rate, by torch's name: ``momentum`` or ``betas``.

        Not the betas of ``nadam``, whose update depends on those of every step before.
        """
        if self.name == "nadam":
            return {}
        if "betas" in OPTIONS[self.name]:
            return {"betas": self.both_betas}
        return {"momentum": self.inertia} if self.inertia and "momentum" in OPTIONS[self.name] else {}

    @property
    def states(self) -> dict[str, float]:
        """Name of each tensor kept per parameter, and the number it is filled with before step 1."""
        return self.kind.kept(self)

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of what is in no group, then those of the groups."""
        return tuple(spec.lr for spec in _groups_of(self))

    def group_of(self, parameter: str) -> int:
        """The number of the first group that ``parameter`` is in, from 1; 0: it is in none."""
        parameter, _ = block_of(parameter)
        for number, group in enumerate(self.groups, 1):
            if any(fnmatch.fnmatchcase(parameter, pattern) for pattern in group.patterns):
                return number
        return 0

    def of_group(self, number: int) -> OptimizerSpec:
        """The settings of a group, as an optimizer without groups."""
        if number == 0:
            return replace(self, groups=())
        group = self.groups[number - 1]
        own = {field.name: getattr(group, field.name) for field in fields(group) if field.name != "patterns"}
        given = {name: amount for name, amount in own.items() if amount is not None}
        return replace(self, groups=(), **given)

    def hyperparameters(
        self,
        step: int,
        *,
        lr: float | Sequence[float] | None = None,
        driven: Sequence[Mapping[str, Any]] = (),
    ) -> dict[str, float]:
        """The scalars of step number ``step``, which counts from 1.

        Args:
            step: the step about to be made.
            lr: the learning rates of this step, in the order of `rates`, where a schedule changes them; one
                number is that of what is in no group.
            driven: in the same order, the ``momentum`` or ``betas`` of this step, where a schedule changes
                them.

        Raises:
            InputError: steps count from 1; or a momentum or beta is out of its range.
        """
        if step < 1:
            raise InputError(f"steps count from 1, not from {step}")
        specs = _groups_of(self)
        rates = [spec.lr for spec in specs]
        given = [] if lr is None else [lr] if isinstance(lr, int | float) else list(lr)
        rates[: len(given)] = given
        if driven:
            changed = [spec._driven_by(own) for spec, own in zip(specs, driven, strict=False)]
            specs = (*changed, *specs[len(changed) :])
        counted = float(min(step, LARGEST_STEP))
        return _named_scalars(spec._scalars(counted, rate) for spec, rate in zip(specs, rates, strict=True))

    def scalars_of_any(self, step: Any) -> dict[str, Any]:
        """`hyperparameters` as expressions of ``step``, which is a symbol or a tensor, at its own rates."""
        return _named_scalars(spec._scalars(step, spec.lr) for spec in _groups_of(self))

    def _driven_by(self, own: Mapping[str, Any]) -> OptimizerSpec:
        """With the momentum or betas of a step."""
        if all(self.driven.get(name) == amount for name, amount in own.items()):
            return self
        if "momentum" in own and not own["momentum"] > 0:
            raise InputError(
                f"optimizer {self.name}: the momentum of a step is {own['momentum']}; it must stay above 0"
            )
        return replace(self, **own)

    def update(self, parameter: str, gradient: str, states: tuple[str, ...]) -> Call:
        """The call that updates ``parameter`` and its ``states`` (in the order of `states`) in place."""
        number = self.group_of(parameter)
        spec = self.of_group(number)
        kept = dict(zip(spec.states, states, strict=True))

        def scalar(name: str) -> Symbol:
            return Symbol("hyperparameter", _scalar_name(name, number))

        def state(name: str) -> Argument:
            return Ref(kept[name]) if name in kept else None

        names, target = spec.kind.states.split(), f"poet.{spec.name}"
        if spec.has_maximum:
            names, target = [*names, MAXIMUM], f"{target}_amsgrad"
        tensors = (Ref(parameter), Ref(gradient), *map(state, names))
        changing = spec.kind.numbers(spec, 1.0, spec.lr)
        numbers = (
            scalar(name) if name in changing else spec._constant(name) for name in spec.kind.arguments.split()
        )
        return Call(target, (*tensors, *numbers))

    def _scalars(self, step: float, lr: float) -> dict[str, float]:
        driven = (name for name in ("beta1", "beta2", "momentum") if name in self.kind.arguments.split())
        made = self.kind.numbers(self, step, lr)
        return made | {name: self._constant(name) for name in driven}

    def _constant(self, argument: str) -> Any:
        """An argument of its kernel that no step changes."""
        if argument in ("beta1", "beta2"):
            return self.both_betas[argument == "beta2"]
        if argument == "decay_factor":
            return 1.0
        is_decoupled = self.decoupled_weight_decay and "decoupled_weight_decay" in OPTIONS[self.name]
        return 0.0 if argument == "weight_decay" and is_decoupled else self.in_force(argument)


def with_driven_numbers(call: Call) -> Call:
    """An update whose momentum or betas are given in each step, as its learning rate is.

    Any other call is given back as it is.
    """
    if call.target not in UPDATES or call.target == "poet.nadam":  # see `OptimizerSpec.driven`
        return call
    suffix = next((item.name.partition(".")[1:] for item in call.args if isinstance(item, Symbol)), ("", ""))

    def told(name: str, argument: Argument) -> Argument:
        # a momentum of 0 stays: such an update keeps no buffer; betas may begin at 0
        is_told = name in ("beta1", "beta2") or (name == "momentum" and argument)
        return Symbol("hyperparameter", name + "".join(suffix)) if is_told else argument

    named = zip(OWN[call.target], call.args, strict=True)
    return replace(call, args=tuple(told(name, argument) for name, argument in named))


@functools.lru_cache(maxsize=64)
def _groups_of(spec: OptimizerSpec) -> tuple[OptimizerSpec, ...]:
    """What is in no group, then the groups: checked once, not in every step."""
    return tuple(spec.of_group(number) for number in range(len(spec.groups) + 1))


def _scalar_name(name: str, group: int) -> str:
    return f"{name}.{group}" if group else name


def _named_scalars(scalars: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Those of each group, in order, as updates name them."""
    return {
        _scalar_name(name, number): amount
        for number, of_group in enumerate(scalars)
        for name, amount in of_group.items()
    }


def _check_amount(where: str, field: str, amount: float | None) -> None:
    if amount is not None and (not math.isfinite(amount) or amount < 0):
        raise InputError(f"{where}: {field} is {amount}, not a number from 0 up")
