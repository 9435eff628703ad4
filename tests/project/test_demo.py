"""The demo's picture is that of the plan, and the demo ends with the bits of plain PyTorch."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.evaluation_plans import small_plan, write
from helpers.hand_net import paging_plan
from ram_picture import ROWS, draw, plain_trace, plot

ROOT = Path(__file__).parents[2]


def test_the_picture_holds_plain_training_the_plan_and_the_budget() -> None:
    plan = paging_plan()
    plain, planned = plain_trace(plan), plan.trace
    assert plain.peak_ram_bytes > planned.peak_ram_bytes
    lines = list(plot(plain, planned, planned.peak_ram_bytes))
    rows = lines[:ROWS]
    budget = next(row for row in rows if row.partition("│")[0].rstrip().endswith("─"))
    above, inside = rows[: rows.index(budget) + 1], rows[rows.index(budget) + 1 :]
    assert "░" in rows[0]
    assert not any("█" in row for row in above)
    assert all("█" in row for row in inside)


def test_the_same_plan_gives_the_same_file(tmp_path: Path) -> None:
    plan = paging_plan()
    files = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for file in files:
        draw(plain_trace(plan), plan.trace, plan.trace.peak_ram_bytes, "RAM", file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert "plain training: at most " in files[0].read_text(encoding="utf-8")


def test_the_picture_of_a_plan_file_is_one_command(tmp_path: Path) -> None:
    write(tmp_path / "plan.poet", small_plan(3, share=0.6))
    command = [sys.executable, "examples/ram_picture.py", str(tmp_path / "plan.poet")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("RAM over one step on ")


@pytest.fixture
def demo() -> Any:
    """Imported when a test runs: its data set comes from a package that takes seconds to import."""
    return importlib.import_module("demo")


def test_stages_say_what_they_are_and_how_long_they_take(
    demo: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = demo.Stages({"one": 2, "two": 3})
    with stages.stage("two", "more"):
        pass
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "2 stages, about 5 s on two cores: one, two"
    assert said[2:] == ["[2/2] two: more (about 3 s)", "[2/2] two took 0 s, 0 s so far"]


def test_the_demo_is_said_to_end_within_a_minute(demo: Any) -> None:
    assert sum(demo.SHORT.about_seconds.values()) <= 60 < sum(demo.LONG.about_seconds.values())


@pytest.mark.slow
def test_the_demo_runs_to_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "examples/demo.py", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "RAM over one step on rpi4b" in done.stdout
    assert "bitwise equal to plain PyTorch: yes" in done.stdout
    assert "page-ins" in done.stdout
    assert " 0 page-ins" not in done.stdout
    assert (tmp_path / "ram.svg").stat().st_size > 0
