"""Ops on units with threads of their own: every bit of plain PyTorch's with the same threads per op."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.on_units import every_other
from helpers.schedules import keep_everything, random_schedule
from torch import nn

import poet
from poet.devices.load import load_profile, profile_text
from poet.errors import ProfileError
from poet.plans.plan_file import read_plan, write_plan
from poet.problem.schedule import Compute
from poet.runtime import Trainer
from poet.runtime.data.random_batches import random_step
from poet.runtime.system.process import torch_threads


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 16 * 16, 10),
    )  # fmt: skip


@pytest.fixture(params=["recomputed and paged", "kept"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    what = hand_net.graph()
    of = every_other(hand_net.problem(what))
    schedule = keep_everything(of) if request.param == "kept" else random_schedule(of, 5)
    write_plan(tmp_path / "net.poet", hand_net.plan(of, what, schedule), hand_net.stored(hand_net.net()))
    return tmp_path / "net.poet"


def test_every_bit_is_plain_pytorchs(path: Path) -> None:
    report = poet.verify(path, module=hand_net.net(), threads=(1, 2), allow_over_budget=True)
    report.require()
    assert report.recomputed_runs > 0 or report.page_ins == 0


@pytest.mark.slow
@pytest.mark.parametrize("ram", ["2.0MiB", "20MiB"])
def test_a_phones_plan_is_exact_on_both_of_its_units(ram: str, tmp_path: Path) -> None:
    """The gradient of a convolution has other bits with two threads than with one."""
    with torch_threads(2):
        planned = poet.plan(
            net(),
            torch.randn(8, 3, 32, 32),
            device="pixel",
            ram=ram,
            deadline="1.25x",
            time_limit_seconds=6.0,
        )
    planned.save(tmp_path / "net.poet")
    assert 0 < len(planned.plan.own_threads()) < len(planned.plan.graph.ops)
    poet.verify(tmp_path / "net.poet", module=net(), threads=(1, 2), allow_over_budget=True).require()


def test_torch_has_its_threads_back(path: Path) -> None:
    plan = read_plan(path)
    with torch_threads(2), Trainer.open(path) as trainer:
        trainer.allow_over_budget = True
        trainer.step(*random_step(plan, 0))
        assert torch.get_num_threads() == 2


def test_an_op_runs_with_the_threads_of_its_unit(path: Path) -> None:
    plan, seen = read_plan(path), dict[str, int]()
    with torch_threads(2), Trainer.open(path) as trainer:
        trainer.allow_over_budget = True

        def see(index: int) -> None:
            seen[previous[0]] = torch.get_num_threads()
            step = plan.schedule[index]
            previous[0] = step.op if isinstance(step, Compute) else previous[0]

        previous = [""]
        trainer.step(*random_step(plan, 0), on_instruction=see)
    own = plan.own_threads()
    assert {op: count for op, count in seen.items() if op} == {op: own.get(op, 2) for op in seen if op}


def test_a_unit_survives_its_file_and_ends_of_its_figures() -> None:
    pixel = load_profile("pixel")
    assert [unit.name for unit in pixel.units] == ["one-core"]
    places = {".".join(place) for place, _ in pixel.figures()}
    assert "units.0.compute.matmul.flops_per_second" in places
    assert "\n[[units]]\nname" in profile_text(pixel)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[units]]\nname = "two"\noverlap = true\n', "'overlap' is not a field of units.1"),
        ('[[units]]\nname = "one-core"\n', "units.1: the field 'compute' is missing"),
        ('[[units]]\nname = "Two"\n', "units.1.name is 'Two'; expected lower-case letters"),
    ],
)
def test_wrong_units_are_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    pixel = load_profile("pixel")
    file = tmp_path / "board.toml"
    file.write_text(profile_text(pixel) + text)
    with pytest.raises(ProfileError, match=said):
        load_profile(file)
    file.write_text(profile_text(pixel))
    again = load_profile(file)
    assert again.units[0].threads == 1
    assert again.units[0].compute.active_watts.value == pixel.units[0].compute.active_watts.value
