"""Training steps of real exports planned against the clock: plans within seconds, gaps within a minute.

    python -m benchmarks large-graphs [--only NAME ...] [--devices NAME ...] [--shares 0.7 ...]
                                            [--time-limit 60] [--batch 1] [--rows FILE] [--fresh]

Exports the nets of `zoo.LARGE` to ONNX in training mode, imports the files, costs the steps on three
devices and plans them for four budgets each. Problems, and each measurement as a line, are kept under
build/large-graphs/, so that a run which was stopped goes on where it was. Every search runs in a
process of its own, which is looked at from outside for the memory that it and its children hold
(`workers.run`). The time limit is in seconds of a core's work, the children's included
(`CoreClock`), on one thread. Writes results/large-graphs.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.problem import Limits, Problem
from poet.problem.solution import Solution, SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.util.units import format_bytes

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.clocks import CoreClock  # noqa: E402
from result_file import RESULTS, write  # noqa: E402
from workers import run  # noqa: E402

BUILD = ROOT / "build" / "large-graphs"
PAGE = RESULTS / "large-graphs.json"
NETS = ("resnet50", "bert", "mobilenet_v2", "unet", "gpt", "bert_24", "resnet152")
DEVICES = ("nrf52840", "rpi4b-xnnpack", "x86-host")
SHARES = (0.7, 0.5, 0.3, 0.15)
"""Budgets, from the least that any schedule needs (0) to what keeping everything takes (1)."""
EARLY_SECONDS = 5.0
GAP = 0.01
"""What a search should reach, of the total joules."""
HEADINGS = (
    "step", "ops", "device", "budget", "", "first plan s", "above at 5 s", "above in the end", "bound",
    "gap", "gap of the overhead", "search s", "MB",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One search; joules are shares above running every op once, ``None``: no plan.

    Attributes:
        net, device, batch, share, ops, budget_bytes: what was asked.
        status: of the answer.
        first_seconds, early, last, bound: when the first plan was there, the best at `EARLY_SECONDS` and
            in the end, and the bound for the whole problem.
        gap, overhead_gap: of the total, of the overhead.
        seconds, time_limit_seconds: by the clock of the search.
        peak_bytes: the most that the search and its children held at once.
    """

    net: str
    device: str
    batch: int
    share: float
    ops: int
    budget_bytes: int
    status: str
    first_seconds: float | None
    early: float | None
    last: float | None
    bound: float
    gap: float | None
    overhead_gap: float | None
    seconds: float
    time_limit_seconds: float
    peak_bytes: int = 0

    @property
    def key(self) -> tuple[str, str, int, float, float]:
        """What was measured."""
        return self.net, self.device, self.batch, self.share, self.time_limit_seconds


def problem_of(net: str, device: str, batch: int) -> Problem:
    """The training step's planning problem, made once."""
    path = BUILD / f"{net}.b{batch}.{device}.json"
    if not path.exists():  # in a process of its own: torch is large
        making = [sys.executable, __file__, "--make", "--only", net, "--batch", str(batch)]
        subprocess.run(making, check=True)
    return Problem.load(path)


def _make_problems(net: str, batch: int) -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    from zoo import LARGE, export

    from poet.api import prepare

    BUILD.mkdir(parents=True, exist_ok=True)
    size = LARGE[net].full
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / f"{net}.onnx"
        export(size.build(), size.inputs(2), model)
        prepared = prepare(model, device=DEVICES[0], loss=LARGE[net].loss, bind={"N": batch})
        for device in DEVICES:
            graph, profile = prepared.step.graph, load_profile(device)
            problem = build_problem(graph, profile, kernels_on(profile, graph, prepared.step.kernels))
            (BUILD / f"{net}.b{batch}.{device}.json").write_text(json.dumps(problem.to_json()))


def measure(net: str, device: str, batch: int, share: float, time_limit: float) -> Row:
    """One search in this process, whose memory is seen from outside."""
    problem = problem_of(net, device, batch)
    most, least = keep_everything_bytes(problem), minimum_ram_bytes(problem, Limits()).bytes
    limits = Limits(ram_budget_bytes=budget_between(least, most, share))
    plans: list[tuple[float, float]] = []

    def progress(joules: float | None, bound: float, gap: float | None, seconds: float) -> None:
        if joules is not None and (not plans or joules < plans[-1][1]):
            plans.append((seconds, joules))

    options = SolveOptions(time_limit, progress=progress, clock=CoreClock())
    solution = solve(problem, limits, options)
    early = [joules for seconds, joules in plans if seconds <= EARLY_SECONDS]
    return Row(
        net=net,
        device=device,
        batch=batch,
        share=share,
        ops=len(problem.ops),
        budget_bytes=limits.ram_budget_bytes or 0,
        status=solution.status.word,
        first_seconds=plans[0][0] if plans else None,
        early=_above(solution, early[-1]) if early else None,
        last=None if solution.joules is None else _above(solution, solution.joules),
        bound=_above(solution, solution.bound_joules),
        gap=solution.gap,
        overhead_gap=solution.overhead_gap,
        seconds=solution.solve_seconds,
        time_limit_seconds=time_limit,
    )


