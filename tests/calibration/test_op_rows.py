"""Measured rows of a model's ops: kept in a raw file, fitted into a profile, used and marked in plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers.onnx_tools import zoo_export
from helpers.simulated_board import Board
from poet.cli.main import app
from poet.cli.output import show
from torch import nn
from typer.main import get_command
from typer.testing import CliRunner

from poet.calibration.step_times import add_to, begun, op_times, steps_of_model, times_of
from poet.devices import fitted_profile
from poet.devices.costs import estimate, row_key
from poet.devices.fitted_profile import LEAST_WIDTH, fit_profile, rows_of, width_of
from poet.devices.load import MAX_FILE_BYTES, load_profile, profile_text
from poet.devices.machine import Machine
from poet.devices.measurements import (
    FIT,
    RUN,
    TABLE,
    Measurements,
    PowerPhase,
    StepTime,
    TransferTime,
    op_time,
    read_measurements,
    write_measurements,
)
from poet.devices.profile import Profile
from poet.errors import InputError
from poet.frontend.trace import TrainingStep, trace_training_step
from poet.planning.planned import limits_of, plan_step
from poet.planning.prepared import prepare
from poet.problem.solution import SolveOptions
from poet.report.device import fitted_report

command = get_command(app)
HOST = load_profile("x86-host")


def _net(*, wider: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24 if wider else 10))


def _step(*, wider: bool = False) -> TrainingStep:
    return trace_training_step(_net(wider=wider), torch.ones(4, 16), name="net", gradients="keep")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Measurements:
    path, machine = tmp_path_factory.mktemp("rows") / "raw.json", Machine()
    steps = steps_of_model(_step(), name="net", threads=(1,), repeats=3, machine=machine)
    add_to(path, machine, steps[:1])
    add_to(path, machine, steps[1:])  # beside what is there
    return read_measurements(path)


@pytest.fixture(scope="module")
def profile(found: Measurements, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    made, _ = fit_profile(found, name="mine", base=HOST)
    file = tmp_path_factory.mktemp("profile") / "mine.toml"
    file.write_text(profile_text(made))
    return load_profile(file)


def test_ops_to_fit_to_are_without_the_last_which_has_what_a_step_does_beside() -> None:
    step = _step()
    every, rest = op_times(step)[0], op_times(step, whole=False)[0]
    assert sum(op.runs for op in every) == len(step.graph.ops)
    assert sum(op.runs for op in rest) == len(step.graph.ops) - 1
    last = [op for op in every if op.key not in {other.key for other in rest}]
    assert [(op.call.target, op.runs) for op in last] == [("poet.sgd", 1)]


def test_a_file_of_steps_becomes_rows(found: Measurements, profile: Profile) -> None:
    assert [(step.role, step.threads) for step in found.steps] == [(TABLE, 1)] * 3
    rows, _ = rows_of(found.steps)
    assert profile.op_times is not None
    assert profile.op_times.seconds.keys() == rows.keys()
    assert any(key.startswith("aten.addmm.default float32[10]") for key in rows)
    low, high = profile.op_times.ratio.interval
    assert low <= 0.95 < 1.05 <= high


def test_rows_stand_in_place_of_speeds_for_any_model_that_has_the_op(profile: Profile) -> None:
    assert profile.op_times is not None
    all_rows = estimate(_step().graph, profile).ops
    assert all(cost.measured for cost in all_rows.values())
    assert sorted(cost.seconds for cost in all_rows.values()) == pytest.approx(
        sorted(profile.op_times.seconds[key] for key in _keys(profile, _step())), rel=1e-3
    )
    other = estimate(_step(wider=True).graph, profile).ops
    by_class = estimate(_step(wider=True).graph, profile.model_copy(update={"op_times": None})).ops
    assert {cost.measured for cost in other.values()} == {True, False}
    for name, cost in other.items():
        assert (cost == by_class[name]) == (not cost.measured), name


def _keys(profile: Profile, step: TrainingStep) -> list[str]:
    from poet.devices.costs import row_key

    ops = times_of(step.graph, {op.name: 1.0 for op in step.graph.ops})
    return [row_key(op) for op in ops for _ in range(op.runs)]


def test_a_profile_without_rows_costs_what_it_did() -> None:
    assert HOST.op_times is None
    assert not any(cost.measured for cost in estimate(_step().graph, HOST).ops.values())


def test_plans_say_what_is_extrapolated(profile: Profile) -> None:
    prepared = prepare(_net(wider=True), torch.ones(4, 16), device=profile, gradients="keep")
    planned = plan_step(prepared, limits_of(prepared.problem, ram=None), SolveOptions(time_limit_seconds=1.0))
    measured, price_range = planned.plan.prediction.measured, planned.plan.prediction.range
    assert measured is not None
    assert price_range is not None
    ops = len(prepared.step.graph.ops)
    assert measured.ops + len(measured.extrapolated) == ops
    assert 0 < measured.ops < ops
    assert 0.0 < measured.seconds_share < 1.0
    assert f"{measured.ops} of {ops} ops measured" in planned.summary()
    assert measured.extrapolated[0] in planned.summary()
    assert price_range.good_seconds < planned.seconds < price_range.bad_seconds


def test_rows_of_steps_that_lie_apart_are_less_certain(found: Measurements) -> None:
    slow = replace(
        found.steps[0], ops=tuple(replace(op, seconds=2 * op.seconds) for op in found.steps[0].ops)
    )
    assert width_of((found.steps[0], slow)) == pytest.approx(0.3466, abs=1e-3)


def test_steps_of_other_ops_are_no_repeats(found: Measurements) -> None:
    """The same file at another batch, say."""
    more = replace(found.steps[0], ops=tuple(replace(op, runs=8 * op.runs) for op in found.steps[0].ops))
    assert width_of((found.steps[0], more)) == LEAST_WIDTH


def test_rows_fit_into_a_profile(found: Measurements, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many of the longest as its file has room for."""
    assert fitted_profile.MOST_ROWS_BYTES < 0.75 * MAX_FILE_BYTES
    whole, _ = rows_of(found.steps)
    room_bytes = sum(len(key) + 18 for key in whole) // 2
    monkeypatch.setattr(fitted_profile, "MOST_ROWS_BYTES", room_bytes)
    fewer, left_out = rows_of(found.steps)
    assert 0 < len(fewer) < len(whole)
    assert len(fewer) + left_out == len(whole)
    made, notes = fit_profile(found, name="mine", base=HOST, resamplings=2)
    assert any(f"{left_out} rows of the shortest ops are left out" in note for note in notes)
    rows_text = profile_text(made).partition("[op_times.seconds]")[2].partition("\n[")[0]
    assert len(rows_text.encode()) <= room_bytes


