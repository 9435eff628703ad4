"""The engines' processes that this process has begun and not ended."""

from __future__ import annotations

import os
from pathlib import Path


def engine_children() -> list[int]:
    """Their numbers, by /proc; one that is dead and not waited for is none of them."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            line = (status.parent / "cmdline").read_text()
        except (OSError, ValueError):
            continue
        if int(parent) == os.getpid() and state != "Z" and "poet.solvers.engines" in line:
            found.append(int(status.parent.name))
    return found
