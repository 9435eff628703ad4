"""Memory of this process: how much it holds, and giving back what is freed."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path


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


_ROLLUP = Path("/proc/self/smaps_rollup")
_BEGAN_WITH_BYTES: ContextVar[int | None] = ContextVar("held as a search began", default=None)


def held_bytes(rollup: Path = _ROLLUP) -> int:
    """Bytes of memory, pages that it shares with others divided among them; 0 where the system does not tell.

    Linux's proportional set size, proc_pid_smaps_rollup(5).
    """
    try:
        lines = rollup.read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


@contextlib.contextmanager
def counted_from_here() -> Iterator[None]:
    """While in this context, `own_bytes` counts from what this process held when the context began.

    Of contexts inside one another, the outermost counts.
    """
    if _BEGAN_WITH_BYTES.get() is not None:
        yield
        return
    token = _BEGAN_WITH_BYTES.set(held_bytes())
    try:
        yield
    finally:
        _BEGAN_WITH_BYTES.reset(token)


def own_bytes(begin_bytes: int) -> int | None:
    """Bytes of memory that the search in this process holds; ``None`` where the system does not tell.

    These are what came since `counted_from_here` began, and of what was there before ``begin_bytes`` at most:
    an app may hold gigabytes of its own, torch alone 0.2 to 0.4. Outside that context all was there before.
    """
    now_bytes, began_with_bytes = held_bytes(), _BEGAN_WITH_BYTES.get()
    if not now_bytes:
        return None
    before_bytes = now_bytes if began_with_bytes is None else began_with_bytes
    return max(now_bytes - max(before_bytes - begin_bytes, 0), 0)
