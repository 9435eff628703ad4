"""Makes docs/c99-instructions.md: instructions of C steps as `poet.c99.instructions` foresees, and counted.

Each run of an op is counted in QEMU by itself. What each thing takes is fitted to nets of random sizes
(`--fit`, which writes `poet/c99/instructions.toml`), and tried on others: the nets of MLPerf Tiny with
everything kept and in their budgets, small nets over sequences and other kinds, random nets of other seeds.

    python tests/benchmarks/c99_instructions.py --fit [8] [--counts folder]
    python tests/benchmarks/c99_instructions.py --fit [8] --kind choices    what has no price yet; others stay
    python tests/benchmarks/c99_instructions.py [--plans folder] [--time-limit 60]

Needs gcc-arm-none-eabi, libnewlib-arm-none-eabi and qemu-system-arm. Some minutes each.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "c99-instructions.md"
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests"), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from c99_table import BUDGETS_BYTES, DEVICE, planned  # noqa: E402
from helpers import sequence_nets, strange_nets  # noqa: E402
from helpers.c_plans import CNet, traced  # noqa: E402
from helpers.random_c_nets import KINDS, random_net  # noqa: E402

from poet.c99.call_amounts import amounts_of  # noqa: E402
from poet.c99.instructions import (  # noqa: E402
    CLASSES,
    FACTORS,
    REST,
    class_of,
    factors,
    statement_instructions,
)
from poet.c99.project import c_project  # noqa: E402
from poet.c99.statements import Statement  # noqa: E402
from poet.c99.window_amounts import added, amounts  # noqa: E402
from poet.devices.load import load_profile  # noqa: E402
from poet.plans.plan_file import PlanFile  # noqa: E402

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
_BY_HAND = {("run", "step"): 500.0, ("restore", "call"): 20.0, ("restore", "word"): 11.0}
"""What a step does beside its runs, about; and what was read off the assembler: few words are copied so."""
_GRAIN = 40
"""QEMU's counter has a tick for so many instructions."""
SEQUENCE_NETS = ("mlp", "tcn", "gru", "lstm", "transformer")
STRANGE_NETS = ("keyword-spotter", "squeezed", "transposed", "segmenter", "mixer")
LARGE_CLASS = 0.01
"""The least share of a step of which the page says how far its class is off."""


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


# --- fitting ----------------------------------------------------------------------------------

Equation = tuple[dict[tuple[str, str], float], int]
"""How often a run, or a step, does each thing; and the instructions that it took."""


def random_counts(kind: str, seed: int, *, as_whole: bool) -> Counted:
    """Of a random net; seeds take turns in recomputing, moving, paging, and homes in storage."""
    net = random_net(kind, seed)
    ways: tuple[dict[str, bool], ...] = ({}, {"homes": True}, {"moves": True}, {"pages": True}, {})
    is_long = kind in ("elements", "sequence")  # to draw schedules that recompute through them takes minutes
    plan = net.plan() if is_long or seed % 5 == 0 else net.plan(seed, **ways[seed % 5])
    with tempfile.TemporaryDirectory() as work:
        path = net.write(Path(work) / "net.poet", plan)
        return counted(Path(work) / "c", path, as_whole=as_whole)


def fit(count: int, first: int, counts: Path, only: str | None = None) -> None:
    """Fit to ``count`` nets of each kind, whose seeds begin at ``first``, and write what was found.

    What was counted of a net is kept in the folder ``counts``, and taken from there. With ``only`` a kind,
    functions that have a price keep it, and the others are fitted to nets of that kind.
    """
    equations: list[Equation] = []
    for seed in range(first, first + count):
        for kind in KINDS if only is None else (only,):
            path = counts / f"{kind}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(_equations(random_counts(kind, seed, as_whole=False))))
            for does, taken in json.loads(path.read_text()):
                equations.append(({(of, what): number for of, what, number in does}, taken))
        print(f"{seed - first + 1} of {count} of each kind", file=sys.stderr, flush=True)
    if only is None:
        fitted = solved(equations) | _BY_HAND
        write_factors(fitted, f"{count} nets of each of {len(KINDS)} kinds, {len(equations):,} runs of ops")
        return
    known = {(of, what): price for of, things in factors().items() for what, price in things.items()}
    rest = [_beside_known(equation, known) for equation in equations]
    unknown = [equation for equation in rest if equation[0]]
    if not unknown:
        sys.exit(f"nets of {only} call nothing that has no price")
    fitted = solved(unknown)
    said = re.findall(r"^# (\d.*),$", FACTORS.read_text(), re.MULTILINE)
    write_factors({**known, **fitted}, f"{said[0]} (and {count} nets of {only} for what those do not call)")


