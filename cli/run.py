"""``poet run``: train with a plan. Loads torch and the plan, nothing that planning needs."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from .options import JsonOption, PageFileOption, PlanArgument, ThreadsOption

EXAMPLES = (
    "poet run plan.poet --data digits.npz --epochs 3 --page-file /media/card/pages",
    "poet run plan.poet --data digits.npz --epochs 3 -o trained.safetensors",
    "poet run plan.poet --data digits.npz --resume trained.safetensors -o trained.safetensors",
)


def run(
    plan_file: PlanArgument,
    data: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help=".npz with an array per input, samples first: `inputs` or the model's name, `targets`.",
        ),
    ],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.")] = 1,
    page_file: PageFileOption = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate in place of the plan's.")] = None,
    seed: Annotated[int, typer.Option(help="Of the samples' order and of dropout.")] = 0,
    threads: ThreadsOption = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Go on from what an earlier run saved.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Save the trained state here.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Train with a plan, inside its RAM, paging to a file.

    The trained state is a safetensors file: parameters and module state under the module's names.
    Ctrl-C ends the training and saves what the last whole step left.
    """
    import torch

    from poet.fit import Epoch, load_data
    from poet.fit import epochs as run_epochs
    from poet.report.run import epoch_line, run_data, run_report
    from poet.runtime import Trainer

    from .output import answer, progress_bar
    from .stop import Stop, Stopped

    if threads is not None:
        torch.set_num_threads(threads)
    done: list[Epoch] = []
    with (
        Trainer.open(plan_file, page_file=page_file, learning_rate=lr, seed=seed, resume=resume) as trainer,
        Stop() as stop,
    ):
        samples = load_data(data, trainer.plan)
        with progress_bar(epochs * samples.steps) as show, contextlib.suppress(Stopped):
            for epoch in run_epochs(trainer, samples, count=epochs, seed=seed, watch=stop.after(show)):
                done.append(epoch)
                typer.echo(epoch_line(epoch), err=str(json_file) == "-")
        if output is not None:
            trainer.save(output)
        if stop.is_wanted:
            raise KeyboardInterrupt
        answer(run_report(trainer.plan, done), lambda: run_data(trainer.plan, done), json_file=json_file)
