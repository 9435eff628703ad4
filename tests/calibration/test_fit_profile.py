"""Fits to simulated boards whose figures are known."""

from __future__ import annotations

import csv
import importlib
import itertools
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.pace import with_slow
from helpers.simulated_board import Board, op_time, tensor_type
from poet.cli.devices import app
from typer.main import get_command

from poet.calibration.calibrate import Settings, calibrate
from poet.devices.costs import amounts_of, op_seconds
from poet.devices.figures import OpClass
from poet.devices.fitted_profile import fit_profile, predicted_seconds
from poet.devices.fitting import fit_speeds
from poet.devices.load import load_profile, profile_text
from poet.devices.measurements import (
    FIT,
    JUDGE,
    Measurements,
    StepTime,
    phases_by_meter,
    typed_watts,
    write_measurements,
)
from poet.devices.profile import Profile
from poet.devices.sense import contradictions
from poet.errors import InputError

table: Any = importlib.import_module("benchmarks.calibration_table")

PI = load_profile("rpi4b-torch")
SHORT = Settings(time_limit_seconds=100.0, sample_seconds=None, storage="a card", phase_seconds=4.0)
TEN = [
    ({"batch_norm": "pooling", "adaptive_update": "gelu"}.get(name, name), share)
    for name, share in table.CHOSEN
]
"""Of the simulated board's classes."""

WATTS = {"idle": 2.7, "busy": 6.0, "read": 3.4, "write": 3.6}


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Measurements:
    """A hot board with noise of 20 % in every op and no power sensor, after part of a calibration."""
    folder = tmp_path_factory.mktemp("noisy")
    board = Board(folder / "board", PI, noise=0.2, heats=True)
    settings = replace(SHORT, time_limit_seconds=700.0)
    return calibrate(board.machine, board, folder / "raw.json", settings, lambda line: None)


def _typed(found: Measurements) -> Measurements:
    return replace(found, phases=typed_watts(found.phases, WATTS))


def test_the_fit_finds_the_figures_behind_a_noisy_board(noisy: Measurements) -> None:
    ops = [op for step in noisy.steps if step.role == FIT and step.threads == 4 for op in step.ops]
    found = fit_speeds(ops)
    for op_class in (OpClass.MATMUL, OpClass.CONVOLUTION, OpClass.DEPTHWISE):
        throughput = PI.compute.throughput(op_class)
        assert throughput is not None
        true = throughput.flops_per_second.value
        assert found.flops_per_second[op_class].value == pytest.approx(true, rel=0.25), op_class
        low, high = found.flops_per_second[op_class].interval
        assert low < found.flops_per_second[op_class].value < high
    bandwidth = PI.memory.bandwidth_bytes_per_second
    assert bandwidth is not None
    assert found.bandwidth_bytes_per_second.value == pytest.approx(bandwidth.value, rel=0.2)
    assert not found.refused


@pytest.mark.parametrize("block", [None, 8, 16])
def test_the_fit_finds_on_how_many_channels_convolutions_work(noisy: Measurements, block: int | None) -> None:
    data = PI.model_dump()
    if block is not None:
        data["compute"]["convolution_block_channels"] = {
            "value": block, "kind": "assumed", "source": "a test", "uncertainty": 0.0
        }  # fmt: skip
    board, draw = Profile.model_validate(data), random.Random(0)
    ops = []
    for op in [op for step in noisy.steps if step.role == FIT and step.threads == 4 for op in step.ops]:
        amounts = amounts_of(op)
        ratio = op_seconds(board, amounts) / op_seconds(PI, amounts)
        ops.append(replace(op, seconds=ratio * op.seconds))
    channels = ((12, 12), (20, 36), (36, 20), (40, 24), (52, 64), (24, 3))
    for (made, summed), pixels in itertools.product(channels, (16, 24, 32, 48)):
        image, out = tensor_type(4, summed, pixels, pixels), tensor_type(4, made, pixels, pixels)
        square = (1, 1)
        given = [image, tensor_type(made, summed, 3, 3)]
        found = op_time(
            "aten.convolution.default", given, None, square, square, square, False, (0, 0), 1, out=[out]
        )
        seconds = op_seconds(board, amounts_of(found)) * draw.lognormvariate(0.0, 0.1)
        ops.append(replace(found, seconds=seconds))
    speeds = fit_speeds(ops, resamplings=2)
    assert speeds.block_channels == (block or 1)
    steps = tuple(replace(step, ops=tuple(ops)) for step in noisy.steps if step.role == FIT)[:1]
    profile, _ = fit_profile(replace(_typed(noisy), steps=steps), name="mine", resamplings=2)
    stated = profile.compute.convolution_block_channels
    assert (None if stated is None else stated.value) == block


