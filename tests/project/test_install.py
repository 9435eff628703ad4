"""What tells how to install says what works from a clone: ``poet`` on the public index is another project."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from poet.errors import InputError
from poet.extras import how_to_install
from poet.report.html import page
from poet.solvers import engines
from poet.whatif import workers
from poet.whatif.result import WhatIf

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TEXTS = sorted(
    path
    for folder in ("poet", "cli", "hardware_profiles", "docs", "examples", "tests", ".ci", ".")
    for path in ((ROOT / folder).rglob("*") if folder != "." else ROOT.iterdir())
    if path.suffix in (".py", ".md", ".toml", ".html", ".js", ".cpp", ".txt", ".json", "")
    and path.is_file()
    and path != Path(__file__)
    and "__pycache__" not in path.parts
)
ANOTHERS_PACKAGE = re.compile(
    r"""(?:pip3?|pipx|uv(?:\ tool)?|conda)\s+(?:install|add)(?:\s+-\S+)*\s+['"]?poet(?![\w./-])"""
    r"""|\bpoet\[\w""",
    re.VERBOSE,
)
EXTRAS = re.compile(r"pip install (?:-e |--editable )?'\.\[([\w,]+)\]'")


def test_the_distribution_has_a_name_of_its_own() -> None:
    assert PROJECT["name"] == "poet-edge-training"
    assert PROJECT["scripts"] == {"poet": "poet.cli.main:app"}


@pytest.mark.parametrize(
    "text",
    [
        "pip install poet",
        "pip install 'poet[report]'",
        "pip install -U poet\n",
        "the extra poet[x]",
        "uv add poet",
    ],
)
def test_the_pattern_finds_what_it_is_for(text: str) -> None:
    assert ANOTHERS_PACKAGE.search(text)


@pytest.mark.parametrize("text", ["pip install .", how_to_install("x"), "pip install poet-edge-training"])
def test_the_pattern_leaves_the_rest_alone(text: str) -> None:
    assert not ANOTHERS_PACKAGE.search(text)


def test_no_text_tells_to_install_anothers_package() -> None:
    assert len(TEXTS) > 200
    for path in TEXTS:
        text = path.read_text(errors="replace")
        if path.name == "CHANGELOG.md":  # what an older entry called an extra
            text = text.replace("`poet[", "`[")
        found = ANOTHERS_PACKAGE.search(text)
        assert found is None, f"{path}: {found and found[0]}"


def test_every_extra_that_a_text_names_is_there() -> None:
    named = {
        extra
        for path in TEXTS
        for found in EXTRAS.finditer(path.read_text(errors="replace"))
        for extra in found[1].split(",")
    }
    assert {"report", "cpsat", "scip", "cluster"} <= named
    assert named <= PROJECT["optional-dependencies"].keys()


def test_what_is_missing_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    monkeypatch.setattr(engines, "available_engines", lambda: ("highs",))
    for package in ("pandas", "distributed"):
        monkeypatch.setitem(sys.modules, package, None)
    told = []
    for ask in (
        page.check_installed,
        lambda: engines.choose_engine("cpsat"),
        lambda: engines.choose_engine("scip"),
        lambda: WhatIf.to_pandas(None),  # type: ignore[arg-type]
        lambda: workers._client("tcp://127.0.0.1:9").__enter__(),
    ):
        with pytest.raises(InputError) as caught:
            ask()
        told.append(str(caught.value))
    for said, extra in zip(told, ("report", "cpsat", "scip", "pandas", "cluster"), strict=True):
        assert how_to_install(extra) in said
        assert extra in PROJECT["optional-dependencies"]
