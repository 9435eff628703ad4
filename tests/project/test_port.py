"""Both sides of each script in docs/port-your-script.md run, and train alike."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "port-your-script.md").read_text(encoding="utf-8")
BLOCK = re.compile(r'^```(python|sh) title="(before|after|both)"\n(.*?)^```', re.MULTILINE | re.DOTALL)
SECTIONS = {text.partition("\n")[0]: text for text in PAGE.split("\n## ")[1:]}
NEEDS = {
    "Hugging Face's Trainer": "accelerate",
    "A Lightning module": "pytorch_lightning",
    "A Keras file": "keras",
}
"""What a script imports that poet does not install; its test runs where somebody has it."""
ROUNDING = {"A Keras file": 1e-4}
"""Of the loss, where other kernels are compared; else the bits are."""


def losses(script: str, folder: Path) -> list[float]:
    """``losses`` of a script at its end, run by itself."""
    told = f"{script}\nimport json\nprint(json.dumps(losses))\n"
    environment = {**os.environ, "POET_NO_KEPT_PLANS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", told],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def sides(section: str) -> dict[tuple[str, str], str]:
    """The blocks of a section; one of both sides has the lines of the second marked."""
    found = {(kind, side): text for kind, side, text in BLOCK.findall(section)}
    both = found.pop(("python", "both"), None)
    if both is not None:
        lines = both.splitlines(keepends=True)
        found["python", "after"] = both
        found["python", "before"] = "".join(line for line in lines if not line.endswith("  # new\n"))
        assert found["python", "before"] != both
    return found


@pytest.mark.slow
@pytest.mark.parametrize("title", SECTIONS)
def test_both_sides_train_alike(title: str, tmp_path: Path) -> None:
    if title in NEEDS and importlib.util.find_spec(NEEDS[title]) is None:
        pytest.skip(f"{NEEDS[title]} is not installed")
    blocks = sides(SECTIONS[title])
    before = losses(blocks["python", "before"], tmp_path)
    after = losses(blocks["python", "after"], tmp_path)
    assert len(before) == 3
    assert after == pytest.approx(before, rel=ROUNDING.get(title, 0.0), abs=0.0)
    if ("sh", "after") in blocks:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.run(
            ["sh", "-e", "-c", blocks["sh", "after"]],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            check=True,
        )


def test_every_script_has_two_sides() -> None:
    assert len(SECTIONS) == 5
    for text in SECTIONS.values():
        assert {side for _, side in sides(text)} == {"before", "after"}
