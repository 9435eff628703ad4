"""Measurements of a machine that are added to its raw file beside a calibration, or begin one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from poet.calibration.step_times import op_times
from poet.devices.machine import Machine
from poet.devices.measurements import (
    TABLE,
    Measurements,
    StepTime,
    TransferTime,
    read_own,
    write_measurements,
)
from poet.errors import InputError
from poet.frontend.trace import TrainingStep
from poet.runtime.system.process import torch_threads


def steps_of_model(
    step: TrainingStep, *, name: str, threads: Sequence[int], repeats: int, machine: Machine
) -> tuple[StepTime, ...]:
    """Whole training steps of a model, measured op by op for its table.

    Args:
        step: that keeps every gradient whole, so that each op is one call.
        name: of the model.
        threads: of torch; each of them in turn.
        repeats: how often, each with steps of its own: how far these lie apart is the table's uncertainty.
        machine: whose sensors tell whether it was slowed.
    """
    made = []
    for count in threads:
        for _ in range(repeats):
            before = machine.state()
            with torch_threads(count):
                ops, busy_ratio = op_times(step)
            after = machine.state()
            made.append(
                StepTime(name, TABLE, count, ops, busy_ratio, before, after, slowed=after.is_throttled)
            )
    return tuple(made)


def begun(path: Path, machine: Machine) -> Measurements:
    """What the file has, or the beginning of one.

    Raises:
        InputError: it is of another machine or another torch, or no such file.
    """
    host = machine.host(torch=torch.__version__, threads=torch.get_num_threads())
    if not path.exists():
        if not path.parent.is_dir():
            raise InputError(f"{path}: cannot be written (its folder does not exist)")
        return Measurements(host, time.strftime("%Y-%m-%d", time.gmtime(machine.wall())))
    return read_own(path, host, any_threads=True)


def add_to(
    path: Path,
    machine: Machine,
    steps: Sequence[StepTime],
    transfers: Sequence[TransferTime] = (),
) -> Measurements:
    """The file with ``steps`` and ``transfers`` added, written whole or not at all.

    Raises:
        InputError: as of `begun`, or the file cannot be written.
    """
    found = begun(path, machine)
    found = replace(found, steps=(*found.steps, *steps), transfers=(*found.transfers, *transfers))
    write_measurements(path, found)
    return found
