"""How long a call takes beside the time limit that it was given: 12 cases, the import measured apart.

    python -m benchmarks waited [--only CASE ...]

Each case is a process of its own, whose progress is read as it is written: the limit begins where the first
stage after the import does. What was waited may be 1.1 times the limit and 2 s. The figures go to
results/waited.json, with the load of the machine: on a busy one they say little.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from result_file import RESULTS, write

ROOT = Path(__file__).parents[1]
ALLOWED_FACTOR, ALLOWED_SECONDS = 1.1, 2.0

AT_ONCE = "import sys, poet.problem.progress; poet.problem.progress.QUIET_SECONDS = 0.0; "
SOLVE = AT_ONCE + "from poet.__main__ import main; main()"
NET = (
    AT_ONCE
    + """import torch, poet
sys.path.insert(0, {examples!r})
from usual_nets import DSCNN
net, images = DSCNN(), lambda n, h=49: torch.randn(n, 1, h, 10)
{call}
"""
)

PLAN, WRAP = "poet.plan(net, images(16), device='stm32h743', ", "poet.wrap(net, images(16), "
CASES: dict[str, tuple[str, float]] = {
    "problem of 19 ops": ("solve transformer.m4.json --ram 32MiB", 3.0),
    "problem of 27 ops": ("solve linear.m4.json --ram 4KiB", 3.0),
    "problem of 133 ops": ("solve resnet18_cifar.m4.json --ram 700KiB", 3.0),
    "problem of 133 ops, least RAM": ("solve resnet18_cifar.m4.json --minimise ram", 5.0),
    "plan": (f"{PLAN} ram='250KiB', evaluation=False", 3.0),
    "plan, with evaluation": (f"{PLAN} ram='250KiB'", 3.0),
    "plan, 1 s": (f"{PLAN} ram='250KiB'", 1.0),
    "plan, two further shapes": (f"{PLAN} ram='250KiB', shapes=[images(8), images(4)]", 3.0),
    "plan, four micro-batches": (f"{PLAN} ram='100KiB', micro=4", 3.0),
    "plan, a smaller budget": (f"{PLAN} ram='300KiB', budgets=['200KiB']", 5.0),
    "plan, parameters in storage": (f"{PLAN} ram='200KiB', home='either', shapes=[images(8)]", 5.0),
    "wrap": (f"{WRAP} ram='450KiB'", 3.0),
}
"""What is called, and its time limit."""


@dataclass(frozen=True, slots=True)
class Waited:
    """One case.

    Attributes:
        case: its name.
        limit_seconds: that was asked for.
        import_seconds: until the first stage after the import, start of the interpreter included.
        first_plan_seconds: from there to the first plan; ``None``: there was none.
        waited_seconds: from there to the end.
        load: mean number of processes that wanted the machine in the last minute.
    """

    case: str
    limit_seconds: float
    import_seconds: float
    first_plan_seconds: float | None
    waited_seconds: float
    load: float

    @property
    def is_in_time(self) -> bool:
        """Whether it is within what is allowed."""
        return self.waited_seconds <= ALLOWED_FACTOR * self.limit_seconds + ALLOWED_SECONDS


def command(case: str) -> list[str]:
    """What runs the case."""
    call, limit_seconds = CASES[case]
    if call.startswith("solve"):
        _, file, *options = call.split()
        path = str(ROOT / "tests" / "instances" / file)
        options += ["--time-limit", f"{limit_seconds:g}s", "--no-kept-plans"]
        return [sys.executable, "-c", SOLVE, "solve", path, *options]
    call += f", time_limit_seconds={limit_seconds}, progress=True)"
    return [sys.executable, "-c", NET.format(examples=str(ROOT / "examples"), call=call)]


def measured(case: str) -> Waited:
    """Run it; its lines on stderr are read as they come."""
    began = time.monotonic()
    begun = planned = None
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command(case), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if " s  " in line and not line.rstrip().endswith("import"):
                begun = begun or time.monotonic()
                planned = planned or (time.monotonic() if ": best " in line else None)
        if process.wait() or begun is None:
            raise SystemExit(f"{case}: {''.join(lines)}")
    first = None if planned is None else planned - begun
    waited = time.monotonic() - begun
    return Waited(case, CASES[case][1], begun - began, first, waited, os.getloadavg()[0])


def page(rows: Sequence[Waited]) -> str:
    """The cases, and what was allowed."""
    names = [field.name for field in fields(Waited)]
    lines = [names, ["---"] * len(names), *([str(cell) for cell in astuple(row)] for row in rows)]
    return (
        f"# Waited beside the time limit\n\nMade by `python -m benchmarks waited`. Allowed are "
        f"{ALLOWED_FACTOR:g} times the limit and {ALLOWED_SECONDS:g} s, the import apart.\n\n"
        + "\n".join(f"| {' | '.join(line)} |" for line in lines)
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(CASES), metavar="CASE")
    rows = [measured(case) for case in parser.parse_args().only]
    for row in rows:
        first = "-" if row.first_plan_seconds is None else f"{row.first_plan_seconds:.1f}"
        print(f"{row.case:32} {row.limit_seconds:4g} s, waited {row.waited_seconds:5.1f}", end="")
        print(f" (import {row.import_seconds:.1f}, first plan {first}){'' if row.is_in_time else '  LATE'}")
    if len(rows) == len(CASES):
        write(RESULTS / "waited.json", page(rows))


if __name__ == "__main__":
    main()
