"""Steps of microcontroller nets in little RAM: plan, bound, what is open, and why a search ended.

    python tests/benchmarks/small_ram.py [--only NAME ...] [--devices NAME ...] [--shares 0.3 ...]
                                         [--time-limit 30] [--rows FILE] [--fresh]

Traces the nets of `helpers.tiny_nets` in batches of one, costs their steps on each device and plans them
for budgets between the least that any schedule needs (0) and what keeping everything takes (1). Problems,
and each search as a line of JSON, are kept under build/small-ram/, so that a run which was stopped goes on
where it was. Each search runs in a process of its own, on one thread.

The time limit is in seconds of a core's work, the children's included (`CoreClock`), so that what else the
machine does takes nothing from a search.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from poet.clock import Clock
from poet.devices.costs import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.problem import Limits, Problem
from poet.ram_survey import budget_between, keep_everything_bytes
from poet.solution import SolveOptions, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.units import format_bytes

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "small-ram"
NETS = ("tcn", "residual-tcn", "ds-cnn", "resnet-8", "mobilenet-v1", "autoencoder", "mlp", "gru")
DEVICES = ("stm32h743", "nrf52840", "rpi4b-xnnpack")
SHARES = (0.5, 0.3, 0.15, 0.05)
GOAL = 0.02
"""Of the overhead, that may be open in the end."""
HEADINGS = ("net", "ops", "device", "budget", "", "plan", "bound", "open", "core s", "why it is open")


class CoreClock(Clock):
    """Seconds of a core that this process and its children have worked; Linux only."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        """See `Clock.now`; a child that ends as it is looked at does not turn time back."""
        self.seconds = max(self.seconds, sum(os.times()[:4]) + sum(map(_core_seconds, _children())))
        return self.seconds


def _children() -> list[int]:
    """Of this process, those that have not ended."""
    return [int(child) for tasks in Path("/proc/self/task").iterdir() for child in _read(tasks / "children")]


def _core_seconds(process: int) -> float:
    """That a running process has worked; 0 where it has just ended."""
    fields = _read(Path(f"/proc/{process}/stat"))
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _read(path: Path) -> list[str]:
    """Words of a file of a thread or process; none where that has just ended."""
    try:
        return path.read_text().split()
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class Row:
    """One search; plan and bound are shares above running every op once.

    Attributes:
        net, device, share, ops, budget_bytes, limit_seconds: what was asked.
        status: of the answer.
        plan: of the best; ``None``: there is none.
        bound: no plan is below.
        open_share: of the overhead.
        seconds: of the search, by `CoreClock`.
        message: what the search says of its end.
    """

    net: str
    device: str
    share: float
    ops: int
    budget_bytes: int
    limit_seconds: float
    status: str
    plan: float | None
    bound: float
    open_share: float | None
    seconds: float
    message: str

    @property
    def key(self) -> tuple[str, str, float]:
        """What was asked."""
        return self.net, self.device, self.share


def problem_of(net: str, device: str) -> Problem:
    """The training step's planning problem, made once, in a process of its own: torch is large."""
    path = BUILD / f"{net}.{device}.json"
    if not path.exists():
        subprocess.run([sys.executable, __file__, "--make", "--only", net], check=True)
    return Problem.load(path)


def _make_problems(net: str) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.tiny_nets import MICRO_NETS

    from poet.api import prepare

    BUILD.mkdir(parents=True, exist_ok=True)
    micro = MICRO_NETS[net]
    prepared = prepare(micro.build(), micro.example(), device=DEVICES[0], loss=micro.loss)
    for device in DEVICES:
        graph, profile = prepared.step.graph, load_profile(device)
        problem = build_problem(graph, profile, kernels_on(profile, graph, prepared.step.kernels))
        (BUILD / f"{net}.{device}.json").write_text(json.dumps(problem.to_json()))


