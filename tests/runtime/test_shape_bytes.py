"""Bytes against input size, learned from a plan's shapes, and the largest size that has a step."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from poet.api import Planned
from poet.api import plan as plan_module
from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.errors import Infeasible, InputError
from poet.frontend.plain import PlainTrainer
from poet.ir.calls import TensorType, contiguous
from poet.ir.optimizer import OptimizerSpec
from poet.ir.reshaping import Reshaping
from poet.planning.beside import at_home, limits_beside
from poet.planning.ram_survey import keep_everything_bytes
from poet.planning.shape_bytes import law_of
from poet.planning.shape_planner import ShapePlanner
from poet.plans.training_plan import Plan
from poet.problem import Problem
from poet.runtime import Trainer
from poet.runtime.system.process import torch_threads
from poet.runtime.trials.measure import measured
from poet.solvers import minimum_ram_bytes

BUDGET_BYTES = 33_000  # keeping everything takes 34,944
SGD = OptimizerSpec("momentum", lr=0.01)


def test_a_law_is_the_simplest_that_gives_the_bytes() -> None:
    parabola = law_of({(4,): 7 + 4 + 3 * 16, (2,): 7 + 2 + 3 * 4, (8,): 7 + 8 + 3 * 64})
    assert parabola.at((100,)) == 7 + 100 + 30_000
    assert law_of({(4,): 40, (2,): 20}).products[0][1] == (1,)  # no square where a line will do
    assert law_of({(4,): 40, (2,): 40, (8,): 40}).products == ()
    two = law_of({(n, length): 100 + 6 * n * length**2 for n in (1, 4) for length in (8, 16)})
    assert two.at((3, 20)) == 100 + 6 * 3 * 400


def test_a_law_never_falls() -> None:
    """Bytes that fall as a size grows, as a kernel's workspace may, do not make larger sizes seem free."""
    law = law_of({(1,): 100, (2,): 80, (3,): 60})
    assert law.at((1000,)) >= law.at((1,))
    assert law.error == pytest.approx(0.25, abs=0.05)


class Mixer(nn.Module):
    """Attention over tokens of any length, after a hidden layer, for any batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.hidden = nn.Embedding(11, 8), nn.Linear(8, 32)
        self.back, self.head = nn.Linear(32, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [N,C] of tokens [N,L]."""
        found = self.embed(tokens)
        found = found + self.back(torch.relu(self.hidden(found)))
        weights = torch.softmax(found @ found.transpose(1, 2), dim=-1)
        scores: Tensor = self.head((weights @ found).mean(dim=1))
        return scores


