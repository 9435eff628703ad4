"""Processes that poet starts, and what memory one holds.

Children take no code from the current folder, and end with whoever started them.

``python -m`` and ``python -c`` put the current folder first on the import path, so that a ``torch.py``
that lies there would be run. Every interpreter is therefore started by `command`, and those that a
library starts inherit ``PYTHONSAFEPATH`` from `safe_path`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path

_SAFE_PATH = "PYTHONSAFEPATH"
_PARENT = "POET_PARENT"
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def command(module: str, *arguments: str) -> list[str]:
    """The command line that runs ``module`` of poet by this interpreter."""
    return [sys.executable, "-P", "-m", module, *arguments]


def command_of(code: str) -> list[str]:
    """The command line that runs ``code`` by this interpreter."""
    return [sys.executable, "-P", "-c", code]


def environment() -> dict[str, str]:
    """For a child of `command`: as here, with the folder that poet was imported from first on the import
    path; the child's own children do not import from the current folder either.
    """
    root, inherited = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root,
        _SAFE_PATH: "1",
        _PARENT: str(os.getpid()),
    }


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Interpreters that a library starts in the ``with`` block do not import from the current folder."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SAFE_PATH, None)
        else:
            os.environ[_SAFE_PATH] = before


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Processes that are started in the ``with`` block hear neither SIGTERM nor SIGHUP.

    A terminal and a service manager send them to all processes; the one that started the others answers.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent(parent: int | None = None) -> None:
    """Make the kernel kill this process as soon as the one that started it is gone, however it went.

    Requests to end are that one's to answer (see `undisturbed`). The kernel watches the thread that started
    this process, which must not end before its children.

    Args:
        parent: its process number; ``None``: the one that `environment` was called in.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    expected = int(os.environ.get(_PARENT, "0")) if parent is None else parent
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
    if expected and os.getppid() != expected:  # it was gone before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


# --- memory of this process -------------------------------------------------------------------


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
