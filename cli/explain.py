"""``poet explain``: what a plan does with each tensor and op; ``poet diff``: what changed between two."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import HtmlOption, JsonOption, PlanArgument, command_line

EXAMPLES = (
    "poet explain plan.poet",
    "poet explain plan.poet --tensors --ops",
    "poet explain plan.poet --html plan.html",
    "poet explain plan.poet --json -",
)
DIFF_EXAMPLES = (
    "poet diff before.poet after.poet",
    "poet diff before.poet after.poet --tensors",
    "poet diff before.poet after.poet --html diff.html",
    "poet diff before.poet after.poet --json -",
)


def explain(
    context: typer.Context,
    plan_file: PlanArgument,
    tensors: Annotated[bool, typer.Option("--tensors", help="List kept tensors too.")] = False,
    ops: Annotated[bool, typer.Option("--ops", help="List every op with its runs and cost.")] = False,
    html_file: HtmlOption = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE", help="The page's source of device figures, where the plan's is a file."
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Show what a plan keeps, recomputes and pages, memory over time, and what binds."""
    from poet.devices.load import load_profile, profile_path
    from poet.plans.plan_file import read_plan
    from poet.report.plan import plan_report
    from poet.report.plan_data import plan_data

    from .output import answer, check_files, write_text

    reads = {"PLAN": plan_file, "--device": None if device is None else profile_path(device)}
    check_files({"--html": html_file, "--json": json_file}, reads=reads)
    plan = read_plan(plan_file)
    if html_file is not None:
        from poet.report.html import plan_page

        profile = None if device is None else load_profile(device)
        command = command_line(context)
        write_text(html_file, plan_page(plan, command=command, profile=profile))
    report = plan_report(plan, every_tensor=tensors, every_op=ops)
    answer(report, lambda: plan_data(plan), json_file=json_file)


def diff(
    context: typer.Context,
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A plan file.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The plan file to compare it with.")],
    tensors: Annotated[bool, typer.Option("--tensors", help="List each tensor that changed.")] = False,
    html_file: HtmlOption = None,
    json_file: JsonOption = None,
) -> None:
    """Show what changed in budgets, energy, time and RAM, and which tensors are treated differently."""
    from poet.plans.plan_file import read_plan
    from poet.report.diff import diff_data, diff_plans, diff_report

    from .output import answer, check_files, write_text

    check_files({"--html": html_file, "--json": json_file}, reads={"BEFORE": before, "AFTER": after})
    names = (before.name, after.name) if before.name != after.name else (str(before), str(after))
    difference = diff_plans(read_plan(before), read_plan(after), names=names)
    if html_file is not None:
        from poet.report.html import diff_page

        command = command_line(context)
        write_text(html_file, diff_page(difference, command=command))
    answer(diff_report(difference, every_tensor=tensors), lambda: diff_data(difference), json_file=json_file)
