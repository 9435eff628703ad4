"""The MLPerf Tiny nets as C99, kept and in their budgets: results/c99-table.json, and rows of README.md.

Each net is planned with SGD for `nrf52840`, homes of parameters chosen by the planner, written as C, linked
into a RAM region and run for three steps on this machine and on a Cortex-M4F in QEMU. Both must end in the
same bits; an image in its budget must not link in 8 bytes less than it takes. QEMU counts instructions.

    python -m benchmarks c99-table [--only ds-cnn] [--time-limit 20] [--plans folder]

With `--plans` a plan is searched for once and its file kept there: the next run has the same plans, so that
what it counts differs by kernels alone.

A third plan for each net may page inside the budget and recompute nothing.

Needs gcc-arm-none-eabi, libnewlib-arm-none-eabi and qemu-system-arm. About twelve minutes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from result_file import RESULTS, write

ROOT = Path(__file__).parents[1]
PAGE, README = RESULTS / "c99-table.json", ROOT / "README.md"
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests")]

import torch  # noqa: E402
from helpers.clocks import OwnTime  # noqa: E402
from mlperf_tiny import NETS  # noqa: E402

import poet  # noqa: E402
from poet.c99.project import c_project  # noqa: E402
from poet.devices.load import load_profile  # noqa: E402
from poet.plans.plan_file import PlanFile  # noqa: E402
from poet.problem.solution import SolveOptions  # noqa: E402
from poet.util.clock import WALL, Clock  # noqa: E402

DEVICE = "nrf52840"
BUDGETS_BYTES = {"ds-cnn": 98_304, "resnet-8": 204_800, "mobilenetv1": 393_216, "autoencoder": 360_448}
"""For the whole image: arena, data and stack."""
RAM_START = 0x20000000
BESIDE_ARENA_BYTES = 2_048  # the stack, 1,024, and data: a net has a word for each tensor in storage

HEAD = """# The MLPerf Tiny nets as C99

Made by `python -m benchmarks c99-table`.
A training step with SGD, every parameter trained, planned for `{device}` with homes
chosen by the planner in at most {seconds:g} s of its own time, linked for a Cortex-M4F, run for three steps
in QEMU. *RAM* is arena, data and a stack of 1,024 bytes, as the linker counts it; *stack* is what was used of
that. *Code* is all functions but those of the board that runs the test (`board_*`); *tables* are the schedule
and the other constants beside the weights. *Instructions* are those of the last step; *ratio* is to
everything kept. State and losses had the bits of this machine in every row, and no image inside a budget
linked in 8 bytes less than it takes. What a search finds inside a budget differs from run to run:
`docs/guarantees.md` says more.

| net | budget | RAM | moves | instructions | ratio | stack | code | tables |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
"""
PAGED_HEAD = """
## In the same bytes, nothing recomputed

Joules are of the step's plan; *chosen* are those of the plan above, which may recompute. A deadline is no
way to fewer instructions: for ds-cnn, resnet-8 and the autoencoder it is proven that no plan in these bytes
lasts at most 1.2 times as long as everything kept, as flash is slow to write.

