"""Makes results/robust-table.md: the plan of least largest regret against that of the stated figures.

Six steps on a device on which paging and recomputing cost about the same, so that its figures decide. Each is
searched with ``--time-limit`` seconds; all further searches take nine times as long at most.

    python -m benchmarks robust-table [--time-limit 5] [--only tcn]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "benchmarks" / "results" / "robust-table.md"
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402
from helpers.nets import NETS  # noqa: E402
from helpers.tiny_nets import MICRO_NETS  # noqa: E402

from poet.devices.device_problem import build_problem, kernels_on  # noqa: E402
from poet.devices.load import load_profile  # noqa: E402
from poet.frontend.trace import TrainingStep, trace_training_step  # noqa: E402
from poet.homes import decided  # noqa: E402
from poet.problem import Limits  # noqa: E402
from poet.ram_survey import keep_everything_bytes  # noqa: E402
from poet.solution import SolveOptions  # noqa: E402
from poet.solvers import minimum_ram_bytes, solve  # noqa: E402
from poet.units import format_bytes  # noqa: E402
from poet.whatif.cache import Cache  # noqa: E402
from poet.whatif.robust import robust  # noqa: E402
from poet.whatif.searches import Solver  # noqa: E402
from poet.whatif.workers import Workers, working  # noqa: E402

DEVICE = "mkr1000"
CASES = (("tcn", 0.05), ("tcn", 0.1), ("tcn", 0.15), ("tcn", 0.2), ("mobile", 0.2), ("cnn", 0.2))
"""A net, and which share of the RAM between the least and that of keeping everything it gets."""

HEAD = """# Robust plans

Made by `python -m benchmarks robust-table`.
Six training steps on `{device}`, each inside a share of the RAM between the
least that any schedule in the listed order needs and that of keeping everything. *Regret*:
the largest share by which a plan
takes more joules than the best plan known, over the eight corners of the device's figures (computing, reads
and writes, each good or bad). *Bound*: no plan's largest regret is smaller. *Time*: of all further searches
together, in units of the plan's own, which had {seconds:g} s. The machine was busy with other work.

Where both plans have the same regret, the plan of the stated figures is as good as any that was found, and
the bound says how much better one could be.

| step | RAM | regret, stated figures' plan | regret, robust plan | bound | robust / bound | searches | time |
|---|---|---|---|---|---|---|---|
"""


def _step(name: str) -> TrainingStep:
    torch.manual_seed(0)
    if name in MICRO_NETS:
        net = MICRO_NETS[name]
        return trace_training_step(net.build(), net.example(), loss=net.loss)
    tiny = NETS[name]
    return trace_training_step(tiny.build(), tiny.inputs(), loss=tiny.loss, targets=tiny.targets())


def row(name: str, share: float, seconds: float) -> str:
    """One line of the table."""
    step, profile = _step(name), load_profile(DEVICE)
    problem = build_problem(step.graph, profile, kernels_on(profile, step.graph, step.kernels))
    least, most = minimum_ram_bytes(problem, Limits()).bytes, keep_everything_bytes(problem)
    budget_bytes = int(least + share * (most - least))
    limits, options = Limits(ram_budget_bytes=budget_bytes), SolveOptions(time_limit_seconds=seconds)
    solution = solve(problem, limits, options)
    if solution.schedule is None:
        return f"| {name} | {format_bytes(budget_bytes)} | {solution.status.value} | | | | | |"
    with working(Workers()) as run:
        found = robust(
            decided(problem, solution.schedule),
            step.graph,
            profile,
            limits,
            solution.schedule,
            Solver(options, Cache(None), run),
            nominal_seconds=solution.solve_seconds,
        )
    ratio = f"{found.regret / found.regret_bound:.2f}" if found.regret_bound > 0 else "not bounded"
    return (
        f"| {name}, {len(problem.ops)} ops | {format_bytes(budget_bytes)} | {found.nominal_regret:.1%} | "
        f"{found.regret:.1%} | {found.regret_bound:.1%} | {ratio} | {found.searches} | "
        f"{found.search_seconds / solution.solve_seconds:.1f} |"
    )


def main() -> None:
    """Make the page, or print rows of some nets."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--time-limit", type=float, default=5.0)
    arguments.add_argument("--only", default="")
    asked = arguments.parse_args()
    rows = []
    for name, share in CASES:
        if asked.only in name:
            rows.append(row(name, share, asked.time_limit))
            print(rows[-1], flush=True)
    if not asked.only:
        PAGE.write_text(HEAD.format(device=DEVICE, seconds=asked.time_limit) + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
