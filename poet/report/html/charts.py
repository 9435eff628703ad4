"""Charts as Vega-Lite specifications.

Colours are names of the style sheet's variables, so that light, dark and print are the style
sheet's alone. Field names are fixed here and never come from a model: names of tensors and ops are
data. Amounts are scaled in Python and tooltips are text, so that units are written in one place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poet.graph import Role
from poet.report.schedule_rows import NO_ROLE

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
ACCENT, QUIET, INK, MUTED, WARNING = (
    f"var(--{name})" for name in ("accent", "quiet", "ink", "muted", "warning")
)
SERIES = tuple(f"var(--series-{number})" for number in range(1, 9))
"""Colours that stay apart for colour-blind eyes, after Okabe and Ito, in light and dark."""

ROLE_ORDER = (
    Role.PARAMETER.value, Role.STATE.value, Role.OPTIMIZER_STATE.value, Role.ACCUMULATED.value,
    Role.GRADIENT.value, Role.INPUT.value, NO_ROLE, Role.SAVED.value, Role.ACTIVATION.value,
    Role.WORKSPACE.value,
)  # fmt: skip
"""From the bottom of a stack of RAM upwards: what stays, then what comes and goes."""

PARTS = ("first runs", "recomputation", "page-in", "page-out", "moves in RAM", "idle power")
PART_COLOURS = ("var(--quiet)", SERIES[4], SERIES[1], SERIES[0], SERIES[3], SERIES[6])


TEXT_PIXELS = 84
"""Room for an amount's text beside the longest bar."""


def role_colour(role: str) -> str:
    """The style sheet's variable for a role."""
    known = role if role in ROLE_ORDER else NO_ROLE
    return f"var(--role-{known.replace(' ', '-')})"


def chart(height: int, **parts: Any) -> Spec:
    """A specification as wide as its place."""
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        **parts,
    }


LOGARITHMIC_FROM = 30.0
"""An axis whose amounts differ by this factor or more is logarithmic."""

LEGEND: Spec = {"title": None, "orient": "top"}
STATUS_SHAPES = {
    "optimal": "square", "feasible": "triangle-up", "infeasible": "circle", "timeout": "cross",
    "unsolved": "diamond",
}  # fmt: skip
DASHES = ([1, 0], [6, 3], [2, 2], [8, 2, 2, 2], [1, 3], [10, 4], [4, 1], [3, 3, 1, 3])
"""Lines of series, distinguishable without their colours."""

SHAPES = ("circle", "triangle-up", "square")


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """The axis of a sweep's chart, with the range of its amounts."""

    title: str
    lowest: float
    highest: float

    @property
    def logarithmic(self) -> bool:
        """Whether amounts lie so far apart that equal steps would hide the small ones."""
        return self.lowest > 0 and self.highest / self.lowest >= LOGARITHMIC_FROM


def bars(rows: Sequence[Mapping[str, Any]], *, title: str, colours: Mapping[str, str]) -> Spec:
    """Horizontal bars, one per ``name`` in the order given, stacked by ``series``.

    Args:
        rows: with ``name``, ``series``, ``amount`` and ``text``, what a reader sees on hovering.
        title: of the axis, with the unit.
        colours: of the series, in stacking order.
    """
    names = list(dict.fromkeys(row["name"] for row in rows))
    order = {series: number for number, series in enumerate(colours)}
    values = [{**row, "order": order[row["series"]]} for row in rows]
    return chart(
        max(60, 26 * len(names) + 4),
        data={"values": values},
        mark={"type": "bar", "height": {"band": 0.64}, "cornerRadiusEnd": 2},
        encoding={
            "y": {"field": "name", "type": "nominal", "sort": names, "axis": _labels()},
            "x": {
                "field": "amount",
                "type": "quantitative",
                "axis": {**_axis(title), "tickCount": {"expr": "width / 80"}},
                "stack": "zero",
            },
            "order": {"field": "order", "type": "quantitative"},
            "color": {
                **_colour("series", list(colours), list(colours.values())),
                "legend": LEGEND if len(colours) > 1 else None,
            },
            "tooltip": [
                {"field": "name", "type": "nominal", "title": " "},
                {"field": "text", "type": "nominal", "title": "  "},
            ],
        },
    )


