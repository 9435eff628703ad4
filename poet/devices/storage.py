"""Where tensors are paged to: the storage of a device, and parts in files of their own that a user swaps.

A part's times, currents and endurance are those of one chip or card, whatever it is attached to; the device
says what its bus carries at most and what its processor adds while a tensor is moved.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from poet.devices.figures import Count, Figure, Record, Whole

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
        interface: that they speak (`Interface`): a part that is attached in place of this
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
    interface: Interface | None = None
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


class Part(Whole):
    """A chip or card, by itself; fields as in `Storage`.

    In ``read`` and ``write`` ``active_watts`` are what the part draws above its own idle power.
    """

    version: Literal[1]
    name: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    title: str
    notes: str = ""
    interface: Interface
    page_bytes: Count
    read: Direction
    write: Direction
    capacity_bytes: Count | None = None
    erase: Erase | None = None
    endurance_cycles: Count | None = None
    endurance_written_bytes: Figure | None = None
    wear_levelled: bool = False


class Slot(Whole):
    """What a device says of the place where a part is attached.

    Attributes:
        part: the name of the part that comes with it.
        transfers: see `Storage`.
        interface: that the bus speaks.
        bus_bytes_per_second: what it carries at most; a part of another interface has a bus of its own.
        host_watts: what the processor adds while it moves a tensor; ``None``: no more than idle.
    """

    part: str
    transfers: Literal["blocking", "background"]
    interface: Interface | None = None
    bus_bytes_per_second: Figure | None = None
    host_watts: Figure | None = None
