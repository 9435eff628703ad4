"""Settings of optimizers and parameter groups as text: ``option=value,...``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from poet.errors import InputError
from poet.named_options import options_of


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
