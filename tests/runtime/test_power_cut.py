"""SIGKILL at random instants loses no committed step, wherever parameters live."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRIALS = 15  # of each of the kinds


@pytest.mark.slow
def test_no_committed_step_is_lost() -> None:
    """In a process of its own: it forks, which one with many threads must not."""
    tests = Path(__file__).parents[1]
    script = tests / "helpers" / "power_cut.py"
    path = os.pathsep.join(map(str, (tests, tests / "tools")))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, script, "--trials", str(TRIALS)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert all(f"killed {TRIALS} times" in line and line.endswith(", 0 lost") for line in lines)
    assert sum("saving" in line for line in lines) >= 1  # kills did strike saves
