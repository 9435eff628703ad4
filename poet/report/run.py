"""What training gave, as text and as data; predicted and measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from poet import codec
from poet.report.facts import host_seconds
from poet.report.plan import columns
from poet.training_plan import Plan
from poet.training_run import Epoch
from poet.units import format_bytes, format_seconds, format_share


def epoch_line(epoch: Epoch) -> str:
    """One epoch: loss, accuracy, and the steps it took."""
    accuracy = "" if epoch.accuracy is None else f", accuracy {format_share(epoch.accuracy)}"
    steps = f"{epoch.steps} steps of {format_seconds(epoch.step_seconds)}"
    steps += "" if epoch.is_complete else ", interrupted"
    return f"epoch {epoch.number}: loss {epoch.loss:.4f}{accuracy}, {steps}"


def run_report(plan: Plan, epochs: Sequence[Epoch], peak_ram_bytes: int | None) -> Table:
    """Peak memory and step time: predicted, and measured over the epochs.

    The predicted peak includes the buffer through which tensors are paged.
    """
    table = columns("per step", "predicted", "measured here", left=1)
    seconds = measured_step_seconds(epochs)
    host = host_seconds(plan.graph, plan.schedule)
    table.add_row("peak of tensor memory", format_bytes(predicted_peak_bytes(plan)), _bytes(peak_ram_bytes))
    predicted = "" if host is None else format_seconds(host)
    predicted += " beside paging" if host is not None and plan.slots else ""
    table.add_row("time on this machine", predicted, "" if seconds is None else format_seconds(seconds))
    table.add_row(f"time on {plan.device.name}", format_seconds(plan.prediction.seconds), "")
    return table


def run_data(plan: Plan, epochs: Sequence[Epoch], peak_ram_bytes: int | None) -> dict[str, Any]:
    """The same as JSON-ready objects."""
    return {
        "epochs": codec.encode(tuple(epochs)),
        "predicted_peak_ram_bytes": predicted_peak_bytes(plan),
        "measured_peak_ram_bytes": peak_ram_bytes,
        "predicted_device_step_seconds": plan.prediction.seconds,
        "predicted_host_step_seconds": host_seconds(plan.graph, plan.schedule),
        "measured_host_step_seconds": measured_step_seconds(epochs),
    }


def predicted_peak_bytes(plan: Plan) -> int:
    """Of tensor memory while the plan is replayed: the schedule's peak and the page buffer."""
    return plan.prediction.peak_ram_bytes + plan.page_buffer_bytes


def measured_step_seconds(epochs: Sequence[Epoch]) -> float | None:
    """The median step of the fastest epoch: the one that was disturbed least."""
    return min((epoch.step_seconds for epoch in epochs), default=None)


def _bytes(size_bytes: int | None) -> str:
    return "measured from the second epoch on" if size_bytes is None else format_bytes(size_bytes)
