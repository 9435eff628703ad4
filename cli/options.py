"""Options that several commands share, and how their text is read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from poet.errors import InputError, nearest
from poet.problem import Objective, Pins
from poet.units import parse_seconds


class Loss(StrEnum):
    """Losses by the name they have on the command line."""

    CROSS_ENTROPY = "cross-entropy"
    MSE = "mse"
    BCE_WITH_LOGITS = "bce-with-logits"
    OUTPUT = "output"


class Optimizer(StrEnum):
    """Optimizers by the name they have on the command line."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAMW = "adamw"


class Minimise(StrEnum):
    """What a plan takes the least of, by the name it has on the command line."""

    ENERGY = "energy"
    TIME = "time"
    RAM = "ram"
    WRITES = "writes"


class Home(StrEnum):
    """Where parameters and optimizer state are between steps."""

    RAM = "ram"
    STORAGE = "storage"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Ask:
    """What every `poet solve` is asked, with or without a model; the fields are its options."""

    ram: str | None
    deadline: str | None
    recompute: bool
    paging: bool
    time_limit_seconds: float | None
    engine: str
    threads: int
    compare: bool
    minimise: Objective
    energy_budget: str | None
    write_budget: str | None
    storage: str | None
    pins: Pins
    trade_off: tuple[Objective, Objective] | None
    points: int | None
    json_file: Path | None


BindOption = Annotated[
    list[str] | None,
    typer.Option("--bind", metavar="NAME=SIZE", help="Size of a dynamic dimension, e.g. N=8; repeatable."),
]
JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the answer as JSON; - is stdout.")
]
PageFileOption = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Where tensors are paged; default: an unnamed file beside the plan."),
]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="For torch; default: all cores.")]
PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file made by `poet solve -o`.")]


def device_names(incomplete: str) -> list[str]:
    """Devices that come with poet, for the shell's completion."""
    from poet.profiles import profile_names

    return [name for name in profile_names() if name.startswith(incomplete)]


def read_bindings(bindings: Iterable[str] | None) -> dict[str, int]:
    """``["N=8"]`` as ``{"N": 8}``.

    Raises:
        InputError: one is not NAME=SIZE with a whole SIZE from 1 up.
    """
    sizes: dict[str, int] = {}
    for binding in bindings or ():
        name, _, size = binding.partition("=")
        if not name or not size.isdecimal() or int(size) < 1:
            raise InputError(f"--bind {binding!r} is not NAME=SIZE; write for example --bind N=8")
        sizes[name] = int(size)
    return sizes


def read_trade_off(text: str | None) -> tuple[Objective, Objective] | None:
    """The two objectives of ``ram,energy``.

    Raises:
        InputError: there are not two, one is unknown, or both are the same.
    """
    if text is None:
        return None
    words = [objective.value for objective in Objective]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in words:
            known = ", ".join(words)
            raise InputError(f"--trade-off {text!r}: {name!r} is not one of {known}{nearest(name, words)}")
    if len(names) != 2 or names[0] == names[1]:
        raise InputError(f"--trade-off {text!r} is not two objectives; write for example ram,energy")
    return Objective(names[0]), Objective(names[1])


def read_time_limit(text: str) -> float | None:
    """Seconds of a ``--time-limit``; ``none`` searches until proven."""
    seconds = None if text == "none" else parse_seconds(text)
    if seconds is not None and (seconds <= 0 or not math.isfinite(seconds)):
        raise InputError(f"--time-limit {text!r} leaves no time; write for example 60s, or none")
    return seconds
