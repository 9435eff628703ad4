"""``poet devices calibrate`` and ``fit``: a machine measured as a device, and the profile that follows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from poet.util.streams import say

from .options import device_names, whole

PHASES = ("idle", "busy", "matmul", "convolution", "elementwise", "read", "write")


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
    from poet.errors import InputError
    from poet.report.device import fitted_report

    from .output import check_files, show, write_text

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
    from poet.errors import InputError

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
