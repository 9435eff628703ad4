"""The plans of `large_graphs.py` beside those of the literature's planners: same problems, budgets and judge.

    python -m benchmarks large-rivals [--only NAME ...] [--fresh]

Takes our plans' energy from what `large_graphs.py` measured (build/large-graphs/rows.jsonl), and runs
each quick baseline of `poet.baselines.comparison` on the same problem inside the same budget.
Each answer is kept as a line, so that a run which was stopped goes on. Writes
results/large-graphs-rivals.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from large_graphs import BUILD, NETS, Row, problem_of, rows_of
from result_file import RESULTS, write

from poet.baselines.comparison import BASELINES
from poet.problem import Limits
from poet.problem.simulator import simulate

PAGE = RESULTS / "large-graphs-rivals.json"
RIVALS = tuple(name for name in BASELINES if name != "greedy")  # that one is ours


@dataclass(frozen=True, slots=True)
class Rival:
    """What another planner made of one problem.

    Attributes:
        net, device, batch, share: as in `large_graphs.Row`.
        planner: its name.
        above: joules above running every op once, as a share of that; ``None``: no plan inside the budget.
        seconds: wall clock.
    """

    net: str
    device: str
    batch: int
    share: float
    planner: str
    above: float | None
    seconds: float

    @property
    def key(self) -> tuple[str, str, int, float]:
        """The problem and its budget."""
        return self.net, self.device, self.batch, self.share


def measure(row: Row) -> list[Rival]:
    """Every quick baseline on the problem of ``row``."""
    problem = problem_of(row.net, row.device, row.batch)
    limits, found = Limits(ram_budget_bytes=row.budget_bytes), []
    for name in RIVALS:
        started = time.monotonic()
        schedule = BASELINES[name](problem, limits)
        seconds = time.monotonic() - started
        above = None
        if schedule is not None:
            above = simulate(problem, schedule, limits).joules / problem.compute_joules - 1.0
        found.append(Rival(row.net, row.device, row.batch, row.share, name, above, seconds))
    return found


def page(rows: Sequence[Row], rivals: Sequence[Rival]) -> str:
    """How much more each takes than ours, problem by problem, and in the median."""
    above = {(*rival.key, rival.planner): rival.above for rival in rivals}
    planned = [row for row in rows if row.last is not None and (*_key(row), RIVALS[0]) in above]
    parts = [
        "# Large graphs: the other planners\n",
        "Made by `python -m benchmarks large-rivals`:",
        "the problems and budgets of `large-graphs`,",
        "our plans as measured there, and the other planners; the simulator judges all of them. Figures are",
        "energy above running every op once, as a share of it; a dash: no plan inside the budget.\n",
        "| planner | found a plan | median energy of the step, × ours | least | cheaper than ours |",
        "|---|---:|---:|---:|---:|",
        *(_summary(name, planned, above) for name in RIVALS),
        "",
        f"| step | device | budget | ours | {' | '.join(RIVALS)} |",
        "|---|---|---:|---:|" + "---:|" * len(RIVALS),
    ]
    for row in planned:
        others = " | ".join(_percent(above[(*_key(row), name)]) for name in RIVALS)
        parts.append(f"| {row.net} | {row.device} | {row.share:.0%} | {_percent(row.last)} | {others} |")
    return "\n".join(parts) + "\n"


def _summary(
    name: str, rows: Sequence[Row], above: dict[tuple[str, str, int, float, str], float | None]
) -> str:
    ratios = []
    for row in rows:
        theirs = above[(*_key(row), name)]
        if theirs is not None and row.last is not None:
            ratios.append((1.0 + theirs) / (1.0 + row.last))
    cheaper = sum(ratio < 1.0 - 1e-9 for ratio in ratios)
    middle = f"{statistics.median(ratios):.4g} | {min(ratios):.4g}" if ratios else "– | –"
    return f"| {name} | {len(ratios)} of {len(rows)} | {middle} | {cheaper} |"


def _key(row: Row) -> tuple[str, str, int, float]:
    return row.net, row.device, row.batch, row.share


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100.0 * max(share, 0.0):.3g} %"


def main() -> None:
    """Measure what is not known yet; write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--fresh", action="store_true", help="forget earlier measurements")
    given = parser.parse_args()
    path = BUILD / "rivals.jsonl"
    if given.fresh:
        path.unlink(missing_ok=True)
    lines = path.read_text().splitlines() if path.exists() else []
    rivals = [Rival(**json.loads(line)) for line in lines]
    rows = list(rows_of(BUILD / "rows.jsonl").values())
    known = {rival.key for rival in rivals}
    for row in rows:
        if row.net in given.only and row.last is not None and _key(row) not in known:
            found = measure(row)
            rivals += found
            with path.open("a") as file:
                file.writelines(json.dumps(asdict(rival)) + "\n" for rival in found)
            best = min((r.above for r in found if r.above is not None), default=None)
            print(
                row.net,
                row.device,
                f"{row.share:.0%}",
                _percent(row.last),
                "best:",
                _percent(best),
                flush=True,
            )
            write(PAGE, page(rows, rivals))
    write(PAGE, page(rows, rivals))


if __name__ == "__main__":
    main()
