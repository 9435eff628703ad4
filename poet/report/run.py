"""What training gave, as text and as data: what was measured, beside what the plan promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from poet import codec
from poet.plans.run_request import BUSY_RATIO, Epoch, Validation
from poet.plans.training_plan import Plan
from poet.report.columns import columns
from poet.units import format_bytes, format_seconds, format_share


def epoch_line(epoch: Epoch) -> str:
    """One epoch: loss, accuracy, and the steps it took."""
    accuracy = "" if epoch.accuracy is None else f", accuracy {format_share(epoch.accuracy)}"
    steps = f"{epoch.steps} steps of {format_seconds(epoch.step_seconds)}"
    steps += "" if epoch.is_complete or epoch.stopped else ", interrupted"
    steps += f"; the run ends: {epoch.stopped}" if epoch.stopped else ""
    loss = "not finite" if epoch.loss is None else f"{epoch.loss:.4f}"
    return f"epoch {epoch.number}: loss {loss}{accuracy}, {steps}{_validated(epoch.validation)}"


def _validated(validation: Validation | None) -> str:
    if validation is None:
        return ""
    told = ["loss not finite" if validation.loss is None else f"loss {validation.loss:.4f}"]
    for name, amount in validation.metrics.items():
        shown = "none" if amount is None else f"{amount:.4g}" if name == "mae" else format_share(amount)
        told.append(f"{name} {shown}")
    note = (
        " (best so far)" if validation.is_best else " (the last: no better for long enough)" * validation.ends
    )
    return f"; validation: {', '.join(told)}{note}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured beside the epochs.

    Attributes:
        memory: where the memory of steps came from, as `poet.runtime.Trainer.memory` says.
        caveat: what that cannot promise; empty where there is nothing to say.
        peak_ram_bytes: of tensor memory; ``None`` where it was not measured.
    """

    memory: str
    caveat: str = ""
    peak_ram_bytes: int | None = None


def run_report(plan: Plan, epochs: Sequence[Epoch], measured: Measured) -> RenderableType:
    """Peak memory and step time: predicted for the device, measured here; where the memory came from."""
    table = columns("per step", "predicted", "measured here", left=1)
    table.add_row(
        "peak of tensor memory",
        format_bytes(predicted_peak_bytes(plan)),
        _bytes(measured.peak_ram_bytes) + _above_budget(plan, measured.peak_ram_bytes),
    )
    table.add_row("time on this machine", "", _measured_time(epochs))
    table.add_row(f"time on {plan.device.name}", format_seconds(plan.step_seconds), "")
    memory = f"memory: {'; '.join(filter(None, (measured.memory, measured.caveat)))}"
    return Group(table, Text(memory))


def _above_budget(plan: Plan, peak_bytes: int | None) -> str:
    budget_bytes = plan.request.limits.ram_budget_bytes
    if peak_bytes is None or budget_bytes is None or peak_bytes <= budget_bytes:
        return ""
    return f", {format_bytes(peak_bytes - budget_bytes)} above the budget"


def _measured_time(epochs: Sequence[Epoch]) -> str:
    """By the wall clock; with the steps' own time where something else had the processor."""
    fastest = _fastest(epochs)
    if fastest is None:
        return ""
    told = format_seconds(fastest.step_seconds)
    own_seconds = fastest.step_own_seconds
    return (
        told
        if own_seconds is None or not _is_busy(fastest)
        else (f"{told}; machine busy, {format_seconds(own_seconds)} of its own")
    )


def _is_busy(epoch: Epoch) -> bool:
    own_seconds = epoch.step_own_seconds
    return own_seconds is not None and epoch.step_seconds > BUSY_RATIO * own_seconds


def _fastest(epochs: Sequence[Epoch]) -> Epoch | None:
    return min(epochs, key=lambda epoch: epoch.step_seconds, default=None)


def run_data(plan: Plan, epochs: Sequence[Epoch], measured: Measured) -> dict[str, Any]:
    """The same as JSON-ready objects."""
    fastest = _fastest(epochs)
    return {
        "epochs": codec.encode(tuple(epochs)),
        "memory": measured.memory,
        "arena_bytes": None if plan.arena is None else plan.arena.size_bytes,
        "arena_efficiency": None if plan.layout is None else plan.layout.efficiency,
        "predicted_peak_ram_bytes": predicted_peak_bytes(plan),
        "measured_peak_ram_bytes": measured.peak_ram_bytes,
        "predicted_device_step_seconds": plan.step_seconds,
        "measured_host_step_seconds": measured_step_seconds(epochs),
        "measured_host_own_seconds": None if fastest is None else fastest.step_own_seconds,
        "machine_was_busy": fastest is not None and _is_busy(fastest),
    }


def predicted_peak_bytes(plan: Plan) -> int:
    """Of tensor memory while the plan is replayed: all that its layout takes, and the page buffer."""
    return plan.held_bytes + plan.page_buffer_bytes


def measured_step_seconds(epochs: Sequence[Epoch]) -> float | None:
    """The median step of the fastest epoch: the one that was disturbed least."""
    fastest = _fastest(epochs)
    return None if fastest is None else fastest.step_seconds


def _bytes(size_bytes: int | None) -> str:
    return "measured from the second epoch on" if size_bytes is None else format_bytes(size_bytes)
