"""A measured peak above the budget is an error, and what is measured is what steps hold, to the byte."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

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

import poet
from poet.api import plan as plan_module
from poet.errors import OverBudget
from poet.frontend.trace import trace_training_step
from poet.plans.plan_file import write_plan
from poet.runtime import Trainer, fit, load_samples, native
from poet.runtime.storage.state import raw_tensor
from poet.runtime.system.memory import Peak
from poet.runtime.system.process import torch_threads

pytestmark = pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")

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
    monkeypatch.setattr("poet.verification._from_structure", lambda file: net())
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
