"""Measured peaks of nets at twenty rising budgets, in results/rising-peaks.json.

    python -m benchmarks rising-peaks [--only NET ...] [--folder build/rising-peaks] [--fresh]

Budgets lie 5, 10, … 100 % of the way from the lower bound to keeping everything. Each plan is made, replayed
and measured as those of results/runtime.json are (`benchmarks/runtime_table.py`), in a process of its own
for each row. Rows that are done are kept in ``--folder``, so an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from result_file import RESULTS, write
from runtime_table import Row, rows_of
from workers import ROOT

from poet.util.units import format_bytes, format_share

NETS = ("resnet18-cifar", "mobilenet-v2", "unet")
SHARES = tuple(number / 20 for number in range(1, 21))
ABOVE_SHARE = 0.001  # of its budget, that a peak may be above it
FALL_SHARE = 0.01  # of the peak at the budget before, that one may be below it
PAGE = RESULTS / "rising-peaks.json"


def above(row: Row) -> float:
    """By how much the measured peak is above its budget, as a share of it; less than 0 where it is not."""
    return row.counted_bytes / row.plan.budget_bytes - 1.0


def falls(rows: Sequence[Row]) -> list[float]:
    """Of rows of one net at rising budgets: by which share the peak is below the one before, where it is."""
    pairs = itertools.pairwise(row.counted_bytes for row in rows)
    return [1.0 - after / before for before, after in pairs if after < before]


def page(rows_by_net: dict[str, list[Row]]) -> str:
    """results/rising-peaks.json."""
    rows = [row for some in rows_by_net.values() for row in some]
    fallen = [fall for some in rows_by_net.values() for fall in falls(some)]
    most = format_share(max(fallen, default=0.0))
    over = [row for row in rows if above(row) > ABOVE_SHARE]
    lines = [
        "# Peaks at rising budgets",
        "",
        "Made by `python -m benchmarks rising-peaks`",
        f"with torch {version('torch')}, batches of one, one thread. Each plan's",
        "step is replayed in a process of its own; *peak* is what torch's allocator holds for it at most,",
        "hidden temporaries included. Budgets lie so far up from the lower bound to what keeping",
        "everything takes.",
        "",
        f"- {len(over)} of {len(rows)} peaks are above their budget by more than {format_share(ABOVE_SHARE)};"
        f" the highest is at {format_share(1.0 + max(map(above, rows)))} of it.",
        f"- As the budget rises, the peak falls {len(fallen)} times, by {most} at most;"
        f" {sum(fall > FALL_SHARE for fall in fallen)} times by more than {format_share(FALL_SHARE)}.",
        f"- Bitwise equal to plain PyTorch: {sum(row.is_equal for row in rows)} of {len(rows)}.",
        "",
    ]
    for net, some in rows_by_net.items():
        lines += [f"## {net}", "", "| budget | | peak | of the budget | recomputed | paged out |"]
        lines += ["|---|--:|--:|--:|--:|--:|", *map(_line, some), ""]
    return "\n".join(lines).rstrip() + "\n"


def _line(row: Row) -> str:
    plan = row.plan
    cells = (
        format_share(plan.share),
        format_bytes(plan.budget_bytes),
        format_bytes(row.counted_bytes),
        f"{1.0 + above(row):.2%}",
        str(plan.recomputed_runs),
        format_bytes(plan.written_bytes),
    )
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str]) -> None:
    """Make the rows that are not done, then the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=NETS, default=NETS)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "rising-peaks")
    parser.add_argument("--output", type=Path, default=PAGE)
    parser.add_argument("--fresh", action="store_true", help="measure all rows anew")
    chosen = parser.parse_args(arguments)
    if chosen.fresh and chosen.folder.exists():
        shutil.rmtree(chosen.folder)
    rows = dict[str, list[Row]]()
    for net in chosen.only:
        folder = (chosen.folder / net).resolve()
        for row in rows_of(net, 1, 1, folder, shares=SHARES, as_is=False):
            print(net, _line(row), flush=True)
            rows.setdefault(net, []).append(row)
    write(chosen.output, page(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
