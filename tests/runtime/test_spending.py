"""A run ends before the step that would spend more than is allowed, and another goes on bit for bit."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from helpers import hand_net

from poet.errors import InputError
from poet.plans.run_request import RunRequest, was_interrupted
from poet.runtime import Trainer
from poet.runtime.runs.fit import Allowance, Samples, Spending, fit, load_samples


@pytest.fixture
def path(tmp_path: Path) -> Path:
    hand_net.write(tmp_path / "net.poet")
    return tmp_path / "net.poet"


def samples_for(trainer: Trainer, folder: Path) -> Samples:
    import numpy as np

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(35, hand_net.WIDTH, generator=generator).numpy() for _ in range(2))
    np.savez(folder / "d.npz", x=x, y=y)
    return load_samples(folder / "d.npz", trainer.plan)


def test_joules_by_the_plan_end_the_run_and_the_next_goes_on(path: Path, tmp_path: Path) -> None:
    state = tmp_path / "s.safetensors"
    with Trainer.open(path, seed=0, arena=False) as trainer:
        list(fit(trainer, samples_for(trainer, tmp_path), epochs=3))
        undisturbed, steps = trainer.parameters(), trainer.steps
    nights = 0
    while True:
        resume = state if state.exists() else None
        with Trainer.open(path, seed=None if resume else 0, resume=resume, arena=False) as trainer:
            samples = samples_for(trainer, tmp_path)
            left = steps - trainer.steps
            allowance = Allowance(joules=5 * trainer.plan.step_joules)
            spending = Spending(trainer.plan, allowance)
            done = list(fit(trainer, samples, epochs=-(-left // 4), save_path=state, spending=spending))
            nights += 1
            assert sum(epoch.steps for epoch in done) == min(5, left)
            assert spending.joules <= allowance.joules * (1 + 1e-9) if allowance.joules else False
            request = RunRequest("", "", 0, epochs=3)
            if trainer.steps == steps:
                assert all(torch.equal(trainer.parameters()[key], undisturbed[key]) for key in undisturbed)
                break
            assert "are allowed" in done[-1].stopped
            assert not was_interrupted(done, request)
    assert nights == 3


def test_a_meter_of_the_app(path: Path) -> None:
    drawn = itertools.count(100)
    with Trainer.open(path, arena=False) as trainer:
        spending = Spending(trainer.plan, Allowance(joules=5.5), meter=lambda: float(next(drawn)))
        steps = 0
        while not spending.over():
            spending.step_done()
            steps += 1
        assert 3 <= steps <= 5


def test_seconds_and_written_bytes(path: Path, tmp_path: Path) -> None:
    now = [0.0]
    with Trainer.open(path, arena=False) as trainer:
        spending = Spending(trainer.plan, Allowance(seconds=10.0), clock=lambda: now[0])
        for at, over in ((4.0, False), (6.8, True)):
            now[0] = at
            spending.step_done()
            assert bool(spending.over()) == over, at
        each = trainer.plan.step_written_bytes
        saved = tmp_path / "state"
        saved.write_bytes(b"x" * 1000)
        spending = Spending(trainer.plan, Allowance(written_bytes=3 * each + 2000))
        spending.step_done()
        spending.saved(saved)
        assert not spending.over()
        spending.step_done()
        spending.saved(saved)
        assert "written" in spending.over()


def test_less_than_a_step_is_refused(path: Path) -> None:
    with (
        Trainer.open(path, arena=False) as trainer,
        pytest.raises(InputError, match="no step can be made: another step makes"),
    ):
        Spending(trainer.plan, Allowance(joules=trainer.plan.step_joules / 2))
