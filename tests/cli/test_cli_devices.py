"""``poet devices``: what a user sees of the profiles."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest
from poet.cli.devices import EXAMPLES, app
from typer.main import get_command

from poet.devices.figures import UNITS
from poet.devices.load import load_profile, profile_names
from poet.errors import ProfileError


def _devices(*arguments: str) -> None:
    """Run ``poet devices`` in this process; its errors stay exceptions here."""
    get_command(app).main(list(arguments), prog_name="poet devices", standalone_mode=False)


def test_the_list_has_a_line_per_device(capsys: pytest.CaptureFixture[str]) -> None:
    _devices("list")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["name", "RAM", "storage"]
    rows = {line.split()[0]: line.split() for line in lines[1:] if line.split()[0:1]}
    assert set(profile_names()) <= set(rows)
    figures = [figure for _, figure in load_profile("rpi4b").figures()]
    share = round(100 * sum(figure.kind == "measured" for figure in figures) / len(figures))
    assert " ".join(rows["rpi4b"]) == (
        f"rpi4b 4 GiB 14.9 GiB 43 GFLOP/s 1.0 GB/s 46 MB/s 17 MB/s 3.0 W 3.0 W {share} %"
    )
    assert all(len(line) <= 110 for line in lines)


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    _devices("list", "--json", "-")
    devices = {device["name"]: device for device in json.loads(capsys.readouterr().out)}
    assert set(devices) == set(profile_names())
    assert devices["nrf52840"]["ram_bytes"] == 262144
    assert devices["nrf52840"]["storage_bytes"] == 8 * 2**20
    for name, device in devices.items():
        assert sum(device["figures_by_kind"].values()) == len(list(load_profile(name).figures()))


def test_compare_names_what_differs_by_more_than_it_may_be_off(capsys: pytest.CaptureFixture[str]) -> None:
    _devices("compare", "rpi4b-xnnpack", "stm32h743")
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.strip()}
    row = " ".join(rows["compute.matmul.flops_per_second"])
    assert row == "compute.matmul.flops_per_second 15 GFLOP/s 200 MFLOP/s 0.002 to 0.096"
    assert "storage.read.bandwidth_bytes_per_second" not in rows  # 20 to 50 and 20 to 90 MB/s
    (equal,) = (line for line in lines if line.startswith("may be equal: "))
    assert "storage.read.bandwidth_bytes_per_second" in equal
    _devices("compare", "rpi4b", "rpi4b", "--json", "-")
    assert {item["verdict"] for item in json.loads(capsys.readouterr().out)["figures"]} == {"may be equal"}


def test_compare_takes_the_speed_that_holds_and_the_power_above_idle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.toml"
    file.write_text(
        'version = 1\nextends = "rpi4b-xnnpack"\nname = "other"\n[compute.depthwise.flops_per_second]\n'
        'value = 0.5e9\nkind = "assumed"\nsource = "a test"\nuncertainty = 0.1\n'
    )
    _devices("compare", "rpi4b-xnnpack", str(file), "--json", "-")
    found = {item["figure"]: item for item in json.loads(capsys.readouterr().out)["figures"]}
    assert [name for name, item in found.items() if item["verdict"] != "may be equal"] == [
        "compute.depthwise.flops_per_second"
    ]
    assert found["compute.depthwise.flops_per_second"]["first"]["value"] == 14.8e9  # that of matmul
    assert found["compute.active_watts"]["first"]["value"] == 3.0


@pytest.mark.parametrize("name", profile_names())
def test_show_gives_every_figure_with_its_source(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    profile = load_profile(name)
    _devices("show", name)
    text = " ".join(capsys.readouterr().out.split())
    assert profile.title in text
    assert "accounting" in text
    _devices("show", name, "--json", "-")
    data = json.loads(capsys.readouterr().out)
    shown = {entry["figure"]: entry for entry in data["figures"]}
    assert set(shown) == {".".join(path) for path, _ in profile.figures()}
    for path, figure in profile.figures():
        entry = shown[".".join(path)]
        assert (entry["value"], entry["kind"], entry["source"]) == (figure.value, figure.kind, figure.source)
        assert (entry["low"], entry["high"]) == figure.interval
        assert entry["unit"] in UNITS.values()


def test_show_rounds_to_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    _devices("show", "rpi4b-xnnpack")
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line[:1].isalpha()}
    assert "15 GFLOP/s" in rows["compute.matmul"]
    assert "5.0 GFLOP/s to 24 GFLOP/s" in rows["compute.matmul"]
    assert "200 MFLOP/s" in rows["compute.transcendental"]
    assert "factor 5 (prior)" in rows["compute.transcendental"]
    assert "exact" in rows["memory.alignment_bytes"]


def test_show_and_validate_read_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "board.toml"
    file.write_text(files("poet.hardware_profiles").joinpath("mkr1000.toml").read_text())
    _devices("show", str(file))
    assert capsys.readouterr().out.startswith("mkr1000: Arduino MKR1000")
    _devices("validate", str(file))
    line = capsys.readouterr().out
    assert line.startswith("board.toml: a valid profile of Arduino MKR1000")
    figures = [figure for _, figure in load_profile(file).figures()]
    assert f"{len(figures)} figures" in " ".join(line.split())


def test_validate_refuses_with_the_field_and_the_nearest_right_one(tmp_path: Path) -> None:
    file = tmp_path / "rpi4b.toml"
    text = files("poet.hardware_profiles").joinpath("rpi4b.toml").read_text()
    file.write_text(text.replace("[compute.matmul.flops_per_second]", "[compute.matmul.flops]"))
    with pytest.raises(ProfileError) as caught:
        _devices("validate", str(file))
    expected = "rpi4b.toml: 'flops' is not a field of compute.matmul; did you mean 'flops_per_second'?"
    assert str(caught.value) == expected
    assert caught.value.exit_code == 2


def test_an_unknown_device_is_refused_with_the_names() -> None:
    with pytest.raises(ProfileError, match=r"did you mean 'mkr1000'\? \(devices: compat-m4f, "):
        _devices("show", "mkr100")


def test_the_examples_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = files("poet.hardware_profiles").joinpath("rpi4b.toml").read_text()
    (tmp_path / "my-board.toml").write_text(profile.replace('name = "rpi4b"', 'name = "my-board"'))
    for example in EXAMPLES:
        words = example.split()
        assert words[:2] == ["poet", "devices"]
        if words[2] in ("calibrate", "profile", "fit"):
            continue  # minutes of measurements; see tests/calibration
        _devices(*words[2:])
        assert capsys.readouterr().out
