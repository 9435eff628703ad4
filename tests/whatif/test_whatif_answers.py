"""What a sweep's figures mean: use, stalls, marginal values, sentences; and the same data in three forms."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers.hand_net import graph as hand_graph

from poet.devices.device_problem import build_problem
from poet.devices.load import load_profile, profile_names
from poet.devices.profile import Profile
from poet.errors import InputError
from poet.ir.kernel_facts import KernelFacts
from poet.planning.ram_survey import keep_everything_bytes
from poet.plans.page_slots import most_erased
from poet.problem import Limits, Place
from poet.problem.schedule import PageOut
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions
from poet.solvers import solve
from poet.whatif import grid
from poet.whatif.answers import least_joules_at
from poet.whatif.further import ram_step_bytes, with_flash_bandwidth
from poet.whatif.grid import DataSupply, Duty
from poet.whatif.knowledge import Candidate
from poet.whatif.models import variant_of
from poet.whatif.result import COLUMNS, Basis, FoundPlan, Setting, Verdict, WhatIf
from poet.whatif.run import to_csv, to_json, what_if
from poet.whatif.settings import problem_of, setting_of
from poet.whatif.sweep import found_plan
from poet.whatif.usage import Shares, data_stall, measure_data, measure_loader, usage_of

LINEAR = Path(__file__).parents[1] / "instances" / "linear.m4.json"
QUICK = SolveOptions(time_limit_seconds=1.0)
DUTY = Duty(
    steps_per_session=20,
    sessions_per_day=3.0,
    battery_joules=grid.battery_joules("3000mAh@3.7V"),
    grid_grams_per_joule=grid.grams_per_joule("300g/kWh"),
    dataset_samples=64,
    energy_budget=grid.energy_budget("500J/day"),
)


@cache
def _swept() -> WhatIf:
    return what_if(
        LINEAR, ram="min..keep:4", deadline="1.2x,none", duty=DUTY, options=QUICK, jobs=1, cache=None
    )


def _paging(device: str, share: float) -> tuple[FoundPlan, Setting, Profile]:
    """A plan of the hand-written net that may not recompute, in a share of what keeping everything needs."""
    profile = load_profile(device)
    graph = hand_graph()
    variant = variant_of(graph, KernelFacts("pytorch-cpu"), (("N", 4),), "sgd")
    setting = setting_of(problem_of(variant, profile, Place.RAM), profile=profile, variant=variant)
    problem = setting.problem
    low, high = setting.lower_bound.bytes, keep_everything_bytes(problem)
    limits = Limits(ram_budget_bytes=low + int(share * (high - low)), recompute=False)
    solution = solve(problem, limits, QUICK)
    assert solution.schedule is not None
    assert solution.trace is not None
    candidate = Candidate(0, solution.schedule, solution.trace, solution.solver)
    return found_plan(0, setting, candidate), setting, profile


# --- sentences --------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_question_asked_is_answered_and_numbers_are_those_of_the_points() -> None:
    result = _swept()
    said = {answer.question: answer for answer in result.answers}
    assert {
        "headline", "least-ram", "least-energy", "energy-budget", "battery", "flash-life", "wall-time",
        "carbon", "marginal-value",
    } <= set(said)  # fmt: skip
    assert result.chosen is not None
    plan = result.plan_of(result.points[result.chosen])
    assert plan is not None
    figures = {name: dict(answer.figures) for name, answer in said.items()}
    assert figures["headline"]["joules"] == plan.joules
    setting = result.points[result.chosen].setting
    mine = [(p.limits.ram_budget_bytes, result.plan_of(p)) for p in result.points if p.setting == setting]
    least = min(found.joules for _, found in mine if found is not None)
    near = [ram or math.inf for ram, found in mine if found is not None and found.joules <= 1.2 * least]
    assert result.points[result.chosen].limits.ram_budget_bytes == min(near)
    assert "within 20 % of the least energy it has the least RAM; plain" in said["headline"].sentence
    assert figures["energy-budget"]["steps"] == math.floor(500 / plan.joules)
    assert figures["battery"]["battery_share_per_session"] == pytest.approx(20 * plan.joules / 39960)
    assert figures["wall-time"]["session_seconds"] == pytest.approx(20 * plan.seconds)
    assert figures["carbon"]["session_grams"] == pytest.approx(20 * plan.joules * 300 / 3.6e6)
    least = min(item.peak_ram_bytes for item in result.plans)
    assert figures["least-ram"]["peak_ram_bytes_none"] == least
    for answer in result.answers:
        assert answer.sentence.endswith(".")
        assert "\n" not in answer.sentence
        assert all(0 <= index < len(result.points) for index in answer.points)


@pytest.mark.slow
def test_an_energy_budget_per_step_picks_the_best_plan_within_it() -> None:
    every = sorted(plan.joules for plan in _swept().plans)
    duty = dataclasses.replace(DUTY, energy_budget=grid.energy_budget(f"{every[0] * 0.5}J/step"))
    ask = {"ram": "min..keep:4", "deadline": "1.2x,none", "options": QUICK, "jobs": 1, "cache": None}
    too_little = what_if(LINEAR, duty=duty, marginal=False, **ask)  # type: ignore[arg-type]
    assert too_little.chosen is None
    assert "energy budget" in too_little.answers[0].sentence


def test_between_solved_points_an_answer_is_interpolated_and_outside_there_is_none() -> None:
    result = _swept()
    budgets = sorted({point.limits.ram_budget_bytes or 0 for point in result.points})
    solved = least_joules_at(result, 0, budgets[0], None)
    between = least_joules_at(result, 0, (budgets[0] + budgets[1]) / 2, None)
    assert solved is not None
    assert between is not None
    assert solved[1] is Basis.SOLVED
    assert between[1] is Basis.INTERPOLATED
    after = least_joules_at(result, 0, budgets[1], None)
    assert after is not None
    assert after[0] <= between[0] <= solved[0]
    assert least_joules_at(result, 0, budgets[0] - 1, None) is None


def test_infeasible_everywhere_says_why() -> None:
    result = what_if(LINEAR, ram="1KiB,2KiB", options=QUICK, jobs=1, cache=None)
    assert result.chosen is None
    assert {point.verdict for point in result.points} == {Verdict.INFEASIBLE}
    assert "needs less than" in result.answers[0].sentence


# --- use --------------------------------------------------------------------------------------


def test_flash_wears_by_whole_erase_blocks() -> None:
    plan, setting, profile = _paging("nrf52840", 0.0)
    assert profile.storage is not None
    assert profile.storage.erase is not None
    block = profile.storage.erase.block_bytes.value
    written = [step.tensor for step in plan.schedule if isinstance(step, PageOut)]
    assert written
    sizes = {tensor.name: tensor.stored_bytes or 0 for tensor in setting.problem.tensors}
    assert plan.worn_bytes == sum(math.ceil(sizes[name] / block) * block for name in written)
    assert plan.worn_bytes >= plan.written_bytes
    usage = usage_of(plan, setting, DUTY)
    assert profile.storage.endurance_cycles is not None
    most = max(written.count(name) for name in written)  # of the block that a step erases most
    steps = profile.storage.endurance_cycles.value / most
    assert usage.flash_life_steps == pytest.approx(steps)
    assert usage.flash_life_years == pytest.approx(steps / (20 * 3.0 * 365.25))
    assert usage.budget_samples == (usage.budget_steps or 0) * (setting.batch or 0)
    assert usage.budget_epochs == pytest.approx((usage.budget_samples or 0) / 64)


def test_levelled_writes_wear_all_blocks_alike() -> None:
    """As a profile says: by a card's controller, or by stated bytes; else the busiest block counts."""
    plan, setting, profile = _paging("nrf52840", 0.0)
    assert profile.storage is not None
    capacity, cycles = profile.storage.capacity_bytes, profile.storage.endurance_cycles
    assert capacity is not None
    assert cycles is not None

    def life(**changed: object) -> float | None:
        storage = profile.storage.model_copy(update=changed)  # type: ignore[union-attr]  # not None, as above
        other = dataclasses.replace(setting, profile=profile.model_copy(update={"storage": storage}))
        return usage_of(plan, other, DUTY).flash_life_steps

    whole = capacity.value * cycles.value / plan.worn_bytes
    assert life() is not None
    assert life(wear_levelled=True) == pytest.approx(whole)
    assert (life() or 0) < whole / 100
    written = profile.storage.read.latency_seconds.model_copy(update={"value": 1e9})
    assert life(endurance_written_bytes=written) == pytest.approx(1e9 / plan.worn_bytes)
    assert life(endurance_cycles=None) is None
    large = profile.storage.erase.block_bytes.model_copy(update={"value": 1 << 20})  # type: ignore[union-attr]
    erase = profile.storage.erase.model_copy(update={"block_bytes": large})  # type: ignore[union-attr]
    slots = sum(isinstance(step, PageOut) for step in plan.schedule)
    assert life(erase=erase) == pytest.approx(cycles.value / slots), "all tensors share one block"


