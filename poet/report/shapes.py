"""The other shapes that a plan has steps for, in lines and as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from poet.plans.training_plan import Plan, shape_words
from poet.units import format_bytes, format_joules, format_seconds


def shape_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """Title and text of each row; none where a plan has one shape."""
    if plan.shapes:
        yield (
            "shapes",
            f"{shape_words(plan.graph, plan.model)}: the figures below; {len(plan.shapes)} beside it",
        )
    for shape in plan.shapes:
        trace = shape.step.trace
        yield (
            shape_words(shape.step.graph, shape.step.model),
            f"{format_joules(trace.joules)}, {format_seconds(trace.seconds)}, "
            f"{format_bytes(trace.peak_ram_bytes)} at the peak, {trace.recomputed_runs} recomputed runs, "
            f"{format_bytes(trace.written_bytes)} out, {format_bytes(trace.read_bytes)} in"
            f"{'' if shape.evaluation is not None or plan.evaluation is None else '; no evaluation'}",
        )


def shape_data(plan: Plan) -> list[dict[str, Any]] | None:
    """The same as JSON-ready objects."""
    if not plan.shapes:
        return None
    return [
        {
            "shape": shape_words(shape.step.graph, shape.step.model),
            "joules": shape.step.trace.joules,
            "seconds": shape.step.trace.seconds,
            "peak_ram_bytes": shape.step.trace.peak_ram_bytes,
            "recomputed_runs": shape.step.trace.recomputed_runs,
            "read_bytes": shape.step.trace.read_bytes,
            "written_bytes": shape.step.trace.written_bytes,
            "has_evaluation": shape.evaluation is not None,
        }
        for shape in plan.shapes
    ]