def tokens(samples: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(samples * length)
    return torch.randint(11, (samples, length), generator=generator)


@cache
def planned() -> Planned:
    with torch_threads(1):
        return plan_module(
            Mixer().train(), tokens(4, 16), device="x86-host", ram=BUDGET_BYTES, optimizer=SGD,
            shapes=[tokens(2, 16), tokens(4, 8), tokens(2, 4)], evaluation=False,
            time_limit_seconds=1.0,
        )  # fmt: skip


def types(samples: int, length: int) -> tuple[TensorType, ...]:
    return contiguous("int64", (samples, length)), contiguous("int64", (samples,))


def problem_of(plan: Plan, samples: int, length: int) -> Problem:
    """Of a step for other sizes, with the workspaces of kernels that were run."""
    reshaping = Reshaping([plan.graph, *(shape.step.graph for shape in plan.shapes)])
    graph, facts = measured(reshaping.graph(types(samples, length)), is_timed=False)
    profile = load_profile("x86-host")
    return at_home(build_problem(graph, profile, kernels_on(profile, graph, facts)), plan)


@pytest.mark.slow
def test_what_other_shapes_take_is_foreseen() -> None:
    """Two sizes at once, inside and outside of what the laws were learned from, against the problem."""
    plan, planner = planned().plan, ShapePlanner()
    own = planner.foresee(plan, types(4, 16))
    assert own.kept_bytes == keep_everything_bytes(at_home(plan.problem, plan))
    assert own.least_bytes == minimum_ram_bytes(at_home(plan.problem, plan), limits_beside(plan)).bytes
    for samples, length in ((3, 9), (4, 13), (2, 12), (6, 20)):
        foreseen, problem = planner.foresee(plan, types(samples, length)), problem_of(plan, samples, length)
        assert foreseen.kept_bytes == pytest.approx(keep_everything_bytes(problem), rel=0.01)
        least = minimum_ram_bytes(problem, limits_beside(plan))
        assert foreseen.least_bytes == pytest.approx(least.bytes, rel=0.01)
        assert foreseen.may_fit == (foreseen.least_bytes <= foreseen.within_bytes)
        assert foreseen.fits_kept == (foreseen.kept_bytes <= foreseen.within_bytes)


@pytest.mark.slow
def test_the_largest_size_has_a_step_and_the_next_one_has_none() -> None:
    plan = planned().plan
    found = ShapePlanner().largest(plan, dim=1)
    assert found.size > 4
    assert found.types == types(4, found.size)
    with pytest.raises(Infeasible, match=rf"{found.size} in dim 1 of tokens, \d+ with everything kept"):
        ShapePlanner()(plan, types(4, found.size + 1))
    assert "no schedule was found" in found.why
    if found.shape is not None:
        assert found.shape.step.held_bytes <= BUDGET_BYTES


@pytest.mark.slow
def test_a_wrong_guess_costs_tries_and_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Laws that are far off, to either side: the answer is the same, and judged."""
    plan = planned().plan
    right = ShapePlanner().largest(plan, dim=1)
    for guess in (max(1, factor * right.size) for factor in (0, 10)):
        monkeypatch.setattr(
            "poet.planning.shape_bytes.ShapeBytes.largest", lambda *_, guess=guess, **__: guess
        )
        wrong = ShapePlanner().largest(plan, dim=1)
        assert abs(wrong.size - right.size) <= 1  # searches have a time limit
        assert wrong.shape is None or wrong.shape.step.held_bytes <= BUDGET_BYTES
        assert wrong.tried >= right.tried


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_the_largest_size_trains_with_the_bits_of_plain_torch(tmp_path: Path, threads: int) -> None:
    planned().save(tmp_path / "p.poet")
    planner, net = ShapePlanner(), Mixer().train()
    plain = PlainTrainer(
        net, loss="cross-entropy", optimizer=SGD, trained=[name for name, _ in net.named_parameters()]
    )
    with torch_threads(threads), Trainer.open(tmp_path / "p.poet") as trainer:
        trainer.shape_planner = planner
        length = planner.largest(trainer.plan, dim=1).size
        for number in (length, 16, length - 1, length):
            targets = torch.randint(3, (4,), generator=torch.Generator().manual_seed(number))
            inputs = tokens(4, number)
            assert trainer.step(inputs, targets).loss == float(plain.step([inputs], targets)[0])
        state = net.state_dict()
        assert all(torch.equal(item, state[name]) for name, item in trainer.state_dict().items())


class Halving(nn.Module):
    """Takes images whose sides are even."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.after = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        """Scores [N,C] of images [N,1,S,S]."""
        pooled = torch.relu(self.before(images)).reshape(len(images), 4, images.shape[2], -1, 2).mean(dim=4)
        scores: Tensor = self.head(torch.relu(self.after(pooled)).mean(dim=(2, 3)))
        return scores


@pytest.mark.slow
def test_sizes_that_a_model_takes_are_multiples() -> None:
    plan = plan_module(
        Halving().train(), torch.zeros(2, 1, 16, 16), device="x86-host", ram="64KiB", optimizer=SGD,
        shapes=[torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 4, 4)], evaluation=False,
    ).plan  # fmt: skip
    found = ShapePlanner().largest(plan, dim=3, multiple_of=2)
    assert found.size >= 16
    assert found.size % 2 == 0
    with pytest.raises(
        InputError, match=r"none of the sizes that are planned \(4, 8, 16\) is a multiple of 3"
    ):
        ShapePlanner().largest(plan, dim=3, multiple_of=3)


def test_what_has_no_largest_size_is_said() -> None:
    with pytest.raises(InputError, match="dim 0 of tensor 5 has one size in all of the plan's shapes"):
        ShapePlanner().largest(planned().plan, dim=0, tensor=5)
    with pytest.raises(InputError, match="size 1 in dim 1"):
        ShapePlanner().foresee(planned().plan, (contiguous("int64", (4, 1)), contiguous("int64", (4,))))
