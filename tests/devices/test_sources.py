"""No figure whose source speaks of another part, library or mode, unless it says that it is derived."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from poet.devices.figures import Figure
from poet.devices.load import load_part, load_profile, part_names, profile_names
from poet.devices.profile import Profile

PARTS = re.compile(
    r"Raspberry Pi (?:Zero 2 W|Zero|Pico|Compute Module \d|\d(?:[AB]\+?)?)|\bPi [345]\w*\+?|BCM2\d+|RP3A0|"
    r"Cortex-[AM]\d+\w*|STM32\w+|"
    r"\b[HFLU]\d{3}\b|nRF\d+|RP2\d{3}|ESP32-[A-Z]\d|SAM ?D\d+|MKR ?\w+|Teensy [\d.]+|"
    r"Jetson \w+(?: Nano)?|JetsonTX2|\bTX[12]\b|Arduino [A-Z]\w+|RPi\d?|Galaxy S\d|Moto Z|Snapdragon \d+|"
    r"Pixel(?: \d)?\b|MT25QL\w+|MX25\w+|APS\d\w+|\beMMC\b|\bmicroSD\b|\bNVMe\b|\bUFS\b|\bPSRAM\b",
    re.IGNORECASE,
)
"""Names of boards, chips, cores and storage."""

LIBRARIES = re.compile(
    r"XNNPACK|ncnn|CMSIS|TFLite|TensorFlow|ESP-DSP|ESP-NN|ONNX Runtime|OpenBLAS|HPL\b", re.I
)
MODES = re.compile(
    r"\bint8\b|tiny_results|\bfp16\b|\b5 W mode\b|overclock(?!ing options)|\bGPU\b", re.IGNORECASE
)
"""Kernels that run in another precision or on another unit, and other power modes than the profile's."""

OWN = {
    "rpi4b": ("Raspberry Pi 4", "Pi 4B", "BCM2711", "Cortex-A72", "RPi", "microSD"),
    "rpi5": ("Raspberry Pi 5", "BCM2712", "Cortex-A76", "microSD"),
    "rpi-zero-2w": ("Raspberry Pi Zero 2 W", "RP3A0", "Cortex-A53", "microSD"),
    "rpi3b-plus": ("Raspberry Pi 3", "Pi 3A", "BCM2837", "Cortex-A53", "microSD"),
    "jetson-nano": ("Jetson Nano", "Jetson-Nano", "Cortex-A57", "eMMC"),
    "jetson-orin-nano": ("Jetson Orin", "Jetson-Orin", "Cortex-A78", "NVMe"),
    "pixel": ("Pixel", "UFS"),
    "mkr1000": ("MKR1000", "SAMD21", "SAM D21", "Cortex-M0", "microSD"),
    "nrf52840": ("nRF52840", "Cortex-M4"),
    "rp2040": ("RP2040", "Cortex-M0"),
    "rp2350": ("RP2350", "Cortex-M33", "PSRAM"),
    "esp32-s3": ("ESP32-S3", "PSRAM"),
    "imxrt1062": ("Teensy 4.1", "Cortex-M7", "microSD"),
    "stm32f746": ("STM32F746", "Cortex-M7", "MT25QL512"),
    "stm32h743": ("STM32H743", "Cortex-M7", "MT25QL512"),
    "stm32l4r5": ("STM32L4R5", "Cortex-M4"),
    "stm32u575": ("STM32U575", "Cortex-M33"),
    "x86-host": (),
}  # fmt: skip
"""What each profile's own part is called."""

OWN |= {"rpi4b-xnnpack": OWN["rpi4b"], "rpi4b-torch": OWN["rpi4b"]}

