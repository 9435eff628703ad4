"""Which optimizers there are: what each keeps per parameter, its settings, and why others are not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from poet.errors import InputError, nearest
from poet.ir.named_options import options_of

STATES: dict[str, dict[str, float]] = {
    "sgd": {},
    # from minus zero the first update gives the gradient bit for bit, its own minus zeros included
    "momentum": {"momentum_buffer": -0.0},
    "adam": {"exp_avg": 0.0, "exp_avg_sq": 0.0},
    "adamw": {"exp_avg": 0.0, "exp_avg_sq": 0.0},
    "rmsprop": {"square_avg": 0.0, "momentum_buffer": 0.0, "grad_avg": 0.0},
    "adagrad": {"sum": 0.0},
    "lion": {"exp_avg": 0.0},
    "adadelta": {"square_avg": 0.0, "acc_delta": 0.0},
    "adamax": {"exp_avg": 0.0, "exp_inf": 0.0},
    "nadam": {"exp_avg": 0.0, "exp_avg_sq": 0.0},
    "radam": {"exp_avg": 0.0, "exp_avg_sq": 0.0},
}
"""Per optimizer, the tensors it may keep for each parameter and what they are filled with at first."""

MAXIMUM = "max_exp_avg_sq"
UPDATES = frozenset({f"poet.{name}" for name in STATES} | {"poet.adam_amsgrad", "poet.adamw_amsgrad"})
"""The operators that `OptimizerSpec.update` calls."""

OPTIONS: dict[str, tuple[str, ...]] = {
    "sgd": ("lr", "weight_decay", "maximize"),
    "momentum": ("lr", "momentum", "dampening", "nesterov", "weight_decay", "maximize"),
    "adam": ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"),
    "adamw": ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize"),
    "rmsprop": ("lr", "alpha", "momentum", "centered", "eps", "weight_decay", "maximize"),
    "adagrad": ("lr", "lr_decay", "initial", "eps", "weight_decay", "maximize"),
    "lion": ("lr", "betas", "weight_decay", "maximize"),
    "adadelta": ("lr", "rho", "eps", "weight_decay", "maximize"),
    "adamax": ("lr", "betas", "eps", "weight_decay", "maximize"),
    "nadam": (
        "lr", "betas", "eps", "momentum_decay", "weight_decay", "decoupled_weight_decay", "maximize",
    ),
    "radam": ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay", "maximize"),
}  # fmt: skip
"""Per optimizer, the settings that it has."""

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
    return InputError(f"optimizer {name!r} is not one of {', '.join(STATES)}{nearest(name, STATES)}")


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
