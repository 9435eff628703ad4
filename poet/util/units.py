"""Quantities and options as people write them. Inside the package everything is SI: bytes, seconds, joules.

The only place where prefixes are read or written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator

from poet.errors import InputError
from poet.util.reading import LARGEST_WHOLE

_SIZE_FACTORS = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_TIME_FACTORS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_ENERGY_FACTORS = {
    "nj": 1e-9, "uj": 1e-6, "µj": 1e-6, "mj": 1e-3, "j": 1.0, "kj": 1e3,
    "mwh": 3.6, "wh": 3600.0, "kwh": 3.6e6,
}  # fmt: skip
LEAST_PER_CENT = 1e-3
"""Per cent below which a share is only said to be smaller than this."""

_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)\s*([A-Za-zµ]*)\s*")


def _parse(text: str, factors: dict[str, float] | dict[str, int], what: str, example: str) -> float:
    match = _QUANTITY.fullmatch(text)
    factor = factors.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InputError(f"{text!r} is not {what}; write for example {example}")
    amount = float(match[1]) * factor
    if not math.isfinite(amount):
        raise InputError(f"{text[:40]!r} is more than any machine has; write for example {example}")
    return amount


def parse_bytes(text: str) -> int:
    """Bytes in ``"64MiB"``, ``"256 KB"`` or ``"4096"``. MiB is 2**20 bytes, MB is 10**6.

    Raises:
        InputError: ``text`` is not a size of at least one byte.
    """
    size = math.floor(_parse(text, _SIZE_FACTORS, "a size", "64MiB, 256KB or 4096"))
    if size < 1:
        raise InputError(f"{text!r} is less than one byte; write for example 64MiB")
    if size > LARGEST_WHOLE:
        raise InputError(f"{text!r} is more than any machine has; write for example 64MiB")
    return size


def parse_seconds(text: str) -> float:
    """Seconds in ``"20ms"``, ``"1.5s"`` or ``"2min"``.

    Raises:
        InputError: ``text`` is not a time.
    """
    return _parse(text, _TIME_FACTORS, "a time", "20ms or 1.5s")


def parse_joules(text: str) -> float:
    """Joules in ``"1.5mJ"`` or ``"2Wh"``.

    Raises:
        InputError: ``text`` is not an energy.
    """
    return _parse(text, _ENERGY_FACTORS, "an energy", "1.5mJ or 2Wh")


def parse_factor(text: str) -> float | None:
    """The number in ``"1.3x"``, or ``None`` where ``text`` does not end in ``x``."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*x\s*", text)
    return float(match[1]) if match else None


def format_bytes(size_bytes: float, *, exact: bool = False) -> str:
    """``size_bytes`` with a binary prefix and at most four significant digits, e.g. ``"12.5 MiB"``.

    ``exact``: in bytes where that is not the very size.
    """
    for prefix, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(size_bytes) >= factor:
            text = f"{size_bytes / factor:.4g}"
            is_told = not exact or float(text) * factor == size_bytes
            return f"{text} {prefix}" if is_told else f"{size_bytes:.0f} B"
    return f"{size_bytes:.4g} B"


def _digits(amount: float, *, exact: bool) -> str:
    """Four significant digits of ``amount``; ``exact``: as many more as tell it within 5e-10 of itself."""
    texts = (f"{amount:.{digits}g}" for digits in range(4, 10 if exact else 4))
    close = (text for text in texts if abs(float(text) - amount) <= 5e-10 * abs(amount))
    return next(close, f"{amount:.{10 if exact else 4}g}")


def _format_si(amount: float, unit: str, *, exact: bool = False) -> str:
    if amount == 0.0 or not math.isfinite(amount):
        return f"{amount:g} {unit}"
    for prefix, factor in (("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9)):
        if abs(amount) >= factor:
            return f"{_digits(amount / factor, exact=exact)} {prefix}{unit}"
    return f"{amount:.3g} {unit}"


_SI_PREFIXES = (
    ("T", 1e12),
    ("G", 1e9),
    ("M", 1e6),
    ("k", 1e3),
    ("", 1.0),
    ("m", 1e-3),
    ("µ", 1e-6),
    ("n", 1e-9),
)


def format_quantity(amount: float, unit: str, *, digits: int) -> str:
    """``amount`` rounded to ``digits`` significant digits, with an SI prefix, e.g. ``"15 GFLOP/s"``."""
    rounded = float(f"{amount:.{digits - 1}e}")
    if rounded == 0.0:
        return f"0 {unit}"
    prefix, factor = next((p for p in _SI_PREFIXES if abs(rounded) >= p[1]), _SI_PREFIXES[-1])
    scaled = rounded / factor
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(scaled))))
    return f"{scaled:.{decimals}f} {prefix}{unit}"


