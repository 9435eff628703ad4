"""How the search for a plan went: the best plan and the bound over time, its phases, what was rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poet.problem import Objective
from poet.report.html.charts import BOUND, PLAN, ChartAxis, Spec, search
from poet.report.html.subject import PlanQuality
from poet.report.html.tables import DASH
from poet.search_record import Advance
from poet.solution import TITLES, format_amount
from poet.units import format_seconds, scale_of

_LEAST_SECONDS = 0.01  # where a logarithmic axis of time begins
_ROUNDING = 1e-9  # of running every op once
_UNITS = {Objective.ENERGY: "J", Objective.TIME: "s", Objective.RAM: "B", Objective.WRITES: "B"}


def search_words(proof: PlanQuality, once_joules: float) -> str:
    """What the chart shows; empty where there is nothing to draw.

    Args:
        proof: with the record.
        once_joules: of running every op once, above which energy is drawn.
    """
    if not proof.record.plans:
        return ""
    what = TITLES[proof.objective]
    above = " above running every op once" if proof.objective is Objective.ENERGY else ""
    x, y = _axes(proof, once_joules)
    logarithmic = [name for name, axis in (("time", x), (what, y)) if axis.logarithmic]
    scales = f" Logarithmic: {' and '.join(logarithmic)}." if logarithmic else ""
    return (
        f"{proof.says.capitalize()}The best plan (solid, circles) and the bound (dashed, triangles) over the "
        f"time of the search: "
        f"{what}{above}.{scales}"
    )


def search_chart(proof: PlanQuality, once_joules: float) -> Spec:
    """The best plan and the bound over time; see `search_words`."""
    x, y = _axes(proof, once_joules)
    end_seconds = _end_seconds(proof)
    factor, _ = _scale(proof, once_joules)
    rows: list[dict[str, Any]] = []
    for series, advances in ((PLAN, proof.record.plans), (BOUND, proof.record.bounds)):
        for number, advance in enumerate((*advances, *_lasting(advances, end_seconds))):
            height = _height(proof, advance, once_joules) / factor
            if y.logarithmic and height <= 0.0:
                continue
            rows.append(
                {
                    "x": max(advance.seconds, _LEAST_SECONDS) if x.logarithmic else advance.seconds,
                    "y": height,
                    "series": series,
                    "found": number < len(advances),
                    "amount": format_amount(proof.objective, advance.amount),
                    "when": format_seconds(advance.seconds),
                    "by": advance.by,
                }
            )
    return search(rows, x=x, y=y)


def phase_rows(proof: PlanQuality) -> list[dict[str, str]]:
    """One row per phase of the search."""

    def amount(value: float) -> str:
        return format_amount(proof.objective, value) if value > 0.0 else DASH

    return [
        {
            "name": phase.name,
            "begin": format_seconds(phase.begin_seconds),
            "lasted": format_seconds(max(0.0, phase.end_seconds - phase.begin_seconds)),
            "plans": str(phase.plans) if phase.plans else DASH,
            "saved": amount(phase.saved),
            "raised": amount(phase.raised),
        }
        for phase in proof.record.phases
    ]


def rejected_words(proof: PlanQuality) -> str:
    """What the simulator rejected, by rule; empty where it rejected nothing."""
    if not proof.record.rejected:
        return ""
    said = ", ".join(
        f"{one.schedules} by the rule {one.rule}"
        + (f" ({one.faults} by a fault of ours)" if one.faults else "")
        for one in proof.record.rejected
    )
    return f"{proof.says.capitalize()}Of the proposed schedules, the simulator rejected {said}."


def _lasting(advances: Sequence[Advance], end_seconds: float) -> tuple[Advance, ...]:
    """The last one once more, at the end of the search."""
    if not advances or advances[-1].seconds >= end_seconds:
        return ()
    return (Advance(end_seconds, advances[-1].amount, advances[-1].by),)


def _end_seconds(proof: PlanQuality) -> float:
    ends = [phase.end_seconds for phase in proof.record.phases]
    return max(
        [*ends, *(found.seconds for found in (*proof.record.plans, *proof.record.bounds))], default=0.0
    )


def _height(proof: PlanQuality, advance: Advance, once_joules: float) -> float:
    """Of a point; energy counts from running every op once, and what rounding makes of nothing is nothing."""
    if proof.objective is not Objective.ENERGY:
        return advance.amount
    above = advance.amount - once_joules
    return above if above > _ROUNDING * once_joules else 0.0


def _scale(proof: PlanQuality, once_joules: float) -> tuple[float, str]:
    """Factor and unit of the vertical axis."""
    heights = [_height(proof, found, once_joules) for found in (*proof.record.plans, *proof.record.bounds)]
    return scale_of(max(heights, default=0.0), _UNITS[proof.objective])


def _axes(proof: PlanQuality, once_joules: float) -> tuple[ChartAxis, ChartAxis]:
    factor, unit = _scale(proof, once_joules)
    found = (*proof.record.plans, *proof.record.bounds)
    heights = [_height(proof, one, once_joules) / factor for one in found]
    positive = [height for height in heights if height > 0.0]
    seconds = [max(one.seconds, _LEAST_SECONDS) for one in found]
    plans = [_height(proof, one, once_joules) for one in proof.record.plans]
    lowest = min(positive) if positive and min(plans) > 0.0 else 0.0
    above = ", above running every op once" if proof.objective is Objective.ENERGY else ""
    return (
        ChartAxis(
            "seconds of the search", min(seconds, default=0.0), max(_LEAST_SECONDS, _end_seconds(proof))
        ),
        ChartAxis(f"{unit}{above}", lowest, max(heights, default=0.0)),
    )
