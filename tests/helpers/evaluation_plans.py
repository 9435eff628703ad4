"""A small net's plans with an evaluation beside the training step."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from helpers import hand_net
from helpers.nets import small_net
from helpers.schedules import random_schedule
from poet.frontend.evaluation import EvaluationStep, trace_evaluation
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.optimizer import OptimizerSpec
from poet.plans.plan_file import write_plan
from poet.plans.training_plan import Plan
from poet.runtime.storage.state import raw_tensor


@cache
def traced() -> tuple[TrainingStep, EvaluationStep]:
    spec, example = OptimizerSpec("momentum", lr=0.05), torch.zeros(6, 2, 8, 8)
    step = trace_training_step(small_net(), example, optimizer=spec, measure=False)
    return step, trace_evaluation(small_net(), example, step, measure=False)


def small_plan(seed: int, *, share: float, in_storage: bool = False) -> Plan:
    """A plan whose training and evaluation recompute, page, and move what lives across steps."""
    return plan_by_chance(*traced(), seed, share=share, in_storage=in_storage)


def plan_by_chance(
    step: TrainingStep, evaluation: EvaluationStep, seed: int, *, share: float, in_storage: bool = False
) -> Plan:
    """A plan with an evaluation that both recompute and page by chance; not with a ``share`` of 0."""
    of = hand_net.problem(step.graph, parameters_in_storage=in_storage)
    schedule = random_schedule(of, seed, share=share)
    plan = hand_net.plan(of, step.graph, schedule, optimizer=step.optimizer, loss="cross-entropy", slack=1.0)
    found = hand_net.beside(plan, evaluation.graph, seed=seed + 1, share=share)
    return replace(plan, request=replace(plan.request, limits=found.request.limits), evaluation=found)


def write(path: Path, plan: Plan) -> None:
    write_plan(path, plan, {name: raw_tensor(tensor) for name, tensor in traced()[0].tensors.items()})
