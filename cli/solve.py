"""``poet solve``: a plan for a model on a device, or an answer to a saved planning problem."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from poet.errors import InputError
from poet.files.kinds import FileKind, expect
from poet.loss import LOGITS
from poet.optimizer_kinds import OPTIONS
from poet.problem import Objective, Pins
from poet.progress import showing

from .log import check_log, listening
from .options import (
    Ask,
    BindOption,
    GradientsOption,
    Home,
    JsonOption,
    LogOption,
    LossOption,
    Minimise,
    ModelAsk,
    NoPagingOption,
    NoRecomputeOption,
    TrainOption,
    VerboseOption,
    device_names,
    micro_callback,
    optimizer_callback,
    read_storage,
    read_time_limit,
    read_trade_off,
    threads_callback,
    whole,
)
from .output import check_files

EXAMPLES = (
    "poet solve model.onnx --device rpi4b",
    "poet solve model.onnx --device rpi4b --ram 64MiB --deadline 1.3x -o plan.poet",
    "poet solve model.onnx --device rpi4b --ram 64MiB --batch 32 --micro auto -o plan.poet",
    "poet solve model.onnx --device rpi4b --ram 64MiB --shape N=1,8,32 -o plan.poet",
    "poet solve problem.json --ram 256KiB --compare --json answer.json",
    "poet solve problem.json --ram 256KiB --minimise time --energy-budget 2mJ --keep 'layer1.*'",
    "poet solve problem.json --trade-off ram,energy",
)


def solve(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="An ONNX model, or a poet-problem file (.json).")
    ],
    device: Annotated[
        str | None,
        typer.Option(help="Profile by name or file; see `poet devices list`.", autocompletion=device_names),
    ] = None,
    ram: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="RAM for tensors, e.g. 64MiB. Without it: a survey. 64MiB,48MiB: two plans in one file.",
        ),
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="For a step: 20ms, or 1.3x of running every op once.")
    ] = None,
    loss: LossOption = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"{', '.join(OPTIONS)}; default sgd. With options: rmsprop:alpha=0.9,centered=yes.",
            callback=optimizer_callback,
        ),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; default 0.001.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of --optimizer momentum; default 0.9.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Default: torch's.")] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB:OPTIONS", help="Parameters with other settings: 'norm*:lr=1e-4,weight_decay=0'."
        ),
    ] = None,
    clip_value: Annotated[float | None, typer.Option(help="Clamp gradients to this first.")] = None,
    clip_norm: Annotated[
        float | None, typer.Option(help="Bring the norm of all gradients together down to this.")
    ] = None,
    train: TrainOption = None,
    bind: BindOption = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Samples of a step; the same as --bind N=...", callback=whole),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZES",
            help="Plan steps for several sizes in one file, e.g. N=1,8,32; repeatable, for each with each.",
        ),
    ] = None,
    micro: Annotated[
        str | None,
        typer.Option(
            metavar="K",
            help="Train each batch in K micro-batches, or auto: as many as take the least energy. K:sum: the "
            "loss is not divided by K.",
            callback=micro_callback,
        ),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A state dict (.pt, .safetensors) whose names the model gets."),
    ] = None,
    no_recompute: NoRecomputeOption = False,
    no_paging: NoPagingOption = False,
    minimise: Annotated[
        Minimise, typer.Option(help="What a step should take the least of; ties are broken by energy.")
    ] = Minimise.ENERGY,
    energy_budget: Annotated[
        str | None, typer.Option(metavar="ENERGY", help="Joules that a step may take, e.g. 1.5mJ.")
    ] = None,
    write_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What a step may write to storage, e.g. 1MiB.")
    ] = None,
    storage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART|SIZE",
            help="A part in place of the device's (`poet devices parts`), or what storage holds; repeatable.",
        ),
    ] = None,
    home: Annotated[
        Home | None,
        typer.Option(help="Of parameters between steps; auto: the plan chooses. Default ram."),
    ] = None,
    gradients: GradientsOption = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Tensors to keep in RAM from production to last use; repeatable."),
    ] = None,
    recompute: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Tensors not to hold while idle, but to compute again."),
    ] = None,
    page: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Tensors not to hold while idle, but to page."),
    ] = None,
    never_page: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Tensors never to write to storage nor to read from there."),
    ] = None,
    trade_off: Annotated[
        str | None,
        typer.Option(metavar="X,Y", help="The curve of two objectives instead of a plan, e.g. ram,energy."),
    ] = None,
    points: Annotated[
        int | None,
        typer.Option(min=2, help="Of --trade-off; default: all of a small problem, else 8.", callback=whole),
    ] = None,
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="For all that is searched, e.g. 60s; none: until proven.")
    ] = "20s",
    engine: Annotated[
        str,
        typer.Option(
            help="auto, highs, cpsat, highs+cpsat, scip, cbc, gurobi, or a solver by PuLP's name of it."
        ),
    ] = "auto",
    threads: Annotated[
        int,
        typer.Option(
            min=1, help="For the search; 2 run HiGHS beside CP-SAT if installed.", callback=threads_callback
        ),
    ] = 1,
    no_kept_plans: Annotated[
        bool,
        typer.Option(
            "--no-kept-plans",
            envvar="POET_NO_KEPT_PLANS",
            help="Start from nothing: read no plan of an earlier search, and keep none.",
        ),
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Beside the plan, those of other planners; needs --ram.")
    ] = False,
    sensitivity: Annotated[
        bool, typer.Option("--sensitivity", help="Tell which of the device's figures decide; plans again.")
    ] = False,
    robust: Annotated[
        bool, typer.Option("--robust", help="The plan that loses least wherever the device's figures are.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="logits|FILE",
            help="logits: the first output is what its softmax or sigmoid is given. Else the same as -o.",
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="Write the plan here.")] = None,
    json_file: JsonOption = None,
    verbose: VerboseOption = False,
    log: LogOption = None,
) -> None:
    """Find the schedule of least energy inside a RAM budget and a deadline.

    Without --ram it tells what training needs when everything is kept, the least that any schedule
    needs, and what budgets between them cost. Ctrl-C ends the search and keeps the best plan.
    """
    part, storage_size = read_storage(storage)
    ram, *budgets = [None] if ram is None else ram.split(",")
    ask = Ask(
        ram=ram,
        deadline=deadline,
        recompute=not no_recompute,
        paging=not no_paging,
        time_limit_seconds=read_time_limit(time_limit),
        engine=engine,
        threads=threads,
        compare=compare,
        minimise=Objective(minimise.value),
        energy_budget=energy_budget,
        write_budget=write_budget,
        storage=storage_size,
        pins=Pins(tuple(keep or ()), tuple(recompute or ()), tuple(page or ()), tuple(never_page or ())),
        trade_off=read_trade_off(trade_off),
        points=points,
        json_file=json_file,
        verbose=verbose,
        sensitivity=sensitivity,
        robust=robust,
        kept_plans=not no_kept_plans,
        budgets=tuple(filter(None, budgets)),
    )
    about_model = ModelAsk(
        device=device,
        loss=loss,
        optimizer=optimizer,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        group=group,
        clip_value=clip_value,
        clip_norm=clip_norm,
        train=train,
        bind=bind,
        batch=batch,
        shape=shape,
        micro=micro,
        home=home,
        gradients=gradients,
        names=names,
        output=_file(output, file),
        gives=LOGITS if output == LOGITS else None,
        part=part,
    )
    _check_paths(model, ask, about_model, log)
    _check_together(ask, about_model.output)
    if model.suffix == ".json":
        _refuse_what_is_of_models(model, about_model, ask)
        from .solve_problem import solve_problem

        with listening(verbose=verbose, file=log), _showing(ask) as ask:
            solve_problem(model, ask)
        return
    _check_model(model, ask, about_model)
    from .solve_model import solve_model

    with listening(verbose=verbose, file=log), _showing(ask) as ask:
        solve_model(model, ask, about_model)


@contextmanager
def _showing(ask: Ask) -> Iterator[Ask]:
    """``ask`` whose searches report to a line on stderr; to none where the log is shown there."""
    with showing(not ask.verbose, objective=ask.minimise, limit_seconds=ask.time_limit_seconds) as progress:
        yield replace(ask, progress=progress)


def _file(output: str | None, file: Path | None) -> Path | None:
    """Where the plan goes: what -o says, or --output where that does not say what the model gives."""
    if output in (None, LOGITS):
        return file
    if file is not None:
        raise InputError(f"-o and --output both name a file; --output {LOGITS} says what the model gives")
    return Path(output)


def _check_paths(model: Path, ask: Ask, about_model: ModelAsk, log: Path | None) -> None:
    """Refuse what could not be written, or would destroy something."""
    from poet.devices.load import profile_path

    profile = None if about_model.device is None else profile_path(about_model.device)
    check_log(log)
    check_files(
        {"-o": about_model.output, "--json": ask.json_file, "--log": log},
        reads={
            "--device": profile,
            "--names": about_model.names,
            "--storage": None if about_model.part is None else profile_path(about_model.part),
        },
        model=model,
    )


def _check_together(ask: Ask, output: Path | None) -> None:
    """Refuse options that make no sense without another, or beside one."""
    if ask.points is not None and ask.trade_off is None:
        raise InputError("--points is of --trade-off, e.g. --trade-off ram,energy --points 12")
    if ask.trade_off is not None and output is not None:
        raise InputError("--trade-off makes no plan; solve with the RAM of a point and -o for that")
    for option, asked in (("--sensitivity", ask.sensitivity), ("--robust", ask.robust)):
        if asked and (ask.ram is None or ask.trade_off is not None):
            raise InputError(f"{option} needs --ram: it is about a plan inside one budget, e.g. --ram 256KiB")
        if asked and ask.minimise is not Objective.ENERGY:
            raise InputError(f"{option} is about energy; leave --minimise out")
    if ask.compare and ask.ram is None:
        raise InputError("--compare needs --ram: planners are compared inside one budget, e.g. --ram 256KiB")


def _refuse_what_is_of_models(problem: Path, about_model: ModelAsk, ask: Ask) -> None:
    option = about_model.given()
    if option is None and (ask.sensitivity or ask.robust):
        named = "--sensitivity" if ask.sensitivity else "--robust"
        raise InputError(
            f"{named} is about the figures of a device; {problem.name} has costs alone: give a model"
        )
    if ask.budgets:
        raise InputError(f"several budgets in --ram are for a model; {problem.name} is a planning problem")
    if option is not None:
        raise InputError(f"{option} is for a model; {problem.name} is a planning problem")


def _check_model(model: Path, ask: Ask, about_model: ModelAsk) -> None:
    """Refuse a file of another kind, and a model of which too little is said."""
    expect(model, FileKind.ONNX, FileKind.EXPORTED, FileKind.PROBLEM)
    if about_model.device is None:
        raise InputError("a model needs --device; `poet devices list` shows the names, e.g. --device rpi4b")
    if ask.ram is None and about_model.output is not None and ask.minimise is not Objective.RAM:
        raise InputError("a plan (-o) needs --ram; without it poet only surveys budgets")
