"""What one constant of the search is worth: the same problems with it and with another value, side by side.

    python tests/benchmarks/tuning.py --off walks.sure_shares
    python tests/benchmarks/tuning.py --set rounds.patience_rounds 50
    python tests/benchmarks/tuning.py --list

Fields and what switching them off means are told in `poet.tuning`. Each problem is planned in each budget by
HiGHS on one thread, both ways in turn, with the same seed and the same time limit. Lower joules, a higher
bound and fewer seconds are better; overhead is what a plan takes above running every op once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poet.errors import InputError
from poet.problem import Limits, Problem
from poet.ram_survey import keep_everything_bytes
from poet.solution import Solution, SolveOptions
from poet.solvers import minimum_ram_bytes, solve
from poet.tuning import DEFAULT, Tuning, tuned_fields

INSTANCES = Path(__file__).parents[1] / "instances"
SMALL = ("linear.m4", "transformer.m4", "family/vgg16_cifar.m4", "family/resnet18.m4", "resnet18_cifar.m4")
SHARES = (0.5, 0.2)
"""Budgets as shares of what keeping everything takes, at least what any schedule needs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``overhead_joules``: of the plan, infinite without one; ``bound_joules``: on it; ``solve_seconds``."""

    overhead_joules: float
    bound_joules: float
    solve_seconds: float


def answer_of(solution: Solution) -> Answer:
    """What is compared."""
    once, joules = solution.baseline_joules, solution.joules
    overhead = float("inf") if joules is None else joules - once
    return Answer(overhead, max(0.0, solution.bound_joules - once), solution.solve_seconds)


def changed(arguments: argparse.Namespace) -> Tuning:
    """The record to compare with.

    Raises:
        InputError: no such field, or no such value of it.
    """
    if arguments.off is not None:
        return DEFAULT.without(arguments.off)
    name, text = arguments.set
    try:
        value = _tuples(json.loads(text))
    except ValueError:
        raise InputError(f"{text!r} is no value; give a number, or a list such as [1, 2]") from None
    known = tuned_fields().get(name)
    if known is not None and isinstance(known.default, float) and type(value) is int:
        value = float(value)
    return DEFAULT.having(name, value)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def compared(path: Path, share: float, other: Tuning, options: argparse.Namespace) -> tuple[Answer, Answer]:
    """The answers with the default and with ``other``."""
    problem = Problem.load(path)
    least = minimum_ram_bytes(problem).bytes
    limits = Limits(ram_budget_bytes=max(least, round(share * keep_everything_bytes(problem))))
    answers = [
        answer_of(
            solve(
                problem,
                limits,
                SolveOptions(options.time_limit, engine="highs", seed=options.seed, tuning=tuning),
            )
        )
        for tuning in (DEFAULT, other)
    ]
    return answers[0], answers[1]


HEADER = (
    f"{'problem':24} {'RAM':>5} | {'overhead J':>12} {'with':>12} | {'bound J':>12} {'with':>12} "
    f"| {'seconds':>8} {'with':>8}"
)


def row(name: str, share: float, plain: Answer, other: Answer) -> str:
    """One line of the table; ``<`` and ``>`` mark where the other value is lower or higher."""

    def pair(mine: float, theirs: float) -> str:
        mark = " " if abs(mine - theirs) <= 1e-9 * abs(mine) else "<" if theirs < mine else ">"
        return f"{mine:12.6g} {mark}{theirs:11.6g}"

    return (
        f"{name:24} {share:5.0%} | {pair(plain.overhead_joules, other.overhead_joules)} "
        f"| {pair(plain.bound_joules, other.bound_joules)} "
        f"| {plain.solve_seconds:8.2f} {other.solve_seconds:8.2f}"
    )


def main(words: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--off", metavar="FIELD", help="switch it off")
    what.add_argument("--set", metavar=("FIELD", "VALUE"), nargs=2, help="give it another value, as JSON")
    what.add_argument(
        "--list", action="store_true", help="every field, its value, and that of it switched off"
    )
    parser.add_argument("--only", nargs="+", default=SMALL, metavar="NAME", help="of tests/instances")
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES, metavar="SHARE")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    if options.list:
        for name, tuned in tuned_fields().items():
            off = f"   off: {tuned.metadata['off']}" if "off" in tuned.metadata else ""
            print(f"{name} = {tuned.default}{off}")
        return 0
    try:
        other = changed(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    name = options.off or options.set[0]
    group, _, own = name.partition(".")
    print(f"{name}: {tuned_fields()[name].default} | with {getattr(getattr(other, group), own)}")
    print(HEADER)
    for problem in options.only:
        path = INSTANCES / f"{problem}.json"
        if not path.exists():
            print(f"{path}: there is no such problem; see tests/instances", file=sys.stderr)
            return 2
        for share in options.shares:
            print(row(path.stem, share, *compared(path, share, other, options)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
