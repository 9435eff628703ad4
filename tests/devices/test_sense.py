"""Sense: figures that cannot both be true are named, the devices that ship pass, at every corner too."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from poet.cli.devices import app
from typer.main import get_command

from poet.devices.load import load_profile, profile_names, profile_schema
from poet.devices.profile import Profile
from poet.devices.sense import MOST_NAMED, check_sense, contradictions
from poet.devices.spread import End, Place, corner, uncertain_figures
from poet.errors import ProfileError

ROOT = Path(__file__).parents[2]
NAMES = profile_names()


def _figure(table: str, value: float, more: str = "uncertainty = 0.0") -> str:
    return f'[{table}]\nvalue = {value}\nkind = "assumed"\nsource = "nonsense"\n{more}\n'


def _on(base: str, *tables: str, title: str | None = None) -> str:
    said = "" if title is None else f'title = "{title}"\n'
    return f'version = 1\nextends = "{base}"\nname = "nonsense"\n{said}' + "".join(tables)


PI_PEAK = "chip.cores 4 x chip.clock_hertz 1.50 GHz x chip.fp32_lanes 4 x 2"

NONSENSE = {
    "products faster than the cores": (
        _on("rpi4b", _figure("compute.matmul.flops_per_second", 14.8e15)),
        f"compute.matmul.flops_per_second is 14800 TFLOP/s, but {PI_PEAK} make 48.0 GFLOP/s at most",
    ),
    "convolutions faster than the cores": (
        _on("rpi4b", _figure("compute.depthwise.flops_per_second", 60e9)),
        f"compute.depthwise.flops_per_second is 60.0 GFLOP/s, but {PI_PEAK} make 48.0 GFLOP/s at most",
    ),
    "an exponential per lane and cycle": (
        _on("rpi4b", _figure("compute.transcendental.flops_per_second", 24e9)),
        f"compute.transcendental.flops_per_second is 24.0 GFLOP/s, but {PI_PEAK}, at 4 FLOPs for each "
        "evaluation, make 12.0 GFLOP/s at most",
    ),
    "a product per minute": (
        _on("rpi4b", _figure("compute.matmul.flops_per_second", 100.0)),
        "compute.matmul.flops_per_second is 100 FLOP/s, less than a millionth of the 48.0 GFLOP/s of "
        f"{PI_PEAK}",
    ),
    "a call within a cycle": (
        _on("rpi4b", _figure("compute.call_overhead_seconds", 1e-12)),
        "compute.call_overhead_seconds is 1e-12 s, 0.0015 cycles at chip.clock_hertz 1.50 GHz",
    ),
    "memory slower than a letter": (
        _on("rpi4b", _figure("memory.bandwidth_bytes_per_second", 1.0)),
        "memory.bandwidth_bytes_per_second is 1.00 B/s, so that reading memory.ram_bytes, 4 GiB, once takes",
    ),
    "memory faster than its bus": (
        _on("rpi4b", _figure("memory.bandwidth_bytes_per_second", 25e9)),
        "memory.bandwidth_bytes_per_second is 25.0 GB/s, but memory.bus_bytes_per_second carries 12.8 GB/s",
    ),
    "alignment larger than memory": (
        _on("mkr1000", _figure("memory.alignment_bytes", 65536)),
        "memory.alignment_bytes is 64 KiB, but memory.ram_bytes is 32 KiB",
    ),
    "a card of 45 GB/s": (
        _on("rpi4b", _figure("storage.read.bandwidth_bytes_per_second", 45e9)),
        "storage.read.bandwidth_bytes_per_second is 45.0 GB/s, but storage.bus_bytes_per_second carries "
        "50.0 MB/s at most",
    ),
    "storage faster than memory": (
        _on("x86-host", _figure("storage.write.bandwidth_bytes_per_second", 30e9)),
        "storage.write.bandwidth_bytes_per_second is 30.0 GB/s, but every byte goes through "
        "memory.bandwidth_bytes_per_second, 20.0 GB/s",
    ),
    "eMMC faster than eMMC": (
        _on(
            "x86-host",
            '[storage]\ninterface = "emmc"\n',
            _figure("storage.write.bandwidth_bytes_per_second", 300e6),
        ),
        "storage.read.bandwidth_bytes_per_second is 1.10 GB/s, but storage.interface is emmc, HS400 at "
        "most: no more than 400 MB/s",
    ),
    "pages larger than memory": (
        _on("mkr1000", _figure("storage.page_bytes", 65536)),
        "storage.page_bytes is 64 KiB, but memory.ram_bytes is 32 KiB: no page fits",
    ),
    "pages of thirds": (
        _on("nrf52840", _figure("storage.page_bytes", 3)),
        "storage.page_bytes is 3 B, which is no power of two",
    ),
    "a card that moves single bytes": (
        _on("rpi4b", _figure("storage.page_bytes", 1)),
        "storage.page_bytes is 1 B, but storage.interface is sd, whose sectors have 512 B or more",
    ),
    "a drive with half a sector": (
        _on("x86-host", '[storage]\ninterface = "pcie"\n', _figure("storage.page_bytes", 256)),
        "storage.page_bytes is 256 B, but storage.interface is pcie, whose sectors have 512 B or more",
    ),
    "blocks of part of a page": (
        _on("nrf52840", _figure("storage.erase.block_bytes", 4000)),
        "storage.erase.block_bytes is 3.906 KiB, which is no number of pages of storage.page_bytes, 256 B",
    ),
    "an erase like a kettle": (
        _on("nrf52840", _figure("storage.erase.block_joules", 50.0)),
        "storage.erase.block_joules is 50.0 J, but storage.erase.block_seconds is 25.0 ms: more than 100 W",
    ),
    "a card that lasts for ever": (
        _on("rpi4b", _figure("storage.endurance_written_bytes", 1e20)),
        "storage.endurance_written_bytes lets storage.capacity_bytes, 14.9 GiB, be written 6.2e+09 times",
    ),
    "an idle power within the active one's range": (
        _on("rpi4b", _figure("energy.idle_watts", 3.2)),
        "storage.read.active_watts may be as low as 3.15 W, but energy.idle_watts, 3.20 W, is part of it",
    ),
    "arithmetic for nothing": (
        _on("x86-host", _figure("compute.matmul.flops_per_second", 1e15)),
        "compute.matmul.flops_per_second is 1000 TFLOP/s, but compute.active_watts adds 20.0 W: "
        "2e-14 J per FLOP",
    ),
    "arithmetic like a heater": (
        _on("pixel", _figure("compute.matmul.active_watts", 700e3)),
        "compute.matmul.flops_per_second is 26.5 GFLOP/s, but compute.matmul.active_watts adds 700 kW",
    ),
    "a core like a stove": (
        _on("rpi4b", _figure("compute.active_watts", 6000.0)),
        "compute.active_watts is 6.00 kW, but chip.cores is 4: more than 100 W for each",
    ),
    "memory beyond its addresses": (
        _on("stm32h743", _figure("memory.ram_bytes", 16 << 30)),
        "memory.ram_bytes is 16 GiB, but by chip.microcontroller addresses of 32 bits reach 4 GiB",
    ),
    "a controller that sleeps with its clocks stopped": (
        _on("stm32h743", _figure("energy.idle_watts", 0.03, "range = [0.005, 0.1]")),
        "energy.idle_watts may be as low as 5.00 mW where compute.active_watts is as high as 525 mW, but "
        "a chip.microcontroller at chip.clock_hertz 480 MHz keeps its clocks while it waits: expected 43.7 "
        "mW or more, by its data sheet with the core asleep and the clocks on",
    ),
    "a cache larger than the memory": (
        _on("rpi4b", _figure("memory.cache_bytes", 1 << 40)),
        "memory.cache_bytes is 1 TiB, but memory.ram_bytes is 4 GiB",
    ),
    "a workspace that no memory holds": (
        _on("nrf52840", _figure("kernels.workspace_bytes", 1 << 30)),
        "kernels.workspace_bytes is 1 GiB, but memory.ram_bytes is 256 KiB",
    ),
    "addresses of thirds": (
        _on("rpi4b", _figure("memory.alignment_bytes", 3)),
        "memory.alignment_bytes is 3, which is no power of two",
    ),
    "blocks of more channels than a vector has": (
        _on("rpi4b", _figure("compute.convolution_block_channels", 512)),
        "compute.convolution_block_channels is 512, but chip.fp32_lanes is 4, and no kernel works on "
        "more than 64 at once",
    ),
    "a vector of a whole picture": (
        _on("rpi4b", _figure("chip.fp32_lanes", 4096)),
        "chip.fp32_lanes is 4096 for each of chip.cores 4, but no core has more than 1024",
    ),
    "threads without cores": (
        _on("rpi4b", "[kernels]\nthreads = 64\n"),
        "kernels.threads is 64, but chip.cores is 4",
    ),
    "a call of a class that lasts for days": (
        _on("rpi4b", _figure("compute.matmul.call_overhead_seconds", 1e6)),
        "compute.matmul.call_overhead_seconds is 1.00 Ms, 1.5e+15 cycles at chip.clock_hertz 1.50 GHz",
    ),
    "a controller like a lamp": (
        _on("nrf52840", _figure("compute.active_watts", 101.0)),
        "compute.active_watts is 101 W, but chip.microcontroller allows no more than 20 W",
    ),
    "flash written like RAM": (
        _on("stm32h743", _figure("storage.write.bandwidth_bytes_per_second", 60e6)),
        "storage.write.bandwidth_bytes_per_second is 60.0 MB/s, but storage.erase and storage.interface "
        "qspi are of NOR flash, which programs 20.0 MB/s at most",
    ),
    "a worst access before the usual one": (
        _on("rpi4b", _figure("storage.write.worst_seconds", 1e-6)),
        "storage.write.worst_seconds is 1.00 µs, but storage.write.latency_seconds is 4.20 ms",
    ),
    "UFS faster than its lanes": (
        _on("pixel", _figure("storage.write.bandwidth_bytes_per_second", 7.5e9)),
        "storage.write.bandwidth_bytes_per_second is 7.50 GB/s, but storage.interface is ufs, UFS 4, two "
        "lanes at most",
    ),
    "storage that is worn out when new": (
        _on("rpi4b", _figure("storage.endurance_written_bytes", 0)),
        "storage.endurance_written_bytes lets storage.capacity_bytes, 14.9 GiB, be written 0 times",
    ),
    "a card like a stove": (
        _on("rpi4b", _figure("storage.read.active_watts", 45e3)),
        "storage.read.active_watts adds 45.0 kW, but by storage.read.latency_seconds and "
        "bandwidth_bytes_per_second 64 KiB take 1.66 ms",
    ),
    "a card like a heater": (
        _on("rpi4b", _figure("storage.read.active_watts", 500.0)),
        "storage.read.active_watts adds 497 W, more than 30 W for one part",
    ),
    "a card like a lamp": (
        _on("rpi5", _figure("storage.write.active_watts", 40.0)),
        "storage.write.active_watts adds 37.0 W, more than 30 W for one part",
    ),
    "a drive like a heater": (
        _on("jetson-orin-nano", _figure("storage.read.active_watts", 150.0)),
        "more than 100 W for one part",
    ),
    "cores like lamps": (
        _on("jetson-nano", _figure("compute.active_watts", 450.0)),
        "compute.active_watts is 450 W, but chip.cores is 4: more than 100 W for each",
    ),
    "storage that answers within a cycle": (
        _on("rpi4b", _figure("storage.read.latency_seconds", 1e-12)),
        "storage.read.latency_seconds is 1e-12 s, less than a cycle of chip.clock_hertz, 1.50 GHz",
    ),
    "UFS like a diskette": (
        _on("pixel", _figure("storage.read.bandwidth_bytes_per_second", 1e5)),
        "storage.read.bandwidth_bytes_per_second is 100 kB/s, but storage.interface is ufs: no less than "
        "10.0 MB/s",
    ),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_is_refused_with_the_two_figures_that_contradict_each_other(
    case: str, tmp_path: Path
) -> None:
    text, expected = NONSENSE[case]
    file = tmp_path / "nonsense.toml"
    file.write_text(text)
    load_profile(file)  # its form is right
    with pytest.raises(ProfileError) as caught:
        get_command(app).main(["validate", str(file)], prog_name="poet devices", standalone_mode=False)
    message = str(caught.value)
    assert message.startswith("nonsense.toml: ")
    assert "\n" not in message
    assert expected in message
    assert caught.value.exit_code == 2


def test_many_contradictions_are_numbered_and_cut_short(tmp_path: Path) -> None:
    classes = (
        "matmul",
        "convolution",
        "depthwise",
        "elementwise",
        "reduction",
        "pooling",
        "gelu",
        "movement",
    )
    file = tmp_path / "nonsense.toml"
    file.write_text(_on("rpi4b", *(_figure(f"compute.{name}.flops_per_second", 1e18) for name in classes)))
    with pytest.raises(ProfileError) as caught:
        check_sense(load_profile(file), "nonsense.toml")
    assert f"({MOST_NAMED}) " in str(caught.value)
    assert f"({MOST_NAMED + 1}) " not in str(caught.value)
    assert "and " in str(caught.value).rpartition("; ")[2]


# --- what ships -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_profile_and_every_corner_of_it_makes_sense(name: str) -> None:
    """Each figure alone at either end, all at once, and sixty mixtures."""
    profile = load_profile(name)
    assert list(contradictions(profile)) == []
    paths, draw = uncertain_figures(profile), random.Random(0)
    both: tuple[End, End] = ("low", "high")
    corners: list[dict[Place, End]] = [{path: end} for path in paths for end in both]
    corners += [dict.fromkeys(paths, end) for end in both]
    corners += [{path: draw.choice(both) for path in paths} for _ in range(60)]
    for ends in corners:
        found = corner(profile, ends)
        assert list(contradictions(found)) == [], ends
        for path, figure in found.figures():
            if path[-1] == "active_watts":
                assert found.marginal_watts(figure.value) >= 0, (path, ends)


def test_a_corner_holds_the_ends_and_nothing_else_moves() -> None:
    profile = load_profile("mkr1000")
    path = ("compute", "matmul", "flops_per_second")
    moved = dict(corner(profile, {path: "high"}).figures())
    for other, figure in profile.figures():
        assert moved[other].value == (figure.interval[1] if other == path else figure.value)
    assert moved[path].interval == (moved[path].value,) * 2
    assert corner(profile, {}) == profile


def test_idle_power_that_is_off_leaves_what_being_busy_adds() -> None:
    profile = load_profile("rpi4b")
    high = corner(profile, {("energy", "idle_watts"): "high"})
    assert high.energy.idle_watts.value == 3.4
    assert high.storage is not None
    assert profile.storage is not None
    for found, nominal in ((high.compute, profile.compute), (high.storage.write, profile.storage.write)):
        watts = found.active_watts.value, nominal.active_watts.value
        assert high.marginal_watts(watts[0]) == pytest.approx(profile.marginal_watts(watts[1]))


def test_without_the_new_tables_only_what_they_say_goes_unchecked() -> None:
    data = load_profile("rpi4b").model_dump()
    data["chip"] = data["memory"]["bus_bytes_per_second"] = data["storage"]["bus_bytes_per_second"] = None
    data["compute"]["matmul"]["flops_per_second"].update(value=40e9, range=None)
    bare = Profile.model_validate(data)
    assert list(contradictions(bare)) == []
    data["compute"]["matmul"]["flops_per_second"].update(value=14.8e15)
    (found,) = contradictions(Profile.model_validate(data))
    assert "per FLOP, expected" in found


# --- the schema -------------------------------------------------------------------------------


def test_the_published_schema_is_the_one_that_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    get_command(app).main(["schema"], prog_name="poet devices", standalone_mode=False)
    assert capsys.readouterr().out == (ROOT / "docs" / "profile.schema.json").read_text(encoding="utf-8")


def test_the_schema_asks_for_what_the_records_ask_for() -> None:
    schema = json.loads(json.dumps(profile_schema()))
    assert set(schema["properties"]) == {*Profile.model_fields, "extends"}
    assert set(schema["else"]["required"]) >= {"kernels", "energy", "memory", "compute"}
    assert "storage" not in schema["else"]["required"]
    assert "required" not in schema
    assert set(schema["$defs"]["Figure"]["required"]) == {"value", "kind", "source"}
    for record in (schema, *schema["$defs"].values()):
        assert record["additionalProperties"] is False
