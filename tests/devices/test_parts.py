"""Storage parts: swapped on every device, held back by its bus, and right about published speeds."""

from __future__ import annotations

import importlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from poet.cli.main import app
from result_file import is_kept
from typer.testing import CliRunner

from poet.devices.load import load_part, load_profile, part_names, profile_names, with_part
from poet.devices.sense import contradictions
from poet.errors import ProfileError

table: Any = importlib.import_module("benchmarks.published_table")
CARDS = ("microsd-a1", "microsd-a2")


@pytest.mark.parametrize("name", part_names())
def test_a_part_keeps_its_figures_on_a_device(name: str) -> None:
    part, board = load_part(name), load_profile("rpi4b")
    made = with_part(board, name)
    assert made.name == f"rpi4b-with-{name}"
    assert load_profile(made.name) == made
    assert made.storage is not None
    assert list(contradictions(made)) == []
    idle = board.energy.idle_watts.value
    assert made.storage.read.active_watts.value == pytest.approx(part.read.active_watts.value + idle)
    assert made.storage.read.latency_seconds == part.read.latency_seconds
    assert made.storage.erase == part.erase
    assert made.compute == board.compute
    for path, figure in made.figures():
        assert figure.interval[0] <= figure.value <= figure.interval[1], path


@pytest.mark.parametrize("name", CARDS)
def test_a_slower_bus_holds_a_card_back(name: str) -> None:
    for device, bus in (("rpi-zero-2w", 25e6), ("mkr1000", 1.5e6), ("rpi5", 104e6)):
        storage = with_part(load_profile(device), name).storage
        assert storage is not None
        own = load_part(name).read.bandwidth_bytes_per_second
        speed = storage.read.bandwidth_bytes_per_second
        assert speed.value == min(own.value, bus)
        assert speed.interval[1] <= bus
    nvme = with_part(load_profile("rpi5"), "nvme-gen2").storage
    assert nvme is not None
    assert nvme.bus_bytes_per_second is None  # that of the card's slot is not its own


def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"every byte goes through memory\.bandwidth"):
        load_profile("mkr1000-with-nvme-gen3")
    with pytest.raises(ProfileError, match="there is no storage part 'nvme-gen4'; did you mean 'nvme-gen"):
        load_profile("rpi5-with-nvme-gen4")
    with pytest.raises(ProfileError, match="there is no device 'rpi9'"):
        load_profile("rpi9-with-emmc")
    bad = tmp_path / "part.toml"
    bad.write_text('version = 1\nname = "x"\ntitle = "y"\ninterface = "sd"\nspeed = 3\n')
    with pytest.raises(ProfileError, match=r"part\.toml: .*'speed' is not a field of a storage part"):
        load_part(bad)
    thirds = tmp_path / "thirds.toml"
    shipped = (files("poet.hardware_profiles") / "parts" / "nor-mt25q.toml").read_text()
    thirds.write_text(shipped.replace("value = 256\n", "value = 3\n", 1))
    with pytest.raises(ProfileError, match=r"storage\.page_bytes is 3 B, which is no power of two"):
        with_part(load_profile("stm32h743"), thirds)
    board = tmp_path / "board.toml"
    board.write_text('version = 1\nextends = "rpi5"\nname = "board"\ntitle = "b"\n[storage]\npart = "none"\n')
    with pytest.raises(ProfileError, match="the field 'transfers' is missing"):
        load_profile(board)
    figure = 'value = 1e-3\nkind = "assumed"\nsource = "a guess"\n'
    extending = 'version = 1\nextends = "rpi5"\nname = "board"\ntitle = "b"\n'
    board.write_text(f"{extending}[storage.read.latency_seconds]\n{figure}")
    storage, base = load_profile(board).storage, load_profile("rpi5").storage
    assert storage is not None
    assert base is not None
    assert storage.read.latency_seconds.value == 1e-3
    assert storage.write == base.write
    board.write_text(f"{extending}[storage.read.delay_seconds]\n{figure}")
    with pytest.raises(ProfileError, match=r"'delay_seconds' is not a field of storage\.read"):
        load_profile(board)


def test_solve_takes_a_part_or_a_size(tmp_path: Path) -> None:
    listed = CliRunner().invoke(app, ["devices", "parts", "--json", "-"])
    assert {row["name"] for row in json.loads(listed.stdout)} == set(part_names())
    problem = Path(__file__).parents[1] / "instances" / "linear.m4.json"
    for asked, words in (
        (["--storage", "emmc"], "--storage emmc is for a model"),
        (["--storage", "emmc", "--storage", "ufs-2-0"], "one part is given already"),
        (["--storage", "1MiB", "--storage", "2MiB"], "one size is given already"),
    ):
        result = CliRunner().invoke(app, ["solve", str(problem), "--ram", "1MiB", *asked])
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
        assert words in result.stderr


# --- against what is published --------------------------------------------------------------------------


def test_published_speeds_are_inside_the_parts_intervals() -> None:
    found = table.accesses()
    kinds = {"microsd": 120, "emmc": 36, "nvme": 40}
    for kind, number in kinds.items():
        mine = [item for item in found if item.part.startswith(kind)]
        assert len(mine) == number
        assert sum(item.inside for item in mine) >= 0.8 * number
        assert all(item.width <= 3.0 for item in mine)
        assert {item.size_bytes for item in mine} >= {4096, 1 << 20}
    others = [item for item in found if not item.in_fit]
    assert sum(item.inside for item in others) >= 0.8 * len(others)


def test_two_nets_tell_the_energy_of_two_others() -> None:
    found = table.held_out()
    assert {item.board for item, _ in found} == {"stm32l4r5", "stm32u575", "stm32u385"}
    assert all(0.85 <= ratio <= 1.15 for _, ratio in found)
    assert len(found) == 6


def test_the_page_is_what_the_tables_say() -> None:
    assert is_kept(table.PAGE, table.page())


def test_figures_by_kind_add_up() -> None:
    names = [name for name, counts in table.shares() if sum(counts.values()) > 10]
    assert set(names) == {name for name in profile_names() if not name.startswith("compat-")}
