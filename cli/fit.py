"""``poet fit``: will this model train on this device, in which batches, and for how much?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poet.errors import Infeasible, InputError, OutOfTime
from poet.ir.loss import DEFAULT_LOSS
from poet.ir.micro import BATCH_NAMES
from poet.util.streams import say
from poet.util.units import format_bytes, format_joules, format_seconds, parse_bytes

from .options import BindOption, LossOption, read_bindings, read_time_limit

if TYPE_CHECKING:
    from poet.devices.profile import Profile
    from poet.whatif.result import WhatIf

EXAMPLES = (
    "poet fit model.onnx --device rpi4b",
    "poet fit model.onnx --device stm32h743 --ram 512KiB --optimizer momentum",
)


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
