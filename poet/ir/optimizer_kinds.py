"""The optimizers that there are, one class each: settings, states, the numbers of a step, kernel and C.

The numbers are those of `torch.optim`, in Python floats, operation for operation, so that replay gives the
same bits. The arithmetic itself is a function of `poet.runtime.kernels.updates`, named as the optimizer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, Protocol

from poet.errors import InputError, nearest
from poet.ir.op_spec import CKernel, OpClass, OpSpec, per_input, rule
from poet.util.units import options_of

MAXIMUM = "max_exp_avg_sq"


class Settings(Protocol):
    """What the numbers follow from: the settings in force of a `poet.ir.optimizer.OptimizerSpec`."""

    @property
    def both_betas(self) -> tuple[float, float]: ...
    @property
    def decay(self) -> float: ...
    @property
    def inertia(self) -> float: ...
    @property
    def dampening(self) -> float: ...
    @property
    def lr_decay(self) -> float: ...
    @property
    def initial(self) -> float: ...
    @property
    def momentum_decay(self) -> float: ...
    @property
    def decoupled_weight_decay(self) -> bool: ...
    @property
    def centered(self) -> bool: ...
    @property
    def has_maximum(self) -> bool: ...


class Kind:
    """An optimizer.

    Attributes:
        torch: the class of `torch.optim` that it is; torch has no Lion.
        options: the settings that it has.
        states: tensors that it may keep for each parameter.
        fill: what they are filled with at first.
        arguments: what its kernel is given behind parameter, gradient and states.
        flops: of an update, per element.
        weight_decay, momentum, betas, eps: as usual.
        op_class: of an update.
        c: its kernel in C.
    """

    torch: ClassVar[str]
    options: ClassVar[str]
    states: ClassVar[str]
    fill: ClassVar[float] = 0.0
    arguments: ClassVar[str]
    flops: ClassVar[float]
    weight_decay: ClassVar[float] = 0.0
    momentum: ClassVar[float] = 0.0
    betas: ClassVar[tuple[float, float]] = (0.9, 0.999)
    eps: ClassVar[float] = 1e-8
    op_class: ClassVar[OpClass] = OpClass.ADAPTIVE_UPDATE
    c: ClassVar[CKernel | None] = None

    def kept(self, spec: Settings) -> dict[str, float]:
        """Those of the states that it keeps with these settings."""
        names = (*self.states.split(), *([MAXIMUM] if spec.has_maximum else []))
        return dict.fromkeys(names, self.fill)

    def numbers(self, spec: Settings, step: float, lr: float) -> dict[str, float]:
        """Those of its arguments that change with the step, from 1; ``lr`` is the step's learning rate."""
        return {"lr": lr}


class Sgd(Kind):
    """`torch.optim.SGD` without momentum."""

    torch, options, states = "SGD", "lr weight_decay maximize", ""
    arguments, flops, op_class = "lr weight_decay", 4, OpClass.ELEMENTWISE
    c = CKernel(rule("updates.updated"))


class Momentum(Kind):
    """`torch.optim.SGD` with momentum."""

    torch, options = "SGD", "lr momentum dampening nesterov weight_decay maximize"
    # from minus zero the first update gives the gradient bit for bit, its own minus zeros included
    states, fill = "momentum_buffer", -0.0
    arguments, flops, op_class = "lr gradient_share momentum weight_decay nesterov", 6, OpClass.ELEMENTWISE
    momentum = 0.9
    c = CKernel(rule("updates.updated"))

    def numbers(self, spec: Settings, step: float, lr: float) -> dict[str, float]:
        # torch.optim.SGD puts the first gradient into an empty buffer as it is
        return {"lr": lr, "gradient_share": 1.0 if step == 1 else 1 - spec.dampening}


class Adam(Kind):
    """`torch.optim.Adam`."""

    torch, options = "Adam", "lr betas eps weight_decay amsgrad maximize"
    states = "exp_avg exp_avg_sq"
    arguments, flops = "step_size second_moment_correction beta1 beta2 eps weight_decay", 20

    def numbers(self, spec: Settings, step: float, lr: float) -> dict[str, float]:
        beta1, beta2 = spec.both_betas
        return {"step_size": lr / (1 - beta1**step), "second_moment_correction": (1 - beta2**step) ** 0.5}


class AdamW(Adam):
    """`torch.optim.AdamW`."""

    torch, weight_decay = "AdamW", 0.01
    arguments = "decay_factor step_size second_moment_correction beta1 beta2 eps"
    c = CKernel(rule("updates.updated"))

    def numbers(self, spec: Settings, step: float, lr: float) -> dict[str, float]:
        return {"decay_factor": 1 - lr * spec.decay, **super().numbers(spec, step, lr)}


