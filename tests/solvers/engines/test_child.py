"""A solver's process ends with whoever started it, and quietly: at once, or when Python exits."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from poet.solvers.engines.process import Child
from poet.util import children

MODULE = "poet.solvers.engines"
HELD = f"""\
from poet.solvers.engines.process import Child

def pids():
    with Child({MODULE!r}) as child:
        yield child.pid

class Ring:  # which nothing but Python's end takes apart
    def __init__(self):
        self.me, self.going = self, pids()

print(next(Ring().going), flush=True)
"""


FREED = f"""\
import os
from poet.solvers.engines.process import Child

def held():
    with open("/proc/self/statm") as pages:
        return int(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

some = [bytes(1000) for _ in range(200_000)]
last = some[-1]  # what lies above the rest, which glibc would else give back by itself
print(held())
del some
print(held())
with Child({MODULE!r}):
    print(held())
"""


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
def test_one_that_nobody_ended_is_ended_when_python_exits_and_says_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", HELD], env=children.environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    end = time.monotonic() + 10.0
    while is_there(int(done.stdout)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_there(int(done.stdout))


def test_to_end_one_twice_does_nothing() -> None:
    child = Child(MODULE)
    os.kill(child.pid, 0)
    child.close()
    child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc alone gives memory back")
def test_what_was_freed_before_is_given_back() -> None:
    """In a process of its own: of another's memory, this machine's tests may free and take as they like."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", FREED], env=children.environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    held, freed, left = map(int, done.stdout.split())
    assert freed > 0.9 * held, "the C library has kept it"
    assert left < 0.5 * held
