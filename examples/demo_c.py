"""ResNet-8 as plain C99: planned for a budget, exported, and trained here and on a Cortex-M4F in QEMU.

python examples/demo_c.py [--ram 640KiB]

Without the cross compiler and QEMU it ends after this machine's test.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from mlperf_tiny import NETS

import poet
from poet import PlanFile
from poet.c99.project import c_project

NET = "resnet-8"
TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")


def made(folder: Path, *target: str) -> str:
    """What ``make`` in a folder says.

    Raises:
        SystemExit: it failed.
    """
    done = subprocess.run(["make", "-C", str(folder), *target], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout + done.stderr


def results(text: str) -> list[str]:
    """The lines that are the same on every machine."""
    return [line for line in text.splitlines() if line.startswith(("loss", "state"))]


def main() -> None:
    """Plan, export, build, run, compare."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--ram", default="640KiB", help="of the arena")
    ram = parser.parse_args().ram
    torch.manual_seed(0)
    net = NETS[NET]
    planned = poet.plan(
        net.build(), torch.randn(net.shape), device="stm32h743", ram=ram, paging=False, loss=net.loss,
        time_limit_seconds=30.0,
    )  # fmt: skip
    print(planned.summary())
    with tempfile.TemporaryDirectory() as work:
        plan, folder = Path(work) / "plan.poet", Path(work) / "step"
        planned.save(plan)
        with PlanFile(plan) as file:
            c_project(file).write(folder)
        here = made(folder, "test")
        print("\nthis machine")
        print("\n".join(results(here)))
        if not all(map(shutil.which, TOOLS)):
            print(f"\nno Cortex-M: {' and '.join(TOOLS)} are not both installed")
            return
        board = made(folder, "test-cortex-m")
        print("\nCortex-M4F in QEMU (numbers in hexadecimal)")
        kept = ("Memory", "FLASH", "RAM", "instructions", "loss", "state", "stack")
        print("\n".join(line for line in board.splitlines() if line.strip().startswith(kept)))
        same = results(here) == results(board)
        print(f"\nthe bits are {'the same' if same else 'NOT the same'}")
        if not same:
            sys.exit(1)


if __name__ == "__main__":
    main()
