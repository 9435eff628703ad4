"""Plans of least time at half and at 30 % of the activation memory, whole nets: results/least-time.json.

    python -m benchmarks time-table [--only NAME ...] [--kinds KIND ...]
                                                                    [--time-limit 10] [--as-is]

The nets of results/models.json at batch 1 on the profile `x86-host`, SGD, parameters kept in RAM, planned for
least time. Six of them make steps here, and all are imported with and without strips. What is done is kept
in ``--folder``: an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models_rows import MODELS, before, title
from result_file import RESULTS, write
from time_rows import MEASURED, SHARES, Measured, Planned, imported, measured, planned
from workers import ROOT, found_apart

from poet.util.units import format_bytes, format_seconds

PROCESS_SECONDS = 1200.0
IMPORTS = {
    "import-keep": ("keep", {}),
    "import-warm": ("stream", {}),
    "import-later": ("stream", {}),
    "import-anew": ("stream", {"POET_TRIALS": "anew"}),
}
"""What is imported in turn: ``import-warm`` leaves what trials showed to ``import-later``."""
KINDS = ("plans", "steps", *IMPORTS, "long")
IMPORT_FACTOR = 1.5
"""How many times as long an import in strips may take as one that keeps gradients whole."""
NEAR_FACTOR = 1.1
"""A budget of at most that many times the lower bound is near it."""


@dataclass(frozen=True, slots=True)
class Found:
    """Of a net; ``None`` is what is not made.

    Attributes:
        plans: at each share of the activation memory.
        steps: the same, of those nets that make steps.
        long_plans: at each share of what plain training saves; none where that is the same.
        keep_seconds, later_seconds, anew_seconds: of imports that keep gradients whole, that know what
            earlier trials showed, and that make all trials themselves.
    """

    plans: list[Planned] | None = None
    steps: list[Measured] | None = None
    long_plans: list[Planned] | None = None
    keep_seconds: float | None = None
    later_seconds: float | None = None
    anew_seconds: float | None = None

    @property
    def plans_of_all(self) -> list[Planned]:
        """At each share of what plain training saves, be it the same or not; none where none is made."""
        return [] if self.long_plans is None else self.long_plans or self.plans or []


def answer(kind: str, name: str, seconds: float, plans: Path) -> Any:
    """What ``kind`` finds of a net, in this process, as JSON."""
    if kind in IMPORTS:
        return imported(name, IMPORTS[kind][0])
    rows: Sequence[Planned | Measured]
    if kind == "steps":
        rows = measured(name, plans)
    else:
        rows = planned(name, seconds, plans, long_forms=kind == "long")
    return [asdict(row) for row in rows]


def found_of(find: Callable[[str], Any]) -> Found:
    """The rows of a net from what ``find`` says of each kind; ``None`` is what is not made."""

    def rows(kind: str, row: type[Planned] | type[Measured]) -> Any:
        made = find(kind)
        return None if made is None else [row(**item) for item in made]

    return Found(
        plans=rows("plans", Planned),
        steps=rows("steps", Measured),
        long_plans=rows("long", Planned),
        keep_seconds=find("import-keep"),
        later_seconds=find("import-later"),
        anew_seconds=find("import-anew"),
    )


def page(every: Mapping[str, Found], seconds: float) -> str:
    """What was asked, the goals beside what was reached, why they are missed, and all rows."""
    plans = {name: found.plans or [] for name, found in every.items()}
    longs = {name: found.plans_of_all for name, found in every.items()}
    own = {name: found.long_plans for name, found in every.items() if found.long_plans}
    steps = {name: found.steps or [] for name, found in every.items() if name in MEASURED}
    return "\n".join(
        (
            "# Least time in little RAM\n",
            "Made by `python -m benchmarks time-table`:",
            f"steps of {len(every)} nets of `models` at batch 1,",
            "all parameters trained by SGD, kept in RAM, planned for least time (`--minimise time`)",
            f"on the profile `x86-host`, {seconds:g} s of the processor's time for each search, on a machine",
            "busy with other work. Activation memory is what keeping everything takes less what is in RAM",
            "all the time (parameters, what modules keep, inputs);",
            "it is counted with everything compressed (`docs/techniques.md`),",
            "and as plain training saves it, which is how other planners count. The best published planner",
            "for GPUs states 10 to 15 % more time at these points.\n",
            "| goal | reached | |",
            "|---|---|---|",
            *(_plan_goal(share, plans, "") for share in SHARES),
            *(_plan_goal(share, longs, " of what plain training saves") for share in SHARES),
            *(_step_goal(share, steps) for share in SHARES),
            *_import_goals(every),
            "",
            *_reasons(plans, "In compressed forms"),
            *_reasons(longs, "As plain training saves it"),
            "## Plans\n",
            "*Slower* is a plan's time above running every op once, as a share of that, *at least* the same",
            "of the bound: no plan is below it.\n",
            *_plan_table(plans),
            "## Plans in shares of what plain training saves\n",
            "Of the nets for which that is another amount; the others have their rows above.\n",
            *_plan_table(own),
            "## Steps\n",
            "One thread. Plans of the first table, and one that keeps everything and whose RAM nothing",
            "limits, make steps in turn, in processes of their own, from the same random batch. *Slower* is",
            "the median of the paired ratios of a step's own seconds: of its thread on the processor and of",
            "waits for storage. *Equal*: the bits of all parameters after as many steps.\n",
            *_step_reasons(steps, plans),
            *_step_table(steps, plans),
            "## Imports\n",
            "Processor seconds of `poet.api.prepare` in a process of its own, one thread: with `--gradients",
            "keep`; as by default, where an earlier import kept its trials",
            "and with `POET_TRIALS=anew`, where none did.\n",
            *_import_table(every),
            *_missing(every),
        )
    )


def _plan_goal(share: float, plans: Mapping[str, Sequence[Planned]], of_what: str) -> str:
    there = [row for rows in plans.values() for row in rows if row.share == share]
    able = [row for row in there if row.has_schedules]
    slower = [_slower(row) for row in able]
    words = f"at {share:.0%}{of_what}, the median plan at most {SHARES[share]:.0%} slower"
    if not slower:
        return f"| {words} | no rows | **missed** |"
    middle = statistics.median(slower)
    within = sum(item <= SHARES[share] for item in slower)
    below = len(there) - len(able)
    least = statistics.median(row.bound or 0.0 for row in able)
    said = f"{_percent(middle)}, {_percent(least)} by the bounds; {within} of {len(able)} plans are"
    said += f"; {below} more budgets are below the lower bound" if below else ""
    return f"| {words} | {said} | {_met(middle <= SHARES[share])} |"


def _step_goal(share: float, steps: Mapping[str, Sequence[Measured]]) -> str:
    rows = [row for net in steps.values() for row in net if row.share == share]
    words = f"the first of these at {share:.0%}, measured on {len(MEASURED)} nets, with equal bits"
    if not rows:
        return f"| {words} | no rows | **missed** |"
    middle = statistics.median(row.slower for row in rows)
    equal = sum(row.is_equal for row in rows)
    busy = _percent(statistics.median(row.busy for row in rows))
    said = f"{_percent(middle)} on {len(rows)}, {busy} on the processor alone; equal bits on {equal}"
    is_met = middle <= SHARES[share] and equal == len(rows) == len(MEASURED)
    return f"| {words} | {said} | {_met(is_met)} |"


def _import_goals(every: Mapping[str, Found]) -> Iterable[str]:
    for what, of in _IMPORTS.items():
        ratios = [ratio for found in every.values() if (ratio := _ratio(of(found), found)) is not None]
        words = f"an import at most {IMPORT_FACTOR:g} times as long as with `--gradients keep`, {what}"
        if not ratios:
            yield f"| {words} | no rows | **missed** |"
            continue
        within = sum(ratio <= IMPORT_FACTOR for ratio in ratios)
        said = f"{within} of {len(ratios)}; median {statistics.median(ratios):.2f}, most {max(ratios):.2f}"
        yield f"| {words} | {said} | {_met(within == len(ratios))} |"


_IMPORTS: dict[str, Callable[[Found], float | None]] = {
    "with the trials of an earlier one": lambda found: found.later_seconds,
    "with none": lambda found: found.anew_seconds,
}


def _ratio(seconds: float | None, found: Found) -> float | None:
    if seconds is None or found.keep_seconds is None:
        return None
    return seconds / found.keep_seconds


def _reasons(plans: Mapping[str, Sequence[Planned]], begin: str) -> Iterable[str]:
    """Why plans are slower than the median may be, counted at each share whose goal is missed."""
    for share, goal in SHARES.items():
        rows = [row for net in plans.values() for row in net if row.share == share and row.has_schedules]
        reasons = [why(row) for row in rows if why(row)]
        if not rows or statistics.median(map(_slower, rows)) <= goal:
            continue
        counted = "; ".join(f"{reasons.count(reason)}: {reason}" for reason in dict.fromkeys(reasons))
        missed = f"the goal at {share:.0%} is missed by {len(reasons)} of {len(rows)} plans"
        least = statistics.median(row.bound or 0.0 for row in rows)
        proven = " No plans have a median within it: that of the bounds is above." if least > goal else ""
        yield f"{begin}, {missed}. {counted}.{proven}\n"


def why(row: Planned) -> str:
    """Why a plan is slower than the median may be; empty where it is not, or where no schedule exists."""
    allowed = SHARES[row.share]
    if not row.has_schedules or _slower(row) <= allowed:
        return ""
    if row.slower is None:
        return "no plan was found"
    if row.bound is not None and row.bound > allowed:
        return "no plan is within the goal, by the bound"
    if row.is_from_heap:
        return "no arena was found"
    if row.moved is not None and row.slower - row.moved <= allowed:
        return "moves within the arena, without them it is within the goal"
    if row.moved is not None and row.moved > 0.5 * row.slower:
        return "open, most of it moves within the arena"
    if row.budget_bytes <= NEAR_FACTOR * row.least_bytes:
        return f"open, within {NEAR_FACTOR - 1:.0%} of the least RAM"
    return "open"


def _plan_table(plans: Mapping[str, Sequence[Planned]]) -> Iterable[str]:
    headings = (
        "net", "all the time", "keeping everything", "lower bound", "share", "budget", "slower", "at least",
        "more energy", "recomputed runs", "read", "written", "moves", "above the goal",
    )  # fmt: skip
    yield f"| {' | '.join(headings)} |"
    yield "|---|" + "--:|" * (len(headings) - 2) + "---|"
    yield from (line(name, row) for name, rows in plans.items() for row in rows)
    yield ""


def line(name: str, row: Planned) -> str:
    """Of the table of plans."""
    sizes = (row.always_bytes, row.kept_bytes, row.least_bytes)
    cells = [title(name), *map(format_bytes, sizes), f"{row.share:.0%}", format_bytes(row.budget_bytes)]
    if row.slower is None:
        cells += [row.status if row.has_schedules else "below the bound", *[""] * 6]
    else:
        cells += [
            _percent(row.slower),
            "" if row.bound is None else _percent(row.bound),
            "" if row.more_energy is None else _percent(row.more_energy),
            str(row.recomputed_runs),
            format_bytes(row.read_bytes),
            format_bytes(row.written_bytes),
            "from the heap" if row.is_from_heap else _moves(row),
        ]
    return f"| {' | '.join((*cells, why(row)))} |"


def _moves(row: Planned) -> str:
    """How many, and what they add where that is known."""
    return str(row.moves) if not row.moves or row.moved is None else f"{row.moves}: {_percent(row.moved)}"


def _step_reasons(
    steps: Mapping[str, Sequence[Measured]], plans: Mapping[str, Sequence[Planned]]
) -> Iterable[str]:
    """Why steps are slower than the median may be, counted."""
    predicted = {(name, row.share): _slower(row) for name, rows in plans.items() for row in rows}
    reasons = []
    for name, rows in steps.items():
        for row in rows:
            goal = SHARES[row.share]
            if row.slower <= goal:
                continue
            if predicted.get((name, row.share), 0.0) > goal:
                reasons.append("as predicted above the goal")
            elif row.busy <= goal:
                reasons.append("by waits for storage alone")
            else:
                reasons.append("as ops and transfers are more expensive here than by the profile")
    if reasons:
        counted = ", ".join(f"{reasons.count(reason)} {reason}" for reason in dict.fromkeys(reasons))
        yield f"{len(reasons)} plans are slower than the median may be: {counted}. What waits for storage"
        yield "add is this machine's, which others used as well; that compressed forms take longer here"
        yield "than profiles know, `docs/techniques.md` says.\n"


def _step_table(
    steps: Mapping[str, Sequence[Measured]], plans: Mapping[str, Sequence[Planned]]
) -> Iterable[str]:
    headings = (
        "net", "share", "keeping everything", "slower, predicted", "measured", "on the processor alone",
        "waits for storage", "rounds", "equal",
    )  # fmt: skip
    yield f"| {' | '.join(headings)} |"
    yield "|---|" + "--:|" * (len(headings) - 2) + "---|"
    for name, rows in steps.items():
        slower = {row.share: row.slower for row in plans[name]}
        for row in rows:
            predicted = slower.get(row.share)
            cells = (
                title(name),
                f"{row.share:.0%}",
                format_seconds(row.kept_seconds),
                "" if predicted is None else _percent(predicted),
                _percent(row.slower),
                _percent(row.busy),
                format_seconds(max(row.waited_seconds, 0.0)),
                str(row.rounds),
                "yes" if row.is_equal else "**no**",
            )
            yield f"| {' | '.join(cells)} |"
    yield ""


def _import_table(every: Mapping[str, Found]) -> Iterable[str]:
    yield "| net | `--gradients keep` | later import | ratio | first import | ratio |"
    yield "|---|--:|--:|--:|--:|--:|"
    for name, found in every.items():
        if found.keep_seconds is None:
            continue
        cells = [title(name), f"{found.keep_seconds:.1f} s"]
        for of in _IMPORTS.values():
            seconds, ratio = of(found), _ratio(of(found), found)
            cells += ["" if seconds is None else f"{seconds:.1f} s", "" if ratio is None else f"{ratio:.2f}"]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _missing(every: Mapping[str, Found]) -> Iterable[str]:
    """Which rows are not made."""
    kinds: dict[str, Callable[[str, Found], bool]] = {
        "plans": lambda name, found: found.plans is None,
        "plans of what plain training saves": lambda name, found: found.long_plans is None,
        "steps": lambda name, found: name in MEASURED and found.steps is None,
        "imports": lambda name, found: None in (found.keep_seconds, found.later_seconds, found.anew_seconds),
    }
    for kind, is_missing in kinds.items():
        names = [title(name) for name, found in every.items() if is_missing(name, found)]
        if names:
            yield f"Not made when this page was written, of {kind}: {', '.join(names)}.\n"


def _slower(row: Planned) -> float:
    """A net without a plan counts as slower than any goal."""
    return float("inf") if row.slower is None else row.slower


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _met(is_met: bool) -> str:
    return "met" if is_met else "**missed**"


def main() -> None:
    """Make what is not there, smallest net first, then the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS, metavar="NAME")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, metavar="KIND")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each search")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "least-time")
    parser.add_argument("--output", type=Path, default=RESULTS / "least-time.json")
    parser.add_argument("--as-is", action="store_true", help="of what is done")
    parser.add_argument(
        "--measure", choices=KINDS, metavar="KIND", help="of one net, in this process, as JSON"
    )
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(answer(asked.measure, asked.only[0], asked.time_limit, asked.folder)))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)

    def find(kind: str, name: str, *, is_kept_only: bool) -> Any:
        options = ("--measure", kind, "--only", name, "--time-limit", str(asked.time_limit))
        return found_apart(
            asked.folder / f"{name}-{kind}.json",
            (__file__, *options, "--folder", str(asked.folder)),
            timeout_seconds=PROCESS_SECONDS,
            is_kept_only=is_kept_only,
            variables=IMPORTS[kind][1] if kind in IMPORTS else None,
        )

    def write_page() -> None:
        every = {
            name: found_of(lambda kind, name=name: find(kind, name, is_kept_only=True))  # type: ignore[misc]
            for name in MODELS
        }
        write(asked.output, page(every, asked.time_limit))

    then = before()
    for kind in () if asked.as_is else asked.kinds:
        for name in sorted(asked.only, key=lambda name: then[name].keep_everything_mib):
            if kind == "steps" and name not in MEASURED:
                continue
            try:
                print(kind, name, find(kind, name, is_kept_only=False), flush=True)
            except subprocess.SubprocessError as error:  # the other nets go on
                print(kind, name, error, flush=True)
            write_page()
    write_page()


if __name__ == "__main__":
    main()
