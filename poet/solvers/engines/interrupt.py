"""Ctrl-C, and what is answered like it, while an engine runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from poet.interrupts import answered


@contextlib.contextmanager
def sigint_flag() -> Iterator[list[int]]:
    """A list that is no longer empty once the user pressed Ctrl-C; nothing is raised meanwhile."""
    pressed: list[int] = []
    with answered(lambda number, frame: pressed.append(number)):
        yield pressed
