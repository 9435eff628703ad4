"""Tensors that are moved within the arena, by steps and evaluations: plain PyTorch's bits, planned places."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.nets import small_net
from helpers.pace import with_slow
from helpers.schedules import keep_everything, random_schedule
from helpers.shuffled import movable, shuffled, shuffled_beside, with_arena
from torch import Tensor

from poet.errors import InvalidSchedule, PlanError, ReplayError
from poet.frontend.evaluation import EvaluationStep, trace_evaluation
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.optimizer import OptimizerSpec
from poet.memory.demand import MadeMove, Move
from poet.planning.beside import at_home
from poet.plans.plan_file import read_plan, write_plan
from poet.plans.plan_parts import Arena, Prediction
from poet.plans.training_plan import Plan
from poet.problem.homes import decided
from poet.problem.schedule import Compute
from poet.problem.simulator import judge
from poet.runtime import Trainer, native
from poet.runtime.data.random_batches import random_batch
from poet.runtime.kernels.cells import Cells
from poet.runtime.steps import instructions as moving
from poet.runtime.storage.state import raw_tensor

pytestmark = pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")


@cache
def traced(threads: int) -> tuple[TrainingStep, EvaluationStep]:
    """With the memory of kernels, as they ask for it with so many threads."""
    torch.set_num_threads(threads)
    spec, example = OptimizerSpec("momentum", lr=0.05), torch.zeros(6, 2, 8, 8)
    step = trace_training_step(small_net(), example, optimizer=spec)
    return step, trace_evaluation(small_net(), example, step)


def shuffled_plan(
    seed: int, *, threads: int = 1, share: float = 0.5, in_storage: bool = False, moves: bool = True
) -> Plan:
    """A plan of which both schedules recompute, page, and move tensors at random.

    Without ``moves`` the evaluation moves nothing.
    """
    plan = training_plan(seed, threads=threads, share=share, in_storage=in_storage)
    return with_evaluation(plan, seed, threads=threads, share=share, moves=moves)


def training_plan(seed: int, *, threads: int = 1, share: float = 0.5, in_storage: bool = False) -> Plan:
    step, _ = traced(threads)
    of = movable(hand_net.problem(step.graph, parameters_in_storage=in_storage, kernels=step.kernels))
    schedule = random_schedule(of, seed, share=share)
    plan = hand_net.plan(
        of, step.graph, schedule, optimizer=step.optimizer, loss="cross-entropy", kernels=step.kernels
    )
    return with_arena(plan, shuffled(plan.demand, seed))


def with_evaluation(
    plan: Plan, seed: int, *, threads: int = 1, share: float = 0.5, moves: bool = True
) -> Plan:
    step, evaluation = traced(threads)
    beside = at_home(movable(hand_net.problem(evaluation.graph, kernels=evaluation.kernels)), plan)
    found = hand_net.plan(
        beside,
        evaluation.graph,
        random_schedule(beside, seed + 1, share=share),
        optimizer=step.optimizer,
        loss="cross-entropy",
        kernels=evaluation.kernels,
    )
    arena = shuffled_beside(plan, found.demand, seed, share=0.5 if moves else 0.0)
    return replace(plan, evaluation=replace(with_arena(found, arena), model=plan.model))


def write(path: Path, plan: Plan, threads: int = 1) -> None:
    write_plan(path, plan, {name: raw_tensor(item) for name, item in traced(threads)[0].tensors.items()})


def moves_noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str, int]]:
    """A list that gets step, tensor and new place of each move; its place before and after are checked."""
    made: list[tuple[int, str, int]] = []
    move = moving.Moving._move

    def noted(self: moving.Moving, item: MadeMove, cells: Cells) -> None:
        assert cells.raw(item.tensor).data_ptr() == self._first + item.from_bytes
        move(self, item, cells)
        assert cells.raw(item.tensor).data_ptr() == self._first + item.to_bytes
        made.append((item.step, item.tensor, item.to_bytes))

    monkeypatch.setattr(moving.Moving, "_move", noted)
    return made


def write_shuffled(path: Path, seed: int, *, share: float = 0.5) -> Plan:
    """A plan without an evaluation."""
    plan = training_plan(seed, share=share)
    write(path, plan)
    return plan


# --- training steps -----------------------------------------------------------------------------


def test_every_move_is_made_and_every_request_is_at_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = write_shuffled(tmp_path / "p", 3)
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


def test_on_the_heap_nothing_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = write_shuffled(tmp_path / "p", 3)
    monkeypatch.setattr(moving.Moving, "_move", None)
    with Trainer.open(tmp_path / "p", arena=False) as trainer:
        trainer.step(*random_batch(plan, 0))


def test_what_a_caller_keeps_costs_no_bits(tmp_path: Path) -> None:
    plan = write_shuffled(tmp_path / "p", 5)

    def run(*, arena: bool) -> list[torch.Tensor]:
        with Trainer.open(tmp_path / "p", arena=arena, seed=0) as trainer:
            kept = [trainer.step(*random_batch(plan, number)).predictions[0] for number in range(4)]
            return [*kept, *trainer.parameters().values()]

    assert all(torch.equal(*pair) for pair in zip(run(arena=True), run(arena=False), strict=True))


def test_a_step_that_fails_after_moves_leaves_the_last_state(tmp_path: Path) -> None:
    """A parameter may then lie where it was moved to; the next step begins with it there."""
    plan = write_shuffled(tmp_path / "p", 3)
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


def test_what_stands_throughout_has_no_memory_to_move_in(tmp_path: Path) -> None:
    """A stranger's plan that moves it, and back, is right, and runs from the heap."""
    plan = write_shuffled(tmp_path / "p", 3, share=0.0)
    assert plan.arena is not None
    blocks, number, end = plan.demand.blocks, plan.demand.standing[0], len(plan.schedule)
    ends = [at + block.size_bytes for at, block in zip(plan.arena.offsets_bytes, blocks, strict=True)]
    free = max(each for other, each in enumerate(ends) if other not in plan.demand.standing)
    moves = Move(end, number, free), Move(end, number, plan.arena.offsets_bytes[number])
    moved = with_arena(plan, replace(plan.arena, moves=(*plan.arena.moves, *moves)))
    write(tmp_path / "q", moved)
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


