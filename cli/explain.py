"""``poet explain``: what a plan does with each tensor and op, and what binds."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import JsonOption, PlanArgument

EXAMPLES = (
    "poet explain plan.poet",
    "poet explain plan.poet --tensors --ops",
    "poet explain plan.poet --json -",
)


def explain(
    plan_file: PlanArgument,
    tensors: Annotated[bool, typer.Option("--tensors", help="List kept tensors too.")] = False,
    ops: Annotated[bool, typer.Option("--ops", help="List every op with its runs and cost.")] = False,
    json_file: JsonOption = None,
) -> None:
    """Show what a plan keeps, recomputes and pages, memory over time, and what binds."""
    from poet.plan_file import read_plan
    from poet.report.data import plan_data
    from poet.report.plan import plan_report

    from .output import answer

    plan = read_plan(plan_file)
    report = plan_report(plan, every_tensor=tensors, every_op=ops)
    answer(report, lambda: plan_data(plan), json_file=json_file)
