"""Steps of microcontroller nets in little RAM: plan, bound, what is open, and why a search ended.

    python -m benchmarks small-ram [--table small] [--only NAME ...] [--devices NAME ...]
                                         [--homes ram ...] [--shares 0.3 ...] [--time-limit 60]
                                         [--rows FILE] [--fresh]

Traces the nets of `helpers.tiny_nets`, or those of `helpers.other_nets` (`--table other`), in batches of one,
costs their steps on each device and plans them, with parameters kept in RAM or where the plan likes
(auto), for budgets between the least that any schedule needs (0) and what keeping everything takes (1).
Problems, and each search as a line of JSON, are kept under build/small-ram/, so that a run which was stopped
goes on where it was. Each search runs in a process of its own, on one thread.

The time limit is in seconds of a core's work, the children's included (`CoreClock`), so that what else the
machine does takes nothing from a search.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from result_file import RESULTS, write

from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.problem import Limits, Place, Problem
from poet.problem.solution import SolveOptions, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.portfolio.state import COPIES, LINEAR, WHOLE
from poet.util.units import format_bytes

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.clocks import CoreClock  # noqa: E402

BUILD = ROOT / "build" / "small-ram"
HOMES = {"ram": Place.RAM, "auto": Place.EITHER}


@dataclass(frozen=True, slots=True)
class Table:
    """The searches of one page.

    Attributes:
        nets: each of which is searched in all ``places``: a device, where parameters are at home, and a share
            of the way from the least RAM to keeping everything.
        page: that it is written to.
        asked_with: the option of `make` that says which rows.
        begin: of the page, its heading and what its nets are.
    """

    nets: tuple[str, ...]
    places: tuple[tuple[str, str, float], ...]
    page: Path
    asked_with: str
    begin: tuple[str, ...]


SMALL = Table(
    nets=("tcn", "residual-tcn", "ds-cnn", "resnet-8", "mobilenet-v1", "autoencoder", "mlp", "gru"),
    places=tuple(
        itertools.product(("stm32h743", "nrf52840", "rpi4b-xnnpack"), HOMES, (0.7, 0.5, 0.3, 0.15, 0.05))
    ),
    page=RESULTS / "small-nets.json",
    asked_with="SMALL_RAM",
    begin=(
        "# Small nets in little RAM\n",
        "Made by `python -m benchmarks small-ram`: training steps of nets as microcontrollers run them",
        "(`MICRO_NETS` in `tests/helpers/tiny_nets.py`), in batches of one, all parameters trained by",
    ),
)
OTHER = Table(
    nets=("mobilenet-v2", "vit", "u-net", "lstm", "heartbeats", "squeezenet"),
    places=(
        ("rp2040", "ram", 0.5),
        ("esp32-s3", "auto", 0.3),
        ("stm32f746", "ram", 0.15),
        ("pixel", "auto", 0.15),
        ("stm32l4r5", "auto", 0.05),
        ("jetson-nano", "ram", 0.3),
    ),
    page=RESULTS / "other-nets.json",
    asked_with="OTHER_NETS",
    begin=(
        "# Other nets, other boards\n",
        "Made by `python -m benchmarks small-ram --table other`:",
        "training steps of nets on which little of the planner was",
        "developed (`OTHER_NETS` in `tests/helpers/other_nets.py`), each on six boards that",
        "`small-nets` do not have, at one budget per board. Two of them have no storage",
        "(rp2040, stm32l4r5): tensors are kept or made again. Batches of one, all parameters trained by",
    ),
)
TABLES = {"small": SMALL, "other": OTHER}
GOAL, WORST = 0.02, 0.1
"""Of the overhead, that may be open in the end: in `GOAL_SHARE` of the searches, and in all."""
GOAL_SHARE, PROVEN_OPS = 0.9, 60
"""A step of fewer ops than that should be proven."""
HEADINGS = ("net", "ops", "device", "home", "budget", "", "plan", "bound", "open", "core s", "why it is open")
LATE_SHARE = 0.8
"""What became better after that share of the time was still on its way."""
WEAK_POINTS = {
    COPIES: "it cuts off sets of copies one after the other, and each cut takes programs over all sets of "
    "tensors that fit; tensors below its threshold take no RAM in them",
    LINEAR: "reruns and residency come in fractions, and RAM is counted at some moments only",
    WHOLE: "RAM is counted at some moments only",
}
"""Why a bound may be too low, by who found it, as far as its name begins so."""


@dataclass(frozen=True, slots=True)
class Row:
    """One search; plan and bound are shares above running every op once.

    Attributes:
        net, device, home, share, ops, budget_bytes, limit_seconds: what was asked.
        status: of the answer.
        plan: of the best; ``None``: there is none.
        bound: no plan is below.
        open_share: of the overhead.
        seconds: of the search, by `CoreClock`.
        plan_seconds, bound_seconds: after which the plan and the bound did not become better.
        bound_by: who found the bound.
    """

    net: str
    device: str
    home: str
    share: float
    ops: int
    budget_bytes: int
    limit_seconds: float
    status: str
    plan: float | None
    bound: float
    open_share: float | None
    seconds: float
    plan_seconds: float
    bound_seconds: float
    bound_by: str

    @property
    def key(self) -> tuple[str, str, str, float]:
        """What was asked."""
        return self.net, self.device, self.home, self.share


def problem_of(net: str, device: str, home: str) -> Problem:
    """The training step's planning problem, made once, in a process of its own: torch is large."""
    path = BUILD / f"{net}.{device}.{home}.json"
    if not path.exists():
        subprocess.run([sys.executable, __file__, "--make", "--only", net], check=True)
    return Problem.load(path)


