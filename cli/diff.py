"""``poet diff``: what changed from one plan to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import HtmlOption, JsonOption, command_line

EXAMPLES = (
    "poet diff before.poet after.poet",
    "poet diff before.poet after.poet --tensors",
    "poet diff before.poet after.poet --html diff.html",
    "poet diff before.poet after.poet --json -",
)


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
