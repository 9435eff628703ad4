"""Options that several commands share, and how their text is read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from poet.errors import InputError
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


def read_time_limit(text: str) -> float | None:
    """Seconds of a ``--time-limit``; ``none`` searches until proven."""
    seconds = None if text == "none" else parse_seconds(text)
    if seconds is not None and (seconds <= 0 or not math.isfinite(seconds)):
        raise InputError(f"--time-limit {text!r} leaves no time; write for example 60s, or none")
    return seconds
