"""Storage parts: files of their own that a device names and a user swaps.

A part's times, currents and endurance are those of one chip or card, whatever it is attached to; the device
says what its bus carries at most and what its processor adds while a tensor is moved.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from poet.devices.profile import Count, Direction, Erase, Figure, Profile, Storage, Whole

Interface = Literal["sd", "emmc", "ufs", "pcie", "qspi", "spi"]
"""What a part is attached by."""


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


def attached(profile: Profile, part: Part, slot: Slot | None) -> Profile:
    """``profile`` with ``part`` in place of its storage.

    Args:
        profile: of the device.
        part: to attach.
        slot: where; ``None``: the device says nothing about that but what its present storage shows.
    """
    old = profile.storage
    bus = None
    if slot is None and old is not None and old.interface == part.interface:
        bus = old.bus_bytes_per_second
    elif slot is not None and slot.interface == part.interface:
        bus = slot.bus_bytes_per_second
    host = slot.host_watts if slot is not None else old.host_watts if old is not None else None
    storage = Storage(
        title=part.title,
        transfers=slot.transfers if slot is not None else old.transfers if old is not None else "blocking",
        interface=part.interface,
        host_watts=host,
        page_bytes=part.page_bytes,
        read=_on_device(part.read, profile, bus, host),
        write=_on_device(part.write, profile, bus, host),
        capacity_bytes=part.capacity_bytes,
        erase=part.erase,
        endurance_cycles=part.endurance_cycles,
        endurance_written_bytes=part.endurance_written_bytes,
        wear_levelled=part.wear_levelled,
        bus_bytes_per_second=bus,
    )
    data = profile.model_dump()
    data["storage"] = storage.model_dump()
    return Profile.model_validate(data)


def _on_device(direction: Direction, profile: Profile, bus: Figure | None, host: Figure | None) -> Direction:
    """No faster than the bus, and with what the device draws beside the part."""
    idle_watts = profile.energy.idle_watts.value if profile.energy.accounting == "total" else 0.0
    host_watts, host_ends = (0.0, (0.0, 0.0)) if host is None else (host.value, host.interval)
    low, high = (
        idle_watts + own + beside
        for own, beside in zip(direction.active_watts.interval, host_ends, strict=True)
    )
    value = idle_watts + direction.active_watts.value + host_watts
    watts = direction.active_watts.model_copy(
        update={"value": value, "range": (low, high), "uncertainty": None}
    )
    return direction.model_copy(
        update={
            "active_watts": watts,
            "bandwidth_bytes_per_second": _capped(direction.bandwidth_bytes_per_second, bus),
        }
    )


def _capped(speed: Figure, bus: Figure | None) -> Figure:
    if bus is None or speed.interval[1] <= bus.interval[0]:
        return speed
    low, high = (min(end, most) for end, most in zip(speed.interval, bus.interval, strict=True))
    value = min(speed.value, bus.value)
    kind = speed.kind if value == speed.value else "derived"
    capped = {"value": value, "range": (low, high), "uncertainty": None, "kind": kind}
    said = f"no more than the {bus.value:g} B/s of the bus ({bus.source})"
    return speed.model_copy(update={**capped, "note": " ".join(filter(None, (speed.note, said)))})
