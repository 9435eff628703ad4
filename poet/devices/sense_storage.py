"""Whether the figures of a storage can all be true beside each other and beside its device's.

Limits are those of standards, or so wide that no part lies outside; see `poet.devices.sense`.
"""

from __future__ import annotations

from collections.abc import Iterator

from poet.devices.profile import Direction, Profile, Storage
from poet.units import format_bytes, format_quantity

LEAST_JOULES_PER_BYTE, MOST_JOULES_PER_BYTE = 1e-11, 1e-4
"""Of a transfer of `TRANSFER_BYTES`: shipped devices need 9 to 730 nJ."""

TRANSFER_BYTES = 65536
MOST_ERASE_WATTS = 100.0
MOST_TRANSFER_WATTS = 100.0
"""Of one card, chip or drive with its host: a PCIe slot gives 75."""

MOST_SMALL_PART_WATTS = 30.0
"""Of what a board feeds by its pins, with its host: a microSD card may take 2.88 W, eMMC or UFS below 5."""

_SMALL_PARTS = ("sd", "emmc", "ufs", "qspi", "spi")

LEAST_READ_BYTES_PER_SECOND = {"pcie": 10e6, "ufs": 10e6, "emmc": 1e6}
"""By interface: a tenth of the slowest that is sold, or less."""

MOST_BYTES_PER_SECOND = {
    "sd": ("SD Express", 985e6),
    "emmc": ("HS400", 400e6),
    "ufs": ("UFS 4, two lanes", 5.8e9),
    "pcie": ("four lanes of PCIe 5", 15.8e9),
    "qspi": ("eight lanes at 200 MHz, both edges", 400e6),
    "spi": ("eight lanes at 200 MHz, both edges", 400e6),
}
"""By interface, its fastest form."""

MOST_REWRITES = 1e8
"""Of the whole capacity in a lifetime: no flash survives it."""

MOST_NOR_WRITE_BYTES_PER_SECOND = 20e6
"""Pages of 256 bytes take a tenth of a millisecond and more to program."""

LEAST_SECTOR_BYTES = 512
"""Of cards and drives, by the standards of SD, eMMC, UFS and NVMe: no smaller transfer can be asked for."""

_SECTORED = ("sd", "emmc", "ufs", "pcie")


def storage_contradictions(profile: Profile, storage: Storage) -> Iterator[str]:
    """One sentence per pair of figures that cannot both be true."""
    yield from _sizes(profile, storage)
    limit = None if storage.interface is None else MOST_BYTES_PER_SECOND[storage.interface]
    for name, direction in (("read", storage.read), ("write", storage.write)):
        bandwidth = direction.bandwidth_bytes_per_second.value
        figure = f"storage.{name}.bandwidth_bytes_per_second is {shown(bandwidth, 'B/s')}"
        bus, memory = storage.bus_bytes_per_second, profile.memory.bandwidth_bytes_per_second
        if bus is not None and bandwidth > bus.value:
            yield f"{figure}, but storage.bus_bytes_per_second carries {shown(bus.value, 'B/s')} at most"
        elif limit is not None and bandwidth > limit[1]:
            yield (
                f"{figure}, but storage.interface is {storage.interface}, {limit[0]} at most: no more than "
                f"{shown(limit[1], 'B/s')}"
            )
        if memory is not None and bandwidth > memory.value:
            yield (
                f"{figure}, but every byte goes through memory.bandwidth_bytes_per_second, "
                f"{shown(memory.value, 'B/s')}"
            )
        yield from _joules_per_byte(profile, name, direction)
        yield from _direction(profile, storage, name, direction)


def _direction(profile: Profile, storage: Storage, name: str, direction: Direction) -> Iterator[str]:
    bandwidth = direction.bandwidth_bytes_per_second.value
    yield from _bounds(profile, storage, name, direction)
    is_nor = storage.erase is not None and storage.interface in ("qspi", "spi")
    if name == "write" and bandwidth > MOST_NOR_WRITE_BYTES_PER_SECOND and is_nor:
        yield (
            f"storage.write.bandwidth_bytes_per_second is {shown(bandwidth, 'B/s')}, but storage.erase and "
            f"storage.interface {storage.interface} are of NOR flash, which programs "
            f"{shown(MOST_NOR_WRITE_BYTES_PER_SECOND, 'B/s')} at most"
        )
    worst, latency_seconds = direction.worst_seconds, direction.latency_seconds.value
    if worst is not None and worst.value < 0.5 * latency_seconds:
        yield (
            f"storage.{name}.worst_seconds is {shown(worst.value, 's')}, but storage.{name}.latency_seconds "
            f"is {shown(latency_seconds, 's')}: the longest access seen would be shorter than the usual one"
        )


