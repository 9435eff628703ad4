"""``poet run``: train with a plan. Loads torch and the plan, nothing that planning needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poet.errors import InputError
from poet.plans.run_request import SCHEDULES, RateSchedule, RunRequest
from poet.util.streams import say
from poet.util.units import parse_bytes, parse_joules, parse_seconds

from .options import (
    AllowOverBudgetOption,
    JsonOption,
    ModuleOption,
    PageFileOption,
    PlanArgument,
    option,
    takes,
    threads_callback,
    whole,
)
from .output import answer, check_files

if TYPE_CHECKING:
    from poet.plans.plan_file import PlanFile
    from poet.plans.run_request import Epoch
    from poet.plans.training_plan import Plan
    from poet.runtime import Trainer
    from poet.runtime.data.samples import Samples

MOST_LIBRARY_STEPS = 20
"""Batches that a library of C is held against PyTorch on."""

EXAMPLES = (
    "poet run plan.poet --data digits.npz --epochs 3 --page-file /media/card/pages",
    "poet run plan.poet --data digits.npz --epochs 3 -o trained.safetensors",
    "poet run plan.poet --data digits.npz --resume trained.safetensors -o trained.safetensors",
    "poet run plan.poet --data digits.npz --epochs 50 --validate test.npz --patience 5 --best b.safetensors",
    "poet run plan.poet --data digits.npz --enforce",
    "poet run plan.poet --data digits.npz --c-library step/build/libpoet_step.so",
)


class ArenaChoice(StrEnum):
    """Where the memory of steps comes from, by the name it has on the command line."""

    AUTO = "auto"
    REQUIRE = "require"
    HEAP = "heap"


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


@takes(RunAsk)
def run(ask: RunAsk) -> None:
    """Train with a plan, inside its RAM, paging to a file.

    The trained state is a safetensors file: parameters and module state under the module's names.
    It is saved after each epoch. Ctrl-C ends the training after the step in flight and saves it.
    Where the loss is no longer finite, training ends and the last save is kept. Where a step holds more than
    the budget, the state is saved and training ends, exit code 1.

    After --stop-after-... --resume goes on with as much again. With --enforce plain PyTorch is then tried on
    the same model and data under the same limit. With --c-library a library that `make lib` built in a folder
    of `poet export c` makes the steps of the first batches, and so does PyTorch, each from PyTorch's state.
    """
    from poet.plans.plan_file import read_plan

    ask.check()
    reads = {
        "PLAN": ask.plan_file, "--data": ask.data, "--validate": ask.validate, "--c-library": ask.c_library,
    }  # fmt: skip
    outputs = {"-o": ask.output, "--best": ask.best, "--json": ask.json_file, "--add-to": ask.add_to}
    check_files(outputs, reads=reads, page_file=ask.page_file)
    # an earlier state may be replaced by that of the run which goes on from it, and by nothing else
    outputs = {"--json": ask.json_file, "--add-to": ask.add_to}
    check_files(outputs, reads={"--resume": ask.resume}, page_file=ask.page_file)
    if ask.c_library is not None:
        ask.refuse_training()
        _hold_library(ask, ask.c_library)
        return
    plan = read_plan(ask.plan_file) if ask.enforce else None
    request = ask.request(plan)
    if plan is not None:
        was_interrupted = _run_enforced(request, ask.json_file, _threads_remark(plan, ask.threads))
    else:
        was_interrupted = _run_here(request, ask.json_file, ask.add_to)
    if was_interrupted:
        raise KeyboardInterrupt


def _hold_library(ask: RunAsk, c_library: Path) -> None:
    """Make a step of each of the first batches in C and in PyTorch; nothing is trained or saved.

    Raises:
        InputError: as `poet.c99.library_check.check_library` says.
        NotExact: the library is wrong.
    """
    from poet.c99.library_check import check_library
    from poet.report.run import library_data, library_report

    report = check_library(
        ask.plan_file,
        c_library,
        steps=MOST_LIBRARY_STEPS,
        data=ask.data,
        page_file=ask.page_file,
        fewer=True,
    )
    answer(library_report(report), lambda: library_data(report), json_file=ask.json_file)
    report.require()


def _run_here(request: RunRequest, json_file: Path | None, raw: Path | None) -> bool:
    """Train in this process, whose memory nothing bounds; whether Ctrl-C ended it."""
    import torch

    from poet.plans.plan_file import PlanFile
    from poet.runtime.system.memory import return_freed_memory

    if raw is not None:
        _check_raw(raw)
    return_freed_memory()
    with PlanFile(Path(request.plan)) as file:
        threads = request.threads or file.plan.replayed_kernels.threads
        if threads is not None:
            torch.set_num_threads(threads)
        return _train_here(file, request, json_file, raw)


def _train_here(file: PlanFile, request: RunRequest, json_file: Path | None, raw: Path | None) -> bool:
    """Train with an open plan; whether Ctrl-C ended it."""
    from poet.plans.run_request import was_interrupted
    from poet.report.run import Measured, run_data, run_report
    from poet.runtime import native
    from poet.runtime.runs.fit import load_samples, trained_of
    from poet.runtime.runs.requested import metered_epochs, open_trainer, validation_samples

    with open_trainer(file, request) as trainer:
        samples = load_samples(Path(request.data), trainer.plan, allow_nan=request.allow_nan)
        validation = validation_samples(trainer.plan, request)
        training = metered_epochs(trainer, samples, request, validation)
        if left := samples.count - trained_of(samples.count, trainer.plan):
            said = f"poet: {left} of {samples.count} samples fill no batch; each epoch leaves out others"
            say(said, err=True)
        done, peak_bytes = _epochs(training, _teller(json_file, _threads_remark(file.plan, request.threads)))
        if raw is not None and not was_interrupted(done, request):
            _add(raw, trainer, samples)
        plan, memory = trainer.plan, trainer.memory
    caveat = native.WITHOUT if memory.startswith("heap") else ""
    measured = Measured(memory, caveat, peak_bytes)
    answer(run_report(plan, done, measured), lambda: run_data(plan, done, measured), json_file=json_file)
    return was_interrupted(done, request)


def _check_raw(raw: Path) -> None:
    """Refuse, before training, a raw file that nothing of this machine can be added to."""
    from poet.calibration.step_times import begun
    from poet.devices.machine import Machine

    begun(raw, Machine())


def _add(raw: Path, trainer: Trainer, samples: Samples) -> None:
    """Measure some steps more and add them to the raw file; what was trained is saved already."""
    import torch

    from poet.calibration.step_times import add_to, step_of_run
    from poet.devices.machine import Machine

    machine = Machine()
    batch = samples.batch(torch.arange(len(samples.staged[0])))
    step = step_of_run(trainer, batch, machine=machine)
    add_to(raw, machine, (step,))
    say(f"poet: {len(step.ops)} kinds of ops added to {raw}", err=True)


def _epochs(
    training: Iterator[tuple[Epoch, int | None]], tell: Callable[[Epoch], None]
) -> tuple[list[Epoch], int | None]:
    """What each epoch gave, told as it ends, and the peak of tensor memory where it can be measured."""
    done: list[Epoch] = []
    peak_bytes: int | None = None
    for epoch, epoch_bytes in training:
        if done:  # during the first epoch libraries load their code, which is no tensor memory
            peak_bytes = max(peak_bytes or 0, epoch_bytes or 0) or None
        done.append(epoch)
        tell(epoch)
    return done, peak_bytes


def _run_enforced(request: RunRequest, json_file: Path | None, remark: str) -> bool:
    """Both halves of an enforced run; this process loads no torch. Whether Ctrl-C ended it."""
    from poet.enforce import enforce
    from poet.report.run import enforced_data, enforced_report

    done = enforce(request, on_epoch=_teller(json_file, remark))
    answer(enforced_report(done), lambda: enforced_data(done), json_file=json_file)
    return done.was_interrupted


def _teller(json_file: Path | None, remark: str) -> Callable[[Epoch], None]:
    """Prints a line per epoch, ``remark`` before the first; to stderr where stdout is for the JSON."""
    from poet.report.run import epoch_line

    remarks = [remark] if remark else []

    def tell(epoch: Epoch) -> None:
        while remarks:
            say(remarks.pop(), err=True)
        say(epoch_line(epoch), err=str(json_file) == "-")

    return tell


def _threads_remark(plan: Plan, asked: int | None) -> str:
    """That torch has as many threads as the plan was measured with; empty where others are asked for."""
    measured = plan.replayed_kernels.threads
    if asked is not None or measured is None:
        return ""
    count = "1 thread" if measured == 1 else f"{measured} threads"
    return f"poet: {count}, as the plan was measured with; --threads takes another number"
