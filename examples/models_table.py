"""Every model of the test bench imported, planned and verified: writes benchmarks/results/models.json.

The nine ``light_*`` networks that ship in the onnx package (batch 1) and the eight nets of `zoo` in
realistic sizes, exported from plain torch. All parameters are trained by SGD; the device is a
Raspberry Pi 4B; budgets are those from before ops ran in strips, slices and parts, so that plans of then and
now have the same bytes (models_before.json). A search's seconds are a core's, its own and its children's.
Each model runs in a process of its own, one thread, smallest first. A row is kept in ``--folder`` as soon as
it is made, and a row that is there is not made again: a run that was interrupted goes on where it was, and
the page is written after each row, of those that exist. Once all rows are tried, each model is planned in the
least RAM as well, and in the least in which a plan has an arena. These are rows of their own, and so is the
plan of today with every op whole.

    python examples/models_table.py [--only NAME ...] [--time-limit 10] [--again] [--as-is]
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models_page import document
from models_rows import (
    LIGHT,
    LOW_SECONDS,
    LOW_SHARE,
    MIDDLE_SHARE,
    MODELS,
    SHARE,
    Bound,
    Forms,
    Kept,
    Placed,
    Planned,
    Reached,
    Row,
    Trial,
    Whole,
    before,
    keep_row,
    kept_row,
)

from poet.util import codec

if TYPE_CHECKING:
    from poet.ir.graph import Graph
    from poet.planning.planned import Planned as PlannedStep
    from poet.planning.prepared import Prepared
    from poet.plans.training_plan import Plan

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]  # for a clock and a worker
DEVICE = "rpi4b-xnnpack"
MEMORY_BYTES, PROCESS_SECONDS = 12 << 30, 1800
PLAN_FILE, WHOLE_PAGE_BYTES = "plan.poet", 4096


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
    from poet.ir.strips import Gradients
    from poet.planning.ram_survey import keep_everything_bytes
    from poet.planning.step_search import offered
    from poet.problem import Limits
    from poet.solvers import minimum_ram_bytes

    torch.set_num_threads(1)
    then = before()[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path, bind, loss = model_file(name, folder)

        def prepared_with(home: str, gradients: Gradients = Gradients.STREAM) -> Prepared:
            _say(name, f"import, home {home}, gradients {gradients.value}")
            return api.prepare(path, device=DEVICE, loss=loss, bind=bind, home=home, gradients=gradients)

        whole = prepared_with("either", Gradients.KEEP)
        plain_homes_bound = bound_of(whole)
        _say(name, "trials of weight gradients")
        trials = tuple(gradient_trials(whole.step.graph))
        del whole
        at_home = prepared_with("either")
        homes_bound, parts = bound_of(at_home), len(at_home.step.graph.wholes)
        del at_home
        prepared = prepared_with("ram")
        graph, choices = prepared.step.graph, offered(prepared, Limits())
        plan, made = planned(prepared, name, then.budget_bytes(SHARE), time_limit_seconds, folder)
        middle, _ = planned(prepared, name, then.budget_bytes(MIDDLE_SHARE), time_limit_seconds, None)
        low_seconds = min(LOW_SECONDS, time_limit_seconds)
        tight, _ = planned(prepared, name, then.budget_bytes(LOW_SHARE), low_seconds, folder)
    return Row(
        time_limit_seconds=time_limit_seconds,
        ops=len(graph.ops),
        buffers=len(graph.buffers),
        import_seconds=prepared.import_seconds,
        parameter_bytes=parameter_bytes(graph),
        keep_everything_bytes=keep_everything_bytes(choices),
        keep_packed_bytes=keep_everything_bytes(prepared.problem),
        lower_bound_bytes=minimum_ram_bytes(choices, Limits()).bytes,
        homes_bound=homes_bound,
        plain_homes_bound=plain_homes_bound,
        parts=parts,
        forms=forms_of(graph if made is None else made.graph),
        plan=plan,
        middle=middle,
        tight=tight,
        trials=trials,
    )


def measure_whole(name: str, time_limit_seconds: float) -> Whole:
    """Plan one model at the first budget with every op whole."""
    import torch

    from poet import api
    from poet.ir.strips import Gradients

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        path, bind, loss = model_file(name, Path(temporary))
        _say(name, "import, gradients keep")
        prepared = api.prepare(path, device=DEVICE, loss=loss, bind=bind, gradients=Gradients.KEEP)
        budget_bytes = before()[name].budget_bytes(SHARE)
        row, _ = planned(prepared, name, budget_bytes, time_limit_seconds, None)
    return Whole(time_limit_seconds, row)


def prepared_at_home(name: str, folder: Path) -> Prepared:
    """One model with homes to choose, at one thread."""
    import torch

    from poet import api

    torch.set_num_threads(1)
    path, bind, loss = model_file(name, folder)
    _say(name, "import, home either")
    return api.prepare(path, device=DEVICE, loss=loss, bind=bind, home="either")


def measure_reached(name: str, time_limit_seconds: float) -> Reached:
    """Plan and verify one model in exactly the bytes of its lower bound with placement chosen."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepared = prepared_at_home(name, folder)
        row, plan = planned(prepared, name, bound_of(prepared).bytes, time_limit_seconds, folder)
    if plan is None or plan.layout is None or not plan.has_fitting_arena:
        return Reached(time_limit_seconds, row)
    return Reached(time_limit_seconds, row, plan.layout.arena_bytes)


