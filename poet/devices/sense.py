"""Whether the figures of a profile can all be true of one device; where not, which two contradict each other.

The limits are those of physics and of standards, or so wide that no device of the last and the next ten
years lies outside; figures that pass may still be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from poet.devices.figures import PARENT, OpClass
from poet.devices.profile import Chip, Direction, Profile, Storage
from poet.errors import ProfileError
from poet.util.units import format_bytes, format_quantity

MOST_NAMED = 8
"""Contradictions in one message."""

LEAST_JOULES_PER_FLOP, MOST_JOULES_PER_FLOP = 1e-13, 1e-5
"""An fp32 addition alone takes 0.9 pJ in 45 nm; software floating point on an old controller, 0.4 µJ."""

MOST_WATTS_PER_CORE = 100.0
LEAST_SHARE_OF_PEAK = 1e-6
"""An exponential on a core without floating-point unit reaches a two-thousandth."""

LONGEST_PASS_SECONDS = 600.0
"""Reading all RAM once; real memory takes seconds."""

MOST_OVERHEAD_CYCLES = 1e9
MOST_LANES = 1024
MOST_BLOCK_CHANNELS = 64
"""fp32 numbers of one core per cycle; matrix units have 256."""

MOST_THREADS_PER_CORE = 8

CONTROLLER_RAM_BYTES, MOST_CONTROLLER_WATTS = 1 << 32, 20.0

RUNNING_CLOCK_HERTZ, LEAST_IDLE_SHARE = 100e6, 1 / 12
"""A controller this fast waits for storage with its clocks running; Sleep mode then takes 0.22 (STM32F723)
to 0.64 (ESP32-S3) of what it takes busy, by data sheets. A slower one may stop its clocks (nRF52840)."""

FLOPS_PER_EVALUATION = 4
"""No kernel evaluates exp or tanh with fewer."""


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
    yield from _cores(profile)
    yield from _speeds(profile)
    yield from _memory(profile)
    yield from _power(profile)
    if profile.storage is not None:
        yield from storage_contradictions(profile, profile.storage)


# --- the processor ----------------------------------------------------------------------------


def _cores(profile: Profile) -> Iterator[str]:
    chip = profile.chip
    threads = profile.kernels.threads
    if chip is None:
        return
    if threads is not None and threads > MOST_THREADS_PER_CORE * chip.cores.value:
        yield f"kernels.threads is {threads}, but chip.cores is {chip.cores.value}"
    if chip.fp32_lanes.value > MOST_LANES:
        yield (
            f"chip.fp32_lanes is {chip.fp32_lanes.value} for each of chip.cores {chip.cores.value}, but no "
            f"core has more than {MOST_LANES}"
        )


def _peak_told(chip: Chip) -> str:
    fused = " x 2" if chip.fused_multiply_add else ""
    return (
        f"chip.cores {chip.cores.value} x chip.clock_hertz {shown(chip.clock_hertz.value, 'Hz')} x "
        f"chip.fp32_lanes {chip.fp32_lanes.value}{fused}"
    )


_EVALUATING = frozenset(
    op_class.value for op_class in OpClass if OpClass.TRANSCENDENTAL in (op_class, PARENT.get(op_class))
)


def _is_controller(profile: Profile) -> bool:
    return profile.chip is not None and profile.chip.microcontroller


def _speeds(profile: Profile) -> Iterator[str]:
    chip = profile.chip
    if chip is None:
        return
    peak = chip.peak_flops_per_second
    for name in ("all", *(op_class.value for op_class in OpClass)):
        own = getattr(profile.compute, name)
        if own is None:
            continue
        evaluates = name in _EVALUATING
        most = peak / FLOPS_PER_EVALUATION if evaluates else peak
        speed = own.flops_per_second.value
        figure = f"compute.{name}.flops_per_second is {shown(speed, 'FLOP/s')}"
        if speed > most:
            at_least = f", at {FLOPS_PER_EVALUATION} FLOPs for each evaluation," if evaluates else ""
            yield f"{figure}, but {_peak_told(chip)}{at_least} make {shown(most, 'FLOP/s')} at most"
        elif speed < LEAST_SHARE_OF_PEAK * peak:
            yield f"{figure}, less than a millionth of the {shown(peak, 'FLOP/s')} of {_peak_told(chip)}"
    block = profile.compute.convolution_block_channels
    if block is not None and block.value > MOST_BLOCK_CHANNELS:
        yield (
            f"compute.convolution_block_channels is {block.value}, but chip.fp32_lanes is "
            f"{chip.fp32_lanes.value}, and no kernel works on more than {MOST_BLOCK_CHANNELS} at once"
        )
    for path, stated in profile.figures():
        cycles = stated.value * chip.clock_hertz.value
        if path[-1] == "call_overhead_seconds" and cycles and not 1.0 <= cycles <= MOST_OVERHEAD_CYCLES:
            yield (
                f"{'.'.join(path)} is {shown(stated.value, 's')}, {cycles:.2g} cycles at chip.clock_hertz "
                f"{shown(chip.clock_hertz.value, 'Hz')}"
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
    if memory.alignment_bytes.value.bit_count() != 1:
        yield f"memory.alignment_bytes is {memory.alignment_bytes.value}, which is no power of two"
    workspace, cache = profile.kernels.workspace_bytes, memory.cache_bytes
    for name, part in (("kernels.workspace_bytes", workspace), ("memory.cache_bytes", cache)):
        if part is not None and part.value > ram_bytes:
            told = f"memory.ram_bytes is {format_bytes(ram_bytes)}"
            yield f"{name} is {format_bytes(part.value)}, but {told}"
    if _is_controller(profile) and ram_bytes > CONTROLLER_RAM_BYTES:
        yield (
            f"memory.ram_bytes is {format_bytes(ram_bytes)}, but by chip.microcontroller addresses of 32 "
            "bits reach 4 GiB"
        )
    if memory.bandwidth_bytes_per_second is None:
        return
    bandwidth = memory.bandwidth_bytes_per_second.value
    figure = f"memory.bandwidth_bytes_per_second is {shown(bandwidth, 'B/s')}"
    bus = memory.bus_bytes_per_second
    if bus is not None and bandwidth > bus.value:
        yield f"{figure}, but memory.bus_bytes_per_second carries {shown(bus.value, 'B/s')} at most"
    if ram_bytes > bandwidth * LONGEST_PASS_SECONDS:
        yield (
            f"{figure}, so that reading memory.ram_bytes, {format_bytes(ram_bytes)}, once takes "
            f"{shown(ram_bytes / bandwidth, 's')}"
        )


# --- power ------------------------------------------------------------------------------------


def _idle(profile: Profile) -> Iterator[str]:
    """A fast controller that would draw next to nothing while its clocks run."""
    chip = profile.chip
    if chip is None or not chip.microcontroller or profile.energy.accounting != "total":
        return
    idle, active = profile.energy.idle_watts, profile.compute.active_watts
    least = idle.interval[0]
    most = active.interval[1] - idle.value + least  # what being busy adds stays, as at a corner
    clock_hertz = chip.clock_hertz.value
    if clock_hertz >= RUNNING_CLOCK_HERTZ and least < LEAST_IDLE_SHARE * most:
        yield (
            f"energy.idle_watts may be as low as {shown(least, 'W')} where compute.active_watts is as high "
            f"as {shown(most, 'W')}, but a chip.microcontroller at chip.clock_hertz "
            f"{shown(clock_hertz, 'Hz')} keeps its clocks while it waits: expected "
            f"{shown(LEAST_IDLE_SHARE * most, 'W')} or more, by its data sheet with the core "
            "asleep and the clocks on"
        )


def _power(profile: Profile) -> Iterator[str]:
    idle_watts = profile.energy.idle_watts.value
    for path, figure in profile.figures():
        if path[-1] == "active_watts" and profile.energy.accounting == "total":
            low = figure.interval[0]
            if low < idle_watts:
                yield (
                    f"{'.'.join(path)} may be as low as {shown(low, 'W')}, but energy.idle_watts, "
                    f"{shown(idle_watts, 'W')}, is part of it: being busy would add less than nothing"
                )
    yield from _idle(profile)
    chip, watts = profile.chip, profile.compute.active_watts.value
    for path, figure in profile.figures():
        is_watts = path[-1].endswith("_watts")
        if _is_controller(profile) and is_watts and figure.value > MOST_CONTROLLER_WATTS:
            yield (
                f"{'.'.join(path)} is {shown(figure.value, 'W')}, but chip.microcontroller allows no more "
                f"than {MOST_CONTROLLER_WATTS:g} W"
            )
    if chip is not None and watts > MOST_WATTS_PER_CORE * chip.cores.value:
        yield (
            f"compute.active_watts is {shown(watts, 'W')}, but chip.cores is {chip.cores.value}: "
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
            f"compute.{name}.flops_per_second is {shown(own.flops_per_second.value, 'FLOP/s')}, but "
            f"compute.{name + '.' if has_own else ''}active_watts adds {shown(watts, 'W')}: "
            f"{shown(joules, 'J')} per FLOP, expected {shown(LEAST_JOULES_PER_FLOP, 'J')} to "
            f"{shown(MOST_JOULES_PER_FLOP, 'J')}"
        )


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
