"""Steps at the plan's places: no request missed from the first step on, the bits of plain PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import arenas
import pytest
import torch
from helpers import hand_net
from helpers.pace import with_slow
from helpers.schedules import keep_everything
from zoo import NETS

from poet import api
from poet.ir.kernel_facts import KernelFacts
from poet.memory.layout import lay_out
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.plans import plan_file
from poet.plans.plan_parts import Arena
from poet.plans.training_plan import Plan
from poet.problem import Limits
from poet.problem.solution import SolveOptions
from poet.runtime import Trainer, native
from poet.runtime.data.random_batches import random_batch
from poet.solvers import minimum_ram_bytes
from poet.verification import verify

pytestmark = pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")

SIZE = NETS["resnet18"].small


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return SIZE.build().train()


def write_plan(path: Path, *, threads: int = 1, share: float = 0.5, recompute: bool = True) -> Plan:
    """A small residual net, planned with recomputation and paging."""
    torch.set_num_threads(threads)
    prepared = api.prepare(module(), SIZE.inputs(8), device="rpi4b", optimizer="momentum")
    most = keep_everything_bytes(prepared.problem)
    least = minimum_ram_bytes(prepared.problem, Limits()).bytes
    limits = Limits(ram_budget_bytes=budget_between(least, most, share), recompute=recompute)
    planned = api.plan_step(prepared, limits, SolveOptions(time_limit_seconds=1.0))
    planned.save(path)
    return planned.plan


def losses(path: Path, *, arena: bool, steps: int = 4) -> tuple[list[float], Trainer]:
    with Trainer.open(path, seed=0, arena=arena) as trainer:
        batches = [random_batch(trainer.plan, number) for number in range(steps)]
        return [trainer.step(*batch).loss for batch in batches], trainer


@pytest.mark.parametrize(
    ("recompute", "threads"),
    with_slow([(True, 1), (True, 2), (False, 1), (False, 2)], {(True, 2), (False, 1), (False, 2)}),
)
def test_every_request_goes_to_its_planned_place(recompute: bool, threads: int, tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "p", threads=threads, recompute=recompute)
    assert plan.has_fitting_arena
    assert (plan.trace.recomputed_runs if recompute else plan.trace.written_bytes) > 0
    with Trainer.open(tmp_path / "p", seed=0) as trainer:
        batches = [random_batch(plan, number) for number in range(4)]
        placed = [trainer.step(*batch).loss for batch in batches]
        assert trainer.memory.endswith("as planned")
        assert trainer._tensors.placed is not None
        assert trainer._tensors.placed.misses == 0
        assert trainer.held_bytes <= (plan.request.limits.ram_budget_bytes or 0)
    assert losses(tmp_path / "p", arena=False)[0] == placed
    report = verify(tmp_path / "p", module=module(), steps=3, threads=(threads,))
    report.require()


def test_kernels_that_ask_for_more_than_was_measured_are_recorded(tmp_path: Path) -> None:
    """A plan from another processor: its kernels' temporaries are left out."""
    torch.set_num_threads(1)
    prepared = api.prepare(module(), SIZE.inputs(8), device="rpi4b", optimizer="momentum")
    ops = tuple(
        replace(
            op,
            allocations=tuple(item for item in op.allocations or () if item.output is not None),
            repeat_allocations=None,
        )
        for op in prepared.kernels.ops
    )
    kernels = replace(prepared.kernels, ops=ops)
    changed = replace(prepared, step=replace(prepared.step, kernels=kernels), kernels=kernels)
    planned = api.plan_step(changed, Limits(ram_budget_bytes=8 << 20), SolveOptions(time_limit_seconds=1.0))
    planned.save(tmp_path / "p")
    with Trainer.open(tmp_path / "p", seed=0) as trainer:
        batches = [random_batch(planned.plan, number) for number in range(10)]
        assert trainer.memory.endswith("as planned")
        placed = [trainer.step(*batch).loss for batch in batches[:2]]
        assert trainer.memory.endswith("as planned"), "one step may have had company"
        placed += [trainer.step(*batches[2]).loss]
        assert "were not planned for" in trainer.memory
        placed += [trainer.step(*batch).loss for batch in batches[3:]]
        assert trainer.memory.endswith("laid out here")
        assert trainer._tensors.placed is not None
        assert trainer._tensors.placed.misses == 0
    assert losses(tmp_path / "p", arena=False, steps=10)[0] == placed


@pytest.mark.parametrize(
    ("alignment_bytes", "is_torchs", "memory"),
    [(64, True, "as planned"), (1, True, "heap"), (64, False, "heap")],
)
def test_only_a_layout_for_torchs_kernels_at_their_alignment_is_replayed(
    alignment_bytes: int, is_torchs: bool, memory: str, tmp_path: Path
) -> None:
    """A stranger's plan may say that kernels align to a byte, and a device may have other kernels."""
    graph = hand_net.graph()
    kernels = KernelFacts("", alignment_bytes=alignment_bytes, threads=torch.get_num_threads())
    problem = hand_net.problem(graph, kernels=kernels)
    plan = hand_net.plan(problem, graph, keep_everything(problem), kernels=kernels, slack=1.0)
    layout = lay_out(plan.demand.blocks)
    assert any(offset % 64 for offset in layout.offsets_bytes) is (alignment_bytes == 1)
    plan = replace(
        plan,
        arena=Arena(layout.arena_bytes, layout.offsets_bytes),
        host_kernels=None if is_torchs else KernelFacts("pytorch-cpu", threads=kernels.threads),
    )
    plan_file.write_plan(tmp_path / "p", plan, hand_net.stored(hand_net.net()))
    with Trainer.open(tmp_path / "p") as trainer:
        assert trainer.memory.endswith(memory)
        for number in range(2):
            trainer.step(*hand_net.batch(number))


@pytest.mark.slow
def test_a_gradient_tap_allocates_outside_of_the_arena(tmp_path: Path) -> None:
    plan = write_plan(tmp_path / "p")
    with Trainer.open(tmp_path / "p", seed=0) as trainer:
        gradients: dict[str, torch.Tensor] = {}
        for number in range(3):
            trainer.step(
                *random_batch(plan, number), on_gradient=lambda name, g: gradients.update({name: g.clone()})
            )
        assert trainer.memory.endswith("as planned")
        assert trainer._tensors.placed is not None
        assert trainer._tensors.placed.misses == 0
    assert gradients


@pytest.mark.slow
@pytest.mark.parametrize("net", ["squeezenet", "mobilenet_v2"])
def test_no_plan_of_a_whole_net_runs_from_the_heap(net: str) -> None:
    """At 40 and 5 % of the way from the lower bound to keeping everything, as on the page of models."""
    prepared, budgets = arenas.prepared_for("models", net, 1)
    rows = list(arenas.measured(prepared, net, budgets, 5.0))
    assert len(rows) == 2
    for row in rows:
        assert not row.is_from_heap, row
        assert row.peak_bytes <= row.arena_bytes <= row.budget_bytes, row