# --- evaluations --------------------------------------------------------------------------------

CASES = [  # seed, share of what is dropped, home in storage, threads
    (1, 0.5, False, 1),
    (2, 0.9, True, 2),
    (3, 0.0, False, 2),
    (4, 0.5, True, 1),
    (5, 0.9, False, 1),
]


@pytest.mark.parametrize(
    ("seed", "share", "in_storage", "threads"), with_slow(CASES, set(CASES[:1] + CASES[2:]))
)
def test_evaluations_that_move_tensors_have_the_bits_of_eval(
    seed: int, share: float, in_storage: bool, threads: int, tmp_path: Path
) -> None:
    plan = shuffled_plan(seed, share=share, in_storage=in_storage, threads=threads)
    evaluation = plan.evaluation
    assert evaluation is not None
    assert evaluation.trace.moves > 5
    write(tmp_path / "p", plan, threads)
    torch.set_num_threads(threads)
    module = small_net().eval()

    def train(*, evaluates: bool) -> dict[str, Tensor]:
        with Trainer.open(tmp_path / "p", seed=1, arena="require") as trainer:
            for number in range(3):
                inputs, targets = random_batch(plan, number)
                trainer.step(inputs, targets)
                if evaluates:
                    module.load_state_dict(trainer.state_dict())
                    with torch.no_grad():
                        expected = module(inputs[0])
                    (found,) = trainer.predict(inputs)
                    assert torch.equal(found, expected)
            assert trainer.memory.endswith("as planned")
            return trainer.state_dict()

    undisturbed, disturbed = train(evaluates=False), train(evaluates=True)
    assert all(torch.equal(disturbed[name], tensor) for name, tensor in undisturbed.items())


def test_every_move_of_an_evaluation_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands throughout the evaluation among them, each from its place to its place."""
    plan = shuffled_plan(2, share=0.05)
    evaluation = plan.evaluation
    assert evaluation is not None
    assert evaluation.places is not None
    write(tmp_path / "p", plan)
    made = moves_noted(monkeypatch)
    planned = [(item.step, item.tensor, item.to_bytes) for item in evaluation.places.moves]
    stand = {evaluation.demand.blocks[number].tensor for number in evaluation.demand.standing} - plan.standing
    assert stand.intersection(name for _, name, _ in planned)
    with Trainer.open(tmp_path / "p", arena="require") as trainer:
        for number in range(2):
            inputs, targets = random_batch(plan, number)
            trainer.step(inputs, targets)
            made.clear()
            trainer.predict(inputs)
            assert made == planned


def test_an_evaluation_that_fails_after_moves_leaves_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parameter may then lie where it was moved to; the next step begins with it there."""
    plan = shuffled_plan(1)
    write(tmp_path / "p", plan)
    move, count = moving.Moving._move, iter(range(1_000_000))
    with (
        Trainer.open(tmp_path / "p", seed=0) as trainer,
        Trainer.open(tmp_path / "p", seed=0, arena=False) as other,
    ):
        for each in (trainer, other):
            each.step(*random_batch(plan, 0))

        def failing(self: moving.Moving, item: MadeMove, cells: Cells) -> None:
            if next(count) == 4:
                raise ReplayError("no memory")
            move(self, item, cells)

        inputs, _ = random_batch(plan, 0)
        with monkeypatch.context() as patched:
            patched.setattr(moving.Moving, "_move", failing)
            with pytest.raises(ReplayError, match="no memory"):
                trainer.predict(inputs)
        for number in range(3):
            inputs, targets = random_batch(plan, number)
            losses = [each.step(inputs, targets).loss for each in (trainer, other)]
            assert losses[0] == losses[1]
            assert torch.equal(trainer.predict(inputs)[0], other.predict(inputs)[0])
        mine, theirs = trainer.state_dict(), other.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_moves_of_an_evaluation_are_charged() -> None:
    moved, still = (shuffled_plan(1, moves=moves).evaluation for moves in (True, False))
    assert moved is not None
    assert still is not None
    assert still.trace.moves == 0
    assert moved.trace.joules == pytest.approx(still.trace.joules + moved.trace.moves * 2e-4)
    with pytest.raises(PlanError, match="the predictions are not what the simulator says"):
        replace(moved, prediction=still.prediction)


