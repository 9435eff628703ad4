"""``poet check``: which ops of a model import and train; ``poet fit``: whether it does so on a device."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poet.errors import Infeasible, InputError, OutOfTime
from poet.ir.loss import DEFAULT_LOSS
from poet.ir.micro import BATCH_NAMES
from poet.util.streams import say
from poet.util.units import format_bytes, format_joules, format_seconds, parse_bytes

from .options import BindOption, JsonOption, LossOption, read_bindings, read_time_limit
from .output import answer, check_files, show

if TYPE_CHECKING:
    from poet.devices.profile import Profile
    from poet.whatif.result import WhatIf


class Kernels(enum.Enum):
    """Libraries of kernels that an exported step can be made of."""

    C99 = "poet-c99"


EXAMPLES = (
    "poet check model.onnx",
    "poet check model.onnx --bind N=8 --parameters",
    "poet check gpt.onnx --loss cross-entropy:dim=-1",
    "poet check m.onnx --json -",
    "poet check m.onnx --kernels poet-c99",
)
FIT_EXAMPLES = (
    "poet fit model.onnx --device rpi4b",
    "poet fit model.onnx --device stm32h743 --ram 512KiB --optimizer momentum",
)


def check(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX model.")],
    bind: BindOption = None,
    loss: LossOption = None,
    parameters: Annotated[bool, typer.Option("--parameters", help="List every parameter.")] = False,
    json_file: JsonOption = None,
    kernels: Annotated[
        Kernels | None,
        typer.Option("--kernels", help="Also tell which ops of its training step this library lacks."),
    ] = None,
) -> None:
    """Tell which ops of a model import and train, which not and why.

    Nothing is run, unless --kernels asks for the whole training step. Exit code 2 if
    the model cannot be trained, or not with those kernels.
    """
    check_files({"--json": json_file}, model=model)
    from poet.frontend.onnx.check import check_model
    from poet.report.check import check_report

    found = check_model(model, read_bindings(bind), loss=loss)
    if kernels is None or not found.can_train:
        answer(check_report(found, every_parameter=parameters), found.to_json, json_file=json_file)
        if not found.can_train:
            raise typer.Exit(found.exit_code)
        return
    from poet.c99.exportable import refusals, uses_elements
    from poet.c99.rows import overwrites, wants_dense
    from poet.frontend.onnx.importer import load_onnx
    from poet.frontend.trace import trace_training_step
    from poet.report.check import kernels_report

    imported = load_onnx(model, bind={**found.assumed, **read_bindings(bind)})
    inputs = imported.example_inputs()
    step = trace_training_step(
        imported.module,
        inputs,
        loss=loss or DEFAULT_LOSS,
        measure=False,
        uses_elements=uses_elements,
        overwrites=overwrites,
        wants_dense=wants_dense,
        has_small_operators=True,
    )
    lacking = refusals(step.graph)
    answer(
        check_report(found, every_parameter=parameters),
        lambda: {**found.to_json(), "kernels": kernels.value, "lacking": list(lacking)},
        json_file=json_file,
    )
    if str(json_file) != "-":
        show(kernels_report(kernels.value, len(step.graph.ops), lacking))
    if lacking:
        raise typer.Exit(2)


def fit(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX model.")],
    device: Annotated[str, typer.Option(metavar="NAME", help="Profile by name or file.")],
    ram: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Budget; default: all RAM of the device.")
    ] = None,
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="As for poet solve.")] = "sgd",
    loss: LossOption = None,
    bind: BindOption = None,
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="For each batch size that is tried, about a dozen.")
    ] = "5s",
) -> None:
    """Say in a line whether a model trains on a device, in which batches, and for how much.

    The largest batch with a plan is searched. Exit code 3 where there is none, 4 where none was
    found in time.
    """
    from poet.devices.load import load_profile
    from poet.problem.solution import SolveOptions
    from poet.whatif.run import what_if

    from .what_if import sweep_progress

    for name in BATCH_NAMES:
        if name in read_bindings(bind):
            raise InputError(f"poet fit searches the size of a batch; leave --bind {name} out")
    profile = load_profile(device)
    budget_bytes = profile.memory.ram_bytes.value if ram is None else parse_bytes(ram)
    options = SolveOptions(time_limit_seconds=read_time_limit(time_limit))

    with sweep_progress() as report:
        result = what_if(
            model, device=profile, ram=f"{budget_bytes}B", batch="1", bind=bind or (), largest=("batch",),
            loss=loss or DEFAULT_LOSS, optimizer=optimizer, marginal=False, options=options, jobs=1,
            report=report,
        )  # fmt: skip
    if not result.complete:
        raise KeyboardInterrupt
    say(sentence(result, profile, budget_bytes))


def sentence(result: WhatIf, profile: Profile, budget_bytes: int) -> str:
    """The answer of a sweep of one point.

    Raises:
        Infeasible: it has no plan.
        OutOfTime: none was found in time.
    """
    point, setting = result.points[0], result.settings[0]
    where = f"on {profile.name} in {format_bytes(budget_bytes)} of RAM"
    if point.plan is None:
        if point.verdict.word != "infeasible":
            raise OutOfTime(f"no plan was found in time {where}; give --time-limit more")
        why = point.message or f"a step needs {format_bytes(setting.lower_bound.bytes)} or more"
        raise Infeasible(f"no: it does not train {where}: {why[0].lower()}{why[1:]}")
    plan = result.plans[point.plan]
    grown = {"size": 1.0, "joules": plan.joules, "seconds": plan.seconds}
    grown |= next(dict(answer.figures) for answer in result.answers if answer.question == "largest-batch")
    joules, size, plain = grown["joules"], round(grown["size"]), format_bytes(setting.keep_everything_bytes)
    return (
        f"yes: it trains {where}, in batches of up to {size}: a step takes {format_joules(joules)} and "
        f"{format_seconds(grown['seconds'])}, a sample {format_joules(joules / size)}; "
        f"plain training of 1 needs {plain}"
    )
