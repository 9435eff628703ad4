"""The sections about one plan: text for the templates, charts and tables for the scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poet.report.html.charts import Spec, strip
from poet.report.html.page import PageContent
from poet.report.html.plan_charts import kinds_chart, memory_chart, others_chart, parts_chart, ram_ladder
from poet.report.html.plan_tables import (
    alternative_row,
    figure_rows,
    kind_table,
    part_row,
    proof_rows,
    tensor_table,
)
from poet.report.html.plan_words import headline, lower_bound_words, standing, tiles, unbroken
from poet.report.html.search import phase_rows, rejected_words, search_chart, search_words
from poet.report.html.subject import Subject
from poet.report.html.timeline_data import timeline_data
from poet.report.plan import what_binds

STRIP_FRAMES = 400
"""Steps above which the memory chart gets a band to choose a part in."""


def plan_context(subject: Subject, *, commands: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What the templates of a plan's sections print.

    Args:
        subject: the plan.
        commands: label and line of each command to show.
    """
    proof = subject.proof
    return {
        "plan_headline": unbroken(headline(subject)),
        "plan_standing": standing(subject),
        "plan_tiles": tiles(subject),
        "subject": subject,
        "binds": list(what_binds(subject.limits, subject.trace, subject.fullest)),
        "has_strip": len(subject.line.frames) > STRIP_FRAMES,
        "parts": [part_row(part, subject.trace.joules) for part in subject.parts],
        "proof": list(proof_rows(subject)),
        "search_words": search_words(subject.proof, subject.problem.compute_joules),
        "phases": phase_rows(subject.proof),
        "rejected": rejected_words(subject.proof),
        "proof_word": proof.word,
        "others": [alternative_row(row, subject) for row in subject.others],
        "figures": None if subject.profile is None else figure_rows(subject.profile),
        "profile": subject.profile,
        "commands": list(commands),
        "lower_bound": lower_bound_words(subject),
    }


def plan_content(subject: Subject) -> PageContent:
    """What the scripts of a plan's sections draw."""
    line = timeline_data(subject)
    charts: dict[str, Spec] = {
        "memory": memory_chart(subject, line),
        "ram-ladder": ram_ladder(subject),
        "parts": parts_chart(subject),
        "kinds": kinds_chart(subject),
        "others": others_chart(subject),
    }
    if search_words(subject.proof, subject.problem.compute_joules):
        charts["search"] = search_chart(subject.proof, subject.problem.compute_joules)
    if len(subject.line.frames) > STRIP_FRAMES:
        charts["strip"] = strip(unit=line["unit"])
    return PageContent(charts, {"tensors": tensor_table(subject), "ops": kind_table(subject)}, line)
