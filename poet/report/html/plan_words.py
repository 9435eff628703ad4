"""What is said about one plan at the top of its page, in sentences and in figures that stand out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from poet.plans.plan_parts import PriceEnds, PriceRange
from poet.report.html.subject import Subject
from poet.units import IN_ORDER, format_bytes, format_count, format_joules, format_seconds, format_share
from poet.whatif.wording import overhead_text


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
        else f" A better plan {IN_ORDER} could save {format_share(proof.gap)} of the energy at most."
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
        written = f"{format_bytes(trace.read_bytes)} read"
        if subject.life_steps is not None:
            written += f"; storage lasts {format_count(subject.life_steps)} steps"
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


def lower_bound_words(subject: Subject) -> str:
    """Why no schedule needs less RAM."""
    bound = subject.lower_bound
    moment = "at the step's ends" if bound.op is None else f"while {bound.op} runs"
    held = f"{len(bound.tensors)} tensors" + (
        f" and a workspace of {format_bytes(bound.workspace_bytes)}" if bound.workspace_bytes else ""
    )
    return (
        f"No schedule {IN_ORDER} needs less than {format_bytes(bound.bytes)}: {moment}, {held} must be in "
        "RAM together."
    )
