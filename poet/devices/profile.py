"""What is known about a device: the records behind a hardware profile, which `poet.devices.load` reads.

Storage may be a part in a file of its own, which a user swaps: its times, currents and endurance are those of
one chip or card, whatever it is attached to. The device says what its bus carries at most and what its
processor adds while a tensor is moved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from poet.devices.figures import A_LIST_TOO, PARENT, Count, Figure, OpClass, Record, Whole, Words, figures_of
from poet.util.brief import shortened, told
from poet.util.reading import LARGEST_AMOUNT

NAME_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*$"


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
    convolutions work at once: the last block is filled up (`poet.devices.cost_table.Amounts`).
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


class OpTimes(Record):
    """Measured times of single ops, which stand in place of the speeds of their classes.

    Attributes:
        models: whose training steps were measured.
        ratio: of true to stated seconds: 1, with how far all of them together may be off.
        seconds: of one run, by `poet.devices.costs.row_key`.
    """

    models: Words
    ratio: Figure
    seconds: dict[str, Annotated[float, Field(gt=0, le=LARGEST_AMOUNT)]]


class HandedOver(Record):
    """What a unit takes for a tensor that an op of it reads and another unit made, or the other way round:
    ``latency + bytes / bandwidth``, at ``active_watts``, without which at those of its ``compute``.
    """

    latency_seconds: Figure
    bandwidth_bytes_per_second: Figure
    active_watts: Figure | None = None


class OpUnit(Record):
    """Something that runs ops beside ``compute``, the main unit, with which it shares the RAM.

    Attributes:
        name: for schedules and reports.
        compute: its speeds and power, as those of the main unit.
        threads: with how many torch runs its ops where a plan is replayed; ``None``: with as many as others.
        handing: of tensors between it and others; ``None``: costs nothing beyond what every op takes.
        op_times: measured here, of single ops.
    """

    name: str = Field(pattern=NAME_PATTERN)
    compute: Processor
    threads: int | None = Field(default=None, ge=1, le=1024)
    handing: HandedOver | None = None
    op_times: OpTimes | None = None


# --- storage ----------------------------------------------------------------------------------

Interface = Literal["sd", "emmc", "ufs", "pcie", "qspi", "spi"]
"""What a part is attached by."""


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


class Medium(Record):
    """A chip or card, whatever it is attached to.

    Attributes:
        page_bytes: transfers are whole pages.
        read, write: costs of a transfer.
        capacity_bytes: what pages may take; ``None``: no limit.
        erase: charged with every page-out, for flash that the host itself must erase.
        endurance_cycles: erases that a block survives.
        endurance_written_bytes: what may be written in a lifetime, as card makers state it.
        wear_levelled: whether a controller spreads writes over all blocks, as that of a card does. Where
            nothing does, as on raw flash, the block that is erased most ends the storage's life.
    """

    page_bytes: Count
    read: Direction
    write: Direction
    capacity_bytes: Count | None = None
    erase: Erase | None = None
    endurance_cycles: Count | None = None
    endurance_written_bytes: Figure | None = None
    wear_levelled: bool = False


class Attachment(Record):
    """How storage is attached to a device.

    Attributes:
        transfers: ``blocking``: compute waits; ``background``: both run at once.
        interface: that the wires speak: a part attached in place of this one is as fast as they are, if it
            speaks the same.
        bus_bytes_per_second: what they carry at most; no cost follows from it.
        host_watts: what the processor adds while it moves a tensor; ``None``: no more than idle. It is among
            the ``active_watts`` of a `Storage`.
    """

    transfers: Literal["blocking", "background"]
    interface: Interface | None = None
    bus_bytes_per_second: Figure | None = None
    host_watts: Figure | None = None


class Storage(Medium, Attachment):
    """Where tensors are paged to; ``title`` says what is attached and how."""

    title: str

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


class Part(Medium, Whole):
    """A chip or card by itself, in a file of its own.

    In ``read`` and ``write`` ``active_watts`` are what the part draws above its own idle power.
    """

    version: Literal[1]
    name: str = Field(pattern=NAME_PATTERN)
    title: str
    notes: str = ""
    interface: Interface


class Slot(Attachment, Whole):
    """The place of a device where a part is attached; ``part`` is the name of the one that comes with it."""

    part: str


# --- a device -----------------------------------------------------------------------------------


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


class Profile(Whole):
    """A device, as far as planning needs to know it.

    ``units`` run ops beside ``compute``; idle power is that of all of them together.
    ``variants`` are other sizes of RAM, clocks and power modes that are sold or can be set: no figure's range
    has them in it.
    """

    version: Literal[1]
    name: str = Field(pattern=NAME_PATTERN)
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
    units: Annotated[tuple[OpUnit, ...], A_LIST_TOO] = Field(default=(), max_length=16)

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        movement = self.compute.throughput(OpClass.MOVEMENT)
        if self.memory.bandwidth_bytes_per_second is None and movement is None:
            raise ValueError("nothing limits data movement; give memory.bandwidth_bytes_per_second")
        if len({unit.name for unit in self.units}) < len(self.units):
            raise ValueError("two units have the same name")
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
        return figures_of(self, ())

    def marginal_watts(self, watts: float) -> float:
        """What an ``active_watts`` of this profile adds to the idle power."""
        return watts - self.energy.idle_watts.value if self.energy.accounting == "total" else watts

    def on(self, unit: OpUnit | None) -> Profile:
        """A device with ``unit`` alone; ``None``: with the main one."""
        own = {} if unit is None else {"compute": unit.compute, "op_times": unit.op_times}
        return self.model_copy(update={**own, "units": ()})

    @property
    def charged_idle_watts(self) -> float:
        """Power charged for every second of the step: idle power, or none in marginal accounting."""
        return self.energy.idle_watts.value if self.energy.accounting == "total" else 0.0