def _above(solution: Solution, joules: float) -> float:
    return joules / solution.baseline_joules - 1.0


def page(rows: Sequence[Row], remark: str = "") -> str:
    """The table, and how many searches reached what they should; ``remark`` is about the machine."""
    planned = [row for row in rows if row.gap is not None]
    early = sum(row.first_seconds is not None and row.first_seconds <= EARLY_SECONDS for row in planned)
    close = [row for row in planned if (row.gap or 0.0) <= GAP]
    limits = sorted({row.time_limit_seconds for row in rows})
    impossible = sum(row.status == "infeasible" for row in rows)
    parts = [
        "# Large graphs\n",
        "Made by `python -m benchmarks large-graphs`:",
        "training steps of nets exported to ONNX from plain torch",
        "(`examples/zoo`, `LARGE`), all parameters trained by SGD. A budget of 30 % lies that far up from",
        "the lower bound to what keeping everything takes. *Above* is energy above running every op once,",
        "which no plan avoids, as a share of it. *Gap* is how far the plan may be above the best of all",
        "plans, as a share of its energy, then of its overhead. *MB* is the most memory that the search and",
        "its children held at once, looked at ten times a second, what they share counted once.\n",
        f"Each search has one thread and {', '.join(f'{limit:g}' for limit in limits)} s of a core's work; "
        f"{_machine()} {remark}".rstrip()
        + "\n",
        f"Of {len(rows)} searches {impossible} proved that there is no plan. Of the {len(planned)} with one,",
        f"{early} had their first within {EARLY_SECONDS:g} s; the gap is at most {GAP:.0%} in "
        f"{len(close)}.\n",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---:|---|---:|---|" + "---:|" * (len(HEADINGS) - 5),
        *(_line(row) for row in rows),
    ]
    return "\n".join(parts) + "\n"


def _line(row: Row) -> str:
    cells = (
        f"{row.net}, batch {row.batch}",
        str(row.ops),
        row.device,
        f"{row.share:.0%}",
        format_bytes(row.budget_bytes),
        "" if row.first_seconds is None else f"{row.first_seconds:.1f}",
        _percent(row.early),
        row.status if row.last is None else _percent(row.last),
        _percent(row.bound if row.last is not None else None),
        _percent(row.gap),
        _percent(row.overhead_gap),
        f"{row.seconds:.0f}",
        f"{row.peak_bytes / 1e6:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100.0 * max(share, 0.0):.3g} %"


def _machine() -> str:
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.machine()}."


def rows_of(path: Path) -> dict[tuple[str, str, int, float, float], Row]:
    """What was measured so far, by `Row.key`."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row.key: row for row in (Row(**json.loads(line)) for line in lines)}


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure what was asked for and is not known yet; write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--devices", nargs="+", default=list(DEVICES))
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES))
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument(
        "--remark", default="", help="a sentence for the page, as on what else the machine did"
    )
    parser.add_argument("--rows", type=Path, default=BUILD / "rows.jsonl", help="where measurements are kept")
    parser.add_argument("--fresh", action="store_true", help="forget earlier measurements")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # measure here, print the row
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)  # problem files alone
    given = parser.parse_args(None if arguments is None else list(arguments))
    wanted = [
        (net, device, share) for net in given.only for device in given.devices for share in given.shares
    ]
    if given.make:
        _make_problems(given.only[0], given.batch)
        return
    if given.one:
        net, device, share = wanted[0]
        row = measure(net, device, given.batch, share, given.time_limit)
        print(json.dumps(asdict(row)))
        return
    path: Path = given.rows
    if given.fresh:
        path.unlink(missing_ok=True)
    known = rows_of(path)
    for net, device, share in wanted:
        key = (net, device, given.batch, share, given.time_limit)
        if key in known:
            continue
        problem_of(net, device, given.batch)
        known[key] = _in_a_process(given, *key)
        with path.open("a") as file:
            file.write(json.dumps(asdict(known[key])) + "\n")
        print(_line(known[key]), flush=True)
        write(PAGE, page(list(known.values()), given.remark))
    write(PAGE, page(list(known.values()), given.remark))


def _in_a_process(given: argparse.Namespace, *key: str | float) -> Row:
    net, device, batch, share, limit = map(str, key)
    options = ["--batch", batch, "--time-limit", limit]
    chosen = ["--one", "--only", net, "--devices", device, "--shares", share]
    command = [sys.executable, __file__, *chosen, *options]
    ran = run(command)
    return replace(Row(**json.loads(ran.stdout.splitlines()[-1])), peak_bytes=ran.peak_bytes)


if __name__ == "__main__":
    main()
