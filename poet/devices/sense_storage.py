"""Whether the figures of a storage can all be true beside each other and beside its device's.

Limits are those of standards, or so wide that no part lies outside; see `poet.devices.sense`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

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

LEAST_READ_BYTES_PER_SECOND = (
    (r"\bNVMe\b", "an NVMe drive", 10e6),
    (r"\bUFS\b", "UFS", 10e6),
    (r"\beMMC\b", "eMMC", 1e6),
)
"""What the words of a storage's title move at least: a tenth of the slowest that is sold, or less."""

MOST_REWRITES = 1e8
"""Of the whole capacity in a lifetime: no flash survives it."""

CARD_BLOCK_BYTES = 4096


MOST_NOR_WRITE_BYTES_PER_SECOND = 20e6
"""Pages of 256 bytes take a tenth of a millisecond and more to program."""

INTERFACES = (
    (r"\b(micro)?SD\b", "an SD card", ("sd",)),
    (r"\beMMC\b", "eMMC", ("emmc",)),
    (r"\bUFS\b", "UFS", ("ufs",)),
    (r"\bNVMe\b", "NVMe", ("pcie",)),
    (r"\bNOR\b", "NOR flash", ("qspi", "spi")),
    (r"\bPSRAM\b", "PSRAM", ("qspi", "spi")),
)
"""What the words of a storage's title speak; the first that is found holds."""

LEAST_SECTOR_BYTES = 512
"""Of cards and drives, by the standards of SD, eMMC, UFS and NVMe: no smaller transfer can be asked for."""

_SECTORED = ("sd", "emmc", "ufs", "pcie")

_SIZE = re.compile(r"\b(\d{1,4}) (GB|GiB|MB|MiB)\b")
_SIZE_BYTES = {"GB": 1e9, "GiB": float(1 << 30), "MB": 1e6, "MiB": float(1 << 20)}


@dataclass(frozen=True, slots=True)
class _CardClass:
    """An application performance class of SD cards: least 4 KiB accesses per second and B/s of writing."""

    reads_per_second: float
    writes_per_second: float
    write_bytes_per_second: float


CARD_CLASSES = {"A1": _CardClass(1500, 500, 10e6), "A2": _CardClass(4000, 2000, 10e6)}
"""SD Association, application performance classes, as quoted by ADMIN magazine 76/2023, table 1."""

BUS_LIMITS = (
    (r"\bSDR12\b", "SDR12", 12.5e6),
    (r"\bSDR25\b", "SDR25", 25e6),
    (r"\bDDR50\b", "DDR50", 50e6),
    (r"\bSDR50\b", "SDR50", 50e6),
    (r"\bSDR104\b", "SDR104", 104e6),
    (r"\bUHS-II\b", "UHS-II", 312e6),
    (r"\b(micro)?SD( card|\b)", "an SD card, SD Express at most", 985e6),
    (r"\beMMC\b", "eMMC, HS400 at most", 400e6),
    (r"\bUFS 2", "UFS 2, two lanes", 1.2e9),
    (r"\bUFS\b", "UFS", 5.8e9),
    (r"\bNVMe\b", "NVMe, four lanes of PCIe 5", 15.8e9),
    (r"\bNOR\b", "NOR flash, eight lanes at 200 MHz, both edges", 400e6),
)
"""What the words of a storage's title allow at most, in B/s; the first that is found holds."""


def storage_contradictions(profile: Profile, storage: Storage) -> Iterator[str]:
    """One sentence per pair of figures that cannot both be true."""
    yield from _sizes(profile, storage)
    yield from _parts(storage)
    limit = next(
        ((words, most) for pattern, words, most in BUS_LIMITS if re.search(pattern, storage.title)), None
    )
    for name, direction in (("read", storage.read), ("write", storage.write)):
        bandwidth = direction.bandwidth_bytes_per_second.value
        figure = f"storage.{name}.bandwidth_bytes_per_second is {shown(bandwidth, 'B/s')}"
        bus, memory = storage.bus_bytes_per_second, profile.memory.bandwidth_bytes_per_second
        if bus is not None and bandwidth > bus.value:
            yield f"{figure}, but storage.bus_bytes_per_second carries {shown(bus.value, 'B/s')} at most"
        elif limit is not None and bandwidth > limit[1]:
            yield (f"{figure}, but storage.title names {limit[0]}: no more than {shown(limit[1], 'B/s')}")
        if memory is not None and bandwidth > memory.value:
            yield (
                f"{figure}, but every byte goes through memory.bandwidth_bytes_per_second, "
                f"{shown(memory.value, 'B/s')}"
            )
        yield from _joules_per_byte(profile, name, direction)
        yield from _direction(profile, storage, name, direction)
    for name, promised in CARD_CLASSES.items():
        if re.search(rf"\b{name}\b", storage.title):
            yield from _card(storage, name, promised)


def _parts(storage: Storage) -> Iterator[str]:
    """What was taken from two kinds of storage."""
    kind = next(((told, spoken) for word, told, spoken in INTERFACES if re.search(word, storage.title)), None)
    if kind is not None and storage.interface is not None and storage.interface not in kind[1]:
        yield f"storage.interface is {storage.interface}, but storage.title names {kind[0]}"
    if storage.erase is not None and re.search(r"\bPSRAM\b", storage.title):
        yield "storage.erase says what erasing costs, but storage.title names PSRAM, which is never erased"
    size, capacity = _SIZE.search(storage.title), storage.capacity_bytes
    if size is not None and capacity is not None:
        most_bytes = 1.1 * float(size[1]) * _SIZE_BYTES[size[2]]
        if capacity.value > most_bytes:
            yield (
                f"storage.capacity_bytes is {format_bytes(capacity.value)}, but storage.title says {size[0]}"
            )


