"""``poet run``: train with a plan. Loads torch and the plan, nothing that planning needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from poet.errors import InputError
from poet.plans.rate_schedule import RateSchedule
from poet.streams import say
from poet.units import parse_bytes, parse_joules, parse_seconds

from .options import JsonOption, PageFileOption, PlanArgument
from .output import answer, check_files
from .run_library import check_on_data
from .run_options import (
    AddToOption,
    AllowNanOption,
    AllowOverBudgetOption,
    ArenaChoice,
    ArenaOption,
    BestOption,
    CLibraryOption,
    DataOption,
    EnforceOption,
    EpochsOption,
    KeepPreviousOption,
    LrOption,
    MetricOption,
    OutputOption,
    PatienceOption,
    ResumeOption,
    SaveEveryOption,
    SaveSecondsOption,
    ScheduleOption,
    SeedOption,
    StopAfterJoulesOption,
    StopAfterSecondsOption,
    StopAfterWrittenOption,
    ThreadsOption,
    ValidateOption,
    WatchMemoryOption,
)

if TYPE_CHECKING:
    from poet.plans.plan_file import PlanFile
    from poet.plans.run_request import Epoch, RunRequest
    from poet.plans.training_plan import Plan
    from poet.runtime import Trainer
    from poet.runtime.data.samples import Samples

EXAMPLES = (
    "poet run plan.poet --data digits.npz --epochs 3 --page-file /media/card/pages",
    "poet run plan.poet --data digits.npz --epochs 3 -o trained.safetensors",
    "poet run plan.poet --data digits.npz --resume trained.safetensors -o trained.safetensors",
    "poet run plan.poet --data digits.npz --epochs 50 --validate test.npz --patience 5 --best b.safetensors",
    "poet run plan.poet --data digits.npz --enforce",
    "poet run plan.poet --data digits.npz --c-library step/build/libpoet_step.so",
)


_ARENA: dict[ArenaChoice, bool | Literal["require"]] = {
    ArenaChoice.AUTO: True,
    ArenaChoice.REQUIRE: "require",
    ArenaChoice.HEAP: False,
}


def run(
    plan_file: PlanArgument,
    data: DataOption,
    epochs: EpochsOption = 1,
    page_file: PageFileOption = None,
    lr: LrOption = None,
    schedule: ScheduleOption = None,
    seed: SeedOption = None,
    threads: ThreadsOption = None,
    resume: ResumeOption = None,
    output: OutputOption = None,
    save_every: SaveEveryOption = None,
    save_seconds: SaveSecondsOption = None,
    keep_previous: KeepPreviousOption = False,
    stop_after_joules: StopAfterJoulesOption = None,
    stop_after_seconds: StopAfterSecondsOption = None,
    stop_after_written: StopAfterWrittenOption = None,
    watch_memory: WatchMemoryOption = False,
    validate: ValidateOption = None,
    metric: MetricOption = None,
    patience: PatienceOption = None,
    best: BestOption = None,
    arena: ArenaOption = ArenaChoice.AUTO,
    allow_nan: AllowNanOption = False,
    allow_over_budget: AllowOverBudgetOption = False,
    enforce: EnforceOption = False,
    add_to: AddToOption = None,
    c_library: CLibraryOption = None,
    json_file: JsonOption = None,
) -> None:
    """Train with a plan, inside its RAM, paging to a file.

    The trained state is a safetensors file: parameters and module state under the module's names.
    It is saved after each epoch. Ctrl-C ends the training after the step in flight and saves it.
    Where the loss is no longer finite, training ends and the last save is kept. Where a step holds more than
    the budget, the state is saved and training ends, exit code 1.

    With --stop-after-... the run ends before the step that would spend more; --resume goes on with as much
    again.

    With --watch-memory the training goes to another budget of the plan file, between steps, when the system
    has less memory to give, and back.

    With --validate the model is evaluated after each epoch, in evaluation mode and inside the same RAM.

    With --enforce the training runs in a lean process that cannot get more memory than the plan was
    made for, and plain PyTorch is tried on the same model and data under the same limit.

    With --c-library nothing is trained: a library that `make lib` built in a folder of `poet export c`
    makes the steps of the first batches, and so does PyTorch, each from PyTorch's state.
    """
    from poet.plans.plan_file import read_plan
    from poet.plans.run_request import RunRequest

    _check_together(
        of_output={
            "--save-every": save_every,
            "--save-seconds": save_seconds,
            "--keep-previous": keep_previous or None,
        },
        output=output,
        of_validate={"--metric": metric, "--patience": patience, "--best": best},
        validate=validate,
    )
    if schedule is not None:
        RateSchedule.parse(schedule)
    if enforce and watch_memory:
        raise InputError("--watch-memory cannot be with --enforce, which holds the training to one budget")
    if enforce and allow_over_budget:
        raise InputError(
            "--allow-over-budget cannot be with --enforce, which holds the training to its budget"
        )
    if enforce and add_to is not None:
        raise InputError("--add-to cannot be with --enforce: the process that trains measures nothing there")
    outputs = {"-o": output, "--best": best, "--json": json_file, "--add-to": add_to}
    reads = {"PLAN": plan_file, "--data": data, "--validate": validate, "--c-library": c_library}
    check_files(outputs, reads=reads, page_file=page_file)
    # an earlier state may be replaced by that of the run which goes on from it, and by nothing else
    check_files({"--json": json_file, "--add-to": add_to}, reads={"--resume": resume}, page_file=page_file)
    if c_library is not None:
        training: dict[str, object] = {
            "-o": output,
            "--resume": resume,
            "--validate": validate,
            "--best": best,
        }
        training |= {"--enforce": enforce, "--watch-memory": watch_memory, "--add-to": add_to}
        training |= {"--lr": lr is not None, "--schedule": schedule, "--seed": seed is not None}
        training |= {"--threads": threads, "--epochs": epochs > 1, "--patience": patience}
        check_on_data(plan_file, c_library, data, page_file, json_file, training)
        return
    plan = read_plan(plan_file) if enforce else None
    request = RunRequest(
        plan=str(plan_file),
        data=str(data),
        budget_bytes=0 if plan is None else _budget_bytes(plan),
        epochs=epochs,
        seed=0 if seed is None and resume is None else seed,
        threads=threads if plan is None or threads else plan.replayed_kernels.threads,
        learning_rate=lr,
        page_file=_text(page_file),
        resume=_text(resume),
        output=_text(output),
        save_every=save_every,
        save_seconds=None if save_seconds is None else parse_seconds(save_seconds),
        arena=_ARENA[arena],
        allow_nan=allow_nan,
        validate=_text(validate),
        metrics=tuple(metric or ()),
        patience=patience,
        best=_text(best),
        schedule=schedule,
        keep_previous=keep_previous,
        stop_joules=None if stop_after_joules is None else parse_joules(stop_after_joules),
        stop_seconds=None if stop_after_seconds is None else parse_seconds(stop_after_seconds),
        stop_written_bytes=None if stop_after_written is None else parse_bytes(stop_after_written),
        watch_memory=watch_memory,
        allow_over_budget=allow_over_budget,
    )
    remark = "" if plan is None else _threads_remark(plan, threads)
    if _run_enforced(request, json_file, remark) if enforce else _run_here(request, json_file, add_to):
        raise KeyboardInterrupt


def _check_together(
    *,
    of_output: Mapping[str, object],
    output: Path | None,
    of_validate: Mapping[str, object],
    validate: Path | None,
) -> None:
    """Refuse options that make no sense without another."""
    for name, given in of_output.items():
        if given is not None and output is None:
            raise InputError(f"{name} needs -o FILE to save to")
    for name, given in of_validate.items():
        if given is not None and validate is None:
            raise InputError(f"{name} is of --validate FILE, samples to evaluate after each epoch")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


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
    from poet.report.enforce import enforced_data, enforced_report

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


def _budget_bytes(plan: Plan) -> int:
    """What the plan was made for; where it had no budget, what it predicts."""
    budget_bytes = plan.request.limits.ram_budget_bytes
    return plan.held_bytes + plan.page_buffer_bytes if budget_bytes is None else budget_bytes
