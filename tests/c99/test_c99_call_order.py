"""Functions of an exported step in any order: each says what is wrong, and nothing crashes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from helpers.c_build import EXACT, STRICT
from helpers.c_plans import CNet, traced
from helpers.pace import few_or_many, with_slow
from torch import nn

from poet.c99.project import CProject
from poet.ir.optimizer import OptimizerSpec

HARNESS = Path(__file__).with_name("call_order.c")
LEARNING_RATE = 0.05
BAD_ARGUMENT, NOT_FINITE, STORAGE_FAILED, NO_STATE = 1, 2, 3, 4


def _net() -> CNet:
    """Two linear layers, the first of which is frozen."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    return traced(module, torch.randn(3, 4), optimizer=OptimizerSpec("momentum", lr=LEARNING_RATE))


def _run(project: CProject, folder: Path, runs: int, *flags: str) -> list[int]:
    """How often each status was given in so many runs of 24 calls."""
    sources = [str(folder / f"poet_{name}.c") for name in ("step", "state", "kernels", "weights")]
    defined = [f"-DLEARNING_RATE={LEARNING_RATE}f", "-DPOET_ERASE_BYTES=256u"]
    defined += [] if isinstance(project.prediction, str) else ["-DCAN_PREDICT"]
    command = ["gcc", *STRICT, *EXACT, *flags, *defined, "-I", str(folder), str(HARNESS), *sources]
    subprocess.run([*command, "-o", str(folder / "run")], check=True)
    done = subprocess.run(
        [folder / "run", str(runs)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    return [int(word) for word in done.stdout.split()]


@few_or_many("runs", 300, 40_000)
@pytest.mark.parametrize("kind", with_slow(["homes", "pages", "kept"], {"pages", "kept"}))
def test_calls_in_any_order_tell_what_is_wrong_and_nothing_crashes(
    kind: str, runs: int, tmp_path: Path
) -> None:
    """`call_order.c` says what is asked of each call."""
    folder = tmp_path / "c"
    project = _net().project(folder, 3, pages=kind == "pages", homes=kind == "homes")
    found = _run(project, folder, runs, "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")
    assert all(found[status] for status in (0, BAD_ARGUMENT, STORAGE_FAILED, NO_STATE)), found
    assert not found[NOT_FINITE]
