"""The question of a sweep: its axes, from text as people write it, and the use that answers are about.

``64MiB,128MiB`` is a list, ``64MiB..512MiB`` a range of `DEFAULT_COUNT` values and
``64MiB..512MiB:8`` one of eight: sizes in equal ratios, deadlines and counts in equal steps. The
words ``min`` and ``keep`` stand for the least RAM of any schedule and for what plain training needs, or
for all the RAM that the device has where that is less.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from poet.errors import InputError
from poet.ir.micro import MicroBatches, micro_batches
from poet.problem.solution import SolveOptions
from poet.util.units import parse_bytes, parse_factor, parse_joules, parse_seconds

DEFAULT_COUNT = 5
MOST_VALUES = 1000
MOST_DIGITS = 18
"""Of a whole number; more do not fit into 64 bits."""
NO_DEADLINE = "none"
WORDS = ("min", "keep")

Binding = tuple[tuple[str, int], ...]
"""Sizes given to dimensions, by name."""

SECONDS_PER_POINT = 5.0
"""Time limit of one point's search where none is given."""

PERIODS = ("step", "session", "day")


@dataclass(frozen=True, slots=True)
class EnergyBudget:
    """Joules that may be spent per ``step``, ``session`` or ``day``."""

    joules: float
    per: str

    def __post_init__(self) -> None:
        if self.per not in PERIODS:
            raise InputError(f"an energy budget is per {', '.join(PERIODS)}, not per {self.per!r}")
        if not 0 < self.joules < math.inf:
            raise InputError(f"an energy budget of {self.joules:g} J buys nothing; give more than 0")


@dataclass(frozen=True, slots=True)
class Duty:
    """How the device is used.

    Attributes:
        steps_per_session: training steps each time the device trains.
        sessions_per_day: how often it trains.
        battery_joules: of a full charge; ``None``: no battery is asked about.
        grid_grams_per_joule: of carbon dioxide; ``None``: not asked about.
        dataset_samples: of one epoch; ``None``: unknown.
        energy_budget: to stay within; ``None``: none.
    """

    steps_per_session: int = 100
    sessions_per_day: float = 1.0
    battery_joules: float | None = None
    grid_grams_per_joule: float | None = None
    dataset_samples: int | None = None
    energy_budget: EnergyBudget | None = None

    def __post_init__(self) -> None:
        if self.steps_per_session < 1:
            raise InputError(f"{self.steps_per_session} steps per session; expected 1 or more")
        for name in ("sessions_per_day", "battery_joules", "grid_grams_per_joule"):
            amount = getattr(self, name)
            if amount is not None and (not math.isfinite(amount) or amount <= 0):
                raise InputError(f"{name} is {amount}; expected a number above 0")


@dataclass(frozen=True, slots=True)
class DataSupply:
    """How input comes to the processor; seconds and bytes are of one sample.

    Attributes:
        fetch_seconds: of reading it from storage; ``None``: from ``bytes`` and the device's storage.
        prepare_seconds: of decoding and collating it.
        bytes: read.
        dataset_bytes: of one epoch, for what a cache buys.
        cache_bytes: of a data cache to judge; ``None``: none.
        host_fetch_seconds: as measured on this machine; ``None``: nothing was measured.
    """

    fetch_seconds: float | None = None
    prepare_seconds: float = 0.0
    bytes: int = 0
    dataset_bytes: int | None = None
    cache_bytes: int | None = None
    host_fetch_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("fetch_seconds", "prepare_seconds", "bytes", "dataset_bytes", "cache_bytes"):
            amount = getattr(self, name)
            if amount is not None and (not math.isfinite(amount) or amount < 0):
                raise InputError(f"{name} of the data is {amount}; expected a number from 0 up")

    @property
    def measured(self) -> bool:
        """Whether figures were measured on this machine rather than given."""
        return self.host_fetch_seconds is not None


@dataclass(frozen=True, slots=True)
class Question:
    """A sweep as it was asked for.

    Attributes:
        model: name of the model, problem or plan.
        command: the line that repeats the sweep; empty where it came from Python.
        devices: profiles, by name or file.
        ram: budgets as asked, e.g. ``64MiB..512MiB:8`` or ``min..keep``.
        deadlines: as asked, e.g. ``1.3x`` or ``20ms``; ``None``: no deadline.
        bindings: sizes of dynamic dimensions, one per variant of the model.
        optimizers: by name.
        micro: in how many pieces each batch is trained, as `poet.ir.micro` reads it.
        train: patterns of the trained parameters.
        loss: its name.
        recompute, paging: what plans may do.
        duty: how the device is used.
        data: how input comes to the processor; ``None``: not asked about.
        options: of every search.
    """

    model: str
    command: str
    devices: tuple[str, ...]
    ram: str
    deadlines: tuple[str | None, ...]
    bindings: tuple[Binding, ...] = ((),)
    optimizers: tuple[str, ...] = ("sgd",)
    micro: tuple[str, ...] = ("1",)
    train: tuple[str, ...] = ("*",)
    loss: str = "cross-entropy"
    recompute: bool = True
    paging: bool = True
    duty: Duty = field(default_factory=Duty)
    data: DataSupply | None = None
    options: SolveOptions = field(default_factory=lambda: SolveOptions(time_limit_seconds=SECONDS_PER_POINT))


# --- axes -------------------------------------------------------------------------------------


def ram_budgets(text: str, *, least_bytes: int, keep_bytes: int) -> tuple[int, ...]:
    """Budgets in bytes, ascending, of a setting whose schedules need ``least_bytes`` or more.

    Raises:
        InputError: ``text`` holds no sizes.
    """
    words = dict(zip(WORDS, (least_bytes, max(keep_bytes, least_bytes)), strict=True))

    def size(part: str) -> float:
        return float(words[part] if part in words else parse_bytes(part))

    return tuple(sorted({round(value) for value in _values(text, size, _in_ratio, "--ram")}))


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
    counted = count.isdecimal() and len(count) <= MOST_DIGITS and 2 <= int(count) <= MOST_VALUES
    if not low or not high or (colon and not counted):
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
