"""Micro-batches: the bits of a plain loop that calls ``backward()`` for each piece and updates once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.nets import small_net
from helpers.schedules import random_schedule
from torch import Tensor, nn

from poet.api import plan as plan_module
from poet.errors import Infeasible, InputError, PlanError, ReplayError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.ir.kernel_facts import KernelFacts, OpFacts
from poet.ir.micro import MicroBatches, candidates, micro_batches
from poet.ir.optimizer import OptimizerSpec
from poet.passes.block_choice import with_strips
from poet.planning.pipeline import least_energy
from poet.plans.plan_file import write_plan
from poet.plans.training_plan import Plan
from poet.runtime import Trainer, native
from poet.runtime.storage.state import raw_tensor
from poet.verification import verify

PIECES = 3
OPTIMIZERS = {
    "sgd": OptimizerSpec("sgd", lr=0.05, weight_decay=0.01),
    "momentum": OptimizerSpec("momentum", lr=0.05),
    "adamw": OptimizerSpec("adamw", lr=0.01),
    "clipped": OptimizerSpec("adamw", lr=0.01, clip_norm=0.5, clip_value=0.2),
}


@cache
def traced(optimizer: str, loss: str = "mean") -> TrainingStep:
    micro = MicroBatches(PIECES, loss)
    return trace_training_step(
        small_net(), torch.zeros(2, 2, 8, 8), optimizer=OPTIMIZERS[optimizer], measure=False, micro=micro
    )


def small_plan(
    optimizer: str, seed: int, *, share: float = 1.0, in_storage: bool = False, loss: str = "mean"
) -> Plan:
    """A plan both of whose schedules recompute, page, and move what lives across steps."""
    step = traced(optimizer, loss)
    of = hand_net.problem(step.graph, parameters_in_storage=in_storage)
    schedule = random_schedule(of, seed, share=share)
    plan = hand_net.plan(of, step.graph, schedule, optimizer=step.optimizer, loss="cross-entropy", slack=1.0)
    assert step.accumulation is not None
    found = hand_net.beside(plan, step.accumulation.graph, seed=seed + 1, share=share)
    request = replace(plan.request, limits=found.request.limits, micro=MicroBatches(PIECES, loss))
    return replace(plan, request=request, accumulation=found)


def write(path: Path, plan: Plan, step: TrainingStep) -> Path:
    write_plan(path, plan, {name: raw_tensor(tensor) for name, tensor in step.tensors.items()})
    return path


def batch(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(2 * PIECES, 2, 8, 8, generator=generator), torch.randint(
        5, (2 * PIECES,), generator=generator
    )


def test_the_reference_is_what_people_write(tmp_path: Path) -> None:
    """Without any code of ours on the other side; batch norm's statistics are those of each piece."""
    path = write(tmp_path / "plan.poet", small_plan("momentum", 4), traced("momentum"))
    module = small_net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    generator = torch.manual_seed(7)
    with Trainer.open(path, seed=7, arena=False) as trainer:
        for number in range(2):
            inputs, targets = batch(number)
            optimizer.zero_grad()
            losses = []
            for piece, wanted in zip(inputs.chunk(PIECES), targets.chunk(PIECES), strict=True):
                loss = nn.functional.cross_entropy(module(piece), wanted)
                (loss / PIECES).backward()  # type: ignore[no-untyped-call]
                losses.append(loss.item())
            optimizer.step()
            result = trainer.step(inputs, targets)
            assert result.loss == pytest.approx(sum(losses) / PIECES, rel=1e-12)
        assert generator is torch.default_generator
        for name, tensor in trainer.state_dict().items():
            assert torch.equal(tensor, module.state_dict()[name]), name


def test_pieces_one_by_one_are_the_batch(tmp_path: Path) -> None:
    path = write(tmp_path / "plan.poet", small_plan("adamw", 2), traced("adamw"))
    inputs, targets = batch(0)
    states = []
    for together in (True, False):
        with Trainer.open(path, seed=1, arena=False) as trainer:
            if together:
                trainer.step(inputs, targets)
            else:
                *earlier, last = zip(inputs.chunk(PIECES), targets.chunk(PIECES), strict=True)
                for piece in earlier:
                    assert trainer.accumulate(*piece).predictions[0].shape == (2, 5)
                    with pytest.raises(ReplayError, match="step 1 has begun"):
                        trainer.save(tmp_path / "state.safetensors")
                trainer.step(*last)
            assert trainer.steps == 1
            states.append(trainer.state_dict() | trainer.optimizer_state()["6.weight"])
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name])


def test_a_failure_between_pieces_leaves_no_state(tmp_path: Path) -> None:
    path = write(tmp_path / "plan.poet", small_plan("sgd", 0), traced("sgd"))
    inputs, targets = batch(0)
    with Trainer.open(path, seed=1, arena=False) as trainer:
        targets[-1] = 99
        with pytest.raises(InputError):  # everything is looked at first
            trainer.step(inputs, targets)
        trainer.step(*batch(1))

        def fail(index: int) -> None:
            raise ValueError("no")

        with pytest.raises(ReplayError):
            trainer.step(*batch(2), on_instruction=fail)
        with pytest.raises(ReplayError, match="after 2 micro-batches"):
            trainer.step(*batch(2))


