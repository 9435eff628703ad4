"""Batches of shapes that the plan has no step for: planned between steps, with the bits of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.pace import with_slow
from torch import Tensor, nn

from poet.api import Planned
from poet.api import plan as plan_module
from poet.errors import InputError, InvalidSchedule
from poet.frontend.plain import PlainTrainer
from poet.ir.calls import contiguous
from poet.ir.graph import Graph
from poet.ir.optimizer import OptimizerSpec
from poet.ir.reshaping import Reshaping, formula_of, without_strips
from poet.planning import beside, shape_planner
from poet.planning.beside import arena_around, at_home
from poet.planning.prepared import prepare
from poet.planning.shape_planner import ShapeImprovement, ShapePlanner
from poet.plans.plan_parts import Arena
from poet.plans.training_plan import Plan
from poet.problem.simulator import judge
from poet.problem.solution import SolveOptions, Start
from poet.runtime import Trainer
from poet.runtime.data.given import types_of
from poet.runtime.system.process import torch_threads
from poet.runtime.trials.measure import measured

ADAMW = OptimizerSpec("adamw", lr=0.01)
CLASSES = 3
Kind = Callable[[], nn.Module]


class Attention(nn.Module):
    """Attention with dropout over tokens of any length, with learned places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.places = nn.Embedding(11, 8), nn.Parameter(torch.randn(20, 8))
        self.mix, self.norm, self.head = nn.Linear(8, 24), nn.LayerNorm(8), nn.Linear(8, CLASSES)
        self.drop = nn.Dropout(0.2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [N,C] of tokens [N,L]."""
        found = self.embed(tokens) + self.places[: tokens.shape[1]]
        query, key, value = self.mix(found).chunk(3, dim=-1)
        weights = self.drop(torch.softmax(query @ key.transpose(1, 2) / 8**0.5, dim=-1))
        scores: Tensor = self.head(self.norm(found + weights @ value).mean(dim=1))
        return scores


class Recurrent(nn.Module):
    """An LSTM over tokens of any length."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.rows = nn.Embedding(11, 8), nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [N,C] of tokens [N,L]."""
        scores: Tensor = self.head(self.rows(self.embed(tokens))[0][:, -1])
        return scores


def tokens(samples: int, length: int) -> Tensor:
    return torch.randint(11, (samples, length), generator=torch.Generator().manual_seed(length))


def batch(samples: int, length: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    return tokens(samples, length), torch.randint(CLASSES, (samples,), generator=generator)


@cache
def planned(kind: Kind, share: float | None = None) -> Planned:
    """For 4 x 16, 4 x 8 and 4 x 4 tokens, in so much of what plain training holds."""
    ram = None if share is None else round(share * planned(kind).plan.held_bytes)
    with torch_threads(1):
        return plan_module(
            kind().train(), tokens(4, 16), device="x86-host", ram=ram, optimizer=ADAMW,
            shapes=[tokens(4, 8), tokens(4, 4)], evaluation=False, time_limit_seconds=1.0,
            gradients="keep" if share is None else "stream",
        )  # fmt: skip


def check_stream(path: Path, net: nn.Module, lengths: list[int]) -> ShapePlanner:
    """Losses and the state after steps of these lengths are those of plain PyTorch, within the plan's RAM."""
    names = [name for name, _ in net.named_parameters()]
    plain = PlainTrainer(net, loss="cross-entropy", optimizer=ADAMW, trained=names)
    planner = ShapePlanner()
    with Trainer.open(path, seed=3) as trainer:
        trainer.shape_planner = planner
        budget = trainer.plan.request.limits.ram_budget_bytes
        torch.manual_seed(3)
        missed = None
        for number, length in enumerate(lengths + lengths):
            inputs, targets = batch(4, length)
            if number == len(lengths) and trainer._tensors.placed is not None:
                missed = trainer._tensors.placed.misses  # kernels were run to plan the new shapes
            assert trainer.step(inputs, targets).loss == float(plain.step([inputs], targets)[0])
        state = net.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in trainer.state_dict().items())
        for shape in trainer.plan.shapes:
            assert budget is None or shape.step.held_bytes <= budget
            if trainer.plan.arena is not None and shape.step.arena is not None:
                assert shape.step.arena.size_bytes <= trainer.plan.arena.size_bytes
        assert trainer._tensors.placed is not None
        assert trainer._tensors.placed.misses == missed
    return planner


def test_a_number_has_the_simplest_formula() -> None:
    sizes = [(4, 8), (2, 8), (4, 4)]
    assert formula_of([32, 16, 16], sizes).at((3, 5)) == 15  # type: ignore[union-attr]
    assert formula_of([64, 64, 16], sizes).at((3, 6)) == 36  # type: ignore[union-attr]
    assert formula_of([5, 5, 5], sizes) is None or formula_of([5, 5, 5], sizes).at((9, 9)) == 5  # type: ignore[union-attr]
    assert formula_of([1 / 8, 1 / 8, 1 / 4], sizes).at((3, 10)) == 1 / 10  # type: ignore[union-attr]
    assert formula_of([3, 1, 7], [(4,), (2,), (8,)]).at((6,)) == 5  # type: ignore[union-attr]
    assert formula_of([3, 1], [(4,), (2,)]) is None  # two points lie on every line
    assert formula_of([1, 2, 7], [(4,), (2,), (8,)]) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Attention, Recurrent])
