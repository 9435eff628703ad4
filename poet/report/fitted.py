"""What a fit to measurements gave, in words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from poet.devices.figures import unit_of
from poet.devices.fitted_profile import rows_of
from poet.devices.measurements import StepTime
from poet.devices.profile import Profile
from poet.report.columns import columns
from poet.report.device import format_amount_of, format_figure
from poet.units import format_seconds, format_share


def fitted_report(profile: Profile, notes: Sequence[str], file: str) -> RenderableType:
    """The fitted speeds with their ranges, the error in unseen steps, and what the owner should know."""
    table = columns("figure", "fitted", "range", left=1)
    for path, figure in profile.figures():
        is_speed = path[0] == "compute" and path[-1] == "flops_per_second"
        if is_speed or path[-1].startswith("bandwidth"):
            unit, interval = unit_of(path[-1]), figure.interval
            low, high = (format_amount_of(value, interval, unit) for value in interval)
            table.add_row(".".join(path), format_figure(figure, unit), f"{low} to {high}")
    made = profile.calibration
    assert made is not None
    lines = [f"{file}: fitted to {made.ops} ops at {made.threads} thread{'s' * (made.threads != 1)}"]
    if made.median_error is not None and made.worst_error is not None:
        lines.append(
            f"{made.steps} training steps that the fit has not seen: median error "
            f"{format_share(made.median_error)}, worst {format_share(made.worst_error)}"
        )
    if profile.op_times is not None:
        models = ", ".join(profile.op_times.models)
        count = len(profile.op_times.seconds)
        lines.append(f"{count} row{'s' * (count != 1)} of measured ops, of {models}")
    lines += [f"note: {note}" for note in notes]
    return Group(table, *map(Text, lines))


def profiled_lines(steps: Sequence[StepTime], file: str) -> list[str]:
    """What measuring a model gave, by number of threads."""
    lines = []
    for threads in dict.fromkeys(step.threads for step in steps):
        mine = [step for step in steps if step.threads == threads]
        seconds = sorted(step.seconds for step in mine)
        told = f"{format_seconds(seconds[0])} to {format_seconds(seconds[-1])}"
        busy = "; the machine was busy with other things" if any(step.was_busy for step in mine) else ""
        of = f"{threads} thread{'s' * (threads != 1)}"
        count = len(rows_of(mine).seconds)
        lines.append(f"{of}: {count} row{'s' * (count != 1)}, a step takes {told}{busy}")
    return [*lines, f"written to {file}; poet devices fit {file} puts them into a profile"]
