"""What a process holds, as it counts it, and with its children, as benchmarks measure it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.held_memory import run

from poet.held_memory import held_bytes as own_bytes

MIB = 1 << 20
SHARED = """
import os, time
mine = b"x" * (200 << 20)
if child := os.fork():
    os.waitpid(child, 0)
else:
    theirs = b"y" * (100 << 20)
    time.sleep(1.0)
"""
ONE_AFTER_THE_OTHER = """
import os, time
for _ in range(2):
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        mine = b"x" * (200 << 20)
        time.sleep(0.6)
        os._exit(0)
print("done")
"""


def test_what_a_child_shares_counts_once() -> None:
    peak_bytes = run([sys.executable, "-c", SHARED]).peak_bytes
    assert 300 * MIB < peak_bytes < 400 * MIB


def test_children_one_after_the_other_count_one_at_a_time() -> None:
    ran = run([sys.executable, "-c", ONE_AFTER_THE_OTHER])
    assert 200 * MIB < ran.peak_bytes < 300 * MIB
    assert ran.stdout == "done\n"


def test_a_bad_end_is_told() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        run([sys.executable, "-c", "raise SystemExit(3)"])


def test_a_process_knows_what_it_holds(tmp_path: Path) -> None:
    before = own_bytes()
    kept = b"x" * (50 * MIB)
    assert 50 * MIB <= own_bytes() - before < 60 * MIB
    assert len(kept) == 50 * MIB
    assert own_bytes(tmp_path / "none") == 0