def _interfaces(storage: Storage) -> tuple[str, ...]:
    """Which the title's words speak; none if they say nothing of it."""
    return next((spoken for word, _, spoken in INTERFACES if re.search(word, storage.title)), ())


def _direction(profile: Profile, storage: Storage, name: str, direction: Direction) -> Iterator[str]:
    bandwidth = direction.bandwidth_bytes_per_second.value
    yield from _bounds(profile, storage, name, direction)
    if name == "write" and bandwidth > MOST_NOR_WRITE_BYTES_PER_SECOND and "NOR" in storage.title:
        yield (
            f"storage.write.bandwidth_bytes_per_second is {shown(bandwidth, 'B/s')}, but storage.title names "
            f"NOR flash, which programs {shown(MOST_NOR_WRITE_BYTES_PER_SECOND, 'B/s')} at most"
        )
    worst, latency_seconds = direction.worst_seconds, direction.latency_seconds.value
    if worst is not None and worst.value < 0.5 * latency_seconds:
        yield (
            f"storage.{name}.worst_seconds is {shown(worst.value, 's')}, but storage.{name}.latency_seconds "
            f"is {shown(latency_seconds, 's')}: the longest access seen would be shorter than the usual one"
        )


def _bounds(profile: Profile, storage: Storage, name: str, direction: Direction) -> Iterator[str]:
    """What is out of all proportion: too much power, too quick, too slow for what the title says."""
    watts = profile.marginal_watts(direction.active_watts.value)
    interfaces = (storage.interface,) if storage.interface is not None else _interfaces(storage)
    small = bool(interfaces) and all(spoken in _SMALL_PARTS for spoken in interfaces)
    most_watts = MOST_SMALL_PART_WATTS if small else MOST_TRANSFER_WATTS
    if watts > most_watts:
        yield (
            f"storage.{name}.active_watts adds {shown(watts, 'W')}, but storage.title is "
            f"{storage.title!r}: more than {most_watts:g} W for one part"
        )
    latency_seconds, chip = direction.latency_seconds.value, profile.chip
    if chip is not None and 0.0 < latency_seconds < 1.0 / chip.clock_hertz.value:
        yield (
            f"storage.{name}.latency_seconds is {shown(latency_seconds, 's')}, less than a cycle of "
            f"chip.clock_hertz, {shown(chip.clock_hertz.value, 'Hz')}"
        )
    bandwidth, bus = direction.bandwidth_bytes_per_second.value, storage.bus_bytes_per_second
    for pattern, told, least in LEAST_READ_BYTES_PER_SECOND:
        is_held_back = bus is not None and bus.value <= least
        if name == "read" and re.search(pattern, storage.title) and bandwidth < least and not is_held_back:
            yield (
                f"storage.read.bandwidth_bytes_per_second is {shown(bandwidth, 'B/s')}, but storage.title "
                f"names {told}: no less than {shown(least, 'B/s')}"
            )


def _sizes(profile: Profile, storage: Storage) -> Iterator[str]:
    page_bytes, ram_bytes = storage.page_bytes.value, profile.memory.ram_bytes.value
    page = f"storage.page_bytes is {format_bytes(page_bytes)}"
    if page_bytes > ram_bytes:
        yield f"{page}, but memory.ram_bytes is {format_bytes(ram_bytes)}: no page fits"
    whole, spare = divmod(32 * page_bytes, 33)
    if page_bytes.bit_count() != 1 and (spare or whole.bit_count() != 1):  # 264, 528, 1056 B: AT45 DataFlash
        yield f"{page}, which is no power of two"
    sectored = _sectored(storage)
    if sectored is not None and page_bytes < LEAST_SECTOR_BYTES:
        yield f"{page}, but {sectored}, whose sectors have {LEAST_SECTOR_BYTES} B or more"
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


def _sectored(storage: Storage) -> str | None:
    """What says that the storage moves sectors, its interface or its title; ``None``: nothing does.

    A model that counts single bytes, as published ones do, is of no interface.
    """
    if storage.interface is not None:
        return f"storage.interface is {storage.interface}" if storage.interface in _SECTORED else None
    for pattern, told, spoken in INTERFACES:
        if storage.page_bytes.value > 1 and re.search(pattern, storage.title):
            return f"storage.title names {told}" if spoken[0] in _SECTORED else None
    return None


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


def _card(storage: Storage, name: str, promised: _CardClass) -> Iterator[str]:
    bus = storage.bus_bytes_per_second
    if bus is not None and bus.value <= promised.write_bytes_per_second:
        return  # the promise is of the card; this bus is slower
    for access, direction, per_second in (
        ("read", storage.read, promised.reads_per_second),
        ("write", storage.write, promised.writes_per_second),
    ):
        bandwidth = direction.bandwidth_bytes_per_second.value
        reached = 1 / (direction.latency_seconds.value + CARD_BLOCK_BYTES / bandwidth)
        if reached < 0.98 * per_second:
            yield (
                f"storage.{access}.latency_seconds is {shown(direction.latency_seconds.value, 's')}, "
                f"{reached:.0f} accesses of 4 KiB a second, but storage.title says {name}, which promises "
                f"{per_second:g}"
            )
    write = storage.write.bandwidth_bytes_per_second.value
    if write < promised.write_bytes_per_second:
        yield (
            f"storage.write.bandwidth_bytes_per_second is {shown(write, 'B/s')}, but storage.title says "
            f"{name}, which promises {shown(promised.write_bytes_per_second, 'B/s')}"
        )


def shown(amount: float, unit: str) -> str:
    """An amount with its unit, as sentences have it."""
    if 0.0 < amount < 1e-9:
        return f"{amount:.3g} {unit}"
    return format_quantity(amount, unit, digits=3)