def ladder(rows: Sequence[Mapping[str, Any]], *, title: str, text_pixels: int = TEXT_PIXELS) -> Spec:
    """A few amounts below each other, each with its text at the bar's end.

    Args:
        rows: with ``name``, ``amount``, ``text`` and ``colour``.
        title: of the axis, with the unit.
        text_pixels: room for the text beside the longest bar.
    """
    names = [row["name"] for row in rows]
    largest = max((row["amount"] for row in rows), default=0.0) or 1.0
    top = f"{largest!r} * width / max(width - {text_pixels}, 1)"
    encoding = {
        "y": {"field": "name", "type": "nominal", "sort": names, "axis": _labels()},
        "x": {
            "field": "amount",
            "type": "quantitative",
            "axis": {**_axis(title), "tickCount": {"expr": "width / 80"}},
            "scale": {"domainMin": 0, "domainMax": {"expr": top}, "nice": False},
        },
    }
    return chart(
        30 * len(rows) + 4,
        data={"values": list(rows)},
        layer=[
            {
                "mark": {"type": "bar", "height": {"band": 0.6}, "cornerRadiusEnd": 2},
                "encoding": {
                    **encoding,
                    "color": {"field": "colour", "type": "nominal", "scale": None, "legend": None},
                },
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 6, "color": INK, "fontSize": 12},
                "encoding": {**encoding, "text": {"field": "text", "type": "nominal"}},
            },
        ],
    )


def memory(roles: Sequence[str], *, unit: str, budget: float | None, plain: float | None) -> Spec:
    """RAM over the step, stacked by role; the page's script gives the rows and moves the cursor.

    Args:
        roles: in stacking order.
        unit: of the amounts.
        budget: in that unit; a line.
        plain: what plain training needs, in that unit; a second, quieter line where it is near.
    """
    layers: list[Spec] = [
        {
            "data": {"name": "ram", "values": [{"x": 0, "low": 0, "high": 0, "role": roles[0]}]},
            "mark": {"type": "area", "interpolate": "step-after", "fillOpacity": 0.92},
            "encoding": {
                "x": {
                    "field": "x",
                    "type": "quantitative",
                    "axis": {**_axis(None), "grid": False, "tickCount": 6},
                    "scale": {"nice": False, "zero": False},
                },
                "y": {"field": "low", "type": "quantitative", "axis": _axis(unit)},
                "y2": {"field": "high"},
                "color": _colour("role", list(roles), [role_colour(role) for role in roles]),
            },
        }
    ]
    for amount, words, colour, dash in (
        (plain, "plain training", MUTED, [2, 3]),
        (budget, "budget", WARNING, [6, 3]),
    ):
        if amount is not None:
            layers += _level(amount, words, colour, dash)
    layers.append(
        {
            "data": {"name": "cursor", "values": [{"x": 0}]},
            "mark": {"type": "rule", "color": INK, "strokeWidth": 1},
            "encoding": {"x": {"field": "x", "type": "quantitative"}},
        }
    )
    return chart(260, layer=layers)


def strip(*, unit: str) -> Spec:
    """The whole step as a narrow band in which a part is chosen; the page's script gives the rows."""
    return chart(
        44,
        data={"name": "ram", "values": [{"x": 0, "high": 0}]},
        params=[{"name": "part", "select": {"type": "interval", "encodings": ["x"]}}],
        mark={"type": "area", "interpolate": "step-after", "color": QUIET},
        encoding={
            "x": {
                "field": "x",
                "type": "quantitative",
                "axis": None,
                "scale": {"nice": False, "zero": False},
            },
            "y": {"field": "high", "type": "quantitative", "axis": None, "title": unit},
        },
    )


