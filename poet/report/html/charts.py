"""Charts as Vega-Lite specifications.

Colours are names of the style sheet's variables, so that light, dark and print are the style sheet's alone.
Field names are fixed here: names of tensors and ops are data. Amounts come in bytes, seconds and joules,
and are scaled here; what hovering shows is text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poet.ir.graph import Role
from poet.report import FORMATS
from poet.report.schedule_rows import NO_ROLE
from poet.util.units import scale_of

Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
ACCENT, QUIET, INK, MUTED, WARNING = (
    f"var(--{name})" for name in ("accent", "quiet", "ink", "muted", "warning")
)
SERIES = tuple(f"var(--series-{number})" for number in range(1, 9))
"""Colours that stay apart for colour-blind eyes, after Okabe and Ito, in light and dark."""
SHAPES = (
    "circle", "triangle-up", "square", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left",
)  # fmt: skip
ROLE_ORDER = (
    Role.PARAMETER.value, Role.STATE.value, Role.OPTIMIZER_STATE.value, Role.ACCUMULATED.value,
    Role.GRADIENT.value, Role.INPUT.value, NO_ROLE, Role.SAVED.value, Role.ACTIVATION.value,
    Role.WORKSPACE.value,
)  # fmt: skip
"""From the bottom of a stack of RAM upwards: what stays, then what comes and goes."""
LOGARITHMIC_FROM = 30.0
"""An axis whose amounts differ by this factor or more is logarithmic, unless it says another."""
_ROOM = 0.05  # of an axis, beyond its amounts on either side
LEGEND: Spec = {"title": None, "orient": "top"}


def role_colour(role: str) -> str:
    """The style sheet's variable for a role."""
    known = role if role in ROLE_ORDER else NO_ROLE
    return f"var(--role-{known.replace(' ', '-')})"


# --- the layer --------------------------------------------------------------------------------


def chart(height: int, **parts: Any) -> Spec:
    """A specification as wide as its place."""
    fitted = {"type": "fit-x", "contains": "padding"}
    return {"$schema": SCHEMA, "width": "container", "height": height, "autosize": fitted, **parts}


def _amount(field: str, **more: Any) -> Spec:
    return {"field": field, "type": "quantitative", **more}


def _name(field: str, **more: Any) -> Spec:
    return {"field": field, "type": "nominal", **more}


def _by(field: str, domain: Iterable[str], values: Iterable[Any], legend: Spec | None = LEGEND) -> Spec:
    """A colour, a shape or a dash for each value of ``field``."""
    return _name(field, scale={"domain": list(domain), "range": list(values)}, legend=legend)


def _mark(kind: str, **style: Any) -> Spec:
    return {"type": kind, **style}


def _hover(fields: Iterable[tuple[str, str]]) -> list[Spec]:
    return [_name(field, title=title) for field, title in fields]


def _axis(title: str | None, **more: Any) -> Spec:
    return {"title": title, "grid": True, "ticks": False, "domain": False, "labelPadding": 6, **more}


def _rows_axis(names: Sequence[str]) -> Spec:
    axis = {"title": None, "ticks": False, "domain": False, "labelPadding": 8, "labelLimit": 190}
    return _name("name", sort=list(names), axis=axis)


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """An axis with the range of its amounts."""

    title: str
    lowest: float
    highest: float
    logarithmic_from: float = LOGARITHMIC_FROM

    @property
    def logarithmic(self) -> bool:
        """Whether amounts lie so far apart that equal steps would hide the small ones."""
        return self.lowest > 0 and self.highest / self.lowest >= self.logarithmic_from

    @property
    def domain(self) -> tuple[float, float]:
        """From its least to its largest amount, with room around them."""
        if self.logarithmic:
            room = (self.highest / self.lowest) ** _ROOM
            return self.lowest / room, self.highest * room
        span = (self.highest - self.lowest) or abs(self.highest) or 1.0
        return self.lowest - _ROOM * span, self.highest + _ROOM * span

    def share(self, amount: float) -> float:
        """Where on the axis an ``amount`` lies: 0 at its beginning, 1 at its end."""
        low, high = self.domain
        if self.logarithmic:
            return math.log(amount / low) / math.log(high / low)
        return (amount - low) / (high - low)

    def encoding(self, field: str) -> Spec:
        """Of a position by ``field``, ``x`` or ``y``."""
        ticks = {"expr": f"{'width' if field == 'x' else 'height'} / 75"}
        scale = {"domain": list(self.domain), "nice": False}
        if not self.logarithmic:
            return _amount(field, axis=_axis(self.title, tickCount=ticks), scale={**scale, "zero": False})
        values = log_ticks(self.lowest, self.highest)
        axis = _axis(f"{self.title}, logarithmic", tickCount=ticks, values=values, labelOverlap=False)
        return _amount(field, axis=axis, scale={**scale, "type": "log"})


