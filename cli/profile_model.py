"""``poet devices profile MODEL``: the times of a model's own ops on this machine, kept for its profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poet.util.streams import say

from .options import (
    BindOption,
    LossOption,
    TrainOption,
    optimizer_callback,
    read_bindings,
    threads_callback,
    whole,
    with_batch,
)


def profile(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX model.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The raw file; one of this machine that is there already is added to.",
        ),
    ],
    bind: BindOption = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Short for --bind N=.", callback=whole)] = None,
    loss: LossOption = None,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="As of `poet solve`.", callback=optimizer_callback)
    ] = "sgd",
    train: TrainOption = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="For torch; repeatable; default: all cores, and one.", callback=threads_callback
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=2, max=100, help="How often whole steps are measured.")] = 3,
) -> None:
    """Measure each op of a model's training step on this machine, for `poet devices fit`.

    The profile then has a row per op, shape and element type, which plans use for every model that has such
    an op; the others are extrapolated from their classes, and plans say which.
    """
    from poet.report.device import profiled_lines

    from .output import check_files

    check_files({"-o": output}, model=model)
    import torch

    from poet.calibration.step_times import add_to, begun, steps_of_model
    from poet.devices.machine import Machine
    from poet.frontend.onnx.importer import load_onnx
    from poet.frontend.trace import trace_training_step
    from poet.ir.loss import DEFAULT_LOSS
    from poet.ir.optimizer import OptimizerSpec
    from poet.util.reading import printable_name

    machine = Machine()
    sizes = with_batch(read_bindings(bind), batch)
    begun(output, machine)
    imported = load_onnx(model, bind=sizes)
    step = trace_training_step(
        imported.module,
        imported.example_inputs(),
        loss=loss or DEFAULT_LOSS,
        optimizer=OptimizerSpec.parse(optimizer),
        train=train,
        name=printable_name(model),
        gradients="keep",
    )
    counts = tuple(dict.fromkeys(threads or (torch.get_num_threads(), 1)))
    steps = steps_of_model(step, name=step.graph.name, threads=counts, repeats=repeats, machine=machine)
    add_to(output, machine, steps)
    for line in profiled_lines(steps, str(output)):
        say(line)