def fronts(
    rows: Sequence[Mapping[str, Any]],
    *,
    x: ChartAxis,
    y: ChartAxis,
    series: Sequence[str],
    proofs: Sequence[str],
    tooltip: Sequence[tuple[str, str]],
    height: int,
    legend: bool,
    references: Sequence[Mapping[str, Any]] = (),
) -> Spec:
    """Points of a sweep with the front of each series as a staircase.

    Args:
        rows: with ``x``, ``y`` and the fields of ``tooltip``, ``series``, ``proof``, ``front`` (whether no
            point of the series is better in both) and ``chosen``.
        x: the horizontal axis.
        y: the vertical axis.
        series: values of ``series``, in order.
        proofs: values of ``proof``, in order.
        tooltip: fields and titles of what hovering shows.
        height: of the chart.
        legend: whether it names the series, which a click on a name then singles out.
        references: with ``x`` and ``words``: what plain training needs, upright lines.
    """
    position = {"x": _position("x", x), "y": _position("y", y)}
    names = {"title": None, "orient": "top", "labelLimit": 300} if legend and len(series) > 1 else None
    colours = [SERIES[number % len(SERIES)] for number in range(len(series))]
    colour = {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": list(series), "range": colours},
        "legend": names,
    }
    dash = {
        "field": "series",
        "type": "nominal",
        "scale": {"domain": list(series), "range": [DASHES[n % len(DASHES)] for n in range(len(series))]},
        "legend": names,
    }
    shape = {
        "field": "proof",
        "type": "nominal",
        "scale": {"domain": list(proofs), "range": list(SHAPES[: len(proofs)])},
        "legend": {"title": None, "orient": "top", "symbolFillColor": MUTED, "symbolStrokeWidth": 0}
        if legend and len(proofs) > 1
        else None,
    }
    shown = [{"field": name, "type": "nominal", "title": title} for name, title in tooltip]
    dim = {"opacity": {"condition": {"param": "picked", "value": 1}, "value": 0.12}} if names else {}
    picked = {"name": "picked", "select": {"type": "point", "fields": ["series"]}, "bind": "legend"}
    line = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.75}
    point = {"type": "point", "filled": True, "size": 72, "stroke": "var(--paper)", "strokeWidth": 1}
    ring = {"type": "point", "filled": False, "size": 260, "strokeWidth": 1.75, "color": INK}
    return chart(
        height,
        data={"values": list(rows)},
        layer=[
            {
                "transform": [{"filter": "datum.front"}],
                "mark": line,
                "encoding": {**position, "color": colour, "strokeDash": dash, **dim},
            },
            *(_plain_training(references, position["x"]) if references else []),
            {
                **({"params": [picked]} if names else {}),
                "mark": point,
                "encoding": {**position, "color": colour, "shape": shape, **dim, "tooltip": shown},
            },
            {
                "transform": [{"filter": "datum.chosen"}],
                "mark": ring,
                "encoding": {**position, "tooltip": shown},
            },
        ],
    )


PLAN, BOUND = "best plan", "bound"
_SEARCH_COLOURS = {PLAN: SERIES[4], BOUND: SERIES[0]}


def search(rows: Sequence[Mapping[str, Any]], *, x: ChartAxis, y: ChartAxis) -> Spec:
    """The best plan and the bound over the time of a search, as two staircases.

    Args:
        rows: with ``x``, ``y``, ``series`` (`PLAN` or `BOUND`), ``found``: whether something was found
            then, and for hovering ``amount``, ``when`` and ``by``.
        x: the horizontal axis.
        y: the vertical axis.
    """
    position = {"x": _position("x", x), "y": _position("y", y)}

    def by_series(values: Sequence[Any]) -> Spec:
        scale = {"domain": list(_SEARCH_COLOURS), "range": list(values)}
        return {"field": "series", "type": "nominal", "scale": scale, "legend": LEGEND}

    colour = by_series(list(_SEARCH_COLOURS.values()))
    hover = (("series", " "), ("amount", "amount"), ("when", "after"), ("by", "by"))
    return chart(
        240,
        data={"values": list(rows)},
        layer=[
            {
                "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.75},
                "encoding": {**position, "color": colour, "strokeDash": by_series(DASHES[:2])},
            },
            {
                "transform": [{"filter": "datum.found"}],
                "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                "encoding": {
                    **position,
                    "color": colour,
                    "shape": by_series(SHAPES[:2]),
                    "tooltip": [{"field": name, "type": "nominal", "title": words} for name, words in hover],
                },
            },
        ],
    )