def test_the_threads_of_the_calibration_go_first(found: Measurements) -> None:
    """Rows that were measured at others are left out, and the fit says so."""
    ops = found.steps[0].ops
    mixed = replace(
        found,
        steps=(
            StepTime("net", FIT, 2, ops),
            StepTime("other", TABLE, 4, ops),
            StepTime("run", RUN, 8, ops),
            found.steps[0],
        ),
    )
    made, notes = fit_profile(mixed, name="mine", base=HOST, resamplings=2)
    assert made.calibration is not None
    assert made.calibration.threads == 2
    assert made.op_times is None
    assert any(
        "the rows of other are left out, for the profile is of other threads than they: 4;" in note
        for note in notes
    )
    assert any(
        "the rows of net are left out, for the profile is of other threads than they: 1;" in note
        for note in notes
    )
    chosen, notes = fit_profile(mixed, name="mine", base=HOST, threads=4, resamplings=2)
    assert chosen.op_times is not None
    assert chosen.op_times.models == ("other",)
    assert sum(note.startswith("the rows of ") for note in notes) == 1


def test_amounts_that_no_profile_may_have_are_refused(found: Measurements) -> None:
    op = found.steps[0].ops[0]
    for seconds in (1e40, 5e-324, 0.0, float("inf")):
        with pytest.raises(InputError, match=r"expected 1e-15 to 1e\+30 seconds"):
            replace(op, seconds=seconds)
        with pytest.raises(InputError, match="a transfer of"):
            TransferTime("read", 4096, (seconds, 1.0))
    many = replace(found, phases=(PowerPhase("idle", 0.0, 1.0, 1e40), PowerPhase("busy", 0.0, 1.0, 1e40)))
    with pytest.raises(InputError, match=r"^the fit: .*energy\.idle_watts\.value is 1e\+40"):
        fit_profile(many, name="mine", base=HOST, resamplings=2)


