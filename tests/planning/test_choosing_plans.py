"""Chosen sets as plans: the same as by `train`, and blocks of output channels with the whole's bits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import poet
from poet.errors import InputError, PoetError, ReplayError
from poet.planning.choice import Group, Scores
from poet.plans.plan_file import PlanFile
from poet.runtime.trials import forms, trial


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 4))


GROUPS = (
    Group(("4.*",), 0.4),
    Group(("2.*",), 0.2, "0:8"),
    Group(("2.*",), 0.1, "8:16"),
    Group(("0.*",), 0.3),
)


def _planned(**more: Any) -> poet.Planned:
    return poet.plan(
        _net(),
        torch.randn(4, 16),
        device="rpi4b",
        ram="64KiB",
        optimizer="momentum",
        evaluation=False,
        **more,
    )


def test_a_choice_is_the_plan_of_its_patterns_and_keeps_what_was_chosen(tmp_path: Path) -> None:
    everything = _planned(train=["*"])
    chosen = _planned(choose=GROUPS, at_least=0.65)
    choice = chosen.plan.outcome.choice
    assert choice is not None
    assert choice.contribution >= 0.65
    assert chosen.joules < everything.joules
    again = _planned(train=chosen.plan.request.train)
    assert again.plan.graph == chosen.plan.graph
    assert again.plan.problem == chosen.plan.problem
    chosen.save(tmp_path / "plan.poet")
    with PlanFile(tmp_path / "plan.poet") as file:
        assert file.plan.outcome.choice == choice
    assert "contribution" in chosen.summary()


def test_blocks_of_channels_have_the_bits_of_the_whole(tmp_path: Path) -> None:
    planned = _planned(train=["2.weight[0:8]", "2.*[12:16]", "0.bias[3:5]", "4.bias"])
    planned.save(tmp_path / "plan.poet")
    report = poet.verify(tmp_path / "plan.poet", module=_net())
    assert all(each.difference is None for each in report.comparisons)
    names = [item.name for item in planned.plan.graph.parameters if item.gradient]
    assert names == ["0.bias[3:5]", "2.weight[0:8]", "2.weight[12:16]", "2.bias[12:16]", "4.bias"]


_CONVOLUTION = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Flatten(), nn.Linear(32, 2))


@pytest.mark.parametrize(("module", "shape"), [(_net(), (4, 16)), (_CONVOLUTION, (4, 2, 4, 4))])
def test_blocks_are_tried_again_where_a_plan_is_opened(
    module: nn.Module, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another machine may give other bits."""
    graph = poet.plan(
        module, torch.randn(*shape), device="rpi4b", ram="64KiB", train=["0.weight[2:8]"]
    ).plan.graph
    forms.check_exact(graph)
    monkeypatch.setattr(trial, "_exact", {})
    monkeypatch.setattr(forms, "same_bits", lambda *_: False)
    with pytest.raises(ReplayError, match="a block of a gradient alone, gives other bits here"):
        forms.check_exact(graph)


def test_what_cannot_be_chosen_is_refused(tmp_path: Path) -> None:
    both = (Group(("2.weight",), 1.0, "0:8"), Group(("2.weight",), 1.0, "4:16"))
    with pytest.raises(InputError, match="both have"):
        _planned(choose=both, most=True)
    with pytest.raises(PoetError, match="no block"):
        _planned(train=["2.weight[0:17]"])
    with pytest.raises(InputError, match="one of"):
        _planned(choose=GROUPS)
    scores = Scores(GROUPS)
    path = tmp_path / "scores.toml"
    path.write_text(scores.to_toml())
    assert Scores.load(path) == scores
    for text in (
        "",
        "[[group]]\ntrain = ['a']\nscore = -1.0\n",
        "[[group]]\ntrain = []\nscore = 1\n",
        "a = [",
    ):
        path.write_text(text)
        with pytest.raises(InputError):
            Scores.load(path)
    with pytest.raises(InputError):
        dataclasses.replace(GROUPS[0], channels="3:3")