def _plain_training(references: Sequence[Mapping[str, Any]], x: Spec) -> list[Spec]:
    """Upright lines at the RAM of plain training, each with its words at the top."""
    rows = [{**line, "row": 2 + 14 * number} for number, line in enumerate(references)]
    data = {"values": rows}  # below each other, so that words of lines that lie near do not overlap
    return [
        {
            "data": data,
            "mark": {"type": "rule", "color": MUTED, "strokeDash": [2, 3], "strokeWidth": 1.25},
            "encoding": {"x": x},
        },
        {
            "data": data,
            "mark": {
                "type": "text", "align": "right", "baseline": "top", "dx": -4,
                "color": MUTED, "fontSize": 11,
            },
            "encoding": {
                "x": x,
                "y": {"field": "row", "type": "quantitative", "scale": None},
                "text": {"field": "words", "type": "nominal"},
            },
        },
    ]  # fmt: skip


def _position(field: str, axis: ChartAxis) -> Spec:
    title = f"{axis.title}, logarithmic" if axis.logarithmic else axis.title
    drawn = {**_axis(title), "tickCount": {"expr": f"{'width' if field == 'x' else 'height'} / 75"}}
    scale: Spec = {"zero": False, "padding": 12}
    if axis.logarithmic:
        drawn |= {"values": log_ticks(axis.lowest, axis.highest), "labelOverlap": False}
        scale = {"type": "log", "nice": False, "padding": 12}
    return {"field": field, "type": "quantitative", "axis": drawn, "scale": scale}


def log_ticks(lowest: float, highest: float) -> list[float]:
    """Powers of ten around a range; over less than three decades their double and fivefold as well."""
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    steps = (1, 2, 5) if highest / lowest < 1e3 else (1,)
    return [float(f"{step}e{power}") for power in range(first, last + 1) for step in steps]


def squares(rows: Sequence[Mapping[str, Any]], *, x: ChartAxis, colours: Mapping[str, str]) -> Spec:
    """One mark per point, in a row per ``row``, its colour and its shape by ``status``.

    Args:
        rows: with ``x``, ``row``, ``status``, and for hovering ``ram``, ``joules``, ``why``, ``origin``.
        x: the horizontal axis.
        colours: of the statuses.
    """
    names = list(dict.fromkeys(row["row"] for row in rows))
    hover = (
        ("row", "setting"), ("ram", "RAM budget"), ("joules", "energy"), ("status", "status"), ("why", "why"),
        ("origin", "decided by"),
    )  # fmt: skip
    return chart(
        max(60, 20 * len(names)),
        data={"values": list(rows)},
        mark={"type": "point", "filled": True, "size": 110, "opacity": 1},
        encoding={
            "y": {"field": "row", "type": "nominal", "sort": names, "axis": {**_labels(), "labelLimit": 220}},
            "x": _position("x", x),
            "color": {
                "field": "status",
                "type": "nominal",
                "scale": {"domain": list(colours), "range": list(colours.values())},
                "legend": LEGEND,
            },
            "shape": {
                "field": "status",
                "type": "nominal",
                "scale": {"domain": list(colours), "range": [STATUS_SHAPES[status] for status in colours]},
                "legend": LEGEND,
            },
            "tooltip": [{"field": name, "type": "nominal", "title": words} for name, words in hover],
        },
    )


def _level(amount: float, words: str, colour: str, dash: Sequence[int]) -> list[Spec]:
    y = {"field": "y", "type": "quantitative"}
    data = {"values": [{"y": amount, "words": words}]}
    return [
        {
            "data": data,
            "mark": {"type": "rule", "color": colour, "strokeDash": list(dash), "strokeWidth": 1.25},
            "encoding": {"y": y},
        },
        {
            "data": data,
            "mark": {
                "type": "text", "align": "right", "baseline": "bottom", "dy": -3, "dx": -2,
                "color": colour, "fontSize": 11, "x": "width",
            },
            "encoding": {"y": y, "text": {"field": "words", "type": "nominal"}},
        },
    ]  # fmt: skip


def _axis(title: str | None) -> Spec:
    return {"title": title, "grid": True, "ticks": False, "domain": False, "labelPadding": 6}


def _labels() -> Spec:
    return {"title": None, "ticks": False, "domain": False, "labelPadding": 8, "labelLimit": 170}


def _colour(field: str, domain: Sequence[str], colours: Sequence[str]) -> Spec:
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": list(domain), "range": list(colours)},
        "legend": None,
    }
