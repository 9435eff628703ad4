"""Loops over arrays that numpy has no function for, compiled by numba when they first run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
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
        try:
            return self._machine(*args, **kwargs)
        except OSError:  # what was compiled cannot be kept: the disk is full
            self._machine = _compiled(self._function, cache=False)
            return self._machine(*args, **kwargs)


def _compiled(function: Callable[P, R], *, cache: bool = True) -> Callable[P, R]:
    import numba

    try:
        kept = numba.njit(function, cache=cache)
    except RuntimeError:  # there is no folder that it may be kept in
        kept = numba.njit(function)
    return cast("Callable[P, R]", kept)


def loaded(module: ModuleType) -> ModuleType:
    """``module``, whose functions are machine code from now on and call each other as such."""
    for name, function in tuple(vars(module).items()):
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            setattr(module, name, _compiled(function))
    return module


def is_kept(module: ModuleType, last: str) -> bool:
    """Whether the machine code of ``module`` is there, its function ``last`` included; else it takes long."""
    function = vars(module)[last]
    if not isinstance(function, FunctionType):
        return True
    import numba

    try:
        kept: Any = numba.njit(function, cache=True)
        folder = Path(kept.stats.cache_path)
    except RuntimeError:  # there is no folder that it may be kept in
        return False
    written = Path(str(module.__file__)).stat().st_mtime
    found = folder.glob(f"{module.__name__.rpartition('.')[2]}.{last}-*.nbi")
    return any(index.stat().st_mtime >= written for index in found)
