"""The peak of steps, counted to the byte: not above the budget, whatever comes and whoever keeps results."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from poet.api import Planned
from poet.api import plan as plan_module
from poet.planning.auxiliary import plan_again
from poet.planning.shape_planner import ShapePlanner
from poet.runtime import StepResult, Trainer, native
from poet.runtime.native import NativeAllocator
from poet.runtime.system.process import torch_threads

WORDS, CLASSES, SAMPLES = 11, 24, 4

pytestmark = pytest.mark.skipif(not native.available(), reason="needs a C++ compiler")


class Tagger(nn.Module):
    """A class for each token: outputs that are no small part of what a step holds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.layers = nn.Embedding(WORDS, 16), nn.ModuleList([nn.Linear(16, 16) for _ in "ab"])
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores [N,C,L] of tokens [N,L]."""
        found = self.embed(tokens)
        for layer in self.layers:
            found = torch.tanh(layer(found))
        scores: Tensor = self.head(found)
        return scores.transpose(1, 2)


def batch(length: int, number: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(WORDS, (SAMPLES, length), generator=generator)
    return tokens, torch.randint(CLASSES, (SAMPLES, length), generator=generator)


@cache
def planned(share: float | None = None) -> Planned:
    """For lengths of 64, 40 and 20, in so much of what keeping everything takes."""
    ram = None if share is None else round(share * planned().plan.held_bytes)
    longest, *others = (batch(length)[0] for length in (64, 40, 20))
    with torch_threads(1):
        return plan_module(
            Tagger().train(), longest, device="x86-host", ram=ram, shapes=others,
            evaluation=False, time_limit_seconds=0.3,
        )  # fmt: skip


@cache
def allocator() -> NativeAllocator:
    found = native.load()
    assert found is not None
    return found


def counted(step: Callable[[Tensor, Tensor], object], given: tuple[Tensor, Tensor]) -> int:
    """The most bytes that torch had out in a step, whole arenas included."""
    with allocator().tracking() as tracked:
        step(*given)
        return tracked.usage().footprint_peak_bytes


def budget_of(made: Planned) -> int:
    return made.plan.request.limits.ram_budget_bytes or 0


def test_a_step_of_any_shape_has_nothing_beside_a_full_arena(tmp_path: Path) -> None:
    made = planned(1.0)
    assert made.plan.has_fitting_arena
    made.save(tmp_path / "p")
    batches = [batch(length) for length in (64, 40, 20, 64)]
    with allocator().tracking() as tracked:
        before_bytes = tracked.usage().footprint_bytes
        with Trainer.open(tmp_path / "p", seed=0) as trainer:
            peaks = [counted(trainer.step, given) for given in batches]
    assert max(peaks) - before_bytes <= budget_of(made)


def test_a_state_is_saved_without_a_byte_beside_a_full_arena(tmp_path: Path) -> None:
    """Also where it is looked at for NaN first, as `fit` does."""
    made = planned(1.0)
    made.save(tmp_path / "p")
    with Trainer.open(tmp_path / "p", seed=0, arena="require") as trainer:
        for _ in range(3):
            trainer.step(*batch(64))
        with allocator().tracking() as tracked:
            assert trainer.not_finite() is None
            trainer.save(tmp_path / "s")
        assert tracked.usage().footprint_peak_bytes == tracked.usage().footprint_bytes


def test_results_that_are_kept_move_nothing_of_the_next_step(tmp_path: Path) -> None:
    """They take their own bytes beside the budget; every tensor of the steps has its planned place."""
    made = planned(1.0)
    made.save(tmp_path / "p")
    batches = [batch(length, length) for length in (64, 64, 64, 64, 64, 40, 20, 64)]
    results: list[StepResult] = []
    with allocator().tracking() as tracked:
        before_bytes = tracked.usage().footprint_bytes
        with Trainer.open(tmp_path / "p", seed=0, arena="require") as trainer:
            peaks = [counted(lambda *given: results.append(trainer.step(*given)), given) for given in batches]
            assert trainer.memory.endswith("as planned")
            assert trainer._tensors.placed is not None
            assert trainer._tensors.placed.misses == 0
    kept_bytes = [sum(item.nbytes for item in result.predictions) for result in results]
    assert all(kept_bytes)
    for number, peak_bytes in enumerate(peaks):
        assert peak_bytes - before_bytes <= budget_of(made) + sum(kept_bytes[:number])
    with Trainer.open(tmp_path / "p", seed=0, arena=False) as trainer:
        for given, result in zip(batches, results, strict=True):
            assert torch.equal(trainer.step(*given).predictions[0], result.predictions[0])


def test_a_result_is_copied_without_its_arena(tmp_path: Path) -> None:
    planned(1.0).save(tmp_path / "p")
    with Trainer.open(tmp_path / "p", seed=0, arena="require") as trainer:
        for _ in range(2):
            result = trainer.step(*batch(64))
        copies = [copy.deepcopy(result).outputs, dataclasses.asdict(result)["outputs"]]
        make, parts = result.outputs.__reduce__()  # what a file of it would hold
        copies.append(make(*parts))
        wanted = result.predictions[0].clone()
        trainer.step(*batch(64, 3))
    assert all(torch.equal(outputs.own[0], wanted) for outputs in copies)


def test_a_result_that_is_kept_does_not_keep_the_arena(tmp_path: Path) -> None:
    """A change of the budget gives the memory back, though somebody has a result of the plan before."""
    made = planned(1.0)
    made.save(tmp_path / "p")
    given, budget_bytes = batch(64), round(0.9 * budget_of(made))
    with allocator().tracking() as tracked:
        before_bytes = tracked.usage().footprint_bytes
        with Trainer.open(tmp_path / "p", seed=0) as trainer:
            result = trainer.step(*given)
            trainer.set_budget(budget_bytes, planner=partial(plan_again, time_limit_seconds=0.3))
            peak_bytes = counted(trainer.step, given)
        assert peak_bytes - before_bytes <= budget_bytes + result.predictions[0].nbytes
    with Trainer.open(tmp_path / "p", seed=0, arena=False) as trainer:
        assert torch.equal(trainer.step(*given).predictions[0], result.predictions[0])


@pytest.mark.slow
@pytest.mark.parametrize("arena", [True, False])
@pytest.mark.parametrize("share", [1.0, 0.9, 0.8])
def test_a_stream_of_mixed_lengths_stays_within_the_budget(share: float, arena: bool, tmp_path: Path) -> None:
    """Each step, planning apart; and each once more, when nothing is left to plan."""
    made = planned(share)
    made.save(tmp_path / "p")
    lengths = (64, 63, 41, 40, 39, 20, 64, 61, 60, 59, 5, 21, 19, 33, 48, 64)
    batches = [batch(length) for length in (*lengths, *lengths)]
    planner = ShapePlanner()
    with allocator().tracking() as tracked:
        before_bytes = tracked.usage().footprint_bytes
        with Trainer.open(tmp_path / "p", seed=0, arena=arena) as trainer:
            trainer.shape_planner = planner
            for given in batches:
                trainer._prepare(*given, planner)
                peak_bytes = counted(trainer.step, given)
                assert peak_bytes - before_bytes <= budget_of(made), tuple(given[0].shape)
    assert len(planner.timed) == len(set(lengths) - {64, 40, 20})
