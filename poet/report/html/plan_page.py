"""``poet explain --html``: the page about one plan, whose sections the page of a sweep shows as well."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from poet.devices.profile import Profile
from poet.plans.training_plan import Plan
from poet.problem import Objective
from poet.problem.rounded import rounded_pages, rounding_words
from poet.problem.search_record import Advance
from poet.problem.solution import TITLES, WHOLE_PROBLEM, Solution, Status, format_amount
from poet.report import DASH, Column, page_table
from poet.report.device import FIGURES
from poet.report.html import PageContent, render
from poet.report.html.charts import (
    ACCENT,
    MUTED,
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
from poet.report.html.subject import NOT_IN_A_PLAN, Subject, asked_by, subject_of_plan
from poet.report.plan import spreads_of
from poet.report.reasons import Alternative, taken, what_binds
from poet.report.schedule_rows import NO_ROLE, VERBS, Share, StepTimeline
from poet.util.units import (
    IN_ORDER,
    NO_GAP,
    format_bytes,
    format_count,
    format_gap,
    format_joules,
    format_seconds,
    format_share,
    scale_of,
)
from poet.whatif.answers import overhead_text


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


_TENSORS = (
    Column("tensor", lambda row: row[0].name, code=True),
    Column("role", lambda row: row[0].role, choice=True),
    Column("decision", lambda row: row[0].decision, choice=True, hidden=True),
    Column("treated as", lambda row: row[0].words),
    Column("size", lambda row: row[0].bytes, "B"),
    Column("in RAM", lambda row: row[0].resident_share, "<%"),
    Column("energy", lambda row: row[0].joules, "J", sparse=True),
    Column("time", lambda row: row[0].seconds, "s", sparse=True),
    Column("why", lambda row: row[1], note=True),
)


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
        "tensors": page_table(subject.fates, *_TENSORS, sort=6, noun="tensors"),
        "ops": page_table(subject.kinds, *kinds, sort=2, noun="kinds of op"),
    }
    return PageContent(_charts(subject, line), tables, line)


def plan_context(subject: Subject, *, commands: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What the templates of a plan's sections print; ``commands``: label and line of each to show."""
    joules = subject.trace.joules
    parts = (
        Column("part", "what"),
        Column("energy", "joules", "J"),
        Column("share", lambda part: _share_of(part.joules, joules), "right"),
        Column("busy time", "seconds", "s"),
    )
    return {
        "plan_headline": unbroken(headline(subject)),
        "plan_standing": _standing(subject),
        "plan_badge": subject.solution.says + badge(subject.solution.status, subject.solution.gap),
        "plan_tiles": list(_tiles(subject)),
        "subject": subject,
        "binds": list(what_binds(subject.limits, subject.trace, subject.fullest)),
        "has_strip": len(subject.line.frames) > STRIP_FRAMES,
        "parts": page_table(subject.parts, *parts),
        "proof": list(_proof_rows(subject)),
        "search_words": search_words(subject.solution),
        "phases": _phases(subject.solution),
        "rejected": _rejected_words(subject.solution),
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


def badge(status: Status, gap: float | None) -> str:
    """A word on an answer: that it is optimal, or its gap."""
    return f"gap {format_share(gap)}" if status is Status.FEASIBLE and gap is not None else status.word


def unbroken(text: str) -> str:
    """``text`` with amounts that no line break parts from their unit."""
    return re.sub(r"(?<=\d) (?=%|[kmµn]?[JsBh]\b|[KMGT]iB\b)", "\u00a0", text)


def _standing(subject: Subject) -> str:
    """How good the answer is, and what it spares, in two sentences."""
    said, plain, peak = subject.solution.sentence, subject.keep_everything_bytes, subject.trace.peak_ram_bytes
    if plain is not None and plain > peak:
        said += f" Plain training needs {format_bytes(plain)}, {plain / peak:.3g} times as much."
    if rounded := rounded_pages(subject.problem, subject.schedule):
        said += f" Not exact: tensors are rounded in storage: {rounding_words(rounded)}."
    return said


def _tiles(subject: Subject) -> Iterator[Tile]:
    """RAM, energy, time and storage, each beside its limit or baseline."""
    trace, limits, problem = subject.trace, subject.limits, subject.problem
    budget, deadline = limits.ram_budget_bytes, limits.deadline_seconds
    used = "no budget" if budget is None else f"{format_share(trace.peak_ram_bytes / budget)} of the budget"
    yield Tile("RAM at the peak", format_bytes(trace.peak_ram_bytes), used)
    once_joules, once_seconds = problem.compute_joules, problem.compute_seconds
    above = overhead_text(max(0.0, trace.joules / once_joules - 1.0) if once_joules else 0.0)
    slower = f"{trace.seconds / once_seconds:.3g}× running every op once" if once_seconds else ""
    slower += "" if deadline is None else f"; deadline {format_seconds(deadline)}"
    for found, why in spreads_of(subject.price_range):
        above += f"; {format_joules(found.good_joules)} to {format_joules(found.bad_joules)} {why}"
        slower += f"; {format_seconds(found.good_seconds)} to {format_seconds(found.bad_seconds)} {why}"
    yield Tile("Energy per step", format_joules(trace.joules), above)
    yield Tile("Time per step", format_seconds(trace.seconds), slower)
    written = "nothing is written to storage"
    if trace.written_bytes:
        written = f"{format_bytes(trace.read_bytes)} read"
        if subject.life_steps is not None:
            written += f"; storage lasts {format_count(subject.life_steps)} steps"
    yield Tile("Written per step", format_bytes(trace.written_bytes), written)


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
    joules, solution = subject.trace.joules, subject.solution
    ours = taken("this plan", f"{solution.says}{solution.solver or 'poet'}", subject.trace)

    def against(row: Alternative) -> str | None:
        if row is ours or row.joules is None:
            return "" if row is ours else None
        ratio = row.joules / joules if joules else 1.0
        return "the same" if abs(ratio - 1.0) < 5e-4 else f"{ratio:.4g}×"

    def why(row: Alternative) -> str:
        if row.joules is not None:
            return ""
        if row.unlimited_ram_bytes is None:
            return "no plan found inside the limits"
        return f"infeasible: needs {format_bytes(row.unlimited_ram_bytes)} of RAM"

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
    solution = subject.solution
    says, optimal = solution.says, solution.status is Status.OPTIMAL
    yield "answer", solution.sentence
    yield "energy", format_joules(subject.trace.joules)
    scope = "" if solution.bound_scope == WHOLE_PROBLEM else f" ({solution.bound_scope})"
    yield f"bound {IN_ORDER}", f"{says}{format_joules(solution.bound_joules)}{scope}"
    gap = format_gap(solution.gap or 0.0, optimal=optimal, confirmed=solution.is_energy_confirmed)
    if gap in NO_GAP:
        proof = solution.proof if solution.objective is Objective.ENERGY else ""
        yield "gap", f"{says}none: {proof or NO_GAP[gap]}"
    else:
        yield "gap", f"{says}{gap} of the energy"
        overhead = format_share(solution.overhead_gap or 0.0)
        yield "", f"{says}{overhead} of what is above running every op once"
    yield "simulator", f"accepted all {len(subject.schedule)} steps"
    if solution.solver:
        yield "found by", f"{says}{solution.solver}, in {format_seconds(solution.solve_seconds)}"


def _phases(solution: Solution) -> dict[str, Any] | None:
    """One row per phase of the search; ``None``: none is known."""
    if not solution.record.phases:
        return None

    def amount(value: float) -> str:
        return format_amount(solution.objective, value) if value > 0.0 else DASH

    columns = (
        Column("phase", "name"),
        Column("began after", "begin_seconds", "s"),
        Column("lasted", lambda phase: max(0.0, phase.end_seconds - phase.begin_seconds), "s"),
        Column("better plans", lambda phase: phase.plans or DASH, "right"),
        Column("saved", lambda phase: amount(phase.saved), "right"),
        Column("bound raised by", lambda phase: amount(phase.raised), "right"),
    )
    return page_table(solution.record.phases, *columns)


def _rejected_words(solution: Solution) -> str:
    """What the simulator rejected, by rule; empty where it rejected nothing."""
    if not solution.record.rejected:
        return ""
    said = ", ".join(
        f"{one.schedules} by the rule {one.rule}{f' ({one.faults} by a fault of ours)' * bool(one.faults)}"
        for one in solution.record.rejected
    )
    return f"{solution.says.capitalize()}Of the proposed schedules, the simulator rejected {said}."


# --- charts -----------------------------------------------------------------------------------

PART_COLOURS = {
    "first runs": QUIET, "recomputation": SERIES[4], "page-in": SERIES[1], "page-out": SERIES[0],
    "moves in RAM": SERIES[3], "idle power": SERIES[6],
}  # fmt: skip
MOST_KINDS = 10
"""Kinds of op with a bar of their own."""
STRIP_FRAMES = 400
"""Steps above which the memory chart gets a band to choose a part in."""


def _charts(subject: Subject, line: dict[str, Any]) -> dict[str, Spec]:
    """By the id of their place in the page; ``line``: of `timeline_data`."""
    joules, peak, plain = subject.trace.joules, subject.trace.peak_ram_bytes, subject.keep_everything_bytes
    budget, factor = subject.limits.ram_budget_bytes, line["factor"]
    is_near = plain is not None and peak < plain <= 1.5 * max(budget or 0, peak)
    ram = (
        ("least of this order", subject.lower_bound.bytes, QUIET),
        ("this plan", peak, ACCENT),
        ("budget", budget, WARNING),
        ("plain training", plain, MUTED),
    )
    ways = [(row.name, row.joules, SERIES[7]) for row in subject.others]
    parts = [(part.what, part.joules, PART_COLOURS[part.what]) for part in subject.parts]
    shares = [f"{format_joules(part)} ({_share_of(part, joules)})" for _, part, _ in parts]
    charts = {
        "memory": memory(
            [role["name"] for role in line["roles"]],
            unit=line["unit"],
            budget=None if budget is None else budget / factor,
            plain=plain / factor if is_near and plain is not None else None,
        ),
        "ram-ladder": ladder(ram, unit="B"),
        "parts": ladder(parts, unit="J", texts=shares),
        "kinds": _kinds_chart(subject.kinds),
        "others": ladder([("this plan", joules, ACCENT), *ways], unit="J", title="{} per step"),
    }
    if subject.solution.record.plans:
        charts["search"] = search_chart(subject.solution)
    if len(subject.line.frames) > STRIP_FRAMES:
        charts["strip"] = strip()
    return charts


def _share_of(part: float, whole: float) -> str:
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

    def short(seconds: float) -> float:
        return float(f"{seconds / seconds_factor:.7g}")

    return {
        "unit": unit,
        "factor": factor,
        "secondsUnit": seconds_unit,
        "roles": [{"name": role, "colour": role_colour(role)} for role in roles],
        "names": names,
        "what": [whats[frame.what] for frame in line.frames],
        "kind": [list(VERBS).index(frame.kind) for frame in line.frames],
        "verbs": list(VERBS.values()),
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
_ABOVE_ONCE = " above running every op once"


def search_words(solution: Solution) -> str:
    """What the chart of the search shows; empty where there is nothing to draw."""
    if not solution.record.plans:
        return ""
    what, above = TITLES[solution.objective], _ABOVE_ONCE * (solution.objective is Objective.ENERGY)
    x, y, _ = _search_axes(solution)
    logarithmic = [name for name, axis in (("time", x), (what, y)) if axis.logarithmic]
    scales = f" Logarithmic: {' and '.join(logarithmic)}." if logarithmic else ""
    return (
        f"{solution.says.capitalize()}The best plan (solid, circles) and the bound (dashed, triangles) over "
        f"the time of the search: {what}{above}.{scales}"
    )


def search_chart(solution: Solution) -> Spec:
    """The best plan and the bound over time; see `search_words`."""
    x, y, factor = _search_axes(solution)
    rows: list[dict[str, Any]] = []
    for series, advances in (("best plan", solution.record.plans), ("bound", solution.record.bounds)):
        going_on = [advances[-1]] if advances and advances[-1].seconds < x.highest else []
        for number, advance in enumerate((*advances, *going_on)):
            height = _height(solution, advance) / factor
            if y.logarithmic and height <= 0.0:
                continue
            seconds = advance.seconds if number < len(advances) else x.highest
            rows.append(
                {
                    "x": max(seconds, _LEAST_SECONDS) if x.logarithmic else seconds,
                    "y": height,
                    "series": series,
                    "found": number < len(advances),
                    "amount": format_amount(solution.objective, advance.amount),
                    "when": format_seconds(seconds),
                    "by": advance.by,
                }
            )
    return search(rows, x=x, y=y)


def _height(solution: Solution, advance: Advance) -> float:
    """Energy counts from running every op once, and what rounding makes of nothing is nothing."""
    if solution.objective is not Objective.ENERGY:
        return advance.amount
    above = advance.amount - solution.baseline_joules
    return above if above > _ROUNDING * solution.baseline_joules else 0.0


def _search_axes(solution: Solution) -> tuple[ChartAxis, ChartAxis, float]:
    """Both axes, and what amounts are divided by."""
    record = solution.record
    found = (*record.plans, *record.bounds)
    heights = [_height(solution, one) for one in found]
    factor, unit = scale_of(max(heights, default=0.0), _UNITS[solution.objective])
    positive = [height / factor for height in heights if height > 0.0]
    lowest = min(positive, default=0.0) if min(heights[: len(record.plans)], default=0.0) > 0.0 else 0.0
    seconds = [one.seconds for one in found]
    end = max([*seconds, *(phase.end_seconds for phase in record.phases)], default=0.0)
    start = min((max(each, _LEAST_SECONDS) for each in seconds), default=0.0)
    above = f",{_ABOVE_ONCE}" * (solution.objective is Objective.ENERGY)
    return (
        ChartAxis("seconds of the search", start, max(_LEAST_SECONDS, end)),
        ChartAxis(f"{unit}{above}", lowest, max(heights, default=0.0) / factor),
        factor,
    )
