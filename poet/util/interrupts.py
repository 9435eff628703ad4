"""Requests to end: Ctrl-C, and in poet's own commands SIGTERM and SIGHUP as well.

In a block of `answered` a request is noted, and what is running is ended in order; elsewhere it is a
`KeyboardInterrupt`. In an app SIGTERM and SIGHUP are the app's affair: `listening` is for commands alone.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from poet.util.streams import drop_unread

Answer = Callable[[int, FrameType | None], object]
"""What a signal handler is: called with a signal's number."""

_asked = 0
_is_command = False
_ended_by: list[int] = []  # SIGTERM and SIGHUP
_heard_seconds = 0.0
_AT_ONCE_SECONDS = 1.0


def end(number: int, frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt`."""
    raise KeyboardInterrupt


_answer: Answer = end


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Answer SIGTERM and SIGHUP as Ctrl-C in the block; one that is ignored (``nohup``) stays so."""
    global _is_command
    _is_command = True
    taken = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _hear)
    try:
        yield
    finally:
        _is_command = False
        _ended_by.clear()
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _hear(number: int, frame: FrameType | None) -> None:
    """``timeout`` and service managers send two at once, and a terminal that is closed more: they are one."""
    global _heard_seconds
    before, _heard_seconds = _heard_seconds, time.monotonic()
    if not _ended_by or (number == signal.SIGTERM and _heard_seconds - before > _AT_ONCE_SECONDS):
        _ended_by.append(number)
        drop_unread()  # a terminal that is gone takes no more lines
        _answer(number, frame)


@contextlib.contextmanager
def answered(answer: Answer) -> Iterator[Callable[[], None]]:
    """Have ``answer`` called for a request in the block; gives what puts the answer from before back.

    Only the main thread hears signals. An app or a worker that ignores Ctrl-C goes on to do so; a command
    hears it here also as a shell's background job.
    """
    global _answer
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    outer, before = _answer, signal.getsignal(signal.SIGINT) or signal.SIG_DFL
    hears = _is_command or before is not signal.SIG_IGN

    def restore() -> None:
        global _answer
        _answer = outer
        if hears:
            signal.signal(signal.SIGINT, before)

    def count(number: int, frame: FrameType | None) -> None:
        global _asked
        _asked += 1
        answer(number, frame)

    _answer = count
    if hears:
        signal.signal(signal.SIGINT, count)
    try:
        yield restore
    finally:
        restore()


def pass_on() -> None:
    """Have a request that was noted answered by whoever answers now."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else _answer)(signal.SIGINT, None)


def times_asked() -> int:
    """How many requests were answered by blocks of `answered` until now."""
    return _asked


def was_told() -> bool:
    """Whether SIGTERM or SIGHUP came: what is raised for one may be lost, as in garbage collection."""
    return bool(_ended_by)


def exit_code() -> int:
    """What shells say of a process that the request ended: 130, 143 or 129."""
    return 128 + (_ended_by or [signal.SIGINT])[0]