OWN_OF_PARTS = {
    "emmc": ("eMMC",),
    "emmc-hs200": ("eMMC",),
    "microsd-a1": ("microSD",),
    "microsd-a2": ("microSD", "Raspberry Pi"),
    "nor-mt25q": ("MT25QL512",),
    "nor-sqi": (),
    "nvme-gen2": ("NVMe", "Raspberry Pi"),
    "nvme-gen3": ("NVMe", "Raspberry Pi"),
    "psram-qspi": ("PSRAM",),
    "ufs-2-0": ("Galaxy S6", "UFS"),
}
"""By their titles. Where a document of a board measured a part, the board is not what the figure is about."""


def _is_own(word: str, own: tuple[str, ...]) -> bool:
    """``MT25QL512ABB`` is a ``MT25QL512``; ``Raspberry Pi 4 Model B`` is a ``Raspberry Pi 4``."""
    return any(word.lower().startswith(name.lower()) for name in own)


def _foreign(
    path: tuple[str, ...], figure: Figure, own: tuple[str, ...], library: str | None
) -> Iterator[str]:
    """Words of a figure's source and locator that name something else than ``own``."""
    if figure.kind in ("derived", "assumed"):
        return
    told = f"{figure.source} {figure.locator or ''}"
    for word in PARTS.findall(told):
        if not _is_own(word, own):
            yield word
    if path[0] in ("compute", "energy"):
        yield from (word for word in LIBRARIES.findall(told) if word.lower() not in (library or "").lower())
        yield from MODES.findall(told)


def _of_profile(profile: Profile) -> list[str]:
    found = []
    for path, figure in profile.figures():
        words = [*_foreign(path, figure, OWN[profile.name], profile.kernels.speeds_of)]
        if words:
            found.append(f"{'.'.join(path)} ({figure.kind}): {words}")
    return found


@pytest.mark.parametrize("name", [name for name in profile_names() if not name.startswith("compat-")])
def test_what_speaks_of_another_part_library_or_mode_is_derived(name: str) -> None:
    assert _of_profile(load_profile(name)) == []


@pytest.mark.parametrize("name", part_names())
def test_what_speaks_of_another_storage_part_is_derived(name: str) -> None:
    words = [
        (figure.source, word)
        for figure in _figures(load_part(name))
        for word in _foreign(("storage",), figure, OWN_OF_PARTS[name], None)
    ]
    assert words == []


def _figures(record: object) -> Iterator[Figure]:
    for field in getattr(type(record), "model_fields", {}):
        value = getattr(record, field)
        if isinstance(value, Figure):
            yield value
        elif value is not None:
            yield from _figures(value)


@pytest.mark.parametrize(
    ("device", "path", "told"),
    [
        ("rpi5", "memory.cache_bytes", "raspberrypi/documentation computers/processors/bcm2711.adoc"),
        ("jetson-nano", "storage.read.latency_seconds", "chipsets.py: JetsonTX2, PAGEIN_LATENCY"),
        ("mkr1000", "storage.write.bandwidth_bytes_per_second", "SdFat issue 434 (Arduino MKR Zero)"),
        ("stm32h743", "storage.endurance_cycles", "Micron MT25QL128ABA data sheet"),
        ("rpi4b", "compute.matmul.flops_per_second", "google/XNNPACK README"),
        ("rpi4b-xnnpack", "compute.matmul.flops_per_second", "ncnn README, Raspberry Pi 4"),
        ("stm32l4r5", "compute.active_watts", "mlcommons/tiny_results_v1.0"),
        ("stm32h743", "compute.active_watts", "STM32H7A3 data sheet, Run mode"),
        ("pixel", "compute.active_watts", "power of a Snapdragon 821 in another phone"),
    ],
)
def test_a_source_of_something_else_is_noticed(device: str, path: str, told: str) -> None:
    profile, place = load_profile(device), tuple(path.split("."))
    figure = dict(profile.figures())[place].model_copy(
        update={"kind": "measured", "source": told, "locator": ""}
    )
    assert [*_foreign(place, figure, OWN[device], profile.kernels.speeds_of)]
    derived = figure.model_copy(update={"kind": "derived"})
    assert not [*_foreign(place, derived, OWN[device], profile.kernels.speeds_of)]