def log_ticks(lowest: float, highest: float) -> list[float]:
    """Powers of ten around a range; over less than three decades multiples of them as well."""
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    ratio = highest / lowest
    steps = (1, 1.5, 2, 3, 4, 6, 8) if ratio < 10 else (1, 2, 5) if ratio < 1e3 else (1,)
    return [float(f"{step}e{power}") for power in range(first, last + 1) for step in steps]


# --- bars -------------------------------------------------------------------------------------


def bars(
    rows: Sequence[tuple[str, str, float, str]], *, unit: str, colours: Mapping[str, str], title: str = "{}"
) -> Spec:
    """Horizontal bars, one per name in the order given, stacked by series.

    Args:
        rows: name, series, amount and what a reader sees on hovering.
        unit: of the amounts.
        colours: of the series, in stacking order.
        title: of the axis, with a place for the scaled unit.
    """
    names, order = list(dict.fromkeys(row[0] for row in rows)), list(colours)
    sums = {name: math.fsum(row[2] for row in rows if row[0] == name) for name in names}
    factor, scaled = scale_of(max(sums.values(), default=0.0), unit)
    values = [
        {"name": name, "series": one, "amount": amount / factor, "text": text, "order": order.index(one)}
        for name, one, amount, text in rows
    ]
    ticks = {"expr": "width / 80"}
    return chart(
        max(60, 26 * len(names) + 4),
        data={"values": values},
        mark=_mark("bar", height={"band": 0.64}, cornerRadiusEnd=2),
        encoding={
            "y": _rows_axis(names),
            "x": _amount("amount", axis=_axis(title.format(scaled), tickCount=ticks), stack="zero"),
            "order": _amount("order"),
            "color": _by("series", colours, colours.values(), LEGEND if len(colours) > 1 else None),
            "tooltip": _hover((("name", " "), ("text", "  "))),
        },
    )


def ladder(
    rows: Sequence[tuple[str, float | None, str]],
    *,
    unit: str,
    title: str = "{}",
    texts: Sequence[str] = (),
    text_pixels: int = 84,
) -> Spec:
    """A few amounts below each other, each with its text at the bar's end.

    Args:
        rows: name, amount and colour; without an amount there is no bar.
        unit: of the amounts, a key of `poet.report.FORMATS`; ``%``: they are percentages.
        title: of the axis, with a place for the scaled unit.
        texts: at the bars' ends, where they are not the amounts.
        text_pixels: room for the text beside the longest bar.
    """
    known = [(name, amount, colour) for name, amount, colour in rows if amount is not None]
    largest = max((amount for _, amount, _ in known), default=0.0)
    factor, scaled = (1.0, "%") if unit == "%" else scale_of(largest, unit)
    told = texts or [FORMATS[unit](amount) for _, amount, _ in known]
    values = [
        {"name": name, "amount": amount / factor, "text": text, "colour": colour}
        for (name, amount, colour), text in zip(known, told, strict=True)
    ]
    top = f"{(largest / factor) or 1.0!r} * width / max(width - {text_pixels}, 1)"
    scale = {"domainMin": 0, "domainMax": {"expr": top}, "nice": False}
    axis = _axis(title.format(scaled), tickCount={"expr": "width / 80"})
    place = {"y": _rows_axis([name for name, _, _ in known]), "x": _amount("amount", axis=axis, scale=scale)}
    return chart(
        30 * len(known) + 4,
        data={"values": values},
        layer=[
            {
                "mark": _mark("bar", height={"band": 0.6}, cornerRadiusEnd=2),
                "encoding": {**place, "color": _name("colour", scale=None, legend=None)},
            },
            {
                "mark": _mark("text", align="left", dx=6, color=INK, fontSize=12),
                "encoding": {**place, "text": _name("text")},
            },
        ],
    )


# --- RAM over a step --------------------------------------------------------------------------