def test_every_shipped_storage_says_whether_its_wear_is_levelled() -> None:
    """Cards and drives have controllers; raw flash, which alone states cycles, has none."""
    for name in profile_names():
        storage = load_profile(name).storage
        if storage is not None and storage.interface in ("sd", "emmc", "ufs", "pcie"):
            assert storage.wear_levelled, name
        if storage is not None and storage.erase is not None:
            assert not storage.wear_levelled, name
            assert storage.block_cycles == 100_000, name


@pytest.mark.parametrize("block_bytes", [1, 4096, 16384])
def test_the_busiest_block_is_counted_block_by_block(block_bytes: int) -> None:
    draw = np.random.default_rng(block_bytes)
    for _ in range(50):
        writes = [
            (4096 * int(draw.integers(20)), int(draw.integers(0, 20000))) for _ in range(draw.integers(1, 9))
        ]
        erased: dict[int, int] = {}
        for offset, size in writes:
            for block in range(offset // block_bytes, -(-(offset + size) // block_bytes) if size else 0):
                erased[block] = erased.get(block, 0) + 1
        assert most_erased(writes, block_bytes) == max(erased.values(), default=0)


def test_what_writes_nothing_wears_nothing() -> None:
    plan, setting, _ = _paging("nrf52840", 1.0)
    assert plan.worn_bytes == 0
    assert usage_of(plan, setting, Duty()).flash_life_years == math.inf


# --- marginal value ---------------------------------------------------------------------------


def test_more_ram_is_worth_what_solving_with_it_says() -> None:
    result = _swept()
    index = min(
        (point.limits.ram_budget_bytes or 0, number)
        for number, point in enumerate(result.points)
        if point.plan is not None and point.deadline is None
    )[1]
    marginal = next(m for m in result.marginals if m.point == index and "RAM" in m.change)
    budget = result.points[index].limits.ram_budget_bytes
    assert budget is not None
    more = dataclasses.replace(result.points[index].limits, ram_budget_bytes=budget + ram_step_bytes(budget))
    alone = solve(result.settings[0].problem, more, QUICK)
    assert alone.joules is not None
    assert marginal.joules_after is not None
    assert marginal.joules_after == pytest.approx(alone.joules, rel=1e-5)
    assert marginal.saved_share == pytest.approx(1 - alone.joules / marginal.joules_before, abs=1e-5)
    assert marginal.certain == (marginal.joules_after < result.points[index].bound_joules)


def test_twice_the_bandwidth_halves_what_is_not_latency() -> None:
    profile = load_profile("rpi4b")
    problem = build_problem(hand_graph(), profile, KernelFacts("pytorch-cpu"))
    faster = with_flash_bandwidth(problem, profile, 2.0)
    assert profile.storage is not None
    latency = profile.storage.read.latency_seconds.value
    for old, new in zip(problem.tensors, faster.tensors, strict=True):
        if old.page_in is not None:
            assert new.page_in is not None
            assert new.page_in.seconds - latency == pytest.approx((old.page_in.seconds - latency) / 2)
    assert with_flash_bandwidth(problem, profile, 1.0) == problem


# --- data stalls ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute", "paging", "fetch", "prepare", "background", "bound_by", "step"),
    [
        (10.0, 0.0, 1.0, 1.0, False, "compute", 12.0),
        (2.0, 8.0, 1.0, 1.0, False, "paging", 12.0),
        (2.0, 1.0, 5.0, 3.0, False, "data", 11.0),
        (10.0, 4.0, 3.0, 0.0, True, "compute", 10.0),  # the flash has time for both
        (8.0, 6.0, 9.0, 0.0, True, "data", 15.0),  # pages and data queue on one flash
        (8.0, 9.0, 6.0, 0.0, True, "paging", 15.0),
    ],
)
def test_what_binds_a_step(
    compute: float, paging: float, fetch: float, prepare: float, background: bool, bound_by: str, step: float
) -> None:
    alone = max(compute, paging) if background else compute + paging
    shares = Shares(compute, paging, alone, fetch, prepare, background)
    assert shares.step_seconds == step
    assert shares.bound_by == bound_by


