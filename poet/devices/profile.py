"""What is known about a device, figure by figure: the records behind a hardware profile.

Every figure says what kind of knowledge it is, where it comes from and how far it may be off; its
unit is the end of its name. `poet.devices.load` reads the files that hold these records.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from poet.brief import shortened, told
from poet.files.reading import LARGEST_AMOUNT, LARGEST_WHOLE, LEAST_AMOUNT

_POSITIVE = frozenset(
    {
        "flops_per_second",
        "bandwidth_bytes_per_second",
        "bus_bytes_per_second",
        "cores",
        "clock_hertz",
        "fp32_lanes",
        "convolution_block_channels",
        "page_bytes",
        "block_bytes",
        "alignment_bytes",
        "ram_bytes",
        "capacity_bytes",
    }
)
"""Figures that divide, or without which there would be nothing."""

Kind = Literal["measured", "datasheet", "vendor-doc", "standard", "published", "derived", "assumed"]
"""Where a figure comes from: a measurement, a maker's data sheet or other document, a standard, a
publication's own model, a calculation from such figures, or a guess that says so."""

PRIOR_FACTOR: dict[Kind, float] = {
    "measured": 1.2, "datasheet": 1.2, "vendor-doc": 1.2, "standard": 1.2,
    "published": 2.0, "derived": 2.0, "assumed": 5.0,
}  # fmt: skip
"""Per kind, the factor by which a figure without a stated uncertainty may be off either way. The
spread between honest laboratories on one chip is 14 %; between kernel libraries it is far more."""

UNITS = {
    "flops_per_second": "FLOP/s", "bytes_per_second": "B/s", "seconds": "s", "watts": "W",
    "joules": "J", "bytes": "B", "cycles": "cycles", "hertz": "Hz", "cores": "cores", "lanes": "lanes",
    "channels": "channels",
    "ratio": "times",
}  # fmt: skip
"""Endings of figure names and the unit that each stands for."""


class OpClass(enum.Enum):
    """What limits an op. A device has one throughput per class; they lie up to 100 times apart."""

    MATMUL = "matmul"  # matrix products, attention, recurrent layers
    CONVOLUTION = "convolution"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"  # sums, norms, pooling
    TRANSCENDENTAL = "transcendental"  # exp, log, tanh ...: one evaluation counts as one FLOP
    MOVEMENT = "movement"  # copies, concatenation, gathers: one element counts as one FLOP
    CONVOLUTION_BACKWARD = "convolution_backward"  # gradients of a convolution
    DEPTHWISE = "depthwise"  # convolution of each channel by itself
    DEPTHWISE_BACKWARD = "depthwise_backward"
    GROUPED = "grouped"  # convolution of groups of channels, and its gradients
    POINTWISE = "pointwise"  # convolution of single pixels, across all channels
    POINTWISE_BACKWARD = "pointwise_backward"
    POOLING = "pooling"  # maxima and means of windows
    GELU = "gelu"  # and its gradient
    BATCH_NORM = "batch_norm"
    BATCH_NORM_BACKWARD = "batch_norm_backward"
    ADAPTIVE_UPDATE = "adaptive_update"  # Adam and its kin: several kernels for each parameter
    RANDOM = "random"  # numbers drawn from a generator
    TANH = "tanh"
    SHORT_ROWS = "short_rows"  # softmax and its logarithm of rows that fill no vector


PARENT: dict[OpClass, OpClass] = {
    OpClass.CONVOLUTION: OpClass.MATMUL,
    OpClass.CONVOLUTION_BACKWARD: OpClass.CONVOLUTION,
    OpClass.DEPTHWISE: OpClass.CONVOLUTION,
    OpClass.DEPTHWISE_BACKWARD: OpClass.DEPTHWISE,
    OpClass.GROUPED: OpClass.CONVOLUTION,
    OpClass.POINTWISE: OpClass.CONVOLUTION,
    OpClass.POINTWISE_BACKWARD: OpClass.CONVOLUTION_BACKWARD,
    OpClass.POOLING: OpClass.REDUCTION,
    OpClass.GELU: OpClass.TRANSCENDENTAL,
    OpClass.BATCH_NORM: OpClass.REDUCTION,
    OpClass.BATCH_NORM_BACKWARD: OpClass.BATCH_NORM,
    OpClass.ADAPTIVE_UPDATE: OpClass.ELEMENTWISE,
    OpClass.RANDOM: OpClass.ELEMENTWISE,
    OpClass.TANH: OpClass.TRANSCENDENTAL,
    OpClass.SHORT_ROWS: OpClass.TRANSCENDENTAL,
}
"""The class whose figures hold where a profile has none for a class: its kernels are often the same."""


