"""What a step saves in long or short form, as its plan chooses: graphs, exactness, the way to a plan."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from poet import api
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.passes.rewrite import Technique
from poet.planning.prepared import Prepared
from poet.planning.ram_survey import keep_everything_bytes
from poet.planning.step_search import offered, solve_choosing, without_choice
from poet.problem import Limits, Pins
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Status
from poet.solvers import minimum_ram_bytes

QUICK = SolveOptions(time_limit_seconds=2.0)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.3),
        nn.Conv2d(16, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip


X = torch.zeros(2, 1, 32, 32)


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return api.prepare(net(), X, device="rpi4b")


@pytest.fixture(scope="module")
def step() -> TrainingStep:
    return trace_training_step(net(), X)


def targets_of(prepared: Prepared) -> set[str]:
    return {op.call.target for op in prepared.step.graph.ops}


def test_the_ends_of_the_choice(step: TrainingStep) -> None:
    forms = step.forms
    assert forms is not None
    assert forms.graph(list(forms.of(Technique.COMPRESSED))) == step.graph
    assert forms.kernels(list(forms.of(Technique.COMPRESSED))) == step.kernels
    assert forms.graph(()) == forms.long
    assert forms.kernels(()) == forms.long_kernels
    targets = {op.call.target for op in forms.long.ops}
    assert not targets & {"poet.relu", "poet.max_pool", "poet.bernoulli_bits"}
    assert trace_training_step(net(), X, gradients="keep").forms is None


def test_nothing_is_offered_where_there_is_one_form(prepared: Prepared) -> None:
    assert offered(without_choice(prepared), Limits()) == prepared.problem
    assert offered(prepared, Limits(pins=Pins(keep=("*",)))) == prepared.problem
    assert without_choice(prepared).problem == prepared.problem


def test_where_ram_is_plenty_no_save_is_packed(prepared: Prepared) -> None:
    of = offered(prepared, Limits())
    plenty = Limits(ram_budget_bytes=2 * keep_everything_bytes(of))
    chosen, found = solve_choosing(prepared, plenty, SolveOptions(time_limit_seconds=20.0))
    assert found.status is Status.OPTIMAL
    assert not targets_of(chosen) & {"poet.relu", "poet.max_pool"}
    assert found.schedule is not None
    assert found.trace == simulate(chosen.problem, found.schedule, plenty)
    least = minimum_ram_bytes(of).bytes
    tight, answer = solve_choosing(prepared, Limits(ram_budget_bytes=least), QUICK)
    assert answer.schedule is not None
    assert targets_of(tight) & {"poet.relu", "poet.max_pool", "poet.bernoulli_bits"}
    assert answer.bound_joules <= (answer.joules or 0.0)


def test_without_a_plan_it_says_what_would_help(prepared: Prepared) -> None:
    few = Limits(ram_budget_bytes=minimum_ram_bytes(offered(prepared, Limits())).bytes - 64)
    same, answer = solve_choosing(prepared, few, QUICK)
    assert same is prepared
    assert answer.status is Status.INFEASIBLE
    assert "RAM of" in answer.message


def test_what_plain_training_needs_and_the_lower_bound_are_those_of_no_choice(prepared: Prepared) -> None:
    keep_bytes = keep_everything_bytes(offered(prepared, Limits()))
    made = [
        api.plan_step(prepared, Limits(ram_budget_bytes=ram_bytes), QUICK).plan
        for ram_bytes in (2 * keep_bytes, round(0.9 * keep_bytes))
    ]
    assert made[0].graph != made[1].graph
    for plan in made:
        assert plan.prediction.plain_peak_ram_bytes == keep_bytes
        assert plan.prediction.lower_bound_ram_bytes == minimum_ram_bytes(offered(prepared, Limits())).bytes
