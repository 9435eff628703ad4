"""Where no search has a plan in time, an online policy has one: judged, laid out, with the same bits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from poet.api import Planned
from poet.api import plan as plan_module
from poet.errors import Infeasible, OutOfTime
from poet.frontend.plain import PlainTrainer
from poet.ir.optimizer import OptimizerSpec
from poet.planning import auxiliary, beside
from poet.planning.auxiliary import guarded, plan_again
from poet.planning.beside import guard
from poet.planning.shape_planner import ShapePlanner
from poet.plans.training_plan import Plan
from poet.problem import Limits, Objective, Problem
from poet.problem.simulator import judge
from poet.problem.solution import Solution, SolveOptions, Status
from poet.runtime import MemoryWatcher, Trainer
from poet.runtime.runs.watching import MemoryReading, SystemMemory
from poet.runtime.system.process import torch_threads
from poet.runtime.training.training_state import Budgets
from poet.solvers import minimum_ram_bytes
from poet.util.clock import WorkClock

ADAMW = OptimizerSpec("adamw", lr=0.01)
AT_ONCE = partial(plan_again, time_limit_seconds=0.0)
LAYERS, ROWS = 6, 512


def net() -> nn.Module:
    """Whose activations are most of what it holds."""
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2))]
    return nn.Sequential(*layers, nn.Linear(16, 3)).train()


@cache
def planned(recompute: bool = True, paging: bool = True) -> Planned:
    """In 1 MiB, so that everything is kept, with a step for half a batch and one for a quarter."""
    return plan_module(
        net(), torch.zeros(ROWS, 16), device="rpi4b", ram="1MiB", optimizer=ADAMW, recompute=recompute,
        paging=paging, shapes=[torch.zeros(ROWS // 2, 16), torch.zeros(ROWS // 4, 16)],
    )  # fmt: skip


def batch(number: int, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(rows, 16, generator=generator), torch.randint(3, (rows,), generator=generator)


def finds_nothing(problem: Problem, limits: Limits, options: SolveOptions, **_: object) -> Solution:
    """A search whose time passes."""
    return Solution(Status.TIMEOUT, None, None, 0.0, problem.compute_joules, 0.0, "none")


class Training:
    """A plan beside plain PyTorch, step by step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.net = trainer, net()
        names = [name for name, _ in self.net.named_parameters()]
        self.plain = PlainTrainer(self.net, loss="cross-entropy", optimizer=ADAMW, trained=names)
        self.random_state = torch.Generator().manual_seed(3).get_state()

    def step(self, number: int, rows: int = ROWS) -> None:
        """Equal losses, inside the budget."""
        inputs, targets = batch(number, rows)
        loss = self.trainer.step(inputs, targets).loss
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.random_state)
            assert loss == float(self.plain.step([inputs], targets)[0])
            self.random_state = torch.get_rng_state()
        assert self.trainer.plan.held_bytes <= (self.trainer.plan.request.limits.ram_budget_bytes or 0)

    def check(self) -> None:
        """Equal parameters and optimizer state."""
        found, wanted = self.trainer.state_dict(), self.net.state_dict()
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in found.items())
        assert len(found) == len(wanted)
        parameters = dict(self.net.named_parameters())
        for name, kept in self.trainer.optimizer_state().items():
            state = self.plain.optimizer.state[parameters[name]]
            assert all(torch.equal(tensor, state[key]) for key, tensor in kept.items())


