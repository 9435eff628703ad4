"""Quantities in and out, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poet.errors import InputError
from poet.util.units import (
    format_above,
    format_bytes,
    format_gap,
    format_joules,
    format_more,
    format_part,
    format_seconds,
    format_share,
    parse_bytes,
    parse_factor,
    parse_joules,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096), ("64MiB", 64 * 2**20), ("256 KB", 256_000), ("1GB", 10**9), (" 2 gib ", 2**31),
        ("1.5KiB", 1536), ("1e3", 1000), (".5KiB", 512), ("7b", 7), ("1TiB", 2**40),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "-1", "64 XB", "64M", "1,5KB", "0", "0.5", "0x10", "64MiB!", "nan", "inf"]
)
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="write for example 64MiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20ms", 0.02),
        ("1.5s", 1.5),
        ("2min", 120.0),
        ("1h", 3600.0),
        ("3 us", 3e-6),
        ("3µs", 3e-6),
        ("9ns", 9e-9),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "joules"),
    [("1.5mJ", 1.5e-3), ("2Wh", 7200.0), ("1kWh", 3.6e6), ("3uJ", 3e-6), ("4 kJ", 4000.0), ("5nj", 5e-9)],
)
def test_energies(text: str, joules: float) -> None:
    assert parse_joules(text) == pytest.approx(joules, rel=1e-15)


@pytest.mark.parametrize("text", ["20", "20 m", "-3ms", "ms", "1.3x"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="is not a time"):
        parse_seconds(text)


def test_a_bare_number_is_no_energy() -> None:
    with pytest.raises(InputError, match="is not an energy"):
        parse_joules("12")


@pytest.mark.parametrize(
    ("text", "factor"),
    [("1.3x", 1.3), (" 2 x", 2.0), (".5x", 0.5), ("1.3", None), ("x", None), ("20ms", None), ("-1x", None)],
)
def test_factors(text: str, factor: float | None) -> None:
    assert parse_factor(text) == factor


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_bytes(0), "0 B"), (format_bytes(1023), "1023 B"), (format_bytes(1024), "1 KiB"),
        (format_bytes(12.5 * 2**20), "12.5 MiB"), (format_bytes(3 * 2**40), "3 TiB"),
        (format_seconds(0.0), "0 s"), (format_seconds(12.345e-3), "12.35 ms"), (format_seconds(90.0), "90 s"),
        (format_seconds(3600.0), "3600 s"), (format_seconds(5e-6), "5 µs"),
        (format_joules(3.2e-3), "3.2 mJ"), (format_joules(1500.0), "1.5 kJ"),
        (format_joules(2.5e-9), "2.5 nJ"),
        (format_joules(-2.0), "-2 J"), (format_share(0.00392), "0.392 %"), (format_share(1.0), "100 %"),
        (format_share(8.02e-8), "< 0.001 %"), (format_share(-8.02e-8), "> -0.001 %"),
        (format_more(0.0345), "3.45 % more"), (format_more(-0.515), "51.5 % less"),
        (format_more(12.36), "13.4 times as much"), (format_more(2e6), "2 million times as much"),
        (format_above(0.0861, "the least"), "8.61 % above the least"),
        (format_above(12.36, "the least"), "13.4 times the least"),
        (format_part(1.23), "123 %"), (format_part(26.04), "26 times"),
        (format_gap(8.02e-8, optimal=True, confirmed=True), "proven"),
        (format_gap(8.02e-8, optimal=True, confirmed=False), "closed"),
        (format_gap(8.02e-8, optimal=False, confirmed=True), "< 0.001 %"),
        (format_gap(0.02, optimal=True, confirmed=True), "2 %"),
    ],
)  # fmt: skip
def test_what_is_shown(shown: str, expected: str) -> None:
    assert shown == expected


@given(st.integers(1, 2**45))
def test_a_shown_size_reads_back_to_four_digits(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=1e-3, abs=1)


@given(st.floats(1e-9, 1e6))
def test_a_shown_time_or_energy_reads_back_to_four_digits(amount: float) -> None:
    assert parse_seconds(format_seconds(amount)) == pytest.approx(amount, rel=1e-3)
    assert parse_joules(format_joules(amount)) == pytest.approx(amount, rel=1e-3)