def _make_problems(net: str) -> None:
    from helpers.other_nets import OTHER_NETS
    from helpers.tiny_nets import MICRO_NETS

    from poet.api import prepare

    BUILD.mkdir(parents=True, exist_ok=True)
    (table,) = (table for table in TABLES.values() if net in table.nets)
    micro = (MICRO_NETS | OTHER_NETS)[net]
    prepared = prepare(micro.build(), micro.example(), device=table.places[0][0], loss=micro.loss)
    for device, home in dict.fromkeys(place[:2] for place in table.places):
        graph, profile = prepared.step.graph, load_profile(device)
        kernels = kernels_on(profile, graph, prepared.step.kernels)
        problem = build_problem(graph, profile, kernels, home=HOMES[home])
        (BUILD / f"{net}.{device}.{home}.json").write_text(json.dumps(problem.to_json()))


def measured(net: str, device: str, home: str, share: float, limit_seconds: float) -> Row:
    """One search in this process."""
    problem = problem_of(net, device, home)
    least, most = minimum_ram_bytes(problem, Limits()).bytes, keep_everything_bytes(problem)
    limits = Limits(ram_budget_bytes=budget_between(least, most, share))
    solution = solve(problem, limits, SolveOptions(limit_seconds, clock=CoreClock()))
    baseline, record = solution.baseline_joules, solution.record
    return Row(
        net=net,
        device=device,
        home=home,
        share=share,
        ops=len(problem.ops),
        budget_bytes=limits.ram_budget_bytes or 0,
        limit_seconds=limit_seconds,
        status=solution.status.word,
        plan=None if solution.joules is None else solution.joules / baseline - 1.0,
        bound=solution.bound_joules / baseline - 1.0,
        open_share=solution.overhead_gap,
        seconds=solution.solve_seconds,
        plan_seconds=record.plans[-1].seconds if record.plans else math.nan,
        bound_seconds=record.bounds[-1].seconds,
        bound_by=record.bounds[-1].by,
    )


def page(rows: Sequence[Row], table: Table = SMALL) -> str:
    """What was asked, the goals beside what was reached, why the others are open, and all rows."""
    limits = ", ".join(f"{limit:g}" for limit in sorted({row.limit_seconds for row in rows}))
    return "\n".join(
        (
            *table.begin,
            "SGD. *Home* is where these are between steps: in RAM, or, where that says auto, as the plan",
            "likes. A budget of 5 % lies that far up from the least RAM that any schedule in the listed",
            "order needs to what",
            "keeping everything takes. *Plan* and *bound* are energy above running every op once, which no",
            "plan avoids, as a share of it; *open* is how far the plan may be above the best of all plans,",
            f"as a share of its overhead. Each search has one thread and {limits} s of a core's work,",
            f"whatever else the machine does. {_spread(rows, table)}\n",
            *_goals(rows),
            *_reasons([row for row in rows if not _reached(row)]),
            f"| {' | '.join(HEADINGS)} |",
            "|---|--:|---|---|--:|--:|--:|--:|--:|--:|---|",
            *map(line, rows),
            "",
        )
    )


def _spread(rows: Sequence[Row], table: Table) -> str:
    """Which of all rows these are."""
    every = [table.nets, *zip(*table.places, strict=True)]
    there = [row.key for row in rows]
    given = [
        f"{option} {' '.join(map(str, dict.fromkeys(has)))}"
        for option, whole, has in zip(
            ("--only", "--devices", "--homes", "--shares"), every, zip(*there, strict=True), strict=True
        )
        if list(dict.fromkeys(whole)) != list(dict.fromkeys(has))
    ]
    asked = len(table.nets) * len(table.places)
    if given:
        return f"Asked for with `{table.asked_with}='{' '.join(given)}'`."
    if len(rows) < asked:
        return f"Of all {asked} nets, devices, homes and budgets these {len(rows)} have been searched."
    return "All nets, devices, homes and budgets."


def _goals(rows: Sequence[Row]) -> list[str]:
    small = [row for row in rows if row.ops < PROVEN_OPS]
    early = [row for row in rows if not _proven(row) and row.seconds < row.limit_seconds]
    goals = (
        (
            f"proven or at most {GOAL:.0%} from a proof",
            GOAL_SHARE,
            rows,
            [row for row in rows if _reached(row)],
        ),
        (f"at most {WORST:.0%} from a proof", 1.0, rows, [row for row in rows if _open_share(row) <= WORST]),
        (f"steps of fewer than {PROVEN_OPS} ops proven", 1.0, small, [row for row in small if _proven(row)]),
        ("proven or the time used up", 1.0, rows, [row for row in rows if row not in early]),
    )
    lines = ["| goal | of searches | reached in | |", "|---|--:|--:|---|"]
    for words, share, asked, reached in goals:
        if not asked:
            continue
        met = "met" if len(reached) >= share * len(asked) else "**missed**"
        lines.append(f"| {words} | {share:.0%} | {len(reached)} of {len(asked)} | {met} |")
    return [*lines, ""]


