"""Published training steps: the fitted profiles predict them, and nets that no fit has seen."""

from __future__ import annotations

import importlib
import statistics
from typing import Any

import numpy as np
import pytest
from result_file import parse, read

from poet.devices.figures import OpClass
from poet.devices.load import load_profile
from poet.devices.spread import End, corner, uncertain_figures

table: Any = importlib.import_module("devices_table")
AMOUNTS, STEPS = table.step_amounts(), table.published_steps()
DECODING_SECONDS = {"rpi4": 0.56, "rpi5": 0.27}


def _ratios(board: str, device: str, *, head_only: bool, in_fit: bool | None = None) -> list[float]:
    profile = load_profile(device)
    return [
        (table.by_profile(profile, AMOUNTS[step.net, head_only]) + DECODING_SECONDS[board]) / step.seconds
        for step in STEPS
        if (step.board, step.head_only) == (board, head_only)
        and (step.net, head_only) in AMOUNTS
        and in_fit in (None, step.in_fit)
    ]


def test_the_fits_form_is_the_cost_models() -> None:
    base = load_profile("rpi4b-xnnpack")
    model = table.Model(base, AMOUNTS)
    figures = np.array([14.8e9] * len(table.SPEEDS) + [2.24e9, 0.0])
    for key in (("resnet50", False), ("mobilenetv2_100", True), ("vit_tiny", False)):
        assert model.seconds(figures, *key) == pytest.approx(table.by_profile(base, AMOUNTS[key]), rel=1e-9)


def test_the_refitted_raspberry_pi_4_reproduces_the_steps_that_it_was_fitted_to() -> None:
    ratios = _ratios("rpi4", "rpi4b", head_only=False)
    assert len(ratios) == 36
    errors = [abs(ratio - 1) for ratio in ratios]
    assert statistics.median(errors) < 0.06
    assert max(errors) < 0.35
    heads = _ratios("rpi4", "rpi4b", head_only=True)
    assert sum(0.7 <= ratio <= 1.4 for ratio in heads) >= 33


def test_the_raspberry_pi_5_predicts_ten_nets_that_no_fit_has_seen() -> None:
    ratios = _ratios("rpi5", "rpi5", head_only=False, in_fit=False)
    assert len(ratios) == 10
    errors = [abs(ratio - 1) for ratio in ratios]
    assert statistics.median(errors) <= 0.12
    assert max(errors) <= 0.4
    assert all(0.7 <= ratio <= 1.4 for ratio in _ratios("rpi5", "rpi5", head_only=True))


def test_a_call_for_each_channel_explains_the_ghostnets() -> None:
    for window, stride, channels, side in ((9, 1, 32, 112), (25, 2, 72, 28), (5, 1, 184, 7)):
        outputs = 16 * channels * side * side
        moved = 4 * (outputs * (1 + stride**2) + channels * window)
        assert table.channels_of(2 * window * outputs, moved) == channels
    calls = {net: table.channel_calls(item) for (net, head_only), item in AMOUNTS.items() if not head_only}
    assert calls["efficientnet_b0"] == 3 * 8960
    assert table.PerChannel(AMOUNTS).calls["efficientnet_b0", True] == 8960  # forward alone
    assert calls["resnet50"] == calls["vit_tiny"] == 0
    seconds, ratios, _, _ = table.channel_fit(STEPS, AMOUNTS, left_out=False)
    assert 0.5e-4 < seconds < 3e-4
    assert all(0.85 < ratios[net] < 1.15 for net in ("ghostnetv2_100", "ghostnetv2_160"))
    assert max(abs(ratio - 1) for ratio in ratios.values()) < 0.15


@pytest.mark.parametrize(("board", "joules"), [("stm32l4r5", 5.494e-3), ("stm32u575", 2.565e-3)])
def test_no_training_step_of_fp32_costs_less_than_its_operations_did_in_int8(
    board: str, joules: float
) -> None:
    """MLPerf Tiny v1.3 has the joules of a forward pass of ResNet-8; a step has 2.96 times its products."""
    profile = load_profile(board)
    both: tuple[End, End] = ("low", "high")
    for path in uncertain_figures(profile):
        for end in both:
            found = corner(profile, {path: end})
            throughput = found.compute.throughput(OpClass.MATMUL)
            assert throughput is not None
            seconds = 2 * 37.15e6 / throughput.flops_per_second.value
            assert seconds * found.compute.watts(OpClass.MATMUL) > 2.96 * joules, (path, end)


@pytest.mark.slow
def test_the_page_is_what_the_command_makes() -> None:
    """But for the last digits of a fit, which other processors may round elsewhere."""
    ours, committed = parse(table.PAGE.stem, table.page()).tables, read(table.PAGE).tables
    assert [(each.title, each.columns) for each in ours] == [(each.title, each.columns) for each in committed]
    for mine, theirs in zip(ours, committed, strict=True):
        assert [row[:2] for row in mine.rows] == [row[:2] for row in theirs.rows]
