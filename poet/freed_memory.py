"""Gives memory that this process has freed back to the operating system.

The C library keeps it for whoever asks next, and what a solver of ten thousand columns has freed may be much.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def give_back() -> None:
    """Give back what can be; where the C library is not glibc it does that as it sees fit."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """malloc_trim(3), an extension of glibc."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # TypeError: on Windows a library has a name
        return None
