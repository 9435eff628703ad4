"""Whether the figures of a profile can all be true of one device; where not, which two contradict each other.

The limits are those of physics and of standards, or so wide that no device of the last and the next ten
years lies outside; figures that pass may still be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poet.devices.figures import PARENT, OpClass
from poet.devices.profile import Chip, Direction, Profile, Storage
from poet.errors import ProfileError
from poet.util.units import format_bytes, format_quantity

MOST_NAMED = 8
"""Contradictions, or faults, in one message."""

LEAST_JOULES_PER_FLOP, MOST_JOULES_PER_FLOP = 1e-13, 1e-5
"""An fp32 addition alone takes 0.9 pJ in 45 nm; software floating point on an old controller, 0.4 µJ."""

MOST_WATTS_PER_CORE = 100.0
LEAST_SHARE_OF_PEAK = 1e-6
"""An exponential on a core without floating-point unit reaches a two-thousandth."""

FLOPS_PER_EVALUATION = 4
"""No kernel evaluates exp or tanh with fewer."""

LONGEST_PASS_SECONDS = 600.0
"""Reading all RAM once; real memory takes seconds."""

MOST_OVERHEAD_CYCLES = 1e9
MOST_LANES, MOST_BLOCK_CHANNELS, MOST_THREADS_PER_CORE = 1024, 64, 8
"""fp32 numbers of one core per cycle: matrix units have 256."""

CONTROLLER_RAM_BYTES, MOST_CONTROLLER_WATTS = 1 << 32, 20.0

RUNNING_CLOCK_HERTZ, LEAST_IDLE_SHARE = 100e6, 1 / 12
"""A controller this fast waits for storage with its clocks running; Sleep mode then takes 0.22 (STM32F723)
to 0.64 (ESP32-S3) of what it takes busy, by data sheets. A slower one may stop its clocks (nRF52840)."""

LEAST_JOULES_PER_BYTE, MOST_JOULES_PER_BYTE, TRANSFER_BYTES = 1e-11, 1e-4, 65536
"""Of a transfer of so many bytes: shipped devices need 9 to 730 nJ."""

MOST_ERASE_WATTS = 100.0
MOST_PART_WATTS = dict.fromkeys(("sd", "emmc", "ufs", "qspi", "spi"), 30.0)
"""By interface, of what a board feeds by its pins, with its host: a microSD card may take 2.88 W, eMMC or UFS
below 5."""

MOST_TRANSFER_WATTS = 100.0
"""Of any other: a PCIe slot gives 75."""

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

LEAST_SECTOR_BYTES = dict.fromkeys(("sd", "emmc", "ufs", "pcie"), 512)
"""By interface, of cards and drives, by their standards: no smaller transfer can be asked for."""

_EVALUATING = frozenset(
    op_class.value for op_class in OpClass if OpClass.TRANSCENDENTAL in (op_class, PARENT.get(op_class))
)

Rule = tuple[bool, str]
"""Whether figures contradict each other, and the sentence that names them."""


def check_sense(profile: Profile, where: str) -> None:
    """Refuse a profile whose figures contradict each other.

    Raises:
        ProfileError: one line that names, for each contradiction, the two figures.
    """
    if found := list(contradictions(profile)):
        raise ProfileError(in_one_line(where, "contradictions", found))


def in_one_line(where: str, what: str, found: Sequence[str]) -> str:
    """``where`` and what is wrong there; several are counted as ``what``, numbered, and cut short."""
    if len(found) == 1:
        return f"{where}: {found[0]}"
    named = "; ".join(f"({number}) {text}" for number, text in enumerate(found[:MOST_NAMED], 1))
    more = f"; and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"{where}: {len(found)} {what}: {named}{more}"


def contradictions(profile: Profile) -> Iterator[str]:
    """One sentence per pair of figures that cannot both be true."""
    families = [_memory(profile), _power(profile)]
    if profile.chip is not None:
        families += [_chip(profile, profile.chip), _speeds(profile, profile.chip)]
    for unit in profile.units:
        alone = profile.on(unit)
        families.append(_of_unit(unit.name, _power(alone)))
        if profile.chip is not None and unit.threads is not None:  # it is of the chip's cores
            families.append(_of_unit(unit.name, _speeds(alone, profile.chip)))
    if profile.storage is not None:
        families.append(_storage(profile, profile.storage))
        for name, direction in (("read", profile.storage.read), ("write", profile.storage.write)):
            families.append(_direction(profile, profile.storage, f"storage.{name}", direction))
    return (sentence for family in families for is_wrong, sentence in family if is_wrong)


def _of_unit(name: str, rules: Iterator[Rule]) -> Iterator[Rule]:
    for is_wrong, sentence in rules:
        yield is_wrong, f"unit {name}: {sentence}"


# --- the processor ----------------------------------------------------------------------------


def _chip(profile: Profile, chip: Chip) -> Iterator[Rule]:
    cores, lanes, clock = chip.cores.value, chip.fp32_lanes.value, shown(chip.clock_hertz.value, "Hz")
    threads = profile.kernels.threads or 0
    yield (
        threads > MOST_THREADS_PER_CORE * cores,
        f"kernels.threads is {threads}, but chip.cores is {cores}",
    )
    yield (
        lanes > MOST_LANES,
        f"chip.fp32_lanes is {lanes} for each of chip.cores {cores}, but no core has more than {MOST_LANES}",
    )
    if (block := profile.compute.convolution_block_channels) is not None:
        yield (
            block.value > MOST_BLOCK_CHANNELS,
            f"compute.convolution_block_channels is {block.value}, but chip.fp32_lanes is {lanes}, and no "
            f"kernel works on more than {MOST_BLOCK_CHANNELS} at once",
        )
    watts = profile.compute.active_watts.value
    yield (
        watts > MOST_WATTS_PER_CORE * cores,
        f"compute.active_watts is {shown(watts, 'W')}, but chip.cores is {cores}: more than "
        f"{MOST_WATTS_PER_CORE:g} W for each",
    )
    for path, figure in profile.figures():
        name, cycles = ".".join(path), figure.value * chip.clock_hertz.value
        if path[-1] == "call_overhead_seconds":
            yield (
                cycles != 0.0 and not 1.0 <= cycles <= MOST_OVERHEAD_CYCLES,
                f"{name} is {shown(figure.value, 's')}, {cycles:.2g} cycles at chip.clock_hertz {clock}",
            )
        if chip.microcontroller and path[-1].endswith("_watts"):
            yield (
                figure.value > MOST_CONTROLLER_WATTS,
                f"{name} is {shown(figure.value, 'W')}, but chip.microcontroller allows no more than "
                f"{MOST_CONTROLLER_WATTS:g} W",
            )
    if chip.microcontroller:
        ram_bytes = profile.memory.ram_bytes.value
        yield (
            ram_bytes > CONTROLLER_RAM_BYTES,
            f"memory.ram_bytes is {format_bytes(ram_bytes)}, but by chip.microcontroller addresses of 32 "
            "bits reach 4 GiB",
        )
    if chip.microcontroller and profile.energy.accounting == "total":
        idle, active = profile.energy.idle_watts, profile.compute.active_watts
        least = idle.interval[0]
        most = active.interval[1] - idle.value + least  # what being busy adds stays, as at a corner
        yield (
            chip.clock_hertz.value >= RUNNING_CLOCK_HERTZ and least < LEAST_IDLE_SHARE * most,
            f"energy.idle_watts may be as low as {shown(least, 'W')} where compute.active_watts is as high "
            f"as {shown(most, 'W')}, but a chip.microcontroller at chip.clock_hertz {clock} keeps its clocks "
            f"while it waits: expected {shown(LEAST_IDLE_SHARE * most, 'W')} or more, by its data sheet with "
            "the core asleep and the clocks on",
        )


def _speeds(profile: Profile, chip: Chip) -> Iterator[Rule]:
    told = (
        f"chip.cores {chip.cores.value} x chip.clock_hertz {shown(chip.clock_hertz.value, 'Hz')} x "
        f"chip.fp32_lanes {chip.fp32_lanes.value}{' x 2' if chip.fused_multiply_add else ''}"
    )
    for name in ("all", *(op_class.value for op_class in OpClass)):
        own = getattr(profile.compute, name)
        if own is None:
            continue
        peak, speed, at_least = chip.peak_flops_per_second, own.flops_per_second.value, ""
        figure = f"compute.{name}.flops_per_second is {shown(speed, 'FLOP/s')}"
        yield (
            speed < LEAST_SHARE_OF_PEAK * peak,
            f"{figure}, less than a millionth of the {shown(peak, 'FLOP/s')} of {told}",
        )
        if name in _EVALUATING:
            peak /= FLOPS_PER_EVALUATION
            at_least = f", at {FLOPS_PER_EVALUATION} FLOPs for each evaluation,"
        yield speed > peak, f"{figure}, but {told}{at_least} make {shown(peak, 'FLOP/s')} at most"


# --- memory and power -------------------------------------------------------------------------


def _memory(profile: Profile) -> Iterator[Rule]:
    memory, ram_bytes = profile.memory, profile.memory.ram_bytes.value
    ram = f"memory.ram_bytes is {format_bytes(ram_bytes)}"
    for name, part in (
        ("memory.alignment_bytes", memory.alignment_bytes),
        ("kernels.workspace_bytes", profile.kernels.workspace_bytes),
        ("memory.cache_bytes", memory.cache_bytes),
    ):
        if part is not None:
            yield part.value > ram_bytes, f"{name} is {format_bytes(part.value)}, but {ram}"
    alignment_bytes = memory.alignment_bytes.value
    yield (
        alignment_bytes.bit_count() != 1,
        f"memory.alignment_bytes is {alignment_bytes}, which is no power of two",
    )
    if memory.bandwidth_bytes_per_second is None:
        return
    bandwidth, bus = memory.bandwidth_bytes_per_second.value, memory.bus_bytes_per_second
    figure = f"memory.bandwidth_bytes_per_second is {shown(bandwidth, 'B/s')}"
    if bus is not None:
        yield (
            bandwidth > bus.value,
            f"{figure}, but memory.bus_bytes_per_second carries {shown(bus.value, 'B/s')} at most",
        )
    yield (
        ram_bytes > bandwidth * LONGEST_PASS_SECONDS,
        f"{figure}, so that reading memory.ram_bytes, {format_bytes(ram_bytes)}, once takes "
        f"{shown(ram_bytes / bandwidth, 's')}",
    )


def _power(profile: Profile) -> Iterator[Rule]:
    idle_watts = profile.energy.idle_watts.value
    for path, figure in profile.figures():
        if path[-1] == "active_watts" and profile.energy.accounting == "total":
            low = figure.interval[0]
            yield (
                low < idle_watts,
                f"{'.'.join(path)} may be as low as {shown(low, 'W')}, but energy.idle_watts, "
                f"{shown(idle_watts, 'W')}, is part of it: being busy would add less than nothing",
            )
    for name in ("all", *(op_class.value for op_class in OpClass)):
        own = getattr(profile.compute, name)
        if own is None:
            continue
        place = f"compute.{name}." if own.active_watts is not None else "compute."
        watts = profile.marginal_watts((own.active_watts or profile.compute.active_watts).value)
        joules = watts / own.flops_per_second.value
        yield (
            joules != 0.0 and not LEAST_JOULES_PER_FLOP <= joules <= MOST_JOULES_PER_FLOP,
            f"compute.{name}.flops_per_second is {shown(own.flops_per_second.value, 'FLOP/s')}, but "
            f"{place}active_watts adds {shown(watts, 'W')}: {shown(joules, 'J')} per FLOP, expected "
            f"{shown(LEAST_JOULES_PER_FLOP, 'J')} to {shown(MOST_JOULES_PER_FLOP, 'J')}",
        )


# --- storage ----------------------------------------------------------------------------------


def _storage(profile: Profile, storage: Storage) -> Iterator[Rule]:
    page_bytes, ram_bytes = storage.page_bytes.value, profile.memory.ram_bytes.value
    page = f"storage.page_bytes is {format_bytes(page_bytes)}"
    yield page_bytes > ram_bytes, f"{page}, but memory.ram_bytes is {format_bytes(ram_bytes)}: no page fits"
    whole, spare = divmod(32 * page_bytes, 33)
    is_dataflash = not spare and whole.bit_count() == 1  # 264, 528, 1056 B: AT45
    yield page_bytes.bit_count() != 1 and not is_dataflash, f"{page}, which is no power of two"
    sector_bytes = LEAST_SECTOR_BYTES.get(storage.interface or "", 0)
    yield (
        page_bytes < sector_bytes,
        f"{page}, but storage.interface is {storage.interface}, whose sectors have {sector_bytes} B or more",
    )
    capacity, lifetime, erase = storage.capacity_bytes, storage.lifetime_written_bytes, storage.erase
    if capacity is not None:
        told = format_bytes(capacity.value)
        yield page_bytes > capacity.value, f"{page}, but storage.capacity_bytes is {told}"
        if lifetime is not None:
            by_bytes = storage.endurance_written_bytes is not None
            rewrites = lifetime / capacity.value
            yield (
                not 1 <= rewrites <= MOST_REWRITES,
                f"storage.{'endurance_written_bytes' if by_bytes else 'endurance_cycles'} lets "
                f"storage.capacity_bytes, {told}, be written {rewrites:.2g} times; expected 1 to "
                f"{MOST_REWRITES:.0e}",
            )
    if erase is not None:
        joules, seconds = erase.block_joules.value, erase.block_seconds.value
        yield (
            erase.block_bytes.value % page_bytes != 0,
            f"storage.erase.block_bytes is {format_bytes(erase.block_bytes.value)}, which is no number of "
            f"pages of storage.page_bytes, {format_bytes(page_bytes)}",
        )
        yield (
            joules > MOST_ERASE_WATTS * seconds,
            f"storage.erase.block_joules is {shown(joules, 'J')}, but storage.erase.block_seconds is "
            f"{shown(seconds, 's')}: more than {MOST_ERASE_WATTS:g} W while erasing",
        )


def _direction(profile: Profile, storage: Storage, name: str, direction: Direction) -> Iterator[Rule]:
    """Of ``name``, ``storage.read`` or ``storage.write``."""
    interface, bandwidth = storage.interface or "", direction.bandwidth_bytes_per_second.value
    figure = f"{name}.bandwidth_bytes_per_second is {shown(bandwidth, 'B/s')}"
    bus, memory = storage.bus_bytes_per_second, profile.memory.bandwidth_bytes_per_second
    form, most = MOST_BYTES_PER_SECOND.get(interface, ("", float("inf")))
    least = LEAST_READ_BYTES_PER_SECOND.get(interface, 0.0)
    if bus is not None:
        yield (
            bandwidth > bus.value,
            f"{figure}, but storage.bus_bytes_per_second carries {shown(bus.value, 'B/s')} at most",
        )
    elif bandwidth > most:
        limit = f"{form} at most: no more than {shown(most, 'B/s')}"
        yield True, f"{figure}, but storage.interface is {interface}, {limit}"
    if memory is not None:
        yield (
            bandwidth > memory.value,
            f"{figure}, but every byte goes through memory.bandwidth_bytes_per_second, "
            f"{shown(memory.value, 'B/s')}",
        )
    yield (
        name == "storage.read" and bandwidth < least and (bus is None or bus.value > least),
        f"{figure}, but storage.interface is {interface}: no less than {shown(least, 'B/s')}",
    )
    is_nor = storage.erase is not None and interface in ("qspi", "spi")
    yield (
        is_nor and name == "storage.write" and bandwidth > MOST_NOR_WRITE_BYTES_PER_SECOND,
        f"{figure}, but storage.erase and storage.interface {interface} are of NOR flash, which programs "
        f"{shown(MOST_NOR_WRITE_BYTES_PER_SECOND, 'B/s')} at most",
    )
    latency_seconds, chip, worst = direction.latency_seconds.value, profile.chip, direction.worst_seconds
    latency = f"{name}.latency_seconds is {shown(latency_seconds, 's')}"
    if chip is not None:
        clock_hertz = chip.clock_hertz.value
        yield (
            0.0 < latency_seconds < 1.0 / clock_hertz,
            f"{latency}, less than a cycle of chip.clock_hertz, {shown(clock_hertz, 'Hz')}",
        )
    if worst is not None:
        yield (
            worst.value < 0.5 * latency_seconds,
            f"{name}.worst_seconds is {shown(worst.value, 's')}, but {latency}: the longest access seen "
            "would be shorter than the usual one",
        )
    watts = profile.marginal_watts(direction.active_watts.value)
    most_watts = MOST_PART_WATTS.get(interface, MOST_TRANSFER_WATTS)
    yield (
        watts > most_watts,
        f"{name}.active_watts adds {shown(watts, 'W')}, more than {most_watts:g} W for one part",
    )
    seconds = latency_seconds + TRANSFER_BYTES / bandwidth
    joules = seconds * watts / TRANSFER_BYTES
    yield (
        joules != 0.0 and not LEAST_JOULES_PER_BYTE <= joules <= MOST_JOULES_PER_BYTE,
        f"{name}.active_watts adds {shown(watts, 'W')}, but by {name}.latency_seconds and "
        f"bandwidth_bytes_per_second {format_bytes(TRANSFER_BYTES)} take {shown(seconds, 's')}: "
        f"{shown(joules, 'J')} per byte, expected {shown(LEAST_JOULES_PER_BYTE, 'J')} to "
        f"{shown(MOST_JOULES_PER_BYTE, 'J')}",
    )


def shown(amount: float, unit: str) -> str:
    """An amount with its unit, as sentences have it."""
    if 0.0 < amount < 1e-9:
        return f"{amount:.3g} {unit}"
    return format_quantity(amount, unit, digits=3)
