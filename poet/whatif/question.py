"""The question of a sweep: the grid, and the use that the answers are about."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from poet.errors import InputError
from poet.problem.solution import SolveOptions

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
        ram: budgets as asked, e.g. ``64MiB..512MiB:8`` or ``min..keep``; see `poet.whatif.grid`.
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
    bindings: tuple[tuple[tuple[str, int], ...], ...] = ((),)
    optimizers: tuple[str, ...] = ("sgd",)
    micro: tuple[str, ...] = ("1",)
    train: tuple[str, ...] = ("*",)
    loss: str = "cross-entropy"
    recompute: bool = True
    paging: bool = True
    duty: Duty = field(default_factory=Duty)
    data: DataSupply | None = None
    options: SolveOptions = field(default_factory=lambda: SolveOptions(time_limit_seconds=SECONDS_PER_POINT))
