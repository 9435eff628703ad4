"""Policies that more than one planner uses."""

from __future__ import annotations

from poet.solvers.heuristics.list_scheduler import Policy, Tensors, Values, Walk, Way


class ByStaleness(Policy):
    """Drops what is large, was not used for long, and is cheap to have back (Kirisame et al., ICLR 2021)."""

    def __init__(self, way: Way) -> None:
        self.unplanned = way

    def value(self, walk: Walk, tensor: int) -> float:
        """Bytes × seconds since the last use, per joule."""
        stale_seconds = walk.seconds - float(walk.used_at[tensor])
        return walk.facts.size[tensor] * (stale_seconds + 1e-12) / (walk.return_price(tensor) + 1e-30)

    def values(self, walk: Walk, tensors: Tensors) -> Values:
        """See `value`."""
        stale_seconds = walk.seconds - walk.used_at[tensors]
        prices = walk.return_prices(tensors) + 1e-30
        return walk.facts.sizes[tensors] * (stale_seconds + 1e-12) / prices
