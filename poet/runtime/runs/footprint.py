"""What the runtime needs on the machine that this runs on: ``python -m poet.runtime.runs.footprint``.

Disk: the files of poet, torch, numpy and what these require, as installed here. Time and RAM: of fresh
interpreters that import `poet.runtime` and do nothing else, the median of some; their files are in the page
cache by then. Python itself is told apart, and its own files are not counted.
"""

from __future__ import annotations

import json
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from poet.errors import InputError
from poet.util import children
from poet.util.streams import say
from poet.util.units import format_seconds

_RUNS = 5
_ROOTS = ("torch", "numpy")
_CHILD = """
import json, time
def memory():
    with open("/proc/self/smaps_rollup") as file:
        found = dict(line.split(":") for line in file if line.endswith("kB\\n"))
    own = sum(int(found[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))
    return int(found["Rss"].split()[0]) * 1024, own * 1024
rss, own = memory()
wall, own_seconds = time.perf_counter(), time.process_time()
import poet.runtime
wall, own_seconds = time.perf_counter() - wall, time.process_time() - own_seconds
print(json.dumps([rss, own, wall, own_seconds, *memory()]))
"""


@dataclass(frozen=True, slots=True)
class Idle:
    """One fresh interpreter, before and after the import.

    Attributes:
        python_bytes, python_private_bytes: resident before.
        seconds, own_seconds: of the import: wall clock, and processor time.
        resident_bytes, private_bytes: after it.
    """

    python_bytes: float
    python_private_bytes: float
    seconds: float
    own_seconds: float
    resident_bytes: float
    private_bytes: float


def disk_bytes() -> dict[str, int]:
    """Of poet and of each installed distribution that the runtime requires, the largest first."""
    found = {"poet": _folder_bytes(Path(__file__).parents[2])}
    waiting = list(_ROOTS)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another system or version of Python
        files = (Path(str(distribution.locate_file(file))) for file in distribution.files or ())
        found[name] = sum(file.stat().st_size for file in files if file.is_file())
        waiting += _required(distribution)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def idle() -> Idle:
    """The median, figure by figure, of some fresh interpreters.

    Raises:
        InputError: this is no Linux, or an interpreter cannot be started.
    """
    seen = []
    for _ in range(_RUNS):
        done = subprocess.run(
            children.command_of(_CHILD),
            capture_output=True,
            text=True,
            check=False,
            env=children.environment(),
        )
        if done.returncode:
            last = (done.stderr.splitlines() or ["no message"])[-1]
            raise InputError(f"the import cannot be measured here: {last}")
        seen.append(json.loads(done.stdout))
    return Idle(*map(statistics.median, zip(*seen, strict=True)))


def _required(distribution: metadata.Distribution) -> Iterator[str]:
    """What it always requires, maybe on other systems only; no extras."""
    for line in distribution.requires or ():
        name = re.match(r"[\w.-]+", line)
        if name is not None and not re.search(r"\bextra\s*==", line):
            yield re.sub(r"[-_.]+", "-", name[0]).lower()


def _folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _line(label: str, size_bytes: float, note: str = "") -> str:
    return f"{label:28}{size_bytes / 1e6:8.1f} MB{note}"


def _lines() -> Iterator[str]:
    disk, found = disk_bytes(), idle()
    yield _line("disk, without Python", sum(disk.values()))
    yield from (_line(f"  {name}", size_bytes) for name, size_bytes in disk.items())
    own = format_seconds(found.own_seconds)
    yield f"{f'import, median of {_RUNS}':28}{format_seconds(found.seconds):>11}  of it processor time {own}"
    for label, size_bytes, before_bytes in (
        ("idle RAM, resident", found.resident_bytes, found.python_bytes),
        ("idle RAM, private", found.private_bytes, found.python_private_bytes),
    ):
        yield _line(label, size_bytes, f"  of it Python {before_bytes / 1e6:.1f} MB")
    yield f"Python {platform.python_version()}, torch {metadata.version('torch')}, {platform.machine()}"


def main() -> None:
    """Measure, and print a line per figure."""
    try:
        for line in _lines():
            say(line)
    except InputError as error:
        say(f"poet: {error}", err=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
