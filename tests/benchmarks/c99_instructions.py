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
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "c99-instructions.md"
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "tests"), str(Path(__file__).parent)]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from c99_counts import Counted, counted, random_counts  # noqa: E402
from c99_factors import fit  # noqa: E402
from c99_table import BUDGETS_BYTES, DEVICE, planned  # noqa: E402
from helpers import sequence_nets, strange_nets  # noqa: E402
from helpers.c_plans import CNet, traced  # noqa: E402
from helpers.random_c_nets import KINDS  # noqa: E402

from poet.c99.instructions import (  # noqa: E402
    CLASSES,
    REST,
    class_of,
    factors,
    statement_instructions,
)
from poet.devices.load import load_profile  # noqa: E402

SEQUENCE_NETS = ("mlp", "tcn", "gru", "lstm", "transformer")
STRANGE_NETS = ("keyword-spotter", "squeezed", "transposed", "segmenter", "mixer")
LARGE_CLASS = 0.01
"""The least share of a step of which the page says how far its class is off."""

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
