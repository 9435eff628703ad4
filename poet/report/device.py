"""What a hardware profile says: its figures, two devices side by side, ranges of a plan, what a fit gave."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poet.devices.figures import PRIOR_FACTOR, Figure, OpClass, unit_of
from poet.devices.fitted_profile import rows_of
from poet.devices.measurements import StepTime
from poet.devices.profile import Direction, Part, Profile
from poet.devices.spread import Contrast, Price, Spread, Stated, contrasts
from poet.report import Column, listed
from poet.util.units import format_bytes, format_joules, format_quantity, format_seconds, format_share

EXACT_DIGITS = 10
"""Significant digits shown of a figure that is exact."""


def _supported(value: float, interval: tuple[float, float]) -> int:
    """How many digits of ``value`` its uncertainty supports, at least one."""
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


FIGURES = (
    Column("figure", lambda row: ".".join(row[0]), code=True),
    Column("value", lambda row: format_figure(row[1], unit_of(row[0][-1])), "right"),
    Column("kind", lambda row: row[1].kind),
    Column("uncertainty", lambda row: format_uncertainty(row[1], unit_of(row[0][-1]))),
    Column("source", lambda row: _source(row[1])),
)
"""Of a path and a figure."""


def _source(figure: Figure) -> str:
    said = figure.source if figure.locator is None else f"{figure.source}: {figure.locator}"
    return f"{said}. {' '.join(figure.note.split())}" if figure.note else said


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
    rows = []
    for path, figure in profile.figures():
        unit = unit_of(path[-1])
        name = ".".join(path).removesuffix("flops_per_second").removesuffix("bytes_per_second").rstrip("_.")
        said = figure.source if figure.locator is None else f"{figure.source}: {figure.locator}"
        rows.append((name, format_figure(figure, unit), figure.kind, format_uncertainty(figure, unit), said))
    headings = (column.heading for column in FIGURES)
    return Group(*map(Text, words), Text(), _wide(rows, *headings, folds="source"))


def _wide(rows: Iterable[Sequence[str]], *headings: str, folds: str = "") -> Table:
    """A table whose columns are all flush left and unbroken but for that which ``folds``."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        folded = heading == folds
        table.add_column(heading, no_wrap=not folded, overflow="fold" if folded else "ellipsis")
    for row in rows:
        table.add_row(*row)
    return table


def _speeds_words(profile: Profile) -> str:
    """Whose speeds they are, where the profile says so."""
    said = profile.kernels.speeds_of
    if said is None:
        return ""
    threads, chip = profile.kernels.threads, profile.chip
    clock = "" if chip is None else f" at {_short('Hz')(chip.clock_hertz.value)}"
    number = "" if threads is None else ", 1 thread" if threads == 1 else f", {threads} threads"
    return f"; speeds of {said}{number}{clock}"


def devices_data(profiles: Iterable[Profile]) -> list[dict[str, Any]]:
    """The figures by which devices are distinguished."""

    def value(figure: Figure | None) -> float | None:
        return None if figure is None else figure.value

    return [
        {
            "name": profile.name,
            "title": profile.title,
            "ram_bytes": profile.memory.ram_bytes.value,
            "matmul_flops_per_second": _matmul(profile).value,
            "memory_bytes_per_second": value(profile.memory.bandwidth_bytes_per_second),
            "idle_watts": profile.energy.idle_watts.value,
            "active_watts": profile.compute.active_watts.value,
            "accounting": profile.energy.accounting,
            "storage": profile.storage.title if profile.storage else None,
            "storage_bytes": value(_capacity(profile)),
            "read_bytes_per_second": value(_transfer(profile, "read")),
            "write_bytes_per_second": value(_transfer(profile, "write")),
            "figures_by_kind": _kinds(profile),
        }
        for profile in profiles
    ]


def _short(unit: str) -> Callable[[float], str]:
    return lambda amount: format_quantity(amount, unit, digits=2)


def devices_report(profiles: Sequence[Profile]) -> RenderableType:
    """One line per device."""
    columns: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
        ("name", "name", str),
        ("RAM", "ram_bytes", format_bytes),
        ("storage", "storage_bytes", format_bytes),
        ("products", "matmul_flops_per_second", _short("FLOP/s")),
        ("memory", "memory_bytes_per_second", _short("B/s")),
        ("read", "read_bytes_per_second", _short("B/s")),
        ("write", "write_bytes_per_second", _short("B/s")),
        ("idle", "idle_watts", _short("W")),
        ("busy adds", "busy_watts", _short("W")),
        ("measured", "figures_by_kind", lambda kinds: f"{_measured_percent(kinds):.0f} %"),
    )
    rows = []
    for row, profile in zip(devices_data(profiles), profiles, strict=True):
        row["busy_watts"] = profile.marginal_watts(profile.compute.active_watts.value)
        rows.append(["" if row[key] is None else told(row[key]) for _, key, told in columns])
    words = "products: matrix products; measured: share of the figures; for titles: poet devices show NAME"
    return Group(_wide(rows, *(heading for heading, _, _ in columns)), Text(), Text(words))


def _measured_percent(figures_by_kind: Mapping[str, int]) -> float:
    return 100 * figures_by_kind.get("measured", 0) / sum(figures_by_kind.values())


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
    rows = []
    for row in parts_data(parts):
        times = (row[way][str(size)] for way in ("read_seconds", "write_seconds") for size in PART_SIZES[:2])
        holds = "" if row["storage_bytes"] is None else format_bytes(row["storage_bytes"])
        shown = (row["name"], row["interface"], holds, *map(_short("s"), times))
        rows.append((*shown, _short("W")(row["write_watts"]), row["title"]))
    headings = ("name", "bus", "holds", "read 4 KiB", "64 KiB", "write 4 KiB", "64 KiB", "adds", "title")
    words = "adds: power while writing; a device's bus and processor may make a part slower and cost more"
    return Group(_wide(rows, *headings, folds="title"), Text(), Text(words))


