"""Every fault is told in one line and loses no committed step; the documented table is the true one."""

from __future__ import annotations

from pathlib import Path

import faults
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("in_storage", [False, True], ids=["in-ram", "in-storage"])
@pytest.mark.parametrize("background", [False, True], ids=["blocking", "background"])
@pytest.mark.parametrize("fault", faults.FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_fault_is_told_and_the_training_state_is_intact(
    fault: faults.Fault, background: bool, in_storage: bool, tmp_path: Path
) -> None:
    result = faults.try_fault(fault, tmp_path, background=background, in_storage=in_storage)
    assert result.is_intact, result
    assert (not result.reported) == fault.harmless
    assert "\n" not in result.reported
    assert not [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"]


@pytest.mark.slow
def test_the_documented_table_is_the_true_one() -> None:
    made = faults.table()
    assert "**no**" not in made
    assert faults.in_document(faults.DOCUMENT.read_text()) == made