| net | budget | RAM | instructions | ratio | joules | chosen |
|---|--:|--:|--:|--:|--:|--:|
"""


@dataclass(frozen=True, slots=True)
class Row:
    """What one image takes, and how long a step is.

    Attributes:
        ram_bytes: of the image, by its linker.
        moves: of tensors inside the arena.
        instructions: of the last step.
        stack_bytes: used.
        code_bytes: of all functions but the board's.
        table_bytes: of all constants but the weights.
        joules: of a step, by the plan.
    """

    ram_bytes: int
    moves: int
    instructions: int
    stack_bytes: int
    code_bytes: int
    table_bytes: int
    joules: float


def planned(
    name: str,
    ram_bytes: int | None,
    time_limit_seconds: float,
    path: Path,
    clock: Clock = WALL,
    *,
    recomputes: bool = True,
) -> None:
    """Write the plan for an image of so many bytes, or with everything kept; ``clock`` counts the seconds."""
    torch.manual_seed(0)
    net, device = NETS[name], load_profile(DEVICE)
    if ram_bytes is not None:  # A board like it with the RAM of the row: some images are larger than its own.
        count = device.memory.ram_bytes
        more = count.model_copy(update={"value": max(count.value, ram_bytes)})
        device = device.model_copy(update={"memory": device.memory.model_copy(update={"ram_bytes": more})})
    poet.plan(
        net.build(), torch.randn(net.shape), device=device, loss=net.loss,
        home="ram" if ram_bytes is None else "either",
        ram=None if ram_bytes is None else ram_bytes - BESIDE_ARENA_BYTES,
        recompute=recomputes and ram_bytes is not None, paging=ram_bytes is not None,
        options=SolveOptions(time_limit_seconds=time_limit_seconds, clock=clock),
        evaluation=False,
    ).save(path)  # fmt: skip


def made(
    name: str,
    ram_bytes: int | None,
    time_limit_seconds: float,
    plans: Path | None,
    *,
    recomputes: bool = True,
) -> Row:
    """Plan for that RAM, or with everything kept; write, link and run.

    Raises:
        SystemExit: a build or a run failed, bits differ, or the image links in less than it takes.
    """
    with tempfile.TemporaryDirectory() as work:
        plan = (plans or Path(work)) / f"{name}-{ram_bytes or 'kept'}{'' if recomputes else '-paged'}.poet"
        if not plan.exists():
            planned(name, ram_bytes, time_limit_seconds, plan, OwnTime(), recomputes=recomputes)
        folder = Path(work) / "step"
        with PlanFile(plan) as file:
            c_project(file).write(folder)
            arena, joules = file.plan.arena, file.plan.step_joules
        here, board = said(folder, "test"), said(folder, "test-cortex-m")
        if results(here) != results(board):
            sys.exit(f"{name}: the bits of QEMU are not those of this machine")
        image_bytes = int(line(board, r"RAM:\s+(\d+) B"))
        if ram_bytes is not None:
            if image_bytes > ram_bytes:
                sys.exit(f"{name}: {image_bytes:,} bytes are more than {ram_bytes:,}")
            check_tight(folder, image_bytes)
        return Row(
            image_bytes,
            0 if arena is None else len(arena.moves),
            int(re.findall(r"instructions 0x(\w+)", board)[-1], 16),
            int(line(board, r"stack, its bytes 0x(\w+)"), 16),
            *flash_bytes(folder),
            joules,
        )


def _make(folder: Path, *target: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "-C", str(folder), *target], capture_output=True, text=True, check=False)


def said(folder: Path, *target: str) -> str:
    """What ``make`` prints for its words; ends the program where it fails."""
    done = _make(folder, *target)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout + done.stderr


def line(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, text
    return found[1]


def results(text: str) -> list[str]:
    """The lines that are the same on every machine."""
    return [each for each in text.splitlines() if each.startswith(("loss", "state"))]


def check_tight(folder: Path, image_bytes: int) -> None:
    """The image links in what it takes, and in no 8 bytes less; ends the program otherwise."""
    image = folder / "build" / "test.elf"
    for ram_bytes, links in ((image_bytes, True), (image_bytes - 8, False)):
        image.unlink(missing_ok=True)
        done = _make(folder, "build/test.elf", f"RAM_BYTES={ram_bytes}")
        if (done.returncode == 0) is not links:
            sys.exit(f"{folder.name}: in {ram_bytes:,} bytes: {done.stderr}")
    said(folder, "build/test.elf")


def flash_bytes(folder: Path) -> tuple[int, int]:
    """Of all functions, and of the constants that are neither weights nor the test's."""
    command = ["arm-none-eabi-readelf", "--symbols", "--wide", str(folder / "build" / "test.elf")]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    words = [each.split() for each in symbols]
    sized = [
        (each[3], each[7], int(each[1], 16), int(each[2], 0))
        for each in words
        if len(each) == 8 and each[0] != "Num:"
    ]
    code = sum(size for kind, name, _, size in sized if kind == "FUNC" and not name.startswith("board_"))
    tables = sum(
        size
        for kind, name, place, size in sized
        if kind == "OBJECT"
        and place < RAM_START
        and name != "poet_weights"
        and not name.startswith("poet_test")
    )
    return code, tables


def _text(name: str, budget_bytes: int | None, row: Row, kept: Row) -> str:
    budget = "everything kept" if budget_bytes is None else f"{budget_bytes:,}"
    return (
        f"| {name} | {budget} | {row.ram_bytes:,} | {row.moves} | {row.instructions / 1e6:.1f} M "
        f"| {row.instructions / kept.instructions:.2f} | {row.stack_bytes} | {row.code_bytes:,} "
        f"| {row.table_bytes:,} |"
    )


def _paged_text(name: str, row: Row, kept: Row, chosen: Row) -> str:
    return (
        f"| {name} | {BUDGETS_BYTES[name]:,} | {row.ram_bytes:,} | {row.instructions / 1e6:.1f} M "
        f"| {row.instructions / kept.instructions:.2f} | {row.joules:.3f} | {chosen.joules:.3f} |"
    )


def readme_row(name: str, kept: str) -> str:
    """The README's line of a net: the RAM that its linker enforces, and that of keeping everything."""
    return f"| {name} | {BUDGETS_BYTES[name]:,} | {kept} |"


def write_readme(kept_bytes: dict[str, int]) -> None:
    """Put what keeping everything takes into the README's lines."""
    text = README.read_text()
    for name, size_bytes in kept_bytes.items():
        text, count = re.subn(
            rf"^\| {name} \| .*$", readme_row(name, f"{size_bytes:,}"), text, flags=re.MULTILINE
        )
        assert count == 1, name
    new = README.with_suffix(".new")
    new.write_text(text)
    new.replace(README)


def main() -> None:
    """Make every row, print it, and write the page where all nets were asked for."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", choices=BUDGETS_BYTES, action="append")
    parser.add_argument(
        "--time-limit", type=float, default=20.0, help="of each search, in seconds of its process"
    )
    parser.add_argument("--plans", type=Path, help="folder of plan files, of earlier runs and of this one")
    asked = parser.parse_args()
    if asked.plans is not None:
        asked.plans.mkdir(exist_ok=True)
    lines, paged_lines = list[str](), list[str]()
    kept_bytes: dict[str, int] = {}
    for name in asked.only or BUDGETS_BYTES:
        budget_bytes, given = BUDGETS_BYTES[name], (asked.time_limit, asked.plans)
        kept, chosen = made(name, None, *given), made(name, budget_bytes, *given)
        paged = made(name, budget_bytes, *given, recomputes=False)
        kept_bytes[name] = kept.ram_bytes
        lines += [_text(name, None, kept, kept), _text(name, budget_bytes, chosen, kept)]
        paged_lines.append(_paged_text(name, paged, kept, chosen))
        print(*lines[-2:], paged_lines[-1], sep="\n", flush=True)
    if asked.only:
        return
    head = HEAD.format(device=DEVICE, seconds=asked.time_limit)
    write(PAGE, "\n".join([head.rstrip("\n"), *lines, PAGED_HEAD.rstrip("\n"), *paged_lines, ""]))
    write_readme(kept_bytes)


if __name__ == "__main__":
    main()
