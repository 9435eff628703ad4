"""What training gave, as text and as data; predicted and measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from poet import codec
from poet.devices.host import HostStorage, host_step_seconds
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
        storage: behind the page file; ``None`` where nothing is paged, or it could not be measured.
        storage_problem: why it could not.
    """

    memory: str
    caveat: str = ""
    peak_ram_bytes: int | None = None
    storage: HostStorage | None = None
    storage_problem: str = ""


def run_report(plan: Plan, epochs: Sequence[Epoch], measured: Measured) -> RenderableType:
    """Peak memory and step time: predicted, and measured over the epochs; where the memory came from."""
    table = columns("per step", "predicted", "measured here", left=1)
    table.add_row(
        "peak of tensor memory",
        format_bytes(predicted_peak_bytes(plan)),
        _bytes(measured.peak_ram_bytes) + _above_budget(plan, measured.peak_ram_bytes),
    )
    table.add_row("time on this machine", _predicted_time(plan, measured), _measured_time(epochs))
    table.add_row(f"time on {plan.device.name}", format_seconds(plan.step_seconds), "")
    memory = f"memory: {'; '.join(filter(None, (measured.memory, measured.caveat)))}"
    lines = [f"storage was not measured: {measured.storage_problem}"] if measured.storage_problem else []
    return Group(table, *map(Text, (memory, *lines)))


def _above_budget(plan: Plan, peak_bytes: int | None) -> str:
    budget_bytes = plan.request.limits.ram_budget_bytes
    if peak_bytes is None or budget_bytes is None or peak_bytes <= budget_bytes:
        return ""
    return f", {format_bytes(peak_bytes - budget_bytes)} above the budget"


def _predicted_time(plan: Plan, measured: Measured) -> str:
    """As the ops took at planning; with what they waited for others then, where that was much."""
    seconds = predicted_step_seconds(plan, measured)
    if seconds is None:
        return ""
    if not plan.replayed_kernels.timed_in_steps:
        return f"{format_seconds(seconds)}, each kernel by itself"
    ratio = plan.replayed_kernels.busy_ratio
    if ratio <= BUSY_RATIO:
        return format_seconds(seconds)
    return f"{format_seconds(seconds)}; machine busy when planned, {format_seconds(seconds * ratio)}"


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
        "predicted_host_step_seconds": predicted_step_seconds(plan, measured),
        "predicted_from_whole_steps": plan.replayed_kernels.timed_in_steps,
        "predicted_busy_ratio": plan.replayed_kernels.busy_ratio,
        "measured_host_step_seconds": measured_step_seconds(epochs),
        "measured_host_own_seconds": None if fastest is None else fastest.step_own_seconds,
        "machine_was_busy": fastest is not None and _is_busy(fastest),
        "storage_problem": measured.storage_problem or None,
    }


def predicted_peak_bytes(plan: Plan) -> int:
    """Of tensor memory while the plan is replayed: all that its layout takes, and the page buffer."""
    return plan.held_bytes + plan.page_buffer_bytes


def predicted_step_seconds(plan: Plan, measured: Measured) -> float | None:
    """Of the ops as measured by the machine that planned, and of the transfers to the storage here.

    ``None`` where ops, or the storage that the plan pages to, could not be measured.
    """
    if measured.storage_problem:
        return None
    parts = [
        host_step_seconds(part.problem, part.replayed_kernels, part.schedule, measured.storage)
        for part, _ in plan.runs
    ]
    if any(seconds is None for seconds in parts):
        return None
    times = (runs for _, runs in plan.runs)
    return sum(seconds * runs for seconds, runs in zip(parts, times, strict=True) if seconds is not None)


def measured_step_seconds(epochs: Sequence[Epoch]) -> float | None:
    """The median step of the fastest epoch: the one that was disturbed least."""
    fastest = _fastest(epochs)
    return None if fastest is None else fastest.step_seconds


def _bytes(size_bytes: int | None) -> str:
    return "measured from the second epoch on" if size_bytes is None else format_bytes(size_bytes)
