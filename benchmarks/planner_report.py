"""The planner benchmark's rows as a page and a plot."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from poet.util.units import format_bytes

if TYPE_CHECKING:
    from planner import Row

OWN = "greedy"
"""A baseline of this package, not of the literature: shown, not counted among the rivals."""

INTRODUCTION = """# The planner, measured

Made by `python -m benchmarks planner`; every plan passes the simulator. *Above* is the energy above
running every op once, which no plan can avoid, as a share of it. *Gap* is how far the plan may be
above the best, as a share of that overhead. Budgets are shares of the RAM that keeping everything takes;
*least* is the lower bound for any schedule in the listed order.
Time limit per search: {limit:g} s. {machine} {remark}
"""


def write_report(rows: Sequence[Row], path: Path, *, time_limit_seconds: float, remark: str = "") -> None:
    """Write the page at ``path`` and the plot beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = path.with_suffix(".svg")
    parts = [
        INTRODUCTION.format(limit=time_limit_seconds, machine=_machine(), remark=remark),
        f"![Proofs over time, and the other planners' overhead]({figure.name})\n",
        "## Summary\n",
        _summary(rows),
        "\n## Engines, every problem and budget\n",
        _engine_table(rows),
        "\n## Planners: energy above running every op once\n",
        "Proven for what it may do: `*`. No plan found: `–`. Bold: no more expensive than ours.\n",
        _baseline_table(rows),
    ]
    path.write_text("\n".join(parts))
    _plot(rows, figure)


def _machine() -> str:
    names = {"HiGHS": "highspy", "OR-tools": "ortools", "PuLP": "pulp"}
    told = []
    for name, package in names.items():
        try:
            told.append(f"{name} {version(package)}")
        except PackageNotFoundError:
            told.append(f"no {name}")
    return f"{os.cpu_count()} cores, {platform.machine()}, {', '.join(told)}."


def _share_name(share: float) -> str:
    return f"{share:.0%}" if share else "least"


def _above(row: Row) -> float | None:
    return None if row.joules is None else row.joules / row.once_joules - 1.0


def _percent(share: float) -> str:
    return "0 %" if share < 1e-9 else f"{100 * share:.4g} %"


def _gap(row: Row) -> float | None:
    if row.joules is None or row.bound_joules is None:
        return None
    overhead, open_joules = row.joules - row.once_joules, row.joules - row.bound_joules
    return 0.0 if open_joules <= 1e-9 * row.joules else open_joules / overhead


def _cells(rows: Iterable[Row]) -> dict[tuple[str, float], list[Row]]:
    cells: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.problem, row.share), []).append(row)
    return cells


def _table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    shown = [f"| {' | '.join(line)} |" for line in (headings, ["---"] * len(headings), *lines)]
    return "\n".join(shown) + "\n"


def _summary(rows: Sequence[Row]) -> str:
    engines = dict.fromkeys(row.planner for row in rows if row.kind == "engine")
    lines = []
    for engine in engines:
        mine = [row for row in rows if row.planner == engine]
        closed = [row for row in mine if row.status == "optimal"]
        gaps = [gap for row in mine if row.status == "feasible" and (gap := _gap(row)) is not None]
        lines.append(
            [
                engine,
                str(len(mine)),
                str(len(closed)),
                f"{statistics.median(row.solve_seconds for row in closed):.2f} s" if closed else "–",
                _percent(max(gaps)) if gaps else "–",
                str(sum("exact" in row.proof or "agree" in row.proof for row in closed)),
            ]
        )
    engine_part = _table(
        (
            "engine",
            "searches",
            "proven optimal",
            "median time of these",
            "worst gap of the others",
            "confirmed",
        ),
        lines,
    )
    return engine_part + "\n" + _rival_summary(rows)


def _rival_summary(rows: Sequence[Row]) -> str:
    cells, lines = _cells(rows), []
    for planner in dict.fromkeys(row.planner for row in rows if row.kind == "baseline"):
        ratios, found, asked, worse = [], 0, 0, 0
        for cell in cells.values():
            ours, rival = _ours(cell), _named(cell, planner)
            asked += 1
            if rival is None or rival.joules is None or ours is None or ours.joules is None:
                continue
            found += 1
            ratios.append(rival.joules / ours.joules)
            worse += rival.joules < ours.joules * (1 - 1e-9)
        spread = [f"{f(ratios):.4g}" for f in (statistics.median, max)] if ratios else ["–", "–"]
        lines.append([planner, f"{found} of {asked}", *spread, str(worse)])
    return _table(
        ("planner", "found a plan", "median energy, × ours", "largest, × ours", "cheaper than ours"), lines
    )


