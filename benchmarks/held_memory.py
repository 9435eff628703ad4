"""How much memory a process and its children hold at once, while one runs.

The sum of their peaks counts moments that are not the same, and what children share with the process that
they came from twice. Here they are looked at together, several times a second, each page divided by how many
of them have it (Linux's proportional set size).
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

import psutil

EVERY_SECONDS = 0.1


class Ran(NamedTuple):
    """``stdout`` of a process that ended well, and the most bytes that it and its children held at once."""

    stdout: str
    peak_bytes: int


def run(command: Sequence[str]) -> Ran:
    """Run ``command`` to its end.

    Raises:
        subprocess.CalledProcessError: it ended badly.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak_bytes = 0
        while True:
            peak_bytes = max(peak_bytes, held_bytes(process.pid))
            with contextlib.suppress(subprocess.TimeoutExpired):
                stdout, _ = process.communicate(timeout=EVERY_SECONDS)
                break
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Ran(stdout, peak_bytes)


def held_bytes(number: int) -> int:
    """Of memory, that the process of that number and its children hold now; none of those that have ended."""
    total_bytes = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(number)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total_bytes += one.memory_full_info().pss
    return total_bytes