def memory(roles: Sequence[str], *, unit: str, budget: float | None, plain: float | None) -> Spec:
    """RAM over the step, stacked by role; the page's script gives the rows and moves the cursor.

    Args:
        roles: in stacking order.
        unit: of the amounts.
        budget: in that unit; a line.
        plain: what plain training needs, in that unit; a second, quieter line where it is near.
    """
    x = _amount("x", axis=_axis(None) | {"grid": False, "tickCount": 6}, scale={"nice": False, "zero": False})
    area = {
        "x": x,
        "y": _amount("low", axis=_axis(unit)),
        "y2": {"field": "high"},
        "color": _by("role", roles, map(role_colour, roles), None),
    }
    layers: list[Spec] = [
        {
            "data": {"name": "ram", "values": [{"x": 0, "low": 0, "high": 0, "role": roles[0]}]},
            "mark": _mark("area", interpolate="step-after", fillOpacity=0.92),
            "encoding": area,
        }
    ]
    for height, words, colour, dash in ((plain, "plain training", MUTED, 2), (budget, "budget", WARNING, 6)):
        if height is not None:
            data = {"data": {"values": [{"y": height, "words": words}]}}
            line = _mark("rule", color=colour, strokeDash=[dash, 3], strokeWidth=1.25)
            beside = {"align": "right", "baseline": "bottom", "dy": -3, "dx": -2, "x": "width"}
            text = {"y": _amount("y"), "text": _name("words")}
            layers.append({**data, "mark": line, "encoding": {"y": _amount("y")}})
            layers.append(
                {**data, "mark": _mark("text", color=colour, fontSize=11, **beside), "encoding": text}
            )
    cursor = {"data": {"name": "cursor", "values": [{"x": 0}]}, "encoding": {"x": _amount("x")}}
    return chart(260, layer=[*layers, {**cursor, "mark": _mark("rule", color=INK, strokeWidth=1)}])


def strip() -> Spec:
    """The whole step as a narrow band in which a part is chosen; the page's script gives the rows."""
    return chart(
        44,
        data={"name": "ram", "values": [{"x": 0, "high": 0}]},
        params=[{"name": "part", "select": {"type": "interval", "encodings": ["x"]}}],
        mark=_mark("area", interpolate="step-after", color=QUIET),
        encoding={
            "x": _amount("x", axis=None, scale={"nice": False, "zero": False}),
            "y": _amount("high", axis=None),
        },
    )


# --- points and staircases --------------------------------------------------------------------

_STAIRCASE = _mark("line", interpolate="step-after", strokeWidth=1.75)


LABEL_PIXELS = 14
"""Between the labels of two series."""
_LABELS_LIMIT = 138


