"""The options of ``poet run`` as one record."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poet.errors import InputError
from poet.plans.rate_schedule import SCHEDULES, RateSchedule
from poet.plans.run_request import RunRequest
from poet.units import parse_bytes, parse_joules, parse_seconds

from .options import JsonOption, ModuleOption, PageFileOption, PlanArgument, threads_callback, whole

if TYPE_CHECKING:
    from poet.plans.training_plan import Plan


class ArenaChoice(StrEnum):
    """Where the memory of steps comes from, by the name it has on the command line."""

    AUTO = "auto"
    REQUIRE = "require"
    HEAP = "heap"


AllowOverBudgetOption = Annotated[
    bool,
    typer.Option("--allow-over-budget", help="Go on where steps hold more memory than the plan's budget."),
]


@dataclass(frozen=True, slots=True)
class RunAsk:
    """What ``poet run`` is asked: a field for each option, in the order of the help."""

    plan_file: PlanArgument
    data: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Samples: .npz, .safetensors or a folder of .npy (`inputs` or the model's name, `targets`), "
            ".csv, a folder of images per class, or module:function of an iterable, which is your own code.",
        ),
    ]
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the data.", callback=whole)] = 1
    page_file: PageFileOption = None
    lr: Annotated[float | None, typer.Option(help="Learning rate in place of the plan's.")] = None
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Of the learning rate: {', '.join(SCHEDULES)}; cosine:warmup=100,steps=5000.",
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of the samples' order and of dropout; default: 0, or that of what is resumed.",
            callback=whole,
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For torch; default: as many as the plan was measured with, else all cores.",
            callback=threads_callback,
        ),
    ] = None
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Go on from what an earlier run saved: same order, same dropout."),
    ] = None
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Save the trained state here.")
    ] = None
    save_every: Annotated[
        int | None,
        typer.Option(min=1, metavar="STEPS", help="Save every so many steps as well.", callback=whole),
    ] = None
    save_seconds: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Save whenever so much time has passed as well, e.g. 60s."),
    ] = None
    keep_previous: Annotated[
        bool,
        typer.Option(
            "--keep-previous", help="Keep the state saved before the last as well, as FILE.previous."
        ),
    ] = False
    stop_after_joules: Annotated[
        str | None,
        typer.Option(metavar="ENERGY", help="End when another step would take more, by the plan: 5Wh."),
    ] = None
    stop_after_seconds: Annotated[
        str | None, typer.Option(metavar="TIME", help="End when another step would last longer: 3600s.")
    ] = None
    stop_after_written: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="End when another step would write more to storage: 1GiB."),
    ] = None
    watch_memory: Annotated[
        bool,
        typer.Option(
            "--watch-memory", help="Go to another budget of the plan when the system has less memory."
        ),
    ] = False
    validate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Samples to evaluate after each epoch, as --data has them."),
    ] = None
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Of --validate: accuracy, top-5, mae, iou; repeatable. Default: by the targets."),
    ] = None
    patience: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="End after N epochs with no better loss.", callback=whole),
    ] = None
    best: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep here the state of the epoch with the best loss."),
    ] = None
    arena: Annotated[
        ArenaChoice,
        typer.Option(help="Place steps in one arena where that is possible, require it, or use the heap."),
    ] = ArenaChoice.AUTO
    allow_nan: Annotated[
        bool,
        typer.Option(
            "--allow-nan", help="Take targets that are not finite, and go on where the loss is not."
        ),
    ] = False
    allow_over_budget: AllowOverBudgetOption = False
    enforce: Annotated[
        bool,
        typer.Option(
            "--enforce", help="Train in a process that the kernel limits to its idle size and the budget."
        ),
    ] = False
    module: ModuleOption = None
    add_to: Annotated[
        Path | None,
        typer.Option(
            metavar="RAW",
            help="Afterwards make some steps more, and add what their ops took to this raw file of "
            "`poet devices calibrate`.",
        ),
    ] = None
    c_library: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.so",
            help="Train nothing, and hold a library of the exported step against PyTorch on the first "
            "batches of the data. To load it runs its code: give none but your own.",
        ),
    ] = None
    json_file: JsonOption = None

    def check(self) -> None:
        """Do nothing if the options make sense together.

        Raises:
            InputError: one needs another, or cannot be beside one.
        """
        of_output = {
            "--save-every": self.save_every is not None,
            "--save-seconds": self.save_seconds is not None,
            "--keep-previous": self.keep_previous,
        }
        for name, given in of_output.items():
            if given and self.output is None:
                raise InputError(f"{name} needs -o FILE to save to")
        for name, value in {
            "--metric": self.metric,
            "--patience": self.patience,
            "--best": self.best,
        }.items():
            if value is not None and self.validate is None:
                raise InputError(f"{name} is of --validate FILE, samples to evaluate after each epoch")
        if self.schedule is not None:
            RateSchedule.parse(self.schedule)
        if self.module is not None and not self.enforce:
            raise InputError("--module is of --enforce, which trains it in plain PyTorch as well")
        if not self.enforce:
            return
        if self.watch_memory:
            raise InputError(
                "--watch-memory cannot be with --enforce, which holds the training to one budget"
            )
        if self.allow_over_budget:
            raise InputError(
                "--allow-over-budget cannot be with --enforce, which holds the training to its budget"
            )
        if self.add_to is not None:
            raise InputError(
                "--add-to cannot be with --enforce: the process that trains measures nothing there"
            )

    def refuse_training(self) -> None:
        """Do nothing if only what a comparison of steps takes is given.

        Raises:
            InputError: an option of training is given beside ``--c-library``.
        """
        training = {
            "-o": self.output, "--resume": self.resume, "--validate": self.validate, "--best": self.best,
            "--enforce": self.enforce, "--watch-memory": self.watch_memory, "--add-to": self.add_to,
            "--lr": self.lr is not None, "--schedule": self.schedule, "--seed": self.seed is not None,
            "--threads": self.threads, "--epochs": self.epochs > 1, "--patience": self.patience,
        }  # fmt: skip
        if given := [name for name, value in training.items() if value]:
            raise InputError(
                f"{given[0]} cannot be with --c-library, which compares steps and trains nothing"
            )

    def request(self, plan: Plan | None) -> RunRequest:
        """The same for a trainer; for a confined one with the threads and the budget of its ``plan``."""
        return RunRequest(
            plan=str(self.plan_file),
            data=str(self.data),
            budget_bytes=0 if plan is None else _budget_bytes(plan),
            epochs=self.epochs,
            seed=0 if self.seed is None and self.resume is None else self.seed,
            threads=self.threads if plan is None or self.threads else plan.replayed_kernels.threads,
            learning_rate=self.lr,
            page_file=_text(self.page_file),
            resume=_text(self.resume),
            output=_text(self.output),
            save_every=self.save_every,
            save_seconds=None if self.save_seconds is None else parse_seconds(self.save_seconds),
            arena={ArenaChoice.AUTO: True, ArenaChoice.HEAP: False}.get(self.arena, self.arena.value),
            allow_nan=self.allow_nan,
            validate=_text(self.validate),
            metrics=tuple(self.metric or ()),
            patience=self.patience,
            best=_text(self.best),
            schedule=self.schedule,
            keep_previous=self.keep_previous,
            stop_joules=None if self.stop_after_joules is None else parse_joules(self.stop_after_joules),
            stop_seconds=None if self.stop_after_seconds is None else parse_seconds(self.stop_after_seconds),
            stop_written_bytes=(
                None if self.stop_after_written is None else parse_bytes(self.stop_after_written)
            ),
            watch_memory=self.watch_memory,
            allow_over_budget=self.allow_over_budget,
            module=self.module,
        )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _budget_bytes(plan: Plan) -> int:
    """What the plan was made for; where it had no budget, what it predicts."""
    budget_bytes = plan.request.limits.ram_budget_bytes
    return plan.held_bytes + plan.page_buffer_bytes if budget_bytes is None else budget_bytes