def _beside_known(equation: Equation, known: Mapping[tuple[str, str], float]) -> Equation:
    """What of a run has no price yet, and what is left for it."""
    does, taken = equation
    spent = sum(number * known[key] for key, number in does.items() if key in known)
    return {key: number for key, number in does.items() if key not in known}, max(0, round(taken - spent))


def _equations(found: Counted) -> list[tuple[list[tuple[str, str, float]], int]]:
    """What each run does, and what it took."""
    made = []
    for statement, taken in found.runs:
        total = added(
            amounts("run", call=1), *(amounts_of(call, found.sizes_bytes) for call in statement.calls)
        )
        made.append(([(*key, number) for key, number in total.items()], taken))
    return made


def solved(equations: list[Equation]) -> dict[tuple[str, str], float]:
    """Least squares of relative errors; nothing takes less than nothing. Runs that do the same count once."""
    from scipy.optimize import nnls

    alike: dict[tuple[tuple[tuple[str, str], float], ...], list[int]] = defaultdict(list)
    for does, number in equations:
        alike[tuple(sorted(does.items()))].append(number)
    columns = sorted({key for does, _ in equations for key in does})
    numbers = {key: column for column, key in enumerate(columns)}
    taken = np.array([sum(found) / len(found) for found in alike.values()], dtype=float)
    weights = 1.0 / np.maximum(taken, 10 * _GRAIN)
    matrix = np.zeros((len(alike), len(columns)))
    for row, does_what in enumerate(alike):
        for key, amount in does_what:
            matrix[row, numbers[key]] = amount * weights[row]
    scale = np.maximum(np.linalg.norm(matrix, axis=0), 1e-12)
    solution, _ = nnls(matrix / scale, taken * weights, maxiter=100 * len(columns))
    return {key: float(value) for key, value in zip(columns, solution / scale, strict=True)}


_HEAD = """\
What each thing that a C kernel does takes on a Cortex-M4F, in instructions, by function and thing. Names are
those of poet/c99/call_amounts.py and poet/c99/window_amounts.py. Written by
`python tests/benchmarks/c99_instructions.py --fit`: least squares of relative errors, nothing below 0, to
{fitted},
each counted in QEMU (mps2-an386, {compiler}, -O2).
Things that come together in every kernel have one sum that is right and parts that are not known apart.
"""


def write_factors(fitted: dict[tuple[str, str], float], said: str) -> None:
    """Write ``poet/c99/instructions.toml``."""
    version = subprocess.run(["arm-none-eabi-gcc", "--version"], capture_output=True, text=True, check=True)
    compiler = "gcc " + version.stdout.split("\n")[0].split(" ")[-2]
    head = "".join(f"# {line}\n" for line in _HEAD.format(fitted=said, compiler=compiler).splitlines())
    tables: dict[str, list[str]] = defaultdict(list)
    for (function, what), number in sorted(fitted.items()):
        tables[function].append(f"{what} = {number:.2f}\n")
    body = "".join(f"\n[{function}]\n{''.join(lines)}" for function, lines in tables.items())
    new = FACTORS.with_suffix(".new")
    new.write_text(head + body)
    new.replace(FACTORS)


# --- the table --------------------------------------------------------------------------------

