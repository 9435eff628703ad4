"""The sections about one plan: text for the templates, charts and tables for the scripts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from poet.devices.profile import Figure, Profile, unit_of
from poet.plans.plan_parts import PriceEnds, PriceRange
from poet.report.alternatives import Alternative
from poet.report.device import format_figure, format_uncertainty
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
    strip,
)
from poet.report.html.page import PageContent
from poet.report.html.search import phase_rows, rejected_words, search_chart, search_words
from poet.report.html.subject import Subject
from poet.report.html.tables import DASH, TableColumn, TableData, count, duration, energy, size, small_share
from poet.report.html.timeline_data import timeline_data
from poet.report.plan import what_binds
from poet.units import (
    NO_GAP,
    format_bytes,
    format_count,
    format_gap,
    format_joules,
    format_seconds,
    format_share,
    scale_of,
)
from poet.whatif.wording import overhead_text

MOST_KINDS = 10
"""Kinds of op with a bar of their own."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure that stands out: its name, its amount, and what to hold it against."""

    name: str
    amount: str
    beside: str


def headline(subject: Subject) -> str:
    """The answer in one sentence."""
    budget, trace = subject.limits.ram_budget_bytes, subject.trace
    room = format_bytes(trace.peak_ram_bytes if budget is None else budget)
    return (
        f"{subject.model} trains on {short_title(subject.device)} within {room} of RAM: "
        f"{format_joules(trace.joules)} and {format_seconds(trace.seconds)} per step."
    )


def short_title(title: str) -> str:
    """A device's title without what stands in brackets at its end."""
    return title.partition(" (")[0]


def unbroken(text: str) -> str:
    """``text`` with amounts that no line break parts from their unit."""
    return _AMOUNT.sub("\u00a0", text)


_AMOUNT = re.compile(r"(?<=\d) (?=%|[kmµn]?[JsBh]\b|[KMGT]iB\b)")


def standing(subject: Subject) -> str:
    """How good the answer is, and what it spares, in two sentences."""
    proof, plain = subject.proof, subject.keep_everything_bytes
    gap = (
        ""
        if proof.word == "optimal" or proof.gap is None
        else f" A better plan could save {format_share(proof.gap)} of the energy at most."
    )
    spared = ""
    if plain is not None and plain > subject.trace.peak_ram_bytes:
        times = f"{plain / subject.trace.peak_ram_bytes:.3g}"
        spared = f" Plain training needs {format_bytes(plain)}, {times} times as much."
    return f"{proof.sentence}{gap}{spared}"


def tiles(subject: Subject) -> tuple[Tile, ...]:
    """RAM, energy, time and storage, each beside its limit or baseline."""
    trace, limits, problem = subject.trace, subject.limits, subject.problem
    budget, deadline = limits.ram_budget_bytes, limits.deadline_seconds
    once_joules = problem.compute_joules
    once_seconds = problem.compute_seconds
    above = max(0.0, trace.joules / once_joules - 1.0) if once_joules else 0.0
    slower = f"{trace.seconds / once_seconds:.3g}× running every op once" if once_seconds else ""
    joules_range, seconds_range = _ranges(subject.price_range)
    written = "nothing is written to storage"
    if trace.written_bytes:
        life = subject.lifetime_written_bytes
        written = f"{format_bytes(trace.read_bytes)} read"
        if life:
            written += f"; storage lasts {format_count(life / subject.worn_bytes)} steps"
    return (
        Tile(
            "RAM at the peak",
            format_bytes(trace.peak_ram_bytes),
            "no budget" if budget is None else f"{format_share(trace.peak_ram_bytes / budget)} of the budget",
        ),
        Tile(
            "Energy per step",
            format_joules(trace.joules),
            f"{overhead_text(above)}{joules_range}",
        ),
        Tile(
            "Time per step",
            format_seconds(trace.seconds),
            f"{slower}{'' if deadline is None else f'; deadline {format_seconds(deadline)}'}{seconds_range}",
        ),
        Tile("Written per step", format_bytes(trace.written_bytes), written),
    )


