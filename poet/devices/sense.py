"""Whether the figures of a profile can all be true of one device; where not, which two contradict each other.

The limits are those of physics and of standards, or so wide that no device of the last and the next ten
years lies outside; figures that pass may still be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from poet.devices.profile import Chip, Direction, OpClass, Profile, Storage
from poet.errors import ProfileError
from poet.units import format_bytes, format_quantity

MOST_NAMED = 8
"""Contradictions in one message."""

LEAST_JOULES_PER_FLOP, MOST_JOULES_PER_FLOP = 1e-13, 1e-5
"""An fp32 addition alone takes 0.9 pJ in 45 nm; software floating point on an old controller, 0.4 µJ."""

LEAST_JOULES_PER_BYTE, MOST_JOULES_PER_BYTE = 1e-11, 1e-4
"""Of a transfer of `TRANSFER_BYTES`: shipped devices need 9 to 730 nJ."""

TRANSFER_BYTES = 65536
MOST_WATTS_PER_CORE = 200.0
LEAST_SHARE_OF_PEAK = 1e-6
"""An exponential on a core without floating-point unit reaches a two-thousandth."""

LONGEST_PASS_SECONDS = 600.0
"""Reading all RAM once; real memory takes seconds."""

MOST_OVERHEAD_CYCLES = 1e9
MOST_ERASE_WATTS = 100.0
MOST_REWRITES = 1e8
"""Of the whole capacity in a lifetime: no flash survives it."""

FLOPS_PER_EVALUATION = 4
"""No kernel evaluates exp or tanh with fewer."""

CARD_BLOCK_BYTES = 4096


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


def check_sense(profile: Profile, where: str) -> None:
    """Refuse a profile whose figures contradict each other.

    Raises:
        ProfileError: one line that names, for each contradiction, the two figures.
    """
    found = list(contradictions(profile))
    if not found:
        return
    if len(found) == 1:
        raise ProfileError(f"{where}: {found[0]}")
    named = "; ".join(f"({number}) {text}" for number, text in enumerate(found[:MOST_NAMED], 1))
    more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    raise ProfileError(f"{where}: {len(found)} contradictions: {named}{more}")


def contradictions(profile: Profile) -> Iterator[str]:
    """One sentence per pair of figures that cannot both be true."""
    yield from _title(profile)
    yield from _speeds(profile)
    yield from _memory(profile)
    yield from _power(profile)
    if profile.storage is not None:
        yield from _storage(profile, profile.storage)


# --- the processor ----------------------------------------------------------------------------


def _title(profile: Profile) -> Iterator[str]:
    chip = profile.chip
    if chip is None:
        return
    counts = [int(count) for count in re.findall(r"\b(\d{1,3})x ", profile.title)]
    if counts and sum(counts) != chip.cores.value:
        yield f"chip.cores is {chip.cores.value}, but the title names {sum(counts)}"
    clocks = [
        float(number) * (1e9 if prefix == "G" else 1e6)
        for number, prefix in re.findall(r"\b(\d{1,5}(?:\.\d{1,3})?) ([GM])Hz\b", profile.title)
    ]
    clock_hertz = chip.clock_hertz.value
    if clocks and not 0.9 < clock_hertz / max(clocks) < 1.1:
        yield f"chip.clock_hertz is {_told(clock_hertz, 'Hz')}, but the title says {_told(max(clocks), 'Hz')}"


def _peak_told(chip: Chip) -> str:
    fused = " x 2" if chip.fused_multiply_add else ""
    return (
        f"chip.cores {chip.cores.value} x chip.clock_hertz {_told(chip.clock_hertz.value, 'Hz')} x "
        f"chip.fp32_lanes {chip.fp32_lanes.value}{fused}"
    )


def _speeds(profile: Profile) -> Iterator[str]:
    chip = profile.chip
    if chip is None:
        return
    peak = chip.peak_flops_per_second
    for name in ("all", *(op_class.value for op_class in OpClass)):
        own = getattr(profile.compute, name)
        if own is None:
            continue
        evaluates = name in (OpClass.TRANSCENDENTAL.value, OpClass.GELU.value)
        most = peak / FLOPS_PER_EVALUATION if evaluates else peak
        speed = own.flops_per_second.value
        figure = f"compute.{name}.flops_per_second is {_told(speed, 'FLOP/s')}"
        if speed > most:
            at_least = f", at {FLOPS_PER_EVALUATION} FLOPs for each evaluation," if evaluates else ""
            yield f"{figure}, but {_peak_told(chip)}{at_least} make {_told(most, 'FLOP/s')} at most"
        elif speed < LEAST_SHARE_OF_PEAK * peak:
            yield f"{figure}, less than a millionth of the {_told(peak, 'FLOP/s')} of {_peak_told(chip)}"
    cycles = profile.compute.call_overhead_seconds.value * chip.clock_hertz.value
    if cycles != 0.0 and not 1.0 <= cycles <= MOST_OVERHEAD_CYCLES:
        yield (
            f"compute.call_overhead_seconds is {_told(profile.compute.call_overhead_seconds.value, 's')}, "
            f"{cycles:.2g} cycles at chip.clock_hertz {_told(chip.clock_hertz.value, 'Hz')}"
        )


# --- memory -----------------------------------------------------------------------------------


def _memory(profile: Profile) -> Iterator[str]:
    memory = profile.memory
    ram_bytes = memory.ram_bytes.value
    if memory.alignment_bytes.value > ram_bytes:
        yield (
            f"memory.alignment_bytes is {format_bytes(memory.alignment_bytes.value)}, but memory.ram_bytes "
            f"is {format_bytes(ram_bytes)}"
        )
    if memory.bandwidth_bytes_per_second is None:
        return
    bandwidth = memory.bandwidth_bytes_per_second.value
    figure = f"memory.bandwidth_bytes_per_second is {_told(bandwidth, 'B/s')}"
    bus = memory.bus_bytes_per_second
    if bus is not None and bandwidth > bus.value:
        yield f"{figure}, but memory.bus_bytes_per_second carries {_told(bus.value, 'B/s')} at most"
    if ram_bytes > bandwidth * LONGEST_PASS_SECONDS:
        yield (
            f"{figure}, so that reading memory.ram_bytes, {format_bytes(ram_bytes)}, once takes "
            f"{_told(ram_bytes / bandwidth, 's')}"
        )


# --- power ------------------------------------------------------------------------------------


def _power(profile: Profile) -> Iterator[str]:
    idle_watts = profile.energy.idle_watts.value
    for path, figure in profile.figures():
        if path[-1] == "active_watts" and profile.energy.accounting == "total":
            low = figure.interval[0]
            if low < idle_watts:
                yield (
                    f"{'.'.join(path)} may be as low as {_told(low, 'W')}, but energy.idle_watts, "
                    f"{_told(idle_watts, 'W')}, is part of it: being busy would add less than nothing"
                )
    chip, watts = profile.chip, profile.compute.active_watts.value
    if chip is not None and watts > MOST_WATTS_PER_CORE * chip.cores.value:
        yield (
            f"compute.active_watts is {_told(watts, 'W')}, but chip.cores is {chip.cores.value}: "
            f"more than {MOST_WATTS_PER_CORE:g} W for each"
        )
    for name in ("all", *(op_class.value for op_class in OpClass)):
        own = getattr(profile.compute, name)
        if own is None:
            continue
        has_own = own.active_watts is not None
        watts = profile.marginal_watts((own.active_watts or profile.compute.active_watts).value)
        joules = watts / own.flops_per_second.value
        if joules == 0.0 or LEAST_JOULES_PER_FLOP <= joules <= MOST_JOULES_PER_FLOP:
            continue
        yield (
            f"compute.{name}.flops_per_second is {_told(own.flops_per_second.value, 'FLOP/s')}, but "
            f"compute.{name + '.' if has_own else ''}active_watts adds {_told(watts, 'W')}: "
            f"{_told(joules, 'J')} per FLOP, expected {_told(LEAST_JOULES_PER_FLOP, 'J')} to "
            f"{_told(MOST_JOULES_PER_FLOP, 'J')}"
        )


# --- storage ----------------------------------------------------------------------------------


def _storage(profile: Profile, storage: Storage) -> Iterator[str]:
    yield from _sizes(profile, storage)
    limit = next(
        ((words, most) for pattern, words, most in BUS_LIMITS if re.search(pattern, storage.title)), None
    )
    for name, direction in (("read", storage.read), ("write", storage.write)):
        bandwidth = direction.bandwidth_bytes_per_second.value
        figure = f"storage.{name}.bandwidth_bytes_per_second is {_told(bandwidth, 'B/s')}"
        bus, memory = storage.bus_bytes_per_second, profile.memory.bandwidth_bytes_per_second
        if bus is not None and bandwidth > bus.value:
            yield f"{figure}, but storage.bus_bytes_per_second carries {_told(bus.value, 'B/s')} at most"
        elif limit is not None and bandwidth > limit[1]:
            yield (f"{figure}, but storage.title names {limit[0]}: no more than {_told(limit[1], 'B/s')}")
        if memory is not None and bandwidth > memory.value:
            yield (
                f"{figure}, but every byte goes through memory.bandwidth_bytes_per_second, "
                f"{_told(memory.value, 'B/s')}"
            )
        yield from _joules_per_byte(profile, name, direction)
    for name, promised in CARD_CLASSES.items():
        if re.search(rf"\b{name}\b", storage.title):
            yield from _card(storage, name, promised)


def _sizes(profile: Profile, storage: Storage) -> Iterator[str]:
    page_bytes, ram_bytes = storage.page_bytes.value, profile.memory.ram_bytes.value
    page = f"storage.page_bytes is {format_bytes(page_bytes)}"
    if page_bytes > ram_bytes:
        yield f"{page}, but memory.ram_bytes is {format_bytes(ram_bytes)}: no page fits"
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
                f"storage.erase.block_joules is {_told(erase.block_joules.value, 'J')}, but "
                f"storage.erase.block_seconds is {_told(erase.block_seconds.value, 's')}: more than "
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
        f"storage.{name}.active_watts adds {_told(watts, 'W')}, but by storage.{name}.latency_seconds and "
        f"bandwidth_bytes_per_second {format_bytes(TRANSFER_BYTES)} take {_told(seconds, 's')}: "
        f"{_told(joules, 'J')} per byte, expected {_told(LEAST_JOULES_PER_BYTE, 'J')} to "
        f"{_told(MOST_JOULES_PER_BYTE, 'J')}"
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
                f"storage.{access}.latency_seconds is {_told(direction.latency_seconds.value, 's')}, "
                f"{reached:.0f} accesses of 4 KiB a second, but storage.title says {name}, which promises "
                f"{per_second:g}"
            )
    write = storage.write.bandwidth_bytes_per_second.value
    if write < promised.write_bytes_per_second:
        yield (
            f"storage.write.bandwidth_bytes_per_second is {_told(write, 'B/s')}, but storage.title says "
            f"{name}, which promises {_told(promised.write_bytes_per_second, 'B/s')}"
        )


def _told(amount: float, unit: str) -> str:
    if 0.0 < amount < 1e-9:
        return f"{amount:.3g} {unit}"
    return format_quantity(amount, unit, digits=3)
