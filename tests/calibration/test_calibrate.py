"""Calibration on simulated boards: what is measured, repeated, resumed, warned of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.simulated_board import Board

from poet.calibration.calibrate import MOST_ATTEMPTS, Settings, calibrate, parts_of
from poet.devices.load import load_profile
from poet.devices.measurements import JUDGE, Measurements, read_measurements
from poet.devices.profile import Profile
from poet.errors import InputError

PI = load_profile("rpi4b-torch")
SETTINGS = Settings(time_limit_seconds=1e6, sample_seconds=None, storage="a card")
SHORT = replace(SETTINGS, time_limit_seconds=200.0)


def _quiet(line: str) -> None:
    pass


def _calibrated(board: Board, path: Path, settings: Settings = SETTINGS) -> Measurements:
    return calibrate(board.machine, board, path, settings, _quiet)


def _board(folder: Path, profile: Profile = PI, **options: object) -> Board:
    return Board(folder, profile, **options)  # type: ignore[arg-type]


def test_every_part_is_measured_at_all_threads_and_at_one(tmp_path: Path) -> None:
    found = _calibrated(_board(tmp_path / "board", watts=3.0), tmp_path / "raw.json")
    assert read_measurements(tmp_path / "raw.json") == found
    assert found.host.title == "Raspberry Pi 4 Model B Rev 1.4"
    assert found.host.cores == 4
    assert (found.host.clock_hertz, found.host.cache_bytes, found.host.ram_bytes) == (
        1.8e9,
        1 << 20,
        3884660 << 10,
    )
    assert set(found.done) == {part.name for part in parts_of(4, storage=True, power=True)}
    for threads in (4, 1):
        assert sum(step.threads == threads and step.role == JUDGE for step in found.steps) == 4
    assert found.transfers[0].quantile_seconds(1.0) == pytest.approx(
        10 * found.transfers[0].quantile_seconds(0.5)
    )
    assert found.transfers[0].quantile_seconds(0.98) == found.transfers[0].quantile_seconds(0.5)
    assert found.warnings == ()


def test_the_energy_counter_is_read_across_its_wrap(tmp_path: Path) -> None:
    found = _calibrated(_board(tmp_path / "board", watts=3.0), tmp_path / "raw.json")
    watts = {phase.name: phase.watts for phase in found.phases}
    idle_watts = PI.energy.idle_watts.value
    assert 10 * (idle_watts + 3.0) > 50.0  # joules of a phase, more than the counter holds
    assert watts["idle"] == pytest.approx(idle_watts)
    assert watts["matmul"] == pytest.approx(idle_watts + 3.0)
    assert watts["read"] == pytest.approx(idle_watts + 1.5)
    assert {phase.source for phase in found.phases} == {"rapl"}


def test_an_interrupted_calibration_ends_in_the_same_file(tmp_path: Path) -> None:
    whole = _calibrated(_board(tmp_path / "a", noise=0.2), tmp_path / "whole.json")
    board = _board(tmp_path / "b", noise=0.2)
    for steps in (3, 17, 30):
        board.stops_after = steps
        with pytest.raises(KeyboardInterrupt):
            _calibrated(board, tmp_path / "resumed.json")
        assert len(read_measurements(tmp_path / "resumed.json").steps) == steps
    board.stops_after = -1
    assert _calibrated(board, tmp_path / "resumed.json") == whole
    assert (tmp_path / "resumed.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


@pytest.mark.slow
def test_a_hot_board_is_cooled_and_measured_again(tmp_path: Path) -> None:
    told: list[str] = []
    board = _board(tmp_path / "board", heats=True)
    found = calibrate(board.machine, board, tmp_path / "raw.json", SHORT, told.append)
    assert any("slowed down" in line for line in told)
    assert board.slept_seconds > 0
    assert any(step.attempts > 1 for step in found.steps)
    assert all(step.attempts <= MOST_ATTEMPTS for step in found.steps)
    cool = _calibrated(_board(tmp_path / "cool"), tmp_path / "cool.json")
    for step, expected in zip(found.steps, cool.steps, strict=False):
        if not step.slowed:
            assert step.seconds == pytest.approx(expected.seconds)
        else:
            assert step.attempts == MOST_ATTEMPTS


def test_a_board_that_stays_hot_is_said_to_be_slowed(tmp_path: Path) -> None:
    board = _board(tmp_path / "board", heats=True)
    found = _calibrated(board, tmp_path / "raw.json", replace(SHORT, cool_seconds=0.0))
    assert any(step.slowed for step in found.steps)
    assert any("was slowed down during" in warning for warning in found.warnings)


def test_without_a_sensor_no_watts_stand_in_the_file(tmp_path: Path) -> None:
    found = _calibrated(_board(tmp_path / "board"), tmp_path / "raw.json")
    assert found.phases == ()
    assert "watts" not in json.dumps(json.loads((tmp_path / "raw.json").read_text())["steps"])
    assert any("no power was measured" in warning for warning in found.warnings)


def test_watts_can_be_typed_in_and_left_out(tmp_path: Path) -> None:
    said = {"idle": 2.5, "matmul": 6.0}
    settings = replace(SETTINGS, power="none", ask_watts=said.get)
    found = _calibrated(_board(tmp_path / "board"), tmp_path / "raw.json", settings)
    assert {phase.name: phase.watts for phase in found.phases if phase.watts} == said


def test_it_ends_in_time_and_goes_on_later(tmp_path: Path) -> None:
    board = _board(tmp_path / "board")
    path = tmp_path / "raw.json"
    found = _calibrated(board, path, replace(SETTINGS, time_limit_seconds=100.0))
    assert found.spent_seconds <= 100.0
    assert 0 < len(found.steps) < 40
    assert any("parts are not measured" in warning for warning in found.warnings)
    later = _calibrated(board, path)
    assert later.steps[: len(found.steps)] == found.steps
    assert not any("parts are not measured" in warning for warning in later.warnings)


def test_a_file_of_another_board_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "raw.json"
    _calibrated(_board(tmp_path / "a"), path, replace(SETTINGS, time_limit_seconds=20.0))
    before = path.read_bytes()
    with pytest.raises(InputError, match="another machine"):
        _calibrated(_board(tmp_path / "b", board="Raspberry Pi 3"), path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "poet-measurements", "version": 9}',
        '{"format": "poet-measurements", "version": 1}',
    ],
)
def test_what_is_no_raw_file_gets_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "raw.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_measurements(path)
    assert "raw.json" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_text() == text


SENSORS = {
    "hwmon": {
        "sys/class/hwmon/hwmon0/name": "ina3221",
        "sys/class/hwmon/hwmon0/in1_label": "VDD_IN",
        "sys/class/hwmon/hwmon0/in1_input": "5000",
        "sys/class/hwmon/hwmon0/curr1_input": "1500",
        "sys/class/hwmon/hwmon0/in2_label": "VDD_CPU_GPU_CV",
        "sys/class/hwmon/hwmon0/in2_input": "5000",
        "sys/class/hwmon/hwmon0/curr2_input": "400",
    },
    "battery": {
        "sys/class/power_supply/battery/type": "Battery",
        "sys/class/power_supply/battery/status": "Discharging",
        "sys/class/power_supply/battery/voltage_now": "3750000",
        "sys/class/power_supply/battery/current_now": "-2000000",
    },
}


@pytest.mark.parametrize("name", SENSORS)
def test_a_sensor_is_found_and_read(name: str, tmp_path: Path) -> None:
    board = _board(tmp_path / "board")
    for path, text in SENSORS[name].items():
        (tmp_path / "board" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "board" / path).write_text(text)
    found = _calibrated(board, tmp_path / "raw.json")
    assert {phase.source for phase in found.phases} == {name}
    assert [phase.watts for phase in found.phases] == pytest.approx([7.5] * len(found.phases))


@pytest.mark.slow
def test_the_rails_of_a_pi_5_are_summed_up(tmp_path: Path) -> None:
    board = _board(tmp_path / "board", heats=True)
    program = tmp_path / "board/usr/bin/vcgencmd"
    program.write_text(
        "#!/bin/sh\nif [ $1 = pmic_read_adc ]; then\n"
        'echo " VDD_CORE_A current(7)=2.0000A"\necho " VDD_CORE_V volt(15)=0.9000V"\n'
        'echo " 1V8_SYS_A current(2)=0.5000A"\necho " 1V8_SYS_V volt(10)=1.8000V"\n'
        'echo " EXT5V_V volt(24)=5.1000V"\nelse echo throttled=0x0; fi\n'
    )
    found = _calibrated(
        board,
        tmp_path / "raw.json",
        replace(SETTINGS, power="pmic", time_limit_seconds=400.0, phase_seconds=2.0),
    )
    assert found.phases[0].watts == pytest.approx(1.1451 * (1.8 + 0.9) + 0.5879)
    assert found.phases[0].kind == "derived"
    with pytest.raises(InputError, match="sensors that can be read: pmic"):
        _calibrated(board, tmp_path / "2.json", replace(SETTINGS, power="rapl"))


HIDDEN = """
import importlib.machinery, sys
hidden = ("highspy", "joblib", "onnx", "pulp", "pydantic", "pydantic_core", "rich", "scipy", "typer")
class Hiding(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)
sys.meta_path = [Hiding if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
sys.argv = ["poet", "devices", "calibrate", *sys.argv[1:]]
from poet.__main__ import main
main()
"""


@pytest.mark.slow
def test_a_real_machine_without_the_planners_packages(tmp_path: Path) -> None:
    """Its first parts, here and now."""
    path = tmp_path / "raw.json"
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN, "-o", str(path), "--storage", str(tmp_path), "--time-limit", "25s"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = read_measurements(path)
    assert found.steps
    assert found.steps[0].name == "dense-1"
    assert {op.call.target for op in found.steps[0].ops} >= {"aten.convolution.default", "poet.momentum"}
    assert found.host.torch
    assert "1 of " in done.stderr
