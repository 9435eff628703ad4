"""The charts of one plan: RAM over the step, where the energy goes, simpler ways, how the search went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from poet.problem import Objective
from poet.problem.search_record import Advance
from poet.problem.solution import TITLES, format_amount
from poet.report.html.charts import (
    ACCENT,
    BOUND,
    MUTED,
    PLAN,
    QUIET,
    ROLE_ORDER,
    SERIES,
    WARNING,
    ChartAxis,
    Spec,
    bars,
    ladder,
    memory,
    role_colour,
    search,
    strip,
)
from poet.report.html.subject import PlanQuality, Subject
from poet.report.rows import DASH
from poet.report.schedule_rows import NO_ROLE, Share
from poet.report.timeline import StepTimeline
from poet.util.units import format_bytes, format_joules, format_seconds, format_share, scale_of

PART_COLOURS = {
    "first runs": "var(--quiet)", "recomputation": SERIES[4], "page-in": SERIES[1], "page-out": SERIES[0],
    "moves in RAM": SERIES[3], "idle power": SERIES[6],
}  # fmt: skip
MOST_KINDS = 10
"""Kinds of op with a bar of their own."""
STRIP_FRAMES = 400
"""Steps above which the memory chart gets a band to choose a part in."""
KINDS = {
    "compute": "running", "recompute": "recomputing", "page_out": "storing", "page_in": "fetching",
}  # fmt: skip
"""What a frame of a timeline does, for people."""


def charts_of(subject: Subject, line: dict[str, Any]) -> dict[str, Spec]:
    """By the id of their place in the page; ``line``: of `timeline_data`."""
    joules = subject.trace.joules
    ways = [(row.name, row.joules, SERIES[7]) for row in subject.others]
    ram = (
        ("least of this order", subject.lower_bound.bytes, QUIET),
        ("this plan", subject.trace.peak_ram_bytes, ACCENT),
        ("budget", subject.limits.ram_budget_bytes, WARNING),
        ("plain training", subject.keep_everything_bytes, MUTED),
    )
    charts = {
        "memory": _memory_chart(subject, line),
        "ram-ladder": ladder(ram, unit="B"),
        "parts": ladder(
            [(part.what, part.joules, PART_COLOURS[part.what]) for part in subject.parts],
            unit="J",
            texts=[f"{format_joules(p.joules)} ({share_of(p.joules, joules)})" for p in subject.parts],
        ),
        "kinds": _kinds_chart(subject.kinds),
        "others": ladder([("this plan", joules, ACCENT), *ways], unit="J", title="{} per step"),
    }
    if subject.proof.record.plans:
        charts["search"] = search_chart(subject.proof, subject.problem.compute_joules)
    if len(subject.line.frames) > STRIP_FRAMES:
        charts["strip"] = strip()
    return charts


def share_of(part: float, whole: float) -> str:
    """``part`` as a share of ``whole``; a dash where that is nothing."""
    return format_share(part / whole) if whole else DASH


def _kinds_chart(kinds: Sequence[Share]) -> Spec:
    """Joules by kind of op, first runs and recomputation; those beyond `MOST_KINDS` together."""
    first, again = list(PART_COLOURS)[:2]
    shown = [(kind.what, kind.runs, kind.joules, kind.again_joules) for kind in kinds]
    if len(kinds) > MOST_KINDS + 1:
        rest = shown[MOST_KINDS:]
        _, runs, joules, again_joules = zip(*rest, strict=True)
        others = (f"{len(rest)} other kinds", sum(runs), math.fsum(joules), math.fsum(again_joules))
        shown = [*shown[:MOST_KINDS], others]
    rows = [
        (what, series, part, f"{series}: {format_joules(part)} of {format_joules(joules)}, {runs} runs")
        for what, runs, joules, again_joules in shown
        for series, part in ((first, joules - again_joules), (again, again_joules))
        if part > 0.0
    ]
    return bars(rows, unit="J", colours={first: PART_COLOURS[first], again: PART_COLOURS[again]})


# --- RAM over the step ------------------------------------------------------------------------


def _memory_chart(subject: Subject, line: dict[str, Any]) -> Spec:
    factor, budget, plain = line["factor"], subject.limits.ram_budget_bytes, subject.keep_everything_bytes
    peak = subject.trace.peak_ram_bytes
    near = plain is not None and peak < plain <= 1.5 * max(budget or 0, peak)
    return memory(
        [role["name"] for role in line["roles"]],
        unit=line["unit"],
        budget=None if budget is None else budget / factor,
        plain=plain / factor if near and plain is not None else None,
    )


def timeline_data(subject: Subject, line: StepTimeline | None = None) -> dict[str, Any]:
    """What the memory chart and its readout need, a few bytes per step and per stay.

    ``stays`` is flat: tensor, first frame, end frame, and so on; tensors are numbered as the rows of the
    table ``tensors``. Sums over stays and workspaces are the bytes in RAM, frame by frame.
    """
    problem, line = subject.problem, line or subject.line
    numbers = {tensor.name: index for index, tensor in enumerate(problem.tensors)}
    kinds = [tensor.role or NO_ROLE for tensor in problem.tensors]
    places = {role: number for number, role in enumerate(ROLE_ORDER)}
    roles = sorted({*kinds, ROLE_ORDER[-1]}, key=lambda role: places.get(role, places[NO_ROLE]))
    budget, peak = subject.limits.ram_budget_bytes, subject.trace.peak_ram_bytes
    factor, unit = scale_of(max(budget or 0, peak), "B")
    seconds_factor, seconds_unit = scale_of(subject.trace.seconds, "s")
    names = sorted({frame.what for frame in line.frames})
    whats = {name: index for index, name in enumerate(names)}
    verbs = list(KINDS)

    def short(seconds: float) -> float:
        return float(f"{seconds / seconds_factor:.7g}")

    return {
        "unit": unit,
        "factor": factor,
        "secondsUnit": seconds_unit,
        "roles": [{"name": role, "colour": role_colour(role)} for role in roles],
        "names": names,
        "what": [whats[frame.what] for frame in line.frames],
        "kind": [verbs.index(frame.kind) for frame in line.frames],
        "verbs": list(KINDS.values()),
        "at": [short(frame.issued_seconds) for frame in line.frames],
        "end": short(subject.trace.seconds),
        "workspace": [frame.workspace_bytes for frame in line.frames],
        "tensors": [tensor.name for tensor in problem.tensors],
        "role": [roles.index(kind) for kind in kinds],
        "bytes": [problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors],
        "stays": [n for stay in line.stays for n in (numbers[stay.tensor], stay.first, stay.last)],
        "budget": budget,
        "budgetText": format_bytes(budget or peak),
    }


# --- how the search went ----------------------------------------------------------------------

_LEAST_SECONDS = 0.01  # where a logarithmic axis of time begins
_ROUNDING = 1e-9  # of running every op once
_UNITS = {Objective.ENERGY: "J", Objective.TIME: "s", Objective.RAM: "B", Objective.WRITES: "B"}


def search_words(proof: PlanQuality, once_joules: float) -> str:
    """What the chart shows; empty where there is nothing to draw.

    Energy is drawn above that of running every op once, ``once_joules``.
    """
    if not proof.record.plans:
        return ""
    what = TITLES[proof.objective]
    above = " above running every op once" if proof.objective is Objective.ENERGY else ""
    x, y, _ = _search_axes(proof, once_joules)
    logarithmic = [name for name, axis in (("time", x), (what, y)) if axis.logarithmic]
    scales = f" Logarithmic: {' and '.join(logarithmic)}." if logarithmic else ""
    return (
        f"{proof.says.capitalize()}The best plan (solid, circles) and the bound (dashed, triangles) over the "
        f"time of the search: {what}{above}.{scales}"
    )


def search_chart(proof: PlanQuality, once_joules: float) -> Spec:
    """The best plan and the bound over time; see `search_words`."""
    x, y, factor = _search_axes(proof, once_joules)
    rows: list[dict[str, Any]] = []
    for series, advances in ((PLAN, proof.record.plans), (BOUND, proof.record.bounds)):
        going_on = [advances[-1]] if advances and advances[-1].seconds < x.highest else []
        for number, advance in enumerate((*advances, *going_on)):
            height = _height(proof, advance, once_joules) / factor
            if y.logarithmic and height <= 0.0:
                continue
            seconds = advance.seconds if number < len(advances) else x.highest
            rows.append(
                {
                    "x": max(seconds, _LEAST_SECONDS) if x.logarithmic else seconds,
                    "y": height,
                    "series": series,
                    "found": number < len(advances),
                    "amount": format_amount(proof.objective, advance.amount),
                    "when": format_seconds(seconds),
                    "by": advance.by,
                }
            )
    return search(rows, x=x, y=y)


def _height(proof: PlanQuality, advance: Advance, once_joules: float) -> float:
    """Energy counts from running every op once, and what rounding makes of nothing is nothing."""
    if proof.objective is not Objective.ENERGY:
        return advance.amount
    above = advance.amount - once_joules
    return above if above > _ROUNDING * once_joules else 0.0


def _search_axes(proof: PlanQuality, once_joules: float) -> tuple[ChartAxis, ChartAxis, float]:
    """Both axes, and what amounts are divided by."""
    record = proof.record
    found = (*record.plans, *record.bounds)
    heights = [_height(proof, one, once_joules) for one in found]
    factor, unit = scale_of(max(heights, default=0.0), _UNITS[proof.objective])
    positive = [height / factor for height in heights if height > 0.0]
    lowest = min(positive, default=0.0) if min(heights[: len(record.plans)], default=0.0) > 0.0 else 0.0
    seconds = [one.seconds for one in found]
    end = max([*seconds, *(phase.end_seconds for phase in record.phases)], default=0.0)
    start = min((max(each, _LEAST_SECONDS) for each in seconds), default=0.0)
    above = ", above running every op once" if proof.objective is Objective.ENERGY else ""
    return (
        ChartAxis("seconds of the search", start, max(_LEAST_SECONDS, end)),
        ChartAxis(f"{unit}{above}", lowest, max(heights, default=0.0) / factor),
        factor,
    )
