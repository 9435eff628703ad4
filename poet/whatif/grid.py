"""The axes of a sweep, from text as people write it.

``64MiB,128MiB`` is a list, ``64MiB..512MiB`` a range of `DEFAULT_COUNT` values and
``64MiB..512MiB:8`` one of eight: sizes in equal ratios, deadlines and counts in equal steps. The
words ``min`` and ``keep`` stand for the least RAM of any schedule and for what plain training needs, or
for all the RAM that the device has where that is less.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from poet.errors import InputError
from poet.ir.micro import MicroBatches, micro_batches
from poet.util.units import parse_bytes, parse_factor, parse_joules, parse_seconds
from poet.whatif.question import PERIODS, EnergyBudget

DEFAULT_COUNT = 5
MOST_VALUES = 1000
MOST_DIGITS = 18
"""Of a whole number; more do not fit into 64 bits."""
NO_DEADLINE = "none"
WORDS = ("min", "keep")

Binding = tuple[tuple[str, int], ...]


def ram_budgets(text: str, *, least_bytes: int, keep_bytes: int) -> tuple[int, ...]:
    """Budgets in bytes, ascending, of a setting whose schedules need ``least_bytes`` or more.

    Raises:
        InputError: ``text`` holds no sizes.
    """
    words = dict(zip(WORDS, (least_bytes, max(keep_bytes, least_bytes)), strict=True))

    def size(part: str) -> float:
        return float(words[part] if part in words else parse_bytes(part))

    return tuple(sorted({round(value) for value in _values(text, size, _in_ratio, "--ram")}))


def check_ram(text: str) -> None:
    """Read ``text`` as `ram_budgets` will.

    Raises:
        InputError: it holds no sizes.
    """
    ram_budgets(text, least_bytes=1, keep_bytes=2)


def largest_ram(text: str) -> int | None:
    """The largest budget in ``text``; ``None``: it is one of the words ``min`` and ``keep``."""
    found = [part for item in _split(text, "--ram") for part in item.partition(":")[0].split("..")]
    sizes = [parse_bytes(part) for part in found if part not in WORDS]
    return None if len(sizes) < len(found) else max(sizes)


def deadlines(text: str | None) -> tuple[str | None, ...]:
    """Deadlines as `poet.devices.costs.deadline_seconds` reads them; ``None``: no deadline.

    Raises:
        InputError: ``text`` holds no deadlines, or a range mixes factors and times.
    """
    if text is None:
        return (None,)
    found: list[str | None] = []
    for part in _split(text, "--deadline"):
        if part == NO_DEADLINE:
            found.append(None)
        elif ".." in part:
            found += _deadline_range(part)
        else:
            _deadline(part)
            found.append(part)
    return tuple(dict.fromkeys(found))


def _deadline_range(part: str) -> list[str | None]:
    ends, count = _range(part, "--deadline")
    kinds = {parse_factor(end) is None for end in ends}
    if len(kinds) == 2:
        raise InputError(f"--deadline {part!r} mixes a factor and a time; write for example 1.0x..2.0x")
    unit = "s" if kinds.pop() else "x"
    first, last = _ordered(part, "--deadline", ends, _deadline)
    return [f"{value:.6g}{unit}" for value in _in_steps(first, last, count)]


def _deadline(text: str) -> float:
    factor = parse_factor(text)
    try:
        value = parse_seconds(text) if factor is None else factor
    except InputError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(f"{text!r} is not a deadline; write for example 1.3x or 20ms")
    return value


def counts(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers from 1 up, e.g. of ``1,4,16`` or ``1..9:3``.

    Raises:
        InputError: ``text`` holds something else.
    """

    def count(part: str) -> float:
        if not part.isdecimal() or len(part) > MOST_DIGITS or int(part) < 1:
            raise InputError(f"{option} {text!r}: {part!r} is not a whole number from 1 up")
        return float(part)

    return tuple(dict.fromkeys(round(value) for value in _values(text, count, _in_steps, option)))


def micro(text: str) -> tuple[MicroBatches | str | None, ...]:
    """In how many pieces a batch is trained, of ``1,4,4:sum`` or ``auto``; see `poet.ir.micro.micro_batches`.

    Raises:
        InputError: ``text`` holds something else.
    """
    return tuple(dict.fromkeys(micro_batches(part) for part in _split(text, "--micro")))


def bindings(batch: str | None, bind: Sequence[str], batch_name: Callable[[], str]) -> tuple[Binding, ...]:
    """Every combination of the sizes in ``--batch 1,4`` and ``--bind L=64,128``.

    ``batch_name`` gives the batch dimension's name; it is asked only where there is a ``batch``.

    Raises:
        InputError: a text is not NAME=SIZES.
    """
    axes: dict[str, tuple[int, ...]] = {}
    if batch is not None:
        axes[batch_name()] = counts(batch, "--batch")
    for item in bind:
        name, _, sizes = item.partition("=")
        if not name or not sizes:
            raise InputError(f"--bind {item!r} is not NAME=SIZES; write for example --bind L=64,128")
        if name in axes:
            raise InputError(f"the dimension {name!r} is given twice")
        axes[name] = counts(sizes, f"--bind {name}")
    combinations = itertools.product(*axes.values())
    return tuple(tuple(zip(axes, sizes, strict=True)) for sizes in combinations)


