"""``poet run``: train with a plan. Loads torch and the plan, nothing that planning needs."""

from __future__ import annotations

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
    It is saved after each epoch. Ctrl-C ends the training after the step under way.
    """
    import torch

    from poet.report.run import epoch_line, run_data, run_report
    from poet.runtime import Trainer
    from poet.runtime.fit import Epoch, fit, load_samples

    from .output import answer

    if threads is not None:
        torch.set_num_threads(threads)
    done: list[Epoch] = []
    peak_bytes: int | None = None
    with Trainer.open(plan_file, page_file=page_file, learning_rate=lr, seed=seed, resume=resume) as trainer:
        training = fit(trainer, load_samples(data, trainer.plan), epochs=epochs, seed=seed)
        while True:
            with trainer.peak_meter() as meter:
                epoch = next(training, None)
            if epoch is None:
                break
            if done:  # during the first epoch libraries load their code, which is no tensor memory
                peak_bytes = max(peak_bytes or 0, meter.peak.bytes or 0) or None
            done.append(epoch)
            typer.echo(epoch_line(epoch), err=str(json_file) == "-")
            if output is not None:
                trainer.save(output)
        plan = trainer.plan
    answer(run_report(plan, done, peak_bytes), lambda: run_data(plan, done, peak_bytes), json_file=json_file)
    if done and not done[-1].is_complete:
        raise KeyboardInterrupt
