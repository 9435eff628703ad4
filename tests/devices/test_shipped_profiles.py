"""Profiles that ship: whole, sourced and sound, and as the page on boards has them."""

from __future__ import annotations

import io
import re
import tomllib
from pathlib import Path

import pytest
from helpers.shipped_profiles import shipped_text
from rich.console import Console

from poet.devices import load as profiles
from poet.devices.figures import PRIOR_FACTOR, UNITS, OpClass, unit_of
from poet.devices.load import load_profile, profile_names
from poet.report.device import profile_report

NAMES = profile_names()
DOCUMENT = (Path(__file__).parents[2] / "docs" / "boards.md").read_text(encoding="utf-8")
HONEST = (
    "esp32-s3", "imxrt1062", "jetson-nano", "jetson-orin-nano", "mkr1000", "nrf52840", "pixel", "rp2040",
    "rp2350", "rpi-zero-2w", "rpi3b-plus", "rpi4b", "rpi4b-torch", "rpi4b-xnnpack", "rpi5", "stm32f746",
    "stm32h743", "stm32l4r5", "stm32u575", "x86-host",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_profile_is_whole(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    for path, figure in profile.figures():
        assert unit_of(path[-1]) in UNITS.values()
        assert len(figure.source) > 5, path
        low, high = figure.interval
        assert 0 <= low <= figure.value <= high, path
        unlocated = ("assumed", "measured", "vendor-doc", "published", "derived")
        assert figure.locator or figure.kind in unlocated, path


def test_the_promised_devices_ship() -> None:
    assert {*HONEST, "compat-mkr1000", "compat-m4f", "compat-rpi", "compat-rpi-nocache"} == set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in HONEST])
def test_the_published_model_is_marked_as_such(name: str) -> None:
    profile = load_profile(name)
    assert profile.energy.accounting == "marginal"
    assert profile.charged_idle_watts == 0.0
    assert all(figure.kind in ("published", "vendor-doc") for _, figure in profile.figures())


@pytest.mark.parametrize("name", HONEST)
def test_at_most_a_quarter_of_the_figures_is_assumed(name: str) -> None:
    kinds = [figure.kind for _, figure in load_profile(name).figures()]
    assert kinds.count("assumed") <= len(kinds) / 4


@pytest.mark.parametrize("name", HONEST)
def test_a_figure_computed_with_something_assumed_is_assumed(name: str) -> None:
    for path, figure in load_profile(name).figures():
        told = f"{figure.source} {figure.locator or ''}"
        assert figure.kind == "assumed" or "assum" not in told, path


def test_what_a_review_says_is_no_makers_document_and_what_is_chosen_is_assumed() -> None:
    kinds = {path: figure.kind for path, figure in load_profile("pixel").figures()}
    assert kinds["memory", "bus_bytes_per_second"] == "published"
    assert (
        kinds["memory", "bandwidth_bytes_per_second"] == "derived"
    )  # from three boards' shares of their buses
    assert kinds["storage", "read", "latency_seconds"] == "derived"  # an eMMC's
    assert kinds["storage", "read", "active_watts"] == "assumed"


@pytest.mark.parametrize("name", HONEST)
def test_a_profile_names_library_threads_and_clock(name: str) -> None:
    profile = load_profile(name)
    assert profile.kernels.speeds_of
    assert profile.kernels.threads is not None
    if name != "x86-host":  # stands for many
        assert profile.chip is not None
        assert profile.kernels.threads <= profile.chip.cores.value
    text = io.StringIO()
    Console(file=text, width=400).print(profile_report(profile))
    assert f"speeds of {profile.kernels.speeds_of}, {profile.kernels.threads} thread" in text.getvalue()


@pytest.mark.parametrize("name", HONEST)
def test_assumed_figures_say_how_wide_they_are(name: str) -> None:
    """A guess that is not exact by construction spans at least a factor 1.3 in all."""
    for path, figure in load_profile(name).figures():
        low, high = figure.interval
        if figure.kind == "assumed" and low != high:
            assert high / low >= 1.3, path


def test_every_class_of_op_has_power_and_all_but_movement_a_speed() -> None:
    for name in NAMES:
        compute = load_profile(name).compute
        for op_class in OpClass:
            assert compute.watts(op_class) > 0
            assert compute.throughput(op_class) is not None or op_class is OpClass.MOVEMENT


def test_the_files_are_plain_data() -> None:
    for name in NAMES:
        data = tomllib.loads(shipped_text(name))
        assert data["version"] == 1
        assert len(shipped_text(name)) < profiles.MAX_FILE_BYTES / 10


# --- the page on boards names every field, unit and device; its examples are what ships ---


def test_the_document_names_every_field_kind_unit_and_device() -> None:
    named = set(re.findall(r"`([^`\s]+)`", DOCUMENT)) | set(re.findall(r"[a-z_]+", DOCUMENT))
    paths = (path for name in NAMES for path, _ in load_profile(name).figures())
    fields = {field for path in paths for field in path if not field.isdecimal()}
    assert fields <= named
    assert set(PRIOR_FACTOR) <= named
    assert {"_" + ending for ending in UNITS} <= named
    assert {op_class.value for op_class in OpClass} <= named
    ships = DOCUMENT.partition("## What ships")[2]
    assert set(NAMES) == {
        name for row in re.findall(r"^\| (`.*?`) \|", ships, re.M) for name in row.split("`")[1::2]
    }


def test_the_documents_example_is_a_profile(tmp_path: Path) -> None:
    example = next(block for block in re.findall(r"```toml\n(.*?)```", DOCUMENT, re.S) if "extends" in block)
    file = tmp_path / "pi-2gb.toml"
    file.write_text(re.sub(r"^   ", "", example, flags=re.M))
    assert load_profile(file).memory.ram_bytes.value == 2**31


def test_the_documents_figure_is_the_one_that_ships() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.S)
    block = next(block for block in blocks if "[compute.matmul" in block)
    data = tomllib.loads(block)["compute"]["matmul"]["flops_per_second"]
    assert data == {
        key: item
        for key, item in tomllib.loads(shipped_text("rpi4b"))["compute"]["matmul"]["flops_per_second"].items()
        if key != "note"
    }
