"""Instructions of a plan's step as C, counted in QEMU: each run of an op by itself, and the whole step.

Needs gcc-arm-none-eabi, libnewlib-arm-none-eabi and qemu-system-arm.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from helpers.random_c_nets import random_net

from poet.c99.project import c_project
from poet.c99.statements import Statement
from poet.plans.plan_file import PlanFile

_RUN = "        schedule[i].run(net, schedule[i].numbers);\n"
_COUNTED = """        {
            const uint32_t before = board_instructions();
            schedule[i].run(net, schedule[i].numbers);
            const uint32_t taken = board_instructions() - before;
            if (net->steps == POET_TEST_STEPS - 1) {
                board_text("run 0x");
                board_number(taken);
                board_text("\\n");
            }
        }
"""
_DECLARED = """#include <string.h>
#define POET_TEST_STEPS 3u
void board_text(const char *text);
void board_number(uint32_t number);
uint32_t board_instructions(void);
"""


@dataclass(frozen=True, slots=True)
class Counted:
    """A plan's step on the board.

    Attributes:
        runs: each statement that has calls, and the instructions of its run in the last step.
        sizes_bytes: of the buffers that transfers name.
        whole: instructions of the whole last step, counted without counting its runs.
        seconds: that the plan's costs give each op.
    """

    runs: tuple[tuple[Statement, int], ...]
    sizes_bytes: dict[str, int]
    whole: int
    seconds: dict[str, float]


def counted(folder: Path, plan: Path, *, as_whole: bool = True) -> Counted:
    """Count a plan's step in QEMU; ``folder`` is made for it. Not ``as_whole``: its runs alone.

    Raises:
        SystemExit: it cannot be built or run.
    """
    with PlanFile(plan) as file:
        made = c_project(file)
        sizes_bytes = {buffer.name: buffer.size_bytes for buffer in file.plan.graph.buffers}
        seconds = {op.name: op.seconds for op in file.plan.problem.ops}
    made.write(folder)
    whole = re.findall(r"instructions 0x(\w+)", _board(folder)) if as_whole else ["0"]
    source = folder / "poet_step.c"
    text = source.read_text()
    if text.count(_RUN) != 1:
        sys.exit("the loop over a step's runs is written otherwise than this program knows")
    source.write_text(text.replace(_RUN, _COUNTED).replace("#include <string.h>\n", _DECLARED, 1))
    runs = [int(number, 16) for number in re.findall(r"run 0x(\w+)", _board(folder))]
    statements = [item for item in made.statements.statements if item.calls]
    if len(runs) != len(statements):
        sys.exit(f"{plan.name}: {len(runs)} runs of {len(statements)} statements")
    return Counted(tuple(zip(statements, runs, strict=True)), sizes_bytes, int(whole[-1], 16), seconds)


def _board(folder: Path) -> str:
    """What the board says; where random masks differ from PyTorch's, its losses do."""
    command = ["make", "-C", str(folder), "test-cortex-m", "RAM_BYTES=4000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    if done.returncode and "differs from PyTorch" not in text:
        sys.exit(text)
    return text


def random_counts(kind: str, seed: int, *, as_whole: bool) -> Counted:
    """Of a random net; seeds take turns in recomputing, moving, paging, and homes in storage."""
    net = random_net(kind, seed)
    ways: tuple[dict[str, bool], ...] = ({}, {"homes": True}, {"moves": True}, {"pages": True}, {})
    is_long = kind in ("elements", "sequence")  # to draw schedules that recompute through them takes minutes
    plan = net.plan() if is_long or seed % 5 == 0 else net.plan(seed, **ways[seed % 5])
    with tempfile.TemporaryDirectory() as work:
        path = net.write(Path(work) / "net.poet", plan)
        return counted(Path(work) / "c", path, as_whole=as_whole)
