"""Plans of one file for several budgets: of one training, each verified, the right one taken."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.budgeted import LARGE, SMALL, planned
from torch import nn

from poet import api
from poet.api import Planned
from poet.api import plan as plan_module
from poet.errors import Infeasible, InputError, OutOfTime, PlanError
from poet.ir.named import named_parameters
from poet.ir.optimizer import OptimizerSpec
from poet.planning import auxiliary, pipeline
from poet.plans.plan_file import read_plan
from poet.plans.training_plan import Plan
from poet.problem import Objective
from poet.runtime import Trainer
from poet.runtime.training.training_state import Budgets
from poet.verification import verify


@pytest.fixture
def path(tmp_path: Path) -> Path:
    planned().save(tmp_path / "p.poet")
    return tmp_path / "p.poet"


def test_a_file_holds_plans_for_several_budgets(path: Path) -> None:
    plan = read_plan(path)
    assert plan == planned().plan
    (small,) = plan.budgets
    assert small.held_bytes <= SMALL < plan.held_bytes
    assert small.trace.recomputed_runs or small.trace.written_bytes
    with Trainer.open(path, seed=1) as trainer:
        trainer.set_budget(SMALL)  # no planner
        assert trainer.plan.schedule == small.schedule
        trainer.set_budget(LARGE)
        assert trainer.plan.schedule == plan.schedule
        with pytest.raises(Infeasible, match="the plan takes"):
            trainer.set_budget(SMALL // 8)


def test_budgets_are_of_one_training() -> None:
    plan = planned().plan
    with pytest.raises(PlanError, match="two plans in one are for"):
        replace(plan, budgets=(*plan.budgets, *plan.budgets))
    with pytest.raises(PlanError, match="is not of the same training"):
        replace(plan, optimizer=OptimizerSpec("adamw", lr=0.5))
    (small,) = plan.budgets
    ops = [
        replace(op, call=replace(op.call, target="aten.sigmoid.default"))
        if op.call.target == "aten.tanh.default"
        else op
        for op in small.graph.ops
    ]
    renamed = replace(small.graph, ops=tuple(ops))
    assert renamed != small.graph
    with pytest.raises(PlanError, match="is not of the same training"):
        replace(plan, budgets=(replace(small, graph=renamed),))
    with pytest.raises(InputError, match="evaluations are planned before other budgets"):
        api.with_evaluation(planned())
    with pytest.raises(InputError, match="other shapes are planned before other budgets"):
        api.with_shapes(planned(), [planned().prepared])
    evaluated = api.with_evaluation(replace(planned(), plan=replace(plan, budgets=()))).plan
    assert evaluated.evaluation is not None
    with pytest.raises(PlanError, match="is not of the same training"):
        replace(evaluated, budgets=plan.budgets)
    with pytest.raises(PlanError, match="larger one than the plan's own"):
        replace(plan.budgets[0], budgets=(replace(plan, budgets=()),))
    with pytest.raises(InputError, match="neither smaller nor new"):
        plan_module(
            nn.Linear(4, 3), torch.zeros(4, 4), device="x86-host", ram="64KiB", budgets=["64KiB"],
            evaluation=False,
        )  # fmt: skip


def test_every_budget_of_a_file_is_verified(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = verify(path, module=planned().prepared.module[0], steps=1, threads=(1,))  # type: ignore[index]
    assert (report.exact, report.budgets) == (True, 1)
    changed = Trainer.set_budget

    def loses_a_bit(trainer: Trainer, ram: str | int) -> None:
        changed(trainer, ram)
        value = named_parameters(trainer.plan.graph)[0].content.values[0]
        trainer._tensors.fetched(value).view(-1)[0] += 1.0

    monkeypatch.setattr(Trainer, "set_budget", loses_a_bit)
    report = verify(path, module=planned().prepared.module[0], steps=1, threads=(1,))  # type: ignore[index]
    assert not report.exact
    assert (report.comparisons[0].difference or "").startswith("inside 64 KiB, step 1: ")


def test_plans_for_other_budgets_carry_a_range() -> None:
    found = planned().plan.budgets[0].prediction
    assert found.range is not None
    assert found.range.good_joules <= found.joules <= found.range.bad_joules


def test_other_budgets_are_planned_for_what_was_asked() -> None:
    made = plan_module(
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)), torch.zeros(16, 8), device="x86-host",
        ram="64KiB", budgets=["63KiB"], minimise="time", evaluation=False,
        time_limit_seconds=0.5,
    )  # fmt: skip
    assert made.plan.outcome.objective is Objective.TIME
    assert made.plan.budgets[0].outcome.objective is Objective.TIME
    assert made.plan.budgets[0].outcome.objective_bound is not None


def test_the_plan_that_takes_least_of_what_was_asked_is_taken() -> None:
    plan = planned().plan
    (small,) = plan.budgets
    assert Budgets(plan).plan_for(LARGE, None).schedule == plan.schedule
    asked = replace(
        plan, outcome=replace(plan.outcome, objective=Objective.RAM, objective_bound=float(SMALL) / 64)
    )
    assert Budgets(asked).plan_for(LARGE, None).schedule == small.schedule


def test_a_budget_that_cannot_be_is_refused_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: object, **__: object) -> Planned:
        raise AssertionError

    monkeypatch.setattr(pipeline, "plan_step", searched)
    with pytest.raises(Infeasible, match=r"inside the budget of 64 B: a step needs at least"):
        plan_module(
            nn.Linear(4, 3), torch.zeros(4, 4), device="x86-host", ram="64KiB", budgets=["64B"],
            evaluation=False,
        )  # fmt: skip


def test_a_budget_without_a_plan_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    known = planned()  # before plans are made in another way

    def again(plan: Plan, ram_bytes: int, **_: object) -> Plan:
        if ram_bytes < SMALL:
            raise OutOfTime("too slow")
        return known.plan.budgets[0]

    monkeypatch.setattr(auxiliary, "plan_again", again)
    made = auxiliary.with_budgets(known, [SMALL, SMALL - 1024])
    assert made.plan.budgets == planned().plan.budgets
    assert made.budgets_remark == "no plan for the budget of 63 KiB: too slow"
