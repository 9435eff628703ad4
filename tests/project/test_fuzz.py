"""Mutated plans, models and profiles are refused in one line or used; nothing crashes, hangs or strays."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import fuzz
import pytest
from helpers import mutators
from helpers.pace import with_slow

QUICK = {
    "plans": 40, "profiles": 40, "models": 12, "tensors": 100, "data": 100, "problems": 50, "caches": 100,
}  # fmt: skip
LONG = {
    "plans": 2500, "profiles": 2000, "models": 1000, "tensors": 3000, "data": 5000, "problems": 2000,
    "caches": 5000,
}  # fmt: skip


def _require_clean(kind: str, count: int, *, start: int = 0) -> fuzz.Tally:
    tally = fuzz.run(kind, range(start, start + count))
    assert not tally.findings, fuzz.report(kind, tally)
    assert tally.counts.total() == count
    return tally


@pytest.mark.parametrize("kind", with_slow(fuzz.KINDS, {*fuzz.KINDS} - {"profiles"}))
@pytest.mark.slow
def test_some_files(kind: str) -> None:
    tally = _require_clean(kind, QUICK[kind])
    assert tally.counts[fuzz.Outcome.REFUSED] > 0
    assert tally.counts[fuzz.Outcome.USED] > 0  # changes that keep a file valid are among them


@pytest.mark.slow
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_many_files(kind: str) -> None:
    _require_clean(kind, LONG[kind], start=100_000)


def test_a_number_gives_the_same_file_each_time() -> None:
    content = (fuzz.ROOT / "hardware_profiles" / "rpi4b.toml").read_bytes()
    first, again = (mutators.mutated_profile(content, random.Random("x 1")) for _ in range(2))
    assert first == again != content


# --- the harness bites ------------------------------------------------------------------------

BAD = {
    "an exception": ("raise KeyError('x')", "crashed", "KeyError: 'x'"),
    "too much memory": ("bytearray(8 << 30)", "crashed", "MemoryError"),
    "a write elsewhere": ("(path.parents[1] / 'strayed').touch()", "strayed", "open for writing"),
    "a read elsewhere": ("open('/etc/hostname').close()", "strayed", "open /etc/hostname"),
    "a removal elsewhere": ("os.unlink(path.parents[1] / 'none')", "strayed", "os.remove"),
    "something left": ("(path.parent / 'x').touch()", "strayed", "x"),
    "a program": ("subprocess.run(['true'])", "strayed", "subprocess.Popen"),
    "nothing bad": ("path.read_bytes()", "used", ""),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_case_is_noticed(what: str, tmp_path: Path) -> None:
    use, outcome, detail = BAD[what]
    case = tmp_path / "scratch" / "case"
    case.parent.mkdir()
    case.touch()
    code = f"""
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, {str(Path(fuzz.__file__).parent)!r})
import fuzz, poet.errors, subprocess
def use(path):
    {use}
    return ""
watch = fuzz.Watch(Path({str(case.parent)!r}))
fuzz._limit()
told = fuzz._judged(use, Path({str(case)!r}), watch)
print(told["outcome"], told["detail"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(outcome)
    assert detail in done.stdout


@pytest.mark.parametrize(
    ("worker", "outcome", "detail"),
    [
        (
            "import os; print('\"ready\"', flush=True); os.abort()",
            fuzz.Outcome.CRASHED,
            "the process ended with -6",
        ),
        pytest.param(
            "import time; print('\"ready\"', flush=True); time.sleep(60)",
            fuzz.Outcome.HUNG,
            "nothing was heard for 2 s",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_worker_that_ends_or_hangs_is_noticed(
    worker: str, outcome: fuzz.Outcome, detail: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(worker)
    monkeypatch.setattr(fuzz, "__file__", str(script))
    tally = fuzz.run("plans", [7], hang_seconds=2.0)
    assert tally.findings == [fuzz.Finding("plans", 7, outcome, detail)]
