"""What optimizers and clipping are made of: their ops' costs and order."""

from __future__ import annotations

from pathlib import Path

import torch
from helpers.optimizer_plans import SPECS, net, write

from poet.devices.device_problem import build_problem
from poet.devices.load import load_profile
from poet.frontend.trace import trace_training_step
from poet.problem.schedule import Compute
from poet.runtime import Trainer
from poet.runtime.data.random_batches import random_batch


def test_every_op_has_its_cost_on_a_device() -> None:
    for spec in {spec.name: spec for spec in SPECS.values()}.values():
        step = trace_training_step(net(), torch.zeros(3, 2, 4, 4), optimizer=spec, measure=False)
        problem = build_problem(step.graph, load_profile("rpi4b"), step.kernels)
        assert {op.name for op in problem.ops} == {op.name for op in step.graph.ops}, spec.name


def test_clipping_changes_something(tmp_path: Path) -> None:
    """Else equal bits would show nothing."""
    weights = []
    for name in ("clip value", "clip norm in vain"):
        plan = write(tmp_path / "p", SPECS[name], share=0.0)
        with Trainer.open(tmp_path / "p", seed=0) as trainer:
            trainer.step(*random_batch(plan, 0))
            weights.append(trainer.parameters()["0.weight"])
    assert not torch.equal(*weights)


def test_the_norm_of_all_gradients_is_there_before_the_first_update(tmp_path: Path) -> None:
    plan = write(tmp_path / "p", SPECS["clip norm"], share=0.0)
    ops = [step.op for step in plan.schedule if isinstance(step, Compute)]
    updates = [place for place, op in enumerate(ops) if op.endswith(".update")]
    assert updates[0] > ops.index("grad.clip_coefficient")