def test_a_plan_whose_evaluation_moves_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = shuffled_plan(1)
    write(tmp_path / "p", plan)
    assert read_plan(tmp_path / "p") == plan


def test_wrong_moves_of_an_evaluation_are_refused() -> None:
    """By the judge of any step: what overlaps, and what does not come back."""
    evaluation = shuffled_plan(1).evaluation
    assert evaluation is not None
    assert evaluation.arena is not None
    arena, lasting = evaluation.arena, evaluation.graph.persistent()
    blocks, begun = evaluation.demand.blocks, evaluation.begun_bytes
    backs = [move for move in arena.moves if begun.get(blocks[move.block].tensor or "") == move.to_bytes]
    back = next(move for move in reversed(backs) if blocks[move.block].tensor in lasting)
    with pytest.raises(InvalidSchedule, match=r"overlaps|does not end the step where it began it"):
        with_arena(evaluation, replace(arena, moves=tuple(move for move in arena.moves if move is not back)))
    first = arena.moves[0]
    other = next(at for name, at in begun.items() if name != blocks[first.block].tensor)
    with pytest.raises(InvalidSchedule, match="overlaps"):
        with_arena(evaluation, replace(arena, moves=(replace(first, to_bytes=other), *arena.moves[1:])))


def with_more_moves(plan: Plan, *moves: Move) -> Plan:
    """``plan``, its evaluation with ``moves`` before all others; as a step of its own it is right."""
    evaluation = plan.evaluation
    assert evaluation is not None
    assert evaluation.arena is not None
    arena = replace(evaluation.arena, moves=(*moves, *evaluation.arena.moves))
    return replace(plan, evaluation=replace(with_arena(evaluation, arena), model=plan.model))


def test_an_evaluation_moves_nothing_that_training_never_moves() -> None:
    """It would leave memory of its own; what training drops and fetches again may be moved."""
    plan = shuffled_plan(2, share=0.05)
    evaluation = plan.evaluation
    assert evaluation is not None
    assert evaluation.layout is not None
    layout, named = evaluation.layout, evaluation.demand.blocks
    below = [number for number, block in enumerate(named) if block.tensor not in plan.standing]
    free = max(layout.offsets_bytes[number] + named[number].size_bytes for number in below)
    for number in evaluation.demand.standing:
        moves = Move(0, number, free), Move(0, number, layout.offsets_bytes[number])
        name = named[number].tensor
        if name not in plan.standing:
            assert with_more_moves(plan, *moves).evaluation is not None
            continue
        with pytest.raises(PlanError, match=f"moves {name} within the arena, which has its place"):
            with_more_moves(plan, *moves)


def test_nothing_of_an_evaluation_lies_among_what_training_never_moves() -> None:
    """In a gap there it overlaps nothing, and yet the runtime has no such memory."""
    plan = shuffled_plan(2, share=0.05)
    assert plan.arena is not None
    places = list(plan.arena.offsets_bytes)
    lowest, *others = sorted(plan.demand.standing, key=places.__getitem__)
    gap_bytes, gap = 4096, places[lowest] + plan.demand.blocks[lowest].size_bytes
    for number in others:
        places[number] += gap_bytes
    larger = Arena(plan.arena.size_bytes + gap_bytes, tuple(places), plan.arena.moves)
    plan = with_evaluation(with_arena(replace(plan, evaluation=None), larger), 2, share=0.05)
    evaluation = plan.evaluation
    assert evaluation is not None
    assert evaluation.layout is not None
    for number in set(evaluation.demand.standing):
        block, home = evaluation.demand.blocks[number], evaluation.layout.offsets_bytes[number]
        if block.tensor not in plan.standing and block.size_bytes <= gap_bytes:
            with pytest.raises(PlanError, match="where the training step has what stays throughout"):
                with_more_moves(plan, Move(0, number, gap), Move(0, number, home))
            return
    pytest.fail("nothing is small enough for the gap")
