"""Figures of profiles: how far each may be off, and no more digits shown than that supports."""

from __future__ import annotations

import pytest

from poet.devices.figures import PRIOR_FACTOR, Figure
from poet.report.device import format_figure, format_uncertainty


def _figure(value: float, **fields: object) -> Figure:
    return Figure.model_validate({"value": value, "kind": "measured", "source": "a test", **fields})


def test_a_figure_without_uncertainty_gets_its_kinds_prior() -> None:
    for kind, factor in PRIOR_FACTOR.items():
        assert _figure(10.0, kind=kind).interval == (10.0 / factor, 10.0 * factor)
    assert _figure(10.0, uncertainty=0.2).interval == (8.0, 12.0)
    assert _figure(10.0, range=[1.0, 11.0]).interval == (1.0, 11.0)


@pytest.mark.parametrize(
    ("value", "fields", "shown"),
    [
        (14.8e9, {"range": [5e9, 24e9]}, "15 GFLOP/s"),
        (14.8e9, {"uncertainty": 0.01}, "14.8 GFLOP/s"),
        (35e9, {"kind": "assumed"}, "40 GFLOP/s"),
        (166666.66666666666, {"uncertainty": 0.0}, "166.6666667 kFLOP/s"),
        (2e9, {"uncertainty": 0.0}, "2 GFLOP/s"),
        (0.0, {"uncertainty": 0.0}, "0 FLOP/s"),
        (9.96e6, {"uncertainty": 0.3}, "10 MFLOP/s"),
        (996e3, {"uncertainty": 0.3}, "1 MFLOP/s"),
    ],
)  # fmt: skip
def test_no_more_digits_than_the_uncertainty_supports(
    value: float, fields: dict[str, object], shown: str
) -> None:
    assert format_figure(_figure(value, **fields), "FLOP/s") == shown


def test_uncertainty_in_words() -> None:
    assert format_uncertainty(_figure(3.0, uncertainty=0.2), "W") == "± 20 %"
    assert format_uncertainty(_figure(3.0, range=[1.9, 3.4]), "W") == "1.9 W to 3.4 W"
    assert format_uncertainty(_figure(3.0, kind="assumed"), "W") == "factor 5 (prior)"
    assert format_uncertainty(_figure(3.0, uncertainty=0.0), "W") == "exact"
