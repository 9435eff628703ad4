"""The reference pages are what the code says."""

from __future__ import annotations

import pytest
from reference import PAGES, ROOT


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_is_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == PAGES[name](), "make reference"
