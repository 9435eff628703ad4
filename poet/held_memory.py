"""How much memory this process holds."""

from __future__ import annotations

from pathlib import Path

_ROLLUP = Path("/proc/self/smaps_rollup")


def held_bytes(rollup: Path = _ROLLUP) -> int:
    """Of memory, what it shares with others divided among them; 0 where the system does not tell.

    Linux's proportional set size, proc_pid_smaps_rollup(5).
    """
    try:
        lines = rollup.read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
