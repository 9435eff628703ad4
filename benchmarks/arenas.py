"""Arenas of plans of whole nets beside peaks and energies of the searches: results/arenas.json.

    python -m benchmarks arenas [--only NAME ...] [--time-limit 10] [--as-is]

Plans as in results/models.json (batch 1, `rpi4b-xnnpack`, 40 and 5 % of the way from the lower bound to
keeping everything), those of results/runtime.json (batches of 1 and 8, 70, 40 and 20 % of the way), with the
costs of the profile `x86-host` in place of measured ones, and BERT-base kept in storage in 64 MiB. Each
net runs in a process of its own. Rows that are done are kept in ``--folder``: an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from result_file import RESULTS, write
from workers import ROOT, found_apart

from poet.util.units import format_bytes, format_share

if TYPE_CHECKING:
    from poet.planning.prepared import Prepared

PROCESS_SECONDS = 1200.0
RUNTIME_SHARES = (0.7, 0.4, 0.2)
BERT_BYTES = 64 << 20
HEAP = "it runs from the heap"
HEADINGS = (
    "plan", "budget", "peak", "arena", "moves", "energy of the search", "of the plan", "more", "reserved",
    "arena as large as the peak",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A plan.

    Attributes:
        plan: what was planned, for what share of the way.
        budget_bytes: of RAM, the page buffer included.
        peak_bytes: of what is live at once, hidden temporaries included; no arena is smaller.
        arena_bytes: of the plan.
        moves: within it.
        searched_joules: of the plan that the search found before anything was laid out.
        joules: of the plan, its moves included.
        reserved_bytes: of the budget, that the last search was without; 0: it was the first.
        is_from_heap: whether no arena was found.
        tight_moves: of an arena as large as the peak; ``None``: none was found in a second.
    """

    plan: str
    budget_bytes: int
    peak_bytes: int
    arena_bytes: int
    moves: int
    searched_joules: float
    joules: float
    reserved_bytes: int
    is_from_heap: bool
    tight_moves: int | None


def cases() -> dict[str, tuple[str, str, int]]:
    """By name: whose plans, net and batch."""
    from models_rows import EXPORTS, LIGHT
    from runtime_table import BATCHES, NETS

    found = {f"{name}": ("models", name, 1) for name in (*EXPORTS, *LIGHT)}
    found |= {f"{name}, batch {batch}": ("runtime", name, batch) for name in NETS for batch in BATCHES}
    return {"BERT-base kept in storage": ("bert", "bert", 1), **found}


def prepared_for(source: str, net: str, batch: int) -> tuple[Prepared, list[tuple[str, int]]]:
    """What is planned, with the budgets of its plans, by name."""
    import torch

    from poet import api
    from poet.planning.ram_survey import budget_between, keep_everything_bytes
    from poet.problem import Limits
    from poet.solvers import minimum_ram_bytes

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if source == "models":
        from models_rows import LOW_SHARE, SHARE, before
        from models_table import model_file

        then = before()[net]
        with tempfile.TemporaryDirectory() as folder:
            path, bind, loss = model_file(net, Path(folder))
            prepared = api.prepare(path, device="rpi4b-xnnpack", loss=loss, bind=bind)
        return prepared, [(format_share(share), then.budget_bytes(share)) for share in (SHARE, LOW_SHARE)]
    if source == "runtime":
        from step_worker import SIZES
        from step_worker import net as build

        size, loss = SIZES[net]
        prepared = api.prepare(
            build(net), size.inputs(batch), device="x86-host", loss=loss, optimizer="momentum"
        )
        most = keep_everything_bytes(prepared.problem)
        least = minimum_ram_bytes(prepared.problem, Limits()).bytes
        return prepared, [
            (format_share(share), budget_between(least, most, share)) for share in RUNTIME_SHARES
        ]
    from zoo import NETS

    size = NETS[net].full
    prepared = api.prepare(size.build(), size.inputs(batch), device="rpi4b", home="storage")
    return prepared, [(format_bytes(BERT_BYTES), BERT_BYTES)]


