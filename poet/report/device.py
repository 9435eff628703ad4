"""What a hardware profile says, as tables for people and as data for programs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poet.devices.figures import PRIOR_FACTOR, Figure, OpClass, unit_of
from poet.devices.profile import Profile
from poet.devices.storage import Direction, Part
from poet.units import format_bytes, format_quantity

EXACT_DIGITS = 10
"""Significant digits shown of a figure that is exact."""


def significant_digits(figure: Figure) -> int:
    """How many digits of the value its uncertainty supports, at least one."""
    return _supported(figure.value, figure.interval)


def _supported(value: float, interval: tuple[float, float]) -> int:
    low, high = interval
    half_width = (high - low) / 2
    if half_width == 0 or value == 0:
        return EXACT_DIGITS
    digits = math.floor(math.log10(value)) - math.floor(math.log10(half_width)) + 1
    return min(max(digits, 1), EXACT_DIGITS)


def format_figure(figure: Figure, unit: str) -> str:
    """The value in its unit, with no more digits than its uncertainty supports."""
    return format_amount_of(figure.value, figure.interval, unit)


def format_amount_of(value: float, interval: tuple[float, float], unit: str) -> str:
    """``value`` in ``unit``, with no more digits than the width of ``interval`` supports."""
    return _format(value, unit, _supported(value, interval))


def format_uncertainty(figure: Figure, unit: str) -> str:
    """How far the value may be off: as stated, or the prior of its kind."""
    low, high = figure.interval
    if low == high:
        return "exact"
    if figure.range is not None:
        return f"{_format(low, unit, 2)} to {_format(high, unit, 2)}"
    if figure.uncertainty is not None:
        return f"± {100 * figure.uncertainty:g} %"
    return f"factor {PRIOR_FACTOR[figure.kind]:g} (prior)"


def _format(amount: float, unit: str, digits: int) -> str:
    if unit == "B":
        return format_bytes(amount)
    if unit in ("cycles", "cores", "lanes"):
        return f"{amount:.0f} {unit}"
    text = format_quantity(amount, unit, digits=digits)
    number, _, rest = text.partition(" ")
    if digits == EXACT_DIGITS and "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number} {rest}"


def profile_data(profile: Profile) -> dict[str, Any]:
    """The whole profile: its words, and every figure with unit, source, kind and interval."""
    storage = profile.storage
    return {
        "name": profile.name,
        "title": profile.title,
        "notes": profile.notes.strip(),
        "kernels": profile.kernels.name,
        "speeds_of": profile.kernels.speeds_of,
        "threads": profile.kernels.threads,
        "variants": list(profile.variants),
        "accounting": profile.energy.accounting,
        "rail": profile.energy.rail,
        "storage": None if storage is None else {"title": storage.title, "transfers": storage.transfers},
        "figures": [_figure_data(path, figure) for path, figure in profile.figures()],
    }


def _figure_data(path: tuple[str, ...], figure: Figure) -> dict[str, Any]:
    low, high = figure.interval
    return {
        "figure": ".".join(path),
        "value": figure.value,
        "unit": unit_of(path[-1]),
        "kind": figure.kind,
        "low": low,
        "high": high,
        "uncertainty_stated": figure.stated,
        "source": figure.source,
        "locator": figure.locator,
        "note": figure.note.strip() if figure.note else None,
    }


def profile_report(profile: Profile) -> RenderableType:
    """One device: its words, then a row per figure."""
    energy, storage = profile.energy, profile.storage
    words = [
        f"{profile.name}: {profile.title}",
        f"kernels: {profile.kernels.name}{_speeds_words(profile)}",
        f"power: {energy.accounting} accounting, rail: {energy.rail}",
        f"storage: {storage.title}, {storage.transfers}" if storage else "storage: none",
    ]
    if profile.notes:
        words.append(" ".join(profile.notes.split()))
    if profile.variants:
        words.append(f"variants: {'; '.join(profile.variants)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("figure", "value", "kind", "uncertainty"):
        table.add_column(header, no_wrap=True)
    table.add_column("source", overflow="fold")
    for path, figure in profile.figures():
        unit = unit_of(path[-1])
        said = figure.source if figure.locator is None else f"{figure.source}: {figure.locator}"
        name = ".".join(path).removesuffix("flops_per_second").removesuffix("bytes_per_second").rstrip("_.")
        table.add_row(
            Text(name), format_figure(figure, unit), figure.kind, format_uncertainty(figure, unit), Text(said)
        )
    return Group(*map(Text, words), Text(), table)


def _speeds_words(profile: Profile) -> str:
    """Whose speeds they are, where the profile says so."""
    said = profile.kernels.speeds_of
    if said is None:
        return ""
    threads, chip = profile.kernels.threads, profile.chip
    clock = "" if chip is None else f" at {_short(chip.clock_hertz, 'Hz')}"
    number = "" if threads is None else ", 1 thread" if threads == 1 else f", {threads} threads"
    return f"; speeds of {said}{number}{clock}"


def devices_data(profiles: Iterable[Profile]) -> list[dict[str, Any]]:
    """The figures by which devices are distinguished."""
    return [
        {
            "name": profile.name,
            "title": profile.title,
            "ram_bytes": profile.memory.ram_bytes.value,
            "matmul_flops_per_second": _matmul(profile).value,
            "memory_bytes_per_second": None if (speed := _memory_speed(profile)) is None else speed.value,
            "idle_watts": profile.energy.idle_watts.value,
            "active_watts": profile.compute.active_watts.value,
            "accounting": profile.energy.accounting,
            "storage": profile.storage.title if profile.storage else None,
            "storage_bytes": capacity.value if (capacity := _capacity(profile)) else None,
            "read_bytes_per_second": read.value if (read := _transfer(profile, "read")) else None,
            "write_bytes_per_second": write.value if (write := _transfer(profile, "write")) else None,
            "figures_by_kind": _kinds(profile),
        }
        for profile in profiles
    ]


def devices_report(profiles: Iterable[Profile]) -> RenderableType:
    """One line per device."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    headers = (
        "name",
        "RAM",
        "storage",
        "products",
        "memory",
        "read",
        "write",
        "idle",
        "busy adds",
        "measured",
    )
    for header in headers:
        table.add_column(header, no_wrap=True)
    for profile in profiles:
        speed, capacity = _memory_speed(profile), _capacity(profile)
        kinds = _kinds(profile)
        table.add_row(
            profile.name,
            format_bytes(profile.memory.ram_bytes.value),
            "" if capacity is None else format_bytes(capacity.value),
            _short(_matmul(profile), "FLOP/s"),
            _short(speed, "B/s"),
            *(_short(_transfer(profile, name), "B/s") for name in ("read", "write")),
            _short(profile.energy.idle_watts, "W"),
            format_quantity(profile.marginal_watts(profile.compute.active_watts.value), "W", digits=2),
            f"{100 * kinds.get('measured', 0) / sum(kinds.values()):.0f} %",
        )
    words = "products: matrix products; measured: share of the figures; for titles: poet devices show NAME"
    return Group(table, Text(), Text(words))


