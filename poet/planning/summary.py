"""A plan in a dozen lines, as text and as HTML: what it is for, what a step takes, how good it is."""

from __future__ import annotations

import html
from collections.abc import Iterator

from poet.errors import spelled_out
from poet.ir.named import trained_in_words
from poet.ir.untrained import loss_misfit
from poet.plans.plan_parts import MeasuredShare, PriceEnds
from poet.plans.training_plan import Plan
from poet.problem import Objective
from poet.problem.solution import WHOLE_PROBLEM, Status, is_confirmed, sentence_of
from poet.util.units import (
    IN_ORDER,
    NO_GAP,
    format_above,
    format_bytes,
    format_gap,
    format_joules,
    format_seconds,
    format_share,
)

_MOST_NAMED = 4

Row = tuple[str, str]
"""What it is, and the figure."""


def summary_rows(plan: Plan) -> tuple[Row, ...]:
    """Model, device, RAM, energy, time, what is recomputed and paged, and the search."""
    return (*_asked(plan), *_answered(plan))


def as_text(rows: tuple[Row, ...]) -> str:
    """The rows in two columns."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(spelled_out(f"{name:<{width}}  {figure}".rstrip()) for name, figure in rows)


def as_html(rows: tuple[Row, ...], *, title: str) -> str:
    """The rows as a table for a notebook."""
    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(spelled_out(name))}</th>'
        f'<td style="text-align:left">{html.escape(spelled_out(figure))}</td></tr>'
        for name, figure in rows
    )
    return f"<table><caption>{html.escape(spelled_out(title))}</caption><tbody>{cells}</tbody></table>"


def range_words(found: PriceEnds) -> str:
    """Both ends of the energy and of the time."""
    joules = f"{format_joules(found.good_joules)} to {format_joules(found.bad_joules)}"
    seconds = f"{format_seconds(found.good_seconds)} to {format_seconds(found.bad_seconds)}"
    return f"{joules}, {seconds}"


def measured_words(found: MeasuredShare) -> str:
    """How many ops have measured times, and which of the others are extrapolated."""
    others = len(found.extrapolated)
    said = (
        f"{found.ops} of {found.ops + others} ops measured, {format_share(found.seconds_share)} of computing"
    )
    if not others:
        return said
    named = ", ".join(found.extrapolated[:_MOST_NAMED])
    more = f" and {others - _MOST_NAMED} more" if others > _MOST_NAMED else ""
    return f"{said}; extrapolated from classes: {named}{more}"


def _asked(plan: Plan) -> Iterator[Row]:
    graph, limits = plan.graph, plan.request.limits
    sizes = "".join(f", {name}={size}" for name, size in plan.model.binding)
    yield "model", f"{plan.model.name}{sizes}: {len(graph.ops)} ops, {len(graph.buffers)} buffers"
    yield "device", plan.device.title or plan.device.name
    yield "training", f"{trained_in_words(graph)}, {plan.request.loss}, {plan.optimizer.name}"
    if doubt := loss_misfit(graph, plan.request.loss):
        yield "loss", doubt
    budget = "no budget" if limits.ram_budget_bytes is None else format_bytes(limits.ram_budget_bytes)
    deadline = "" if limits.deadline_seconds is None else f", {format_seconds(limits.deadline_seconds)}"
    yield "allowed", f"{budget}{' of RAM' if limits.ram_budget_bytes is not None else ''}{deadline}"


def _answered(plan: Plan) -> Iterator[Row]:
    made, outcome, trace = plan.prediction, plan.outcome, plan.trace
    yield "answer", sentence_of(Status[outcome.status.upper()], outcome.proof)
    plain = made.plain_peak_ram_bytes
    yield (
        "RAM at the peak",
        format_bytes(made.peak_ram_bytes)
        + ("" if plain is None else f"; plain training needs {format_bytes(plain)}"),
    )
    once = outcome.baseline_joules
    above = max(0.0, made.joules / once - 1.0) if once else 0.0
    yield "energy", f"{format_joules(made.joules)}; {format_above(above, 'running every op once')}"
    confirmed = is_confirmed(outcome.proof) and outcome.objective is Objective.ENERGY
    gap = format_gap(outcome.gap, optimal=outcome.status == "optimal", confirmed=confirmed)
    scope = "" if outcome.bound_scope == WHOLE_PROBLEM else f" ({outcome.bound_scope})"
    yield (
        "energy bound",
        f"{format_joules(outcome.bound_joules)}; {NO_GAP.get(gap, f'gap {gap} {IN_ORDER}')}{scope}",
    )
    yield "time", format_seconds(made.seconds)
    if made.range is not None:
        yield "range", range_words(made.range)
        if made.range.likely is not None:
            yield "likely (90 %)", range_words(made.range.likely)
    if made.measured is not None:
        yield "op times", measured_words(made.measured)
    if plan.request.micro is not None:
        count = plan.request.micro.count
        taken = f"{format_joules(plan.step_joules)}, {format_seconds(plan.step_seconds)}"
        yield (
            "whole step",
            f"{taken}: {count - 1} micro-batches that accumulate, and one that updates as above",
        )
    yield "recomputed", f"{trace.recomputed_runs} runs"
    yield "paged", f"{format_bytes(trace.written_bytes)} out, {format_bytes(trace.read_bytes)} in"
    yield "search", f"{format_seconds(outcome.solve_seconds)}, by {outcome.solver}"
