"""Plans that can be programs: ops run again or results paged, gradients in blocks."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from helpers import hand_net
from helpers.part_nets import tiny_strips
from helpers.schedules import keep_everything
from poet.errors import InvalidSchedule
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.optimizer import OptimizerSpec
from poet.plans.plan_file import write_plan
from poet.plans.training_plan import Plan
from poet.problem import Problem
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule
from poet.problem.simulator import simulate
from poet.runtime.storage.state import raw_tensor


def net(pool: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 40, 3, padding=1),
        nn.BatchNorm2d(40),
        nn.ReLU(),
        nn.MaxPool2d(2) if pool is None else pool,
        nn.Conv2d(40, 48, 3, padding=1, groups=4, bias=False),
        nn.Hardtanh(),
        nn.Flatten(),
        nn.Linear(48 * 9, 70),
    ).train()


def written(
    path: Path,
    *,
    most: int = 99,
    optimizer: str = "momentum",
    pool: nn.Module | None = None,
    paging: bool = False,
) -> Plan:
    """A plan that runs up to ``most`` ops again or pages results, with gradients made block by block."""
    spec = OptimizerSpec.parse(f"{optimizer}:lr=0.05,weight_decay=0.01")
    with tiny_strips(LEAST_BYTES=1024):
        step = trace_training_step(net(pool), torch.zeros(2, 3, 6, 6), loss="cross-entropy", optimizer=spec)
    assert any(op.strip is not None for op in step.graph.ops)
    return write(path, step, most=most, paging=paging, slack=1.0)


def write(path: Path, step: TrainingStep, *, most: int, paging: bool, slack: float = 0.0) -> Plan:
    """A plan of ``step`` by `rerunning`, whose budget is what it needs, and ``slack`` times that."""
    problem = hand_net.problem(step.graph, kernels=step.kernels)
    plan = hand_net.plan(
        problem,
        step.graph,
        rerunning(problem, most, paging=paging),
        optimizer=step.optimizer,
        loss=step.loss,
        slack=slack,
        kernels=step.kernels,
    )
    write_plan(path, plan, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    return plan


def rerunning(problem: Problem, most: int, *, paging: bool = False) -> Schedule:
    """The schedule that keeps everything, up to ``most`` results dropped between two uses and made again.

    ``paging``: paged out and in instead.
    """
    schedule, reruns = keep_everything(problem), 0
    ops = {op.name: op for op in problem.ops}
    for op in problem.ops:
        runs = [(index, step.op) for index, step in enumerate(schedule) if isinstance(step, Compute)]
        uses = [index for index, name in runs if op.outputs and op.outputs[0] in ops[name].inputs]
        if len(uses) < 2 or len(op.outputs) != 1 or reruns == most:
            continue
        back = PageIn(op.outputs[0]) if paging else Compute(op.name)
        away = [PageOut(op.outputs[0])] if paging else []
        again = [*away, Free(op.outputs[0]), *schedule[uses[0] + 1 : uses[-1]], back]
        changed = (*schedule[: uses[0] + 1], *again, *schedule[uses[-1] :])
        try:
            simulate(problem, changed)
        except InvalidSchedule:
            continue
        schedule, reruns = changed, reruns + 1
    return schedule
