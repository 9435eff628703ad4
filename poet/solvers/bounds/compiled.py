"""Loops over arrays that numpy has no function for, compiled by numba when they first run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any


def _compiled(function: Callable[..., Any]) -> Any:
    import numba

    try:
        return numba.njit(function, cache=True)
    except RuntimeError:  # there is no folder that it may be kept in
        return numba.njit(function)


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


def starts_within(seconds: float, module: ModuleType, last: str) -> bool:
    """Whether loops of ``module`` run within so many seconds: loading and compiling are not interrupted."""
    if seconds < 1.0 and "numba" not in sys.modules:
        return False
    return seconds >= 5.0 or is_kept(module, last)
