"""Every planning problem of the repository × budget × engine, and the literature's planners beside them.

    python -m benchmarks planner [--quick] [--only NAME ...] [--time-limit 10] [--minutes 18] [--fresh]

Writes results/planner-benchmark.json and .svg. Each measurement is a line of a file under build/, so that
a run which was stopped goes on where it was; ``--fresh`` begins anew. Engines run on one thread (the
pair on two); seconds are wall clock, medians over the seeds of runs that are shorter than
`REPEATED_SECONDS`. Every plan passes the simulator.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from result_file import RESULTS, write

from poet.baselines.comparison import BASELINES, EXACT_BASELINES
from poet.planning.ram_survey import keep_everything_bytes
from poet.problem import Limits, Problem
from poet.problem.simulator import Trace, simulate
from poet.problem.solution import Solution, SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.engines import available_engines
from poet.util.units import format_bytes

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
OWN = "greedy"
"""A baseline of this package, not of the literature: shown, not counted among the rivals."""

INTRODUCTION = """# The planner, measured

Made by `python -m benchmarks planner`; every plan passes the simulator. *Above* is the energy above
running every op once, which no plan can avoid, as a share of it. *Gap* is how far the plan may be
above the best, as a share of that overhead. Budgets are shares of the RAM that keeping everything takes;
*least* is the lower bound for any schedule in the listed order.
Time limit per search: {limit:g} s. {machine} {remark}
"""


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


def write_report(rows: Sequence[Row], path: Path, *, time_limit_seconds: float, remark: str = "") -> None:
    """Write the page at ``path`` and the plot beside it."""
    figure = path.with_suffix(".svg")
    parts = [
        INTRODUCTION.format(limit=time_limit_seconds, machine=_machine(), remark=remark),
        f"`{figure.name}`: proofs over time, and the other planners' overhead.\n",
        "## Summary\n",
        _summary(rows),
        "\n## Engines, every problem and budget\n",
        _engine_table(rows),
        "\n## Planners: energy above running every op once\n",
        "Proven for what it may do: `*`. No plan found: `–`. Bold: no more expensive than ours.\n",
        _baseline_table(rows),
    ]
    write(path, "\n".join(parts))
    _plot(rows, figure)


def _machine() -> str:
    names = {"HiGHS": "highspy", "OR-tools": "ortools", "PuLP": "pulp"}
    told = []
    for name, package in names.items():
        try:
            told.append(f"{name} {version(package)}")
        except PackageNotFoundError:
            told.append(f"no {name}")
    return f"{os.cpu_count()} cores, {platform.machine()}, {', '.join(told)}."


def _share_name(share: float) -> str:
    return f"{share:.0%}" if share else "least"


def _above(row: Row) -> float | None:
    return None if row.joules is None else row.joules / row.once_joules - 1.0


def _percent(share: float) -> str:
    return "0 %" if share < 1e-9 else f"{100 * share:.4g} %"


def _gap(row: Row) -> float | None:
    if row.joules is None or row.bound_joules is None:
        return None
    overhead, open_joules = row.joules - row.once_joules, row.joules - row.bound_joules
    return 0.0 if open_joules <= 1e-9 * row.joules else open_joules / overhead


def _cells(rows: Iterable[Row]) -> dict[tuple[str, float], list[Row]]:
    cells: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.problem, row.share), []).append(row)
    return cells


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    shown = [f"| {' | '.join(line)} |" for line in (headings, ["---"] * len(headings), *lines)]
    return "\n".join(shown) + "\n"


def _summary(rows: Sequence[Row]) -> str:
    engines = dict.fromkeys(row.planner for row in rows if row.kind == "engine")
    lines = []
    for engine in engines:
        mine = [row for row in rows if row.planner == engine]
        closed = [row for row in mine if row.status == "optimal"]
        gaps = [gap for row in mine if row.status == "feasible" and (gap := _gap(row)) is not None]
        lines.append(
            [
                engine,
                str(len(mine)),
                str(len(closed)),
                f"{statistics.median(row.solve_seconds for row in closed):.2f} s" if closed else "–",
                _percent(max(gaps)) if gaps else "–",
                str(sum("exact" in row.proof or "agree" in row.proof for row in closed)),
            ]
        )
    engine_part = _table(
        (
            "engine",
            "searches",
            "proven optimal",
            "median time of these",
            "worst gap of the others",
            "confirmed",
        ),
        lines,
    )
    return engine_part + "\n" + _rival_summary(rows)


def _rival_summary(rows: Sequence[Row]) -> str:
    cells, lines = _cells(rows), []
    for planner in dict.fromkeys(row.planner for row in rows if row.kind == "baseline"):
        ratios, found, asked, worse = [], 0, 0, 0
        for cell in cells.values():
            ours, rival = _ours(cell), _named(cell, planner)
            asked += 1
            if rival is None or rival.joules is None or ours is None or ours.joules is None:
                continue
            found += 1
            ratios.append(rival.joules / ours.joules)
            worse += rival.joules < ours.joules * (1 - 1e-9)
        spread = [f"{f(ratios):.4g}" for f in (statistics.median, max)] if ratios else ["–", "–"]
        lines.append([planner, f"{found} of {asked}", *spread, str(worse)])
    return _table(
        ("planner", "found a plan", "median energy, × ours", "largest, × ours", "cheaper than ours"), lines
    )


def _ours(cell: Iterable[Row]) -> Row | None:
    """The answer of the engine that runs everywhere."""
    return next((row for row in cell if row.kind == "engine"), None)


def _named(cell: Iterable[Row], planner: str) -> Row | None:
    return next((row for row in cell if row.planner == planner), None)


def _engine_table(rows: Sequence[Row]) -> str:
    engines = list(dict.fromkeys(row.planner for row in rows if row.kind == "engine"))
    lines = []
    for (problem, share), cell in _cells(rows).items():
        ours = _ours(cell)
        if ours is None:
            continue
        told = [_told(_named(cell, engine)) for engine in engines]
        lines.append([problem, str(ours.ops), _share_name(share), format_bytes(ours.budget_bytes), *told])
    return _table(("problem", "ops", "budget", "bytes", *engines), lines)


def _told(row: Row | None) -> str:
    above = None if row is None else _above(row)
    if row is None or above is None:
        return "" if row is None else f"{row.status}, {row.solve_seconds:.2f} s"
    gap = _gap(row)
    open_part = "" if row.status == "optimal" or gap is None else f", gap {_percent(gap)}"
    return f"{_percent(above)}{open_part}, {row.solve_seconds:.2f} s"


def _baseline_table(rows: Sequence[Row]) -> str:
    planners = list(dict.fromkeys(row.planner for row in rows if row.kind == "baseline"))
    lines = []
    for (problem, share), cell in _cells(rows).items():
        ours = _ours(cell)
        own = None if ours is None else _above(ours)
        told = [_beside(_named(cell, planner), own) for planner in planners]
        lines.append([problem, _share_name(share), "–" if own is None else _percent(own), *told])
    return _table(("problem", "budget", "poet", *planners), lines)


def _beside(row: Row | None, own: float | None) -> str:
    above = None if row is None else _above(row)
    if row is None or above is None:
        return "–"
    text = _percent(above) + (" *" if row.status == "optimal" else "")
    return f"**{text}**" if own is not None and above <= own * (1 + 1e-6) + 1e-12 else text


def _plot(rows: Sequence[Row], path: Path) -> None:
    """Left: proofs over time per engine; right: the rivals' energy over ours."""
    mpl.rcParams["svg.hashsalt"] = "poet"  # the same rows give the same file
    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    proofs, rivals = figure.subplots(1, 2)
    published = {row.problem for row in rows if row.kind == "engine" and row.planner != "highs"}
    for engine in dict.fromkeys(row.planner for row in rows if row.kind == "engine"):
        mine = [row for row in rows if row.planner == engine and (row.problem in published or not published)]
        seconds = sorted(row.solve_seconds for row in mine if row.status == "optimal")
        shares = [100.0 * (number + 1) / len(mine) for number in range(len(seconds))]
        proofs.step(seconds, shares, where="post", label=engine)
    proofs.set(xscale="log", xlabel="seconds", ylabel="% proven optimal", ylim=(0, 103))
    proofs.set_title("published problems, five budgets each")
    proofs.legend(frameon=False)
    names, ratios = _ratios(rows, lambda planner: planner != OWN)
    rivals.boxplot(ratios, orientation="horizontal", tick_labels=names, whis=(0, 100), widths=0.6)
    rivals.axvline(1.0, color="0.6", linewidth=0.8)
    rivals.set(xscale="log", xlabel="energy of a step, × ours")
    rivals.set_title("where a planner found a plan")
    figure.savefig(path, metadata={"Date": None})


def _ratios(rows: Sequence[Row], wanted: Callable[[str], bool]) -> tuple[list[str], list[list[float]]]:
    ratios: dict[str, list[float]] = {}
    for cell in _cells(rows).values():
        ours = _ours(cell)
        for row in cell:
            counted = row.kind == "baseline" and wanted(row.planner)
            if counted and ours is not None and ours.joules is not None and row.joules is not None:
                ratios.setdefault(row.planner, []).append(row.joules / ours.joules)
    names = sorted(ratios, key=lambda name: -statistics.median(ratios[name]))
    return names, [ratios[name] for name in names]


def main() -> None:
    """Measure what is missing, then write table and plot."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="two budgets of the published problems only")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="problems by name or its start")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="SECONDS", help="per search")
    parser.add_argument("--minutes", type=float, default=18.0, help="for all; run again to go on")
    parser.add_argument("--fresh", action="store_true", help="forget earlier measurements")
    parser.add_argument("--output", type=Path, default=RESULTS / "planner-benchmark.json")
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
