"""Standard streams: lines of text go out here; some are closed (``>&-``), or nobody reads them any more."""

from __future__ import annotations

import os
import select
import sys

from poet.errors import spelled_out

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def say(line: str, *, err: bool = False) -> None:
    """Write ``line`` to stdout, or to stderr; what it quotes of a file cannot end it or steer a terminal."""
    print(spelled_out(line), file=sys.stderr if err else sys.stdout, flush=True)


def drop_unread() -> bool:
    """Lead such streams to the null device, so that no other file gets their number; whether one was so."""
    poll = select.poll()
    for number in range(len(_MODES)):
        poll.register(number, 0)
    # a pipe to stdin whose writer is gone may still have something in it
    gone = [number for number, event in poll.poll(0) if number > 0 or event & select.POLLNVAL]
    for number in sorted(gone):
        null = os.open(os.devnull, os.O_RDWR)
        if null != number:
            os.dup2(null, number)
            os.close(null)
    for number, (name, mode) in enumerate(_MODES.items()):
        if getattr(sys, name) is None:  # so Python says that it was closed when the process began
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
    return bool(gone)
