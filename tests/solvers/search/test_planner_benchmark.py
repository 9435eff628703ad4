"""The planner benchmark as a command: it measures, goes on where it was, and writes page and plot."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from poet.baselines.comparison import BASELINES, EXACT_BASELINES
from poet.solvers.engines import available_engines

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "planner.py"


def run(folder: Path) -> str:
    rows, page = folder / "rows.jsonl", folder / "page.json"
    arguments = ["--quick", "--only", "transformer.m4", "--rows", str(rows), "--output", str(page)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return page.read_text()


@pytest.mark.slow
def test_a_quick_run_writes_page_and_plot_and_is_resumed(tmp_path: Path) -> None:
    page = run(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    planners = {row["planner"] for row in rows}
    engines = {row["planner"] for row in rows if row["kind"] == "engine"}
    assert {"highs"} <= engines <= set(available_engines())
    assert planners - engines == {*BASELINES, *EXACT_BASELINES}
    assert all(row["joules"] is not None for row in rows if row["kind"] == "engine")
    assert any(row["status"] == "optimal" for row in rows if row["planner"] == "highs")
    assert all(name in page for name in planners)
    assert (tmp_path / "page.svg").read_text().startswith("<?xml")
    assert run(tmp_path) == page
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(rows)