def test_names_of_strangers_are_text(profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    show(fitted_report(profile, ["of [bold]net[/]", "\x1b[31mred [/nothing]"], "[red]mine.toml"))
    said = capsys.readouterr().out
    assert "[red]mine.toml: fitted to" in said
    assert "note: of [bold]net[/]" in said
    assert "note: \\x1b[31mred [/nothing]" in said


def test_a_file_of_another_machine_is_not_added_to(tmp_path: Path, found: Measurements) -> None:
    path = tmp_path / "raw.json"
    add_to(path, Machine(), found.steps)
    before = path.read_bytes()
    board = Board(tmp_path / "board", load_profile("rpi4b-torch"))
    with pytest.raises(InputError, match="measured on another machine"):
        add_to(path, board.machine, found.steps)
    assert path.read_bytes() == before


def test_a_new_kernel_is_no_other_machine(tmp_path: Path, found: Measurements) -> None:
    path, host = tmp_path / "raw.json", found.host
    later = replace(host, system="99.0", ram_bytes=round(1.01 * host.ram_bytes), threads=host.threads + 1)
    write_measurements(path, replace(found, host=later))
    assert begun(path, Machine()).host == later
    write_measurements(path, replace(found, host=replace(later, ram_bytes=2 * host.ram_bytes, torch="1.0")))
    with pytest.raises(InputError, match=r"another torch \(torch '1\.0', here .*; ram_bytes .*, here "):
        begun(path, Machine())


@pytest.mark.parametrize(
    ("sizes", "said"),
    [(("--batch", "2", "--bind", "N=3"), "twice"), (("--batch", "9" * 20), "--batch is 9999")],
)
def test_a_batch_is_given_once_and_in_64_bits(sizes: tuple[str, ...], said: str, tmp_path: Path) -> None:
    model, raw = tmp_path / "net.onnx", tmp_path / "raw.json"
    model.write_bytes(b"read later")
    done = CliRunner().invoke(app, ["devices", "profile", str(model), *sizes, "-o", str(raw)])
    assert (done.exit_code, done.stderr.count("\n"), raw.exists()) == (2, 1, False)
    assert said in done.stderr


@pytest.mark.slow
def test_the_commands_measure_fit_and_plan_with_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, raw, mine = zoo_export("vit", "legacy", True), tmp_path / "raw.json", tmp_path / "mine.toml"
    for arguments, said in (
        (
            ("devices", "profile", model, "--threads", "1", "--repeats", "2", "--batch", "2", "-o", raw),
            "rows, a step takes",
        ),
        (("devices", "fit", raw, "--base", "x86-host", "-o", mine), "rows of measured ops, of"),
        (("devices", "validate", mine), "mine.toml"),
        (
            (
                "solve",
                model,
                "--batch",
                "2",
                "--device",
                mine,
                "--ram",
                "64MiB",
                "--gradients",
                "keep",
                "--time-limit",
                "2s",
            ),
            "op times: ",
        ),
    ):
        command(list(map(str, arguments)), standalone_mode=False)
        assert said in capsys.readouterr().out


def test_what_keeps_bits_for_backward_lasts_as_the_plain_op_does(profile: Profile) -> None:
    """Profiles are measured on plain steps; such rows do not count as measured for it."""
    net, x = (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        torch.ones(1, 3, 18, 18),
    )
    plain, short = (trace_training_step(net, x, gradients=kind) for kind in ("keep", "stream"))
    names = {"aten.relu.default": "poet.relu", "aten.threshold_backward.default": "poet.relu_backward"}
    rows = {}
    for place, op in enumerate(op for op in plain.graph.ops if op.call.target in names):
        types = {value.name: value.type for value in plain.graph.values}
        outputs = tuple(None if name is None else types[name] for name in op.outputs)
        key = row_key(op_time(op.call, types, outputs, updated_bytes=0, seconds=1.0))
        rows[key] = 100.0 + place
    assert profile.op_times is not None
    only = profile.model_copy(update={"op_times": profile.op_times.model_copy(update={"seconds": rows})})
    costs = estimate(short.graph, only).ops
    found = {op.call.target: costs[op.name] for op in short.graph.ops if op.call.target in names.values()}
    ratio = profile.op_times.ratio.value
    assert {name: cost.seconds for name, cost in found.items()} == {
        "poet.relu": pytest.approx(100.0 * ratio),
        "poet.relu_backward": pytest.approx(101.0 * ratio),
    }
    assert not any(cost.measured for cost in found.values())