def test_a_graph_for_other_sizes_is_the_one_that_would_be_traced(kind: Kind) -> None:
    def graph(length: int) -> Graph:
        return prepare(
            kind().train(), tokens(4, length), device="x86-host", optimizer=ADAMW, gradients="keep"
        ).step.graph

    plan = planned(kind).plan
    reshaping = Reshaping([plan.graph, *(item.step.graph for item in plan.shapes)])
    types = contiguous("int64", (4, 13)), contiguous("int64", (4,))
    found, _ = measured(reshaping.graph(types), is_timed=False)
    assert found == without_strips(graph(13))
    with pytest.raises(InputError, match=r"its dim 0 is not 4"):
        reshaping.graph((contiguous("int64", (3, 13)), contiguous("int64", (3,))))
    with pytest.raises(InputError, match=r"is int32\[4,13\], the plan takes int64"):
        reshaping.graph((contiguous("int32", (4, 13)), contiguous("int64", (4,))))


@pytest.mark.parametrize("kind", with_slow([Attention, Recurrent], {Recurrent}))
def test_a_length_without_a_plan_is_planned_between_steps(tmp_path: Path, kind: Kind) -> None:
    planned(kind).save(tmp_path / "p.poet")
    planner = check_stream(tmp_path / "p.poet", kind().train(), [16, 11, 8, 11, 5])
    assert len(planner.timed) == 2  # each is kept


def test_what_a_new_shape_cannot_be_is_said(tmp_path: Path) -> None:
    planned(Attention).save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet") as trainer:
        with pytest.raises(InputError, match=r"the plan takes int64\[4,16\] or int64\[4,8\]"):
            trainer.step(*batch(4, 11))
        trainer.shape_planner = ShapePlanner()
        with pytest.raises(InputError, match="its dim 0 is not 4"):
            trainer.step(*batch(3, 11))
        with pytest.raises(InputError, match="size 1 in dim 1, where torch may compute in another way"):
            trainer.step(*batch(4, 1))
        with pytest.raises(InputError, match="have no step"):
            trainer.step(*batch(4, 21))  # there are 20 places
        with pytest.raises(InputError, match="the classes are"):
            trainer.step(tokens(4, 11), torch.full((4,), 99))
        assert trainer.steps == 0
        trainer.step(*batch(4, 11))


def test_a_planner_leaves_micro_batches_alone(tmp_path: Path) -> None:
    made = plan_module(
        nn.Linear(4, 3), torch.zeros(4, 4), device="x86-host", ram="64KiB", micro=2, evaluation=False,
    )  # fmt: skip
    made.save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet") as trainer:
        trainer.shape_planner = ShapePlanner()
        trainer.step(torch.zeros(4, 4), torch.zeros(4, dtype=torch.int64))
        with pytest.raises(InputError, match=r"the plan takes float32\[2,4\]"):
            trainer.step(torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64))