class RmsProp(Kind):
    """`torch.optim.RMSprop`."""

    torch, options = "RMSprop", "lr alpha momentum centered eps weight_decay maximize"
    states = "square_avg momentum_buffer grad_avg"
    arguments, flops = "lr alpha eps momentum weight_decay", 18

    def kept(self, spec: Settings) -> dict[str, float]:
        left_out = {"momentum_buffer": spec.inertia == 0.0, "grad_avg": not spec.centered}
        return {name: 0.0 for name in self.states.split() if not left_out.get(name)}


class Adagrad(Kind):
    """`torch.optim.Adagrad`."""

    torch, options = "Adagrad", "lr lr_decay initial eps weight_decay maximize"
    states, eps = "sum", 1e-10
    arguments, flops = "step_size eps weight_decay", 14

    def kept(self, spec: Settings) -> dict[str, float]:
        return {"sum": spec.initial}

    def numbers(self, spec: Settings, step: float, lr: float) -> dict[str, float]:
        return {"step_size": lr / (1 + (step - 1) * spec.lr_decay)}


class Lion(Kind):
    """Chen et al., "Symbolic discovery of optimization algorithms", 2023, algorithm 2."""

    torch, options, states = "", "lr betas weight_decay maximize", "exp_avg"
    arguments, flops, betas = "lr decay_factor beta1 beta2", 9, (0.9, 0.99)

    def numbers(self, spec: Settings, step: float, lr: float) -> dict[str, float]:
        return {"lr": lr, "decay_factor": 1 - lr * spec.decay}


class Adadelta(Kind):
    """`torch.optim.Adadelta`."""

    torch, options = "Adadelta", "lr rho eps weight_decay maximize"
    states, eps = "square_avg acc_delta", 1e-6
    arguments, flops = "lr rho eps weight_decay", 27


class Adamax(Kind):
    """`torch.optim.Adamax`."""

    torch, options = "Adamax", "lr betas eps weight_decay maximize"
    states = "exp_avg exp_inf"
    arguments, flops = "step_size beta1 beta2 eps weight_decay", 14

    def numbers(self, spec: Settings, step: float, lr: float) -> dict[str, float]:
        return {"step_size": lr / (1 - spec.both_betas[0] ** step)}


class NAdam(Kind):
    """`torch.optim.NAdam` (Dozat, 2016), which keeps the product of the momenta so far as a float32."""

    torch = "NAdam"
    options = "lr betas eps momentum_decay weight_decay decoupled_weight_decay maximize"
    states = "exp_avg exp_avg_sq"
    arguments = (
        "decay_factor weight_decay gradient_step_size step_size second_moment_correction beta1 beta2 eps"
    )
    flops = 29

    def numbers(self, spec: Settings, step: float, lr: float) -> dict[str, float]:
        beta1, beta2 = spec.both_betas
        product = _product_of_momenta(beta1, spec.momentum_decay, int(step))
        now, ahead = (_momentum(beta1, spec.momentum_decay, count) for count in (step, step + 1))
        return {
            **_decoupled(spec, lr),
            "gradient_step_size": lr * (1.0 - now) / (1.0 - product),
            "step_size": lr * ahead / (1.0 - product * ahead),
            "second_moment_correction": 1 - beta2**step,
        }


class RAdam(Kind):
    """`torch.optim.RAdam`."""

    torch, options = "RAdam", "lr betas eps weight_decay decoupled_weight_decay maximize"
    states = "exp_avg exp_avg_sq"
    arguments = (
        "decay_factor weight_decay lr first_moment_correction second_moment_correction rectification "
        "beta1 beta2 eps"
    )
    flops = 28

    def numbers(self, spec: Settings, step: float, lr: float) -> dict[str, float]:
        beta1, beta2 = spec.both_betas
        return {
            **_decoupled(spec, lr),
            "lr": lr,
            "first_moment_correction": 1 - beta1**step,
            "second_moment_correction": (1 - beta2**step) ** 0.5,
            "rectification": _rectification(beta2, step),
        }


KINDS: Mapping[str, Kind] = {
    type(kind).__name__.lower(): kind
    for kind in (
        *(Sgd(), Momentum(), Adam(), AdamW(), RmsProp(), Adagrad(), Lion(), Adadelta(), Adamax(), NAdam()),
        RAdam(),
    )
}
"""Each optimizer by its name, which is that of its kernel."""

OPTIONS: Mapping[str, tuple[str, ...]] = {name: tuple(kind.options.split()) for name, kind in KINDS.items()}
"""Per optimizer, the settings that it has."""


def updates() -> Iterator[OpSpec]:
    """The rows of the operators that update a parameter and what is kept for it, in place."""
    for name, kind in KINDS.items():
        maxima = ((), (MAXIMUM,)) if "amsgrad" in OPTIONS[name] else ((),)
        for more in maxima:
            states = (*kind.states.split(), *more)
            yield OpSpec(
                f"poet.{name}{'_amsgrad' if more else ''}",
                kind.op_class,
                per_input(kind.flops + len(more)),
                arguments=" ".join(("parameter gradient", *states, kind.arguments)),
                writes=(0, *range(2, 2 + len(states))),
                c=None if more else kind.c,
            )


