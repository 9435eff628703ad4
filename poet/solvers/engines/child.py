"""A solver in a process of its own: both ends of its pipes. Requests go in, lines of JSON come out."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import IO, Any

from poet import children
from poet.closing import Closing
from poet.freed_memory import give_back
from poet.held_memory import own_bytes

TELL_SECONDS = 0.2
"""Between two bounds that a child tells, looks at what it holds, and looks for Ctrl-C while it is waited for;
less often, a search sees its bound late, and a person waits."""

SILENT_SECONDS = 120.0
"""Of the wall clock, of silence, after which a child whose work is counted counts as hung; without, a program
that HiGHS repeats without end is waited for as long."""

HELD_BYTES = 440_000_000
"""That a search and its engine in a child may hold together, beyond which the child ends its program with
what it has found; without, it takes what there is."""

COLUMN_BYTES = 10_000
"""By each column of a program, where that is more; without, large programs end as they begin."""

BEGIN_BYTES = 50_000_000
"""Of what this process holds as a search begins, that counts as the search's, about what it takes to solve a
problem's file; with more, an app's own gigabytes leave a child nothing."""

CHILD_BYTES = 120_000_000
"""That a child may hold in any case; without, a large search has no engine."""


def most_child_bytes(columns: int) -> int:
    """Bytes that a child may hold while it solves a program of so many columns; 0: there is no limit.

    It is what the search in this process leaves of `HELD_BYTES`, and `CHILD_BYTES` at least.
    """
    here_bytes = own_bytes(BEGIN_BYTES)
    if here_bytes is None:
        return 0
    return max(max(HELD_BYTES, COLUMN_BYTES * columns) - here_bytes, CHILD_BYTES)


class Child(Closing):
    """A module of poet as a process; leaving the context ends it, however far it is.

    Ctrl-C is this process's to answer: the child does not get it. It ends itself when its stdin is closed,
    so it does not outlive the process that uses its answer.
    """

    def __init__(self, module: str) -> None:
        give_back()  # so that both together hold less
        self.gone = False
        self._lines = queue.SimpleQueue[bytes | None]()
        self._errors = open(os.memfd_create("errors"), "w+b")  # noqa: SIM115 - closed with the child
        with children.undisturbed():
            self._process = subprocess.Popen(
                children.command(module),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=children.environment(),
                start_new_session=True,
            )
        threading.Thread(target=_read, args=(_open(self._process.stdout), self._lines), daemon=True).start()
        # at exit as well, while the thread that reads can still give its pipe back: later, that ends Python
        self._end = weakref.finalize(self, _end, self._process, self._errors)

    def close(self) -> None:
        """End the child, whatever it is at."""
        self._end()

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def suspend(self) -> None:
        """Let it work no more until `resume`; where processes cannot be stopped, it works on."""
        self._signal("SIGSTOP")

    def resume(self) -> None:
        """See `suspend`."""
        self._signal("SIGCONT")

    def _signal(self, name: str) -> None:
        number = getattr(signal, name, None)
        if number is not None:
            self._process.send_signal(number)

    def send(self, request: bytes) -> None:
        """Write ``request`` to its stdin, in the background."""
        threading.Thread(target=_write, args=(_open(self._process.stdin), request), daemon=True).start()

    def messages(self, seconds: float) -> list[dict[str, Any]]:
        """What it has said since the last call, waiting ``seconds`` at most for the first; see ``gone``."""
        said: list[dict[str, Any]] = []
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=seconds) if seconds > 0.0 else self._lines.get_nowait()
            while line is not None:
                said.append(json.loads(line))
                line = self._lines.get_nowait()
            self.gone = True
        return said

    def failure(self) -> str | None:
        """Of a child that is gone: why, if it ended with an error; not where a signal ended it."""
        if self._process.wait() <= 0:
            return None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with code {self._process.returncode}"


def _end(process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, errors):
        with contextlib.suppress(OSError):
            _open(pipe).close()


def _write(stdin: IO[bytes], request: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # the child is gone: `_read` sees it
        stdin.write(request)
        stdin.flush()


def _read(stdout: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed by the main thread
        for line in stdout:
            if line.endswith(b"\n"):  # else the child died in the middle of it
                lines.put(line)
    lines.put(None)


def _open(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # all three were opened as pipes
    return pipe


# --- in the child ---


def requests(read: Callable[[IO[bytes]], bytes]) -> Iterator[bytes]:
    """What comes on stdin; its end is the end of the process, whatever it is at, as is the parent's.

    Args:
        read: the next request; empty at the end.
    """
    children.end_with_parent()
    arrived = queue.SimpleQueue[bytes]()

    def listen() -> None:
        while request := read(sys.stdin.buffer):
            arrived.put(request)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield arrived.get()


_speaking = threading.Lock()  # what a solver's threads say is not mixed


def tell(message: dict[str, Any]) -> None:
    """A line of JSON on stdout."""
    with _speaking:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