def _bounds(profile: Profile, storage: Storage, name: str, direction: Direction) -> Iterator[str]:
    """What is out of all proportion: too much power, too quick, too slow for the interface."""
    watts = profile.marginal_watts(direction.active_watts.value)
    most_watts = MOST_SMALL_PART_WATTS if storage.interface in _SMALL_PARTS else MOST_TRANSFER_WATTS
    if watts > most_watts:
        yield (
            f"storage.{name}.active_watts adds {shown(watts, 'W')}, more than {most_watts:g} W for one part"
        )
    latency_seconds, chip = direction.latency_seconds.value, profile.chip
    if chip is not None and 0.0 < latency_seconds < 1.0 / chip.clock_hertz.value:
        yield (
            f"storage.{name}.latency_seconds is {shown(latency_seconds, 's')}, less than a cycle of "
            f"chip.clock_hertz, {shown(chip.clock_hertz.value, 'Hz')}"
        )
    bandwidth, bus = direction.bandwidth_bytes_per_second.value, storage.bus_bytes_per_second
    least = LEAST_READ_BYTES_PER_SECOND.get(storage.interface or "", 0.0)
    is_slow_bus = bus is not None and bus.value <= least
    if name == "read" and bandwidth < least and not is_slow_bus:
        yield (
            f"storage.read.bandwidth_bytes_per_second is {shown(bandwidth, 'B/s')}, but storage.interface is "
            f"{storage.interface}: no less than {shown(least, 'B/s')}"
        )


def _sizes(profile: Profile, storage: Storage) -> Iterator[str]:
    page_bytes, ram_bytes = storage.page_bytes.value, profile.memory.ram_bytes.value
    page = f"storage.page_bytes is {format_bytes(page_bytes)}"
    if page_bytes > ram_bytes:
        yield f"{page}, but memory.ram_bytes is {format_bytes(ram_bytes)}: no page fits"
    whole, spare = divmod(32 * page_bytes, 33)
    if page_bytes.bit_count() != 1 and (spare or whole.bit_count() != 1):  # 264, 528, 1056 B: AT45 DataFlash
        yield f"{page}, which is no power of two"
    if storage.interface in _SECTORED and page_bytes < LEAST_SECTOR_BYTES:
        yield (
            f"{page}, but storage.interface is {storage.interface}, whose sectors have {LEAST_SECTOR_BYTES} "
            "B or more"
        )
    capacity = storage.capacity_bytes
    if capacity is not None and page_bytes > capacity.value:
        yield f"{page}, but storage.capacity_bytes is {format_bytes(capacity.value)}"
    erase = storage.erase
    if erase is not None:
        if erase.block_bytes.value % page_bytes:
            yield (
                f"storage.erase.block_bytes is {format_bytes(erase.block_bytes.value)}, which is no number "
                f"of pages of storage.page_bytes, {format_bytes(page_bytes)}"
            )
        if erase.block_joules.value > MOST_ERASE_WATTS * erase.block_seconds.value:
            yield (
                f"storage.erase.block_joules is {shown(erase.block_joules.value, 'J')}, but "
                f"storage.erase.block_seconds is {shown(erase.block_seconds.value, 's')}: more than "
                f"{MOST_ERASE_WATTS:g} W while erasing"
            )
    lifetime = storage.lifetime_written_bytes
    if capacity is None or lifetime is None:
        return
    states = "endurance_written_bytes" if storage.endurance_written_bytes is not None else "endurance_cycles"
    if not 1 <= lifetime / capacity.value <= MOST_REWRITES:
        yield (
            f"storage.{states} lets storage.capacity_bytes, {format_bytes(capacity.value)}, be written "
            f"{lifetime / capacity.value:.2g} times; expected 1 to {MOST_REWRITES:.0e}"
        )


def _joules_per_byte(profile: Profile, name: str, direction: Direction) -> Iterator[str]:
    seconds = direction.latency_seconds.value + TRANSFER_BYTES / direction.bandwidth_bytes_per_second.value
    watts = profile.marginal_watts(direction.active_watts.value)
    joules = seconds * watts / TRANSFER_BYTES
    if joules == 0.0 or LEAST_JOULES_PER_BYTE <= joules <= MOST_JOULES_PER_BYTE:
        return
    yield (
        f"storage.{name}.active_watts adds {shown(watts, 'W')}, but by storage.{name}.latency_seconds and "
        f"bandwidth_bytes_per_second {format_bytes(TRANSFER_BYTES)} take {shown(seconds, 's')}: "
        f"{shown(joules, 'J')} per byte, expected {shown(LEAST_JOULES_PER_BYTE, 'J')} to "
        f"{shown(MOST_JOULES_PER_BYTE, 'J')}"
    )


def shown(amount: float, unit: str) -> str:
    """An amount with its unit, as sentences have it."""
    if 0.0 < amount < 1e-9:
        return f"{amount:.3g} {unit}"
    return format_quantity(amount, unit, digits=3)
