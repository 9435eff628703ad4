"""What charts are drawn with: axes, ticks, colours, the front of points that nothing beats."""

from __future__ import annotations

import random
import re

import pytest
from helpers.html_pages import Page, mixed_plan

from poet.report.html import charts, plan_page, points
from poet.report.html.charts import ChartAxis


@pytest.mark.slow
def test_every_colour_of_a_chart_is_one_of_the_style_sheet() -> None:
    text = plan_page(mixed_plan())
    data = Page(text).data
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", data))
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert used <= set(re.findall(r"--([a-z0-9-]+):", style))
    roles = {charts.role_colour(role)[6:-1] for role in charts.ROLE_ORDER}
    assert roles <= set(re.findall(r"--([a-z0-9-]+):", style))


def test_an_axis_that_is_logarithmic_says_so() -> None:
    far, near = ChartAxis("energy (mJ)", 1.0, 100.0), ChartAxis("energy (mJ)", 50.0, 100.0)
    assert far.encoding("x")["axis"]["title"] == "energy (mJ), logarithmic"
    assert near.encoding("x")["axis"]["title"] == "energy (mJ)"


@pytest.mark.parametrize("seed", range(5))
def test_a_front_holds_what_nothing_beats(seed: int) -> None:
    rng = random.Random(seed)
    pairs = [(float(rng.randint(0, 9)), float(rng.randint(0, 9))) for _ in range(30)]
    front = points.front_of(pairs)
    kept = {pairs[index] for index in front}
    for x, y in pairs:
        beaten = any(other != (x, y) and other[0] <= x and other[1] <= y for other in pairs)
        assert ((x, y) in kept) != beaten


@pytest.mark.parametrize(
    ("lowest", "highest", "ticks"),
    [(2.0, 30.0, [1, 2, 5, 10, 20, 50, 100, 200, 500]), (1e-3, 10.0, [1e-3, 1e-2, 1e-1, 1, 10])],
)
def test_logarithmic_ticks(lowest: float, highest: float, ticks: list[float]) -> None:
    assert charts.log_ticks(lowest, highest) == pytest.approx(ticks)
