"""Tensors that are moved within the arena: the bits of plain PyTorch, every request at its planned place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.moves_noted import moves_noted
from helpers.nets import small_net
from helpers.schedules import keep_everything, random_schedule
from helpers.shuffled import movable, shuffled, with_arena

from poet.errors import PlanError, ReplayError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.optimizer import OptimizerSpec
from poet.memory.demand import Move
from poet.plans.plan_file import write_plan
from poet.plans.plan_parts import Prediction
from poet.plans.training_plan import Plan
from poet.problem.homes import decided
from poet.problem.schedule import Compute
from poet.problem.simulator import judge
from poet.runtime import Trainer, native
from poet.runtime.data.random_batches import random_batch
from poet.runtime.steps import instructions as moving
from poet.runtime.storage.state import raw_tensor

pytestmark = pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")


# --- exactness ----------------------------------------------------------------------------------


def traced(optimizer: str) -> TrainingStep:
    spec = OptimizerSpec(optimizer, lr=0.05, weight_decay=0.01)
    return trace_training_step(small_net(), torch.zeros(6, 2, 8, 8), optimizer=spec)


@pytest.fixture(scope="module")
def step() -> TrainingStep:
    torch.set_num_threads(1)
    return traced("sgd")


def write_shuffled(
    path: Path,
    step: TrainingStep,
    seed: int,
    *,
    share: float = 0.5,
    in_storage: bool = False,
    in_background: bool = False,
) -> Plan:
    of = hand_net.problem(step.graph, parameters_in_storage=in_storage, kernels=step.kernels)
    of = movable(replace(of, background_storage=in_background))
    schedule = random_schedule(of, seed, share=share)
    plan = hand_net.plan(
        of, step.graph, schedule, optimizer=step.optimizer, loss="cross-entropy", kernels=step.kernels
    )
    plan = with_arena(plan, shuffled(plan.demand, seed))
    write_plan(path, plan, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    return plan


def test_every_move_is_made_and_every_request_is_at_its_place(
    step: TrainingStep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = write_shuffled(tmp_path / "p", step, 3)
    assert plan.places is not None
    made = moves_noted(monkeypatch)
    with Trainer.open(tmp_path / "p", arena="require") as trainer:
        for number in range(3):
            trainer.step(*random_batch(plan, number))
        assert trainer._tensors.placed is not None
        assert trainer._tensors.placed.misses == 0
    planned = [(item.step, item.tensor, item.to_bytes) for item in plan.places.moves]
    assert made == 3 * planned
    overlapping = [
        item for item in plan.places.moves if 0 < abs(item.to_bytes - item.from_bytes) < item.size_bytes
    ]
    assert overlapping
    assert any(item.step == len(plan.schedule) for item in plan.places.moves)


def test_on_the_heap_nothing_is_moved(
    step: TrainingStep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = write_shuffled(tmp_path / "p", step, 3)
    monkeypatch.setattr(moving.Moving, "_move", None)
    with Trainer.open(tmp_path / "p", arena=False) as trainer:
        trainer.step(*random_batch(plan, 0))


def test_what_a_caller_keeps_costs_no_bits(step: TrainingStep, tmp_path: Path) -> None:
    plan = write_shuffled(tmp_path / "p", step, 5)

    def run(*, arena: bool) -> list[torch.Tensor]:
        with Trainer.open(tmp_path / "p", arena=arena, seed=0) as trainer:
            kept = [trainer.step(*random_batch(plan, number)).predictions[0] for number in range(4)]
            return [*kept, *trainer.parameters().values()]

    assert all(torch.equal(*pair) for pair in zip(run(arena=True), run(arena=False), strict=True))


def test_a_step_that_fails_after_moves_leaves_the_last_state(step: TrainingStep, tmp_path: Path) -> None:
    """A parameter may then lie where it was moved to; the next step begins with it there."""
    plan = write_shuffled(tmp_path / "p", step, 3)
    updates = {op.name for op in plan.graph.ops if op.updates}
    runs = [(at, s.op) for at, s in enumerate(plan.schedule) if isinstance(s, Compute)]
    last = [
        at for number, (at, _) in enumerate(runs) if updates.isdisjoint(op for _, op in runs[: number + 1])
    ][-1]

    def stop(index: int) -> None:
        if index >= last:
            raise ValueError("stop")

    with (
        Trainer.open(tmp_path / "p", seed=0) as trainer,
        Trainer.open(tmp_path / "p", seed=0, arena=False) as other,
    ):
        with pytest.raises(ReplayError, match="stop"):
            trainer.step(*random_batch(plan, 0), on_instruction=stop)
        for number in range(3):
            losses = [each.step(*random_batch(plan, number)).loss for each in (trainer, other)]
            assert losses[0] == losses[1]
        mine, theirs = trainer.parameters(), other.parameters()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_what_stands_throughout_has_no_memory_to_move_in(step: TrainingStep, tmp_path: Path) -> None:
    """A stranger's plan that moves it, and back, is right, and runs from the heap."""
    plan = write_shuffled(tmp_path / "p", step, 3, share=0.0)
    assert plan.arena is not None
    blocks, number, end = plan.demand.blocks, plan.demand.standing[0], len(plan.schedule)
    ends = [at + block.size_bytes for at, block in zip(plan.arena.offsets_bytes, blocks, strict=True)]
    free = max(each for other, each in enumerate(ends) if other not in plan.demand.standing)
    moves = Move(end, number, free), Move(end, number, plan.arena.offsets_bytes[number])
    moved = with_arena(plan, replace(plan.arena, moves=(*plan.arena.moves, *moves)))
    write_plan(tmp_path / "q", moved, {name: raw_tensor(item) for name, item in step.tensors.items()})
    with pytest.raises(ReplayError, match="mixes what stands throughout"):
        Trainer.open(tmp_path / "q", arena="require")
    found = []
    for name in ("p", "q"):
        with Trainer.open(tmp_path / name, seed=0) as trainer:
            losses = [trainer.step(*random_batch(plan, batch)).loss for batch in range(2)]
            found.append((losses, trainer.parameters()))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(found[1][1][name], tensor) for name, tensor in found[0][1].items())


# --- what a plan says ---------------------------------------------------------------------------


def test_moves_are_charged_in_time_and_energy() -> None:
    what = hand_net.graph()
    of = movable(hand_net.problem(what))
    plan = hand_net.plan(of, what, keep_everything(of))
    plan = with_arena(plan, shuffled(plan.demand, 1))
    still = judge(decided(of, plan.schedule), plan.schedule)
    count = len(plan.places.moves) if plan.places is not None else 0
    assert count > 5
    assert plan.trace.seconds == pytest.approx(still.seconds + count * 1e-4)
    assert plan.trace.joules == pytest.approx(still.joules + count * 2e-4)
    assert plan.trace.moves == count
    with pytest.raises(PlanError, match="the predictions are not what the simulator says"):
        replace(plan, prediction=Prediction(still.peak_ram_bytes, still.seconds, still.joules))
