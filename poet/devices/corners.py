"""A device at the ends of its figures' intervals: what a plan must be judged by where a figure may be off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from poet.devices.profile import Count, Profile
from poet.files.reading import LARGEST_AMOUNT

End = Literal["low", "high"]
Place = tuple[str, ...]
"""Of a figure in a profile, as `Profile.figures` gives it."""


def uncertain_figures(profile: Profile) -> tuple[Place, ...]:
    """Paths of the figures that may be off; whole numbers are chosen or counted, not estimated."""
    return tuple(
        path
        for path, figure in profile.figures()
        if not isinstance(figure, Count) and figure.interval[0] != figure.interval[1]
    )


def corner(profile: Profile, ends: Mapping[Place, End]) -> Profile:
    """``profile`` with each figure of ``ends`` at that end of its interval, and exact there.

    In total accounting an ``active_watts`` holds the idle power. What may be off is what being busy adds, so
    idle power that is off moves every ``active_watts`` with it.

    Raises:
        ValueError: the profile has an ``active_watts`` that may be below its idle power.
    """
    data = profile.model_dump()
    idle_path = ("energy", "idle_watts")
    moved_watts = 0.0
    if profile.energy.accounting == "total" and idle_path in ends:
        idle = profile.energy.idle_watts
        moved_watts = idle.interval[0 if ends[idle_path] == "low" else 1] - idle.value
    for path, figure in profile.figures():
        end = ends.get(path)
        value = figure.value if end is None else figure.interval[0 if end == "low" else 1]
        moved = path[-1] == "active_watts" and moved_watts != 0.0
        if end is not None or moved:
            entry = _at(data, path)
            value = min(value + moved_watts * moved, LARGEST_AMOUNT)
            entry.update(value=value, range=None, uncertainty=0.0)
    return Profile.model_validate(data)


def _at(data: dict[str, Any], path: Place) -> dict[str, Any]:
    for name in path:
        data = data[name]
    return data
