"""Benchmarks have one runner, and what pages say to type exists."""

from __future__ import annotations

import dataclasses
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from result_file import RESULTS, parse, read

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


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_names_its_commit_and_what_makes_it(path: Path) -> None:
    result = read(path)
    assert result.name == path.stem
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", result.commit)
    assert result.command.split()[:3] == ["python", "-m", "benchmarks"]
    assert result.command.split()[3] in RUNNER["scripts"]()
    assert any(table.rows for table in result.tables)
    named = re.findall(r"`((?:poet|cli|tests|examples|docs)/[\w./-]+\.\w+)", str(result))
    assert [file for file in named if not (ROOT / file).is_file()] == []
    assert parse(path.stem, str(result), commit=result.commit) == dataclasses.replace(
        result, remarks=(f"Commit {result.commit}.", *result.remarks)
    ), "what is shown is all that is kept"


def test_a_page_becomes_numbers_and_texts() -> None:
    page = (
        "# Title\n\nBy `python -m benchmarks x --write`:\ntwo lines.\n- a point\n\n| a | b |\n|---|--:|\n"
        "| 1,024 | -2.5e-04 |\n| 3 ms | |\n\nBehind.\n\n## Next\n\n```\ncode | #\n```\n"
    )
    result = parse("x", page, commit="0")
    assert result.command == "python -m benchmarks x --write"
    assert result.remarks == ("By `python -m benchmarks x --write`: two lines.", "- a point")
    table, behind, last = result.tables
    assert (table.columns, table.rows) == (("a", "b"), ((1024, -2.5e-4), ("3 ms", "")))
    assert behind.remarks == ("Behind.",)
    assert (last.title, last.remarks) == ("Next", ("```\ncode | #\n```",))
    with pytest.raises(ValueError, match="1 cells in 2 columns"):
        parse("x", page.replace("| 3 ms | |", "| 3 ms |"), commit="0")


def test_a_result_is_shown() -> None:
    assert "micro-batches" in run("show").stdout
    assert run("show", "micro-batches").stdout.startswith("# Micro-batches")
    assert "did you mean micro-batches?" in run("show", "micro-batch").stderr


def test_commands_on_pages_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z0-9-]+):", makefile, flags=re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"(?:python -m benchmarks |benchmarks? `)([a-z0-9-]+)", text)
        assert set(named) <= {"show", *RUNNER["scripts"]()}, page
        assert set(re.findall(r"`make ([a-z][a-z0-9-]*)", text)) - {"lib"} <= targets, page


def test_few_targets_are_documented() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert 8 <= len(done.stdout.splitlines()) <= 14
