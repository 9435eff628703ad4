"""What runs gave, as text and as data: training, the enforced run, and comparisons with plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from poet.plans.run_request import BUSY_RATIO, Epoch, Validation
from poet.plans.training_plan import Plan
from poet.problem.rounded import rounding_words
from poet.report import listed
from poet.util import codec
from poet.util.units import format_bytes, format_seconds, format_share

if TYPE_CHECKING:
    from poet.c99.library_check import LibraryReport
    from poet.enforce import EnforcedRun, Half
    from poet.verification import VerifyReport


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
    peak_bytes = measured.peak_ram_bytes
    peak = "measured from the second epoch on" if peak_bytes is None else format_bytes(peak_bytes)
    rows = [
        (
            "peak of tensor memory",
            format_bytes(predicted_peak_bytes(plan)),
            peak + _above_budget(plan, peak_bytes),
        ),
        ("time on this machine", "", _measured_time(epochs)),
        (f"time on {plan.device.name}", format_seconds(plan.step_seconds), ""),
    ]
    table = listed(rows, "per step", "predicted", "measured here")
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


# --- the enforced run --------------------------------------------------------------------------


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
    def limit(half: Half) -> int:
        return half.idle_bytes + run.budget_bytes

    def of(label: str, size: Callable[[Half], int | None]) -> tuple[str, ...]:
        sizes = [None if half is None else size(half) for half in (run.plan, run.plain)]
        return label, *("" if each is None else format_bytes(each) for each in sizes)

    rows = (
        of("idle, libraries loaded", lambda half: half.idle_bytes),
        of("limit of the process", limit),
        of("tensors at the peak", lambda half: half.peak_bytes),
    )
    return listed(rows, "measured", "plan", "plain PyTorch")


# --- comparisons with plain PyTorch ------------------------------------------------------------


def verify_report(report: VerifyReport) -> Group:
    """One line per number of threads, and the answer."""
    lines = [
        f"{report.steps} steps, each with {report.recomputed_runs} recomputed runs "
        f"and {report.page_ins} page-ins, with the plan and in plain PyTorch"
    ]
    if report.shapes:
        lines.append(f"then one step of each of {report.shapes} other shapes")
    if report.budgets:
        lines.append(f"then one step inside each of {report.budgets} smaller budgets, with all beside it")
    rounding = report.rounding
    for comparison in report.comparisons:
        alike = (
            "all equal by torch.equal" if rounding is None else "none differs but by the rounding of pages"
        )
        found = comparison.difference or alike
        lines.append(f"{comparison.threads} thread(s): {comparison.tensors} tensors compared, {found}")
    answer, asked = "yes" if report else "no", "bitwise equal to plain PyTorch"
    if rounding is not None:
        name, error = rounding.farthest
        lines += [
            f"not exact: tensors are rounded in storage: {rounding_words(rounding.forms)}",
            f"rounding of pages: at most {format_share(rounding.page_error)} of that",
            f"gradients: off by {format_share(rounding.gradient_error)} of their norm in one step; {name} by "
            f"{format_share(error)} of its own",
        ]
        asked = "within the rounding of its pages"
    return Group(*map(Text, lines), Text(f"{asked}: {answer}", style="bold"))


def verify_data(report: VerifyReport) -> dict[str, Any]:
    """The same as JSON-ready objects."""
    return {"exact": report.exact, **asdict(report), "rounding": codec.encode(report.rounding)}


def library_report(report: LibraryReport) -> Group:
    """Of a shared library of C: one line per step, and the answer."""
    lines = [f"{len(report.steps)} steps in C and in PyTorch, each from PyTorch's state"]
    for number, step in enumerate(report.steps, 1):
        lines.append(
            f"step {number}: loss {step.loss:.9g}, in PyTorch {step.torch_loss:.9g}, in float64 "
            f"{step.exact_loss:.9g}; of {report.tensors} tensors and the loss {step.farthest} is farthest "
            f"from float64, {step.distance:.0%} of what is allowed"
        )
    answer = "yes" if report.is_right else "no"
    words = f"within 8 times PyTorch's own float32 error: {answer}"
    return Group(*map(Text, lines), Text(words, style="bold"))


def library_data(report: LibraryReport) -> dict[str, Any]:
    """The same as JSON-ready objects."""
    return {
        "right": report.is_right,
        "tensors": report.tensors,
        "steps": [
            {
                "loss": item.loss,
                "torch_loss": item.torch_loss,
                "float64_loss": item.exact_loss,
                "share_of_allowed": item.distance,
                "farthest": item.farthest,
            }
            for item in report.steps
        ],
    }