def format_seconds(seconds: float, *, exact: bool = False) -> str:
    """``seconds`` with four significant digits, e.g. ``"12.35 ms"``; hours from ten thousand seconds on.

    ``exact``: with so many that a limit of what is read is the same limit, as far as the simulator tells.
    """
    if seconds >= 1e4:
        return f"{_digits(seconds / 3600, exact=exact)} h"
    return f"{_digits(seconds, exact=exact)} s" if seconds >= 1.0 else _format_si(seconds, "s", exact=exact)


def format_joules(joules: float, *, exact: bool = False) -> str:
    """``joules`` with an SI prefix and four significant digits, e.g. ``"3.2 mJ"``; ``exact``: as seconds."""
    return _format_si(joules, "J", exact=exact)


def format_count(number: float) -> str:
    """A count for people: three significant digits, large ones in words, e.g. ``"443 million"``."""
    if not math.isfinite(number):
        return "unlimited"
    for word, factor in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if number >= factor:
            return f"{number / factor:.3g} {word}" if number < 1e15 else f"{number:.2g}"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def scale_of(largest: float, unit: str) -> tuple[float, str]:
    """What to divide amounts up to ``largest`` by for an axis, and the unit with its prefix.

    Bytes get a binary prefix, all else an SI prefix, seconds none above one; e.g. ``(1048576, "MiB")``.
    """
    steps: tuple[tuple[str, float], ...]
    if unit == "B":
        steps = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
    else:
        prefixes = [(prefix, factor) for prefix, factor in _SI_PREFIXES if factor <= 1.0 or unit != "s"]
        steps = tuple((f"{prefix}{unit}", factor) for prefix, factor in prefixes)
    name, factor = next((step for step in steps if largest >= step[1]), steps[-1])
    return (1.0, unit) if largest <= 0 else (factor, name)


def format_share(share: float) -> str:
    """A fraction as per cent with three significant digits, e.g. ``"0.392 %"``; never with an exponent."""
    per_cent = 100 * share
    if 0.0 < abs(per_cent) < LEAST_PER_CENT:
        return f"< {LEAST_PER_CENT:g} %" if share > 0.0 else f"> -{LEAST_PER_CENT:g} %"
    return f"{per_cent:.0f} %" if abs(per_cent) >= 100 else f"{per_cent:.3g} %"


IN_ORDER = "in the listed order"
"""Of first runs: the schedules that bounds and proofs are about; in another order one may take less."""

NO_GAP = {
    "proven": f"proven: no valid plan {IN_ORDER} takes less",
    "closed": f"no valid plan {IN_ORDER} takes less, by the bound of a single solver",
}
"""What the words of `format_gap` mean."""


def format_gap(gap: float, *, optimal: bool, confirmed: bool) -> str:
    """``gap`` as a share, or a word where what is left of an optimal plan's gap is rounding.

    The word is ``"proven"`` if exact arithmetic or a second engine stands behind the bound (``confirmed``),
    else ``"closed"``.
    """
    if not optimal or gap > 1e-6:
        return format_share(gap)
    return "proven" if confirmed else "closed"


def format_part(share: float) -> str:
    """A part of something that may be many times as large, e.g. ``"8.61 %"`` or ``"26 times"``."""
    return format_share(share) if share < 10.0 else f"{format_count(share)} times"


def format_more(share: float) -> str:
    """By how much one amount is above another, e.g. ``"3.45 % more"`` or ``"13.4 times as much"``."""
    if share >= 1.0:
        return f"{format_count(1.0 + share)} times as much"
    return f"{format_share(abs(share))} {'less' if share < 0.0 else 'more'}"


def format_above(share: float, what: str) -> str:
    """The same with what it is above, e.g. ``"8.61 % above the least"``, ``"13.4 times the least"``."""
    if share >= 1.0:
        return f"{format_count(1.0 + share)} times {what}"
    return f"{format_share(share)} above {what}"


def options_of(
    where: str, name: str, written: str, known: Collection[str], error: type[InputError] = InputError
) -> Iterator[tuple[str, str]]:
    """Each option of ``NAME:option=value,...`` with its value, which is empty where none is written.

    So are losses, optimizers and schedules of learning rates written.

    Args:
        where: what a message begins with, such as ``loss 'mse:dim=1'``.
        name: what has the options.
        written: what stands behind the colon.
        known: the options that ``name`` has.
        error: that is raised.

    Raises:
        InputError: an option is not ``known``, or is given twice.
    """
    seen = set[str]()
    for item in written.split(","):
        option, _, value = item.partition("=")
        if option not in known:
            has = f"the options of {name} are: {', '.join(known)}" if known else f"{name} has no options"
            raise error(f"{where}: {option!r} is not an option; {has}")
        if option in seen:
            raise error(f"{where} gives {option} twice")
        seen.add(option)
        yield option, value
