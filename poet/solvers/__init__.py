"""Ways to decide: the event-model MILP, heuristics and baselines, and the exhaustive oracle."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poet.solvers.instance.feasibility import has_schedules, minimum_ram_bytes
    from poet.solvers.search.alternatives import solve

logging.getLogger(__name__).addHandler(logging.NullHandler())  # who wants to hear sets a handler

__all__ = ["has_schedules", "minimum_ram_bytes", "solve"]


def __getattr__(name: str) -> Any:
    """Import engines only where they are used."""
    if name == "solve":
        from poet.solvers.search.alternatives import solve

        return solve
    if name in ("has_schedules", "minimum_ram_bytes"):
        from poet.solvers.instance import feasibility

        return getattr(feasibility, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
