"""Loops over arrays that numpy has no function for, compiled by numba when they first run."""

from __future__ import annotations

import functools
import hashlib
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


@functools.cache
def mark_of(*modules: ModuleType) -> Path | None:
    """A file that is there where machine code of these very sources is kept; ``None``: it cannot be."""
    import numba

    last = modules[-1]
    functions = (getattr(each, "py_func", each) for each in vars(last).values())
    own = next(
        each for each in functions if isinstance(each, FunctionType) and each.__module__ == last.__name__
    )
    try:
        kept: Any = numba.njit(own, cache=True)
    except RuntimeError:  # there is no folder that it may be kept in
        return None
    sources = b"".join(Path(str(module.__file__)).read_bytes() for module in modules)
    name = f"{Path(str(last.__file__)).stem}-{hashlib.sha256(sources).hexdigest()[:16]}.kept"
    return Path(kept.stats.cache_path) / name


def is_kept(*modules: ModuleType) -> bool:
    """Whether `python -m poet.solvers` has compiled these very sources here; else it takes long."""
    mark = mark_of(*modules)
    return mark is not None and mark.exists()


def starts_within(seconds: float, module: ModuleType) -> bool:
    """Whether loops of ``module`` run within so many seconds: loading and compiling are not interrupted."""
    if seconds < 1.0 and "numba" not in sys.modules:
        return False
    return seconds >= 5.0 or is_kept(module)