def _reasons(rows: Sequence[Row]) -> list[str]:
    """Why the goal was missed: what was still on its way, and what the bound leaves out."""
    if not rows:
        return []
    rising = sum(row.bound_seconds > LATE_SHARE * row.seconds for row in rows)
    falling = sum(row.plan_seconds > LATE_SHARE * row.seconds for row in rows)
    lines = [
        f"Of the {len(rows)} beyond {GOAL:.0%}, the bound still rose in the last fifth of the time in "
        f"{rising}, and the plan became better in {falling}.",
        "By who found the bound, and why it may be too low:\n",
        "| bound by | searches | it may be too low, as |",
        "|---|--:|---|",
    ]
    for name, why in WEAK_POINTS.items():
        number = sum(row.bound_by.startswith(name) for row in rows)
        if number:
            lines.append(f"| {name} | {number} | {why} |")
    return [*lines, ""]


def _proven(row: Row) -> bool:
    return row.status in (Status.OPTIMAL.word, Status.INFEASIBLE.word)


def _open_share(row: Row) -> float:
    """Of the overhead; all of it where there is no plan."""
    if _proven(row):
        return 0.0
    return 1.0 if row.open_share is None else row.open_share


def _reached(row: Row) -> bool:
    return _open_share(row) <= GOAL


def line(row: Row) -> str:
    """Of the table."""
    by = row.bound_by.split(",")[0]
    found = f"plan until {row.plan_seconds:.1f} s" if row.plan is not None else "no plan was found"
    why = f"bound by {by}, better until {row.bound_seconds:.1f} s; {found}"
    cells = (
        row.net,
        str(row.ops),
        row.device,
        row.home,
        f"{row.share:.0%}",
        format_bytes(row.budget_bytes),
        row.status if row.plan is None else f"+{100 * row.plan:.5g} %",
        f"+{100 * row.bound:.5g} %",
        "" if row.open_share is None else f"{100 * row.open_share:.3g} %",
        f"{row.seconds:.1f}",
        "" if _reached(row) else why,
    )
    return f"| {' | '.join(cells)} |"


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure what was asked for and is not known yet; write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--table", choices=TABLES, default="small", help="whose nets and devices these are")
    parser.add_argument("--only", nargs="+", metavar="NET", help="these nets alone")
    parser.add_argument("--devices", nargs="+", help="these devices alone")
    parser.add_argument("--homes", nargs="+", choices=HOMES, help="these homes alone")
    parser.add_argument("--shares", nargs="+", type=float, help="these budgets alone")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of a core for each search")
    parser.add_argument("--rows", type=Path, help="where searches are kept")
    parser.add_argument("--fresh", action="store_true", help="forget earlier searches")
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)  # problem files alone
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # search here, print the row
    given = parser.parse_args(None if arguments is None else list(arguments))
    if given.make:
        _make_problems(given.only[0])
        return
    if given.one:
        row = measured(given.only[0], given.devices[0], given.homes[0], given.shares[0], given.time_limit)
        print(json.dumps(asdict(row)))
        return
    table, kept = TABLES[given.table], given.rows or BUILD / f"rows-{given.table}.jsonl"
    if given.fresh:
        kept.unlink(missing_ok=True)
    lines = kept.read_text().splitlines() if kept.exists() else []
    known = {row.key: row for row in (Row(**json.loads(line)) for line in lines)}
    asked = (given.only, given.devices, given.homes, given.shares)
    wanted = [
        (net, *place)
        for net, place in itertools.product(table.nets, table.places)
        if all(not some or part in some for some, part in zip(asked, (net, *place), strict=True))
    ]
    if not wanted:
        parser.error(f"no row of the table {given.table} is any of these")
    for key in wanted:
        if key not in known or known[key].limit_seconds != given.time_limit:
            problem_of(*key[:3])
            known[key] = _in_a_process(*key, given.time_limit)
            with kept.open("a") as file:
                file.write(json.dumps(asdict(known[key])) + "\n")
            print(line(known[key]), flush=True)
    write(table.page, page([known[key] for key in wanted], table))
    print(f"wrote {table.page.relative_to(ROOT)}")


def _in_a_process(net: str, device: str, home: str, share: float, limit_seconds: float) -> Row:
    asked = ["--only", net, "--devices", device, "--homes", home, "--shares", str(share)]
    asked += ["--time-limit", str(limit_seconds)]
    done = subprocess.run(
        [sys.executable, __file__, "--one", *asked], check=True, stdout=subprocess.PIPE, text=True
    )
    return Row(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
