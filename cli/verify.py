"""``poet verify``: some steps with the plan and in plain PyTorch, compared bit for bit."""

from __future__ import annotations

from typing import Annotated

import typer

from .options import JsonOption, PageFileOption, PlanArgument, threads_callback, whole

EXAMPLES = ("poet verify plan.poet", "poet verify plan.poet --steps 5 --threads 1 --threads 4")


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
    json_file: JsonOption = None,
) -> None:
    """Prove that a plan gives the bits of plain PyTorch.

    Loss, predictions, every gradient, every updated parameter, module state and optimizer state are
    compared by torch.equal after each step. Exit code 1 if a bit differs.
    """
    from poet.report.verify import verify_data, verify_report
    from poet.verification import verify as compare

    from .output import answer, check_files

    check_files({"--json": json_file}, reads={"PLAN": plan_file}, page_file=page_file)
    report = compare(plan_file, steps=steps, threads=tuple(threads or (1, 2)), seed=seed, page_file=page_file)
    answer(verify_report(report), lambda: verify_data(report), json_file=json_file)
    report.require()