def _ours(cell: Iterable[Row]) -> Row | None:
    """The answer of the engine that runs everywhere."""
    return next((row for row in cell if row.kind == "engine"), None)


def _named(cell: Iterable[Row], planner: str) -> Row | None:
    return next((row for row in cell if row.planner == planner), None)


def _engine_table(rows: Sequence[Row]) -> str:
    engines = list(dict.fromkeys(row.planner for row in rows if row.kind == "engine"))
    lines = []
    for (problem, share), cell in _cells(rows).items():
        ours = _ours(cell)
        if ours is None:
            continue
        told = [_told(_named(cell, engine)) for engine in engines]
        lines.append([problem, str(ours.ops), _share_name(share), format_bytes(ours.budget_bytes), *told])
    return _table(("problem", "ops", "budget", "bytes", *engines), lines)


def _told(row: Row | None) -> str:
    above = None if row is None else _above(row)
    if row is None or above is None:
        return "" if row is None else f"{row.status}, {row.solve_seconds:.2f} s"
    gap = _gap(row)
    open_part = "" if row.status == "optimal" or gap is None else f", gap {_percent(gap)}"
    return f"{_percent(above)}{open_part}, {row.solve_seconds:.2f} s"


def _baseline_table(rows: Sequence[Row]) -> str:
    planners = list(dict.fromkeys(row.planner for row in rows if row.kind == "baseline"))
    lines = []
    for (problem, share), cell in _cells(rows).items():
        ours = _ours(cell)
        own = None if ours is None else _above(ours)
        told = [_beside(_named(cell, planner), own) for planner in planners]
        lines.append([problem, _share_name(share), "–" if own is None else _percent(own), *told])
    return _table(("problem", "budget", "poet", *planners), lines)


def _beside(row: Row | None, own: float | None) -> str:
    above = None if row is None else _above(row)
    if row is None or above is None:
        return "–"
    text = _percent(above) + (" *" if row.status == "optimal" else "")
    return f"**{text}**" if own is not None and above <= own * (1 + 1e-6) + 1e-12 else text


def _plot(rows: Sequence[Row], path: Path) -> None:
    """Left: proofs over time per engine; right: the rivals' energy over ours."""
    mpl.rcParams["svg.hashsalt"] = "poet"  # the same rows give the same file
    figure = Figure(figsize=(11.0, 4.2), layout="constrained")
    proofs, rivals = figure.subplots(1, 2)
    published = {row.problem for row in rows if row.kind == "engine" and row.planner != "highs"}
    for engine in dict.fromkeys(row.planner for row in rows if row.kind == "engine"):
        mine = [row for row in rows if row.planner == engine and (row.problem in published or not published)]
        seconds = sorted(row.solve_seconds for row in mine if row.status == "optimal")
        shares = [100.0 * (number + 1) / len(mine) for number in range(len(seconds))]
        proofs.step(seconds, shares, where="post", label=engine)
    proofs.set(xscale="log", xlabel="seconds", ylabel="% proven optimal", ylim=(0, 103))
    proofs.set_title("published problems, five budgets each")
    proofs.legend(frameon=False)
    names, ratios = _ratios(rows, lambda planner: planner != OWN)
    rivals.boxplot(ratios, orientation="horizontal", tick_labels=names, whis=(0, 100), widths=0.6)
    rivals.axvline(1.0, color="0.6", linewidth=0.8)
    rivals.set(xscale="log", xlabel="energy of a step, × ours")
    rivals.set_title("where a planner found a plan")
    figure.savefig(path, metadata={"Date": None})


def _ratios(rows: Sequence[Row], wanted: Callable[[str], bool]) -> tuple[list[str], list[list[float]]]:
    ratios: dict[str, list[float]] = {}
    for cell in _cells(rows).values():
        ours = _ours(cell)
        for row in cell:
            counted = row.kind == "baseline" and wanted(row.planner)
            if counted and ours is not None and ours.joules is not None and row.joules is not None:
                ratios.setdefault(row.planner, []).append(row.joules / ours.joules)
    names = sorted(ratios, key=lambda name: -statistics.median(ratios[name]))
    return names, [ratios[name] for name in names]
