"""The options of ``poet run`` as one record."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poet.errors import InputError
from poet.plans.run_request import SCHEDULES, RateSchedule, RunRequest
from poet.util.units import parse_bytes, parse_joules, parse_seconds

from .options import JsonOption, ModuleOption, PageFileOption, PlanArgument, option, threads_callback, whole

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
    data: Path = option(
        "Samples: .npz, .safetensors or a folder of .npy (`inputs` or the model's name, `targets`), "
        ".csv, a folder of images per class, or module:function of an iterable, which is your own code.",
        "FILE",
        default=MISSING,
    )
    epochs: int = option("Passes over the data.", default=1, min=1, callback=whole)
    page_file: PageFileOption = None
    lr: float | None = option("Learning rate in place of the plan's.")
    schedule: str | None = option(
        f"Of the learning rate: {', '.join(SCHEDULES)}; cosine:warmup=100,steps=5000.", "NAME"
    )
    seed: int | None = option(
        "Of the samples' order and of dropout; default: 0, or that of what is resumed.", callback=whole
    )
    threads: int | None = option(
        "For torch; default: as many as the plan was measured with, else all cores.",
        min=1,
        callback=threads_callback,
    )
    resume: Path | None = option("Go on from what an earlier run saved: same order, same dropout.", "FILE")
    output: Path | None = option("Save the trained state here.", "FILE", "-o", "--output")
    save_every: int | None = option("Save every so many steps as well.", "STEPS", min=1, callback=whole)
    save_seconds: str | None = option("Save whenever so much time has passed as well, e.g. 60s.", "TIME")
    keep_previous: bool = option(
        "Keep the state saved before the last as well, as FILE.previous.", default=False
    )
    stop_after_joules: str | None = option(
        "End when another step would take more, by the plan: 5Wh.", "ENERGY"
    )
    stop_after_seconds: str | None = option("End when another step would last longer: 3600s.", "TIME")
    stop_after_written: str | None = option(
        "End when another step would write more to storage: 1GiB.", "SIZE"
    )
    watch_memory: bool = option(
        "Go to another budget of the plan when the system has less memory.",
        default=False,
    )
    validate: Path | None = option("Samples to evaluate after each epoch, as --data has them.", "FILE")
    metric: list[str] | None = option(
        "Of --validate: accuracy, top-5, mae, iou; repeatable. Default: by the targets."
    )
    patience: int | None = option("End after N epochs with no better loss.", "N", min=1, callback=whole)
    best: Path | None = option("Keep here the state of the epoch with the best loss.", "FILE")
    arena: ArenaChoice = option(
        "Place steps in one arena where that is possible, require it, or use the heap.",
        default=ArenaChoice.AUTO,
    )
    allow_nan: bool = option(
        "Take targets that are not finite, and go on where the loss is not.",
        default=False,
    )
    allow_over_budget: AllowOverBudgetOption = False
    enforce: bool = option(
        "Train in a process that the kernel limits to its idle size and the budget.",
        default=False,
    )
    module: ModuleOption = None
    add_to: Path | None = option(
        "Afterwards make some steps more, and add what their ops took to this raw file of "
        "`poet devices calibrate`.",
        "RAW",
    )
    c_library: Path | None = option(
        "Train nothing, and hold a library of the exported step against PyTorch on the first "
        "batches of the data. To load it runs its code: give none but your own.",
        "FILE.so",
    )
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
        joules, seconds, written = self.stop_after_joules, self.stop_after_seconds, self.stop_after_written
        return RunRequest(
            plan=str(self.plan_file),
            budget_bytes=0 if plan is None else _budget_bytes(plan),
            seed=0 if self.seed is None and self.resume is None else self.seed,
            threads=self.threads if plan is None or self.threads else plan.replayed_kernels.threads,
            learning_rate=self.lr,
            save_seconds=None if self.save_seconds is None else parse_seconds(self.save_seconds),
            arena={ArenaChoice.AUTO: True, ArenaChoice.HEAP: False}.get(self.arena, self.arena.value),
            metrics=tuple(self.metric or ()),
            stop_joules=None if joules is None else parse_joules(joules),
            stop_seconds=None if seconds is None else parse_seconds(seconds),
            stop_written_bytes=None if written is None else parse_bytes(written),
            **{name: _plain(getattr(self, name)) for name in _AS_GIVEN},
        )


_AS_GIVEN = (
    "data", "epochs", "page_file", "resume", "output", "save_every", "allow_nan", "validate", "patience",
    "best", "schedule", "keep_previous", "watch_memory", "allow_over_budget", "module",
)  # fmt: skip
"""Options that a trainer takes by the same names."""


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _budget_bytes(plan: Plan) -> int:
    """What the plan was made for; where it had no budget, what it predicts."""
    budget_bytes = plan.request.limits.ram_budget_bytes
    return plan.held_bytes + plan.page_buffer_bytes if budget_bytes is None else budget_bytes
