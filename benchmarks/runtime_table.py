"""The runtime table: peak and step time per net, batch and budget, in results/runtime.json.

    python -m benchmarks runtime-table [--only NET ...] [--folder .runtime-table] [--fresh] [--as-is]

A net is planned by the figures of ``x86-host``. Budgets lie 100, 70, 40 and 20 % of the way from the lower
bound to keeping everything. Each row is measured in two lean processes
that make steps in turn, one with the plan and one in plain PyTorch that keeps everything; their losses and
parameters are compared bit for bit. Rows that are done are kept in ``--folder``, so an interrupted run goes
on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from result_file import RESULTS, write
from workers import ROOT, WARM_STEPS, Worker, paired, ratio

from poet.util.units import format_bytes, format_seconds, format_share

NETS = ("resnet18-cifar", "resnet18-imagenet", "mobilenet-v2", "bert", "unet")
BATCHES, SHARES = (1, 8), (1.0, 0.7, 0.4, 0.2)
SOLVE_SECONDS, PAIR_SECONDS = 4.0, 4.0
HEADINGS = (
    "net", "batch", "threads", "budget", "predicted peak", "counted", "kernel's view", "arena efficiency",
    "measured step", "ratio to eager", "recomputed", "paged out", "bitwise equal",
)  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """What the plan of a row promises; bytes and seconds."""

    share: float
    budget_bytes: int
    promised_bytes: int
    efficiency: float
    recomputed_runs: int
    written_bytes: int


@dataclass(frozen=True)
class Row:
    """A plan and what was measured of it."""

    net: str
    batch: int
    threads: int
    plan: Planned
    counted_bytes: int
    kernel_bytes: int | None
    memory: str
    misses: int
    step_seconds: float
    ratio: float
    is_equal: bool


def plan_all(net: str, batch: int, threads: int, shares: Sequence[float], folder: Path) -> list[Planned]:
    """Trace the net once and plan it for each share of the way; plans go to ``folder``."""
    import torch
    from step_worker import SIZES, make_batch
    from step_worker import net as build

    from poet import api
    from poet.planning.ram_survey import budget_between, keep_everything_bytes
    from poet.planning.step_search import offered
    from poet.problem import Limits
    from poet.problem.solution import SolveOptions
    from poet.solvers import minimum_ram_bytes

    torch.set_num_threads(threads)
    make_batch(net, batch, folder)
    size, loss = SIZES[net]
    module = build(net)
    prepared = api.prepare(module, size.inputs(batch), device="x86-host", loss=loss, optimizer="momentum")
    forms = offered(prepared, Limits())
    most, least = keep_everything_bytes(forms), minimum_ram_bytes(forms, Limits()).bytes
    rows = []
    for share in shares:
        budget_bytes = budget_between(least, most, share)
        limits, options = (
            Limits(ram_budget_bytes=budget_bytes),
            SolveOptions(time_limit_seconds=SOLVE_SECONDS),
        )
        planned = api.plan_step(prepared, limits, options)
        planned.save(folder / plan_name(share))
        plan = planned.plan
        rows.append(
            Planned(
                share=share,
                budget_bytes=budget_bytes,
                promised_bytes=plan.held_bytes + plan.page_buffer_bytes,
                efficiency=plan.layout.efficiency if plan.layout is not None else 0.0,
                recomputed_runs=plan.trace.recomputed_runs,
                written_bytes=plan.trace.written_bytes,
            )
        )
    return rows


def plan_name(share: float) -> str:
    """The file of a plan."""
    return f"{round(100 * share)}.poet"


def measure(net: str, batch: int, threads: int, plan: Planned, folder: Path) -> Row:
    """Both processes, step by step."""
    path = folder / plan_name(plan.share)
    with Worker(str(path), net, threads, folder) as mine, Worker("plain", net, threads, folder) as plain:
        losses = [[worker.ask("step")["loss"] for _ in range(WARM_STEPS)] for worker in (mine, plain)]
        equal = losses[0] == losses[1] and mine.ask("digest") == plain.ask("digest")
        times = paired(mine, plain, seconds=PAIR_SECONDS)
        peak = mine.ask("peak")
    return Row(
        net=net, batch=batch, threads=threads, plan=plan,
        counted_bytes=peak["counted_bytes"], kernel_bytes=peak["kernel_bytes"], memory=peak["memory"],
        misses=peak["misses"], step_seconds=statistics.median(times[0]), ratio=ratio(times), is_equal=equal,
    )  # fmt: skip


def rows_of(
    net: str, batch: int, threads: int, folder: Path, *, shares: Sequence[float], as_is: bool
) -> Iterator[Row]:
    """The rows of one net, from ``folder`` where they are done."""
    folder.mkdir(parents=True, exist_ok=True)
    plans = folder / "plans.json"
    if as_is and not plans.exists():
        return
    if not plans.exists():
        command = [sys.executable, __file__, "--plan", net, str(batch), str(threads), str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples"), "OMP_NUM_THREADS": str(threads)}
        subprocess.run([*command, *map(str, shares)], check=True, env=environment)
    for data in json.loads(plans.read_text()):
        plan = Planned(**data)
        done = folder / f"{round(100 * plan.share)}.row.json"
        if as_is and not done.exists():
            continue
        if not done.exists():
            row = measure(net, batch, threads, plan, folder)
            done.write_text(json.dumps(asdict(row)))
        kept = json.loads(done.read_text())
        yield Row(**{**kept, "plan": Planned(**kept["plan"])})


def cells(row: Row) -> tuple[str, ...]:
    """As the table shows them."""
    plan = row.plan
    return (
        row.net, str(row.batch), str(row.threads), format_share(plan.share),
        format_bytes(plan.promised_bytes), format_bytes(row.counted_bytes),
        "" if row.kernel_bytes is None else format_bytes(row.kernel_bytes),
        f"{plan.efficiency:.3f}", format_seconds(row.step_seconds), f"{row.ratio:.2f}",
        str(plan.recomputed_runs), format_bytes(plan.written_bytes),
        "yes" if row.is_equal else "**no**",
    )  # fmt: skip


def page(rows: Sequence[Row]) -> str:
    """results/runtime.json."""
    assert __doc__ is not None
    counted = sum(_holds(row.plan, row.counted_bytes) for row in rows)
    seen = sum(_holds(row.plan, row.kernel_bytes) for row in rows)
    lines = [
        "# What the runtime holds",
        "",
        "Made by `python -m benchmarks runtime-table`",
        f"on {_processor()}, {os.cpu_count()} cores, torch {version('torch')}.",
        "",
        *__doc__.split("\n\n")[2].splitlines(),
        "",
        f"- Keeping everything, the replayed step takes, against eager: {'; '.join(_against_eager(rows))}.",
        f"- The peak stays within the predicted one plus 1 % or 4 MiB in {counted} of {len(rows)} rows",
        f"  as torch's allocator counts it, and in {seen} as the kernel sees it.",
        f"- Bitwise equal to plain PyTorch: {sum(row.is_equal for row in rows)} of {len(rows)} rows.",
        "",
        "The predicted peak is the whole arena and the page buffer. *Counted* is what torch's allocator",
        "holds for the step, hidden temporaries included; the *kernel's view* is by how much the process's",
        "high-water mark rose above what it held. The ratio is the median over pairs of steps made in turn.",
        "",
        _line(HEADINGS),
        _line(["---"] * len(HEADINGS)),
        *(_line(cells(row)) for row in rows),
        "",
    ]
    elsewhere = [row for row in rows if not row.memory.endswith("as planned")]
    lines += [f"- {r.net}, batch {r.batch}, {format_share(r.plan.share)}: {r.memory}" for r in elsewhere]
    return "\n".join(lines).rstrip() + "\n"


def _line(items: Sequence[str]) -> str:
    return f"| {' | '.join(items)} |"


def _holds(plan: Planned, measured_bytes: int | None) -> bool:
    allowed_bytes = max(plan.promised_bytes // 100, 4 << 20)
    return measured_bytes is not None and measured_bytes <= plan.promised_bytes + allowed_bytes


def _against_eager(rows: Sequence[Row]) -> Iterator[str]:
    for threads in (1, 2):
        ratios = [row.ratio for row in rows if row.plan.share == 1.0 and row.threads == threads]
        if ratios:
            at = f"{threads} thread{'s' * (threads > 1)}"
            yield f"{statistics.median(ratios):.2f} at {at} (the worst {max(ratios):.2f})"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main(arguments: Sequence[str]) -> None:
    """Make the rows that are not done, then the page."""
    if arguments[:1] == ["--plan"]:
        of, size, count, where, *wanted = arguments[1:]
        plans = plan_all(of, int(size), int(count), [float(share) for share in wanted], Path(where))
        (Path(where) / "plans.json").write_text(json.dumps([asdict(plan) for plan in plans]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=NETS, default=NETS)
    parser.add_argument("--folder", type=Path, default=ROOT / ".runtime-table")
    parser.add_argument("--output", type=Path, default=RESULTS / "runtime.json")
    parser.add_argument("--as-is", action="store_true", help="of the rows that are done")
    parser.add_argument("--fresh", action="store_true", help="measure all rows anew")
    chosen = parser.parse_args(arguments)
    if chosen.fresh and chosen.folder.exists():
        shutil.rmtree(chosen.folder)
    rows: list[Row] = []
    for net in chosen.only:
        for batch in BATCHES:
            for threads, shares in ((1, SHARES), (2, (1.0,))):
                folder = chosen.folder / f"{net}-{batch}-{threads}"
                for row in rows_of(net, batch, threads, folder.resolve(), shares=shares, as_is=chosen.as_is):
                    print("  ".join(cells(row)), flush=True)
                    rows.append(row)
    write(chosen.output, page(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
