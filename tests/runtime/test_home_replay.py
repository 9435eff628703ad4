"""Replay with parameters at home in storage: bitwise over steps, a resume and the trained weights."""

from __future__ import annotations

import functools

import pytest
import torch
from zoo import NETS

import poet
from poet.errors import Infeasible
from poet.problem import Place

NET = NETS["bert"].small
pytestmark = pytest.mark.slow
HOMES = ("storage", "either")
RAM = "110KiB"  # the parameters with their momentum take 230 KiB


@functools.cache
def planned(home: str) -> poet.Planned:
    torch.manual_seed(0)
    return poet.plan(
        NET.build().train(),
        NET.inputs(2),
        device="rpi4b",
        ram=RAM,
        optimizer="momentum",
        home=home,
        time_limit_seconds=1.0,
    )


def test_with_everything_in_ram_there_is_no_plan_and_the_way_out_is_said() -> None:
    with pytest.raises(Infeasible, match="home"):
        planned("ram")


@pytest.mark.parametrize("home", HOMES)
def test_the_plan_says_where_everything_is_at_home(home: str) -> None:
    plan = planned(home).plan
    at_home = {t.name: t.initially for t in plan.problem.tensors}
    assert Place.EITHER not in at_home.values()
    assert Place.STORAGE in at_home.values()
    assert plan.trace.peak_ram_bytes <= 110 * 1024