PLACED_SHARES = (0.0, 0.01, 0.03, 0.1, 0.2)
"""Above the lower bound, beside the page buffer: budgets in which a plan with an arena is looked for."""


def measure_placed(name: str, time_limit_seconds: float) -> Placed:
    """The least RAM of a few budgets in which one model has a plan with an arena; its peak as measured."""
    from poet.plans.page_slots import least_page_buffer_bytes

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepared = prepared_at_home(name, folder)
        bound_bytes = bound_of(prepared).bytes
        budgets = [bound_bytes]
        for share in PLACED_SHARES:
            bytes_ = math.ceil(bound_bytes * (1.0 + share) / WHOLE_PAGE_BYTES) * WHOLE_PAGE_BYTES
            budgets.append(bytes_ + least_page_buffer_bytes(bytes_))
        for budget_bytes in budgets:
            row, made = searched(prepared, name, budget_bytes, time_limit_seconds)
            if made is not None and made.plan.layout is not None and made.plan.has_fitting_arena:
                row = replace(row, verified=verified(made, name, folder))
                arena_bytes = made.plan.layout.arena_bytes
                return Placed(
                    time_limit_seconds, bound_bytes, row, arena_bytes, peak_bytes(made.plan, name, folder)
                )
    return Placed(time_limit_seconds, bound_bytes, row)


def peak_bytes(plan: Plan, name: str, folder: Path) -> int:
    """Of steps of the plan in ``folder``, in a process of their own, as torch's allocator counts."""
    import torch

    from poet.runtime.data.random_batches import random_batch

    _say(name, "measure")
    inputs, targets = random_batch(plan, seed=0)
    torch.save([*inputs, targets], folder / "batch.pt")
    workers: Any = importlib.import_module("benchmarks.workers")
    with workers.Worker(str(folder / PLAN_FILE), name, 1, folder) as worker:
        counted: int = worker.ask("peak")["counted_bytes"]
    return counted


def planned(
    prepared: Prepared, name: str, budget_bytes: int, seconds: float, folder: Path | None
) -> tuple[Planned, Plan | None]:
    """A plan, and what the page tells of it; verified where ``folder`` takes its file."""
    row, made = searched(prepared, name, budget_bytes, seconds)
    if made is not None and folder is not None:
        row = replace(row, verified=verified(made, name, folder))
    return row, None if made is None else made.plan


def verified(made: PlannedStep, name: str, folder: Path) -> tuple[str, ...]:
    """``made``, in a file in ``folder``, against plain PyTorch at one thread and at two."""
    from poet.verification import verify

    _say(name, "verify")
    made.save(folder / PLAN_FILE)
    checked = verify(folder / PLAN_FILE, steps=1, threads=(1, 2))
    return tuple(item.difference or "equal" for item in checked.comparisons)


