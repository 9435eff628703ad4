"""What a fit to measurements gave, in words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from poet.devices.profile import Profile, unit_of
from poet.report.device import format_amount_of, format_figure
from poet.report.plan import columns
from poet.units import format_share


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
    lines += [f"note: {note}" for note in notes]
    return Group(table, *lines)
