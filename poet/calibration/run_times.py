"""What ops took in a training, whose plan may run an op more than once and page between ops."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from poet.devices.machine import Machine
from poet.devices.measurements import RUN, StepTime, alike_together, op_time
from poet.errors import InputError
from poet.plans.run_request import BUSY_RATIO
from poet.runtime import Trainer
from poet.schedule import Compute

STEPS = 7
"""That are made: what else the machine does only makes an op longer, so the lower quartile is taken."""

Batch = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]


def step_of_run(trainer: Trainer, batch: Batch, *, machine: Machine) -> StepTime:
    """Further steps of a training, timed op by op, for the calibration of this machine.

    Ops that run in strips are left out: no single call is timed there. So is the schedule's last step.

    Args:
        trainer: whose state these steps change; save before.
        batch: inputs, and targets if there are any, of every step.
        machine: whose sensors tell whether it was slowed.

    Raises:
        InputError: every op runs in strips.
        ReplayError: a step failed.
    """
    plan = trainer.plan
    wall: dict[str, list[float]] = defaultdict(list)
    own: dict[str, list[float]] = defaultdict(list)
    ratios = []
    before = machine.state()
    for _ in range(STEPS):
        stamps: dict[int, tuple[float, float]] = {}

        def stamp(index: int, taken: dict[int, tuple[float, float]] = stamps) -> None:
            taken[index] = time.perf_counter(), time.thread_time()

        made = trainer.step(*batch, on_instruction=stamp)
        ratios.append(made.seconds / max(made.own_seconds, 1e-9))
        for index, following in zip(sorted(stamps), sorted(stamps)[1:], strict=False):
            if isinstance(run := plan.schedule[index], Compute):
                begin, end = stamps[index], stamps[following]
                wall[run.op].append(end[0] - begin[0])
                own[run.op].append(end[1] - begin[1])
    after, ratio = machine.state(), statistics.median(ratios)
    threads = torch.get_num_threads()
    chosen: Mapping[str, list[float]] = own if threads == 1 or ratio > BUSY_RATIO else wall
    types = {value.name: value.type for value in plan.graph.values}
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in plan.graph.buffers}
    ops = alike_together(
        op_time(
            op.call,
            types,
            (None if name is None else types[name] for name in op.outputs),
            updated_bytes=sum(sizes_bytes[name] for name in op.updates),
            seconds=max(statistics.quantiles(chosen[op.name], n=4, method="inclusive")[0], 1e-9),
        )
        for op in plan.graph.ops
        if op.strip is None and op.name in chosen
    )
    if not ops:
        raise InputError(f"{plan.model.name}: every op runs in strips, so none is timed by itself")
    return StepTime(plan.model.name, RUN, threads, ops, ratio, before, after, slowed=after.is_throttled)
