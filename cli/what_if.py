"""``poet what-if``: a sweep over devices, RAM, deadlines, batches and optimizers, and what it means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poet.loss import DEFAULT_LOSS
from poet.strips import Gradients

from .log import check_log, listening
from .options import (
    GradientsOption,
    Home,
    JsonOption,
    LogOption,
    LossOption,
    NoPagingOption,
    NoRecomputeOption,
    ThreadsOption,
    TrainOption,
    VerboseOption,
    command_line,
    read_time_limit,
    threads_callback,
    whole,
)

EXAMPLES = (
    "poet what-if model.onnx --device rpi4b,nrf52840 --ram 64MiB..512MiB:8 --deadline 1.0x..2.0x",
    "poet what-if model.onnx --device rpi4b --batch 1,4,16 --battery 3000mAh@3.7V -o report.html",
    "poet what-if problem.json --ram min..keep:20 -o points.csv",
)


def what_if(
    context: typer.Context,
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="An ONNX model, a saved plan or a poet-problem file (.json)."),
    ],
    device: Annotated[
        str, typer.Option(metavar="NAMES", help="Profiles by name or file, with commas between.")
    ] = "",
    ram: Annotated[
        str,
        typer.Option(metavar="SIZES", help="64MiB,96MiB or 64MiB..512MiB:8; min and keep are sizes too."),
    ] = "min..keep",
    deadline: Annotated[
        str | None, typer.Option(metavar="TIMES", help="1.0x..2.0x, 20ms or none, with commas between.")
    ] = None,
    batch: Annotated[str | None, typer.Option(metavar="SIZES", help="Batch sizes, e.g. 1,4,16.")] = None,
    bind: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZES", help="Sizes of a dynamic dimension, e.g. L=64,128; repeatable."),
    ] = None,
    optimizer: Annotated[str, typer.Option(metavar="NAMES", help="sgd, momentum, adamw.")] = "sgd",
    micro: Annotated[
        str,
        typer.Option(
            metavar="NUMBERS",
            help="Train each batch in so many micro-batches: 1,4 or 4:sum, or auto: all that divide it.",
        ),
    ] = "1",
    loss: LossOption = None,
    train: TrainOption = None,
    home: Annotated[
        Home, typer.Option(help="Where parameters and optimizer state are between steps; auto: as planned.")
    ] = Home.RAM,
    gradients: GradientsOption = None,
    no_recompute: NoRecomputeOption = False,
    no_paging: NoPagingOption = False,
    energy_budget: Annotated[
        str | None, typer.Option(metavar="ENERGY", help="2J/step, 50J/session or 500J/day.")
    ] = None,
    battery: Annotated[str | None, typer.Option(metavar="CHARGE", help="3000mAh@3.7V or 11Wh.")] = None,
    steps_per_session: Annotated[
        int, typer.Option(min=1, help="Steps each time the device trains.", callback=whole)
    ] = 100,
    sessions_per_day: Annotated[float, typer.Option(help="How often it trains.")] = 1.0,
    samples: Annotated[int | None, typer.Option(min=1, help="Of one epoch.", callback=whole)] = None,
    grid: Annotated[str | None, typer.Option(metavar="CARBON", help="300g/kWh.")] = None,
    largest: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Find the largest batch, sequence, resolution or H+W; repeatable."),
    ] = None,
    fetch_seconds: Annotated[float | None, typer.Option(min=0, help="To read a step's input.")] = None,
    prepare_seconds: Annotated[float | None, typer.Option(min=0, help="To decode and collate it.")] = None,
    data_bytes: Annotated[str | None, typer.Option(metavar="SIZE", help="Of a step's input.")] = None,
    dataset_bytes: Annotated[str | None, typer.Option(metavar="SIZE", help="Of one epoch's input.")] = None,
    data_cache: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What would a data cache of this size buy?")
    ] = None,
    measure_data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Measure a data file or folder: npz, npy, safetensors."),
    ] = None,
    no_marginal: Annotated[
        bool, typer.Option("--no-marginal", help="Do not ask what more RAM or faster flash would buy.")
    ] = False,
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="For one point's search.")] = "5s",
    engine: Annotated[str, typer.Option(help="As for poet solve.")] = "auto",
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes; default: all cores.", callback=threads_callback),
    ] = None,
    threads: ThreadsOption = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler, e.g. tcp://10.0.0.1:8786.")
    ] = None,
    worker_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="That one worker may take.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of answers; default: the user's cache folder.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="report.html, .json or .csv.")
    ] = None,
    json_file: JsonOption = None,
    verbose: VerboseOption = False,
    log: LogOption = None,
) -> None:
    """Ask what other devices, RAM, deadlines, batch sizes, micro-batches and optimizers would mean.

    Each point of the grid is planned with a proof or a gap. A sweep that is repeated or was interrupted
    goes on from its cache; Ctrl-C reports what is there.

    -v and --log tell of each point when its search was asked for and how it ended. What a search does
    meanwhile is seen with --jobs 1 alone: workers are processes of their own, and their lines stay there.
    """
    from poet.whatif.run import what_if as ask

    from . import sweep

    reads = sweep.files_read(device, measure_data, cache)
    check_log(log)
    sweep.check_output(output, json_file, log, model=model, reads=reads)
    daily = sweep.Daily(energy_budget, battery, steps_per_session, sessions_per_day, samples, grid)
    data = sweep.Data(fetch_seconds, prepare_seconds, data_bytes, dataset_bytes, data_cache, measure_data)
    with listening(verbose=verbose, file=log), sweep.sweep_progress(quiet=verbose) as report:
        result = ask(
            model,
            device=device or (),
            ram=ram,
            deadline=deadline,
            batch=batch,
            bind=bind or (),
            optimizer=optimizer,
            micro=micro,
            loss=loss or DEFAULT_LOSS,
            train=train,
            home=home.place,
            gradients=(gradients or Gradients.STREAM).value,
            recompute=not no_recompute,
            paging=not no_paging,
            duty=daily.duty(),
            data=data.supply(batch),
            largest=largest or (),
            marginal=not no_marginal,
            options=sweep.options_of(read_time_limit(time_limit), engine, threads),
            jobs=jobs,
            cluster=cluster,
            worker_memory_bytes=sweep.worker_memory(worker_memory),
            cache=cache or "",
            report=report,
            command=command_line(context),
        )
    if output is not None:
        sweep.write_result(result, output)
    sweep.show_result(result, json_file)
    if not result.complete:
        raise KeyboardInterrupt
