"""Two devices side by side, as a table for people and as data for programs."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poet.devices.profile import Profile
from poet.devices.spread import Contrast, Stated, contrasts
from poet.report.device import format_amount_of


def device_comparison_report(first: Profile, second: Profile) -> RenderableType:
    """The figures that differ by more than they may be off, largest factor first; the others by name."""
    found = contrasts(first, second)
    apart = [item for item in found if item.verdict == "differs"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("figure", first.name, second.name, "second / first"):
        table.add_column(header, no_wrap=True)
    for item in sorted(apart, key=_distance, reverse=True):
        table.add_row(Text(item.name), _told(item.first, item), _told(item.second, item), _factors(item))
    parts: list[RenderableType] = [
        Text(f"{first.name}: {first.title}"),
        Text(f"{second.name}: {second.title}"),
        Text(),
        Text(f"{len(apart)} figures differ by more than they may be off (powers above idle)"),
        *([table] if apart else []),
    ]
    for heading, names in (
        ("may be equal", [item.name for item in found if item.verdict == "may be equal"]),
        (f"only {first.name} states", [item.name for item in found if item.second is None]),
        (f"only {second.name} states", [item.name for item in found if item.first is None]),
    ):
        if names:
            parts += [Text(), Text(f"{heading}: {', '.join(names)}")]
    return Group(*parts)


def device_comparison_data(first: Profile, second: Profile) -> dict[str, Any]:
    """Every figure of both with its interval and what follows from them."""
    return {
        "devices": [first.name, second.name],
        "figures": [
            {
                "figure": item.name,
                "unit": item.unit,
                "verdict": item.verdict,
                "first": _data(item.first),
                "second": _data(item.second),
                "factors": item.factors,
            }
            for item in contrasts(first, second)
        ],
    }


def _data(stated: Stated | None) -> dict[str, float] | None:
    if stated is None:
        return None
    low, high = stated.interval
    return {"value": stated.value, "low": low, "high": high}


def _told(stated: Stated | None, item: Contrast) -> str:
    return "" if stated is None else format_amount_of(stated.value, stated.interval, item.unit)


def _factors(item: Contrast) -> str:
    if item.factors is None:
        return ""
    low, high = item.factors
    return f"{low:.3g}" if low == high else f"{_two_digits(low)} to {_two_digits(high)}"


def _two_digits(factor: float) -> str:
    """``160``, not ``1.6e+02``."""
    return f"{float(f'{factor:.2g}'):g}"


def _distance(item: Contrast) -> float:
    """The least factor by which the two differ."""
    if item.factors is None:
        return float("inf")
    low, high = item.factors
    return max(low, 1 / high if high > 0 else float("inf"))