def measured(net: str, device: str, share: float, limit_seconds: float) -> Row:
    """One search in this process."""
    problem = problem_of(net, device)
    least, most = minimum_ram_bytes(problem, Limits()).bytes, keep_everything_bytes(problem)
    limits = Limits(ram_budget_bytes=budget_between(least, most, share))
    solution = solve(problem, limits, SolveOptions(limit_seconds, clock=CoreClock()))
    baseline = solution.baseline_joules
    return Row(
        net=net,
        device=device,
        share=share,
        ops=len(problem.ops),
        budget_bytes=limits.ram_budget_bytes or 0,
        limit_seconds=limit_seconds,
        status=solution.status.word,
        plan=None if solution.joules is None else solution.joules / baseline - 1.0,
        bound=solution.bound_joules / baseline - 1.0,
        open_share=solution.overhead_gap,
        seconds=solution.solve_seconds,
        message=solution.message,
    )


def page(rows: Sequence[Row]) -> str:
    """The table, and how many searches reached the goal."""
    reached = sum(_reached(row) for row in rows)
    early = sum(row.status == Status.FEASIBLE.word and row.seconds < row.limit_seconds for row in rows)
    return "\n".join(
        (
            f"{reached} of {len(rows)} proven or at most {GOAL:.0%} of the overhead open; "
            f"{early} ended early with a gap.\n",
            f"| {' | '.join(HEADINGS)} |",
            "|---|--:|---|--:|--:|--:|--:|--:|--:|---|",
            *map(line, rows),
        )
    )


def _reached(row: Row) -> bool:
    return row.status == Status.OPTIMAL.word or (row.open_share is not None and row.open_share <= GOAL)


def line(row: Row) -> str:
    """Of the table."""
    cells = (
        row.net,
        str(row.ops),
        row.device,
        f"{row.share:.0%}",
        format_bytes(row.budget_bytes),
        row.status if row.plan is None else f"+{100 * row.plan:.5g} %",
        f"+{100 * row.bound:.5g} %",
        "" if row.open_share is None else f"{100 * row.open_share:.3g} %",
        f"{row.seconds:.1f}",
        "" if _reached(row) else row.message,
    )
    return f"| {' | '.join(cells)} |"


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure what was asked for and is not known yet; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--devices", nargs="+", choices=DEVICES, default=list(DEVICES))
    parser.add_argument("--shares", nargs="+", type=float, default=list(SHARES))
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds of a core for each search")
    parser.add_argument("--rows", type=Path, default=BUILD / "rows.jsonl", help="where searches are kept")
    parser.add_argument("--fresh", action="store_true", help="forget earlier searches")
    parser.add_argument("--make", action="store_true", help=argparse.SUPPRESS)  # problem files alone
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # search here, print the row
    given = parser.parse_args(None if arguments is None else list(arguments))
    if given.make:
        _make_problems(given.only[0])
        return
    if given.one:
        row = measured(given.only[0], given.devices[0], given.shares[0], given.time_limit)
        print(json.dumps(asdict(row)))
        return
    if given.fresh:
        given.rows.unlink(missing_ok=True)
    lines = given.rows.read_text().splitlines() if given.rows.exists() else []
    known = {row.key: row for row in (Row(**json.loads(line)) for line in lines)}
    wanted = [
        (net, device, share) for net in given.only for device in given.devices for share in given.shares
    ]
    for key in wanted:
        if key not in known or known[key].limit_seconds != given.time_limit:
            problem_of(*key[:2])
            known[key] = _in_a_process(*key, given.time_limit)
            with given.rows.open("a") as file:
                file.write(json.dumps(asdict(known[key])) + "\n")
            print(line(known[key]), flush=True)
    print(f"\n{page([known[key] for key in wanted])}")


def _in_a_process(net: str, device: str, share: float, limit_seconds: float) -> Row:
    asked = ["--only", net, "--devices", device, "--shares", str(share), "--time-limit", str(limit_seconds)]
    done = subprocess.run(
        [sys.executable, __file__, "--one", *asked], check=True, stdout=subprocess.PIPE, text=True
    )
    return Row(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
