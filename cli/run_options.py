"""The options of ``poet run``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from poet.plans.rate_schedule import SCHEDULES

from .options import threads_callback, whole


class ArenaChoice(StrEnum):
    """Where the memory of steps comes from, by the name it has on the command line."""

    AUTO = "auto"
    REQUIRE = "require"
    HEAP = "heap"


DataOption = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="Samples: .npz, .safetensors or a folder of .npy (`inputs` or the model's name, `targets`), "
        ".csv, a folder of images per class, or module:function of an iterable, which is your own code.",
    ),
]

EpochsOption = Annotated[int, typer.Option(min=1, help="Passes over the data.", callback=whole)]

LrOption = Annotated[float | None, typer.Option(help="Learning rate in place of the plan's.")]

ScheduleOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Of the learning rate: {', '.join(SCHEDULES)}; cosine:warmup=100,steps=5000.",
    ),
]

SeedOption = Annotated[
    int | None,
    typer.Option(
        help="Of the samples' order and of dropout; default: 0, or that of what is resumed.",
        callback=whole,
    ),
]

ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="For torch; default: as many as the plan was measured with, else all cores.",
        callback=threads_callback,
    ),
]

ResumeOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Go on from what an earlier run saved: same order, same dropout."),
]

OutputOption = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Save the trained state here.")
]

SaveEveryOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="STEPS", help="Save every so many steps as well.", callback=whole),
]

SaveSecondsOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Save whenever so much time has passed as well, e.g. 60s."),
]

KeepPreviousOption = Annotated[
    bool,
    typer.Option("--keep-previous", help="Keep the state saved before the last as well, as FILE.previous."),
]

StopAfterJoulesOption = Annotated[
    str | None,
    typer.Option(metavar="ENERGY", help="End when another step would take more, by the plan: 5Wh."),
]

StopAfterSecondsOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="End when another step would last longer: 3600s.")
]

StopAfterWrittenOption = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="End when another step would write more to storage: 1GiB."),
]

WatchMemoryOption = Annotated[
    bool,
    typer.Option("--watch-memory", help="Go to another budget of the plan when the system has less memory."),
]

ValidateOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Samples to evaluate after each epoch, as --data has them."),
]

MetricOption = Annotated[
    list[str] | None,
    typer.Option(help="Of --validate: accuracy, top-5, mae, iou; repeatable. Default: by the targets."),
]

PatienceOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="End after N epochs with no better loss.", callback=whole),
]

BestOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Keep here the state of the epoch with the best loss."),
]

ArenaOption = Annotated[
    ArenaChoice,
    typer.Option(help="Place steps in one arena where that is possible, require it, or use the heap."),
]

AllowNanOption = Annotated[
    bool,
    typer.Option("--allow-nan", help="Take targets that are not finite, and go on where the loss is not."),
]

AllowOverBudgetOption = Annotated[
    bool,
    typer.Option("--allow-over-budget", help="Go on where steps hold more memory than the plan's budget."),
]

AddToOption = Annotated[
    Path | None,
    typer.Option(
        metavar="RAW",
        help="Afterwards make some steps more, and add what their ops took to this raw file of "
        "`poet devices calibrate`.",
    ),
]

EnforceOption = Annotated[
    bool,
    typer.Option(
        "--enforce", help="Train in a process that the kernel limits to its idle size and the budget."
    ),
]

CLibraryOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.so",
        help="Train nothing, and hold a library of the exported step against PyTorch on the first "
        "batches of the data. To load it runs its code: give none but your own.",
    ),
]
