"""``poet what-if``: a sweep over devices, RAM, deadlines, batches and optimizers, and what it means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poet.ir.loss import DEFAULT_LOSS
from poet.ir.strips import Gradients

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


_Model = Annotated[
    Path,
    typer.Argument(metavar="MODEL", help="An ONNX model, a saved plan or a poet-problem file (.json)."),
]
_Device = Annotated[str, typer.Option(metavar="NAMES", help="Profiles by name or file, with commas between.")]
_Ram = Annotated[
    str,
    typer.Option(metavar="SIZES", help="64MiB,96MiB or 64MiB..512MiB:8; min and keep are sizes too."),
]
_Deadline = Annotated[
    str | None, typer.Option(metavar="TIMES", help="1.0x..2.0x, 20ms or none, with commas between.")
]
_Batch = Annotated[str | None, typer.Option(metavar="SIZES", help="Batch sizes, e.g. 1,4,16.")]
_Bind = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=SIZES", help="Sizes of a dynamic dimension, e.g. L=64,128; repeatable."),
]
_Optimizer = Annotated[str, typer.Option(metavar="NAMES", help="sgd, momentum, adamw.")]
_Micro = Annotated[
    str,
    typer.Option(
        metavar="NUMBERS",
        help="Train each batch in so many micro-batches: 1,4 or 4:sum, or auto: all that divide it.",
    ),
]
_Home = Annotated[
    Home, typer.Option(help="Where parameters and optimizer state are between steps; auto: as planned.")
]
_EnergyBudget = Annotated[
    str | None, typer.Option(metavar="ENERGY", help="2J/step, 50J/session or 500J/day.")
]
_Battery = Annotated[str | None, typer.Option(metavar="CHARGE", help="3000mAh@3.7V or 11Wh.")]
_StepsPerSession = Annotated[
    int, typer.Option(min=1, help="Steps each time the device trains.", callback=whole)
]
_SessionsPerDay = Annotated[float, typer.Option(help="How often it trains.")]
_Samples = Annotated[int | None, typer.Option(min=1, help="Of one epoch.", callback=whole)]
_Grid = Annotated[str | None, typer.Option(metavar="CARBON", help="300g/kWh.")]
_Largest = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Find the largest batch, sequence, resolution or H+W; repeatable."),
]
_FetchSeconds = Annotated[float | None, typer.Option(min=0, help="To read a step's input.")]
_PrepareSeconds = Annotated[float | None, typer.Option(min=0, help="To decode and collate it.")]
_DataBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="Of a step's input.")]
_DatasetBytes = Annotated[str | None, typer.Option(metavar="SIZE", help="Of one epoch's input.")]
_DataCache = Annotated[
    str | None, typer.Option(metavar="SIZE", help="What would a data cache of this size buy?")
]
_MeasureData = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Measure a data file or folder: npz, npy, safetensors."),
]
_NoMarginal = Annotated[
    bool, typer.Option("--no-marginal", help="Do not ask what more RAM or faster flash would buy.")
]
_TimeLimit = Annotated[str, typer.Option(metavar="TIME", help="For one point's search.")]
_Engine = Annotated[str, typer.Option(help="As for poet solve.")]
_Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="Worker processes; default: all cores.", callback=threads_callback),
]
_Cluster = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler, e.g. tcp://10.0.0.1:8786.")
]
_WorkerMemory = Annotated[str | None, typer.Option(metavar="SIZE", help="That one worker may take.")]
_Cache = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of answers; default: the user's cache folder.")
]
_Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="report.html, .json or .csv.")
]


def what_if(
    context: typer.Context,
    model: _Model,
    device: _Device = "",
    ram: _Ram = "min..keep",
    deadline: _Deadline = None,
    batch: _Batch = None,
    bind: _Bind = None,
    optimizer: _Optimizer = "sgd",
    micro: _Micro = "1",
    loss: LossOption = None,
    train: TrainOption = None,
    home: _Home = Home.RAM,
    gradients: GradientsOption = None,
    no_recompute: NoRecomputeOption = False,
    no_paging: NoPagingOption = False,
    energy_budget: _EnergyBudget = None,
    battery: _Battery = None,
    steps_per_session: _StepsPerSession = 100,
    sessions_per_day: _SessionsPerDay = 1.0,
    samples: _Samples = None,
    grid: _Grid = None,
    largest: _Largest = None,
    fetch_seconds: _FetchSeconds = None,
    prepare_seconds: _PrepareSeconds = None,
    data_bytes: _DataBytes = None,
    dataset_bytes: _DatasetBytes = None,
    data_cache: _DataCache = None,
    measure_data: _MeasureData = None,
    no_marginal: _NoMarginal = False,
    time_limit: _TimeLimit = "5s",
    engine: _Engine = "auto",
    jobs: _Jobs = None,
    threads: ThreadsOption = None,
    cluster: _Cluster = None,
    worker_memory: _WorkerMemory = None,
    cache: _Cache = None,
    output: _Output = None,
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
    from poet.problem.solution import SolveOptions
    from poet.util.units import parse_bytes
    from poet.whatif.run import what_if as ask

    from . import sweep

    reads = sweep.files_read(device, measure_data, cache)
    check_log(log)
    sweep.check_output(output, json_file, log, model=model, reads=reads)
    duty = sweep.duty_of(energy_budget, battery, steps_per_session, sessions_per_day, samples, grid)
    options = SolveOptions(
        time_limit_seconds=read_time_limit(time_limit), engine=engine, threads=threads or 1
    )
    told = fetch_seconds, prepare_seconds, data_bytes, dataset_bytes, data_cache, measure_data
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
            duty=duty,
            data=sweep.supply_of(*told, batch=batch),
            largest=largest or (),
            marginal=not no_marginal,
            options=options,
            jobs=jobs,
            cluster=cluster,
            worker_memory_bytes=None if worker_memory is None else parse_bytes(worker_memory),
            cache=cache or "",
            report=report,
            command=command_line(context),
        )
    if output is not None:
        sweep.write_result(result, output)
    sweep.show_result(result, json_file)
    if not result.complete:
        raise KeyboardInterrupt
