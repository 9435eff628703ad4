"""What a comparison with plain PyTorch gave, as text and as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

if TYPE_CHECKING:
    from poet.c99.library_check import LibraryReport
    from poet.verification import VerifyReport


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
    for comparison in report.comparisons:
        found = comparison.difference or "all equal by torch.equal"
        lines.append(f"{comparison.threads} thread(s): {comparison.tensors} tensors compared, {found}")
    answer = "yes" if report.exact else "no"
    return Group(*map(Text, lines), Text(f"bitwise equal to plain PyTorch: {answer}", style="bold"))


def verify_data(report: VerifyReport) -> dict[str, Any]:
    """The same as JSON-ready objects."""
    return {
        "exact": report.exact,
        "steps": report.steps,
        "shapes": report.shapes,
        "budgets": report.budgets,
        "recomputed_runs": report.recomputed_runs,
        "page_ins": report.page_ins,
        "comparisons": [
            {"threads": item.threads, "tensors": item.tensors, "difference": item.difference}
            for item in report.comparisons
        ],
    }


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
