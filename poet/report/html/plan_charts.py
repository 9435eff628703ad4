"""The charts of one plan, but for those of its search and its timeline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from poet.report.energy import Share
from poet.report.html.charts import (
    ACCENT,
    MUTED,
    PART_COLOURS,
    PARTS,
    QUIET,
    SERIES,
    WARNING,
    Spec,
    bars,
    ladder,
    memory,
)
from poet.report.html.plan_tables import share_of
from poet.report.html.subject import Subject
from poet.units import format_bytes, format_joules, scale_of

MOST_KINDS = 10
"""Kinds of op with a bar of their own."""


def memory_chart(subject: Subject, line: dict[str, Any]) -> Spec:
    """What is in RAM over the step, by role; ``line``: of `poet.report.html.timeline_data`."""
    factor, budget, plain = line["factor"], subject.limits.ram_budget_bytes, subject.keep_everything_bytes
    top = max(budget or 0, subject.trace.peak_ram_bytes)
    near = plain is not None and plain <= 1.5 * top and plain > subject.trace.peak_ram_bytes
    return memory(
        [role["name"] for role in line["roles"]],
        unit=line["unit"],
        budget=None if budget is None else budget / factor,
        plain=plain / factor if near and plain is not None else None,
    )


def ram_ladder(subject: Subject) -> Spec:
    """The least RAM, the plan's, the budget and plain training, one above the other."""
    amounts: list[tuple[str, int | None, str]] = [
        ("least of this order", subject.lower_bound.bytes, QUIET),
        ("this plan", subject.trace.peak_ram_bytes, ACCENT),
        ("budget", subject.limits.ram_budget_bytes, WARNING),
        ("plain training", subject.keep_everything_bytes, MUTED),
    ]
    factor, unit = scale_of(max(amount or 0 for _, amount, _ in amounts), "B")
    return ladder(
        [
            {"name": name, "amount": amount / factor, "text": format_bytes(amount), "colour": colour}
            for name, amount, colour in amounts
            if amount is not None
        ],
        title=unit,
    )


def parts_chart(subject: Subject) -> Spec:
    """Joules of first runs, recomputation and transfers."""
    factor, unit = scale_of(max((part.joules for part in subject.parts), default=0.0), "J")
    colours = dict(zip(PARTS, PART_COLOURS, strict=True))
    rows = [
        {
            "name": part.what,
            "amount": part.joules / factor,
            "text": f"{format_joules(part.joules)} ({share_of(part.joules, subject.trace.joules)})",
            "colour": colours[part.what],
        }
        for part in subject.parts
    ]
    return ladder(rows, title=unit)


def kinds_chart(subject: Subject) -> Spec:
    """Joules by kind of op, first runs and recomputation."""
    kinds = _most_kinds(subject.kinds)
    factor, unit = scale_of(max((kind.joules for kind in kinds), default=0.0), "J")
    rows = []
    for kind in kinds:
        for series, joules in (
            (PARTS[0], kind.joules - kind.again_joules),
            (PARTS[1], kind.again_joules),
        ):
            if joules > 0.0:
                text = f"{series}: {format_joules(joules)} of {format_joules(kind.joules)}, {kind.runs} runs"
                rows.append({"name": kind.what, "series": series, "amount": joules / factor, "text": text})
    return bars(rows, title=unit, colours=dict(zip(PARTS[:2], PART_COLOURS[:2], strict=True)))


def _most_kinds(kinds: Sequence[Share]) -> list[Share]:
    if len(kinds) <= MOST_KINDS + 1:
        return list(kinds)
    rest = kinds[MOST_KINDS:]
    others = Share(
        f"{len(rest)} other kinds",
        sum(kind.runs for kind in rest),
        math.fsum(kind.joules for kind in rest),
        math.fsum(kind.seconds for kind in rest),
        math.fsum(kind.again_joules for kind in rest),
        math.fsum(kind.again_seconds for kind in rest),
    )
    return [*kinds[:MOST_KINDS], others]


def others_chart(subject: Subject) -> Spec:
    """Joules of the plan beside those of other planners."""
    found = [(row.name, row.joules, SERIES[7]) for row in subject.others if row.joules is not None]
    rows = [("this plan", subject.trace.joules, ACCENT), *found]
    factor, unit = scale_of(max(joules for _, joules, _ in rows), "J")
    return ladder(
        [
            {"name": name, "amount": joules / factor, "text": format_joules(joules), "colour": colour}
            for name, joules, colour in rows
        ],
        title=f"{unit} per step",
    )
