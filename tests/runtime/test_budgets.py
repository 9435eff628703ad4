"""A budget that changes between steps: the training goes on with the bits of one that nobody disturbed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from poet.api import Planned
from poet.api import plan as plan_module
from poet.errors import Infeasible, OutOfTime, PageFileError, ReplayError
from poet.ir.optimizer import OptimizerSpec
from poet.planning.auxiliary import plan_again
from poet.plans.training_plan import Plan, Shape
from poet.runtime import Trainer
from poet.runtime.system.process import torch_threads
from poet.runtime.training import open_plan as pages_module
from poet.runtime.training.training_state import Budgets, within

LAYERS = 3
QUICKLY = partial(plan_again, time_limit_seconds=0.5)


@cache
def planned() -> Planned:
    """A net whose activations are most of what it holds, with a step for a smaller batch beside its own."""
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2))]
    with torch_threads(1):
        return plan_module(
            nn.Sequential(*layers, nn.Linear(16, 3)),
            torch.zeros(64, 16),
            device="x86-host",
            ram="1MiB",
            optimizer=OptimizerSpec("adamw", lr=0.01),
            shapes=[torch.zeros(32, 16)],
        )


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    samples = 32 if number % 3 == 2 else 64
    inputs = torch.randn(samples, 16, generator=generator)
    return inputs, torch.randint(3, (samples,), generator=generator)


def run(path: Path, *numbers: int) -> list[float]:
    """Losses of steps on these batches."""
    with Trainer.open(path, seed=5) as trainer:
        return [trainer.step(*batch(number)).loss for number in numbers]


@pytest.mark.slow
def test_what_holds_less_than_the_budget_needs_no_planner(tmp_path: Path) -> None:
    planned().save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet", seed=5) as trainer:
        least_bytes = trainer.plan.held_bytes
        trainer.set_budget(least_bytes)
        assert trainer.plan.schedule == planned().plan.schedule
        with pytest.raises(Infeasible, match=r"planner=poet\.plan_again"):
            trainer.set_budget(least_bytes - 4096)
        losses = [trainer.step(*batch(0)).loss]
        trainer.set_budget("1MiB")
        losses.append(trainer.step(*batch(1)).loss)
    assert losses == run(tmp_path / "p.poet", 0, 1)


def test_where_nothing_fits_training_goes_on_as_it_was(tmp_path: Path) -> None:
    planned().save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet", seed=5) as trainer:
        trainer.step(*batch(0))
        with pytest.raises(Infeasible, match="needs at least"):
            trainer.set_budget("1KiB", planner=plan_again)
        assert trainer.step(*batch(1)).loss == run(tmp_path / "p.poet", 0, 1)[1]


def test_a_change_that_fails_goes_back_to_the_plan_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned().save(tmp_path / "p.poet")
    losses = run(tmp_path / "p.poet", 0, 1)
    with Trainer.open(tmp_path / "p.poet", seed=5) as trainer:
        assert trainer.step(*batch(0)).loss == losses[0]
        failing(monkeypatch, 1)
        with pytest.raises(PageFileError, match="the card is full"):
            trainer.set_budget(trainer.plan.held_bytes)
        assert trainer.step(*batch(1)).loss == losses[1]


def test_a_plan_within_another_budget_keeps_what_stands_beside_it() -> None:
    plan = planned().plan
    smaller = within(plan, plan.held_bytes)
    assert smaller is not None
    assert [item.step.schedule for item in smaller.shapes] == [item.step.schedule for item in plan.shapes]
    assert smaller.evaluation is not None
    assert within(plan, plan.held_bytes - 4096) is None


def test_a_shape_that_is_added_leaves_the_other_budgets(tmp_path: Path) -> None:
    plan = planned().plan
    smaller = within(plan, plan.held_bytes)
    assert smaller is not None
    replace(planned(), plan=replace(plan, budgets=(smaller,))).save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet", seed=5) as trainer:
        trainer._open.add_shape(Shape(plan.shapes[0].step))
        losses = [trainer.step(*batch(number)).loss for number in (0, 2)]
        trainer.set_budget(plan.held_bytes)
        assert trainer.plan.request.limits.ram_budget_bytes == plan.held_bytes
        losses.append(trainer.step(*batch(2)).loss)
    assert losses == run(tmp_path / "p.poet", 0, 2, 2)


def test_sums_of_micro_batches_are_finished_first(tmp_path: Path) -> None:
    with torch_threads(1):
        made = plan_module(
            nn.Linear(4, 3), torch.zeros(4, 4), device="x86-host", ram="64KiB", micro=2, evaluation=False,
        )  # fmt: skip
    made.save(tmp_path / "p.poet")
    piece = torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)
    with Trainer.open(tmp_path / "p.poet") as trainer:
        trainer.accumulate(*piece)
        with pytest.raises(ReplayError, match="change the budget after its last one"):
            trainer.set_budget("32KiB")
        trainer.step(*piece)
        trainer.set_budget("32KiB", planner=plan_again)
        trainer.accumulate(*piece)
        trainer.step(*piece)


def test_no_change_forgets_what_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_plan().save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet", allow_nan=True) as trainer:
        failing(monkeypatch, 1)
        with pytest.raises(PageFileError):
            trainer.set_budget(trainer.plan.held_bytes)
        assert trainer.allow_nan
        trainer.set_budget(trainer.plan.held_bytes)
        assert trainer.allow_nan


def test_the_state_outlives_a_change_whose_way_back_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_plan().save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet", seed=5) as trainer:
        trainer.step(torch.ones(4, 4), torch.zeros(4, dtype=torch.int64))
        before, size_bytes = trainer.state_dict(), trainer.plan.held_bytes
        failing(monkeypatch, 3)
        with pytest.raises(ReplayError, match=r"card is full.* save\(\) and set_budget\(\) are still"):
            trainer.set_budget(size_bytes)
        with pytest.raises(ReplayError, match="are still possible"):
            trainer.step(torch.ones(4, 4), torch.zeros(4, dtype=torch.int64))
        trainer.save(tmp_path / "s")
        with pytest.raises(PageFileError):  # of the one plan; the other opens
            trainer.set_budget(size_bytes)
        assert trainer.steps == 1
        assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.state_dict().items())
        trainer.set_budget(size_bytes)
        expected = trainer.step(torch.ones(4, 4), torch.zeros(4, dtype=torch.int64)).loss
    with Trainer.open(tmp_path / "p.poet", resume=tmp_path / "s") as resumed:
        assert all(torch.equal(tensor, before[name]) for name, tensor in resumed.state_dict().items())
        assert resumed.step(torch.ones(4, 4), torch.zeros(4, dtype=torch.int64)).loss == expected


def test_a_planner_is_asked_where_there_is_something_to_gain() -> None:
    plan = small_plan().plan
    held_bytes = plan.held_bytes
    asked = []

    def gives(made: Plan, ram_bytes: int) -> Plan:
        asked.append(ram_bytes)
        fitting = within(made, ram_bytes)
        if fitting is None:
            raise Infeasible("too little")
        return fitting

    def too_slow(made: Plan, ram_bytes: int) -> Plan:
        asked.append(ram_bytes)
        raise OutOfTime("too slow")

    opened = within(plan, held_bytes)
    assert opened is not None
    budgets = Budgets(opened)
    assert budgets.plan_for(held_bytes, too_slow) == opened
    assert not asked  # it was planned for just that
    assert budgets.plan_for(2 * held_bytes, too_slow) == within(opened, 2 * held_bytes)  # one fits anyway
    assert budgets.plan_for(2 * held_bytes, None) == within(opened, 2 * held_bytes)
    budgets.plan_for(2 * held_bytes, gives)
    assert asked == [2 * held_bytes, 2 * held_bytes]
    budgets.plan_for(held_bytes + held_bytes // 2, gives)  # that for more fits, and is as good as any
    assert len(asked) == 2
    with pytest.raises(OutOfTime):
        budgets.plan_for(held_bytes - 4096, too_slow)
    with pytest.raises(Infeasible, match="too little"):
        budgets.plan_for(held_bytes - 4096, gives)


@cache
def small_plan() -> Planned:
    torch.manual_seed(0)
    with torch_threads(1):
        return plan_module(
            nn.Linear(4, 3), torch.zeros(4, 4), device="x86-host", ram="64KiB", evaluation=False,
        )  # fmt: skip


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The next page files cannot be opened."""
    opened = pages_module.open_pages
    left = iter(range(times))

    def fails_at_first(*args: object) -> object:
        if next(left, None) is not None:
            raise PageFileError("the card is full")
        return opened(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(pages_module, "open_pages", fails_at_first)