def test_a_cache_that_holds_everything_leaves_no_fetch_and_costs_are_counted() -> None:
    plan, setting, profile = _paging("nrf52840", 0.0)
    data = DataSupply(bytes=4096, prepare_seconds=1e-3, dataset_bytes=1 << 20, cache_bytes=1 << 20)
    stall = data_stall(3, plan, setting, data)
    batch = setting.batch or 0
    assert profile.storage is not None
    read = profile.storage.read
    fetch = read.latency_seconds.value + batch * 4096 / read.bandwidth_bytes_per_second.value
    assert stall.fetch_seconds == pytest.approx(fetch)
    assert stall.step_seconds == pytest.approx(plan.seconds + fetch + batch * 1e-3)
    assert stall.cached_step_seconds == pytest.approx(plan.seconds + batch * 1e-3)
    assert stall.flash_seconds == pytest.approx(plan.page_in_seconds + plan.page_out_seconds + fetch)
    assert stall.stall_joules > 0
    half = data_stall(3, plan, setting, dataclasses.replace(data, cache_bytes=1 << 19))
    assert half.cached_step_seconds == pytest.approx(plan.seconds + fetch / 2 + batch * 1e-3)
    with pytest.raises(InputError, match="fetch-seconds"):
        data_stall(0, plan, dataclasses.replace(setting, profile=None), data)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ""])
