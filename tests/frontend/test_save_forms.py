"""What a step saves in long or short form, as its plan chooses: graphs, exactness, the way to a plan."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poet import api
from poet.devices.load import load_profile
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.graph import Graph, Role
from poet.passes.compressed import compressible
from poet.passes.rewrite import Technique
from poet.planning.prepared import Prepared, form_on
from poet.planning.ram_survey import keep_everything_bytes
from poet.planning.step_search import offered, solve_choosing, without_choice
from poet.problem import Limits, Pins, Place
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Status
from poet.report.check import packed_lines
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


# --- which ops make and read short forms -------------------------------------------------------


class Fire(nn.Module):
    """A fire module's branches (whose gradients are slices of something wider), poolings and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.left, self.right = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 16, 3, padding=1)
        self.last = nn.Linear(24 * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 3, 2, padding=1)
        x = torch.cat([F.relu(self.left(x)), F.relu(self.right(x))], 1)
        x = F.dropout(F.max_pool2d(x, 2, ceil_mode=True), 0.3, training=True)
        return self.last(x.flatten(1))  # type: ignore[no-any-return]


def fire() -> nn.Module:
    torch.manual_seed(0)
    return Fire()


def traced(module: nn.Module, *inputs: Tensor, **options: object) -> TrainingStep:
    return trace_training_step(module, inputs, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fire_step() -> TrainingStep:
    return traced(fire(), torch.zeros(2, 3, 32, 32))


def called(graph: Graph) -> list[str]:
    return [op.call.target if op.strip is None else op.strip.links[0].call.target for op in graph.ops]


def saved_bytes(graph: Graph) -> int:
    return sum(buffer.size_bytes for buffer in graph.buffers if buffer.role is Role.SAVED)


def test_signs_places_and_masks_are_saved_in_short_form(fire_step: TrainingStep) -> None:
    whole = traced(fire(), torch.zeros(2, 3, 32, 32), gradients="keep")
    assert whole.digest == fire_step.digest
    made = called(fire_step.graph)
    pairs = (("poet.relu", "poet.relu_backward"), ("poet.max_pool", "poet.max_pool_backward"))
    assert [made.count(name) for pair in pairs for name in pair] == [3, 3, 2, 2]
    assert made.count("poet.bernoulli_bits") == 1
    assert made.count("poet.masked") == 2
    assert not {"aten.relu.default", "poet.bernoulli", "aten.div.Scalar", "poet.rng_state"} & set(made)
    assert saved_bytes(fire_step.graph) < 0.4 * saved_bytes(whole.graph)
    assert not compressible(fire_step.graph)


def test_the_report_says_what_is_packed(fire_step: TrainingStep) -> None:
    (line,) = packed_lines(fire_step.graph)
    assert line.startswith("6 tensors saved for backward in bits and bytes: ")
    assert not packed_lines(traced(fire(), torch.zeros(2, 3, 32, 32), gradients="keep").graph)


def test_small_tensors_stay_as_they_are() -> None:
    small = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5))
    assert not packed_lines(traced(small, torch.zeros(1, 3, 8, 8)).graph)


def test_plans_of_several_shapes_save_as_plain_training_does() -> None:
    """So that graphs for other sizes follow from theirs."""
    assert not packed_lines(traced(fire(), torch.zeros(2, 3, 32, 32), in_short_forms=False).graph)
    profile = load_profile("rpi4b")
    assert form_on(profile, Place.RAM).in_short_forms
    assert not form_on(profile, Place.RAM, has_shapes=True).in_short_forms