def measured(
    prepared: Prepared, name: str, budgets: Sequence[tuple[str, int]], seconds: float
) -> Iterator[Row]:
    """The plans of ``prepared`` inside ``budgets``."""
    from helpers.clocks import OwnTime

    from poet.memory.compaction import compact
    from poet.memory.demand import demand_of
    from poet.memory.layout import lay_out
    from poet.planning.arena import searching
    from poet.planning.planned import fit_step
    from poet.planning.step_search import solve_choosing
    from poet.problem import Limits
    from poet.problem.solution import SolveOptions

    for share, budget_bytes in budgets:
        limits = Limits(ram_budget_bytes=budget_bytes)
        options = SolveOptions(time_limit_seconds=seconds, clock=OwnTime())
        chosen, first = solve_choosing(prepared, limits, searching(options, limits))
        fitted = fit_step(chosen, limits, first, options)
        solution = fitted.solution
        assert first.trace is not None
        assert solution.schedule is not None
        assert solution.trace is not None
        demand = demand_of(fitted.problem, solution.schedule, chosen.kernels)
        fixed = lay_out(demand.blocks, time_limit_seconds=0.2)
        peak_bytes = fixed.lower_bound_bytes
        tight = compact(demand, peak_bytes, guide_bytes=fixed.offsets_bytes)
        yield Row(
            plan=f"{name}, {share}",
            budget_bytes=budget_bytes,
            peak_bytes=peak_bytes,
            arena_bytes=fitted.arena.size_bytes,
            moves=len(fitted.arena.moves),
            searched_joules=first.trace.joules,
            joules=solution.trace.joules,
            reserved_bytes=fitted.reserved_bytes,
            is_from_heap=HEAP in solution.message,
            tight_moves=None if tight is None else len(tight.moves),
        )


def rows_of(name: str, folder: Path, seconds: float, *, as_is: bool) -> list[Row]:
    """The rows of a net, from ``folder`` where they are done."""
    kept = folder / f"{name.replace(' ', '-').replace(',', '')}.json"
    command = (__file__, "--measure", name, "--time-limit", str(seconds))
    found = found_apart(kept, command, timeout_seconds=PROCESS_SECONDS, is_kept_only=as_is)
    return [Row(**row) for row in found or ()]


def cells(row: Row) -> tuple[str, ...]:
    """As the table shows them."""
    tight = "not found" if row.tight_moves is None else f"{row.tight_moves} moves"
    return (
        row.plan, format_bytes(row.budget_bytes), format_bytes(row.peak_bytes),
        "**from the heap**" if row.is_from_heap else format_bytes(row.arena_bytes),
        str(row.moves), f"{row.searched_joules:.4g} J", f"{row.joules:.4g} J",
        f"{row.joules / row.searched_joules - 1:+.2%}",
        format_bytes(row.reserved_bytes) if row.reserved_bytes else "", tight,
    )  # fmt: skip


def page(rows: Sequence[Row], missing: Sequence[str], seconds: float) -> str:
    """results/arenas.json."""
    assert __doc__ is not None
    placed = sum(not row.is_from_heap for row in rows)
    tight = sum(row.tight_moves is not None for row in rows)
    near = sum(row.joules <= 1.005 * row.searched_joules for row in rows)
    lines = [
        "# Arenas of whole nets",
        "",
        "Made by `python -m benchmarks arenas`,",
        f"{seconds:.0f} s of the processor's time for each plan, on a machine",
        "busy with other work.",
        *__doc__.split("\n\n")[2].splitlines()[:4],
        "",
        f"- {placed} of {len(rows)} plans have an arena inside their budget, beside the page buffer and in",
        "  whole pages where the system maps it; none of these runs from the heap.",
        f"- {near} of {len(rows)} take at most 0.5 % more energy than the plan that the search found before",
        "  anything was laid out. *reserved* are bytes that a further search was without.",
        f"- For {tight} of {len(rows)} schedules a search of a second finds, with moves, an arena exactly as",
        "  large as the peak, which is of what is live at once. A plan takes a larger one where its budget",
        "  has room for that, since moves cost energy.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|" + "--:|" * (len(HEADINGS) - 1),
        *(f"| {' | '.join(cells(row))} |" for row in rows),
    ]
    if missing:
        lines += ["", f"Not run when this table was made: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make the rows that are not done, then the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", help="nets, by their names on the page")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each search")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "arenas")
    parser.add_argument("--output", type=Path, default=RESULTS / "arenas.json")
    parser.add_argument("--as-is", action="store_true", help="of the rows that are done")
    parser.add_argument("--measure", metavar="NAME", help="one net, in this process, as JSON")
    asked = parser.parse_args()
    known = cases()
    if asked.measure:
        prepared, budgets = prepared_for(*known[asked.measure])
        rows = list(measured(prepared, asked.measure, budgets, asked.time_limit))
        print(json.dumps([asdict(row) for row in rows]))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    rows, missing = [], []
    for name in known:
        is_asked = not asked.only or name in asked.only
        found = rows_of(name, asked.folder, asked.time_limit, as_is=asked.as_is or not is_asked)
        rows += found
        missing += [] if found else [name]
        if is_asked:
            print("\n".join("  ".join(cells(row)) for row in found), flush=True)
    write(asked.output, page(rows, missing, asked.time_limit))


if __name__ == "__main__":
    main()
