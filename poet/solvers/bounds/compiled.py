"""Loops over arrays that numpy has no function for, compiled by numba when they first run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


_LOOPS: list[Compiled[Any, Any]] = []


def all_ready() -> bool:
    """Whether the machine code of each loop that was imported is there: else it takes seconds, once."""
    return all(loop.is_ready() for loop in _LOOPS)


def is_loaded() -> bool:
    """Whether numba is there already: else what is kept takes half a second, once in each process."""
    return "numba" in sys.modules


class Compiled(Generic[P, R]):
    """A function on arrays and numbers, as machine code from its first call on.

    numba is imported then, so that a search without such loops has neither its memory nor its start. What it
    compiles is kept beside the module, or in the user's cache, and read from there by the next process.

    Args:
        function: of what numba compiles without Python objects; it calls no other of these.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self._function, self.__doc__ = function, function.__doc__
        self._machine: Callable[P, R] | None = None
        _LOOPS.append(self)

    def is_ready(self) -> bool:
        """Whether its machine code is there: loaded, or kept beside the module and not older."""
        if self._machine is not None:
            return True
        module = Path(self._function.__code__.co_filename)
        kept = module.parent.glob(f"__pycache__/{module.stem}.{self._function.__name__}-*.nbi")
        written = module.stat().st_mtime
        return any(index.stat().st_mtime >= written for index in kept)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As the function."""
        if self._machine is None:
            self._machine = _compiled(self._function)
        return self._machine(*args, **kwargs)


def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    import numba

    try:
        kept = numba.njit(function, cache=True)
    except RuntimeError:  # there is no folder that it may be kept in
        kept = numba.njit(function)
    return cast("Callable[P, R]", kept)
