"""Axes of a sweep are read as people write them, and what is no axis gets one clear line."""

from __future__ import annotations

import pytest

from poet.errors import InputError
from poet.whatif import grid

MIB = 2**20


@pytest.mark.parametrize(
    ("text", "budgets"),
    [
        ("64MiB", (64 * MIB,)),
        ("96MiB,64MiB,64MiB", (64 * MIB, 96 * MIB)),
        ("64MiB..512MiB:4", (64 * MIB, 128 * MIB, 256 * MIB, 512 * MIB)),
        ("min..keep:3", (100, 200, 400)),
        ("min,keep,1KiB", (100, 400, 1024)),
        ("1KiB..keep:2", (400, 1024)),
    ],
)
def test_ram_budgets(text: str, budgets: tuple[int, ...]) -> None:
    assert grid.ram_budgets(text, least_bytes=100, keep_bytes=400) == budgets


@pytest.mark.parametrize(
    ("text", "deadlines"),
    [
        (None, (None,)),
        ("1.0x..2.0x:3", ("1x", "1.5x", "2x")),
        ("20ms..40ms:2", ("0.02s", "0.04s")),
        ("1.3x,none", ("1.3x", None)),
    ],
)
def test_deadlines(text: str | None, deadlines: tuple[str | None, ...]) -> None:
    assert grid.deadlines(text) == deadlines


def test_bindings_are_every_combination() -> None:
    found = grid.bindings("1,4", ["L=8..16:2"], lambda: "N")
    assert found == (
        (("N", 1), ("L", 8)), (("N", 1), ("L", 16)), (("N", 4), ("L", 8)), (("N", 4), ("L", 16)),
    )  # fmt: skip
    assert grid.bindings(None, [], lambda: "N") == ((),)


def test_budgets_batteries_and_intensities() -> None:
    assert grid.energy_budget("2J/step").per == "step"
    assert grid.energy_budget("1Wh/day").joules == 3600.0
    assert grid.battery_joules("3000mAh@3.7V") == pytest.approx(3.0 * 3600 * 3.7)
    assert grid.battery_joules("11Wh") == pytest.approx(39600)
    assert grid.grams_per_joule("300g/kWh") == pytest.approx(300 / 3.6e6)
    assert grid.largest_ram("64MiB..512MiB:8,1GiB") == 1024 * MIB
    assert grid.largest_ram("min..64MiB") is None


def _ram(text: str) -> tuple[int, ...]:
    return grid.ram_budgets(text, least_bytes=1, keep_bytes=2)


@pytest.mark.parametrize(
    ("read", "text", "says"),
    [
        (_ram, "64MiB..", "LOW..HIGH"),
        (_ram, "64MiB..1GiB:1", "LOW..HIGH:8"),
        (_ram, "64 llamas", "a size"),
        (_ram, "1MiB,,2MiB", "empty entry"),
        (grid.deadlines, "1.0x..20ms", "mixes"),
        (grid.deadlines, "soon", "deadline"),
        (grid.energy_budget, "2J", "500J/day"),
        (grid.battery_joules, "3000mAh", "3000mAh@3.7V"),
        (grid.battery_joules, "-3Ah@3V", "3000mAh@3.7V"),
        (grid.grams_per_joule, "300", "300g/kWh"),
    ],
)
def test_what_is_no_axis_is_refused(read: object, text: str, says: str) -> None:
    assert callable(read)
    with pytest.raises(InputError) as caught:
        read(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
