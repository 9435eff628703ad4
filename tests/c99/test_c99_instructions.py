"""Instructions that a step is foreseen to take: a formula for all that it calls, held to QEMU's counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from c99_counts import counted
from c99_instructions import LARGE_CLASS, PAGE, WHOLE, compared
from c99_table import BUDGETS_BYTES, planned
from helpers import sequence_nets
from helpers.c_build import needs_cortex_m
from helpers.c_plans import CNet, traced
from helpers.pace import with_slow
from helpers.random_c_nets import KINDS, random_net
from torch import nn

from poet.c99.call_amounts import TRANSFERS, amounts_of, known_functions
from poet.c99.calls import CCall, CStruct
from poet.c99.instructions import CLASSES, call_instructions, factors, step_instructions
from poet.c99.statements import statements_of
from poet.c99.window_amounts import Plane, scatter, taps, weight

KERNELS = Path(__file__).parents[2] / "poet" / "c99" / "kernels"
WHOLE_SHARE, CLASS_SHARE = 0.10, 0.20
"""How far what is foreseen of a whole step, and of a class of ops, may be from the count."""

UNPRICED = {"poet_not"}
"""Kernels that no net here calls, and that count as nothing."""


@pytest.fixture(scope="module")
def net() -> CNet:
    """A small net with convolutions, norms and a linear layer."""
    first = (nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2))
    torch.manual_seed(0)
    module = nn.Sequential(*first, nn.Flatten(), nn.Linear(16, 3))
    return traced(module, torch.randn(2, 2, 6, 6)).fused_everywhere()


def test_every_kernel_that_a_step_calls_has_a_formula() -> None:
    """And nothing else has: a kernel that is renamed takes its formula along."""
    defined = {
        name
        for path in KERNELS.glob("*.c")
        for name in re.findall(r"^void (poet_\w+)\(", path.read_text(), re.MULTILINE)
        if not name.startswith("poet_apply_")
    }
    assert defined == known_functions() - set(TRANSFERS)
    assert {function for functions in CLASSES.values() for function in functions} <= known_functions()
    as_others = {"poet_matmul_images", "poet_bernoulli_again"}  # counted as what they call
    assert known_functions() - factors().keys() == as_others | UNPRICED


def test_what_a_step_takes_is_the_sum_of_its_classes_and_grows_with_what_it_does_again(net: CNet) -> None:
    kept, again = (step_instructions(net.plan(*seed, homes=bool(seed))) for seed in ((), (1,)))
    assert kept.total == kept.bookkeeping + sum(kept.by_class.values())
    assert "transfer" not in kept.by_class
    assert again.by_class["transfer"] > 0.0
    assert all(again.by_class[name] >= 0.99 * kept.by_class[name] for name in kept.by_class)
    assert again.total > kept.total


def test_a_call_takes_more_the_more_it_does_and_one_that_is_unknown_is_refused() -> None:
    def call(elements: int, *loops: int) -> CCall:
        return CCall("poet_relu", ("a", "a", "1", str(elements)), loops)

    one, two = call_instructions(call(1000), {}), call_instructions(call(2000), {})
    assert 1.8 * one < two < 2.2 * one
    assert call_instructions(call(1000, 2, 3), {}) == pytest.approx(6 * one)
    with pytest.raises(KeyError, match="poet_unheard_of"):
        call_instructions(CCall("poet_unheard_of", ()), {})


def test_an_update_counts_where_a_gradient_is_made() -> None:
    """It is stored, or used at once; with weight decay a step of SGD goes another way."""

    def call(update: str) -> dict[tuple[str, str], float]:
        shape = CStruct("poet_matmul_shape", tuple(map(str, (8, 4, 6, 6, 1, 0, 0, 1, 8, 6, 1))))
        return amounts_of(CCall("poet_matmul_gradient_narrow", (update, "a", "a + 9", shape)), {})

    rate = "net->learning_rate"
    assert call("&(poet_update){poet_apply_store, a, 0, 0, {0.0f}}")["poet_apply_store", "element"] == 48
    assert call(f"&(poet_update){{poet_apply_sgd, a, 0, 0, {{{rate}, 0.0f}}}}")["poet_apply_sgd", "call"] == 8
    assert (
        call(f"&(poet_update){{poet_apply_sgd, a, 0, 0, {{{rate}, 0.1f}}}}")["poet_apply_sgd", "decayed"]
        == 48
    )


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad", "dilation"),
    [
        ((7, 9), (3, 3), 1, 1, 1),
        ((8, 6), (3, 3), 1, 0, 1),
        ((9, 11), (3, 3), 2, 0, 1),
        ((9, 10), (3, 3), 2, 1, 1),
        ((9, 8), (5, 5), 1, 2, 1),
        ((9, 9), (3, 3), 1, 2, 2),
        ((12, 10), (7, 4), 2, 0, 1),
        ((5, 8), (1, 1), 2, 0, 1),
        ((1, 13), (1, 3), 1, 3, 3),
    ],
)
def test_windows_multiply_as_often_as_pytorch_does(
    size: tuple[int, int], kernel: tuple[int, int], stride: int, pad: int, dilation: int
) -> None:
    """By any of the ways: the sum of a convolution of ones with ones. Rolling windows count their borders."""
    pads = (pad if kernel[0] > 1 else 0, pad)
    made = F.conv2d(
        torch.ones(1, 1, *size), torch.ones(1, 1, *kernel), stride=stride, padding=pads, dilation=dilation
    )
    plane = Plane._make((*size, *made.shape[-2:], *kernel, stride, stride, *pads, dilation, dilation))
    assert plane.multiply_adds == made.sum()
    assert _multiply_adds(taps(plane, is_turned=True)) == (9 * made.numel() if plane.rolls else made.sum())
    record = (2, 1, 1, 3, *plane)
    own, handed, elements = weight(record)
    assert elements == 3 * plane.taps
    assert elements == handed * (
        9 if plane.rolls else 4 if plane.is_wide_4 else 3 if kernel[1] == 3 and dilation == 1 else 1
    )
    if not plane.rolls and handed == elements:
        assert own["poet_tap_gradient", "multiply_add"] == 6 * made.sum()
    if not plane.gathers:
        assert scatter(record)["poet_scatter_taps", "multiply_add"] == 6 * made.sum()


def _multiply_adds(found: dict[tuple[str, str], float]) -> float:
    """Of the ways through a plane."""
    each = {
        ("poet_pairs_of_3x3", "place"): 18, ("poet_rows_of_3x3", "place"): 9,
        ("poet_rows_of_3x3_by_2", "place"): 9, ("poet_tap_of_1x1", "place"): 1,
        ("poet_taps_of_3x3", "place"): 9, ("poet_taps_of_2x3", "place"): 6,
        ("poet_taps_of_row", "multiply_add"): 1,
    }  # fmt: skip
    return sum(count * each.get(key, 0) for key, count in found.items())


def test_the_pages_figures_are_near_the_counts() -> None:
    """As they were counted last: whole steps within a tenth, their classes within a fifth."""
    rows = [row.strip("| ").split(" | ") for row in PAGE.read_text().splitlines() if " / " in row]
    seen = 0
    for name, *cells in rows:
        for foreseen, taken in re.findall(r"([\d.]+) / ([\d.]+),", " ".join(cells)):
            seen += 1
            share = WHOLE_SHARE if name == WHOLE else CLASS_SHARE
            assert float(foreseen) == pytest.approx(float(taken), rel=share, abs=0.02), (name, cells)
    assert seen > 8 * 5


@pytest.mark.parametrize("kind", with_slow(KINDS, KINDS.keys() - {"windows"}))
def test_every_thing_that_random_nets_do_has_its_price(kind: str) -> None:
    net = random_net(kind, 7)
    plan = net.plan() if kind in ("elements", "sequence") else net.plan(1, homes=True)
    sizes_bytes = {buffer.name: buffer.size_bytes for buffer in plan.graph.buffers}
    for item in statements_of(plan).statements:
        for call in item.calls:
            assert call_instructions(call, sizes_bytes) > 0.0, call
    assert all(price >= 0.0 for things in factors().values() for price in things.values())


def _check(plan: Path, folder: Path) -> None:
    """What is foreseen of a plan's step is near QEMU's count, as a whole and of each class that matters."""
    pairs = compared(counted(folder, plan))
    whole = pairs.pop(WHOLE)
    assert whole[0] == pytest.approx(whole[1], rel=WHOLE_SHARE)
    for name, (foreseen, taken) in pairs.items():
        if taken >= LARGE_CLASS * whole[1]:
            assert foreseen == pytest.approx(taken, rel=CLASS_SHARE), name


@needs_cortex_m
@pytest.mark.slow
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "budget"])
@pytest.mark.parametrize("name", BUDGETS_BYTES)
def test_a_step_on_a_cortex_m_takes_what_was_foreseen(name: str, is_kept: bool, tmp_path: Path) -> None:
    """Of the nets in their full size, to which nothing was fitted."""
    plan = tmp_path / "net.poet"
    planned(name, None if is_kept else BUDGETS_BYTES[name], 5.0, plan)
    _check(plan, tmp_path / "c")


@needs_cortex_m
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tcn", "mlp", "gru", "transformer"])
def test_a_small_net_on_a_cortex_m_takes_what_was_foreseen(name: str, tmp_path: Path) -> None:
    """Of other kinds and tiny sizes: as a whole."""
    torch.manual_seed(0)
    kind = sequence_nets.NETS[name]
    net = traced(kind.build(), torch.randn(kind.shape)).fused_everywhere()
    foreseen, taken = compared(counted(tmp_path / "c", net.write(tmp_path / "net.poet", net.plan())))[WHOLE]
    assert foreseen == pytest.approx(taken, rel=WHOLE_SHARE)