@pytest.mark.slow
def test_a_longer_search_takes_the_place_of_a_short_one(tmp_path: Path) -> None:
    made = planned(Attention, 0.85)
    made.save(tmp_path / "p.poet")
    hasty = ShapePlanner(time_limit_seconds=0.01)
    with Trainer.open(tmp_path / "p.poet", seed=3) as trainer:
        trainer.shape_planner = hasty
        losses = [trainer.step(*batch(4, length)).loss for length in (15, 15)]
        joules = sum(shape.step.step_joules for shape in trainer.plan.shapes)
        improved = [trainer.improve_shapes(partial(hasty.improve, time_limit_seconds=1.0)) for _ in range(4)]
        assert not improved[-1]  # each shape is searched once
        after = sum(shape.step.step_joules for shape in trainer.plan.shapes)
        assert after < joules if any(improved) else after == joules
        losses.append(trainer.step(*batch(4, 15)).loss)
    with Trainer.open(tmp_path / "p.poet", seed=3) as trainer:
        trainer.shape_planner = ShapePlanner()
        assert [trainer.step(*batch(4, 15)).loss for _ in range(3)] == losses


def test_one_shape_alone_says_nothing_of_others() -> None:
    with pytest.raises(InputError, match="where it has steps for several already"):
        Reshaping([planned(Attention).plan.graph])


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", [Attention, Recurrent])
def test_new_lengths_in_a_tight_budget_have_the_bits_of_plain_torch(
    tmp_path: Path, kind: Kind, threads: int
) -> None:
    made = planned(kind, 0.85 if kind is Attention else 0.96)
    assert made.plan.trace.recomputed_runs or made.plan.trace.written_bytes
    made.save(tmp_path / "p.poet")
    with torch_threads(threads):
        if threads == 1:
            check_stream(tmp_path / "p.poet", kind().train(), [16, 15, 14, 8, 15, 9, 3, 12, 16])
            return
        net = kind().train()
        names = [name for name, _ in net.named_parameters()]
        plain = PlainTrainer(net, loss="cross-entropy", optimizer=ADAMW, trained=names)
        with Trainer.open(tmp_path / "p.poet", seed=3) as trainer:
            trainer.shape_planner = ShapePlanner()
            torch.manual_seed(3)
            for length in (16, 15, 14, 15, 9):
                inputs, targets = batch(4, length)
                assert trainer.step(inputs, targets).loss == float(plain.step([inputs], targets)[0])


def test_after_a_change_of_budget_shapes_are_planned_inside_it(tmp_path: Path) -> None:
    made = planned(Attention)
    made.save(tmp_path / "p.poet")
    planner = ShapePlanner()
    with Trainer.open(tmp_path / "p.poet", seed=3) as trainer:
        trainer.shape_planner = planner
        losses = [trainer.step(*batch(4, 11)).loss]
        for _ in range(2):
            trainer.set_budget(made.plan.held_bytes)
            losses.append(trainer.step(*batch(4, 11)).loss)
            step = trainer.plan.shapes[-1].step
            assert step.request.limits.ram_budget_bytes == made.plan.held_bytes
    assert len(planner.timed) == 2  # one for each budget
    with Trainer.open(tmp_path / "p.poet", seed=3) as trainer:
        trainer.shape_planner = ShapePlanner()
        assert [trainer.step(*batch(4, 11)).loss for _ in losses] == losses


def test_improvement_takes_no_more_than_its_share_of_the_time(tmp_path: Path) -> None:
    planned(Attention).save(tmp_path / "p.poet")
    now, searches = [0.0], []

    class Counting(ShapePlanner):
        def improve(self, plan: Plan, *, time_limit_seconds: float = 0.0) -> None:
            searches.append((now[0], time_limit_seconds))
            now[0] += 3.0  # longer than it was given

    with Trainer.open(tmp_path / "p.poet") as trainer:
        with pytest.raises(InputError, match="the share lies between 0 and 1"):
            ShapeImprovement(trainer, Counting(), share=1.5)
        improvement = ShapeImprovement(
            trainer, Counting(), share=0.25, search_seconds=2.0, clock=lambda: now[0]
        )
        for _ in range(40):
            now[0] += 1.0  # a step
            assert not improvement.look()
    assert searches == [(8.0, 2.0), (23.0, 2.0), (38.0, 2.0)]
    assert 3.0 * len(searches) <= 0.25 * 40.0


