"""Which cases of a test run at every change, and which in the slow part.

Each test keeps cases in both: the few say that the law is still kept, the many look for what breaks it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def with_slow(cases: Iterable[Any], slow: Container[Any]) -> list[Any]:
    """``cases`` as parameters of a test, tuples for several; ``slow`` ones only by ``make test-slow``."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        if case in slow
        else case
        for case in cases
    ]


def few_or_many(name: str, few: Any, many: Any) -> pytest.MarkDecorator:
    """One test with two values of ``name``: a fast one, and one for the slow part."""
    return pytest.mark.parametrize(
        name, [pytest.param(few, id="few"), pytest.param(many, id="many", marks=pytest.mark.slow)]
    )
