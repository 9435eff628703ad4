"""What a call shows of its work: stages and the best plan, on a terminal in one line."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

import poet
from poet.problem.progress import IMPORT, showing, stage
from poet.problem.solution import Progress

TALK = """
import sys
from poet.problem.progress import showing, stage
with showing(True, limit_seconds=5.0) as progress:
    stage("search")
    progress(0.002, 0.001, 0.5, 0.1)
    print("beside", file=sys.stderr)
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines from the beginning of a call on."""
    monkeypatch.setattr("poet.problem.progress.QUIET_SECONDS", 0.0)


def planned(progress: bool | Progress | None) -> poet.Planned:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    shapes = [torch.zeros(2, 8)]
    return poet.plan(net, torch.zeros(4, 8), device="rpi4b", ram="32KiB", shapes=shapes, progress=progress)


def test_each_stage_has_a_line_with_the_seconds_of_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    planned(True)
    lines = capsys.readouterr().err.splitlines()
    stages = [line.split("  ")[-1].partition(":")[0] for line in lines]
    assert list(dict.fromkeys(stages)) == [
        IMPORT, "search", "arena", "evaluation", "shape 1 of 1",
    ]  # fmt: skip
    assert all(" of 20 s  " in line for line in lines[1:])
    assert "J, gap 0 %" in lines[-1]


def test_the_first_plan_has_a_line_and_later_ones_are_in_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    with showing(True) as progress:
        assert progress is not None
        stage("search")
        progress(None, 0.001, None, 0.1)
        for joules in (0.003, 0.002):
            progress(joules, 0.001, 0.5, 0.1)
        stage("arena")
    assert [line.split(" s  ")[1] for line in capsys.readouterr().err.splitlines()] == [
        "search", "search: best 3 mJ, gap 50 %", "arena: best 2 mJ, gap 50 %",
    ]  # fmt: skip


def test_a_terminal_has_one_line_that_is_rewritten_below_what_others_write() -> None:
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", TALK], stderr=theirs, check=True, env=environment)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "of 5 s  search: best 2 mJ, gap 50 %" in shown
    assert "beside\r\n" in shown
    assert shown.rstrip().endswith("\x1b[2K"), "the line is taken away"


def test_a_function_is_called_and_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[float | None] = []
    made = planned(lambda best, bound, gap, seconds: told.append(best))
    assert told[-1] == pytest.approx(made.joules)
    assert planned(False).joules == made.joules
    assert not capsys.readouterr().err


def test_without_a_terminal_what_is_late_has_its_line_with_the_next_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poet.problem.progress.QUIET_SECONDS", 0.05)
    with showing(True, limit_seconds=5.0) as progress:
        assert progress is not None
        stage("search")
        progress(0.003, 0.001, 0.5, 0.01)
        assert not capsys.readouterr().err
        time.sleep(0.06)
        progress(0.002, 0.001, 0.5, 0.07)
        progress(0.002, 0.001, 0.4, 0.08)
    assert [line.split(" s  ")[1] for line in capsys.readouterr().err.splitlines()] == [
        "search: best 2 mJ, gap 50 %"
    ]
