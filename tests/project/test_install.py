"""What tells how to install says what works from a clone: ``poet`` on the public index is another project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from poet.errors import PLAN_PACKAGES, InputError, how_to_install
from poet.report import html
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
    assert PROJECT["scripts"] == {"poet": "poet.__main__:main"}


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
    monkeypatch.setattr(html, "find_spec", lambda name: None)
    monkeypatch.setattr(engines, "available_engines", lambda: ("highs",))
    for package in ("pandas", "distributed"):
        monkeypatch.setitem(sys.modules, package, None)
    told = []
    for ask in (
        html.check_installed,
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


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=]", requirement)[0]


def test_the_runtime_asks_for_torch_and_numpy_and_an_extra_for_the_rest() -> None:
    assert {_name(item) for item in PROJECT["dependencies"]} == {"torch", "numpy"}
    extras = PROJECT["optional-dependencies"]
    assert sorted(map(_name, extras["plan"])) == sorted(PLAN_PACKAGES)
    for name, items in extras.items():
        assert name in ("plan", "flower") or "poet-edge-training[plan]" in items, (
            f"{name} is of no use without planning"
        )
    assert ".[dev]" in (ROOT / "Makefile").read_text()


def _without(packages: tuple[str, ...], code: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` where ``packages`` are not installed."""
    hidden = f"""
import importlib.abc, importlib.machinery, sys
hidden = {packages!r}
class Hiding(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)
sys.meta_path = [Hiding if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path]
sys.argv = ["poet", "solve", "tests/instances/linear.m4.json", "--ram", "1MiB"]
"""
    return subprocess.run(
        [sys.executable, "-c", f"{hidden}\n{code}"], capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


COMMAND = "from poet.__main__ import main; main()"


@pytest.mark.parametrize(
    ("packages", "code", "named"),
    [
        (
            PLAN_PACKAGES,
            COMMAND,
            "need highspy, joblib, numba, onnx, pulp, pydantic, rich, scipy, typer, which are not",
        ),
        (("typer",), COMMAND, "need typer, which is not installed"),
        (("highspy", "pulp"), COMMAND, "need highspy, pulp, which are not installed"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_that_lacks_a_package_says_so_in_one_line(
    packages: tuple[str, ...], code: str, named: str
) -> None:
    done = _without(packages, code)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("poet: ")
    assert named in line
    assert line.endswith(how_to_install("plan"))


def test_names_that_plan_say_which_extra_is_missing() -> None:
    names = ("plan", "solve", "survey", "trade_off", "what_if", "Planned")
    done = _without(
        PLAN_PACKAGES,
        f"""
import poet
from poet.errors import MissingPackage
poet.Problem, poet.simulate, poet.Limits
for name in {names}:
    try:
        getattr(poet, name)
    except MissingPackage as error:
        print(error)
""",
    )
    assert done.returncode == 0, done.stderr
    assert [line.endswith(how_to_install("plan")) for line in done.stdout.splitlines()] == [True] * len(names)


@pytest.mark.slow
def test_an_onnx_file_without_onnx_says_so() -> None:
    done = _without(
        ("onnx",),
        """
import poet
from poet.errors import MissingPackage
try:
    poet.plan("model.onnx", device="rpi4b", ram="1MiB")
except MissingPackage as error:
    print(error)
""",
    )
    assert done.returncode == 0, done.stderr
    assert "need onnx, which is not installed" in done.stdout


def test_another_package_that_is_missing_is_no_matter_of_extras() -> None:
    done = _without(("typer", "nowhere"), "import sys; sys.modules['poet.cli.main'] = None\n" + COMMAND)
    assert "ModuleNotFoundError" in done.stderr
