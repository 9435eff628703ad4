"""``poet explain --html``: the page about one plan, whose sections the page of a sweep shows as well."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from poet.devices.profile import Profile
from poet.plans.plan_parts import PriceEnds, PriceRange
from poet.plans.training_plan import Plan
from poet.problem.solution import format_amount
from poet.report.device import FIGURES
from poet.report.html.page import PageContent, render
from poet.report.html.plan_charts import STRIP_FRAMES, charts_of, search_words, share_of, timeline_data
from poet.report.html.subject import PlanQuality, Subject, subject_of_plan
from poet.report.plan import what_binds
from poet.report.reasons import Alternative
from poet.report.request import NOT_IN_A_PLAN, asked_by
from poet.report.rows import DASH, Column, page_table
from poet.util.units import (
    IN_ORDER,
    NO_GAP,
    format_bytes,
    format_count,
    format_gap,
    format_joules,
    format_seconds,
    format_share,
)
from poet.whatif.daily import overhead_text


class Tile(NamedTuple):
    """A figure that stands out: its name, its amount, and what to compare it with."""

    name: str
    amount: str
    beside: str


def plan_page(plan: Plan, *, command: str = "", profile: Profile | None = None) -> str:
    """The page as text.

    Args:
        plan: what it is about.
        command: the line that made the page; empty where it was made from Python.
        profile: of the plan's device; ``None``: the shipped one of its name, if there is one.

    Raises:
        InputError: the packages of the extra ``report`` are not there.
    """
    subject = subject_of_plan(plan, profile=profile)
    commands = [asked_by(plan), *([("this page", command)] if command else [])]
    context = plan_context(subject, commands=commands)
    title = f"{plan.model.name} on {plan.device.name}"
    more = {"title": title, "made_by": plan.poet_version, "not_in_it": NOT_IN_A_PLAN}
    return render("plan.html", plan_content(subject), {**context, **more})


def plan_content(subject: Subject) -> PageContent:
    """What the scripts of a plan's sections draw."""
    line, joules = timeline_data(subject), subject.trace.joules
    kinds = (
        Column("kind of op", "what"),
        Column("runs", "runs", "n"),
        Column("energy", "joules", "J"),
        Column("of the step", lambda kind: kind.joules / joules if joules else None, "<%"),
        Column("time", "seconds", "s"),
        Column("recomputation", "again_joules", "J", sparse=True),
    )
    tables = {
        "tensors": page_table(subject.verdicts, *_TENSORS, sort=6, noun="tensors"),
        "ops": page_table(subject.kinds, *kinds, sort=2, noun="kinds of op"),
    }
    return PageContent(charts_of(subject, line), tables, line)


_TENSORS = (
    Column("tensor", lambda verdict: verdict.fate.name, code=True),
    Column("role", lambda verdict: verdict.fate.role, choice=True),
    Column("decision", "decision", choice=True, hidden=True),
    Column("treated as", lambda verdict: verdict.fate.words),
    Column("size", lambda verdict: verdict.fate.bytes, "B"),
    Column("in RAM", lambda verdict: verdict.fate.resident_share, "<%"),
    Column("energy", lambda verdict: verdict.fate.joules, "J", sparse=True),
    Column("time", lambda verdict: verdict.fate.seconds, "s", sparse=True),
    Column("why", "why", note=True),
)
_PARTS = (
    Column("part", "what"),
    Column("energy", "joules", "J"),
    Column("share", "share", "right"),
    Column("busy time", "seconds", "s"),
)


