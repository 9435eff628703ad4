"""Every planning problem of the repository × budget × engine, and the literature's planners beside them.

    python -m benchmarks planner [--quick] [--only NAME ...] [--time-limit 10] [--minutes 18] [--fresh]

Writes results/planner-benchmark.md and .svg. Each measurement is a line of a file under build/, so that
a run which was stopped goes on where it was; ``--fresh`` begins anew. Engines run on one thread (the
pair on two); seconds are wall clock, medians over the seeds of runs that are shorter than
`REPEATED_SECONDS`. Every plan passes the simulator.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from planner_report import write_report

from poet.baselines.comparison import BASELINES, EXACT_BASELINES
from poet.planning.ram_survey import keep_everything_bytes
from poet.problem import Limits, Problem
from poet.problem.simulator import Trace, simulate
from poet.problem.solution import Solution, SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.engines import available_engines

ROOT = Path(__file__).parents[1]
PUBLISHED, FAMILY = ROOT / "tests" / "instances", ROOT / "tests" / "instances" / "family"
SHARES = (0.8, 0.5, 0.3, 0.2, 0.0)
"""Budgets as shares of what keeping everything takes; 0: the least that any schedule needs."""
SEEDS = (0, 1, 2)
REPEATED_SECONDS = 2.0
EXACT_SECONDS = 3.0
"""For checkmate and optimal paging, the baselines that search."""
MAIN_ENGINE = "highs"
"""Runs on every problem; the others on those published with the POET paper."""


@dataclass(frozen=True, slots=True)
class Row:
    """One planner on one problem in one budget; ``None``: no plan.

    Attributes:
        problem, ops, share, budget_bytes: what was asked.
        kind: ``"engine"`` or ``"baseline"``; ``planner`` its name.
        status: of the answer; ``None``: the planner proves nothing.
        once_joules: of running every op once, without transfers.
        joules, bound_joules, step_seconds, peak_bytes: of the plan, as judged, and its bound.
        solve_seconds: median; ``runs`` how many.
        proof: who stands behind an optimal answer.
    """

    problem: str
    ops: int
    share: float
    budget_bytes: int
    kind: str
    planner: str
    status: str | None
    once_joules: float
    joules: float | None
    bound_joules: float | None
    step_seconds: float | None
    peak_bytes: int | None
    solve_seconds: float
    runs: int
    proof: str
    time_limit_seconds: float | None

    @property
    def key(self) -> tuple[str, float, str, float | None]:
        """What was measured."""
        return self.problem, self.share, self.planner, self.time_limit_seconds


@dataclass(frozen=True, slots=True)
class Case:
    """A problem in a budget."""

    problem: Problem
    share: float
    limits: Limits
    published: bool


def cases(names: Iterable[str], shares: Iterable[float], *, only_published: bool) -> Iterator[Case]:
    """Every problem (or those whose name begins with one of ``names``) in every budget."""
    folders = [PUBLISHED] if only_published else [PUBLISHED, FAMILY]
    wanted = tuple(names)
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            if wanted and not path.stem.startswith(wanted):
                continue
            problem = Problem.load(path)
            most, least = keep_everything_bytes(problem), minimum_ram_bytes(problem).bytes
            budgets = {max(least, round(share * most)): share for share in reversed(tuple(shares))}
            for budget, share in sorted(budgets.items(), reverse=True):
                yield Case(problem, share, Limits(ram_budget_bytes=budget), folder == PUBLISHED)


def engine_row(case: Case, engine: str, time_limit_seconds: float, seeds: Iterable[int]) -> Row:
    """The answer of the first seed; its seconds are the median over all where that is quick."""
    answers: list[Solution] = []
    for seed in seeds:
        threads = 1 + engine.count("+")
        options = SolveOptions(time_limit_seconds, threads=threads, engine=engine, seed=seed)
        answers.append(solve(case.problem, case.limits, options))
        if answers[0].solve_seconds > REPEATED_SECONDS:
            break
    seconds = statistics.median(answer.solve_seconds for answer in answers)
    return replace(_row(case, answers[0], "engine", engine, time_limit_seconds), solve_seconds=seconds,
                   runs=len(answers))  # fmt: skip


def baseline_row(case: Case, name: str) -> Row:
    """One run of a baseline."""
    if name in EXACT_BASELINES:
        answer = EXACT_BASELINES[name](case.problem, case.limits, SolveOptions(EXACT_SECONDS, confirm=False))
        return _row(case, answer, "baseline", name, EXACT_SECONDS)
    started = time.monotonic()
    schedule = BASELINES[name](case.problem, case.limits)
    seconds = time.monotonic() - started
    trace = None if schedule is None else simulate(case.problem, schedule, case.limits)
    return _bare_row(case, trace, "baseline", name, seconds)


def _row(case: Case, answer: Solution, kind: str, planner: str, time_limit_seconds: float) -> Row:
    bare = _bare_row(case, answer.trace, kind, planner, answer.solve_seconds)
    return replace(
        bare,
        status=answer.status.word,
        bound_joules=answer.bound_joules,
        proof=answer.proof,
        time_limit_seconds=time_limit_seconds,
    )


def _bare_row(case: Case, trace: Trace | None, kind: str, planner: str, seconds: float) -> Row:
    return Row(
        problem=case.problem.name,
        ops=len(case.problem.ops),
        share=case.share,
        budget_bytes=case.limits.ram_budget_bytes or 0,
        kind=kind,
        planner=planner,
        status=None,
        once_joules=case.problem.compute_joules,
        joules=None if trace is None else trace.joules,
        bound_joules=None,
        step_seconds=None if trace is None else trace.seconds,
        peak_bytes=None if trace is None else trace.peak_ram_bytes,
        solve_seconds=seconds,
        runs=1,
        proof="",
        time_limit_seconds=None,
    )


class Ledger:
    """Rows on disk, a line each."""

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            path.unlink(missing_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows = {row.key: row for row in (Row(**json.loads(line)) for line in lines)}

    def add(self, row: Row) -> None:
        """Remember ``row`` here and on disk."""
        self.rows[row.key] = row
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def measure(
    found: Iterable[Case],
    ledger: Ledger,
    engines: Sequence[str],
    *,
    limit: float,
    seeds: int,
    most_seconds: float,
) -> list[Row]:
    """Every row that was asked for, those on disk included, as far as ``most_seconds`` allow."""
    started, rows = time.monotonic(), list[Row]()
    for case in found:
        if time.monotonic() - started > most_seconds:
            print(f"the time is up before {case.problem.name}; the same command goes on from here")
            break
        for engine in engines:
            if engine != MAIN_ENGINE and not case.published:
                continue
            key = (case.problem.name, case.share, engine, limit)
            if key not in ledger.rows:
                ledger.add(engine_row(case, engine, limit, SEEDS[:seeds]))
            rows.append(ledger.rows[key])
        for name in (*BASELINES, *EXACT_BASELINES):
            seconds = EXACT_SECONDS if name in EXACT_BASELINES else None
            measured = ledger.rows.get((case.problem.name, case.share, name, seconds))
            if measured is None:
                measured = baseline_row(case, name)
                ledger.add(measured)
            rows.append(measured)
        print(f"{time.monotonic() - started:6.0f} s  {_line(case, rows)}", flush=True)
    return rows


def _line(case: Case, rows: list[Row]) -> str:
    mine = [r for r in rows if (r.problem, r.share, r.kind) == (case.problem.name, case.share, "engine")]
    told = (f"{row.planner} {row.status} {row.solve_seconds:.2f} s" for row in mine)
    return f"{case.problem.name} in {case.limits.ram_budget_bytes} bytes: {', '.join(told)}"


def main() -> None:
    """Measure what is missing, then write table and plot."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="two budgets of the published problems only")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="problems by name or its start")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="SECONDS", help="per search")
    parser.add_argument("--minutes", type=float, default=18.0, help="for all; run again to go on")
    parser.add_argument("--fresh", action="store_true", help="forget earlier measurements")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "benchmarks" / "results" / "planner-benchmark.md"
    )
    parser.add_argument("--rows", type=Path, default=ROOT / "build" / "planner-benchmark.jsonl")
    parser.add_argument("--remark", default="", help="a sentence for the page, as on other load")
    arguments = parser.parse_args()
    engines = [
        name for name in ("highs", "cpsat", "highs+cpsat", "scip", "cbc") if name in available_engines()
    ]
    limit = 3.0 if arguments.quick else arguments.time_limit
    shares = (0.5, 0.0) if arguments.quick else SHARES
    ledger = Ledger(arguments.rows, fresh=arguments.fresh)
    found = cases(arguments.only, shares, only_published=arguments.quick)
    rows = measure(
        found,
        ledger,
        engines,
        limit=limit,
        seeds=1 if arguments.quick else len(SEEDS),
        most_seconds=60.0 * arguments.minutes,
    )
    write_report(rows, arguments.output, time_limit_seconds=limit, remark=arguments.remark)
    print(f"{arguments.output} and its .svg are written")


if __name__ == "__main__":
    main()
