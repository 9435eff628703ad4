"""The range of a plan's seconds and joules, as a table for people and as data for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poet.devices.profile import Profile
from poet.devices.spread import Price, Spread
from poet.units import format_joules, format_seconds


def spread_report(found: Spread, profile: Profile, deadline_seconds: float | None) -> RenderableType:
    """A row per group of figures, widest range of energy first, and one for all of them."""
    stated = found.stated
    words = [
        f"{profile.name}: the plan takes {format_joules(stated.joules)} and "
        f"{format_seconds(stated.seconds)}; at the ends of the device's figures, the schedule as it is:"
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("figures", "energy", "time"):
        table.add_column(header, no_wrap=True)
    widest = sorted(found.groups.items(), key=lambda item: item[1][0].joules - item[1][1].joules)
    together = [("all", (found.all_good, found.all_bad)), ("likely", (found.likely_good, found.likely_bad))]
    for name, (good, bad) in [*widest, *together]:
        table.add_row(name, *_told(good, bad))
    parts: list[RenderableType] = [*map(Text, words), Text(), table]
    words_likely = (
        "likely: in nine cases of ten, groups independent of each other and the cost model off as well"
    )
    parts += [Text(), Text(words_likely)]
    if deadline_seconds is not None:
        met = "is met" if found.all_bad.seconds <= deadline_seconds else "may be missed"
        parts += [Text(), Text(f"the deadline of {format_seconds(deadline_seconds)} {met} at the bad end")]
    return Group(*parts)


def _told(good: Price, bad: Price) -> tuple[str, str]:
    return (
        f"{format_joules(good.joules)} to {format_joules(bad.joules)}",
        f"{format_seconds(good.seconds)} to {format_seconds(bad.seconds)}",
    )


def spread_data(found: Spread, profile: Profile, deadline_seconds: float | None) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "device": profile.name,
        "deadline_seconds": deadline_seconds,
        "stated": asdict(found.stated),
        "groups": {
            name: {"good": asdict(good), "bad": asdict(bad)} for name, (good, bad) in found.groups.items()
        },
        "all": {"good": asdict(found.all_good), "bad": asdict(found.all_bad)},
        "likely": {"good": asdict(found.likely_good), "bad": asdict(found.likely_bad)},
    }
