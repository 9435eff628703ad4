"""An arena counts in whole pages, and where steps cannot have it that is said once or refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.schedules import keep_everything
from poet.cli.main import app
from typer.testing import CliRunner

from poet.errors import ReplayError
from poet.memory.demand import PAGE_BYTES, demand_of
from poet.memory.layout import lay_out
from poet.plans.plan_file import write_plan
from poet.plans.plan_parts import Arena
from poet.plans.training_plan import Plan
from poet.problem import Limits
from poet.runtime import Trainer, native
from poet.runtime.steps import placed

needs_compiler = pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")


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


# --- whole pages --------------------------------------------------------------------------------


def test_an_arena_fits_with_its_pages_or_not_at_all() -> None:
    tight = laid_out()
    assert tight.arena is not None
    rounded_bytes = tight.arena_ram_bytes - tight.arena.size_bytes
    assert 0 < rounded_bytes < 2 * PAGE_BYTES
    assert not tight.has_fitting_arena
    assert laid_out(spare_bytes=rounded_bytes).has_fitting_arena
    assert not laid_out(spare_bytes=rounded_bytes - 1).has_fitting_arena
    assert laid_out(spare_bytes=rounded_bytes).held_bytes == tight.arena_ram_bytes


@needs_compiler
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


# --- from the heap, or not ----------------------------------------------------------------------


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


@needs_compiler
@pytest.mark.parametrize("kind", REFUSED)
def test_a_required_arena_that_cannot_be_had(kind: str, tmp_path: Path) -> None:
    plan, message = REFUSED[kind]
    path = write(tmp_path / "p", plan)
    with pytest.raises(ReplayError, match=message):
        Trainer.open(path, arena="require")
    with Trainer.open(path) as trainer:
        assert trainer.memory == "heap"
        trainer.step(*hand_net.batch(0))


@needs_compiler
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


@needs_compiler
def test_poet_run_requires_it_as_well(tmp_path: Path) -> None:
    path = write(tmp_path / "p", laid_out())
    arguments = ["run", str(path), "--data", str(tmp_path / "none.npz"), "--arena", "require"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(
        'poet: arena="require": steps cannot have their planned places: with its gaps'
    )