PART_SIZES = (4096, 65536, 1 << 20)


def parts_data(parts: Iterable[Part]) -> list[dict[str, Any]]:
    """The figures by which storage parts are distinguished."""
    return [
        {
            "name": part.name,
            "title": part.title,
            "interface": part.interface,
            "storage_bytes": None if part.capacity_bytes is None else part.capacity_bytes.value,
            "read_seconds": {str(size): _seconds(part.read, size) for size in PART_SIZES},
            "write_seconds": {str(size): _seconds(part.write, size) for size in PART_SIZES},
            "read_watts": part.read.active_watts.value,
            "write_watts": part.write.active_watts.value,
        }
        for part in parts
    ]


def parts_report(parts: Iterable[Part]) -> RenderableType:
    """One line per storage part."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("name", "bus", "holds", "read 4 KiB", "64 KiB", "write 4 KiB", "64 KiB", "adds", "title"):
        table.add_column(header, no_wrap=header != "title")
    for part in parts:
        times = (_seconds(way, size) for way in (part.read, part.write) for size in PART_SIZES[:2])
        table.add_row(
            part.name,
            part.interface,
            "" if part.capacity_bytes is None else format_bytes(part.capacity_bytes.value),
            *(format_quantity(seconds, "s", digits=2) for seconds in times),
            format_quantity(part.write.active_watts.value, "W", digits=2),
            part.title,
        )
    words = "adds: power while writing; a device's bus and processor may make a part slower and dearer"
    return Group(table, Text(), Text(words))


def _seconds(way: Direction, size_bytes: int) -> float:
    return way.latency_seconds.value + size_bytes / way.bandwidth_bytes_per_second.value


def _short(figure: Figure | None, unit: str) -> str:
    return "" if figure is None else format_quantity(figure.value, unit, digits=2)


def _kinds(profile: Profile) -> dict[str, int]:
    """How many figures are of each kind."""
    return dict(Counter(figure.kind for _, figure in profile.figures()))


def _memory_speed(profile: Profile) -> Figure | None:
    return profile.memory.bandwidth_bytes_per_second


def _capacity(profile: Profile) -> Figure | None:
    return None if profile.storage is None else profile.storage.capacity_bytes


def _transfer(profile: Profile, name: str) -> Figure | None:
    storage = profile.storage
    if storage is None:
        return None
    return (storage.read if name == "read" else storage.write).bandwidth_bytes_per_second


def _matmul(profile: Profile) -> Figure:
    throughput = profile.compute.throughput(OpClass.MATMUL)
    assert throughput is not None, "every profile has one, as its schema checks"
    return throughput.flops_per_second


def validation_line(profile: Profile, file_name: str) -> str:
    """What a valid profile holds, in one sentence."""
    figures = [figure for _, figure in profile.figures()]
    assumed = sum(figure.kind == "assumed" for figure in figures)
    priors = sum(not figure.stated for figure in figures)
    return (
        f"{file_name}: a valid profile of {profile.title}: {len(figures)} figures, "
        f"{assumed} assumed, {priors} without a stated uncertainty"
    )
