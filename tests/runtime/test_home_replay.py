"""Replay with parameters at home in storage: bitwise over steps, a resume and the trained weights."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor
from zoo import NETS

import poet
from poet.errors import Infeasible
from poet.problem import Place
from poet.runtime import Trainer

NET = NETS["bert"].small
pytestmark = pytest.mark.slow
HOMES = ("storage", "either")
RAM = "110KiB"  # the parameters with their momentum take 230 KiB


@functools.cache
def planned(home: str) -> poet.Planned:
    torch.manual_seed(0)
    return poet.plan(
        NET.build().train(),
        NET.inputs(2),
        device="rpi4b",
        ram=RAM,
        optimizer="momentum",
        home=home,
        time_limit_seconds=1.0,
    )


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(NET.inputs(2)[0], NET.targets(2)) for _ in range(count)]


def test_with_everything_in_ram_there_is_no_plan_and_the_way_out_is_said() -> None:
    with pytest.raises(Infeasible, match="home"):
        planned("ram")


@pytest.mark.parametrize("home", HOMES)
def test_the_plan_says_where_everything_is_at_home(home: str) -> None:
    plan = planned(home).plan
    at_home = {t.name: t.initially for t in plan.problem.tensors}
    assert Place.EITHER not in at_home.values()
    assert Place.STORAGE in at_home.values()
    assert plan.trace.peak_ram_bytes <= 110 * 1024


@pytest.mark.parametrize("home", HOMES)
def test_steps_and_a_resume_are_those_of_plain_torch(home: str, tmp_path: Path) -> None:
    planned(home).save(tmp_path / "plan.poet")
    torch.manual_seed(0)
    module = NET.build().train()
    report = poet.verify(tmp_path / "plan.poet", module=module, steps=2, threads=(1, 2))
    assert [comparison.difference for comparison in report.comparisons] == [None, None]
    data = batches(2)
    with Trainer.open(tmp_path / "plan.poet", seed=7) as whole:
        for inputs, targets in data:
            whole.step(inputs, targets)
        expected, momenta = whole.state_dict(), whole.optimizer_state()
    with Trainer.open(tmp_path / "plan.poet", seed=7) as first:
        for inputs, targets in data[:1]:
            first.step(inputs, targets)
        first.save(tmp_path / "half.safetensors")
    with Trainer.open(tmp_path / "plan.poet", resume=tmp_path / "half.safetensors") as second:
        for inputs, targets in data[1:]:
            second.step(inputs, targets)
        found = second.state_dict()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        again = second.optimizer_state()
        for name, tensors in momenta.items():
            assert all(torch.equal(again[name][key], tensor) for key, tensor in tensors.items())
    module.load_state_dict(found)  # the trained weights go back into the module
