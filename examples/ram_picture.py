"""RAM over one step of a plan: plain training, the plan, and its budget, as an SVG file and in the terminal.

Plain training is the plan's own problem with everything kept, each tensor freed after its last use. Times
are the device's, by its profile.

    python examples/ram_picture.py plan.poet [-o ram.svg]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from poet.plans.plan_file import read_plan
from poet.plans.training_plan import Plan
from poet.problem import Limits
from poet.problem.simulator import Trace, simulate
from poet.report.schedule_rows import memory_over_time
from poet.solvers.heuristics.policies import keep_everything
from poet.util.units import format_bytes, format_seconds, format_share

COLUMNS, ROWS = 72, 12
MIB = 2**20


def plain_trace(plan: Plan) -> Trace:
    """The step that keeps everything."""
    schedule = keep_everything(plan.problem, Limits())
    assert schedule is not None
    return simulate(plan.problem, schedule)


def plot(plain: Trace, planned: Trace, budget_bytes: int) -> Iterator[str]:
    """Both over the same seconds in lines of characters: plain light, planned dark, the budget a line."""
    seconds, top = max(plain.seconds, planned.seconds), max(plain.peak_ram_bytes, budget_bytes)
    heights = []
    for trace in (plain, planned):
        columns = max(1, round(COLUMNS * trace.seconds / seconds))
        heights.append([round(held / top * ROWS) for held in memory_over_time(trace, columns)])
    budget_row = round(budget_bytes / top * ROWS)
    for row in reversed(range(ROWS)):
        label = {ROWS - 1: format_bytes(top), budget_row: f"{format_bytes(budget_bytes)} ─", 0: "0"}
        line = ""
        for column in range(COLUMNS):
            light, dark = (column < len(each) and each[column] > row for each in heights)
            line += "█" if dark else "░" if light else "─" if row == budget_row else " "
        yield f"{label.get(row, ''):>12} │{line.rstrip()}"
    yield f"{'':>12} └{'─' * COLUMNS}"
    yield f"{'':>14}0{format_seconds(seconds):>{COLUMNS - 1}}"


def draw(plain: Trace, planned: Trace, budget_bytes: int, heading: str, output: Path) -> None:
    """The same as an SVG file; the same step gives the same file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams |= {"svg.hashsalt": "poet", "svg.fonttype": "none"}
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    figure.patch.set_facecolor("white")
    axes = figure.subplots()
    for trace, colour, what in ((plain, "0.6", "plain training"), (planned, "C0", "planned by poet")):
        milliseconds = [1e3 * moment.start_seconds for moment in trace.moments] + [1e3 * trace.seconds]
        held = [moment.ram_bytes / MIB for moment in trace.moments]
        label = f"{what}: at most {format_bytes(trace.peak_ram_bytes)}, {format_seconds(trace.seconds)}"
        axes.fill_between(milliseconds, [*held, 0.0], step="post", color=colour, alpha=0.25, linewidth=0)
        axes.step(milliseconds, [*held, 0.0], where="post", color=colour, linewidth=1.2, label=label)
    label = f"budget: {format_bytes(budget_bytes)}"
    axes.axhline(budget_bytes / MIB, color="C3", linewidth=1.2, linestyle="--", label=label)
    axes.set(title=heading, xlabel="milliseconds of the step", ylabel="MiB of RAM", ylim=(0, None))
    axes.set_xlim(0, 1e3 * max(plain.seconds, planned.seconds))
    axes.legend(frameon=False)
    figure.savefig(output, metadata={"Date": None})


def main() -> None:
    """Print the picture, and write it where asked."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="an SVG file")
    asked = parser.parse_args()
    plan = read_plan(asked.plan)
    plain, planned = plain_trace(plan), plan.trace
    budget_bytes = plan.request.limits.ram_budget_bytes or planned.peak_ram_bytes
    share = format_share(planned.peak_ram_bytes / plain.peak_ram_bytes)
    print(f"RAM over one step on {plan.device.name}: ░ plain training, █ the plan ({share} of it)")
    print("\n".join(plot(plain, planned, budget_bytes)))
    if asked.output is not None:
        heading = f"RAM over one training step of {plan.model.name} on {plan.device.name}"
        draw(plain, planned, budget_bytes, heading, asked.output)
        print(f"the same as a picture: {asked.output}")


if __name__ == "__main__":
    main()
