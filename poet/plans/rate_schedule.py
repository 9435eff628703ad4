"""Learning rates over a training: by name, with options, as a factor of the rates that the plan has.

``constant``, ``linear``, ``cosine`` and ``step``, each after a linear ``warmup`` of so many steps. The factor
of a step follows from its number alone, so that a training that is resumed goes on with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from poet.errors import InputError, nearest
from poet.named_options import options_of

_OPTIONS = {
    "constant": ("warmup",),
    "linear": ("warmup", "steps", "end"),
    "cosine": ("warmup", "steps", "end"),
    "step": ("warmup", "every", "factor"),
}
SCHEDULES = tuple(_OPTIONS)
_MOST_STEPS = 10**12


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """A schedule.

    Attributes:
        name: one of `SCHEDULES`.
        warmup: steps over which the rate grows linearly to its full height.
        steps: of the whole training, warm-up included; ``None``: not known yet.
        end: the factor at the end, of ``linear`` and ``cosine``.
        every, factor: of ``step``: after every so many steps the rate is multiplied by ``factor``.
    """

    name: str
    warmup: int = 0
    steps: int | None = None
    end: float = 0.0
    every: int = 1000
    factor: float = 0.1

    @staticmethod
    def parse(text: str) -> RateSchedule:
        """The schedule in ``NAME`` or ``NAME:option=value,...``, such as ``cosine:warmup=100``.

        Raises:
            InputError: there is none of that name, or it has no such option or value.
        """
        name, colon, written = text.partition(":")
        if name not in SCHEDULES:
            raise InputError(
                f"schedule {name!r} is not one of {', '.join(SCHEDULES)}{nearest(name, SCHEDULES)}"
            )
        made = RateSchedule(name)
        kinds = {field.name: field.type for field in fields(RateSchedule)}
        written_options = options_of(f"schedule {text!r}", name, written, _OPTIONS[name]) if colon else ()
        for option, value in written_options:
            number: Any = _number(text, option, value, whole="int" in str(kinds[option]))
            made = replace(made, **{option: number})
        return made

    def over(self, steps: int) -> RateSchedule:
        """The same schedule, of a training of ``steps`` where it does not say how many itself."""
        return self if self.steps is not None else replace(self, steps=steps)

    def factor_of(self, step: int) -> float:
        """What the learning rates are multiplied by in step number ``step``, which counts from 0."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        past = step - self.warmup
        if self.name == "constant":
            return 1.0
        if self.name == "step":
            return self.factor ** (past // self.every)
        if self.steps is None:
            raise InputError(f"schedule {self.name} needs the number of steps: {self.name}:steps=1000")
        share = min(1.0, past / max(1, self.steps - self.warmup))
        if self.name == "linear":
            return 1.0 + (self.end - 1.0) * share
        return self.end + (1.0 - self.end) * 0.5 * (1.0 + math.cos(math.pi * share))


def _number(text: str, option: str, value: str, *, whole: bool) -> float:
    try:
        number: float = int(value) if whole and value.isascii() and value.isdigit() else math.nan
        number = number if whole else float(value)
    except ValueError:
        number = math.nan
    least = 1 if option in ("every", "steps") else 0
    if not least <= number <= _MOST_STEPS:
        kind = "whole number" if whole else "number"
        raise InputError(f"schedule {text!r}: {option} is a {kind} from {least} up")
    return number
