"""Ctrl-C while an engine runs."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def sigint_flag() -> Iterator[list[int]]:
    """A list that is no longer empty once the user pressed Ctrl-C; nothing is raised meanwhile."""
    pressed: list[int] = []
    try:
        before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    except ValueError:  # not in the main thread: no signals arrive here
        yield pressed
        return
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
