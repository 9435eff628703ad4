"""Some rows of the table of bits; `python -m benchmarks bits --write` has all."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

bits: Any = importlib.import_module("benchmarks.bits")
Row: Any = bits.Row


@pytest.mark.slow
@pytest.mark.parametrize("threads", bits.THREADS)
@pytest.mark.parametrize(
    "row",
    [
        Row("dropout", "cross-entropy", "adamw", "clip"),
        Row("gru", "focal", "momentum", "accumulate"),
        Row("normed-weights", "mse", "lion", "groups"),
        Row("lstm", "cross-entropy:label_smoothing=0.1", "rmsprop", "schedule"),
    ],
    ids=lambda row: f"{row.net}-{row.feature}" if isinstance(row, Row) else str(row),
)
def test_a_row_has_the_bits_of_the_plain_loop(row: Any, threads: int) -> None:
    found = bits.compared(row, threads)
    assert found.difference == ""
    assert found.tensors > 12
    assert found.recomputed_runs > 0
    assert found.page_ins > 0


def test_the_page_counts_what_differs() -> None:
    row = bits.ROWS[0]
    text = bits.page([(row, [bits.Found(1, 2, 10, ""), bits.Found(1, 2, 7, "step 1: output 0")])])
    assert f"1 of the {len(bits.ROWS)} rows" in text
    assert "- Equal: 1 of 2 trainings; 17 tensors were compared." in text
    assert f"| {row.net} | 1 | 1 | 2 | 17 | 1 of 2 |" in text


def test_rows_that_are_done_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []

    def compared(row: Any, threads: int) -> Any:
        made.append((row, threads))
        return bits.Found(1, 2, 10, "")

    monkeypatch.setattr(bits, "compared", compared)
    kept = ["--kept", str(tmp_path / "kept.jsonl"), "--optimizers", "radam"]
    for number in (1, 2):
        assert bits.main([*kept, "--most", "3"]) == 0
        assert f"{3 * number} of the {len(bits.ROWS)} rows" in capsys.readouterr().out
    assert len(made) == len(set(made)) == 6 * len(bits.THREADS)
    assert {row.optimizer for row, _ in made} == {"radam"}
    assert bits.main([*kept, "--as-is"]) == 0
    assert f"6 of the {len(bits.ROWS)} rows" in capsys.readouterr().out
    assert len(made) == 12
    bits.keep(tmp_path / "kept.jsonl", bits.ROWS[0], [bits.Found(1, 2, 7, "step 1: output 0")])
    assert bits.main([*kept, "--as-is"]) == 1
