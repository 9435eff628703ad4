"""Random ops draw from the trainer's own generator: who draws meanwhile changes and sees nothing of it."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from torch import nn

from poet.baselines.nothing_kept import recompute_all
from poet.errors import ReplayError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.operators import RANDOM
from poet.plans.plan_file import write_plan
from poet.plans.training_plan import Plan
from poet.problem import Limits
from poet.problem.schedule import Compute
from poet.runtime import Trainer, kernels, native
from poet.runtime.data.random_batches import random_batch
from poet.runtime.storage.state import raw_tensor

STEPS = 3


@cache
def _traced() -> TrainingStep:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(8, 32), nn.Dropout(0.4), nn.ReLU(), nn.Linear(32, 32), nn.Dropout(0.2), nn.Linear(32, 4)
    )
    return trace_training_step(net.train(), torch.zeros(16, 8), measure=False)


def _write(path: Path) -> Plan:
    """A net with two dropouts, recomputed."""
    step = _traced()
    of = hand_net.problem(step.graph)
    schedule = recompute_all(of, Limits())
    assert schedule is not None
    plan = hand_net.plan(of, step.graph, schedule, loss="cross-entropy")
    write_plan(path, plan, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    return plan


def _losses(path: Path, plan: Plan, seed: int, gate: threading.Barrier | None = None) -> list[float]:
    """Of some steps; with a gate, each instruction waits for one of the other thread's."""

    def meet(_: int) -> None:
        if gate is not None:
            gate.wait(timeout=60)

    with Trainer.open(path, seed=seed) as trainer:
        return [
            trainer.step(*random_batch(plan, number), on_instruction=meet).loss for number in range(STEPS)
        ]


def test_two_trainers_in_two_threads_give_the_bits_of_each_alone(tmp_path: Path) -> None:
    """Their instructions alternate: with a generator in common each would take the other's numbers."""
    plan = _write(tmp_path / "p")
    assert plan.trace.recomputed_runs > 0
    alone = [_losses(tmp_path / "p", plan, seed) for seed in (1, 2)]
    assert alone[0] != alone[1]
    together: dict[int, list[float]] = {}
    gate = threading.Barrier(2)

    def train(seed: int) -> None:
        together[seed] = _losses(tmp_path / "p", plan, seed, gate)

    threads = [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[1], together[2]] == alone


def test_who_draws_during_a_step_is_not_disturbed_and_disturbs_nothing(tmp_path: Path) -> None:
    plan = _write(tmp_path / "p")
    undisturbed = _losses(tmp_path / "p", plan, 3)
    torch.manual_seed(11)
    expected = [torch.rand(()).item() for _ in range(200)]
    torch.manual_seed(11)
    drawn: list[float] = []
    with Trainer.open(tmp_path / "p", seed=3) as trainer:
        losses = [
            trainer.step(
                *random_batch(plan, number), on_instruction=lambda _: drawn.append(torch.rand(()).item())
            ).loss
            for number in range(STEPS)
        ]
    assert losses == undisturbed
    assert len(drawn) > 100
    assert drawn[:200] == expected[: len(drawn)]


def test_a_step_that_fails_takes_nothing_from_the_generator(tmp_path: Path) -> None:
    plan = _write(tmp_path / "p")
    undisturbed = _losses(tmp_path / "p", plan, 3)
    random = {op.name for op in plan.graph.ops if op.random}
    first = next(i for i, step in enumerate(plan.schedule) if isinstance(step, Compute) and step.op in random)

    def fail(index: int) -> None:
        if index > first:
            raise RuntimeError("no more")

    with Trainer.open(tmp_path / "p", seed=3) as trainer:
        with pytest.raises(ReplayError, match="no more"):
            trainer.step(*random_batch(plan, 0), on_instruction=fail)
        assert [trainer.step(*random_batch(plan, number)).loss for number in range(STEPS)] == undisturbed


FLOATS = torch.linspace(0.0, 1.0, 4 * 6 * 5 * 5).view(4, 6, 5, 5)
IMAGES = FLOATS.contiguous(memory_format=torch.channels_last)
DRAWS: dict[str, tuple[object, ...]] = {
    "aten.bernoulli.default": (FLOATS,),
    "aten.bernoulli.p": (FLOATS, 0.3),
    "aten.bernoulli.Tensor": (FLOATS, FLOATS),
    "aten.multinomial.default": (FLOATS.view(-1), 7),
    "aten.native_dropout.default": (IMAGES, 0.3, True),
    "aten.normal.Tensor_Tensor": (FLOATS, FLOATS),
    "aten.normal.Tensor_float": (FLOATS, 2.0),
    "aten.normal.float_Tensor": (0.5, FLOATS),
    "aten.rand.default": ([7, 9],),
    "aten.rand_like.default": (IMAGES,),
    "aten.randint.default": (9, [40]),
    "aten.randint.low": (3, 9, [40]),
    "aten.randint_like.default": (FLOATS, 9),
    "aten.randint_like.low_dtype": (FLOATS, 3, 9),
    "aten.randn.default": ([40],),
    "aten.randn_like.default": (IMAGES,),
    "aten.randperm.default": (40,),
}


def test_every_random_operator_is_drawn_here() -> None:
    assert DRAWS.keys() == {name for name in RANDOM if name.startswith("aten.")}


@pytest.mark.parametrize("target", DRAWS)
def test_an_own_generator_gives_the_bits_of_torchs_with_its_seed(target: str) -> None:
    _, name, overload = target.split(".")
    torch.manual_seed(5)
    theirs = kernels.outputs_of(getattr(getattr(torch.ops.aten, name), overload)(*DRAWS[target]))
    following = torch.rand(3)
    generator = torch.Generator().manual_seed(5)
    untouched = torch.get_rng_state()
    ours = kernels.outputs_of(kernels.kernel(target, generator)(*DRAWS[target]))
    assert torch.equal(torch.get_rng_state(), untouched)
    assert torch.equal(torch.rand(3, generator=generator), following)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine is not None
        assert other is not None
        assert (mine.dtype, mine.stride()) == (other.dtype, other.stride())
        assert torch.equal(mine, other)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("element", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("train", [True, False, None])
def test_dropout_by_its_steps(share: float, element: torch.dtype, train: bool | None) -> None:
    given = torch.randn(50, 40, dtype=element)
    torch.manual_seed(5)
    theirs = torch.native_dropout(given, share, train)
    kernel = kernels.kernel("aten.native_dropout.default", torch.Generator().manual_seed(5))
    ours = kernel(given, share, train)
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


@pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")
def test_dropout_asks_for_the_memory_that_torchs_kernel_asks_for() -> None:
    """A plan's places are found with one and used with the other."""
    allocator = native.load()
    assert allocator is not None
    asked = []
    for kernel in (
        torch.ops.aten.native_dropout.default,
        kernels.kernel("aten.native_dropout.default", torch.Generator()),
    ):
        kernel(FLOATS, 0.3, True)
        with allocator.recording() as recording, recording.step():
            kernel(FLOATS, 0.3, True)
        (step,) = recording.steps
        asked.append([(item.size_bytes, item.born_tick, item.died_tick) for item in step.allocations])
    assert asked[0] == asked[1]
    assert asked[0]
