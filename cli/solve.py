"""``poet solve``: a plan for a model on a device, or an answer to a saved planning problem."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from poet.errors import InputError
from poet.optimizer import OptimizerSpec

from .options import Ask, BindOption, JsonOption, Loss, Optimizer, read_bindings, read_time_limit

EXAMPLES = (
    "poet solve model.onnx --device rpi4b",
    "poet solve model.onnx --device rpi4b --ram 64MiB --deadline 1.3x -o plan.poet",
    "poet solve problem.json --ram 256KiB --compare --json answer.json",
)


def solve(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="An ONNX model, or a poet-problem file (.json).")
    ],
    device: Annotated[
        str | None, typer.Option(help="Profile by name or file; see `poet devices list`.")
    ] = None,
    ram: Annotated[
        str | None, typer.Option(metavar="SIZE", help="RAM for tensors, e.g. 64MiB. Without it: a survey.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="For a step: 20ms, or 1.3x of running every op once.")
    ] = None,
    loss: Annotated[Loss | None, typer.Option(help="What is minimised; default cross-entropy.")] = None,
    optimizer: Annotated[Optimizer | None, typer.Option(help="Of torch.optim; default sgd.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; default 0.001.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of --optimizer momentum; default 0.9.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Default: torch's.")] = None,
    train: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB", help="Parameters to train, e.g. 'layer4.*'; repeatable; default all."),
    ] = None,
    bind: BindOption = None,
    no_recompute: Annotated[bool, typer.Option("--no-recompute", help="Run every op once.")] = False,
    no_paging: Annotated[bool, typer.Option("--no-paging", help="Move nothing to storage.")] = False,
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="For the search, e.g. 60s; none: until proven.")
    ] = "60s",
    engine: Annotated[
        str, typer.Option(help="auto, highs, cpsat, highs+cpsat, scip, cbc or gurobi.")
    ] = "auto",
    threads: Annotated[
        int, typer.Option(min=1, help="For the search; 2 run HiGHS beside CP-SAT if installed.")
    ] = 1,
    compare: Annotated[
        bool, typer.Option("--compare", help="Beside the plan, those of other planners; needs --ram.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plan here.")
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Find the schedule of least energy inside a RAM budget and a deadline.

    Without --ram it tells what training needs when everything is kept, the least that any schedule
    needs, and what budgets between them cost. Ctrl-C ends the search and keeps the best plan.
    """
    ask = Ask(
        ram=ram,
        deadline=deadline,
        recompute=not no_recompute,
        paging=not no_paging,
        time_limit_seconds=read_time_limit(time_limit),
        engine=engine,
        threads=threads,
        compare=compare,
        json_file=json_file,
    )
    if compare and ram is None:
        raise InputError("--compare needs --ram: planners are compared inside one budget, e.g. --ram 256KiB")
    if model.suffix == ".json":
        of_a_model = {
            "--device": device, "--loss": loss, "--optimizer": optimizer, "--lr": lr, "--momentum": momentum,
            "--weight-decay": weight_decay, "--train": train, "--bind": bind, "--output": output,
        }  # fmt: skip
        for option, given in of_a_model.items():
            if given is not None:
                raise InputError(f"{option} is for a model; {model.name} is a planning problem")
        from .solve_problem import solve_problem

        solve_problem(model, ask)
        return
    if device is None:
        raise InputError("a model needs --device; `poet devices list` shows the names, e.g. --device rpi4b")
    if ram is None and output is not None:
        raise InputError("a plan (-o) needs --ram; without it poet only surveys budgets")
    from .solve_model import solve_model

    solve_model(
        model,
        ask,
        device=device,
        loss=(loss or Loss.CROSS_ENTROPY).value,
        optimizer=_optimizer(optimizer or Optimizer.SGD, lr, momentum, weight_decay),
        train=train,
        bind=read_bindings(bind),
        output=output,
    )


def _optimizer(
    kind: Optimizer, lr: float | None, momentum: float | None, weight_decay: float | None
) -> OptimizerSpec:
    if momentum is not None and kind is not Optimizer.MOMENTUM:
        raise InputError(f"--momentum is of --optimizer momentum, not of {kind.value}")
    spec = OptimizerSpec(kind.value, weight_decay=weight_decay)
    spec = spec if lr is None else dataclasses.replace(spec, lr=lr)
    return spec if momentum is None else dataclasses.replace(spec, momentum=momentum)
