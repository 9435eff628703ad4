"""What micro-batches make of a step, in lines and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from poet.plans.training_plan import Plan
from poet.units import format_bytes, format_joules, format_seconds

if TYPE_CHECKING:  # a run shows plans without what planning needs
    from poet.planning.pipeline import Candidate


def micro_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    """Title and text of each row; none where a step is made of its whole batch."""
    micro, accumulation = plan.request.micro, plan.accumulation
    if micro is None or accumulation is None:
        return
    types = {value.name: value.type for value in plan.graph.values}
    shape = types[plan.graph.inputs[0]].shape
    samples = f" of {shape[0]} samples" if shape else ""
    loss = f"loss divided by {micro.divisor}" if micro.divisor > 1 else "loss as it is"
    norm = any("batch_norm" in op.call.target for op in plan.graph.ops)
    statistics = "; batch norm uses the statistics of each" if norm else ""
    yield "micro-batches", f"{micro.count}{samples} each, {loss}{statistics}"
    trace = accumulation.trace
    yield (
        "accumulating",
        f"{micro.count - 1} times {format_joules(trace.joules)}, {format_seconds(trace.seconds)}, "
        f"{format_bytes(trace.peak_ram_bytes)} at the peak, {trace.recomputed_runs} recomputed runs, "
        f"{format_bytes(trace.written_bytes)} out, {format_bytes(trace.read_bytes)} in",
    )
    yield (
        "updating",
        f"once {format_joules(plan.trace.joules)}, {format_seconds(plan.trace.seconds)}: the figures below",
    )
    yield "whole step", f"{format_joules(plan.step_joules)}, {format_seconds(plan.step_seconds)}"


def micro_data(plan: Plan) -> dict[str, Any] | None:
    """The same as JSON-ready objects."""
    micro, accumulation = plan.request.micro, plan.accumulation
    if micro is None or accumulation is None:
        return None
    return {
        "count": micro.count,
        "loss": micro.loss,
        "step_joules": plan.step_joules,
        "step_seconds": plan.step_seconds,
        "step_written_bytes": plan.step_written_bytes,
        "accumulating_joules": accumulation.trace.joules,
        "accumulating_seconds": accumulation.trace.seconds,
        "accumulating_peak_ram_bytes": accumulation.trace.peak_ram_bytes,
        "accumulating_recomputed_runs": accumulation.trace.recomputed_runs,
        "accumulating_read_bytes": accumulation.trace.read_bytes,
        "accumulating_written_bytes": accumulation.trace.written_bytes,
    }


def candidate_lines(tried: Sequence[Candidate]) -> Iterator[str]:
    """What each number of micro-batches takes."""
    for item in tried:
        called = "the whole batch" if item.micro is None else f"{item.micro.count} micro-batches"
        if item.joules is None or item.seconds is None:
            yield f"{called}: {item.why}"
        else:
            yield f"{called}: {format_joules(item.joules)} and {format_seconds(item.seconds)} per step"
