"""Objectives and homes in words."""

from __future__ import annotations

import math

from poet.problem import Objective
from poet.units import format_bytes, format_joules, format_seconds

TITLES = {
    Objective.ENERGY: "energy",
    Objective.TIME: "time",
    Objective.RAM: "RAM",
    Objective.WRITES: "written to storage",
}


def format_amount(objective: Objective, amount: float) -> str:
    """``amount`` of an objective in its unit."""
    if not math.isfinite(amount):
        return "unknown"
    if objective is Objective.ENERGY:
        return format_joules(amount)
    return format_seconds(amount) if objective is Objective.TIME else format_bytes(amount)
