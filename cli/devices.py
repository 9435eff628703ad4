"""``poet devices``: the hardware profiles and their figures, and machines that are measured for one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from poet.errors import InputError
from poet.util.streams import say

from .options import (
    BindOption,
    Group,
    JsonOption,
    LossOption,
    PlanArgument,
    TrainOption,
    device_names,
    optimizer_callback,
    read_bindings,
    threads_callback,
    whole,
    with_batch,
)
from .output import answer, check_files, show, write_json, write_text

EXAMPLES = (
    "poet devices list",
    "poet devices show rpi4b",
    "poet devices show ./my-board.toml --json -",
    "poet devices compare rpi4b stm32h743",
    "poet devices parts",
    "poet devices validate my-board.toml",
    "poet devices schema",
    "poet devices calibrate -o raw.json --storage /media/card",
    "poet devices profile model.onnx --batch 8 -o raw.json",
    "poet devices fit raw.json --base rpi4b -o mine.toml",
)
PHASES = ("idle", "busy", "matmul", "convolution", "elementwise", "read", "write")

app = typer.Typer(cls=Group, help="List, show and check hardware profiles.")


@app.command("list")
def list_(json_file: JsonOption = None) -> None:
    """List the devices that come with poet."""
    from poet.devices.load import load_profile, profile_names
    from poet.report.device import devices_data, devices_report

    check_files({"--json": json_file})
    profiles = [load_profile(name) for name in profile_names()]
    answer(devices_report(profiles), lambda: devices_data(profiles), json_file=json_file)


@app.command("show")
def show_(
    device: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A device, or the path of a profile.", autocompletion=device_names
        ),
    ],
    json_file: JsonOption = None,
) -> None:
    """Show every figure of a device: value, kind, uncertainty and source."""
    from poet.devices.load import load_profile, profile_path
    from poet.report.device import profile_data, profile_report

    check_files({"--json": json_file}, reads={"NAME": profile_path(device)})
    profile = load_profile(device)
    answer(profile_report(profile), lambda: profile_data(profile), json_file=json_file)


@app.command()
def compare(
    device: Annotated[
        str,
        typer.Argument(metavar="A", help="A device, or the path of a profile.", autocompletion=device_names),
    ],
    other_device: Annotated[str, typer.Argument(metavar="B", help="Another.", autocompletion=device_names)],
    json_file: JsonOption = None,
) -> None:
    """Show where two devices differ by more than their figures may be off."""
    from poet.devices.load import load_profile, profile_path
    from poet.report.device import device_comparison_data, device_comparison_report

    check_files({"--json": json_file}, reads={"A": profile_path(device), "B": profile_path(other_device)})
    a, b = load_profile(device), load_profile(other_device)
    answer(device_comparison_report(a, b), lambda: device_comparison_data(a, b), json_file=json_file)


@app.command()
def ranges(
    plan_file: PlanArgument,
    device: Annotated[
        str | None,
        typer.Option(metavar="PROFILE", help="The plan's device, where its profile is a file."),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Show what a plan costs at the ends of its device's figures."""
    from poet.devices.load import load_profile, profile_path
    from poet.devices.spread import spread
    from poet.plans.plan_file import read_plan
    from poet.report.device import spread_data, spread_report

    reads = {"PLAN": plan_file, "--device": None if device is None else profile_path(device)}
    check_files({"--json": json_file}, reads=reads)
    plan = read_plan(plan_file)
    profile = load_profile(plan.device.name if device is None else device)
    if profile.name != plan.device.name:
        raise InputError(f"{plan_file}: a plan for {plan.device.name}, not for {profile.name}")
    found = spread(plan.problem, plan.graph, plan.schedule, profile, moves=plan.moved)
    deadline_seconds = plan.request.limits.deadline_seconds
    answer(
        spread_report(found, profile, deadline_seconds),
        lambda: spread_data(found, profile, deadline_seconds),
        json_file=json_file,
    )


@app.command()
def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A profile of your own, in TOML.")],
    json_file: JsonOption = None,
) -> None:
    """Check a profile's form and its sense; all that is wrong is named, with exit code 2."""
    from poet.devices.load import load_profile
    from poet.devices.sense import check_sense
    from poet.report.device import profile_data, validation_line

    check_files({"--json": json_file}, reads={"FILE": file})
    profile = load_profile(file)
    check_sense(profile, file.name)
    answer(validation_line(profile, file.name), lambda: profile_data(profile), json_file=json_file)


@app.command()
def parts(json_file: JsonOption = None) -> None:
    """List the storage parts that --storage of `poet solve` takes."""
    from poet.devices.load import load_part, part_names
    from poet.report.device import parts_data, parts_report

    check_files({"--json": json_file})
    found = [load_part(name) for name in part_names()]
    answer(parts_report(found), lambda: parts_data(found), json_file=json_file)


@app.command()
def schema(json_file: JsonOption = None) -> None:
    """Print the JSON Schema of profiles, for editors that complete and check TOML."""
    from poet.devices.load import profile_schema

    check_files({"--json": json_file})
    write_json(json_file or Path("-"), profile_schema())