def unit_of(field: str) -> str:
    """The unit that ends the name of a figure, e.g. ``"B/s"`` for ``bandwidth_bytes_per_second``."""
    return next(unit for ending, unit in UNITS.items() if field == ending or field.endswith("_" + ending))


# --- the records ------------------------------------------------------------------------------


class Record(BaseModel):
    """Frozen, strict, and without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Range = Annotated[
    tuple[float, float], BeforeValidator(lambda data: tuple(data) if isinstance(data, list) else data)
]


Words = Annotated[
    tuple[str, ...], BeforeValidator(lambda data: tuple(data) if isinstance(data, list) else data)
]


class Figure(Record):
    """One number and what is known about it.

    Attributes:
        value: in the unit that ends the figure's name.
        kind: see `Kind`.
        source: who says so, as text.
        locator: where in the source: page, table, row, commit, conditions.
        uncertainty: relative, 0 to 1 (0: exact by definition or by count).
        range: lowest and highest credible value, in place of ``uncertainty``.
        note: anything a reader should know.
    """

    value: float = Field(ge=0, le=LARGEST_AMOUNT)
    kind: Kind
    source: str = Field(min_length=1)
    locator: str | None = None
    uncertainty: float | None = Field(default=None, ge=0, lt=1)
    range: Range | None = None
    note: str | None = None

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.range is not None:
            if self.uncertainty is not None:
                raise ValueError("an uncertainty and a range; give one of them")
            if not 0 <= self.range[0] <= self.value <= self.range[1] <= LARGEST_AMOUNT:
                raise ValueError(f"the range {list(self.range)} does not contain the value {self.value:g}")
        for end in (self.value, *self.interval):
            if end > LARGEST_AMOUNT or 0 < end < LEAST_AMOUNT:
                raise ValueError(f"it may be {end:g}; expected 0, or {LEAST_AMOUNT:g} to {LARGEST_AMOUNT:g}")
        return self

    @property
    def interval(self) -> tuple[float, float]:
        """Lowest and highest credible value: stated, or the prior of the figure's kind."""
        if self.range is not None:
            return self.range
        if self.uncertainty is not None:
            return self.value * (1 - self.uncertainty), self.value * (1 + self.uncertainty)
        factor = PRIOR_FACTOR[self.kind]
        return self.value / factor, self.value * factor

    @property
    def stated(self) -> bool:
        """Whether the profile states the uncertainty, so that no prior stands in for it."""
        return self.range is not None or self.uncertainty is not None


class Count(Figure):
    """A figure that is a whole number."""

    value: int = Field(ge=0, le=LARGEST_WHOLE)


class Energy(Record):
    """How watts are to be read, and the idle power.

    Attributes:
        accounting: ``total``: every ``active_watts`` is what the rail draws while busy, idle power
            included, and the idle power of the whole step is charged. ``marginal``: every
            ``active_watts`` is what being busy adds, and idle power is not charged.
        rail: where the power is drawn, e.g. the chip's supply or the board's 5 V input.
        idle_watts: drawn by the rail while nothing runs.
    """

    accounting: Literal["marginal", "total"]
    rail: str
    idle_watts: Figure


class Chip(Record):
    """What the processor can do at most; no cost follows from it, but speeds are checked against it.

    Attributes:
        cores: that run an op together.
        clock_hertz: of the fastest core.
        fp32_lanes: fp32 numbers on which a core can begin an operation per cycle.
        fused_multiply_add: whether a multiplication and an addition are one operation.
        microcontroller: whether its addresses have 32 bits and its power is at most some watts.
    """

    cores: Count
    clock_hertz: Figure
    fp32_lanes: Count
    fused_multiply_add: bool
    microcontroller: bool = False

    @property
    def peak_flops_per_second(self) -> float:
        """No kernel is faster."""
        per_cycle = self.cores.value * self.fp32_lanes.value * (2 if self.fused_multiply_add else 1)
        return self.clock_hertz.value * per_cycle


class Memory(Record):
    """RAM. Without a bandwidth, data movement costs no time of its own.

    ``bus_bytes_per_second`` is what the wires to it carry at most; no cost follows from it.
    ``cache_bytes`` is the processor's last cache before it: what strips make block by block and a block of
    which fits there is not charged for a way to RAM. Without it everything is.
    """

    ram_bytes: Count
    alignment_bytes: Count
    bandwidth_bytes_per_second: Figure | None = None
    bus_bytes_per_second: Figure | None = None
    cache_bytes: Count | None = None


class Throughput(Record):
    """How fast a class of op runs, and its overhead and power where they are not those of all ops."""

    flops_per_second: Figure
    call_overhead_seconds: Figure | None = None
    active_watts: Figure | None = None


