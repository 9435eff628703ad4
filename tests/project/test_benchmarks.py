"""Benchmarks have one runner, and what pages say to type exists."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RUNNER: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "__main__.py"), run_name="runner")
PAGES = tuple(
    path for folder in (ROOT, ROOT / "docs") for path in folder.glob("*.md") if path.stem != "CHANGELOG"
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_without_a_name_all_are_listed() -> None:
    listed = run().stdout.splitlines()[2:]
    assert [line.split()[0] for line in listed] == list(RUNNER["scripts"]())
    assert all(len(line.split()) > 3 for line in listed), "each says what it is"


def test_a_name_runs_the_script_with_its_options() -> None:
    done = run("gap-table", "--help")
    assert done.returncode == 0
    assert "--spread" in done.stdout


def test_a_wrong_name_is_refused_with_the_nearest() -> None:
    done = run("gap-tabel")
    assert done.returncode == 1
    assert "did you mean gap-table?" in done.stderr


def test_commands_on_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, flags=re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"(?:python -m benchmarks |benchmarks? `)([a-z0-9-]+)", text)
        assert set(named) <= set(RUNNER["scripts"]()), page
        assert set(re.findall(r"`make ([a-z][a-z0-9-]*)", text)) - {"lib"} <= targets, page


def test_few_targets_are_documented() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert 8 <= len(done.stdout.splitlines()) <= 14
