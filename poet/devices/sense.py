"""Whether the figures of a profile can all be true of one device; where not, which two contradict each other.

The limits are those of physics and of standards, or so wide that no device of the last and the next ten
years lies outside; figures that pass may still be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from poet.devices.profile import PARENT, Chip, OpClass, Profile
from poet.devices.sense_storage import shown, storage_contradictions
from poet.errors import ProfileError
from poet.units import format_bytes

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