class Processor(Record):
    """The processor and its kernels.

    Each class of op has its throughput, or that of its `PARENT`, a convolution that of matrix products;
    ``all`` stands for those that have none of either. ``movement`` is limited by the memory's bandwidth
    alone where it has none. ``convolution_block_channels`` is on how many channels the kernels of dense
    convolutions work at once: the last block is filled up (`poet.devices.amounts`).
    """

    call_overhead_seconds: Figure
    active_watts: Figure
    convolution_block_channels: Count | None = None
    all: Throughput | None = None
    matmul: Throughput | None = None
    convolution: Throughput | None = None
    elementwise: Throughput | None = None
    reduction: Throughput | None = None
    transcendental: Throughput | None = None
    movement: Throughput | None = None
    convolution_backward: Throughput | None = None
    depthwise: Throughput | None = None
    depthwise_backward: Throughput | None = None
    grouped: Throughput | None = None
    pointwise: Throughput | None = None
    pointwise_backward: Throughput | None = None
    pooling: Throughput | None = None
    gelu: Throughput | None = None
    batch_norm: Throughput | None = None
    batch_norm_backward: Throughput | None = None
    adaptive_update: Throughput | None = None
    random: Throughput | None = None
    tanh: Throughput | None = None
    short_rows: Throughput | None = None

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        for op_class in OpClass:
            if self.throughput(op_class) is None and op_class is not OpClass.MOVEMENT:
                raise ValueError(f"no throughput for {op_class.value}; give compute.{op_class.value}")
        return self

    def throughput(self, op_class: OpClass) -> Throughput | None:
        """The record that holds for ``op_class``; ``None``: only the memory limits it."""
        looked_at: OpClass | None = op_class
        while looked_at is not None:
            own: Throughput | None = getattr(self, looked_at.value)
            if own is not None:
                return own
            looked_at = PARENT.get(looked_at)
        return self.all

    def overhead_seconds(self, op_class: OpClass) -> float:
        """What calling a kernel of ``op_class`` costs beyond its work."""
        throughput = self.throughput(op_class)
        own = throughput.call_overhead_seconds if throughput is not None else None
        return (own or self.call_overhead_seconds).value

    def watts(self, op_class: OpClass) -> float:
        """Drawn while an op of ``op_class`` runs, as the profile's accounting has it."""
        throughput = self.throughput(op_class)
        own = throughput.active_watts if throughput is not None else None
        return (own or self.active_watts).value


class Direction(Record):
    """Reading from or writing to storage: ``latency + bytes / bandwidth`` at ``active_watts``.

    ``worst_seconds`` is the longest single access that was seen; the mean, and so the cost, has it in it.
    """

    latency_seconds: Figure
    bandwidth_bytes_per_second: Figure
    active_watts: Figure
    worst_seconds: Figure | None = None


class Erase(Record):
    """What erasing one block costs before it can be written again."""

    block_bytes: Count
    block_seconds: Figure
    block_joules: Figure


class Storage(Record):
    """Where tensors are paged to.

    Attributes:
        title: what is attached and how.
        transfers: ``blocking``: compute waits; ``background``: both run at once.
        capacity_bytes: what pages may take; ``None``: no limit.
        page_bytes: transfers are whole pages.
        read, write: costs of a transfer.
        erase: charged with every page-out, for flash that the host itself must erase.
        endurance_cycles: erases that a block survives.
        wear_levelled: whether a controller spreads writes over all blocks, as that of a card does. Where
            nothing does, as on raw flash, the block that is erased most ends the storage's life.
        endurance_written_bytes: what may be written in a lifetime, as card makers state it.
        bus_bytes_per_second: what the wires to it carry at most; no cost follows from it.
        interface: that they speak (`poet.devices.part.Interface`): a part that is attached in place of this
            one is as fast as they are, if it speaks the same.
        host_watts: what the processor adds while it moves a tensor; in ``active_watts`` already.
    """

    title: str
    transfers: Literal["blocking", "background"]
    page_bytes: Count
    read: Direction
    write: Direction
    capacity_bytes: Count | None = None
    erase: Erase | None = None
    endurance_cycles: Count | None = None
    endurance_written_bytes: Figure | None = None
    wear_levelled: bool = False
    bus_bytes_per_second: Figure | None = None
    interface: Literal["sd", "emmc", "ufs", "pcie", "qspi", "spi"] | None = None
    host_watts: Figure | None = None

    @property
    def lifetime_written_bytes(self) -> float | None:
        """Bytes that can be written before every block is worn out; ``None``: not known."""
        if self.endurance_written_bytes is not None:
            return self.endurance_written_bytes.value
        if self.endurance_cycles is not None and self.capacity_bytes is not None:
            return float(self.endurance_cycles.value * self.capacity_bytes.value)
        return None

    @property
    def block_cycles(self) -> int | None:
        """Erases that each block survives; ``None``: not known, or writes are levelled."""
        is_levelled = self.wear_levelled or self.endurance_written_bytes is not None
        return None if is_levelled or self.endurance_cycles is None else int(self.endurance_cycles.value)

    @property
    def erase_block_bytes(self) -> int:
        """What is erased at once, as far as it is known; else 1."""
        return 1 if self.erase is None else int(self.erase.block_bytes.value)