HEAD = """\
# Instructions of C steps, foreseen and counted

Made by `make c99-instructions`. `poet.c99.instructions` foresees what a planned step takes: how often its
calls multiply and add, begin a row, call an update ..., times what each of these takes
(`poet/c99/instructions.toml`, fitted to nets of random sizes, none of which are here). Counts are QEMU's, of
a Cortex-M4F, gcc 12 at `-O2`. Cycles are counted nowhere; where poet gives them, they are *modelled*. For a
scale: PULP-TrainLib (SAMOS 2022, abstract) reports 4.39 multiply-adds per cycle on 8 cores, 36.6 times an
STM32L4, which is 0.12 multiply-adds per cycle in fp32 training there.

## The nets of MLPerf Tiny

Trained with SGD, everything kept and in the budgets of [c99-table.md](c99-table.md), planned in {seconds:g} s
each: millions foreseen / counted, and their ratio. Transfers are those of the folder's test, whose storage is
memory.

"""
MODELLED = """
## Cycles that plans are made with

What a plan's costs give each class of ops, by the profile of `{device}` at its {megahertz:g} MHz, over the
instructions that were counted, everything kept: *modelled* cycles per instruction. Were all the same, plans
would weigh ops as the kernels do. Nobody measured cycles.

"""
OTHERS = """
## Other nets

The whole step, and of the classes of ops that are at least {share:.0%} of it the one that is furthest off.
The last rows are of random nets as those fitted to, of other seeds and so of other sizes and ways to plan.

| net | counted | foreseen / counted | class furthest off | its ratio |
|---|--:|--:|---|--:|
"""
Pair = tuple[float, float]
"""Instructions foreseen and counted."""
WHOLE = "whole step"


def compared(found: Counted) -> dict[str, Pair]:
    """Foreseen and counted, of each class of ops and of the whole step."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    whole = factors()["run"]["step"]
    for statement, taken in found.runs:
        foreseen = statement_instructions(statement, found.sizes_bytes)
        pair = sums[class_of(statement, found.sizes_bytes)]
        pair[0] += foreseen
        pair[1] += taken
        whole += foreseen
    pairs = {name: (one, other) for name, (one, other) in sums.items()}
    return {**pairs, WHOLE: (whole, float(found.whole))}


def furthest(pairs: dict[str, Pair]) -> tuple[str, float]:
    """The class of those with a share in the step that is furthest off, and its ratio."""
    least = LARGE_CLASS * pairs[WHOLE][1]
    ratios = {name: one / other for name, (one, other) in pairs.items() if name != WHOLE and other >= least}
    return max(ratios.items(), key=lambda item: abs(np.log(item[1])))


def benchmark_plans(plans: Path, seconds: float) -> Iterator[tuple[str, Path]]:
    """Plans of the four nets, kept and in their budgets; those that are there are taken."""
    for name, budget_bytes in BUDGETS_BYTES.items():
        for ram_bytes in (None, budget_bytes):
            path = plans / f"{name}-{ram_bytes or 'kept'}.poet"
            if not path.exists():
                planned(name, ram_bytes, seconds, path)
            yield f"{name}, {'kept' if ram_bytes is None else f'{ram_bytes:,}'}", path


def other_nets() -> Iterator[tuple[str, CNet]]:
    """Of kinds that nothing was fitted to."""
    for name in SEQUENCE_NETS:
        torch.manual_seed(0)
        net = sequence_nets.NETS[name]
        yield name, traced(net.build(), torch.randn(net.shape)).fused_everywhere()
    for name in STRANGE_NETS:
        torch.manual_seed(0)
        strange = strange_nets.NETS[name]
        yield name, traced(strange.build(), strange.inputs(), loss=strange.loss).fused_everywhere()


def page(plans: Path, seconds: float, seeds: range) -> None:
    """Compare, print and write the page."""
    columns: dict[str, dict[str, Pair]] = {}
    costs: dict[str, dict[str, Pair]] = {}
    chip = load_profile(DEVICE).chip
    assert chip is not None
    clock_hertz = chip.clock_hertz.value
    for name, path in benchmark_plans(plans, seconds):
        with tempfile.TemporaryDirectory() as work:
            found = counted(Path(work) / "c", path)
        columns[name] = compared(found)
        show(name, columns[name])
        if path.stem.endswith("kept"):
            costs[name] = modelled(found, clock_hertz)
    others = [_row(name, pairs) for name, pairs in _others(seeds)]
    text = HEAD.format(seconds=seconds) + _table(columns, _cell)
    text += MODELLED.format(device=DEVICE, megahertz=clock_hertz / 1e6)
    text += _table(costs, lambda pair: f"{pair[0] / pair[1]:.2f}")
    text += OTHERS.format(share=LARGE_CLASS) + "".join(others)
    new = PAGE.with_suffix(".new")
    new.write_text(text)
    new.replace(PAGE)


def modelled(found: Counted, clock_hertz: float) -> dict[str, Pair]:
    """Cycles that the plan's costs amount to, and instructions counted, of each class of ops and of all."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for statement, taken in found.runs:
        for name in (class_of(statement, found.sizes_bytes), WHOLE):
            sums[name][0] += clock_hertz * found.seconds.get(statement.op, 0.0)
            sums[name][1] += taken
    return {name: (cycles, taken) for name, (cycles, taken) in sums.items()}