def test_steps_of_a_throttled_board_count_only_for_what_no_other_tells(noisy: Measurements) -> None:
    def slowed(step: StepTime, factor: float) -> StepTime:
        ops = tuple(replace(op, seconds=factor * op.seconds) for op in step.ops)
        return replace(step, ops=ops, slowed=factor > 1.0)

    steps = [step for step in noisy.steps if step.role == FIT and step.threads == 4]
    some = replace(_typed(noisy), steps=tuple(steps[:-4]))
    hot = replace(some, steps=(*steps[:-4], *(slowed(step, 3.0) for step in steps[-4:])))
    every = replace(some, steps=tuple(slowed(step, 3.0) for step in steps))
    without, with_hot, all_hot = (
        fit_profile(each, name="mine", resamplings=2)[0].compute.matmul for each in (some, hot, every)
    )
    assert without is not None
    assert with_hot is not None
    assert all_hot is not None
    assert with_hot.flops_per_second.value == without.flops_per_second.value
    assert all_hot.flops_per_second.value < 0.5 * without.flops_per_second.value


@pytest.mark.slow
def test_the_profile_predicts_steps_that_the_fit_has_not_seen(noisy: Measurements) -> None:
    profile, notes = fit_profile(_typed(noisy), name="mine")
    made = profile.calibration
    assert made is not None
    assert made.median_error is not None
    assert made.worst_error is not None
    judged = [step for step in noisy.steps if step.role == JUDGE and step.threads == 4]
    errors = [abs(predicted_seconds(profile, step) / step.seconds - 1) for step in judged]
    assert made.steps == 4
    assert made.worst_error == pytest.approx(max(errors))
    assert made.median_error < 0.1
    assert made.worst_error < 0.2
    assert made.measurements == _typed(noisy).digest
    assert any("parts are not measured" in note for note in notes)
    assert list(contradictions(profile)) == []


def test_ten_ops_of_all_families_tell_unseen_steps_within_a_fifth_whatever_the_base(
    noisy: Measurements,
) -> None:
    steps = tuple(step for step in noisy.steps if step.threads == 4 and step.role in (FIT, JUDGE))
    found = replace(noisy, steps=steps)
    for name in ("x86-host", "pixel"):
        base, ten = load_profile(name), table.chosen_ops(table.ops_of(found), TEN)
        judged = [step for step in steps if step.role == JUDGE]
        wrong = table.median_error([predicted_seconds(base, step) / step.seconds for step in judged])
        assert wrong > 0.3, name
        assert table.median_error(table.few_ops(found, base, ten)) < 0.2, name


def test_a_class_without_an_op_follows_its_family(noisy: Measurements) -> None:
    """Depthwise gradients tell of depthwise convolutions, whatever products have done."""
    ops = [op for step in noisy.steps if step.role == FIT and step.threads == 4 for op in step.ops]
    ten = table.chosen_ops(ops, TEN)
    assert not any(amounts_of(op).op_class is OpClass.DEPTHWISE for op in ten)
    step = next(step for step in noisy.steps if step.role == FIT)
    few = replace(_typed(noisy), steps=(replace(step, ops=ten),))
    true = PI.compute.depthwise
    assert true is not None
    for name in ("x86-host", "rpi4b-xnnpack"):  # neither has a table for them
        profile, _ = fit_profile(few, name="mine", base=load_profile(name), resamplings=2)
        found = profile.compute.depthwise
        assert found is not None
        assert found.flops_per_second.kind == "derived"
        low, high = found.flops_per_second.interval
        assert high / low > 3.9  # no op tells how far the class is off by itself
        assert 1 / 3 < found.flops_per_second.value / true.flops_per_second.value < 3