def plan_context(subject: Subject, *, commands: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What the templates of a plan's sections print; ``commands``: label and line of each to show."""
    proof, joules = subject.proof, subject.trace.joules
    parts = [
        {"what": p.what, "joules": p.joules, "share": share_of(p.joules, joules), "seconds": p.seconds}
        for p in subject.parts
    ]
    return {
        "plan_headline": unbroken(headline(subject)),
        "plan_standing": _standing(subject),
        "plan_tiles": _tiles(subject),
        "subject": subject,
        "binds": list(what_binds(subject.limits, subject.trace, subject.fullest)),
        "has_strip": len(subject.line.frames) > STRIP_FRAMES,
        "parts": page_table(parts, *_PARTS),
        "proof": list(_proof_rows(subject)),
        "search_words": search_words(proof, subject.problem.compute_joules),
        "phases": _phases(proof),
        "rejected": _rejected_words(proof),
        "others": _others(subject),
        "figures": None if subject.profile is None else figures_of(subject.profile),
        "commands": list(commands),
        "lower_bound": _lower_bound_words(subject),
    }


def figures_of(profile: Profile) -> dict[str, Any]:
    """Every figure of a profile with its value, kind, uncertainty and source."""
    return page_table(profile.figures(), *FIGURES)


# --- the top ----------------------------------------------------------------------------------


def headline(subject: Subject) -> str:
    """The answer in one sentence; a device's title goes without what stands in brackets at its end."""
    budget, trace = subject.limits.ram_budget_bytes, subject.trace
    room = format_bytes(trace.peak_ram_bytes if budget is None else budget)
    return (
        f"{subject.model} trains on {subject.device.partition(' (')[0]} within {room} of RAM: "
        f"{format_joules(trace.joules)} and {format_seconds(trace.seconds)} per step."
    )


def unbroken(text: str) -> str:
    """``text`` with amounts that no line break parts from their unit."""
    return re.sub(r"(?<=\d) (?=%|[kmµn]?[JsBh]\b|[KMGT]iB\b)", "\u00a0", text)


def _standing(subject: Subject) -> str:
    """How good the answer is, and what it spares, in two sentences."""
    proof, plain, peak = subject.proof, subject.keep_everything_bytes, subject.trace.peak_ram_bytes
    said = proof.sentence
    if proof.word != "optimal" and proof.gap is not None:
        said += f" A better plan {IN_ORDER} could save {format_share(proof.gap)} of the energy at most."
    if plain is not None and plain > peak:
        said += f" Plain training needs {format_bytes(plain)}, {plain / peak:.3g} times as much."
    return said


def _tiles(subject: Subject) -> tuple[Tile, ...]:
    """RAM, energy, time and storage, each beside its limit or baseline."""
    trace, limits, problem = subject.trace, subject.limits, subject.problem
    budget, deadline = limits.ram_budget_bytes, limits.deadline_seconds
    once_joules, once_seconds = problem.compute_joules, problem.compute_seconds
    above = max(0.0, trace.joules / once_joules - 1.0) if once_joules else 0.0
    slower = f"{trace.seconds / once_seconds:.3g}× running every op once" if once_seconds else ""
    slower += "" if deadline is None else f"; deadline {format_seconds(deadline)}"
    joules_range, seconds_range = _ranges(subject.price_range)
    written = "nothing is written to storage"
    if trace.written_bytes:
        written = f"{format_bytes(trace.read_bytes)} read"
        if subject.life_steps is not None:
            written += f"; storage lasts {format_count(subject.life_steps)} steps"
    used = "no budget" if budget is None else f"{format_share(trace.peak_ram_bytes / budget)} of the budget"
    return (
        Tile("RAM at the peak", format_bytes(trace.peak_ram_bytes), used),
        Tile("Energy per step", format_joules(trace.joules), f"{overhead_text(above)}{joules_range}"),
        Tile("Time per step", format_seconds(trace.seconds), f"{slower}{seconds_range}"),
        Tile("Written per step", format_bytes(trace.written_bytes), written),
    )


def _ranges(found: PriceRange | None) -> tuple[str, str]:
    """The ends of energy and of time, for behind a tile's words; nothing where they are not known."""
    ends: list[tuple[PriceEnds, str]] = [] if found is None else [(found, "by the device's figures")]
    if found is not None and found.likely is not None:
        ends.append((found.likely, "in nine cases of ten"))
    joules = (f"; {format_joules(e.good_joules)} to {format_joules(e.bad_joules)} {why}" for e, why in ends)
    seconds = (
        f"; {format_seconds(e.good_seconds)} to {format_seconds(e.bad_seconds)} {why}" for e, why in ends
    )
    return "".join(joules), "".join(seconds)


def _lower_bound_words(subject: Subject) -> str:
    """Why no schedule needs less RAM."""
    bound = subject.lower_bound
    moment = "at the step's ends" if bound.op is None else f"while {bound.op} runs"
    held = f"{len(bound.tensors)} tensors"
    held += f" and a workspace of {format_bytes(bound.workspace_bytes)}" if bound.workspace_bytes else ""
    return (
        f"No schedule {IN_ORDER} needs less than {format_bytes(bound.bytes)}: {moment}, {held} must be in "
        "RAM together."
    )


# --- simpler ways, the proof, the search ------------------------------------------------------


def _others(subject: Subject) -> dict[str, Any]:
    """The plan, and those of simpler ways or why there is none."""
    trace, proof = subject.trace, subject.proof

    def against(row: Alternative) -> str | None:
        if row is ours or row.joules is None:
            return "" if row is ours else None
        ratio = row.joules / trace.joules if trace.joules else 1.0
        return "the same" if abs(ratio - 1.0) < 5e-4 else f"{ratio:.4g}×"

    def why(row: Alternative) -> str:
        if row.joules is not None:
            return ""
        if row.unlimited_ram_bytes is None:
            return "no plan found inside the limits"
        return f"infeasible: needs {format_bytes(row.unlimited_ram_bytes)} of RAM"

    ours = Alternative(
        "this plan",
        f"{proof.says}{proof.solver or 'poet'}",
        trace.joules,
        trace.seconds,
        trace.peak_ram_bytes,
        trace.recomputed_runs,
        trace.read_bytes,
        trace.written_bytes,
    )
    columns = (
        Column("way", "name"),
        Column("planned by", "by"),
        Column("energy", "joules", "J"),
        Column("against this plan", against, "right"),
        Column("time", "seconds", "s"),
        Column("RAM", "peak_ram_bytes", "B"),
        Column("recomputed runs", "recomputed_runs", "right"),
        Column("written", "written_bytes", "B"),
        Column("why", why, note=True),
    )
    return page_table([ours, *subject.others], *columns)


def _proof_rows(subject: Subject) -> Iterator[tuple[str, str]]:
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


def _phases(proof: PlanQuality) -> dict[str, Any] | None:
    """One row per phase of the search; ``None``: none is known."""
    if not proof.record.phases:
        return None

    def amount(value: float) -> str:
        return format_amount(proof.objective, value) if value > 0.0 else DASH

    columns = (
        Column("phase", "name"),
        Column("began after", "begin_seconds", "s"),
        Column("lasted", lambda phase: max(0.0, phase.end_seconds - phase.begin_seconds), "s"),
        Column("better plans", lambda phase: phase.plans or DASH, "right"),
        Column("saved", lambda phase: amount(phase.saved), "right"),
        Column("bound raised by", lambda phase: amount(phase.raised), "right"),
    )
    return page_table(proof.record.phases, *columns)


def _rejected_words(proof: PlanQuality) -> str:
    """What the simulator rejected, by rule; empty where it rejected nothing."""
    if not proof.record.rejected:
        return ""
    said = ", ".join(
        f"{one.schedules} by the rule {one.rule}{f' ({one.faults} by a fault of ours)' * bool(one.faults)}"
        for one in proof.record.rejected
    )
    return f"{proof.says.capitalize()}Of the proposed schedules, the simulator rejected {said}."
