"""What training gave, as text and as data; predicted and measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType

from poet import codec
from poet.host import HostStorage, host_step_seconds
from poet.report.plan import columns
from poet.training_plan import Plan
from poet.training_run import Epoch
from poet.units import format_bytes, format_seconds, format_share


def epoch_line(epoch: Epoch) -> str:
    """One epoch: loss, accuracy, and the steps it took."""
    accuracy = "" if epoch.accuracy is None else f", accuracy {format_share(epoch.accuracy)}"
    steps = f"{epoch.steps} steps of {format_seconds(epoch.step_seconds)}"
    steps += "" if epoch.is_complete else ", interrupted"
    loss = "not finite" if epoch.loss is None else f"{epoch.loss:.4f}"
    return f"epoch {epoch.number}: loss {loss}{accuracy}, {steps}"


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured beside the epochs.

    Attributes:
        memory: where the memory of steps came from, as `poet.runtime.Trainer.memory` says.
        caveat: what that cannot promise; empty where there is nothing to say.
        peak_ram_bytes: of tensor memory; ``None`` where it was not measured.
        storage: behind the page file; ``None`` where nothing is paged.
    """

    memory: str
    caveat: str = ""
    peak_ram_bytes: int | None = None
    storage: HostStorage | None = None


def run_report(plan: Plan, epochs: Sequence[Epoch], measured: Measured) -> RenderableType:
    """Peak memory and step time: predicted, and measured over the epochs; where the memory came from."""
    table = columns("per step", "predicted", "measured here", left=1)
    seconds = measured_step_seconds(epochs)
    host = predicted_step_seconds(plan, measured.storage)
    table.add_row(
        "peak of tensor memory", format_bytes(predicted_peak_bytes(plan)), _bytes(measured.peak_ram_bytes)
    )
    predicted = "" if host is None else format_seconds(host)
    if host is not None and not plan.graph.timed_in_steps:
        predicted += ", each kernel by itself"
    table.add_row("time on this machine", predicted, "" if seconds is None else format_seconds(seconds))
    table.add_row(f"time on {plan.device.name}", format_seconds(plan.prediction.seconds), "")
    return Group(table, f"memory: {'; '.join(filter(None, (measured.memory, measured.caveat)))}")


def run_data(plan: Plan, epochs: Sequence[Epoch], measured: Measured) -> dict[str, Any]:
    """The same as JSON-ready objects."""
    return {
        "epochs": codec.encode(tuple(epochs)),
        "memory": measured.memory,
        "arena_bytes": None if plan.arena is None else plan.arena.size_bytes,
        "arena_efficiency": None if plan.layout is None else plan.layout.efficiency,
        "predicted_peak_ram_bytes": predicted_peak_bytes(plan),
        "measured_peak_ram_bytes": measured.peak_ram_bytes,
        "predicted_device_step_seconds": plan.prediction.seconds,
        "predicted_host_step_seconds": predicted_step_seconds(plan, measured.storage),
        "predicted_from_whole_steps": plan.graph.timed_in_steps,
        "measured_host_step_seconds": measured_step_seconds(epochs),
    }


def predicted_peak_bytes(plan: Plan) -> int:
    """Of tensor memory while the plan is replayed: all that its layout takes, and the page buffer."""
    return plan.held_bytes + plan.page_buffer_bytes


def predicted_step_seconds(plan: Plan, storage: HostStorage | None) -> float | None:
    """Of the ops as measured by the machine that planned, and of the transfers to this ``storage``."""
    return host_step_seconds(plan.problem, plan.graph, plan.schedule, storage)


def measured_step_seconds(epochs: Sequence[Epoch]) -> float | None:
    """The median step of the fastest epoch: the one that was disturbed least."""
    return min((epoch.step_seconds for epoch in epochs), default=None)


def _bytes(size_bytes: int | None) -> str:
    return "measured from the second epoch on" if size_bytes is None else format_bytes(size_bytes)
