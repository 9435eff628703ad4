"""Every model of the test bench imported, planned and verified: writes the table in docs/models.md.

The nine ``light_*`` networks that ship in the onnx package (batch 1) and the eight nets of `zoo` in
realistic sizes, exported from plain torch. All parameters are trained by SGD; the device is a
Raspberry Pi 4B; the budget lies 60 % of the way down from keeping everything to the lower bound, as these
were before ops ran in strips, slices and parts, so that plans of then and now have the same bytes.
Each model runs in a process of its own, one thread, and what a failed one said stands in its row.

    python examples/models_table.py [--only NAME ...] [--time-limit 60] [--output docs/models.md]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poet.api import Planned, Prepared

SHARE = 0.4
"""The budget's place, from the lower bound (0) to keeping everything (1)."""
LOW_SHARE, LOW_SECONDS = 0.05, 5.0
"""A second plan, so tight that it pages as well, and the time for its search; it is verified too."""
BEFORE: dict[str, tuple[float, float, float]] = {
    "bvlc_alexnet": (384.2, 288, 329),
    "densenet121": (216.7, 31.65, 11.5),
    "inception_v1": (65.93, 27.27, 6.3),
    "inception_v2": (102.8, 43.43, 7.14),
    "resnet50": (197.5, 98.27, 10.9),
    "shufflenet": (40.01, 5.994, 16),
    "squeezenet": (24.33, 9.024, 6.9),
    "vgg19": (1015, 784, 50.1),
    "zfnet512": (641.1, 576, 67.3),
    "resnet18": (82.07, 43.27, 53),
    "mobilenet_v2": (28.44, 8.674, 12.9),
    "bert": (536.9, 417.6, 49.2),
    "vit": (50.71, 21.66, 10.8),
    "unet": (74.73, 29.9, 40.7),
    "lstm": (23.61, 19.53, 31.4),
    "convnext": (218.8, 106.7, 5.28),
    "gpt": (941, 499.2, 170),
}
"""Of each model in the version that ran every op whole: MiB for keeping everything, MiB of the lower bound,
and per cent above running once at the budget between them. The budgets of now are those of then."""
MEMORY_BYTES, PROCESS_SECONDS = 12 << 30, 1800
MIB = 1 << 20
LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
    "squeezenet", "vgg19", "zfnet512",
)  # fmt: skip
EXPORTS = ("resnet18", "mobilenet_v2", "bert", "vit", "unet", "lstm", "convnext", "gpt")
HEADINGS = (
    "model", "ops", "buffers", "import s", "keep everything", "lower bound", "with homes chosen", "budget",
    "status", "gap", "above running once", "before", "recomputed", "paged out", "solve s",
    "verify at 1, 2 threads", "a tight plan", "verify at 1, 2 threads",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What one model gave; sizes in bytes, times in seconds, energies in joules."""

    ops: int
    buffers: int
    import_seconds: float
    keep_everything_bytes: int
    lower_bound_bytes: int
    homes_bound_bytes: int
    budget_bytes: int
    status: str
    gap: float
    overhead: float
    recomputed_runs: int
    written_bytes: int
    solve_seconds: float
    verified: tuple[str, ...]
    tight_recomputed_runs: int
    tight_written_bytes: int
    tight_verified: tuple[str, ...]


def model_file(name: str, folder: Path) -> tuple[Path, dict[str, int], str]:
    """The ONNX file of a model, what to bind, and its loss."""
    if name in LIGHT:
        import onnx

        light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
        return light / f"light_{name}.onnx", {}, "cross-entropy"
    import torch
    from zoo import NETS, export

    torch.manual_seed(0)
    net = NETS[name]
    path = folder / f"{name}.onnx"
    export(net.full.build(), net.full.inputs(2), path)
    return path, {"N": 1}, net.loss


def measure(name: str, time_limit_seconds: float) -> Row:
    """Import, plan and verify one model in this process."""
    import torch

    from poet import api
    from poet.problem import Limits
    from poet.ram_survey import budget_between, keep_everything_bytes
    from poet.solvers import minimum_ram_bytes

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path, bind, loss = model_file(name, folder)
        prepared = api.prepare(path, device="rpi4b-xnnpack", loss=loss, bind=bind)
        most = keep_everything_bytes(prepared.problem)
        least = minimum_ram_bytes(prepared.problem, Limits()).bytes
        kept_mib, least_mib, _ = BEFORE[name]
        then = int(least_mib * MIB), int(kept_mib * MIB)
        budget = budget_between(*then, SHARE)
        planned, verified = plan_and_verify(prepared, budget, time_limit_seconds, folder)
        low_budget = budget_between(*then, LOW_SHARE)
        tight, tight_verified = plan_and_verify(prepared, low_budget, LOW_SECONDS, folder)
        graph, solution = planned.plan.graph, planned.solution
        at_home = api.prepare(path, device="rpi4b-xnnpack", loss=loss, bind=bind, home="either")
        homes_bound_bytes = minimum_ram_bytes(at_home.problem, Limits()).bytes
    return Row(
        ops=len(graph.ops),
        buffers=len(graph.buffers),
        import_seconds=prepared.import_seconds,
        keep_everything_bytes=most,
        lower_bound_bytes=least,
        homes_bound_bytes=homes_bound_bytes,
        budget_bytes=budget,
        status=solution.status.word,
        gap=solution.gap or 0.0,
        overhead=(solution.overhead_joules or 0.0) / solution.baseline_joules,
        recomputed_runs=planned.plan.trace.recomputed_runs,
        written_bytes=planned.plan.trace.written_bytes,
        solve_seconds=solution.solve_seconds,
        verified=verified,
        tight_recomputed_runs=tight.plan.trace.recomputed_runs,
        tight_written_bytes=tight.plan.trace.written_bytes,
        tight_verified=tight_verified,
    )


def plan_and_verify(
    prepared: Prepared, budget_bytes: int, time_limit_seconds: float, folder: Path
) -> tuple[Planned, tuple[str, ...]]:
    """A plan, and for one and two threads "equal" or the first difference from plain PyTorch."""
    from poet import api
    from poet.problem import Limits
    from poet.solution import SolveOptions
    from poet.verification import verify

    options = SolveOptions(time_limit_seconds=time_limit_seconds)
    planned = api.plan_step(prepared, Limits(ram_budget_bytes=budget_bytes), options)
    planned.save(folder / "plan.poet")
    checked = verify(folder / "plan.poet", steps=1, threads=(1, 2))
    return planned, tuple(item.difference or "equal" for item in checked.comparisons)


def measured_apart(name: str, time_limit_seconds: float) -> dict[str, object] | str:
    """The row of ``name`` from a process of its own, or the last line of what went wrong."""
    command = [sys.executable, __file__, "--measure", name, "--time-limit", str(time_limit_seconds)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROCESS_SECONDS,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES)),
        )
    except subprocess.TimeoutExpired:
        return f"not done after {PROCESS_SECONDS} s"
    if done.returncode != 0:
        return done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"
    row: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return row


def cells(row: Row, before: float) -> Iterator[str]:
    """The row as its table shows it, after the name; ``before`` in per cent."""
    from poet.units import format_bytes, format_share

    yield from (str(row.ops), str(row.buffers), f"{row.import_seconds:.1f}")
    yield from map(
        format_bytes,
        (row.keep_everything_bytes, row.lower_bound_bytes, row.homes_bound_bytes, row.budget_bytes),
    )
    yield from (row.status, format_share(row.gap), format_share(row.overhead), format_share(before / 100))
    yield from (f"{row.recomputed_runs} runs", format_bytes(row.written_bytes), f"{row.solve_seconds:.1f}")
    yield ", ".join(row.verified)
    yield f"{row.tight_recomputed_runs} runs, {format_bytes(row.tight_written_bytes)} paged out"
    yield ", ".join(row.tight_verified)


def document(rows: dict[str, dict[str, object] | str], time_limit_seconds: float) -> str:
    """The page with the table."""
    lines = [
        "# Models",
        "",
        "Made by `make models-table`: the nine `light_*` networks of the onnx package at batch 1 and eight",
        "nets exported from plain torch in training mode (`examples/zoo`, batch 1). All parameters are",
        "trained by SGD on `rpi4b-xnnpack`; the budget lies 60 % of the way down from what keeping",
        "everything needed to the lower bound before ops ran in [strips](strips.md), slices and parts, so",
        f"that *before* is of the same bytes; a search has {time_limit_seconds:.0f} s and one thread.",
        "*Lower bound* is with parameters at home in RAM, *with homes chosen* as by `--home auto`.",
        "*Gap* is of the plan's energy; *above running once* is the plan's energy above running every op",
        "once; *equal* means that loss, predictions, gradients, parameters and states of a step are those",
        "of plain PyTorch bit for bit. A second, *tight* plan lies 95 % of the way down, where paging is",
        "needed too. Import and search times are of the machine that made the table, busy with other work.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|" + "---:|" * 7 + "---|" + "---:|" * 6 + "---|" * 3,
    ]
    for name, found in rows.items():
        title = f"light_{name}" if name in LIGHT else name
        shown = [found] if isinstance(found, str) else list(cells(Row(**found), BEFORE[name][2]))  # type: ignore[arg-type]
        lines.append(f"| {' | '.join([title, *shown])} |")
    missing = [name for name in LIGHT + EXPORTS if name not in rows]
    if missing:
        lines += ["", f"Not run when this table was made: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table, model by model."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", nargs="*", choices=LIGHT + EXPORTS, default=LIGHT + EXPORTS)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each search")
    parser.add_argument("--output", type=Path, default=Path("docs/models.md"))
    parser.add_argument("--measure", metavar="NAME", help="one model, in this process, as JSON")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(asdict(measure(arguments.measure, arguments.time_limit))))
        return
    rows: dict[str, dict[str, object] | str] = {}
    for name in arguments.only:
        started = time.perf_counter()
        rows[name] = measured_apart(name, arguments.time_limit)
        print(f"{name}: {time.perf_counter() - started:.0f} s: {rows[name]}", file=sys.stderr, flush=True)
        arguments.output.write_text(document(rows, arguments.time_limit), encoding="utf-8")


if __name__ == "__main__":
    main()