def test_a_plan_without_micro_batches_refuses(tmp_path: Path) -> None:
    step = trace_training_step(small_net(), torch.zeros(2, 2, 8, 8), measure=False)
    of = hand_net.problem(step.graph)
    plan = hand_net.plan(
        of, step.graph, random_schedule(of, 0), optimizer=step.optimizer, loss="cross-entropy"
    )
    with (
        Trainer.open(write(tmp_path / "plan.poet", plan, step), arena=False) as trainer,
        pytest.raises(PlanError, match="plan with micro=4"),
    ):
        trainer.accumulate(torch.zeros(2, 2, 8, 8), torch.zeros(2, dtype=torch.int64))


def test_what_asks_for_micro_batches_needs_a_plan_with_them(tmp_path: Path) -> None:
    plan = small_plan("sgd", 0)
    without = replace(plan, accumulation=None, request=replace(plan.request, micro=None))
    path = write(tmp_path / "plan.poet", without, traced("sgd"))
    with pytest.raises(PlanError, match="no hyperparameter 'is_first'"):
        Trainer.open(path, arena=False)


# --- strips -----------------------------------------------------------------------------------


def wide_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))


def test_gradients_are_summed_block_by_block() -> None:
    step = trace_training_step(
        wide_net(), torch.zeros(4, 512), loss="mse", measure=False, micro=MicroBatches(2)
    )
    assert step.accumulation is not None
    known = KernelFacts("test", (OpFacts("step", seconds=1.0),))
    for graph, ends in ((step.graph, "poet.sgd"), (step.accumulation.graph, "poet.accumulate")):
        candidates = [op.strip for op in with_strips(graph, known).ops if op.strip is not None]
        for strip in candidates:
            assert strip.links[-1].call.target == ends
            assert any(link.call.target == "poet.accumulate" for link in strip.links)


# --- what is asked for ------------------------------------------------------------------------


def test_micro_batches_are_read() -> None:
    assert micro_batches("4") == MicroBatches(4)
    assert micro_batches("4:sum") == MicroBatches(4, "sum")
    assert micro_batches(1) is None
    assert micro_batches("1") is None
    assert micro_batches("auto:sum") == "sum"
    assert [str(MicroBatches(4)), str(MicroBatches(4, "sum"))] == ["4", "4:sum"]
    with pytest.raises(InputError, match="'4:layers': micro-batches go one after the other; write 4"):
        micro_batches("4:layers")
    for text in ("x", "-1", "0", "4:max", "4.5", "9" * 12, "auto:max"):
        with pytest.raises(InputError):
            micro_batches(text)


def test_a_plan_with_other_companions_cannot_be() -> None:
    plan = small_plan("sgd", 0)
    assert plan.accumulation is not None
    with pytest.raises(PlanError, match="or neither"):
        replace(plan, accumulation=None)
    with pytest.raises(PlanError, match="or neither"):
        replace(plan, request=replace(plan.request, micro=None))
    alone = replace(plan, accumulation=None, request=replace(plan.request, micro=None))
    with pytest.raises(PlanError, match=r"should not leave out or change 0\.bias"):
        replace(plan, accumulation=alone)


def test_the_number_of_pieces_of_least_energy_is_taken() -> None:
    class Made:
        def __init__(self, joules: float) -> None:
            self.plan = self
            self.step_joules = self.step_seconds = joules

    joules = {None: None, 2: 5.0, 3: 4.0, 6: 4.5}

    def make(micro: MicroBatches | None) -> Made:
        found = joules[None if micro is None else micro.count]
        if found is None:
            raise Infeasible("too little RAM")
        return Made(found)

    best, tried = least_energy([*candidates(6, "mean")], make)  # type: ignore[arg-type]
    assert best.plan.step_joules == 4.0
    assert [item.joules for item in tried] == [None, 5.0, 4.0, 4.5]
    assert tried[0].why == "too little RAM"


# --- planned ----------------------------------------------------------------------------------


@pytest.mark.skipif(not native.available(), reason="needs the native allocator")
@pytest.mark.slow
def test_a_planned_step_stays_in_its_arena_and_budget(tmp_path: Path) -> None:
    """Both schedules at their planned places: no request goes astray, and the peak is within the budget."""
    x = torch.randn(8, 2, 8, 8)
    planned = plan_module(
        small_net(), x, device="rpi4b", ram="40KiB", optimizer="momentum", micro=4,
        time_limit_seconds=5.0,
    )  # fmt: skip
    path = tmp_path / "p.poet"
    planned.save(path)
    assert Plan.from_json(planned.plan.to_json()) == planned.plan
    verify(path, module=small_net(), threads=(1,), steps=2).require()
    with Trainer.open(path, seed=0, arena="require") as trainer:
        for number in range(4):
            targets = torch.randint(5, (8,), generator=torch.Generator().manual_seed(number))
            with trainer.peak_meter() as meter:
                trainer.step(x, targets)
            trainer.predict(x[:2])
        assert trainer._tensors.placed is not None
        assert trainer._tensors.placed.misses == 0
        assert trainer.memory.endswith("as planned")
        limit = trainer.plan.request.limits.ram_budget_bytes
        assert limit is not None
        assert meter.peak.bytes is None or meter.peak.bytes <= limit