@pytest.mark.slow
def test_pairs_of_machine_and_base_are_told_by_ten_ops(noisy: Measurements) -> None:
    """The median over pairs of shipped profiles; single pairs come to twice that and more."""
    steps = tuple(step for step in noisy.steps if step.threads == 4 and step.role in (FIT, JUDGE))
    names = ("rpi4b", "rpi-zero-2w", "pixel", "x86-host")
    errors = [chosen for _, chosen in table.pairs(replace(noisy, steps=steps), TEN, names).values()]
    assert len(errors) == 12
    assert statistics.median(errors) < 0.2


def test_calls_may_be_off_by_another_factor_than_speeds(noisy: Measurements) -> None:
    """Dear calls of a base do not make its speeds wrong where ten ops tell of both."""
    ops = [op for step in noisy.steps if step.role == FIT and step.threads == 4 for op in step.ops]
    data = PI.model_dump()
    data["compute"]["call_overhead_seconds"].update(value=2e-3, range=None, uncertainty=0.2)
    for own in data["compute"].values():
        if isinstance(own, dict) and own.get("call_overhead_seconds"):
            own["call_overhead_seconds"].update(value=2e-3, range=None, uncertainty=0.2)
    few = fit_speeds(table.chosen_ops(ops, TEN), Profile.model_validate(data), resamplings=2)
    true = PI.compute.throughput(OpClass.MATMUL)
    assert true is not None
    assert 0.5 < few.flops_per_second[OpClass.MATMUL].value / true.flops_per_second.value < 2.0
    assert all(known.value < 4e-4 for known in few.overhead_seconds.values())


@pytest.mark.slow
def test_a_class_that_the_model_does_not_describe_is_refused(noisy: Measurements) -> None:
    draw = random.Random(0)
    steps = tuple(
        replace(
            step,
            ops=tuple(
                replace(op, seconds=op.seconds * draw.choice((0.1, 10.0)))
                if op.call.target == "aten.gelu.default" else op
                for op in step.ops
            ),
        )
        for step in noisy.steps
    )  # fmt: skip
    profile, notes = fit_profile(replace(_typed(noisy), steps=steps), name="mine")
    assert profile.calibration is not None
    assert profile.calibration.refused == "gelu"
    assert profile.compute.gelu is None
    assert any(note.startswith("refused, ") and ": gelu (by " in note for note in notes)
    assert not any("most classes" in note for note in notes)


@pytest.mark.slow
def test_watts_are_not_made_up(noisy: Measurements) -> None:
    with pytest.raises(InputError, match="watts are not made up"):
        fit_profile(noisy, name="mine")
    profile, notes = fit_profile(noisy, name="mine", base=PI)
    assert profile.energy == PI.energy
    assert profile.compute.active_watts == PI.compute.active_watts
    assert any("power was not measured" in note for note in notes)


@pytest.mark.slow
def test_storage_has_its_means_and_its_worst(noisy: Measurements) -> None:
    profile, _ = fit_profile(_typed(noisy), name="mine")
    assert profile.storage is not None
    assert PI.storage is not None
    mean = next(item for item in noisy.transfers if (item.direction, item.size_bytes) == ("read", 65536))
    read = profile.storage.read
    modelled = read.latency_seconds.value + 65536 / read.bandwidth_bytes_per_second.value
    assert modelled == pytest.approx(mean.mean_seconds, rel=0.05)
    worst = max(max(item.seconds) for item in noisy.transfers if item.direction == "write")
    assert profile.storage.write.worst_seconds is not None
    assert profile.storage.write.worst_seconds.value == pytest.approx(worst)