def test_data_are_measured_differentially(suffix: str, tmp_path: Path) -> None:
    samples = np.arange(64 * 256, dtype=np.float32).reshape(64, 256)
    path = tmp_path / f"data{suffix}"
    if suffix == ".npy":
        np.save(path, samples)
    elif suffix == ".npz":
        np.savez_compressed(path, inputs=samples, targets=np.arange(64))
    elif suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({"inputs": samples}, str(path))
    else:
        path.mkdir()
        for shard in range(4):
            np.save(path / f"{shard}.npy", samples[shard * 16 : shard * 16 + 16])
    supply = measure_data(path, batch=8)
    assert supply.measured
    assert supply.prepare_seconds > 0
    assert supply.host_fetch_seconds is not None
    assert 0 <= supply.host_fetch_seconds < 1
    files = list(path.iterdir()) if path.is_dir() else [path]
    assert supply.dataset_bytes == sum(file.stat().st_size for file in files)
    assert supply.bytes == supply.dataset_bytes // 64


def test_slow_preparing_is_found_in_a_loader_and_objects_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that only the loader moves: an epoch of ten samples takes 0.03 s at first, then 0.01 s."""
    passed = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: passed[-1])

    def epoch() -> list[int]:
        passed.append(passed[-1] + (0.01 if len(passed) > 1 else 0.03))
        return [0, 1]

    supply = measure_loader(epoch, batch=5)
    assert supply.prepare_seconds == pytest.approx(0.001)
    assert supply.host_fetch_seconds == pytest.approx(0.002)
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="which are never read"):
        measure_data(tmp_path / "objects.npy")
    with pytest.raises(InputError, match="no data"):
        measure_data(tmp_path / "nothing.npz")


def test_a_plan_of_a_device_has_its_range_and_one_of_a_problem_has_none() -> None:
    found, setting, _ = _paging("nrf52840", 0.5)
    assert setting.ends is not None
    good, bad = (simulate(problem, found.schedule) for problem in setting.ends)
    assert (found.good_joules, found.bad_joules) == (good.joules, bad.joules)
    assert good.joules < found.joules < bad.joules
    assert good.seconds < found.seconds < bad.seconds
    assert (found.good_seconds, found.bad_seconds) == (good.seconds, bad.seconds)
    assert all(plan.good_joules is None and plan.bad_seconds is None for plan in _swept().plans)


# --- the same data in three forms -------------------------------------------------------------


def test_json_csv_and_pandas_hold_the_same_rows() -> None:
    pandas = pytest.importorskip("pandas")
    result = _swept()
    text = json.dumps(to_json(result), allow_nan=False)
    data = json.loads(text)
    table = list(csv.DictReader(io.StringIO(to_csv(result))))
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert tuple(frame.columns) == tuple(table[0]) == tuple(data["points"][0]) == COLUMNS
    assert len(frame) == len(table) == len(data["points"]) == len(result.points)
    for row, point, index in zip(table, data["points"], range(len(frame)), strict=True):
        assert row["verdict"] == point["verdict"] == frame.verdict[index]
        assert (float(row["joules"]) if row["joules"] else None) == point["joules"]
    assert data["answers"][0]["sentence"] == result.answers[0].sentence
    shown = {point["plan"] for point in data["points"] if point["point"] in data["answers"][0]["points"]}
    assert {str(plan) for plan in shown} <= set(data["schedules"])


def test_the_documented_columns_are_those_of_the_rows() -> None:
    document = (Path(__file__).parents[2] / "docs" / "what-if.md").read_text(encoding="utf-8")
    table = document[document.index("## Columns") :]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.M)) == COLUMNS
