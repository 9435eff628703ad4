"""The page on profiles, followed by a reader with a board and no meter: its commands as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sysconfig
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from poet.devices.load import load_profile
from poet.devices.measurements import read_measurements
from poet.plans.plan_file import read_plan

PAGE = (Path(__file__).parents[2] / "docs" / "boards.md").read_text(encoding="utf-8")
POET = Path(sysconfig.get_path("scripts")) / "poet"


def commands(section: str) -> list[list[str]]:
    """Words behind ``poet`` of each command in the fenced blocks under a heading."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^ *```\n(.*?)^ *```", text, re.M | re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("poet ")]


BOARD = commands("Measure a board")


def test_the_page_has_a_way_from_measuring_to_a_plan() -> None:
    assert [" ".join(words[:2]) if words[0] == "devices" else words[0] for words in BOARD] == [
        "devices calibrate", "devices fit", "devices validate", "solve", "devices profile", "devices fit",
    ]  # fmt: skip


def _followed(words: list[str], folder: Path, *more: str) -> str:
    """What a command of the page prints, a card standing in for its card."""
    given = [str(folder) if word == "/media/card" else word for word in words]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [str(POET), *given, *more], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_a_reader_without_a_meter_gets_a_profile_and_a_plan(tmp_path: Path) -> None:
    """With less time than the page gives it, which is the reader's choice."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.zeros(8, 3, 16, 16),), str(tmp_path / "model.onnx"), dynamo=False)
    calibrate, fit, validate, solve, profile, fit_again = BOARD
    assert "1 of " in _followed(calibrate, tmp_path, "--time-limit", "45s")
    assert read_measurements(tmp_path / "raw.json").steps
    assert "the watts are those of rpi4b" in _followed(fit, tmp_path)
    assert "valid" in _followed(validate, tmp_path)
    assert load_profile(tmp_path / "mine.toml").calibration is not None
    _followed(solve, tmp_path, "-o", "plan.poet", "--time-limit", "2s")
    assert read_plan(tmp_path / "plan.poet").prediction.range is not None
    assert "a step takes" in _followed(profile, tmp_path)
    _followed(fit_again, tmp_path)
    assert load_profile(tmp_path / "mine.toml").op_times is not None
    typed = [
        "devices",
        "fit",
        "raw.json",
        "--base",
        "rpi4b",
        "-o",
        "typed.toml",
        "--watts",
        "idle=2.7,busy=6",
    ]
    assert "idle=2.7,busy=6" in PAGE
    _followed(typed, tmp_path)
    assert load_profile(tmp_path / "typed.toml").energy.idle_watts.value == 2.7