def _ranges(found: PriceRange | None) -> tuple[str, str]:
    """The ends of energy and of time, for behind a tile's words; nothing where they are not known."""
    if found is None:
        return "", ""
    ends: list[tuple[PriceEnds, str]] = [(found, "by the device's figures")]
    if found.likely is not None:
        ends.append((found.likely, "in nine cases of ten"))
    joules = (f"; {format_joules(e.good_joules)} to {format_joules(e.bad_joules)} {why}" for e, why in ends)
    seconds = (
        f"; {format_seconds(e.good_seconds)} to {format_seconds(e.bad_seconds)} {why}" for e, why in ends
    )
    return "".join(joules), "".join(seconds)


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
        "parts": [_part_row(part, subject.trace.joules) for part in subject.parts],
        "proof": list(_proof_rows(subject)),
        "search_words": search_words(subject.proof, subject.problem.compute_joules),
        "phases": phase_rows(subject.proof),
        "rejected": rejected_words(subject.proof),
        "proof_word": proof.word,
        "others": [_alternative_row(row, subject) for row in subject.others],
        "figures": None if subject.profile is None else figure_rows(subject.profile),
        "profile": subject.profile,
        "commands": list(commands),
        "lower_bound": _lower_bound_words(subject),
    }


STRIP_FRAMES = 400
"""Steps above which the memory chart gets a band to choose a part in."""


def plan_content(subject: Subject) -> PageContent:
    """What the scripts of a plan's sections draw."""
    line = timeline_data(subject)
    charts: dict[str, Spec] = {
        "memory": _memory_chart(subject, line),
        "ram-ladder": _ram_ladder(subject),
        "parts": _parts_chart(subject),
        "kinds": _kinds_chart(subject),
        "others": _others_chart(subject),
    }
    if search_words(subject.proof, subject.problem.compute_joules):
        charts["search"] = search_chart(subject.proof, subject.problem.compute_joules)
    if len(subject.line.frames) > STRIP_FRAMES:
        charts["strip"] = strip(unit=line["unit"])
    return PageContent(charts, {"tensors": _tensor_table(subject), "ops": _kind_table(subject)}, line)


# --- charts -------------------------------------------------------------------------------------


def _memory_chart(subject: Subject, line: dict[str, Any]) -> Spec:
    factor, budget, plain = line["factor"], subject.limits.ram_budget_bytes, subject.keep_everything_bytes
    top = max(budget or 0, subject.trace.peak_ram_bytes)
    near = plain is not None and plain <= 1.5 * top and plain > subject.trace.peak_ram_bytes
    return memory(
        [role["name"] for role in line["roles"]],
        unit=line["unit"],
        budget=None if budget is None else budget / factor,
        plain=plain / factor if near and plain is not None else None,
    )


