"""The page on profiles: it names every field, unit and device, and its examples are what ships."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from helpers.shipped_profiles import shipped_text

from poet.devices.figures import PRIOR_FACTOR, UNITS, OpClass
from poet.devices.load import load_profile, profile_names

NAMES = profile_names()

DOCUMENT = (Path(__file__).parents[2] / "docs" / "boards.md").read_text(encoding="utf-8")


def test_the_document_names_every_field_kind_unit_and_device() -> None:
    named = set(re.findall(r"`([^`\s]+)`", DOCUMENT)) | set(re.findall(r"[a-z_]+", DOCUMENT))
    fields = {field for name in NAMES for path, _ in load_profile(name).figures() for field in path}
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