def searched(
    prepared: Prepared, name: str, budget_bytes: int, seconds: float
) -> tuple[Planned, PlannedStep | None]:
    """A plan and what the page tells of it, not verified."""
    from helpers.clocks import CoreClock

    from poet import api
    from poet.errors import Infeasible, OutOfTime
    from poet.problem import Limits
    from poet.problem.solution import SolveOptions

    _say(name, f"plan in {budget_bytes} B")
    limits = Limits(ram_budget_bytes=budget_bytes)
    options = SolveOptions(time_limit_seconds=seconds, clock=CoreClock())
    try:
        made = api.plan_step(prepared, limits, options)
    except (Infeasible, OutOfTime) as error:
        return Planned(budget_bytes, f"no plan: {error}"), None
    solution = made.solution
    row = Planned(
        budget_bytes=budget_bytes,
        status=solution.status.word,
        gap=solution.gap,
        overhead=(solution.overhead_joules or 0.0) / solution.baseline_joules,
        once_joules=solution.baseline_joules,
        recomputed_runs=made.plan.trace.recomputed_runs,
        written_bytes=made.plan.trace.written_bytes,
        solve_seconds=solution.solve_seconds,
        verified=(),
    )
    return row, made


def parameter_bytes(graph: Graph) -> int:
    """Of all parameters, shared ones once."""
    sizes = {buffer.name: buffer.size_bytes for buffer in graph.buffers}
    return sum(sizes[buffer] for buffer in {graph.buffer_of(item.value) for item in graph.parameters})


def bound_of(prepared: Prepared) -> Bound:
    """The lower bound over all choices, and the op that makes it, in the form that needs least."""
    from poet.planning.step_search import offered
    from poet.problem import Limits
    from poet.problem.alternatives import leanest
    from poet.solvers import minimum_ram_bytes

    choices = offered(prepared, Limits())
    found = minimum_ram_bytes(choices, Limits())
    if found.op is None:
        return Bound(found.bytes, "start or end of the step")
    forms = prepared.step.forms
    graph = prepared.step.graph if forms is None else forms.graph(leanest(choices))
    for op in graph.ops:
        if op.name == found.op:
            call = op.call if op.strip is None else op.strip.links[0].call
            blocks = "" if op.strip is None or op.strip.is_whole else f" in {len(op.strip.bounds)} blocks"
            return Bound(found.bytes, f"`{found.op}` ({call.target.removesuffix('.default')}{blocks})")
    return Bound(found.bytes, f"`{found.op}`")


def forms_of(graph: Graph) -> Forms:
    """How the ops of ``graph`` run and what they save."""
    from poet.report.check import packed_saves

    every = [op.strip for op in graph.ops if op.strip is not None]
    blocks = [strip for strip in every if strip.overwritten is None]
    strips = [strip for strip in blocks if strip.inner]
    packed = packed_saves(graph)
    return Forms(
        strips=len(strips),
        strip_whole_bytes=sum(strip.whole_bytes for strip in strips),
        strip_block_bytes=sum(strip.block_bytes for strip in strips),
        slices=len(blocks) - len(strips),
        overwriting=len(every) - len(blocks),
        packed=packed.tensors,
        packed_whole_bytes=packed.whole_bytes,
        packed_bytes=packed.short_bytes,
    )


def gradient_trials(graph: Graph) -> Iterator[Trial]:
    """Each distinct gradient of a weight of 256 KiB or more, whole and in blocks, with one and two threads.

    Args:
        graph: of which every gradient exists whole.
    """
    from poet.passes.strips import LEAST_BYTES, gradient_candidates
    from poet.runtime.kernels.strips import signature
    from poet.runtime.trials import trial
    from poet.runtime.trials.blocks import BLOCK_COUNTS, is_exact

    values = {value.name: value for value in graph.values}
    seen: set[str] = set()
    with trial.recalled():
        for parameter, ways in zip(graph.parameters, gradient_candidates(graph), strict=True):
            size_bytes = values[parameter.value].type.extent_bytes
            if parameter.gradient is None or size_bytes < LEAST_BYTES:
                continue
            distinct = (
                f"no strip, {parameter.name} of {graph.name}"
                if not ways
                else trial.digest_of(tuple(repr(signature(way.strip, way.outputs, values)) for way in ways))
            )
            if distinct in seen:
                continue
            seen.add(distinct)
            exact = [
                count
                for count in BLOCK_COUNTS
                for way in ways
                if count <= way.strip.size and is_exact(way.in_blocks(count).strip, way.outputs, values)
            ][:1]
            yield Trial(parameter.name, distinct, size_bytes, exact[0] if exact else 0 if ways else None)


