"""Every fault is told in one line, and neither faults nor SIGKILL lose a committed step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import faults
import pytest
from result_file import is_kept

TRIALS = 15  # of each of the kinds


@pytest.mark.slow
@pytest.mark.parametrize("in_storage", [False, True], ids=["in-ram", "in-storage"])
@pytest.mark.parametrize("background", [False, True], ids=["blocking", "background"])
@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_told_and_the_training_state_is_intact(
    fault: faults.Fault, background: bool, in_storage: bool, tmp_path: Path
) -> None:
    result = faults.try_fault(fault, tmp_path, background=background, in_storage=in_storage)
    assert result.is_intact, result
    assert (not result.reported) == fault.harmless
    assert "\n" not in result.reported
    assert not [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"]


@pytest.mark.slow
def test_the_documented_table_is_the_true_one() -> None:
    made = faults.table()
    assert "**no**" not in made
    assert is_kept(faults.RESULT, faults.HEAD + made)


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