class Kernels(Record):
    """Whose kernels run on the device, and so whose workspaces a plan counts.

    Without ``workspace_bytes`` each op's workspace is the one measured in PyTorch when the model
    was imported; with it, every op needs that much.

    ``speeds_of`` is the library, with its version, whose speeds stand in ``compute``, and ``threads`` with
    how many they were measured; the clock is the chip's.
    """

    name: str
    workspace_bytes: Count | None = None
    speeds_of: str | None = None
    threads: int | None = Field(default=None, ge=1, le=1024)


class Calibration(Record):
    """Which measurements a profile was fitted to, and how far it is off in steps that the fit has not seen.

    Attributes:
        measurements: digest of the raw file.
        date: of the measurements.
        torch: version.
        threads: of torch.
        ops: that were fitted to.
        steps: whole training steps, in no fit, that the errors are of.
        median_error, worst_error: of their predicted seconds, relative.
        worst_factor: by which the prediction of one of them is off at most, too long or too short.
        refused: classes of op that the cost model does not describe here; they cost what their parents do.
        busy: whether the machine was busy with other things meanwhile.
    """

    measurements: str
    date: str
    torch: str
    threads: int = Field(ge=1)
    ops: int = Field(ge=1)
    steps: int = Field(ge=0)
    median_error: float | None = Field(default=None, ge=0)
    worst_error: float | None = Field(default=None, ge=0)
    worst_factor: float | None = Field(default=None, ge=1)
    refused: str = ""
    busy: bool = False


class OpTimes(Record):
    """Measured times of single ops, which stand in place of the speeds of their classes.

    Attributes:
        models: whose training steps were measured.
        ratio: of true to stated seconds: 1, with how far all of them together may be off.
        seconds: of one run, by `poet.devices.op_rows.row_key`.
    """

    models: Words
    ratio: Figure
    seconds: dict[str, Annotated[float, Field(gt=0, le=LARGEST_AMOUNT)]]


class Whole(Record):
    """What a file says: figures that divide, or without which there is nothing, may not be 0."""

    @model_validator(mode="after")
    def _check_positive(self) -> Self:
        for path, figure in _figures(self, ()):
            is_computing = path[0] == "compute" and path[-1] == "active_watts"
            if (path[-1] in _POSITIVE or is_computing) and figure.interval[0] == 0:
                may_be = "is" if figure.value == 0 else "may be"
                raise ValueError(f"{'.'.join(path)} {may_be} 0; expected more")
        return self


class Profile(Whole):
    """A device, as far as planning needs to know it.

    ``variants`` are other sizes of RAM, clocks and power modes that are sold or can be set: no figure's range
    has them in it.
    """

    version: Literal[1]
    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    title: str
    notes: str = ""
    variants: Words = ()
    kernels: Kernels
    energy: Energy
    chip: Chip | None = None
    memory: Memory
    compute: Processor
    storage: Storage | None = None
    calibration: Calibration | None = None
    op_times: OpTimes | None = None

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        movement = self.compute.throughput(OpClass.MOVEMENT)
        if self.memory.bandwidth_bytes_per_second is None and movement is None:
            raise ValueError("nothing limits data movement; give memory.bandwidth_bytes_per_second")
        idle_watts = self.energy.idle_watts.value
        for path, figure in self.figures():
            name = ".".join(path)
            if path[-1] == "active_watts" and self.marginal_watts(figure.value) < 0:
                raise ValueError(
                    f"{name} is {figure.value:g}; total accounting includes energy.idle_watts in it, "
                    f"so expected {idle_watts:g} or more"
                )
        return self

    def __repr__(self) -> str:
        return told(self, f"{shortened(self.name)}: {shortened(self.title)}")

    __str__ = __repr__

    def figures(self) -> Iterator[tuple[tuple[str, ...], Figure]]:
        """Every figure of the profile with its path, in the order of the schema."""
        return _figures(self, ())

    def marginal_watts(self, watts: float) -> float:
        """What an ``active_watts`` of this profile adds to the idle power."""
        return watts - self.energy.idle_watts.value if self.energy.accounting == "total" else watts

    @property
    def charged_idle_watts(self) -> float:
        """Power charged for every second of the step: idle power, or none in marginal accounting."""
        return self.energy.idle_watts.value if self.energy.accounting == "total" else 0.0


def _figures(record: BaseModel, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Figure]]:
    for name in type(record).model_fields:
        value = getattr(record, name)
        if isinstance(value, Figure):
            yield (*path, name), value
        elif isinstance(value, BaseModel):
            yield from _figures(value, (*path, name))
