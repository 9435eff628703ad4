"""Some rows of the table of bits; `make bits-table` has all."""

from __future__ import annotations

import importlib
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