def _seconds(way: Direction, size_bytes: int) -> float:
    return way.latency_seconds.value + size_bytes / way.bandwidth_bytes_per_second.value


def _kinds(profile: Profile) -> dict[str, int]:
    """How many figures are of each kind."""
    return dict(Counter(figure.kind for _, figure in profile.figures()))


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


# --- two devices -------------------------------------------------------------------------------


def device_comparison_report(first: Profile, second: Profile) -> RenderableType:
    """The figures that differ by more than they may be off, largest factor first; the others by name."""
    found = contrasts(first, second)
    apart = [item for item in found if item.verdict == "differs"]
    rows = [
        (item.name, _told(item.first, item), _told(item.second, item), _factors(item))
        for item in sorted(apart, key=_distance, reverse=True)
    ]
    table = _wide(rows, "figure", first.name, second.name, "second / first")
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


# --- ranges of a plan --------------------------------------------------------------------------


def spread_report(found: Spread, profile: Profile, deadline_seconds: float | None) -> RenderableType:
    """A row per group of figures, widest range of energy first, and one for all of them."""
    stated = found.stated
    words = [
        f"{profile.name}: the plan takes {format_joules(stated.joules)} and "
        f"{format_seconds(stated.seconds)}; at the ends of the device's figures, the schedule as it is:"
    ]
    widest = sorted(found.groups.items(), key=lambda item: item[1][0].joules - item[1][1].joules)
    together = [("all", (found.all_good, found.all_bad)), ("likely", (found.likely_good, found.likely_bad))]
    rows = [
        (
            name,
            f"{format_joules(good.joules)} to {format_joules(bad.joules)}",
            f"{format_seconds(good.seconds)} to {format_seconds(bad.seconds)}",
        )
        for name, (good, bad) in [*widest, *together]
    ]
    table = _wide(rows, "figures", "energy", "time")
    parts: list[RenderableType] = [*map(Text, words), Text(), table]
    words_likely = (
        "likely: in nine cases of ten, groups independent of each other and the cost model off as well"
    )
    parts += [Text(), Text(words_likely)]
    if deadline_seconds is not None:
        met = "is met" if found.all_bad.seconds <= deadline_seconds else "may be missed"
        parts += [Text(), Text(f"the deadline of {format_seconds(deadline_seconds)} {met} at the bad end")]
    return Group(*parts)


def spread_data(found: Spread, profile: Profile, deadline_seconds: float | None) -> dict[str, Any]:
    """JSON-ready."""

    def ends(good: Price, bad: Price) -> dict[str, Any]:
        return {"good": asdict(good), "bad": asdict(bad)}

    return {
        "device": profile.name,
        "deadline_seconds": deadline_seconds,
        "stated": asdict(found.stated),
        "groups": {name: ends(*prices) for name, prices in found.groups.items()},
        "all": ends(found.all_good, found.all_bad),
        "likely": ends(found.likely_good, found.likely_bad),
    }


# --- fits --------------------------------------------------------------------------------------


def fitted_report(profile: Profile, notes: Sequence[str], file: str) -> RenderableType:
    """The fitted speeds with their ranges, the error in unseen steps, and what the owner should know."""
    rows = []
    for path, figure in profile.figures():
        is_speed = path[0] == "compute" and path[-1] == "flops_per_second"
        if is_speed or path[-1].startswith("bandwidth"):
            unit, interval = unit_of(path[-1]), figure.interval
            low, high = (format_amount_of(value, interval, unit) for value in interval)
            rows.append((".".join(path), format_figure(figure, unit), f"{low} to {high}"))
    made = profile.calibration
    assert made is not None
    lines = [f"{file}: fitted to {made.ops} ops at {made.threads} thread{'s' * (made.threads != 1)}"]
    if made.median_error is not None and made.worst_error is not None:
        lines.append(
            f"{made.steps} training steps that the fit has not seen: median error "
            f"{format_share(made.median_error)}, worst {format_share(made.worst_error)}"
        )
    if profile.op_times is not None:
        models = ", ".join(profile.op_times.models)
        count = len(profile.op_times.seconds)
        lines.append(f"{count} row{'s' * (count != 1)} of measured ops, of {models}")
    lines += [f"note: {note}" for note in notes]
    return Group(listed(rows, "figure", "fitted", "range"), *map(Text, lines))


def profiled_lines(steps: Sequence[StepTime], file: str) -> list[str]:
    """What measuring a model gave, by number of threads."""
    lines = []
    for threads in dict.fromkeys(step.threads for step in steps):
        mine = [step for step in steps if step.threads == threads]
        seconds = sorted(step.seconds for step in mine)
        told = f"{format_seconds(seconds[0])} to {format_seconds(seconds[-1])}"
        busy = "; the machine was busy with other things" if any(step.was_busy for step in mine) else ""
        of = f"{threads} thread{'s' * (threads != 1)}"
        count = len(rows_of(mine)[0])
        lines.append(f"{of}: {count} row{'s' * (count != 1)}, a step takes {told}{busy}")
    return [*lines, f"written to {file}; poet devices fit {file} puts them into a profile"]