@pytest.mark.slow
def test_shapes_get_better_between_steps_with_the_same_bits(tmp_path: Path) -> None:
    planned(Attention, 0.85).save(tmp_path / "p.poet")
    hasty = ShapePlanner(time_limit_seconds=0.01)
    net = Attention().train()
    plain = PlainTrainer(
        net, loss="cross-entropy", optimizer=ADAMW, trained=[name for name, _ in net.named_parameters()]
    )
    with Trainer.open(tmp_path / "p.poet", seed=3) as trainer:
        trainer.shape_planner = hasty
        improvement = ShapeImprovement(trainer, hasty, share=0.9, search_seconds=0.2)
        torch.manual_seed(3)
        joules = []
        for number in range(60):
            inputs, targets = batch(4, (15, 13)[number % 2])
            assert trainer.step(inputs, targets).loss == float(plain.step([inputs], targets)[0])
            improvement.look()
            joules.append(sum(shape.step.step_joules for shape in trainer.plan.shapes))
            for shape in trainer.plan.shapes:
                assert shape.step.held_bytes <= (trainer.plan.request.limits.ram_budget_bytes or 0)
        assert joules[-1] <= joules[1]  # from when both lengths are there


@pytest.mark.slow
def test_a_hasty_plan_begins_where_that_of_a_shape_nearby_ended(tmp_path: Path) -> None:
    """A length without time to search takes no more than its neighbour's schedule takes in its own places."""
    planned(Attention, 0.7).save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet", seed=3) as trainer:
        trainer.shape_planner = ShapePlanner(time_limit_seconds=2.0)
        trainer.step(*batch(4, 15))
        near = trainer.plan.shapes[-1].step
        assert near.trace.recomputed_runs or near.trace.written_bytes
        hasty = ShapePlanner(time_limit_seconds=0.001)
        found = hasty(trainer.plan, types_of(batch(4, 14))).step
    limits = found.request.limits
    assert near.places is not None
    start = judge(found.problem, near.schedule, limits, near.places.moved())
    assert found.trace.joules <= start.joules * (1 + 1e-9)
    assert found.held_bytes <= (limits.ram_budget_bytes or 0)


@pytest.mark.slow
def test_a_step_found_with_less_ram_has_the_bound_of_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the best schedule has no places in the arena, the next one is not said to be the best."""
    plan = planned(Attention, 0.7).plan
    step = plan.shapes[0].step
    problem, options = at_home(step.problem, plan), SolveOptions(time_limit_seconds=5.0)
    whole = beside.costed_beside(plan, step.graph, step.kernels, step.replayed_kernels, problem, options)
    monkeypatch.setattr(beside, "keep_everything", lambda *_: None)
    refused: list[object] = []

    def no_places_at_first(*given: Any, **named: Any) -> Arena | None:
        if not refused:
            refused.append(given)
            return None
        return arena_around(*given, **named)

    monkeypatch.setattr(beside, "arena_around", no_places_at_first)
    again = beside.costed_beside(plan, step.graph, step.kernels, step.replayed_kernels, problem, options)
    assert whole is not None
    assert again is not None
    assert again.outcome.bound_joules <= whole.trace.joules * (1 + 1e-9)
    assert again.trace.peak_ram_bytes < whole.trace.peak_ram_bytes
    is_dearer = again.trace.joules > whole.trace.joules * (1 + 1e-3)
    assert is_dearer
    assert again.outcome.status == "feasible"


def test_the_plans_own_schedule_is_a_start_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as the judge takes it; that everything fits here is left out of sight."""
    monkeypatch.setattr(shape_planner, "keep_everything", lambda *_: None)
    plan = planned(Attention).plan
    step, options = plan.shapes[0].step, SolveOptions()
    alone = replace(plan, shapes=())
    begun, near = shape_planner._begun(alone, step.graph, step.problem, options)
    assert near is alone
    assert begun.start == Start(plan.schedule, plan.outcome.solver)


@pytest.mark.slow
def test_a_hasty_plan_begins_with_the_plans_own_schedule_as_well(tmp_path: Path) -> None:
    """The main shape is searched longest; where its schedule fits the new one, nothing costs more."""
    planned(Attention, 0.7).save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet") as trainer:
        plan = trainer.plan
        found = ShapePlanner(time_limit_seconds=0.001)(plan, types_of(batch(4, 15))).step
    assert plan.places is not None
    of_main = judge(found.problem, plan.schedule, found.request.limits, plan.places.moved()).joules
    assert found.trace.joules <= of_main * (1 + 1e-9)
    of_shapes = []
    for shape in plan.shapes:
        with pytest.raises(InvalidSchedule):
            of_shapes.append(judge(found.problem, shape.step.schedule, found.request.limits).joules)
    assert not of_shapes  # so no other start was there
