"""Profiles as they are read: by name or path, laid over one another, refused in one line; their figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.shipped_profiles import shipped_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poet.devices import load as profiles
from poet.devices.figures import PRIOR_FACTOR, Figure
from poet.devices.load import load_profile, profile_names
from poet.errors import ProfileError
from poet.report.device import format_figure, format_uncertainty

NAMES = profile_names()


def _error(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(path.name)
    return message


def test_a_wrong_device_name_suggests_the_nearest() -> None:
    with pytest.raises(ProfileError, match=r"^there is no device 'rpi4'; did you mean 'rpi4b'\? \(devices: "):
        load_profile("rpi4")


@pytest.mark.parametrize("name", ["..", "", "rpi4b.tom", "RPI4B", "hardware_profiles"])
def test_a_name_is_never_a_path(name: str) -> None:
    with pytest.raises(ProfileError, match="there is no device"):
        load_profile(name)


def test_a_file_of_another_ending_is_told_from_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "board.yaml").write_text("name: board")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ProfileError, match=r"^board\.yaml: a profile is a TOML file, whose name ends in \.toml$"
    ):
        load_profile("board.yaml")
    with pytest.raises(ProfileError, match=r"^there is no device 'other\.yaml'"):
        load_profile("other.yaml")
    with pytest.raises(ProfileError, match=r"^there is no device 'a{300}'"):
        load_profile("a" * 300)  # longer than a file's name may be


def test_a_path_is_read_wherever_it_is(tmp_path: Path) -> None:
    file = tmp_path / "board.toml"
    file.write_text(shipped_text("rpi4b"))
    assert load_profile(file) == load_profile(str(file)) == load_profile("rpi4b")


def test_extends_lays_tables_over_a_device_and_replaces_figures_whole(tmp_path: Path) -> None:
    file = tmp_path / "pi-2gb.toml"
    file.write_text(
        'version = 1\nextends = "rpi4b"\nname = "pi-2gb"\n[memory.ram_bytes]\n'
        'value = 2147483648\nkind = "vendor-doc"\nsource = "the label"\nuncertainty = 0.0\n'
    )
    profile, base = load_profile(file), load_profile("rpi4b")
    assert profile.memory.ram_bytes.value == 2**31
    assert profile.memory.ram_bytes.range is None
    assert profile.compute == base.compute
    assert profile.storage == base.storage


EDITS = {
    "unknown key": (
        "[compute.matmul.flops_per_second]",
        "[compute.matmul.flops]",
        "'flops' is not a field of compute.matmul; did you mean 'flops_per_second'?",
    ),
    "another unit": (
        "[storage.read.latency_seconds]",
        "[storage.read.latency_ms]",
        "'latency_ms' is not a field of storage.read; did you mean 'latency_seconds'?",
    ),
    "unknown at the top": (
        'title = "Rasp',
        'titel = "Rasp',
        "'titel' is not a field of a profile; did you mean 'title'?",
    ),
    "unknown in a figure": (
        "[compute.active_watts]\nvalue",
        "[compute.active_watts]\nvalues = 5\nvalue",
        "'values' is not a field of compute.active_watts; did you mean 'value'?",
    ),
    "nothing near": (
        "[kernels]\nname",
        "[kernels]\nxyzzy = 1\nname",
        "'xyzzy' is not a field of kernels; its fields are name, workspace_bytes, speeds_of, threads",
    ),
    "missing key": ('name = "pytorch-cpu"\n', "", "kernels: the field 'name' is missing"),
    "missing source": (
        'source = "google/XNNPACK README',
        '# source = "google/XNNPACK README',
        "compute.matmul.flops_per_second: the field 'source' is missing",
    ),
    "text for a number": (
        "value = 14.8e9",
        'value = "14.8 GFLOP/s"',
        "compute.matmul.flops_per_second.value is '14.8 GFLOP/s'; expected a valid number",
    ),
    "truth for a number": (
        "value = 14.8e9",
        "value = true",
        "compute.matmul.flops_per_second.value is True; expected a valid number",
    ),
    "fraction for a count": (
        "value = 4294967296",
        "value = 4294967296.5",
        "memory.ram_bytes.value is 4294967296.5; expected a valid integer",
    ),
    "not finite": (
        "value = 14.8e9",
        "value = inf",
        "compute.matmul.flops_per_second.value is inf; expected a finite number",
    ),
    "negative": (
        "value = 14.8e9",
        "value = -1.0",
        "compute.matmul.flops_per_second.value is -1.0; expected greater than or equal to 0",
    ),
    "value outside its range": (
        "value = 14.8e9",
        "value = 1e9",
        "compute.matmul.flops_per_second: the range [5000000000.0, 24000000000.0] does not contain the "
        "value 1e+09",
    ),
    "no speed": (
        "value = 14.8e9",
        "value = 0\nuncertainty = 0.0\n#",
        "compute.matmul.flops_per_second is 0; expected more",
    ),
    "unknown kind": (
        'kind = "derived"\nsource = "google',
        'kind = "heard"\nsource = "google',
        "compute.matmul.flops_per_second.kind is 'heard'; expected 'measured', 'datasheet', 'vendor-doc', "
        "'standard', 'published', 'derived' or 'assumed'",
    ),
    "uncertainty and range": (
        "range = [5e9, 24e9]",
        "range = [5e9, 24e9]\nuncertainty = 0.2",
        "compute.matmul.flops_per_second: an uncertainty and a range; give one of them",
    ),
    "a range of three": (
        "range = [5e9, 24e9]",
        "range = [5e9, 24e9, 25e9]",
        "compute.matmul.flops_per_second.range is (5000000000.0, 24000000000.0, 25000000000.0); "
        "expected at most 2 items, not 3",
    ),
    "another version": ("version = 1", "version = 2", "version is 2; expected 1"),
    "a path for a name": (
        'name = "rpi4b-xnnpack"',
        'name = "../rpi"',
        "name is '../rpi'; expected lower-case letters, digits and single hyphens",
    ),
    "less active than idle": (
        "value = 6.0",
        "value = 2.0\nuncertainty = 0.1\n#",
        "compute.active_watts is 2; total accounting includes energy.idle_watts in it, so expected 3 or more",
    ),
    "a class without speed": (
        "[compute.transcendental.flops_per_second]",
        "[compute.movement.flops_per_second]",
        "compute: no throughput for transcendental; give compute.transcendental",
    ),
    "extends a stranger": (
        "version = 1",
        'version = 1\nextends = "rpi4"',
        f"extends: there is no device 'rpi4'; did you mean 'rpi4b'? (devices: {', '.join(NAMES)})",
    ),
    "extends a number": (
        "version = 1",
        "version = 1\nextends = 7",
        "extends is 7; expected the name of a device",
    ),
}


@pytest.mark.parametrize("case", EDITS)
def test_what_breaks_the_schema_is_named_in_one_line(case: str, tmp_path: Path) -> None:
    old, new, expected = EDITS[case]
    text = shipped_text("rpi4b-xnnpack")
    assert old in text
    edited = text.replace(old, new, 1)
    if new.endswith("#"):  # the range that follows is commented out with its value
        edited = re.sub(r"\n#\n((?:.*\n)*?)range", r"\n\n\1# range", edited, count=1)
    assert _error(tmp_path / "p.toml", edited) == f"p.toml: {expected}"


def test_a_bare_number_is_told_what_a_figure_is(tmp_path: Path) -> None:
    text = 'version = 1\nextends = "rpi4b"\n[compute]\nactive_watts = 6.0\n'
    expected = "p.toml: compute.active_watts is 6.0; expected a table with value (in W), kind and source"
    assert _error(tmp_path / "p.toml", text) == expected


HOSTILE = {
    "not text": b"\xff\xfe\x00",
    "not TOML": b"[compute",
    "too large": b"#" * (profiles.MAX_FILE_BYTES + 1),
    "too deep": b"a = " + b"[" * 100_000,
    "too many digits": b"version = " + b"9" * 5000,
    "huge whole number": b'version = 1\nextends = "rpi4b"\n[memory.ram_bytes]\nvalue = 1' + b"0" * 400,
    "same key twice": b"version = 1\nversion = 1\n",
    "empty": b"",
    "a list": b'version = 1\ncompute = ["import os"]\n',
    "code": b"version = 1\nname = \"__import__('os')\"\n",
}


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        'extends = "rpi4b"\nname = "bad"\ntitel = "x"\n[energy.idle_watts]\nvalue = -1.0\nkind = "guess"\n'
        'source = "x"\n'
    )
    with pytest.raises(ProfileError) as error:
        load_profile(path)
    assert str(error.value).startswith("bad.toml: 3 faults: (1) 'titel' is not a field of a profile; did you")
    for named in ("(2) energy.idle_watts.value is -1.0", "(3) energy.idle_watts.kind is 'guess'"):
        assert named in str(error.value)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_get_one_line(case: str, tmp_path: Path) -> None:
    _error(tmp_path / "p.toml", HOSTILE[case])


def test_a_file_that_is_not_there_or_not_a_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(ProfileError, match="cannot be read"):
            load_profile(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10**6), inserted=st.binary(max_size=12), removed=st.integers(0, 30))
def test_a_damaged_profile_loads_or_is_refused(
    tmp_path: Path, position: int, inserted: bytes, removed: int
) -> None:
    content = shipped_text("nrf52840").encode()
    start = position % len(content)
    file = tmp_path / "p.toml"
    file.write_bytes(content[:start] + inserted + content[start + removed :])
    try:
        load_profile(file)
    except ProfileError as error:
        message = str(error)
    else:
        return
    assert "p.toml: " in message
    assert "\n" not in message


def _figure(value: float, **fields: object) -> Figure:
    return Figure.model_validate({"value": value, "kind": "measured", "source": "a test", **fields})


def test_a_figure_without_uncertainty_gets_its_kinds_prior() -> None:
    for kind, factor in PRIOR_FACTOR.items():
        assert _figure(10.0, kind=kind).interval == (10.0 / factor, 10.0 * factor)
    assert _figure(10.0, uncertainty=0.2).interval == (8.0, 12.0)
    assert _figure(10.0, range=[1.0, 11.0]).interval == (1.0, 11.0)


@pytest.mark.parametrize(
    ("value", "fields", "shown"),
    [
        (14.8e9, {"range": [5e9, 24e9]}, "15 GFLOP/s"),
        (14.8e9, {"uncertainty": 0.01}, "14.8 GFLOP/s"),
        (35e9, {"kind": "assumed"}, "40 GFLOP/s"),
        (166666.66666666666, {"uncertainty": 0.0}, "166.6666667 kFLOP/s"),
        (2e9, {"uncertainty": 0.0}, "2 GFLOP/s"),
        (0.0, {"uncertainty": 0.0}, "0 FLOP/s"),
        (9.96e6, {"uncertainty": 0.3}, "10 MFLOP/s"),
        (996e3, {"uncertainty": 0.3}, "1 MFLOP/s"),
    ],
)  # fmt: skip
def test_no_more_digits_than_the_uncertainty_supports(
    value: float, fields: dict[str, object], shown: str
) -> None:
    assert format_figure(_figure(value, **fields), "FLOP/s") == shown


def test_uncertainty_in_words() -> None:
    assert format_uncertainty(_figure(3.0, uncertainty=0.2), "W") == "± 20 %"
    assert format_uncertainty(_figure(3.0, range=[1.9, 3.4]), "W") == "1.9 W to 3.4 W"
    assert format_uncertainty(_figure(3.0, kind="assumed"), "W") == "factor 5 (prior)"
    assert format_uncertainty(_figure(3.0, uncertainty=0.0), "W") == "exact"
