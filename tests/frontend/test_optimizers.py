"""Optimizers, parameter groups, clipping: replay gives the bits of plain PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.optimizer_plans import SPECS, net, write
from helpers.pace import with_slow

from poet.devices.device_problem import build_problem
from poet.devices.load import load_profile
from poet.frontend.trace import trace_training_step
from poet.random_batches import random_batch
from poet.runtime import Trainer
from poet.schedule import Compute
from poet.verification import verify


@pytest.mark.parametrize(
    "name",
    with_slow(
        SPECS,
        {
            "clip norm in vain",
            "clip norm",
            "sgd groups",
            "amsgrad",
            "maximize clipped",
            "adadelta",
            "adamax",
            "adamw groups",
            "everything",
        },
    ),
)
def test_training_gives_the_bits_of_torchs_optimizer(name: str, tmp_path: Path) -> None:
    write(tmp_path / "p", SPECS[name])
    verify(tmp_path / "p", module=net(), steps=3).require()


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["adadelta", "adamax", "nadam groups", "radam"])
def test_many_steps_have_the_bits_as_well(name: str, threads: int, tmp_path: Path) -> None:
    """RAdam's step has another form from the sixth on (and its memory no other)."""
    plan = write(tmp_path / "p", SPECS[name])
    assert plan.trace.recomputed_runs
    assert plan.trace.written_bytes
    verify(tmp_path / "p", module=net(), steps=12, threads=(threads,)).require()


@pytest.mark.parametrize("name", SPECS)
def test_every_op_has_its_cost_on_a_device(name: str) -> None:
    step = trace_training_step(net(), torch.zeros(3, 2, 4, 4), optimizer=SPECS[name], measure=False)
    problem = build_problem(step.graph, load_profile("rpi4b"), step.kernels)
    assert {op.name for op in problem.ops} == {op.name for op in step.graph.ops}


def test_clipping_changes_something(tmp_path: Path) -> None:
    """Else the tests above would show nothing."""
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
