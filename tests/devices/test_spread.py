"""The range of a plan's price: its ends are those of the figures, and what is stated lies between."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from helpers import hand_net
from helpers.schedules import keep_everything
from poet.cli.devices import app
from typer.main import get_command

from poet.devices.device_problem import build_problem
from poet.devices.load import load_profile
from poet.devices.profile import Profile
from poet.devices.spread import GROUPS, Spread, spread
from poet.errors import InputError, ProfileError
from poet.plans.plan_file import write_plan
from poet.plans.plan_parts import Device
from poet.problem.homes import decided
from poet.problem.simulator import simulate


def _spread(profile: Profile) -> Spread:
    graph = hand_net.graph()
    problem = build_problem(graph, profile, hand_net.KERNELS)
    schedule = keep_everything(problem)
    found = spread(decided(problem, schedule), graph, schedule, profile)
    trace = simulate(problem, schedule)
    assert (found.stated.seconds, found.stated.joules) == (trace.seconds, trace.joules)
    return found


@pytest.mark.parametrize("name", ["rpi4b", "nrf52840", "pixel", "stm32l4r5"])
def test_what_is_stated_lies_between_the_ends(name: str) -> None:
    found = _spread(load_profile(name))
    for good, bad in (*found.groups.values(), (found.all_good, found.all_bad)):
        assert good.seconds <= found.stated.seconds <= bad.seconds
        assert good.joules <= found.stated.joules <= bad.joules
    for good, bad in found.groups.values():
        assert found.all_good.joules <= good.joules
        assert bad.joules <= found.all_bad.joules
    assert found.all_good.seconds < found.stated.seconds < found.all_bad.seconds


def test_power_moves_joules_alone_and_an_exact_profile_has_no_range() -> None:
    found = _spread(load_profile("rpi4b"))
    assert set(found.groups) == set(GROUPS)
    good, bad = found.groups["power"]
    assert good.seconds == bad.seconds == found.stated.seconds
    assert good.joules < bad.joules
    exact = _spread(load_profile("compat-rpi"))
    assert exact.groups == {}
    assert exact.all_good == exact.all_bad == exact.stated


def test_the_command_takes_a_plan_and_its_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, profile = hand_net.graph(), load_profile("rpi4b")
    problem = build_problem(graph, profile, hand_net.KERNELS)
    plan = hand_net.plan(problem, graph, keep_everything(problem))
    file = tmp_path / "plan.poet"
    write_plan(file, dataclasses.replace(plan, device=Device("rpi4b")), hand_net.stored(hand_net.net()))
    _devices("ranges", str(file))
    said = capsys.readouterr().out
    assert said.startswith("rpi4b: the plan takes ")
    assert {line.split()[0] for line in said.splitlines()[1:] if line.strip()} >= {*GROUPS, "all"}
    _devices("ranges", str(file), "--json", "-")
    assert json.loads(capsys.readouterr().out)["stated"]["joules"] == plan.trace.joules
    with pytest.raises(InputError, match="a plan for rpi4b, not for pixel"):
        _devices("ranges", str(file), "--device", "pixel")


def test_a_plan_that_may_page_needs_storage() -> None:
    graph = hand_net.graph()
    problem = build_problem(graph, load_profile("rpi4b"), hand_net.KERNELS)
    schedule = keep_everything(problem)
    with pytest.raises(ProfileError, match="the plan may page and stm32l4r5 has no storage"):
        spread(decided(problem, schedule), graph, schedule, load_profile("stm32l4r5"))


def _devices(*arguments: str) -> None:
    get_command(app).main(list(arguments), prog_name="poet devices", standalone_mode=False)
