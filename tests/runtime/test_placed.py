"""Steps at the plan's places, in whole pages, or refused; what they held, counted to the byte."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import arenas
import numpy as np
import pytest
import torch
from helpers import hand_net
from helpers.nets import small_net
from helpers.pace import with_slow
from helpers.schedules import keep_everything, random_schedule
from helpers.sequence_nets import Recurrent
from poet.cli.main import app
from torch import Tensor, nn
from typer.testing import CliRunner
from zoo import NETS

import poet
from poet import api
from poet.api import plan as plan_module
from poet.errors import OverBudget, ReplayError
from poet.frontend.trace import trace_training_step
from poet.ir.kernel_facts import KernelFacts
from poet.memory.demand import PAGE_BYTES, demand_of
from poet.memory.layout import lay_out
from poet.planning.prepared import Prepared
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.plans.plan_file import write_plan
from poet.plans.plan_parts import Arena
from poet.plans.training_plan import Plan
from poet.problem import Limits
from poet.problem.solution import SolveOptions
from poet.runtime import Trainer, fit, load_samples, native
from poet.runtime.data.random_batches import random_batch
from poet.runtime.steps import placed
from poet.runtime.storage.state import raw_tensor
from poet.runtime.system.memory import Peak
from poet.runtime.system.process import torch_threads
from poet.solvers import minimum_ram_bytes
from poet.verification import verify

pytestmark = pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")

SIZE = NETS["resnet18"].small


def module() -> torch.nn.Module:
    torch.manual_seed(0)
    return SIZE.build().train()


@cache
def prepared_for(threads: int) -> Prepared:
    """A small residual net, whose kernels were measured with ``threads``."""
    torch.set_num_threads(threads)
    return api.prepare(module(), SIZE.inputs(8), device="rpi4b", optimizer="momentum")


def planned_for(path: Path, *, threads: int = 1, share: float = 0.5, recompute: bool = True) -> Plan:
    """Planned with recomputation and paging."""
    torch.set_num_threads(threads)
    prepared = prepared_for(threads)
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
    plan = planned_for(tmp_path / "p", threads=threads, recompute=recompute)
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
    prepared = prepared_for(1)
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
    write_plan(tmp_path / "p", plan, hand_net.stored(hand_net.net()))
    with Trainer.open(tmp_path / "p") as trainer:
        assert trainer.memory.endswith(memory)
        for number in range(2):
            trainer.step(*hand_net.batch(number))


@pytest.mark.slow
def test_a_gradient_tap_allocates_outside_of_the_arena(tmp_path: Path) -> None:
    plan = planned_for(tmp_path / "p")
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


# --- an arena counts in whole pages, and where it cannot be had that is said ---------------------


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(placed, "_announced", set())
    yield
    torch.set_num_threads(before)


def laid_out(*, spare_bytes: int = 0, threads: int | None = 1) -> Plan:
    """The net written by hand, in an arena; the budget is its size and ``spare_bytes``."""
    graph, kernels = hand_net.graph(), replace(hand_net.KERNELS, threads=threads)
    problem = hand_net.problem(graph)
    schedule = keep_everything(problem)
    layout = lay_out(demand_of(problem, schedule, kernels).blocks)
    plan = hand_net.plan(problem, graph, schedule, slack=1.0, kernels=kernels)
    limits = Limits(ram_budget_bytes=layout.arena_bytes + spare_bytes)
    return replace(
        plan,
        request=replace(plan.request, limits=limits),
        arena=Arena(layout.arena_bytes, layout.offsets_bytes),
    )


def write(path: Path, plan: Plan) -> Path:
    write_plan(path, plan, hand_net.stored(hand_net.net()))
    return path


def test_an_arena_fits_with_its_pages_or_not_at_all() -> None:
    tight = laid_out()
    assert tight.arena is not None
    rounded_bytes = tight.arena_ram_bytes - tight.arena.size_bytes
    assert 0 < rounded_bytes < 2 * PAGE_BYTES
    assert not tight.has_fitting_arena
    assert laid_out(spare_bytes=rounded_bytes).has_fitting_arena
    assert not laid_out(spare_bytes=rounded_bytes - 1).has_fitting_arena
    assert laid_out(spare_bytes=rounded_bytes).held_bytes == tight.arena_ram_bytes


def test_what_is_mapped_is_what_was_counted(tmp_path: Path) -> None:
    plan = laid_out(spare_bytes=2 * PAGE_BYTES)
    with Trainer.open(write(tmp_path / "p", plan), arena="require") as trainer:
        trainer.step(*hand_net.batch(0))
        assert trainer.memory.endswith("as planned")
        steps = trainer._tensors.placed
        assert steps is not None
        assert steps._arena is not None
        assert steps._planned is not None
        assert steps._planned.standing is not None
        assert steps._arena.memory.size_bytes + steps._planned.standing.size_bytes == plan.arena_ram_bytes


def test_a_fallback_is_announced_once_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(native, "load", lambda: None)
    monkeypatch.setattr(
        native, "why_unavailable", lambda: "no C++ compiler was found; install one or set CXX"
    )
    path = write(tmp_path / "p", laid_out(spare_bytes=2 * PAGE_BYTES))
    with caplog.at_level(logging.WARNING, logger="poet.runtime"):
        for _ in range(2):
            with Trainer.open(path) as trainer:
                trainer.step(*hand_net.batch(0))
    (told,) = [record.getMessage() for record in caplog.records]
    assert "from the heap: no C++ compiler was found; install one or set CXX." in told
    assert 'arena="require" (poet run --arena require) refuses' in told
    with pytest.raises(ReplayError, match="steps cannot have their planned places: no C\\+\\+ compiler"):
        Trainer.open(path, arena="require")
    with caplog.at_level(logging.WARNING, logger="poet.runtime"), Trainer.open(path, arena=False):
        assert len(caplog.records) == 1  # the heap was asked for


REFUSED = {
    "no layout": (replace(laid_out(), arena=None), "the plan does not say where tensors lie; plan again"),
    "threads": (
        laid_out(spare_bytes=9999, threads=3),
        r"measured with 3 threads and torch has 1; .*--threads 3",
    ),
    "budget": (laid_out(), "with its gaps the plan takes .*, more than its budget; plan with more RAM"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_required_arena_that_cannot_be_had(kind: str, tmp_path: Path) -> None:
    plan, message = REFUSED[kind]
    path = write(tmp_path / "p", plan)
    with pytest.raises(ReplayError, match=message):
        Trainer.open(path, arena="require")
    with Trainer.open(path) as trainer:
        assert trainer.memory == "heap"
        trainer.step(*hand_net.batch(0))


def test_a_required_arena_that_is_lost_ends_training_between_steps(tmp_path: Path) -> None:
    path = write(tmp_path / "p", laid_out(spare_bytes=2 * PAGE_BYTES))
    with Trainer.open(path, arena="require") as trainer:
        trainer.step(*hand_net.batch(0))
        assert trainer._tensors.placed is not None
        trainer._tensors.placed._leave_planned(1 << 20)
        with pytest.raises(ReplayError, match="kernels here need 1 MiB that were not planned for; plan here"):
            trainer.step(*hand_net.batch(1))
        trainer.save(tmp_path / "state")
    with Trainer.open(path, resume=tmp_path / "state") as trainer:
        assert trainer.steps == 1


def test_poet_run_requires_it_as_well(tmp_path: Path) -> None:
    path = write(tmp_path / "p", laid_out())
    arguments = ["run", str(path), "--data", str(tmp_path / "none.npz"), "--arena", "require"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(
        'poet: arena="require": steps cannot have their planned places: with its gaps'
    )


# --- a peak above the budget is an error ---------------------------------------------------------


ABOVE = (
    r"steps held .* KiB of tensors, .* B above the budget of .* KiB: the plan does not say where tensors "
    r"lie; plan again, .*; more RAM, or --allow-over-budget \(allow_over_budget\), lets it pass"
)


def net() -> nn.Module:
    torch.manual_seed(0)
    return Recurrent(nn.GRU)


@pytest.fixture
def short(tmp_path: Path) -> Path:
    """A plan by facts of kernels without temporaries, of a net whose kernels here take some; and data."""
    step = trace_training_step(net(), torch.zeros(2, 3, 4), measure=False)
    of = hand_net.problem(step.graph)
    kernels = replace(hand_net.KERNELS, threads=1)
    made = hand_net.plan(of, step.graph, keep_everything(of), loss="cross-entropy", kernels=kernels)
    stored = {name: raw_tensor(tensor) for name, tensor in step.tensors.items()}
    write_plan(tmp_path / "p", made, stored)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((8, 3, 4), dtype=np.float32)
    np.savez(tmp_path / "d.npz", inputs=inputs, targets=rng.integers(0, 3, 8))
    return tmp_path / "p"


def test_a_fit_ends_after_the_step_and_saves_it(short: Path) -> None:
    data, state = short.parent / "d.npz", short.parent / "s"
    with Trainer.open(short) as trainer:
        samples = load_samples(data, trainer.plan)
        with pytest.raises(OverBudget, match=ABOVE):
            list(fit(trainer, samples, epochs=1, save_path=state))
    with Trainer.open(short, resume=state) as trainer:
        assert trainer.steps == 1
        trainer.allow_over_budget = True
        assert [epoch.steps for epoch in fit(trainer, samples, epochs=1)] == [3]


@pytest.mark.parametrize("command", ["run", "verify"])
def test_a_command_ends_with_one_line(command: str, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poet.verification.check._from_structure", lambda file: net())
    given = [command, str(short), "--data", str(short.parent / "d.npz"), "--threads", "1"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 1
    assert done.stderr.startswith("poet: steps held ")
    assert "--allow-over-budget" in done.stderr.splitlines()[-1]
    assert CliRunner().invoke(app, [*given, "--allow-over-budget"]).exit_code == 0


def test_verify_judges_at_the_threads_of_the_plan_alone(short: Path) -> None:
    with pytest.raises(OverBudget, match=ABOVE):
        poet.verify(short, module=net(), threads=(1,))
    assert poet.verify(short, module=net(), threads=(2,))
    assert poet.verify(short, module=net(), threads=(1,), allow_over_budget=True)


@pytest.mark.parametrize("seed", with_slow(range(4), range(2, 4)))
def test_on_the_heap_each_step_holds_what_was_predicted(seed: int, tmp_path: Path) -> None:
    """From the first on, recomputed and paged, and whatever others allocate meanwhile."""
    graph = hand_net.graph()
    of, kernels = hand_net.problem(graph), replace(hand_net.KERNELS, threads=3)
    made = hand_net.plan(of, graph, random_schedule(of, seed), kernels=kernels)
    write_plan(tmp_path / "p", made, hand_net.stored(hand_net.net()))
    others: list[Tensor] = []

    def hold(name: str, gradient: Tensor) -> None:
        others.extend([gradient.clone(), torch.empty(1 << 20, dtype=torch.uint8)])

    ended = threading.Event()

    def allocate() -> None:
        while not ended.is_set():
            torch.empty(1 << 22, dtype=torch.uint8)

    thread = threading.Thread(target=allocate)
    thread.start()
    try:
        with Trainer.open(tmp_path / "p") as trainer:
            for number in range(3):
                with trainer.peak_meter() as meter:
                    trainer.step(*hand_net.batch(number), on_gradient=hold)
                assert meter.peak.is_counted
                assert meter.peak.bytes is not None
                assert abs(meter.peak.bytes - made.prediction.peak_ram_bytes) < 256  # padding, and numbers
    finally:
        ended.set()
        thread.join()
    assert others


def test_an_evaluation_beside_an_arena_that_was_found_here_is_counted(tmp_path: Path) -> None:
    x, targets = torch.randn(8, 2, 8, 8), torch.randint(5, (8,))
    made = plan_module(small_net(), x, device="x86-host", ram="256KiB", time_limit_seconds=0.5)
    made.save(tmp_path / "p")
    with torch_threads(2), Trainer.open(tmp_path / "p", seed=0) as trainer:
        trainer.allow_over_budget = True
        for _ in range(6):
            trainer.step(x, targets)
        assert trainer.memory.endswith("laid out here")
        with trainer.peak_meter() as meter:
            trainer.predict(x)
        assert meter.peak.bytes is not None
        assert meter.peak.bytes > trainer.held_bytes + 1024
        trainer.step(x, targets)
        assert trainer.memory.endswith("laid out here")


def test_the_kernels_mark_has_a_margin_and_a_count_has_none() -> None:
    budget_bytes = 100 << 20
    assert Peak(budget_bytes + 1, is_counted=True).above(budget_bytes) == 1
    assert Peak(budget_bytes + (4 << 20)).above(budget_bytes) == 0
    assert Peak(budget_bytes + (5 << 20)).above(budget_bytes) == 5 << 20
    assert Peak(None).above(budget_bytes) == 0


def test_what_several_shapes_lose_their_arena_to_is_said(tmp_path: Path) -> None:
    made = plan_module(
        nn.Linear(6, 3), torch.zeros(4, 6), shapes=[torch.zeros(3, 6)], device="x86-host", ram="64KiB",
        time_limit_seconds=0.5,
    )  # fmt: skip
    made.save(tmp_path / "p")
    with torch_threads(2), Trainer.open(tmp_path / "p") as trainer:
        for _ in range(2):
            trainer.step(torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64))
        assert "measured with 1 threads and torch has 2" in trainer.memory
        assert "--threads 1" in trainer.memory
