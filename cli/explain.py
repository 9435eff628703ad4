"""``poet explain``, ``diff`` and ``verify``: what a plan does, what changed between two, and proof."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from poet.errors import InputError

from .options import (
    AllowOverBudgetOption,
    HtmlOption,
    JsonOption,
    ModuleOption,
    PageFileOption,
    PlanArgument,
    command_line,
    threads_callback,
    whole,
)
from .output import answer, check_files, write_text

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
VERIFY_EXAMPLES = (
    "poet verify plan.poet",
    "poet verify plan.poet --steps 5 --threads 1 --threads 4",
    "poet verify plan.poet --module nets:small_net",
    "poet verify plan.poet --c-library step/build/libpoet_step.so --data digits.npz",
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
    from poet.report.plan import plan_data, plan_report

    reads = {"PLAN": plan_file, "--device": None if device is None else profile_path(device)}
    check_files({"--html": html_file, "--json": json_file}, reads=reads)
    plan = read_plan(plan_file)
    if html_file is not None:
        from poet.report.html.plan_page import plan_page

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

    check_files({"--html": html_file, "--json": json_file}, reads={"BEFORE": before, "AFTER": after})
    names = (before.name, after.name) if before.name != after.name else (str(before), str(after))
    difference = diff_plans(read_plan(before), read_plan(after), names=names)
    if html_file is not None:
        from poet.report.diff import diff_page

        command = command_line(context)
        write_text(html_file, diff_page(difference, command=command))
    answer(diff_report(difference, every_tensor=tensors), lambda: diff_data(difference), json_file=json_file)


def verify(
    plan_file: PlanArgument,
    steps: Annotated[
        int, typer.Option(min=1, help="Training steps to make on each side.", callback=whole)
    ] = 3,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Number of threads; repeatable; default 1 and 2.", callback=threads_callback
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random batches and of dropout.", callback=whole)] = 0,
    page_file: PageFileOption = None,
    c_library: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.so",
            help="Hold the library that `make lib` builds in a folder of `poet export c` against PyTorch. "
            "To load it runs its code: give none but your own.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Samples to train on, as for `poet run`; default: random ones."),
    ] = None,
    module: ModuleOption = None,
    allow_over_budget: AllowOverBudgetOption = False,
    json_file: JsonOption = None,
) -> None:
    """Prove that a plan gives the bits of plain PyTorch, or what rounded pages make of them.

    Loss, predictions, every gradient, every updated parameter, module state and optimizer state are
    compared by torch.equal after each step. Exit code 1 if a bit differs, or if a step holds more than the
    budget with as many threads as the plan was measured with.

    A plan that rounds pages (--allow) is not exact: its schedule is compared so with whole pages, what it
    rounds with torch's own rounding, and how far its gradients are off is measured.

    With --c-library a step in C is compared, whose bits are not PyTorch's: each step begins with
    PyTorch's state, and what it changes may differ from float64 by 8 times PyTorch's own error.
    """
    if c_library is not None:
        if threads:
            raise InputError("--threads is not of --c-library, whose steps have one")
        if module is not None:
            raise InputError("--module is not of --c-library, which needs no module")
        _verify_library(plan_file, c_library, steps, seed, data, page_file, json_file)
        return
    from poet.frontend.plain import own_module
    from poet.report.run import verify_data, verify_report
    from poet.verification import verify as compare

    check_files({"--json": json_file}, reads={"PLAN": plan_file, "--data": data}, page_file=page_file)
    own: dict[str, Any] = {}
    if module is not None:
        own["module"], own["loss"] = own_module(module)
    report = compare(
        plan_file,
        **own,
        data=data,
        steps=steps,
        threads=tuple(threads or (1, 2)),
        seed=seed,
        page_file=page_file,
        allow_over_budget=allow_over_budget,
    )
    answer(verify_report(report), lambda: verify_data(report), json_file=json_file)
    report.require()


def _verify_library(
    plan_file: Path,
    c_library: Path,
    steps: int,
    seed: int,
    data: Path | None,
    page_file: Path | None,
    json_file: Path | None,
) -> None:
    """The same for a shared library of C."""
    from poet.c99.library_check import check_library
    from poet.report.run import library_data, library_report

    reads = {"PLAN": plan_file, "--c-library": c_library, "--data": data}
    check_files({"--json": json_file}, reads=reads, page_file=page_file)
    report = check_library(plan_file, c_library, steps=steps, seed=seed, data=data, page_file=page_file)
    answer(library_report(report), lambda: library_data(report), json_file=json_file)
    report.require()
