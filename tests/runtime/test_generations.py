"""Two generations of a saved state: a damaged newest one is passed over, and the bits stay the same."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from torch import Tensor

from poet.errors import PlanError
from poet.runtime import Trainer
from poet.runtime.storage.state import previous_of


def train(trainer: Trainer, until: int, *, save: Path | None = None) -> dict[str, Tensor]:
    while trainer.steps < until:
        trainer.step(*hand_net.batch(trainer.steps))
        if save is not None:
            trainer.save(save, keep_previous=True)
    return trainer.state_dict()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A state after three steps, with the one before it."""
    hand_net.write(tmp_path / "p")
    with Trainer.open(tmp_path / "p") as trainer:
        train(trainer, 3, save=tmp_path / "state")
    return tmp_path / "state"


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [_cut, _flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_a_damaged_newest_state_is_passed_over_with_a_word(
    saved: Path, harm: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(harm)
    plan = saved.with_name("p")
    with Trainer.open(plan) as trainer:
        undisturbed = train(trainer, 5)
    harm(saved)
    with caplog.at_level(logging.WARNING, "poet.runtime"), Trainer.open(plan, resume=saved) as trainer:
        assert trainer.steps == 2
        found = train(trainer, 5, save=saved)
    assert "going on from the generation before it" in caplog.text
    assert "after step 2" in caplog.text
    assert all(torch.equal(found[name], tensor) for name, tensor in undisturbed.items())
    with Trainer.open(plan, resume=saved) as trainer:
        assert trainer.steps == 5


def test_two_generations_are_kept(saved: Path) -> None:
    for path, steps in ((saved, 3), (previous_of(saved), 2)):
        with Trainer.open(saved.with_name("p"), resume=path) as trainer:
            assert trainer.steps == steps
    assert {path.name for path in saved.parent.iterdir()} == {"p", "state", "state.previous"}


def test_a_damaged_state_never_takes_the_place_of_a_good_one(saved: Path) -> None:
    _flip(saved)
    good = previous_of(saved).read_bytes()
    with Trainer.open(saved.with_name("p"), resume=saved) as trainer:
        trainer.step(*hand_net.batch(trainer.steps))
        trainer.save(saved, keep_previous=True)
    assert previous_of(saved).read_bytes() == good
    with Trainer.open(saved.with_name("p"), resume=saved) as trainer:
        assert trainer.steps == 3


def test_another_training_leaves_no_generation_before_its_own(saved: Path) -> None:
    with Trainer.open(saved.with_name("p")) as trainer:
        train(trainer, 1, save=saved)
    assert not previous_of(saved).exists()


def test_where_both_are_damaged_the_newest_is_named(saved: Path) -> None:
    _flip(saved)
    _cut(previous_of(saved))
    with pytest.raises(PlanError, match="state: its tensors are damaged"):
        Trainer.open(saved.with_name("p"), resume=saved)


def test_a_file_system_without_hard_links_will_do(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    with Trainer.open(saved.with_name("p"), resume=saved) as trainer:
        train(trainer, 4, save=saved)
    with Trainer.open(saved.with_name("p"), resume=previous_of(saved)) as trainer:
        assert trainer.steps == 3


def test_a_cut_between_the_two_names_leaves_a_state(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hard links there is an instant in which only the previous one is there."""
    saved.replace(previous_of(saved))
    with Trainer.open(saved.with_name("p"), resume=saved) as trainer:
        assert trainer.steps == 3
