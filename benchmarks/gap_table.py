"""Plans and bounds of the search on small and middle problems, after a fixed amount of work.

    python -m benchmarks gap-table [--write] [--only NAME ...] [--spread SHARE]

Each row is a search by HiGHS alone on one thread, cut by a `poet.util.clock.WorkClock`: so many programs,
simplex iterations, nodes and judged schedules, not seconds. On one machine the figures are the same at
each run, whatever else it does; on another, whose processor rounds sums otherwise, a search that is cut
ends elsewhere, and ``--spread`` says by how much of its gap a row may differ. Without ``--write`` they are
held against gap_table.json, and a plan that takes more, a lower bound or a wider gap ends with exit code 1;
a change that makes a row worse writes the file anew and says so in its commit. About two minutes on one
quiet core.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from poet.planning.ram_survey import keep_everything_bytes
from poet.problem import Limits, Problem
from poet.problem.solution import SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.util.clock import WorkClock

INSTANCES = Path(__file__).parents[1] / "tests" / "instances"
TABLE = Path(__file__).with_suffix(".json")
TOLERANCE = 1e-6
"""Relative, of joules; of a gap, which is a share of them, absolute."""

CASES: tuple[tuple[str, float, tuple[float, ...]], ...] = (
    ("linear.m4", 5.0, (0.5, 0.0)),
    ("transformer.m4", 5.0, (0.5, 0.0)),
    ("family/linear.a72", 5.0, (0.5, 0.0)),
    ("family/transformer.m0", 5.0, (0.5, 0.0)),
    ("resnet18_cifar.a72", 5.0, (0.5, 0.2, 0.0)),
    ("resnet18_cifar.m4", 5.0, (0.5, 0.2, 0.0)),
    ("family/vgg16_cifar.m4", 5.0, (0.5, 0.0)),
    ("family/bert.m4", 5.0, (0.5, 0.2)),
    ("family/resnet18.m4", 3.0, (0.5, 0.2)),
    ("family/vgg16.a72", 3.0, (0.2,)),
    ("family/resnet50.a72", 1.0, (0.5,)),
)
"""Problem, seconds of work for each search, and RAM budgets as shares of what keeping everything takes;
0: the least that any schedule needs."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a search said when its work was done.

    Attributes:
        problem, share: what was asked, as in `CASES`.
        ops: of the problem.
        budget_bytes: of RAM.
        work_seconds: that the search was allowed, of a `WorkClock`.
        joules: of the best plan; ``None``: there is none.
        bound_joules: no plan takes less.
        gap: between the two, as a share of the joules.
        overhead_gap: the same, as a share of the joules above running every op once.
    """

    problem: str
    share: float
    ops: int
    budget_bytes: int
    work_seconds: float
    joules: float | None
    bound_joules: float
    gap: float | None
    overhead_gap: float | None

    @property
    def key(self) -> tuple[str, float]:
        """What was asked."""
        return self.problem, self.share


def measured(name: str, share: float, seconds: float) -> Row:
    """Search the plan of one problem in one budget."""
    problem = Problem.load(INSTANCES / f"{name}.json")
    budget = max(minimum_ram_bytes(problem).bytes, round(share * keep_everything_bytes(problem)))
    options = SolveOptions(seconds, engine="highs", confirm=False, clock=WorkClock())
    found = solve(problem, Limits(ram_budget_bytes=budget), options)
    return Row(
        name, share, len(problem.ops), budget, seconds, found.joules, found.bound_joules, found.gap,
        found.overhead_gap,
    )  # fmt: skip


def worse(now: Row, before: Row, spread: float = 0.0) -> list[str]:
    """What became worse by more than ``spread`` of the gap before, in words."""
    slack = TOLERANCE + spread * (before.gap or 0.0)
    if (now.budget_bytes, now.work_seconds) != (before.budget_bytes, before.work_seconds):
        return ["another question than in the file"]
    found = []
    if before.joules is not None and (now.joules is None or now.joules > before.joules * (1 + slack)):
        found.append(f"the plan takes {_shown(now.joules)} J, not {_shown(before.joules)} J")
    if now.bound_joules < before.bound_joules * (1 - slack):
        found.append(f"the bound is {_shown(now.bound_joules)} J, not {_shown(before.bound_joules)} J")
    if before.gap is not None and (now.gap is None or now.gap > before.gap + slack):
        found.append(f"the gap is {_shown(now.gap)}, not {_shown(before.gap)}")
    return found


def compared(rows: Sequence[Row], before: Sequence[Row], spread: float = 0.0) -> list[str]:
    """A line for each row that became worse or is not in the file."""
    known = {row.key: row for row in before}
    lines = []
    for row in rows:
        what = worse(row, known[row.key], spread) if row.key in known else ["not in the file"]
        lines += [f"{row.problem} at {row.share}: {sentence}" for sentence in what]
    return lines


def read() -> list[Row]:
    """The rows of the file."""
    return [Row(**row) for row in json.loads(TABLE.read_text())]


def write(rows: Sequence[Row]) -> None:
    """Put ``rows`` in the place of the file."""
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    new = TABLE.with_suffix(".new")
    new.write_text(f"[\n{lines}\n]\n")
    os.replace(new, TABLE)


def _rows(names: Sequence[str]) -> Iterator[Row]:
    for name, seconds, shares in CASES:
        for share in shares:
            if not names or name in names:
                before = os.times()
                row = measured(name, share, seconds)
                now = os.times()
                spent = sum(now[:4]) - sum(before[:4])
                print(_line(row), f"{spent:6.1f} s of a core", flush=True)
                yield row


def _line(row: Row) -> str:
    gap = "" if row.overhead_gap is None else f"{100 * row.overhead_gap:8.3f} % of the overhead"
    return (
        f"{row.problem:24} {row.ops:4} ops {row.share:4} "
        f"{_shown(row.joules):>14} J {_shown(row.bound_joules):>14} J  gap {gap}"
    )


def _shown(number: float | None) -> str:
    return "none" if number is None else f"{number:.9g}"


def main() -> int:
    """Measure, print, and compare or write; 1 if a figure is worse."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true", help="the figures of this run are those of the file")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="of these problems")
    parser.add_argument("--spread", type=float, default=0.0, help="share of its gap that a row may differ by")
    arguments = parser.parse_args()
    rows = list(_rows(arguments.only))
    if arguments.write:
        others = [row for row in read() if row.key not in {new.key for new in rows}] if TABLE.exists() else []
        order = [(name, share) for name, _, shares in CASES for share in shares]
        kept = [row for row in (*others, *rows) if row.key in order]
        write(sorted(kept, key=lambda row: order.index(row.key)))
        print(f"{TABLE.name} is written")
        return 0
    lines = compared(rows, read(), arguments.spread)
    for line in lines:
        print(f"worse: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
