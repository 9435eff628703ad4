"""A board made of files and a clock: it heats up, throttles, and takes for each op what a profile says."""

from __future__ import annotations

import random
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from poet.devices.costs import amounts_of, op_seconds
from poet.devices.machine import Machine
from poet.devices.measurements import OpTime, TransferTime, alike_together
from poet.devices.profile import Profile
from poet.ir.calls import Call, Ref, TensorType, contiguous

Sample = Callable[[], None]


def tensor_type(*shape: int, dtype: str = "float32") -> TensorType:
    """Contiguous."""
    return contiguous(dtype, shape)


def op_time(target: str, given: list[TensorType], *extra: object, out: list[TensorType | None]) -> OpTime:
    """Of a second, on tensors and what follows them."""
    refs = tuple(Ref(f"v{index}") for index in range(len(given)))
    return OpTime(Call(target, (*refs, *extra)), tuple(given), tuple(out), 0, 1.0)  # type: ignore[arg-type]


def _ops(net: str) -> Iterator[OpTime]:
    """Some of each class, of sizes that follow from the net's name."""
    draw = random.Random(zlib.crc32(net.encode()))
    for _ in range(2):
        n, m = draw.choice((64, 256, 512)), draw.choice((256, 512))
        yield op_time("aten.mm.default", [tensor_type(n, m), tensor_type(m, n)], out=[tensor_type(n, n)])
        c, p = draw.choice((8, 16, 32, 64)), draw.choice((8, 16, 32))
        image, square = tensor_type(4, c, p, p), (1, 1)
        for groups, kernel in ((1, 3), (1, 1), (c, 3)):
            weight = tensor_type(c, c // groups, kernel, kernel)
            around = (kernel // 2,) * 2
            yield op_time(
                "aten.convolution.default", [image, weight], None, square, around, square, False, (0, 0),
                groups, out=[image],
            )  # fmt: skip
            yield op_time(
                "aten.convolution_backward.default", [image, image, weight], None, square, around, square,
                False, (0, 0), groups, (True, True, False), out=[image, weight, None],
            )  # fmt: skip
        flat = tensor_type(draw.choice((1000, 30000, 1000000)))
        yield op_time("aten.add.Tensor", [flat, flat], out=[flat])
        yield op_time("aten.exp.default", [flat], out=[flat])
        yield op_time("aten.gelu.default", [flat], out=[flat])
        yield op_time("aten.sum.default", [flat], out=[tensor_type()])
        yield op_time("aten.clone.default", [flat], out=[flat])
        yield op_time("aten._adaptive_avg_pool2d.default", [image], (1, 1), out=[tensor_type(4, c, 1, 1)])


class Board:
    """Its ``/sys`` and ``/proc`` as files below ``root``, its clock, and a bench that runs on it.

    Attributes:
        machine: what reads it.
        seconds: by its clock.
        slept_seconds: in all.
        stops_after: raises KeyboardInterrupt when so many steps have been made; ``None``: never.
    """

    torch = "2.13.0"

    def __init__(
        self,
        root: Path,
        profile: Profile,
        *,
        threads: int = 4,
        noise: float = 0.0,
        heats: bool = False,
        watts: float | None = None,
        board: str = "Raspberry Pi 4 Model B Rev 1.4",
    ) -> None:
        self.root, self.profile, self.threads, self.noise = root, profile, threads, noise
        self.heats, self.watts, self.board = heats, watts, board
        self.seconds, self.slept_seconds, self.celsius, self.joules = 0.0, 0.0, 45.0, 0.0
        self.steps_made, self.stops_after = 0, -1
        self.written: dict[str, str] = {}
        self.machine = Machine(
            root, clock=lambda: self.seconds, wall=lambda: 1.79e9 + self.seconds, sleep=self._sleep
        )
        self._make_files()

    @property
    def is_throttled(self) -> bool:
        return self.heats and self.celsius > 80.0

    def _write(self, path: str, text: str) -> None:
        if self.written.get(path) == text:
            return
        self.written[path] = text
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"{text}\n")

    def _make_files(self) -> None:
        self._write("proc/meminfo", "MemTotal:        3884660 kB")
        self._write("proc/device-tree/model", f"{self.board}\0")
        self._write("proc/sys/kernel/arch", "aarch64")
        self._write("proc/sys/kernel/osrelease", "6.6.31-v8")
        for index, size in enumerate(("32K", "1024K")):
            self._write(f"sys/devices/system/cpu/cpu0/cache/index{index}/size", size)
            self._write(f"sys/devices/system/cpu/cpu0/cache/index{index}/type", "Unified")
        for core in range(4):
            self._write(f"sys/devices/system/cpu/cpu{core}/online", "1")
        if self.heats:
            program = self.root / "usr/bin/vcgencmd"
            program.parent.mkdir(parents=True)
            program.write_text(f'#!/bin/sh\ncat "{self.root}/throttled"\n')
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        self._refresh()

    def _refresh(self) -> None:
        clock_hertz = 1_000_000 if self.is_throttled else 1_800_000
        for core in range(4):
            self._write(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", str(clock_hertz))
            self._write(f"sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq", "1800000")
        self._write("sys/class/thermal/thermal_zone0/temp", str(int(1000 * self.celsius)))
        self._write("throttled", "throttled=0x60006" if self.is_throttled else "throttled=0x0")
        if self.watts is not None:
            self._write("sys/class/powercap/intel-rapl:0/name", "package-0")
            self._write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "50000000")
            self._write("sys/class/powercap/intel-rapl:0/energy_uj", str(int(1e6 * (self.joules % 50.0))))

    def pass_time(self, seconds: float, *, watts: float) -> None:
        """Busy time heats the board, idle time cools it."""
        self.seconds += seconds
        self.joules += watts * seconds
        if self.heats:
            towards = 95.0 if watts > self.profile.energy.idle_watts.value else 45.0
            self.celsius += (towards - self.celsius) * min(1.0, seconds / 30.0)
        self._refresh()

    def _sleep(self, seconds: float) -> None:
        self.slept_seconds += seconds
        self.pass_time(seconds, watts=self.profile.energy.idle_watts.value)

    def step(self, net: str, threads: int, sample: Sample) -> tuple[tuple[OpTime, ...], float]:
        """Ops at the profile's times for all threads; one thread takes three times as long."""
        if self.steps_made == self.stops_after:
            raise KeyboardInterrupt
        self.steps_made += 1
        made = []
        slow = (1.8 if self.is_throttled else 1.0) * (3.0 if threads == 1 else 1.0)
        noise = random.Random(zlib.crc32(f"{net} {threads}".encode()))
        for op in _ops(net):
            seconds = slow * self.seconds_of(op) * noise.lognormvariate(0.0, self.noise)
            made.append(OpTime(op.call, op.types, op.outputs, op.updated_bytes, seconds))
        for _ in range(2):
            self.pass_time(3.0, watts=self.profile.energy.idle_watts.value + (self.watts or 3.0))
            sample()
        return alike_together(made), 1.0

    def seconds_of(self, op: OpTime) -> float:
        """By the profile behind the board."""
        found = amounts_of(op)
        return op_seconds(self.profile, found)

    def transfers(self, sample: Sample) -> tuple[TransferTime, ...]:
        """By the profile's storage, one in fifty of a write ten times as long."""
        storage = self.profile.storage
        assert storage is not None
        made = []
        for direction, figures in (("write", storage.write), ("read", storage.read)):
            for size_bytes in (4096, 65536, 1048576):
                usual = figures.latency_seconds.value + size_bytes / figures.bandwidth_bytes_per_second.value
                times = tuple(usual * (10.0 if direction == "write" and n == 49 else 1.0) for n in range(50))
                made.append(TransferTime(direction, size_bytes, times, "direct"))
        return tuple(made)

    def load(self, kind: str, seconds: float, sample: Sample) -> None:
        """Draws ``watts`` more than idle, in storage half of that."""
        more = (self.watts or 0.0) * (0.5 if kind in ("read", "write") else 1.0)
        for _ in range(10):
            self.pass_time(seconds / 10, watts=self.profile.energy.idle_watts.value + more)
            sample()
