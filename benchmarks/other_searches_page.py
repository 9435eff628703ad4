"""The page of `other_searches`: goals beside what was reached, why bounds may be too low, and all rows."""

from __future__ import annotations

from collections.abc import Sequence

from other_searches_rows import KINDS, RandomRow, Row, questions
from small_ram import WEAK_POINTS

from poet.util.units import format_bytes

DEVICE = "rpi4b"
EARLY_SECONDS, MOST_BYTES = 5.0, 2 * 10**9
"""When a step of 10,000 ops should have a plan, and the memory that its search may take."""
GAP, LARGE_GAP, OPEN_PUBLISHED, OPEN_CONCATS = 0.005, 0.01, 2, 0.05
"""What may be open in the end: of the joules, in the published family and in large steps; searches of the
published family that may be unproven; and of the overhead where layers are put behind each other."""
RANDOM_SECONDS, EXHAUSTIVE_SECONDS = 20.0, 8.0
"""For each random problem: of its search, and of the exhaustive one."""
HEADINGS = (
    "problem", "ops", "budget", "", "paging", "plan", "bound", "open, of the joules", "of the overhead",
    "core s", "first plan s", "MB", "bound by", "until s", "plan until s",
)  # fmt: skip


def page(rows: Sequence[Row], randoms: Sequence[RandomRow] = ()) -> str:
    """What was asked, the goals beside what was reached, and all rows."""
    limits = ", ".join(f"{limit:g}" for limit in sorted({row.limit_seconds for row in rows}))
    return "\n".join(
        (
            "# Other searches\n",
            "Made by `python -m benchmarks other-searches`.",
            "*Published*: the problems of `tests/instances`, by share",
            f"of what keeping everything takes. Of training steps on {DEVICE}, by share of the way from the",
            "least RAM that any schedule in the listed order needs to what keeping everything takes:",
            "*concats*, nets as DenseNet",
            "with so many dense layers in four blocks, in batches of eight images of 32 x 32 pixels;",
            "*10,000 ops*, a GPT of 48 layers whose heads are ops of their own",
            "(`benchmarks/search_nets.py`). Parameters are trained by SGD. *Plan* and *bound* are energy",
            "above running every op once, as a share of it; *open* is how far the plan may be above the best",
            "of all plans. *MB* is the most memory that the search and its children held at once, looked at",
            "ten times a second, what they share counted once. Each search has one thread and",
            f"{limits} s of a core's work, whatever else the machine does.\n",
            *_spread(rows),
            *_goals(rows, randoms),
            *_reasons([row for row in rows if not row.proven]),
            *_of_randoms(randoms),
            *(text for kind in KINDS for text in _table(kind, [row for row in rows if row.kind == kind])),
        )
    )


def _spread(rows: Sequence[Row]) -> list[str]:
    """How many of all searches these are."""
    every = len(list(questions(KINDS)))
    return [] if len(rows) == every else [f"{len(rows)} of {every} searches have been made.\n"]


def _goals(rows: Sequence[Row], randoms: Sequence[RandomRow]) -> list[str]:
    lines = ["| searches | goal | reached in | |", "|---|---|--:|---|"]

    def goal(kind: str, words: str, asked: Sequence[object], reached: int, least: int) -> None:
        if asked:
            met = "met" if reached >= least else "**missed**"
            lines.append(f"| {kind} | {words} | {reached} of {len(asked)} | {met} |")

    kinds = {kind: [row for row in rows if row.kind == kind] for kind in KINDS}
    family, concats, large, vgg, _ = (kinds[kind] for kind in KINDS)
    close, proven = sum(row.still_open <= GAP for row in family), sum(row.proven for row in family)
    goal(KINDS[0], f"at most {GAP:.1%} of the joules open", family, close, len(family))
    goal(KINDS[0], f"proven, but for {OPEN_PUBLISHED}", family, proven, len(family) - OPEN_PUBLISHED)
    close = sum(row.overhead_open <= OPEN_CONCATS for row in concats)
    goal(KINDS[1], f"at most {OPEN_CONCATS:.0%} of the overhead open", concats, close, len(concats))
    early = sum(row.first_seconds <= EARLY_SECONDS for row in large)
    goal(KINDS[2], f"a plan after {EARLY_SECONDS:g} s of a core", large, early, len(large))
    close = sum(row.still_open <= LARGE_GAP for row in large)
    goal(KINDS[2], f"at most {LARGE_GAP:.0%} of the joules open", large, close, len(large))
    small = sum(row.peak_bytes <= MOST_BYTES for row in large)
    goal(KINDS[2], f"at most {MOST_BYTES // 10**9} GB of memory", large, small, len(large))
    goal(KINDS[3], "the bound is as good as the plan", vgg, sum(row.proven for row in vgg), len(vgg))
    goal(KINDS[4], "proven", randoms, sum(row.proven for row in randoms), len(randoms))
    compared = [row for row in randoms if row.compared]
    goal(KINDS[4], "equal to exhaustive search", compared, sum(row.equal for row in compared), len(compared))
    return [*lines, ""]


def _reasons(rows: Sequence[Row]) -> list[str]:
    """Of searches left open, by who found the bound: what it leaves out."""
    if not rows:
        return []
    lines = ["| bound of what is open by | searches | it may be too low, as |", "|---|--:|---|"]
    for name, why in WEAK_POINTS.items():
        number = sum(row.bound_by.startswith(name) for row in rows)
        lines += [f"| {name} | {number} | {why} |"] * (number > 0)
    return [*lines, ""]


def _of_randoms(rows: Sequence[RandomRow]) -> list[str]:
    if not rows:
        return []
    behind, most = sum(row.background for row in rows), max(row.seconds for row in rows)
    left = [f"{row.seed}" for row in rows if not row.proven]
    return [
        "Random problems (`mixed_problem` in `tests/helpers/random_problems.py`) have 4 to 7 ops, a third of",
        f"them a deadline, a fifth homes to choose, {behind} of {len(rows)} storage that works in the",
        f"background. Exhaustive search has {EXHAUSTIVE_SECONDS:g} s for each. The longest search took",
        f"{most:.1f} s of a core, of {RANDOM_SECONDS:g}. Unproven: {', '.join(left) or 'none'}.\n",
    ]


def _table(kind: str, rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    head = (f"## {kind[0].upper()}{kind[1:]}\n", f"| {' | '.join(HEADINGS)} |")
    return [*head, "|---|--:|--:|--:|---|" + "--:|" * 8 + "---|--:|--:|", *map(line, rows), ""]


def line(row: Row) -> str:
    """Of the table."""
    cells = (
        row.problem.removeprefix("family/"),
        str(row.ops),
        format_bytes(row.budget_bytes),
        f"{row.share:.0%}",
        "on" if row.paging else "off",
        row.status if row.plan is None else f"+{100 * row.plan:.5g} %",
        "" if row.plan is None else f"+{100 * row.bound:.5g} %",
        f"{100 * row.still_open:.3g} %",
        f"{100 * row.overhead_open:.3g} %",
        f"{row.seconds:.1f}",
        "" if row.plan is None else f"{row.first_seconds:.1f}",
        f"{row.peak_bytes / 1e6:.0f}",
        *(
            ("", "", "")
            if row.proven
            else (row.bound_by, f"{row.bound_seconds:.1f}", f"{row.plan_seconds:.1f}")
        ),
    )
    return f"| {' | '.join(cells)} |"
