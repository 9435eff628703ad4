"""``poet devices calibrate``, for boards too: it needs torch and numpy, and none of the packages of planning.

Where those are not installed, `poet.__main__` comes here directly.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from poet.errors import InputError, PoetError
from poet.util import interrupts
from poet.util.reading import check_is_file
from poet.util.streams import say
from poet.util.units import parse_seconds

COMMAND = ("devices", "calibrate")
POWER_WORDS = ("auto", "none", "ask", "meter", "hwmon", "pmic", "battery", "rapl")


def run(output: Path, *, folder: Path, time_limit: str, power: str, phase: str, storage: bool) -> list[str]:
    """Measure this machine into ``output``; the warnings that the file has.

    Args:
        output: the raw file.
        folder: on the storage to measure.
        time_limit: as people write it.
        power: one of `POWER_WORDS`.
        phase: how long each power phase lasts, as people write it.
        storage: whether the storage is measured.

    Raises:
        PoetError: a wrong argument, or a file that cannot be written.
    """
    limit_seconds, phase_seconds = _seconds("--time-limit", time_limit), _seconds("--phase", phase)
    if power not in POWER_WORDS:
        raise InputError(f"--power {power!r} is not one of {', '.join(POWER_WORDS)}")
    check_is_file(output)
    if not output.parent.is_dir():
        raise InputError(f"{output}: cannot be written (its folder does not exist)")

    from poet.calibration.bench import TorchBench, storage_works
    from poet.calibration.calibrate import Settings, calibrate
    from poet.devices.machine import Machine

    problem = storage_works(folder) if storage else ""
    if problem:
        _tell(f"the storage at {folder} is left out: {problem}")
    settings = Settings(
        time_limit_seconds=limit_seconds,
        power={"auto": None, "ask": "none", "meter": "none"}.get(power, power),
        ask_watts=_asked_watts if power == "ask" else None,
        markers=power == "meter",
        phase_seconds=phase_seconds,
        storage=str(folder.resolve()) if storage and not problem else "",
    )
    return list(calibrate(Machine(), TorchBench(folder), output, settings, _tell).warnings)


def main(arguments: Sequence[str]) -> int:
    """What follows ``poet devices calibrate``; the exit code."""
    parser = argparse.ArgumentParser(
        prog="poet devices calibrate", description="Measure this machine into a raw file."
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--storage", type=Path, default=Path(), metavar="FOLDER")
    parser.add_argument("--no-storage", action="store_true")
    parser.add_argument("--power", default="auto", choices=POWER_WORDS)
    parser.add_argument("--phase", default="10s")
    parser.add_argument("--time-limit", default="600s")
    given = parser.parse_args(arguments)
    try:
        warnings = run(
            given.output, folder=given.storage, time_limit=given.time_limit, power=given.power,
            phase=given.phase, storage=not given.no_storage,
        )  # fmt: skip
    except PoetError as error:
        say(f"poet: {error}", err=True)
        return error.exit_code
    except KeyboardInterrupt:
        say(f"poet: interrupted; the same command goes on with {given.output}", err=True)
        return interrupts.exit_code()
    for line in (f"written to {given.output}", *(f"note: {text}" for text in warnings)):
        say(line)
    return 0


def _seconds(option: str, text: str) -> float:
    seconds = parse_seconds(text)
    if not 0 < seconds < math.inf:
        raise InputError(f"{option} {text!r} is no time; write for example 600s")
    return seconds


def _tell(line: str) -> None:
    say(line, err=True)


def _asked_watts(phase: str) -> float | None:
    """What the user reads off a meter; nothing: it was not read."""
    print(f"watts that the meter showed during {phase!r} (nothing: not read): ", end="", file=sys.stderr)
    sys.stderr.flush()
    said = sys.stdin.readline().strip().removesuffix("W").strip().replace(",", ".")
    try:
        watts = float(said)
    except ValueError:
        return None
    return watts if 0 < watts < 1e6 else None
