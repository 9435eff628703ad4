"""What a constant of the search is: a number, or a tuple of them, and perhaps a value that is off."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import field
from typing import Any, TypeVar

from poet.errors import InputError

T = TypeVar("T")


def tuned(default: T, *, off: T) -> T:
    """A field of ``default`` whose value ``off`` switches off what it is for."""
    made: T = field(default=default, metadata={"off": off})
    return made


class Checked:
    """Numbers, or tuples of them, that are finite and not negative; whole ones and the lengths of tuples
    are at least 1, unless 0 switches the field off.
    """

    __slots__ = ()

    def __post_init__(self) -> None:
        for tuned in dataclasses.fields(self):  # type: ignore[arg-type]
            value, where = getattr(self, tuned.name), f"{type(self).__name__}.{tuned.name}"
            if not all(math.isfinite(number) and number >= 0 for number in _numbers(value)):
                raise InputError(f"{where}: {value!r} is not made of finite numbers of at least 0")
            if value in (0, ()) and not isinstance(value, float) and tuned.metadata.get("off") != value:
                raise InputError(f"{where}: {value!r} is too little; give at least 1")


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, tuple):
        for part in value:
            yield from _numbers(part)
    else:
        yield value