def _ram_ladder(subject: Subject) -> Spec:
    amounts: list[tuple[str, int | None, str]] = [
        ("no schedule below", subject.lower_bound.bytes, QUIET),
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


def _parts_chart(subject: Subject) -> Spec:
    factor, unit = scale_of(max((part.joules for part in subject.parts), default=0.0), "J")
    colours = dict(zip(PARTS, PART_COLOURS, strict=True))
    rows = [
        {
            "name": part.what,
            "amount": part.joules / factor,
            "text": f"{format_joules(part.joules)} ({_share_of(part.joules, subject.trace.joules)})",
            "colour": colours[part.what],
        }
        for part in subject.parts
    ]
    return ladder(rows, title=unit)


def _kinds_chart(subject: Subject) -> Spec:
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


def _others_chart(subject: Subject) -> Spec:
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


# --- tables that sort and filter ------------------------------------------------------------------


def _tensor_table(subject: Subject) -> TableData:
    columns = (
        TableColumn("tensor", code=True),
        TableColumn("role", choice=True),
        TableColumn("decision", choice=True, hidden=True),
        TableColumn("treated as"),
        TableColumn("size", numeric=True),
        TableColumn("in RAM", numeric=True),
        TableColumn("energy", numeric=True),
        TableColumn("time", numeric=True),
        TableColumn("why", note=True),
    )
    rows = []
    for verdict in subject.verdicts:
        fate = verdict.fate
        rows.append(
            (
                fate.name,
                fate.role,
                verdict.decision,
                fate.words,
                size(fate.bytes),
                small_share(fate.resident_share),
                energy(fate.joules) if fate.joules else (0.0, DASH),
                duration(fate.seconds) if fate.seconds else (0.0, DASH),
                verdict.why,
            )
        )
    return TableData(columns, rows, sort=6, noun="tensors")


def _kind_table(subject: Subject) -> TableData:
    columns = (
        TableColumn("kind of op"),
        TableColumn("runs", numeric=True),
        TableColumn("energy", numeric=True),
        TableColumn("of the step", numeric=True),
        TableColumn("time", numeric=True),
        TableColumn("recomputation", numeric=True),
    )
    rows = [
        (
            kind.what,
            count(kind.runs),
            energy(kind.joules),
            small_share(kind.joules / subject.trace.joules if subject.trace.joules else None),
            duration(kind.seconds),
            energy(kind.again_joules) if kind.again_joules else (0.0, DASH),
        )
        for kind in subject.kinds
    ]
    return TableData(columns, rows, sort=2, noun="kinds of op")


# --- tables that stand as they are ----------------------------------------------------------------


def _share_of(part: float, whole: float) -> str:
    return format_share(part / whole) if whole else DASH


def _part_row(part: Share, whole_joules: float) -> tuple[str, str, str, str]:
    return (
        part.what,
        format_joules(part.joules),
        _share_of(part.joules, whole_joules),
        format_seconds(part.seconds),
    )


def _proof_rows(subject: Subject) -> Iterator[tuple[str, str]]:
    proof = subject.proof
    yield "answer", proof.sentence
    yield "energy", format_joules(subject.trace.joules)
    scope = "" if proof.bound_scope == "whole problem" else f" ({proof.bound_scope})"
    yield "no plan takes less than", format_joules(proof.bound_joules) + scope
    gap = None
    if proof.gap is not None:
        gap = format_gap(proof.gap, optimal=proof.word == "optimal", confirmed=proof.confirmed)
    if gap in NO_GAP:
        yield "gap", f"none: {proof.rests_on}"
    elif gap is not None:
        yield "gap", f"{gap} of the energy"
    if proof.overhead_gap is not None and gap not in NO_GAP:
        yield "", f"{format_share(proof.overhead_gap)} of what is above running every op once"
    yield "judge", f"the simulator accepted all {len(subject.schedule)} steps"
    if proof.solver:
        yield "found by", f"{proof.solver}, in {format_seconds(proof.solve_seconds)}"


def _alternative_row(row: Alternative, subject: Subject) -> dict[str, str]:
    if row.joules is None or row.seconds is None or row.peak_ram_bytes is None:
        why = "no plan found inside the limits"
        if row.unlimited_ram_bytes is not None:
            why = f"infeasible: needs {format_bytes(row.unlimited_ram_bytes)} of RAM"
        return {"name": row.name, "by": row.by, "why": why}
    ratio = row.joules / subject.trace.joules if subject.trace.joules else 1.0
    return {
        "name": row.name,
        "by": row.by,
        "why": "",
        "joules": format_joules(row.joules),
        "ratio": "the same" if abs(ratio - 1.0) < 5e-4 else f"{ratio:.4g}×",
        "seconds": format_seconds(row.seconds),
        "ram": format_bytes(row.peak_ram_bytes),
        "recomputed": f"{row.recomputed_runs}",
        "written": format_bytes(row.written_bytes or 0),
    }


def figure_rows(profile: Profile) -> list[dict[str, str]]:
    """Every figure of a profile with its value, kind, uncertainty and source."""
    return [
        {
            "name": ".".join(path),
            "value": format_figure(figure, unit_of(path[-1])),
            "kind": figure.kind,
            "uncertainty": format_uncertainty(figure, unit_of(path[-1])),
            "source": _source(figure),
        }
        for path, figure in profile.figures()
    ]


def _source(figure: Figure) -> str:
    said = figure.source if figure.locator is None else f"{figure.source}: {figure.locator}"
    return f"{said}. {' '.join(figure.note.split())}" if figure.note else said


def _lower_bound_words(subject: Subject) -> str:
    bound = subject.lower_bound
    moment = "at the step's ends" if bound.op is None else f"while {bound.op} runs"
    held = f"{len(bound.tensors)} tensors" + (
        f" and a workspace of {format_bytes(bound.workspace_bytes)}" if bound.workspace_bytes else ""
    )
    return (
        f"No schedule needs less than {format_bytes(bound.bytes)}: {moment}, {held} must be in RAM together."
    )
