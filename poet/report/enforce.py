"""The enforced run, as text and as data: both halves side by side, and the verdict on each."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from poet.enforce import EnforcedRun, Half
from poet.report.columns import columns
from poet.units import format_bytes


def enforced_report(run: EnforcedRun) -> RenderableType:
    """The sizes that were measured and the two verdicts."""
    memory = () if run.plan.memory is None else (f"memory of the plan's steps: {run.plan.memory}",)
    return Group(_sizes(run), *memory, "", plan_verdict(run), plain_verdict(run))


def enforced_data(run: EnforcedRun) -> dict[str, Any]:
    """The same as JSON-ready objects."""
    return {**asdict(run), "plan_verdict": plan_verdict(run), "plain_verdict": plain_verdict(run)}


def plan_verdict(run: EnforcedRun) -> str:
    """What the plan's child did inside its limit."""
    return f"the plan made {run.plan.steps} steps inside idle + {format_bytes(run.budget_bytes)}"


def plain_verdict(run: EnforcedRun) -> str:
    """What became of plain PyTorch inside the same limit."""
    plain, budget = run.plain, format_bytes(run.budget_bytes)
    if plain is None:
        return f"plain PyTorch was not tried: {run.why_not_plain}"
    if plain.refusal is None:
        return f"plain PyTorch made {plain.steps} steps inside idle + {budget} too: this budget needs no plan"
    over = ""
    if plain.peak_bytes is not None and plain.peak_bytes > run.budget_bytes:
        over = f": it needs {format_bytes(plain.peak_bytes - run.budget_bytes)} more"
    return f"plain PyTorch was refused in step {plain.steps + 1} at idle + {budget}{over} ({plain.refusal})"


def _sizes(run: EnforcedRun) -> Table:
    table = columns("measured", "plan", "plain PyTorch", left=1)
    plain = run.plain

    def row(label: str, plan_bytes: int | None, plain_bytes: int | None) -> None:
        table.add_row(
            label, *("" if size is None else format_bytes(size) for size in (plan_bytes, plain_bytes))
        )

    def limit(half: Half | None) -> int | None:
        return None if half is None else half.idle_bytes + run.budget_bytes

    row("idle, libraries loaded", run.plan.idle_bytes, plain.idle_bytes if plain else None)
    row("limit of the process", limit(run.plan), limit(plain))
    row("tensors at the peak", run.plan.peak_bytes, plain.peak_bytes if plain else None)
    return table
