"""``-v`` and ``--log FILE``: what a search or a sweep does, line by line, from the loggers below ``poet``."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from poet.errors import InputError, spelled_out
from poet.util.streams import say

ROOT = "poet"


class _Lines(logging.Formatter):
    """Seconds since the command began to listen, the room that speaks, and what it says."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.time()

    def format(self, record: logging.LogRecord) -> str:
        room = record.name.removeprefix(f"{ROOT}.").removeprefix("solvers.").partition(".")[0]
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        return f"{record.created - self._began:9.3f} s  {room:<11} {level}{spelled_out(record.getMessage())}"


class _LogFile(logging.FileHandler):
    """Written line by line, so that it can be followed; a full disk ends the log, not the search."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        error = sys.exc_info()[1]
        say(f"poet: {self.baseFilename}: the log ends here ({error})", err=True)
        self.setLevel(logging.CRITICAL + 1)


def check_log(file: Path | None) -> None:
    """Refuse stdout, which is for the report.

    Raises:
        InputError: ``file`` is ``-``.
    """
    if str(file) == "-":
        raise InputError("--log - is not a file; -v shows what the search does on stderr")


@contextmanager
def listening(*, verbose: bool, file: Path | None) -> Iterator[None]:
    """While the block runs, show the log on stderr where ``verbose``, and write all of it to ``file``."""
    handlers: list[logging.Handler] = []
    if verbose:
        handlers.append(logging.StreamHandler(sys.stderr))
        handlers[-1].setLevel(logging.INFO)
    if file is not None:
        handlers.append(_LogFile(file, mode="w", encoding="utf-8", errors="backslashreplace"))
        handlers[-1].setLevel(logging.DEBUG)
    lines, logger = _Lines(), logging.getLogger(ROOT)
    before = logger.level
    for handler in handlers:
        handler.setFormatter(lines)
        logger.addHandler(handler)
    if handlers:
        logger.setLevel(min(handler.level for handler in handlers))
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