@pytest.mark.slow
def test_measured_power_stands_in_the_profile(tmp_path: Path) -> None:
    board = Board(tmp_path / "board", PI, watts=3.0)
    settings = replace(SHORT, time_limit_seconds=300.0)
    found = calibrate(board.machine, board, tmp_path / "raw.json", settings, lambda line: None)
    profile, _ = fit_profile(found, name="mine")
    idle_watts = PI.energy.idle_watts.value
    assert profile.energy.idle_watts.value == pytest.approx(idle_watts)
    assert profile.compute.active_watts.value == pytest.approx(idle_watts + 3.0)
    assert profile.energy.rail == "RAPL: package-0"


@pytest.mark.parametrize("shift", with_slow([0.0, -1.79e9, 12.3], [0.0, -1.79e9]))
def test_a_meters_log_is_cut_where_the_phases_are(shift: float, tmp_path: Path) -> None:
    board = Board(tmp_path / "board", PI)
    settings = replace(SHORT, time_limit_seconds=400.0, power="none", markers=True)
    found = calibrate(board.machine, board, tmp_path / "raw.json", settings, lambda line: None)
    begin, end = found.phases[0].begin_seconds, found.phases[-1].end_seconds
    path = tmp_path / "meter.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Time(s)", "Power(mW)"])
        for tick in range(int((end - begin + 40.0) / 0.05)):
            now = begin - 20.0 + 0.05 * tick
            busy = any(p.begin_seconds <= now < p.end_seconds and p.name != "idle" for p in found.phases)
            writer.writerow([f"{now + shift:.3f}", 5500 if busy else 2500])
    watts = {phase.name: phase.watts for phase in phases_by_meter(found.phases, path)}
    assert watts["idle"] == pytest.approx(2.5, rel=0.05)
    assert watts["matmul"] == pytest.approx(5.5, rel=0.05)
    assert watts["marker"] is None
    path.write_text("Time(s),Power(W)\n" + "".join(f"{n},3.0\n" for n in range(1000)))
    with pytest.raises(InputError, match="nothing in it looks like the phases"):
        phases_by_meter(found.phases, path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("idle=6,busy=2", "busy is 2 W, less than idle, 6 W"),
        ("read=1,idle=6,busy=7", "read is 1 W, less than idle, 6 W"),
        ("idle=x", "'idle=x': write for example"),
        ("sleep=2", "'sleep=2': write for example"),
    ],
)
def test_typed_watts_that_cannot_be_are_refused(
    text: str, told: str, noisy: Measurements, tmp_path: Path
) -> None:
    raw, mine = tmp_path / "raw.json", tmp_path / "mine.toml"
    write_measurements(raw, noisy)
    arguments = ["fit", str(raw), "-o", str(mine), "--watts", text]
    with pytest.raises(InputError, match=told):
        get_command(app).main(arguments, prog_name="poet devices", standalone_mode=False)
    assert not mine.exists()


@pytest.mark.slow
def test_the_command_writes_a_profile_that_is_valid(noisy: Measurements, tmp_path: Path) -> None:
    raw, mine = tmp_path / "raw.json", tmp_path / "mine.toml"
    write_measurements(raw, noisy)

    def run(*arguments: str) -> None:
        get_command(app).main(list(arguments), prog_name="poet devices", standalone_mode=False)

    run("fit", str(raw), "-o", str(mine), "--watts", "idle=2.7,busy=6,read=3.4,write=3.6")
    run("validate", str(mine))
    written = load_profile(mine)
    assert written.name == "mine"
    assert mine.read_text() == profile_text(written)
    before = mine.read_bytes()
    for arguments in (("--watts", "idle=x"), ("--threads", "7"), ("--watts", "sleep=2")):
        with pytest.raises(InputError):
            run("fit", str(raw), "-o", str(mine), *arguments)
    with pytest.raises(InputError, match="would overwrite"):
        run("fit", str(raw), "-o", str(raw))
    assert mine.read_bytes() == before
