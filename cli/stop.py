"""Ctrl-C between two training steps, so that there is a whole state to save."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self


class Stopped(Exception):
    """The step after Ctrl-C is done."""


class Stop:
    """While open, the first Ctrl-C only asks to stop; a second one interrupts at once."""

    def __init__(self) -> None:
        self.is_wanted = False

    def after(self, watch: Callable[[int, int, float], None]) -> Callable[[int, int, float], None]:
        """``watch``, and then `Stopped` where a stop was asked for during the step."""

        def watch_and_stop(step: int, of: int, loss: float) -> None:
            watch(step, of, loss)
            if self.is_wanted:
                raise Stopped

        return watch_and_stop

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.is_wanted:
            raise KeyboardInterrupt
        self.is_wanted = True