# --- numbers of a step ------------------------------------------------------------------------


def _decoupled(spec: Settings, lr: float) -> dict[str, float]:
    """What the parameter is multiplied with, where its decay does not pass through the gradient."""
    return {"decay_factor": 1 - lr * spec.decay} if spec.decoupled_weight_decay else {}


def _momentum(beta1: float, momentum_decay: float, count: float) -> float:
    """Of step ``count`` of NAdam (Dozat, 2016)."""
    return float(beta1 * (1.0 - 0.5 * (0.96 ** (count * momentum_decay))))


def _product_of_momenta(beta1: float, momentum_decay: float, count: int) -> float:
    """The product of the momenta of the first ``count`` steps of NAdam, rounded to float32 after each."""
    known = _products(beta1, momentum_decay)
    while len(known) <= count:
        step = _as_float32(_momentum(beta1, momentum_decay, float(len(known))))
        product = _as_float32(known[-1] * step)
        if product == known[-1]:  # momenta rise below 1, so that it stays
            break
        known.append(product)
    return known[min(count, len(known) - 1)]


@cache
def _products(beta1: float, momentum_decay: float) -> list[float]:
    """By step, as far as they were needed."""
    return [1.0]


def _as_float32(number: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", number))[0]
    return found


def _rectification(beta2: float, count: float) -> float:
    """The factor of RAdam's step (Liu et al., 2020, equation 5); 0 in the first steps, which have none."""
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * count * (beta2**count) / (1 - beta2**count)
    if length <= 5.0:
        return 0.0
    above = (length - 4) * (length - 2) * longest
    return float((above / ((longest - 4) * (longest - 2) * length)) ** 0.5)


# --- names and settings as text ---------------------------------------------------------------

_IN_A_LOOP = "a loop of your own under poet.wrap keeps it"
NOT_HAD: dict[str, str] = {
    "asgd": "the average of the weights that it makes is not what a plan trains, evaluates and saves; "
    f"{_IN_A_LOOP}",
    "rprop": f"it compares the signs of whole data sets' gradients, which batches do not give; {_IN_A_LOOP}",
    "lbfgs": "it computes the loss several times per step, as the values want it, and a plan's step once",
    "adafactor": "its state is a row and a column of each weight, and its step has the mean square of the "
    f"whole weight, while updates here go element by element; {_IN_A_LOOP}",
    "sparseadam": "it takes sparse gradients, and those of a plan are dense",
    "muon": "its step multiplies each weight's whole gradient with itself, while updates here go element by "
    f"element; {_IN_A_LOOP}",
}
"""The optimizers of torch that poet has not, in small letters, and why."""


def unknown(name: str) -> InputError:
    """There is no optimizer of this name."""
    why = NOT_HAD.get(name.lower())
    if why is not None:
        return InputError(f"optimizer {name!r} is not one that poet has: {why}")
    return InputError(f"optimizer {name!r} is not one of {', '.join(KINDS)}{nearest(name, KINDS)}")


def options_in(where: str, name: str, text: str, known: Sequence[str]) -> dict[str, Any]:
    """What ``option=value,...`` gives.

    Raises:
        InputError: ``name`` has no such option, it is given twice, or has another kind of value.
    """
    found: dict[str, Any] = {}
    for option, value in options_of(where, name, text, known):
        try:
            found[option] = _value(option, value)
        except ValueError as error:
            raise InputError(f"{where}: {option} {error}") from None
    return found


def _value(option: str, text: str) -> object:
    if option in ("nesterov", "centered", "amsgrad", "maximize", "decoupled_weight_decay"):
        if text not in ("yes", "no"):
            raise ValueError("is yes or no")
        return text == "yes"
    try:
        numbers = tuple(map(float, text.split("/")))
    except ValueError:
        numbers = ()
    if option == "betas":
        if len(numbers) != 2:
            raise ValueError("are two numbers with / between, for example 0.9/0.999")
        return numbers
    if len(numbers) != 1:
        raise ValueError("is a number")
    return numbers[0]


def written(record: Any, options: Sequence[str]) -> str:
    """``option=value,...`` of what a dataclass has not as usual; `options_in` reads it back."""
    usual = {field.name: field.default for field in fields(record)}
    given = {name: getattr(record, name) for name in options if getattr(record, name) != usual[name]}
    return ",".join(f"{name}={_text(amount)}" for name, amount in given.items())


def _text(amount: object) -> str:
    if isinstance(amount, bool):
        return "yes" if amount else "no"
    return "/".join(map(repr, amount)) if isinstance(amount, tuple) else repr(amount)
