"""What each thing that a C kernel does takes, fitted to counts of random nets: poet/c99/instructions.toml.

Written by `python tests/benchmarks/c99_instructions.py --fit`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from c99_counts import Counted, random_counts
from helpers.random_c_nets import KINDS

from poet.c99.call_amounts import amounts_of
from poet.c99.instructions import FACTORS, factors
from poet.c99.window_amounts import added, amounts

_BY_HAND = {("run", "step"): 500.0, ("restore", "call"): 20.0, ("restore", "word"): 11.0}
"""What a step does beside its runs, about; and what was read off the assembler: few words are copied so."""
_GRAIN = 40
"""QEMU's counter has a tick for so many instructions."""

Equation = tuple[dict[tuple[str, str], float], int]
"""How often a run, or a step, does each thing; and the instructions that it took."""


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