def test_a_policy_schedules_down_to_the_least_that_any_step_needs() -> None:
    plan = planned().plan
    limits = plan.request.limits
    least_bytes = minimum_ram_bytes(plan.problem, limits).bytes
    solvers = set[str]()
    for ram_bytes in (plan.held_bytes, plan.held_bytes // 2, least_bytes):
        narrower = replace(limits, ram_budget_bytes=ram_bytes)
        found = guard(plan.problem, narrower, SolveOptions())
        assert found is not None
        assert found.schedule is not None
        assert found.trace == judge(plan.problem, found.schedule, narrower)
        solvers.add(found.solver)
    assert solvers >= {"online guard, keep-everything", "online guard, delta"}
    assert guard(plan.problem, replace(limits, ram_budget_bytes=least_bytes - 1), SolveOptions()) is None


def test_what_takes_least_of_the_objective_is_taken() -> None:
    plan = planned().plan
    limits = replace(plan.request.limits, ram_budget_bytes=plan.held_bytes * 3 // 4)
    least = {
        objective: guard(plan.problem, limits, SolveOptions(objective=objective))
        for objective in (Objective.ENERGY, Objective.WRITES)
    }
    energy, writes = least[Objective.ENERGY], least[Objective.WRITES]
    assert energy is not None
    assert writes is not None
    assert energy.trace is not None
    assert writes.trace is not None
    assert writes.trace.written_bytes <= energy.trace.written_bytes
    assert energy.trace.joules <= writes.trace.joules


def test_its_arena_fits_the_budget() -> None:
    plan = planned().plan
    limits = replace(plan.request.limits, ram_budget_bytes=plan.held_bytes * 3 // 5)
    fitted = guarded(plan, limits, SolveOptions())
    assert fitted is not None
    assert fitted.arena.size_bytes <= (limits.ram_budget_bytes or 0)


def test_no_plan_at_once_is_said() -> None:
    plan = planned().plan
    with pytest.raises(Infeasible, match="a step needs at least"):
        AT_ONCE(plan, 1024)
    hurried = replace(plan.request.limits, deadline_seconds=plan.trace.seconds * 1.001)
    with pytest.raises(OutOfTime, match="give a search some time"):
        AT_ONCE(replace(plan, request=replace(plan.request, limits=hurried)), plan.held_bytes // 2)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("recompute", "paging", "share"), [(True, True, 0.5), (True, False, 0.6), (False, True, 0.5)]
)
def test_a_budget_that_halves_and_comes_back_changes_no_bit(
    tmp_path: Path, threads: int, recompute: bool, paging: bool, share: float
) -> None:
    """The guard's plan in half, a searched one in the same half, then all of it again.

    By recomputing alone the policies need a little more than half.
    """
    with torch_threads(threads):
        planned(recompute, paging).save(tmp_path / "p.poet")
        with Trainer.open(tmp_path / "p.poet", seed=3) as trainer:
            training = Training(trainer)
            whole_bytes = trainer.plan.held_bytes
            half_bytes = round(share * whole_bytes)
            training.step(0)
            trainer.set_budget(half_bytes, planner=AT_ONCE)
            assert trainer.plan.outcome.is_online
            assert trainer.plan.has_fitting_arena
            assert trainer.plan.trace.recomputed_runs or not (recompute and not paging)
            assert trainer.plan.trace.written_bytes or not paging
            for number, rows in enumerate((ROWS, ROWS // 2, ROWS // 4), 1):
                training.step(number, rows)
            joules = trainer.plan.step_joules
            trainer.set_budget(half_bytes, planner=partial(plan_again, time_limit_seconds=1.0))
            assert trainer.plan.step_joules <= joules
            training.step(4)
            training.step(5, ROWS // 2)
            trainer.set_budget("1MiB")
            assert trainer.plan.schedule == planned(recompute, paging).plan.schedule
            training.step(6)
            training.check()


def test_a_search_without_a_plan_leaves_the_guards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned().save(tmp_path / "p.poet")
    monkeypatch.setattr(auxiliary, "answered_beside", finds_nothing)
    monkeypatch.setattr(beside, "solve", finds_nothing)
    with Trainer.open(tmp_path / "p.poet", seed=3) as trainer:
        training = Training(trainer)
        trainer.set_budget(trainer.plan.held_bytes // 2, planner=plan_again)
        assert trainer.plan.outcome.is_online
        training.step(0)
        training.step(1, ROWS // 2)
        training.check()


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_shape_is_the_guards_until_a_search_has_a_better_one(tmp_path: Path, threads: int) -> None:
    with torch_threads(threads):
        made = planned()
        small = AT_ONCE(made.plan, made.plan.held_bytes // 2)
        replace(made, plan=small).save(tmp_path / "p.poet")
        planner = ShapePlanner(time_limit_seconds=0.0)
        with Trainer.open(tmp_path / "p.poet", seed=3) as trainer:
            training = Training(trainer)
            trainer.shape_planner = planner
            rows = ROWS - 32
            for number in range(3):
                training.step(number, rows)
            (shape,) = (
                item.step for item in trainer.plan.shapes if item.step.given_types[0].shape[0] == rows
            )
            assert shape.outcome.is_online
            assert shape.trace.recomputed_runs or shape.trace.written_bytes
            assert shape.held_bytes <= made.plan.held_bytes // 2
            before = sum(item.step.step_joules for item in trainer.plan.shapes)
            improved = [
                trainer.improve_shapes(partial(planner.improve, time_limit_seconds=1.0)) for _ in range(3)
            ]
            after = sum(item.step.step_joules for item in trainer.plan.shapes)
            assert after < before if any(improved) else after == before
            training.step(3, rows)
            training.check()


def test_a_searched_plan_takes_the_guards_place_and_not_the_other_way() -> None:
    plan = planned().plan
    budgets, half_bytes = Budgets(plan), plan.held_bytes // 2
    online = budgets.plan_for(half_bytes, AT_ONCE)
    assert online.outcome.is_online
    asked = []

    def dearer(opened: Plan, ram_bytes: int) -> Plan:
        asked.append(ram_bytes)
        raise OutOfTime("no time")

    assert budgets.plan_for(half_bytes, dearer) == online
    assert asked == [half_bytes]
    assert budgets.plan_for(half_bytes, None) == online

    def named(opened: Plan, ram_bytes: int) -> Plan:
        return replace(online, outcome=replace(online.outcome, solver="a search", is_online=False))

    budgets = Budgets(plan)
    budgets.plan_for(half_bytes, named)
    assert not budgets.plan_for(half_bytes, dearer).outcome.is_online
    assert asked == [half_bytes]  # a searched plan for this budget is there


class _Room(SystemMemory):
    """A system that leaves so many bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 1 << 40

    def read(self) -> MemoryReading:
        """See `SystemMemory.read`."""
        return MemoryReading(self.bytes, "the test", None)


def test_a_watcher_makes_room_at_once_and_searches_at_leisure(tmp_path: Path) -> None:
    planned().save(tmp_path / "p.poet")
    now, system, asked = [0.0], _Room(), []

    def searched(plan: Plan, ram_bytes: int) -> Plan:
        asked.append((now[0], ram_bytes))
        return AT_ONCE(plan, ram_bytes)

    with Trainer.open(tmp_path / "p.poet", seed=3) as trainer:
        watcher = MemoryWatcher(
            trainer, planner=searched, guard=AT_ONCE, reserve=0, calm_seconds=5.0, system=system,
            clock=lambda: now[0],
        )  # fmt: skip
        training = Training(trainer)
        room_bytes = trainer.plan.held_bytes * 3 // 4
        for number in range(12):
            now[0] += 1.0
            system.bytes = room_bytes - trainer.held_bytes
            change = watcher.look()
            assert (change is not None) == (number == 0)  # what the search has is no better
            assert trainer.plan.outcome.is_online
            training.step(number)
        budget_bytes = trainer.plan.request.limits.ram_budget_bytes or 0
        assert room_bytes - (1 << 17) < budget_bytes <= room_bytes  # an eighth of the largest less
        assert asked == [(7.0, budget_bytes)]  # once
        training.check()


def test_searches_beside_a_plan_take_no_longer_than_that_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no schedule's tensors fit the arena, up to six are sought: the first as long as the plan was, the
    rest together as long again."""
    limits_seconds = []
    found = beside._search

    def search(problem: Any, limits: Limits, options: SolveOptions) -> Any:
        limits_seconds.append(options.time_limit_seconds)
        return found(problem, limits, options)

    monkeypatch.setattr(beside, "_search", search)
    monkeypatch.setattr(beside, "arena_around", lambda *_, **__: None)
    monkeypatch.setattr(beside, "guard", lambda *_: None)
    module = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
    with pytest.warns(UserWarning, match="no evaluation is planned: no room"):
        plan_module(module, torch.randn(5, 6), device="rpi4b", ram="1MiB", time_limit_seconds=2.0)
    assert len(limits_seconds) > 1
    seconds = [each for each in limits_seconds if each is not None]
    assert seconds[0] <= 0.5 * 2.0  # as the search for the plan counts as two
    assert seconds == sorted(seconds, reverse=True)
    assert sum(seconds) <= 2.0


def test_a_limit_is_shared_by_all_searches() -> None:
    clock = WorkClock()
    shares = beside.TimeShares(10.0, 3, clock)
    assert shares.first() == pytest.approx(4.0)
    clock.spend(engine_seconds=1.0)  # it was proven early
    assert shares.each(1) == pytest.approx(3.0)
    clock.spend(engine_seconds=8.9)
    assert shares.each(2) == beside._LEAST_SECONDS
    assert beside.TimeShares(None, 3).first() is None
    assert beside.TimeShares(None, 3).each(1) == beside.SEARCH_SECONDS
