"""How well plans fill their arenas: at fixed places, and where tensors may be moved between steps.

    python -m benchmarks layouts [--only NAME ...]

Each row is a plan of a published problem after a fixed amount of work (see `gap_table`), laid out. The
efficiency is the plan's peak over the arena's size; the arena with moves is asked to be as large as the
peak. What is moved is given as a share of the bytes that the step's ops allocate. Then come instances of
google/minimalloc (tests/instances/layouts; from benchmarks/challenging of that repository, Apache-2.0).
Layouts are limited by the processor time of their thread. About three minutes on one quiet core.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass
from pathlib import Path

from gap_table import CASES, INSTANCES

from poet.memory.compaction import compact
from poet.memory.demand import demand_of
from poet.memory.layout import Block, lay_out
from poet.planning.ram_survey import keep_everything_bytes
from poet.problem import Limits, Problem
from poet.problem.homes import decided
from poet.problem.solution import SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.util.clock import WorkClock

SHARES = (0.7, 0.5, 0.3, 0.15)
WORK_SECONDS, LAYOUT_SECONDS, MOVING_SECONDS = 0.5, 2.0, 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """One plan.

    Attributes:
        problem, share: what was asked: its RAM is that share of what keeping everything takes.
        blocks: of its layout.
        peak_bytes: no arena is smaller.
        fixed_bytes: of the arena at fixed places, by orders of placing.
        moving_bytes: of the arena with moves; ``None``: there is none as large as the peak.
        moves: how many.
        moved_share: of what the step allocates.
        fixed_seconds, moving_seconds: processor time of these searches.
    """

    problem: str
    share: float
    blocks: int
    peak_bytes: int
    fixed_bytes: int
    moving_bytes: int | None
    moves: int
    moved_share: float
    fixed_seconds: float
    moving_seconds: float


def measured(name: str, share: float) -> Row | None:
    """Plan and lay out; ``None`` where no plan is found with this work."""
    problem = Problem.load(INSTANCES / f"{name}.json")
    budget = max(minimum_ram_bytes(problem).bytes, round(share * keep_everything_bytes(problem)))
    options = SolveOptions(WORK_SECONDS, engine="highs", confirm=False, clock=WorkClock())
    schedule = solve(problem, Limits(ram_budget_bytes=budget), options).schedule
    if schedule is None:
        return None
    demand = demand_of(decided(problem, schedule), schedule)
    begun = time.thread_time()
    fixed = lay_out(demand.blocks, time_limit_seconds=LAYOUT_SECONDS)
    fixed_seconds = time.thread_time() - begun
    begun = time.thread_time()
    moving = compact(
        demand,
        fixed.lower_bound_bytes,
        guide_bytes=fixed.offsets_bytes,
        time_limit_seconds=MOVING_SECONDS,
    )
    moves = () if moving is None else moving.places.moves
    allocated_bytes = sum(block.size_bytes for block in demand.blocks)
    return Row(
        problem=name,
        share=share,
        blocks=len(demand.blocks),
        peak_bytes=fixed.lower_bound_bytes,
        fixed_bytes=fixed.arena_bytes,
        moving_bytes=None if moving is None else moving.arena_bytes,
        moves=len(moves),
        moved_share=sum(move.size_bytes for move in moves) / allocated_bytes,
        fixed_seconds=fixed_seconds,
        moving_seconds=time.thread_time() - begun,
    )


def challenge(path: Path) -> str:
    """A line for an instance of minimalloc: at fixed places, in the room that its name says."""
    with path.open(newline="") as file:
        rows = [tuple(map(int, row.values())) for row in csv.DictReader(file)]
    blocks = [Block(str(name), None, size, ((begin, end - 1),)) for name, begin, end, size in rows]
    room_bytes = int(path.name.split(".")[-2])
    begun = time.thread_time()
    fixed = lay_out(blocks, enough_bytes=room_bytes, time_limit_seconds=LAYOUT_SECONDS)
    seconds = time.thread_time() - begun
    least = fixed.lower_bound_bytes
    return f"{path.name:<24}{'':>6}{len(blocks):>7}{least / fixed.arena_bytes:>9.4f}{'':>25}{seconds:>8.1f}"


def told(row: Row) -> str:
    """A line of the table."""
    with_moves = "none" if row.moving_bytes is None else f"{row.peak_bytes / row.moving_bytes:.4f}"
    return (
        f"{row.problem:<24}{row.share:>6.2f}{row.blocks:>7}{row.peak_bytes / row.fixed_bytes:>9.4f}"
        f"{with_moves:>9}{row.moves:>7}{row.moved_share:>9.2%}{row.fixed_seconds:>8.1f}"
        f"{row.moving_seconds:>8.1f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="problems whose names hold one of these")
    only = parser.parse_args().only
    print(
        f"{'problem':<24}{'share':>6}{'blocks':>7}{'fixed':>9}{'moving':>9}{'moves':>7}{'moved':>9}"
        f"{'fixed s':>8}{'moves s':>8}"
    )
    rows = []
    for name, _, _ in CASES:
        if only and not any(part in name for part in only):
            continue
        for share in SHARES:
            row = measured(name, share)
            if row is not None:
                rows.append(row)
                print(told(row), flush=True)
    for path in sorted((INSTANCES / "layouts").glob("*.csv")):
        if not only or any(part in path.name for part in only):
            print(challenge(path), flush=True)
    for title, sizes in (
        ("fixed", [row.fixed_bytes for row in rows]),
        ("moving", [row.moving_bytes for row in rows if row.moving_bytes is not None]),
    ):
        peaks = [row.peak_bytes for row in rows if title == "fixed" or row.moving_bytes is not None]
        found = [peak / size for peak, size in zip(peaks, sizes, strict=True)]
        if found:
            full = sum(each == 1.0 for each in found)
            print(
                f"{title}: {full} of {len(rows)} plans fill their arena, the least efficient {min(found):.4f}"
            )


if __name__ == "__main__":
    main()
