"""The watts of a fitted profile: measured, typed in, or those of its base."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from poet.devices.measurements import Measurements, PowerPhase
from poet.devices.profile import Profile
from poet.errors import InputError

_WATTS_WIDTH = 0.02


def typed_watts(phases: tuple[PowerPhase, ...], watts: Mapping[str, float]) -> tuple[PowerPhase, ...]:
    """``phases`` with what their owner typed in: by the names of phases."""
    kept = tuple(phase for phase in phases if phase.name not in watts)
    return (
        *kept,
        *(
            PowerPhase(name, 0.0, 0.0, each, "typed in", "as its owner measured it")
            for name, each in watts.items()
        ),
    )


def set_power(data: dict[str, Any], found: Measurements, base: Profile | None, notes: list[str]) -> None:
    """Put measured watts into ``data``, a profile's tables; else the base's, as they stand there.

    Raises:
        InputError: none were measured and there is no base: none are made up.
    """
    means: dict[str, list[PowerPhase]] = {}
    for phase in found.phases:
        if phase.watts is not None and phase.name != "marker":
            means.setdefault(phase.name, []).append(phase)
    busy_name = next(
        (name for name in ("matmul", "convolution", "busy", "elementwise") if name in means), None
    )
    if "idle" in means and busy_name is not None:
        _set_measured_power(data, found, means, busy_name)
    elif base is not None:
        notes.append(f"power was not measured: the watts are those of {base.name}, unchanged")
        data["energy"] = base.energy.model_dump(exclude_none=True)
        data["compute"]["active_watts"] = base.compute.active_watts.model_dump(exclude_none=True)
        for direction in ("read", "write"):
            if "storage" in data and base.storage is not None:
                watts = getattr(base.storage, direction).active_watts
                data["storage"][direction]["active_watts"] = watts.model_dump(exclude_none=True)
    else:
        raise InputError(
            "no power was measured, and watts are not made up: name a --base whose watts are taken over, "
            "a meter's log with --meter, or type --watts idle=2.7,busy=6"
        )
    if "storage" in data and any("active_watts" not in data["storage"][way] for way in ("read", "write")):
        del data["storage"]
        notes.append("the storage is left out: nothing tells what power its transfers take")


def _set_measured_power(
    data: dict[str, Any], found: Measurements, means: Mapping[str, list[PowerPhase]], busy_name: str
) -> None:
    idle_watts = statistics.fmean(phase.watts or 0.0 for phase in means["idle"])

    def figure(name: str) -> dict[str, Any]:
        phases = means[name]
        watts = statistics.fmean(phase.watts or 0.0 for phase in phases)
        watts = max(watts, idle_watts)  # a sensor's noise does not make being busy cheaper than being idle
        gap = watts - idle_watts if name != "idle" else watts
        low = watts - min(_WATTS_WIDTH * watts, 0.5 * gap)
        made = {"value": watts, "kind": phases[0].kind, "source": f"{phases[0].source}, {phases[0].rail}"}
        told = f"phase {name} of measurements {found.digest}"
        return {**made, "locator": told, "range": (low, watts * (1 + _WATTS_WIDTH))}

    data["energy"] = {
        "accounting": "total",
        "rail": means["idle"][0].rail or "the meter's place",
        "idle_watts": figure("idle"),
    }
    data["compute"]["active_watts"] = figure(busy_name)
    for name in ("matmul", "convolution", "elementwise"):
        if name in means and name in data["compute"]:
            data["compute"][name]["active_watts"] = figure(name)
    for direction in ("read", "write"):
        if "storage" in data and direction in means:
            data["storage"][direction]["active_watts"] = figure(direction)