def _say(name: str, what: str) -> None:
    print(f"{name}: {what}", file=sys.stderr, flush=True)


MEASURES: dict[str, Callable[[str, float], Row | Whole | Reached | Placed]] = {
    Row.__name__: measure,
    Whole.__name__: measure_whole,
    Reached.__name__: measure_reached,
    Placed.__name__: measure_placed,
}


def measured_apart(name: str, time_limit_seconds: float, kind: type[Kept]) -> Kept | str:
    """The row of ``name`` from a process of its own, or what went wrong."""
    command: list[str] = [sys.executable, __file__, "--measure", name, "--kind", kind.__name__]
    try:
        done = subprocess.run(
            [*command, "--time-limit", str(time_limit_seconds)],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=PROCESS_SECONDS,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES)),
        )
    except subprocess.TimeoutExpired:
        return f"not done after {PROCESS_SECONDS} s"
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        return codec.decode(kind, json.loads(lines[-1]), where=name)
    return lines[-1] if lines else f"exit {done.returncode}"


def measure_here(name: str, time_limit_seconds: float, kind: str) -> int:
    """Print the row as JSON, or what went wrong as one line, and give the exit code."""
    try:
        print(json.dumps(codec.encode(MEASURES[kind](name, time_limit_seconds))))
    except Exception as error:  # whatever it is, the other models go on
        traceback.print_exc()
        print(" ".join(f"{type(error).__name__}: {error}".split()))
        return 1
    return 0


def make(
    names: Sequence[str], folder: Path, output: Path, time_limit_seconds: float, *, again: bool
) -> dict[str, str]:
    """Make the rows that are not there, each kept at once and the page written; what failed, by name."""
    failed: dict[str, str] = {}
    then = before()
    smallest_first = sorted(names, key=lambda name: then[name].keep_everything_mib)

    def tried(name: str, kind: type[Kept]) -> None:
        if not again and kept_row(folder, name, time_limit_seconds, kind) is not None:
            _say(name, f"{kind.__name__} is there")
            return
        started = time.perf_counter()
        row = measured_apart(name, time_limit_seconds, kind)
        _say(name, f"{time.perf_counter() - started:.0f} s: {row if isinstance(row, str) else row.plan}")
        if isinstance(row, str):
            failed[name] = row
        else:
            keep_row(folder, name, row)
        write_page(folder, output, time_limit_seconds, failed)

    for name in smallest_first:
        tried(name, Row)
    for name in smallest_first:
        tried(name, Whole)
    for name in smallest_first:
        tried(name, Reached)
    for name in smallest_first:
        tried(name, Placed)
    return failed


def write_page(folder: Path, output: Path, time_limit_seconds: float, failed: dict[str, str]) -> None:
    """Write the page of the rows that are there."""
    rows = _there(folder, time_limit_seconds, Row)
    whole = _there(folder, time_limit_seconds, Whole)
    reached = _there(folder, time_limit_seconds, Reached)
    placed = _there(folder, time_limit_seconds, Placed)
    page = document(rows, time_limit_seconds, failed, whole=whole, reached=reached, placed=placed)
    from result_file import write

    write(output, page)


def _there(folder: Path, time_limit_seconds: float, kind: type[Kept]) -> dict[str, Kept]:
    found = ((name, kept_row(folder, name, time_limit_seconds, kind)) for name in MODELS)
    return {name: row for name, row in found if row is not None}


def main() -> int:
    """Make the rows that are not there, smallest model first, and the page of all that are."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS, metavar="NAME")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each search")
    parser.add_argument("--again", action="store_true", help="make rows that are there again")
    parser.add_argument("--as-is", action="store_true", help="write the page of the rows that are there")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "models", help="of the rows")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "models.json")
    parser.add_argument(
        "--measure", metavar="NAME", choices=MODELS, help="one model, in this process, as JSON"
    )
    parser.add_argument("--kind", choices=MEASURES, default=Row.__name__)
    asked = parser.parse_args()
    if asked.measure:
        return measure_here(asked.measure, asked.time_limit, asked.kind)
    if asked.as_is:
        write_page(asked.folder, asked.output, asked.time_limit, {})
        return 0
    failed = make(asked.only, asked.folder, asked.output, asked.time_limit, again=asked.again)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
