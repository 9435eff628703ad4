"""``poet devices``: the hardware profiles and their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import calibrate, profile_model
from .options import JsonOption, PlanArgument, device_names
from .usage import Group

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

app = typer.Typer(cls=Group, help="List, show and check hardware profiles.")


@app.command("list")
def list_(json_file: JsonOption = None) -> None:
    """List the devices that come with poet."""
    from poet.devices.load import load_profile, profile_names
    from poet.report.device import devices_data, devices_report

    from .output import answer, check_files

    check_files({"--json": json_file})
    profiles = [load_profile(name) for name in profile_names()]
    answer(devices_report(profiles), lambda: devices_data(profiles), json_file=json_file)


@app.command()
def show(
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

    from .output import answer, check_files

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

    from .output import answer, check_files

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
    from poet.errors import InputError
    from poet.plans.plan_file import read_plan
    from poet.report.device import spread_data, spread_report

    from .output import answer, check_files

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

    from .output import answer, check_files

    check_files({"--json": json_file}, reads={"FILE": file})
    profile = load_profile(file)
    check_sense(profile, file.name)
    answer(validation_line(profile, file.name), lambda: profile_data(profile), json_file=json_file)


@app.command()
def parts(json_file: JsonOption = None) -> None:
    """List the storage parts that --storage of `poet solve` takes."""
    from poet.devices.load import load_part, part_names
    from poet.report.device import parts_data, parts_report

    from .output import answer, check_files

    check_files({"--json": json_file})
    found = [load_part(name) for name in part_names()]
    answer(parts_report(found), lambda: parts_data(found), json_file=json_file)


@app.command()
def schema(json_file: JsonOption = None) -> None:
    """Print the JSON Schema of profiles, for editors that complete and check TOML."""
    from poet.devices.load import profile_schema

    from .output import check_files, write_json

    check_files({"--json": json_file})
    write_json(json_file or Path("-"), profile_schema())


app.command()(calibrate.calibrate)
app.command()(profile_model.profile)
app.command()(calibrate.fit)
