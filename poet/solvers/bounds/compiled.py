"""Loops over arrays that numpy has no function for, compiled by numba when they first run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


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