@app.command()
def calibrate(
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The raw file; one that is there already is gone on with."
        ),
    ],
    storage: Annotated[
        Path, typer.Option(metavar="FOLDER", help="On the storage that tensors are to be paged to.")
    ] = Path(),
    no_storage: Annotated[bool, typer.Option("--no-storage", help="Leave the storage out.")] = False,
    power: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="auto; a sensor: hwmon, pmic, battery, rapl; ask: you read a meter and type; meter: "
            "one that logs to a file, for `poet devices fit --meter`; none.",
        ),
    ] = "auto",
    phase: Annotated[
        str, typer.Option(metavar="TIME", help="Of each load that power is measured under.")
    ] = "10s",
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="For all runs on one file together.")
    ] = "600s",
) -> None:
    """Measure this machine into a raw file: ops in training steps, storage, power.

    Where only torch and numpy are installed, as on a small board, this command works all the same.
    Ctrl-C leaves a file that the same command goes on with.
    """
    from poet.calibration.command import run
    from poet.errors import INTERRUPTED

    try:
        warnings = run(
            output, folder=storage, time_limit=time_limit, power=power, phase=phase, storage=not no_storage
        )
    except KeyboardInterrupt:
        measured = f"goes on with {output}" if output.exists() else "starts: nothing is measured yet"
        say(f"poet: the same command {measured}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    say(f"written to {output}")
    for text in warnings:
        say(f"note: {text}")


@app.command()
def profile(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX model.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The raw file; one of this machine that is there already is added to.",
        ),
    ],
    bind: BindOption = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Short for --bind N=.", callback=whole)] = None,
    loss: LossOption = None,
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help="As of `poet solve`.", callback=optimizer_callback)
    ] = "sgd",
    train: TrainOption = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="For torch; repeatable; default: all cores, and one.", callback=threads_callback
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=2, max=100, help="How often whole steps are measured.")] = 3,
) -> None:
    """Measure each op of a model's training step on this machine, for `poet devices fit`.

    The profile then has a row per op, shape and element type, which plans use for every model that has such
    an op; the others are extrapolated from their classes, and plans say which.
    """
    from poet.report.device import profiled_lines

    check_files({"-o": output}, model=model)
    import torch

    from poet.calibration.step_times import add_to, begun, steps_of_model
    from poet.devices.machine import Machine
    from poet.frontend.onnx.importer import load_onnx
    from poet.frontend.trace import trace_training_step
    from poet.ir.loss import DEFAULT_LOSS
    from poet.ir.optimizer import OptimizerSpec
    from poet.util.reading import printable_name

    machine = Machine()
    sizes = with_batch(read_bindings(bind), batch)
    begun(output, machine)
    imported = load_onnx(model, bind=sizes)
    step = trace_training_step(
        imported.module,
        imported.example_inputs(),
        loss=loss or DEFAULT_LOSS,
        optimizer=OptimizerSpec.parse(optimizer),
        train=train,
        name=printable_name(model),
        gradients="keep",
    )
    counts = tuple(dict.fromkeys(threads or (torch.get_num_threads(), 1)))
    steps = steps_of_model(step, name=step.graph.name, threads=counts, repeats=repeats, machine=machine)
    add_to(output, machine, steps)
    for line in profiled_lines(steps, str(output)):
        say(line)


@app.command()
def fit(
    measurements: Annotated[Path, typer.Argument(metavar="RAW", help="What `poet devices calibrate` wrote.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The profile.")],
    base: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The device most like it: what few measurements leave open is taken from there, and its "
            "watts where none were measured.",
            autocompletion=device_names,
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Whose steps to use. Default: the most.", callback=whole)
    ] = None,
    watts: Annotated[
        str | None, typer.Option(metavar="PHASE=W,...", help="Typed in: idle=2.7,busy=6,read=3.4,write=3.5")
    ] = None,
    meter: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A meter's log (.csv) of `calibrate --power meter`.")
    ] = None,
    volts: Annotated[float | None, typer.Option(help="Of the supply, where the log has amperes.")] = None,
) -> None:
    """Fit a profile to measurements; works on any machine, without torch.

    What the cost model does not describe is refused by class. The error in whole training steps that the
    fit has not seen is written into the profile.
    """
    from dataclasses import replace

    from poet.devices.fitted_profile import fit_profile
    from poet.devices.load import load_profile, profile_path, profile_text
    from poet.devices.measurements import phases_by_meter, read_measurements, typed_watts
    from poet.report.device import fitted_report

    known = None if base is None else profile_path(base)
    check_files({"-o": output}, reads={"RAW": measurements, "--base": known, "--meter": meter})
    found = read_measurements(measurements)
    phases = found.phases
    if meter is not None:
        if not phases:
            raise InputError(f"{measurements}: has no power phases; calibrate with --power meter")
        phases = phases_by_meter(phases, meter, volts=volts)
    if watts is not None:
        phases = typed_watts(phases, _watts(watts))
    name = re.sub(r"[^a-z0-9]+", "-", output.stem.lower()).strip("-") or "mine"
    profile, notes = fit_profile(
        replace(found, phases=phases),
        name=name,
        base=None if base is None else load_profile(base),
        threads=threads,
    )
    write_text(output, profile_text(profile))
    show(fitted_report(profile, notes, output.name))


def _watts(text: str) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            equals = ""
        if not equals or name.strip() not in PHASES or not 0 < found[name.strip()] < 1e6:
            raise InputError(
                f"--watts {part!r}: write for example idle=2.7,busy=6; phases: {', '.join(PHASES)}"
            )
    for name, watts in found.items():
        if watts < found.get("idle", 0.0):
            raise InputError(
                f"--watts: {name} is {watts:g} W, less than idle, {found['idle']:g} W; "
                "type what the meter shows, idle power included"
            )
    return found