def words(text: str, option: str) -> tuple[str, ...]:
    """The parts of a list such as ``rpi4b,nrf52840``, each once.

    Raises:
        InputError: there is none.
    """
    return tuple(dict.fromkeys(_split(text, option)))


BATCH, RESOLUTION = "batch", "resolution"


@dataclass(frozen=True, slots=True)
class Axis:
    """What is to grow: its name for people, and the step that sizes are multiples of."""

    name: str
    step: int

    def text(self, size: int) -> str:
        """``size`` for people, of each dimension that grows."""
        if self.name == RESOLUTION:
            return f"{size} x {size}"
        return f"{' = '.join(self.name.split('+'))} = {size}" if "+" in self.name else f"{size}"


def read_axis(text: str) -> Axis:
    """The axis in ``batch``, ``sequence:8`` or ``H+W:32``; 32 is the step of a resolution without one.

    Raises:
        InputError: the step is not a whole number from 1 up.
    """
    name, colon, step = text.partition(":")
    if not name or (colon and (not step.isdecimal() or int(step) < 1)):
        raise InputError(f"--largest {text!r} is not NAME or NAME:STEP; write batch or resolution:32")
    return Axis(name, int(step) if colon else 32 if name == RESOLUTION else 1)


def energy_budget(text: str) -> EnergyBudget:
    """The budget in ``2J/step``, ``50J/session`` or ``500J/day``.

    Raises:
        InputError: ``text`` is none of these.
    """
    amount, _, period = text.partition("/")
    if period not in PERIODS:
        raise InputError(f"{text!r} is not an energy budget; write for example 2J/step or 500J/day")
    return EnergyBudget(parse_joules(amount), period)


def battery_joules(text: str) -> float:
    """Joules of a battery given as ``3000mAh@3.7V``, or as an energy such as ``11Wh``.

    Raises:
        InputError: ``text`` is neither.
    """
    charge, at, voltage = text.partition("@")
    try:
        if not at:
            return _above_zero(parse_joules(text), text)
        amp_hours = _number(charge, {"mAh": 1e-3, "Ah": 1.0})
        return amp_hours * 3600.0 * _number(voltage, {"V": 1.0})
    except InputError:
        raise InputError(f"{text!r} is not a battery; write for example 3000mAh@3.7V or 11Wh") from None


def grams_per_joule(text: str) -> float:
    """Grams of carbon dioxide per joule, of an intensity such as ``300g/kWh``.

    Raises:
        InputError: ``text`` is not one.
    """
    try:
        return _number(text, {"g/kWh": 1.0, "kg/kWh": 1e3}) / 3.6e6
    except InputError:
        raise InputError(f"{text!r} is not a grid intensity; write for example 300g/kWh") from None


def _above_zero(amount: float, text: str) -> float:
    if not 0 < amount < math.inf:
        raise InputError(f"{text!r} is not above 0")
    return amount


def _number(text: str, factors: Mapping[str, float]) -> float:
    """The positive number in ``text``, which ends in one of the units ``factors``."""
    for unit, factor in sorted(factors.items(), key=lambda item: -len(item[0])):
        if text.strip().endswith(unit):
            try:
                value = float(text.strip()[: -len(unit)]) * factor
            except ValueError:
                break
            if 0 < value < math.inf:
                return value
    raise InputError(f"{text!r} is not a number with one of the units {', '.join(factors)}")


# --- lists and ranges -------------------------------------------------------------------------


def _split(text: str, option: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InputError(f"{option} {text!r}: an empty entry in the list")
    return parts


def _range(part: str, option: str) -> tuple[tuple[str, str], int]:
    low, _, rest = part.partition("..")
    high, colon, count = rest.partition(":")
    if (
        not low
        or not high
        or (
            colon and not (count.isdecimal() and len(count) <= MOST_DIGITS and 2 <= int(count) <= MOST_VALUES)
        )
    ):
        raise InputError(f"{option} {part!r} is not a range; write LOW..HIGH, or LOW..HIGH:8 for 8 of them")
    return (low.strip(), high.strip()), int(count) if colon else DEFAULT_COUNT


def _ordered(
    part: str, option: str, ends: tuple[str, str], value_of: Callable[[str], float]
) -> tuple[float, float]:
    """The ends of a range; ``min`` and ``keep`` may lie either way, as they depend on the setting."""
    low, high = (value_of(end) for end in ends)
    if low > high and not {*ends} & {*WORDS}:
        raise InputError(f"{option} {part!r} begins above its end; write {ends[1]}..{ends[0]}")
    return low, high


def _values(
    text: str,
    value_of: Callable[[str], float],
    spread: Callable[[float, float, int], list[float]],
    option: str,
) -> list[float]:
    found: list[float] = []
    for part in _split(text, option):
        if ".." in part:
            (low, high), count = _range(part, option)
            found += spread(*_ordered(part, option, (low, high), value_of), count)
        else:
            found.append(value_of(part))
    return found


def _in_steps(low: float, high: float, count: int) -> list[float]:
    return [low + (high - low) * index / (count - 1) for index in range(count)]


def _in_ratio(low: float, high: float, count: int) -> list[float]:
    if low <= 0.0:
        return _in_steps(low, high, count)
    ratio = high / low
    return [low, *(low * ratio ** (index / (count - 1)) for index in range(1, count - 1)), high]
