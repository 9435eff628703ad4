"""RAM over one step of ResNet-18, every op whole and as poet runs it: docs/images/strips-resnet18.svg.

Left, everything kept; right, both planned inside the budget of results/models.json. Whole is the graph of
``--gradients keep``: no strips, slices, packed saves or in-place updates. Times are the device's.

    python examples/strips_picture.py [--time-limit 30] [--output docs/images/strips-resnet18.svg]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from models_rows import MIB, SHARE, before
from models_table import DEVICE, model_file

from poet import api
from poet.ir.strips import Gradients
from poet.planning.step_search import without_choice
from poet.problem import Limits
from poet.problem.simulator import Trace, simulate
from poet.problem.solution import SolveOptions
from poet.solvers.heuristics.policies import keep_everything
from poet.util.units import format_bytes, format_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from poet.planning.prepared import Prepared

NET = "resnet18"
WAYS = (
    (Gradients.KEEP, "every op whole", "0.55"),
    (Gradients.STREAM, "as poet runs it", "C0"),
)


def kept(prepared: Prepared) -> Trace:
    """A step that keeps everything, with all saves packed that can be."""
    schedule = keep_everything(prepared.problem, Limits())
    assert schedule is not None
    return simulate(prepared.problem, schedule)


def planned(prepared: Prepared, budget_bytes: int, seconds: float) -> tuple[Trace, float]:
    """The step of a plan, and the joules of running every op once."""
    made = api.plan_step(
        prepared,
        Limits(ram_budget_bytes=budget_bytes),
        SolveOptions(time_limit_seconds=seconds),
    )
    return made.plan.trace, made.solution.baseline_joules


def draw(axes: Axes, trace: Trace, label: str, colour: str) -> None:
    """RAM over the seconds of a step."""
    moments = trace.moments
    axes.step(
        [moment.start_seconds for moment in moments] + [trace.seconds],
        [moment.ram_bytes / MIB for moment in moments] + [moments[-1].ram_bytes / MIB],
        where="post",
        label=label,
        color=colour,
        linewidth=1.2,
    )


def main() -> None:
    """Plan, draw, and print what the picture shows."""
    import matplotlib as mpl
    import torch
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each search")
    parser.add_argument("--output", type=Path, default=Path("docs/images/strips-resnet18.svg"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    budget_bytes = before()[NET].budget_bytes(SHARE)
    mpl.rcParams["svg.hashsalt"] = "poet"  # the same step gives the same file
    figure = Figure(figsize=(11.0, 4.0), layout="constrained")
    whole, inside = figure.subplots(1, 2, sharey=True)
    with tempfile.TemporaryDirectory() as folder:
        path, bind, loss = model_file(NET, Path(folder))
        for gradients, label, colour in WAYS:
            prepared = api.prepare(path, device=DEVICE, loss=loss, bind=bind, gradients=gradients)
            trace = kept(without_choice(prepared))
            draw(whole, trace, f"{label}: {format_bytes(trace.peak_ram_bytes)}", colour)
            print(f"{label}: keeps everything in {format_bytes(trace.peak_ram_bytes)}, {trace.joules:.4g} J")
            trace, once_joules = planned(prepared, budget_bytes, asked.time_limit)
            above = format_share(trace.joules / once_joules - 1)
            draw(inside, trace, f"{label}: {above} above running every op once", colour)
            print(f"{label}: in {format_bytes(budget_bytes)} {above} above once, {trace.seconds:.3g} s")
    inside.axhline(budget_bytes / MIB, color="0.3", linewidth=0.8, linestyle=":")
    for axes, heading in (
        (whole, "everything kept"),
        (inside, f"planned inside {format_bytes(budget_bytes)}"),
    ):
        axes.set(title=heading, xlabel="seconds of a step on the device")
        axes.legend(frameon=False, loc="lower center")
    whole.set(ylabel="MiB of RAM", ylim=(0, None))
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(asked.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
