"""The tables of one plan: two that sort and filter, and rows of those that stand as they are."""

from __future__ import annotations

from collections.abc import Iterator

from poet.devices.figures import Figure, unit_of
from poet.devices.profile import Profile
from poet.report.alternatives import Alternative
from poet.report.device import format_figure, format_uncertainty
from poet.report.energy import Share
from poet.report.html.subject import Subject
from poet.report.html.tables import DASH, TableColumn, TableData, count, duration, energy, size, small_share
from poet.units import IN_ORDER, NO_GAP, format_bytes, format_gap, format_joules, format_seconds, format_share


def tensor_table(subject: Subject) -> TableData:
    """Each tensor, what the plan does with it, and why."""
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


def kind_table(subject: Subject) -> TableData:
    """Each kind of op: runs, joules, seconds, recomputation."""
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


def share_of(part: float, whole: float) -> str:
    """``part`` as a share of ``whole``; a dash where that is nothing."""
    return format_share(part / whole) if whole else DASH


def part_row(part: Share, whole_joules: float) -> tuple[str, str, str, str]:
    """A part of the step: its name, joules, their share, seconds."""
    return (
        part.what,
        format_joules(part.joules),
        share_of(part.joules, whole_joules),
        format_seconds(part.seconds),
    )


def proof_rows(subject: Subject) -> Iterator[tuple[str, str]]:
    """What is claimed of the plan, and the source of the proof."""
    proof = subject.proof
    yield "answer", proof.sentence
    yield "energy", format_joules(subject.trace.joules)
    scope = "" if proof.bound_scope == "whole problem" else f" ({proof.bound_scope})"
    yield f"bound {IN_ORDER}", f"{proof.says}{format_joules(proof.bound_joules)}{scope}"
    gap = None
    if proof.gap is not None:
        gap = format_gap(proof.gap, optimal=proof.word == "optimal", confirmed=proof.confirmed)
    if gap in NO_GAP:
        yield "gap", f"{proof.says}none: {proof.rests_on}"
    elif gap is not None:
        yield "gap", f"{proof.says}{gap} of the energy"
    if proof.overhead_gap is not None and gap not in NO_GAP:
        yield "", f"{proof.says}{format_share(proof.overhead_gap)} of what is above running every op once"
    yield "judge", f"the simulator accepted all {len(subject.schedule)} steps"
    if proof.solver:
        yield "found by", f"{proof.says}{proof.solver}, in {format_seconds(proof.solve_seconds)}"


def alternative_row(row: Alternative, subject: Subject) -> dict[str, str]:
    """Another planner's plan, or why there is none."""
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
