"""The table of gaps: its rows are measured the same again, and a figure that is worse is told."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gap_table.py"


@pytest.fixture(scope="module")
def table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gap_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_file_answers_what_the_table_asks(table: ModuleType) -> None:
    asked = [(name, share, seconds) for name, seconds, shares in table.CASES for share in shares]
    assert [(row.problem, row.share, row.work_seconds) for row in table.read()] == asked
    for row in table.read():
        assert row.joules is not None
        assert row.bound_joules <= row.joules
        assert row.gap == pytest.approx(1.0 - row.bound_joules / row.joules)
    assert any(row.overhead_gap > 0.01 for row in table.read())  # else nothing could get worse


def test_small_rows_come_out_as_in_the_file(table: ModuleType) -> None:
    known = {row.key: row for row in table.read()}
    rows = [table.measured(name, 0.0, 5.0) for name in ("linear.m4", "transformer.m4")]
    assert table.compared(rows, list(known.values())) == []
    assert rows[-1] == table.measured("transformer.m4", 0.0, 5.0)


def test_what_is_worse_is_told_and_what_is_better_is_not(table: ModuleType) -> None:
    before = next(row for row in table.read() if row.gap > 1e-4)
    more, less = 1.0 + 2e-6, 1.0 - 2e-6
    assert table.compared([before], [before]) == []
    better = replace(before, joules=less * before.joules, bound_joules=more * before.bound_joules, gap=0.0)
    assert table.compared([better], [before]) == []
    for change, words in (
        ({"joules": more * before.joules}, "the plan takes"),
        ({"joules": None}, "the plan takes none J"),
        ({"bound_joules": less * before.bound_joules}, "the bound is"),
        ({"gap": before.gap + 2e-6}, "the gap is"),
        ({"budget_bytes": 1}, "another question"),
        ({"problem": "new"}, "not in the file"),
    ):
        lines = table.compared([replace(before, **change)], [before])
        assert len(lines) == 1
        assert words in lines[0]


def test_a_cut_search_may_end_elsewhere_on_another_processor(table: ModuleType) -> None:
    rows = table.read()
    cut, proven = next(row for row in rows if row.gap > 1e-4), next(row for row in rows if row.gap <= 1e-7)
    elsewhere = replace(cut, joules=(1 + 0.2 * cut.gap) * cut.joules, gap=1.2 * cut.gap)
    assert len(table.compared([elsewhere], [cut])) == 2
    assert table.compared([elsewhere], [cut], 0.25) == []
    assert len(table.compared([replace(cut, gap=1.3 * cut.gap)], [cut], 0.25)) == 1
    assert len(table.compared([replace(proven, gap=2e-6)], [proven], 0.25)) == 1


def test_the_command_ends_with_1_where_a_figure_is_worse(
    table: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "TABLE", tmp_path / "table.json")
    monkeypatch.setattr(table, "CASES", (("transformer.m4", 5.0, (0.5,)),))
    monkeypatch.setattr(sys, "argv", ["gap_table.py", "--write"])
    assert table.main() == 0
    monkeypatch.setattr(sys, "argv", ["gap_table.py"])
    assert table.main() == 0
    (row,) = table.read()
    table.write([replace(row, joules=0.9 * row.joules)])
    assert table.main() == 1
    assert "worse: transformer.m4 at 0.5: the plan takes" in capsys.readouterr().err
