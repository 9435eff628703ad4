"""Intervals of answers and of a plan's price: how they are made, and how many published values they hold."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from helpers import hand_net
from helpers.schedules import keep_everything
from poet.cli.devices import app
from result_file import is_kept, read
from typer.main import get_command

from poet.devices.device_problem import build_problem
from poet.devices.load import load_profile
from poet.devices.profile import Calibration, Profile
from poet.devices.spread import GROUPS, MODEL_FACTOR, Spread, likely_ends, model_factor, spread
from poet.errors import InputError, ProfileError
from poet.plans.plan_file import write_plan
from poet.plans.plan_parts import Device
from poet.problem.homes import decided
from poet.problem.simulator import simulate

intervals: Any = importlib.import_module("benchmarks.interval_table")
published: Any = importlib.import_module("benchmarks.published_table")


@pytest.fixture(scope="module")
def inferences() -> list[Any]:
    return list(intervals.inferences())


def test_independent_groups_add_up_as_squares() -> None:
    low, high = likely_ends(10.0, [(5.0, 20.0), (5.0, 20.0)], (2.5, 40.0), 1.0)
    assert (low, high) == pytest.approx((10.0 / 2 ** math.sqrt(2), 10.0 * 2 ** math.sqrt(2)))
    assert likely_ends(10.0, [(5.0, 20.0), (5.0, 20.0)], (5.0, 20.0), 1.0) == pytest.approx((5.0, 20.0))
    assert likely_ends(10.0, [], (10.0, 10.0), 1.5) == pytest.approx((10.0 / 1.5, 15.0))
    assert likely_ends(10.0, [(0.0, 20.0)], (0.0, 20.0), 1.0) == pytest.approx((0.0, 20.0))
    assert likely_ends(0.0, [(0.0, 3.0)], (0.0, 3.0), 1.2) == (0.0, 3.0)


def test_the_models_error_is_that_of_the_devices_own_fit() -> None:
    profile = load_profile("rpi4b")
    assert model_factor(profile) == MODEL_FACTOR
    made = Calibration(
        measurements="0", date="2026-01-01", torch="2", threads=1, ops=9, steps=12, median_error=0.1
    )  # fmt: skip

    def factor(**fields: float) -> float:
        return model_factor(profile.model_copy(update={"calibration": made.model_copy(update=fields)}))

    assert factor() == MODEL_FACTOR
    assert factor(worst_error=0.6, worst_factor=2.5) == 2.5
    assert factor(worst_error=0.05, worst_factor=1.05) == 1.05
    assert factor(worst_error=0.05, worst_factor=1.05, steps=9) == MODEL_FACTOR
    assert model_factor(load_profile("compat-rpi")) == 1.0


def test_the_models_error_is_that_of_steps_left_out_of_the_fit() -> None:
    rows = read(intervals.devices_table.PAGE).tables[0]
    left_out = [float(row[rows.columns.index("left out")]) for row in rows.rows]
    assert len(left_out) == 36
    off = sorted(abs(math.log(ratio)) for ratio in left_out)
    assert math.exp(off[math.ceil(0.9 * len(off)) - 1]) == pytest.approx(MODEL_FACTOR, abs=0.01)


def test_published_inferences_are_inside_the_intervals(inferences: list[Any]) -> None:
    outside = {(case.device, case.what) for case in inferences if not case.inside}
    assert outside == set(intervals.REASONS)
    for devices in (("rpi-zero-2w", "pixel"), ("stm32h743", "nrf52840", "rp2040")):
        mine = [case.inside for case in inferences if case.device in devices]
        assert len(mine) >= 12
        assert sum(mine) >= (0.6 if "pixel" in devices else 0.9) * len(mine)
    asked = [case for case in inferences if case.device not in ("rpi3b-plus", "rpi4b-xnnpack", "imxrt1062")]
    assert len(asked) >= 15
    assert sum(case.inside for case in asked) >= 0.8 * len(asked)


def _counts(cases: list[Any]) -> tuple[int, int]:
    """Of the cases: inside, and all."""
    return sum(case.inside for case in cases), len(cases)


def test_as_many_published_values_are_inside_as_the_pages_say(inferences: list[Any]) -> None:
    steps = intervals.training_steps()
    cases = [*inferences, *steps]
    others = [case for case in cases if not case.in_fit]
    heads = [case for case in steps if case.kind == "head's training step"]
    assert (_counts(cases), _counts(others), _counts(heads)) == ((156, 182), (116, 140), (42, 53))
    boards = (Path(__file__).parents[2] / "docs" / "boards.md").read_text(encoding="utf-8")
    assert "| all of these |  | 182 | 156, 86% | 140 | 116, 83% |" in str(read(published.PAGE))
    assert "Of 182 published times 156 lie in their intervals. Of the 140 in no fit 116 do." in boards
    assert all(case.low <= case.stated <= case.high for case in cases)


def test_transfers_and_energies_are_held_against_ends_of_figures_and_counted_apart() -> None:
    transfers, energies = published.storage_cases(), published.energy_cases()
    assert _counts(transfers) == (185, 196)
    assert _counts([case for case in transfers if not case.in_fit]) == (70, 80)
    assert _counts(energies) == (7, 8)
    assert all(case.low <= case.stated <= case.high for case in (*transfers, *energies))


def test_aifes_fully_connected_steps_are_inside_as_its_sketch_times_them() -> None:
    inside = {(case.what, case.kind) for case in intervals.small_steps() if case.inside}
    assert inside == {(f"aifes-{net}", "the sketch's epoch") for net in ("10+50", "10x10", "1x10")}


def test_every_net_of_a_submission_that_set_a_power_or_its_end_counts_as_fitted() -> None:
    assert all(case.in_fit for case in published.energy_cases())
    low, _ = load_profile("stm32l4r5").compute.active_watts.interval
    assert low <= 5.494e-3 * 6.04


def test_predictions_that_are_all_too_low_are_told(inferences: list[Any]) -> None:
    text = "\n".join(intervals.inference_lines(inferences))
    assert "All 12 predictions of `nrf52840` are 0.22 to 0.48 of what is published, though 11 count" in text
    assert "All 4 predictions of `esp32-s3` are 0.05 to 0.32 of what is published.\n" in text + "\n"
    assert text.count("predictions of") == 2


@pytest.mark.slow
def test_the_page_is_what_the_command_makes() -> None:
    assert is_kept(published.PAGE, published.page())


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
