"""What a comparison with plain PyTorch gave, as text and as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

if TYPE_CHECKING:
    from poet.verification import VerifyReport


def verify_report(report: VerifyReport) -> Group:
    """One line per number of threads, and the answer."""
    lines = [
        f"{report.steps} steps, each with {report.recomputed_runs} recomputed runs "
        f"and {report.page_ins} page-ins, with the plan and in plain PyTorch"
    ]
    if report.shapes:
        lines.append(f"then one step of each of {report.shapes} other shapes")
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
        "recomputed_runs": report.recomputed_runs,
        "page_ins": report.page_ins,
        "comparisons": [
            {"threads": item.threads, "tensors": item.tensors, "difference": item.difference}
            for item in report.comparisons
        ],
    }
