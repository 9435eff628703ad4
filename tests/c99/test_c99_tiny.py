"""The four nets of MLPerf Tiny, every parameter trained, in their RAM on a Cortex-M: the linker judges."""

from __future__ import annotations

from pathlib import Path

import pytest
from c99_table import BUDGETS_BYTES, made, planned
from helpers.c_build import needs_cortex_m


@pytest.mark.slow
@needs_cortex_m
@pytest.mark.parametrize("name", BUDGETS_BYTES)
def test_a_net_trains_in_its_budget_on_a_cortex_m(name: str, tmp_path: Path) -> None:
    """Linked into its budget and run for three steps with this machine's bits; 8 bytes less do not link."""
    budget_bytes = BUDGETS_BYTES[name]
    planned(name, budget_bytes, 60.0, tmp_path / f"{name}-{budget_bytes}.poet")
    row = made(name, budget_bytes, 60.0, tmp_path)
    assert row.ram_bytes <= budget_bytes
    assert row.stack_bytes <= 512
    assert row.code_bytes <= 24 * 1024
