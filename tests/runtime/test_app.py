"""The example app: short, and all it needs is a plan, torch and numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import hand_net
from helpers.schedules import random_schedule

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "on_device_app.py"

HOOK = """
import importlib.metadata, re, sys
needed, waiting = set(), ["torch", "numpy"]
while waiting:
    name = waiting.pop()
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        continue
    if found.name not in needed:
        needed.add(found.name)
        waiting += [re.match(r"[\\w.-]+", line)[0] for line in found.requires or () if "extra ==" not in line]
owners = importlib.metadata.packages_distributions()
hidden = {package for package, names in owners.items() if not needed & set(names) and package != "poet"}
assert {"onnx", "pulp", "highspy", "typer", "rich", "pydantic", "joblib", "safetensors"} <= hidden
refused = []
class Refuse:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            refused.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse)
"""
"""In front of every import: only torch, numpy, what these require, and poet can be imported."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    of = hand_net.problem(hand_net.graph())
    hand_net.write(tmp_path / "plan.poet", random_schedule(of, 5))
    batches = [hand_net.batch(number) for number in range(3)]
    inputs, targets = (torch.cat([batch[place] for batch in batches]).numpy() for place in range(2))
    np.savez(tmp_path / "samples.npz", inputs=inputs, targets=targets)
    return tmp_path


def run(folder: Path, *, before: str, after: str) -> str:
    """What the app prints; ``before`` and ``after`` are Python around it."""
    names = [str(folder / name) for name in ("plan.poet", "samples.npz", "state.safetensors")]
    code = f"""
{before}
import runpy, sys, torch
torch.set_num_threads(1)
sys.argv = [{str(APP)!r}, *{names!r}]
runpy.run_path({str(APP)!r}, run_name="__main__")
{after}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_app_is_short() -> None:
    assert len(APP.read_text().splitlines()) <= 40


def test_the_app_needs_nothing_of_what_planning_needs(folder: Path) -> None:
    after = """
import json
from poet.plans.plan_file import read_plan
from poet.runtime.storage.page_file import PageFile
print(json.dumps(sorted(name for name in sys.modules if name.startswith('poet'))))
for package in ("onnx", "typer"):
    try:
        __import__(package)
    except ModuleNotFoundError:
        print("refused", package)
"""
    *steps, modules_line, onnx, typer = run(folder, before=HOOK, after=after).splitlines()
    assert [line.split(":")[0] for line in steps] == ["step 1", "step 2", "step 3"]
    assert (onnx, typer) == ("refused onnx", "refused typer")
    modules = json.loads(modules_line)
    rooms = {name.split(".")[1] for name in modules if "." in name}
    assert rooms.isdisjoint({"frontend", "solvers", "profiles", "costs", "report", "cli", "api"})
