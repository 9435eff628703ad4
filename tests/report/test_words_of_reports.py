"""Numbers and kinds of ops as reports say them."""

from __future__ import annotations

import pytest

from poet.report.schedule_rows import kind_of
from poet.util.units import format_count, scale_of


@pytest.mark.parametrize(
    ("amount", "unit", "scale"),
    [(3 << 20, "B", (2.0**20, "MiB")), (0.02, "J", (1e-3, "mJ")), (5000.0, "s", (1.0, "s")),
     (0.0, "J", (1.0, "J"))],
)  # fmt: skip
def test_scales(amount: float, unit: str, scale: tuple[float, str]) -> None:
    assert scale_of(amount, unit) == scale


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (4.43e8, "443 million"),
        (1234, "1,234"),
        (12.5, "12.5"),
        (2e12, "2 trillion"),
        (float("inf"), "unlimited"),
    ],
)
def test_counts(number: float, words: str) -> None:
    assert format_count(number) == words


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("net.0.avg_pool2d", "avg pool2d"), ("net.0.log1p", "log1p"), ("net.0.log10", "log10"),
        ("net.relu6_1", "relu6"), ("net.atan2_backward", "atan2 backward"),
        ("net.upsample_nearest2d", "upsample nearest2d"),
        ("3:layer3_Linear", "layer Linear"), ("15:layer15_Linear", "layer Linear"),
    ],
)  # fmt: skip
def test_a_kind_of_op_keeps_the_digits_of_its_name(op: str, kind: str) -> None:
    assert kind_of(op) == kind
