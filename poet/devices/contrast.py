"""Two devices figure by figure: where they differ by more than their figures may be off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from poet.devices.profile import Figure, OpClass, Profile, unit_of

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Stated:
    """A figure of one device, in the unit of its name."""

    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Contrast:
    """One figure of two devices.

    Attributes:
        name: the figure's path; ``active_watts`` are above idle, so that both accountings compare.
        unit: of both.
        first, second: as each states it; ``None``: it does not.
    """

    name: str
    unit: str
    first: Stated | None
    second: Stated | None

    @property
    def verdict(self) -> Literal["differs", "may be equal", "one only"]:
        """``differs``: the intervals have nothing in common."""
        if self.first is None or self.second is None:
            return "one only"
        (low, high), (other_low, other_high) = self.first.interval, self.second.interval
        return "differs" if high < other_low or other_high < low else "may be equal"

    @property
    def factors(self) -> Interval | None:
        """Least and most that the second may be of the first; ``None`` where that is not known or endless."""
        if self.first is None or self.second is None or self.first.interval[0] <= 0:
            return None
        (low, high), (other_low, other_high) = self.first.interval, self.second.interval
        return other_low / high, other_high / low


def contrasts(first: Profile, second: Profile) -> tuple[Contrast, ...]:
    """Every figure that either device states, in the order of the schema.

    The speed of a class of op is what holds for it, from its own table or from its parent's, where either
    device has a table of its own for the class.
    """
    ours, theirs = (_figures(profile) for profile in (first, second))
    names = [*ours, *(name for name in theirs if name not in ours)]
    found = []
    for name in names:
        op_class = _class_of_speed(name)
        left, right = ours.get(name), theirs.get(name)
        if op_class is not None:
            left, right = left or _speed(first, op_class), right or _speed(second, op_class)
        found.append(Contrast(name, unit_of(name.rpartition(".")[2]), left, right))
    return tuple(found)


def _figures(profile: Profile) -> dict[str, Stated]:
    return {".".join(path): stated for path, stated in _stated(profile)}


def _stated(profile: Profile) -> Iterator[tuple[tuple[str, ...], Stated]]:
    idle_watts = profile.energy.idle_watts.value
    for path, figure in profile.figures():
        if path[-1] == "active_watts" and profile.energy.accounting == "total":
            low, high = figure.interval
            above = max(low - idle_watts, 0.0), high - idle_watts
            yield path, Stated(figure.value - idle_watts, above)
        else:
            yield path, _of(figure)


def _of(figure: Figure) -> Stated:
    return Stated(figure.value, figure.interval)


def _class_of_speed(name: str) -> OpClass | None:
    parts = name.split(".")
    known = {op_class.value: op_class for op_class in OpClass}
    return known.get(parts[1]) if parts[0] == "compute" and parts[-1] == "flops_per_second" else None


def _speed(profile: Profile, op_class: OpClass) -> Stated | None:
    throughput = profile.compute.throughput(op_class)
    return None if throughput is None else _of(throughput.flops_per_second)