def _table(columns: dict[str, dict[str, Pair]], cell: Callable[[Pair], str]) -> str:
    """A row for each class of ops that a column has, and one for the whole step."""
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "--:|" * len(columns)]
    for name in (*CLASSES, REST, WHOLE):
        pairs = [column.get(name) for column in columns.values()]
        if any(pairs):
            cells = ("" if pair is None else cell(pair) for pair in pairs)
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _others(seeds: range) -> Iterator[tuple[str, dict[str, Pair]]]:
    for name, net in other_nets():
        with tempfile.TemporaryDirectory() as work:
            plan = net.write(Path(work) / "net.poet", net.plan())
            yield name, compared(counted(Path(work) / "c", plan))
    for kind in KINDS:
        for seed in seeds:
            yield f"{kind}, seed {seed}", compared(random_counts(kind, seed, as_whole=True))


def _row(name: str, pairs: dict[str, Pair]) -> str:
    show(name, pairs)
    foreseen, taken = pairs[WHOLE]
    worst, ratio = furthest(pairs)
    return f"| {name} | {taken:,.0f} | {foreseen / taken:.2f} | {worst} | {ratio:.2f} |\n"


def show(name: str, pairs: dict[str, Pair]) -> None:
    """Print the comparison."""
    for each, (foreseen, taken) in pairs.items():
        if taken:
            share = taken / pairs[WHOLE][1]
            print(f"{name:24} {each:36} {taken:12,.0f} {share:6.1%} {foreseen / taken:.3f}", flush=True)


def _cell(pair: Pair) -> str:
    return f"{pair[0] / 1e6:.2f} / {pair[1] / 1e6:.2f}, {pair[0] / pair[1]:.2f}"


def main() -> None:
    """Fit, or make the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--fit", type=int, nargs="?", const=8, help="nets of each kind to fit to, and no page"
    )
    parser.add_argument("--kind", choices=tuple(KINDS), help="fit what has no price yet to nets of this kind")
    parser.add_argument("--first", type=int, default=0, help="seed of the first net that is fitted to")
    parser.add_argument("--counts", type=Path, help="folder of counts, of earlier fits and of this one")
    parser.add_argument("--tried", type=int, default=1, help="random nets of each kind on the page")
    parser.add_argument("--plans", type=Path, help="folder of plan files, of earlier runs and of this one")
    parser.add_argument("--time-limit", type=float, default=60.0, help="of each search, in seconds")
    asked = parser.parse_args()
    if asked.fit is not None:
        if asked.counts is None:
            with tempfile.TemporaryDirectory() as work:
                fit(asked.fit, asked.first, Path(work), asked.kind)
        else:
            asked.counts.mkdir(exist_ok=True)
            fit(asked.fit, asked.first, asked.counts, asked.kind)
        return
    seeds = range(1000, 1000 + asked.tried)
    if asked.plans is not None:
        asked.plans.mkdir(exist_ok=True)
        page(asked.plans, asked.time_limit, seeds)
        return
    with tempfile.TemporaryDirectory() as work:
        page(Path(work), asked.time_limit, seeds)


if __name__ == "__main__":
    main()