def look_of(number: int) -> tuple[str, str]:
    """The colour and the shape of a series by its number: the first 64 differ."""
    return SERIES[number % len(SERIES)], SHAPES[(number + number // len(SERIES)) % len(SHAPES)]


def fronts(
    rows: Sequence[Mapping[str, Any]],
    *,
    x: ChartAxis,
    y: ChartAxis,
    looks: Mapping[str, tuple[str, str]],
    hover: Sequence[tuple[str, str]],
    height: int,
    feet: Sequence[tuple[float, str, str]] = (),
) -> Spec:
    """Points of one device with the front of each series as a staircase, with its name at its end.

    Args:
        rows: with ``x``, ``y`` and the fields of ``hover``, ``series``, ``optimal`` (filled; others are
            hollow), ``front`` (whether no point of the series is better in both) and ``chosen``.
        x: the horizontal axis.
        y: the vertical axis.
        looks: colour and shape of each series; a name that is empty has no label.
        hover: fields and titles of what hovering shows.
        height: of the chart.
        feet: amounts of ``x`` with a series and words: short upright marks at the foot of the chart.
    """
    place, shown = {"x": x.encoding("x"), "y": y.encoding("y")}, _hover(hover)
    drawn = []
    for row in rows:
        colour, shape = looks[row["series"]]
        fill = colour if row["optimal"] else "var(--paper)"
        drawn.append({**row, "colour": colour, "shape": shape, "fill": fill})
    stroke, form = _name("colour", scale=None), _name("shape", scale=None)
    point = {"shape": form, "fill": _name("fill", scale=None), "stroke": stroke}
    marks = [{"x": at, "colour": looks[series][0], "words": words} for at, series, words in feet]
    layers: list[Spec] = [
        {
            "transform": [{"filter": "datum.front"}],
            "mark": _STAIRCASE,
            "encoding": {**place, "stroke": stroke, "detail": _name("series")},
        },
        {
            "data": {"values": marks},
            "mark": _mark("rule", strokeWidth=3),
            "encoding": {
                "x": place["x"], "y": {"value": height - 14}, "y2": {"value": height}, "color": stroke,
                "tooltip": _hover([("words", "plain training")]),
            },
        },
        {
            "mark": _mark("point", size=64, strokeWidth=1.5, opacity=1),
            "encoding": {**place, **point, "tooltip": shown},
        },
        {
            "transform": [{"filter": "datum.chosen"}],
            "mark": _mark("point", filled=False, size=280, strokeWidth=1.75, color=INK),
            "encoding": {**place, "tooltip": shown},
        },
        *_labels(rows, y, looks, height),
    ]  # fmt: skip
    return chart(height, data={"values": drawn}, layer=layers)


def _labels(
    rows: Sequence[Mapping[str, Any]], y: ChartAxis, looks: Mapping[str, tuple[str, str]], height: int
) -> list[Spec]:
    """Layers: the name of each series at the height where its front ends, as near as others leave room."""
    ends: dict[str, tuple[float, float]] = {}
    for row in rows:
        if row["series"] and row["front"]:
            ends[row["series"]] = max(ends.get(row["series"], (-math.inf, 0.0)), (row["x"], row["y"]))
    wanted = sorted((height * (1 - y.share(last)), name) for name, (_, last) in ends.items())
    places: list[float] = []
    for at, _ in wanted:
        places.append(max(at, places[-1] + LABEL_PIXELS if places else 0.0))
    least = float(height)
    for number in reversed(range(len(places))):  # what was moved out at the bottom comes back up
        places[number] = min(places[number], least)
        least = places[number] - LABEL_PIXELS
    labels = [
        {"at": at, "text": name, "colour": looks[name][0], "shape": looks[name][1]}
        for at, (_, name) in zip(places, wanted, strict=True)
    ]
    data, colour = {"values": labels}, _name("colour", scale=None)
    beside = {"x": {"value": "width"}, "y": _amount("at", scale=None), "color": colour}
    glyph = _mark("point", filled=True, size=44, xOffset=12, opacity=1)
    words = _mark("text", align="left", baseline="middle", dx=20, fontSize=11, limit=_LABELS_LIMIT)
    return [
        {"data": data, "mark": glyph, "encoding": {**beside, "shape": _name("shape", scale=None)}},
        {"data": data, "mark": words, "encoding": {**beside, "text": _name("text")}},
    ]


_OF_SEARCH = (("series", " "), ("amount", "amount"), ("when", "after"), ("by", "by"))


def search(
    rows: Sequence[Mapping[str, Any]],
    *,
    x: ChartAxis,
    y: ChartAxis,
    hover: Sequence[tuple[str, str]] = _OF_SEARCH,
) -> Spec:
    """The best plan and the bound over the time of a search, or over a budget, as two staircases.

    Args:
        rows: with ``x``, ``y``, ``series`` (``best plan`` or ``bound``), ``found``: whether something was
            found then, and for hovering ``amount``, ``when`` and ``by``.
        x: the horizontal axis.
        y: the vertical axis.
        hover: names of fields that hovering shows, each with what it is called.
    """
    place, both = {"x": x.encoding("x"), "y": y.encoding("y")}, ("best plan", "bound")
    colour, dash = _by("series", both, (SERIES[4], SERIES[0])), _by("series", both, ([1, 0], [6, 3]))
    point = {"color": colour, "shape": _by("series", both, SHAPES[:2]), "tooltip": _hover(hover)}
    return chart(
        240,
        data={"values": list(rows)},
        layer=[
            {"mark": _STAIRCASE, "encoding": {**place, "color": colour, "strokeDash": dash}},
            {
                "transform": [{"filter": "datum.found"}],
                "mark": _mark("point", filled=True, size=60, opacity=1),
                "encoding": {**place, **point},
            },
        ],
    )


def squares(
    rows: Sequence[Mapping[str, Any]],
    *,
    x: ChartAxis,
    marks: Mapping[str, tuple[str, str]],
    hover: Sequence[tuple[str, str]],
) -> Spec:
    """One mark per point, in a row per ``name``, its colour and its shape by ``status``.

    Args:
        rows: with ``x``, ``name``, ``status``, and the fields of ``hover``.
        x: the horizontal axis.
        marks: colour and shape of each status.
        hover: fields and titles of what hovering shows.
    """
    names = list(dict.fromkeys(row["name"] for row in rows))
    colours, shapes = zip(*marks.values(), strict=True)
    return chart(
        max(60, 20 * len(names)),
        data={"values": list(rows)},
        mark=_mark("point", filled=True, size=110, opacity=1),
        encoding={
            "y": _rows_axis(names),
            "x": x.encoding("x"),
            "color": _by("status", marks, colours),
            "shape": _by("status", marks, shapes),
            "tooltip": _hover(hover),
        },
    )
