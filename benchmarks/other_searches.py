"""Searches of other kinds than small nets in little RAM, each kind beside its goal.

    python -m benchmarks other-searches [--only KIND ...] [--time-limit 60] [--random 1000]
                                              [--rows FILE] [--fresh]

The published problems with and without paging; nets whose layers are put behind each other; a step of
10,000 ops; VGG-16 where nothing may be paged; and random problems beside exhaustive search. Problems, and
each search as a line of JSON, are kept under build/other-searches/, so that a run which was stopped goes on
where it was. Each search runs in a process of its own, on one thread, its time limit in seconds of a core's
work, the children's included (`CoreClock`).
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from result_file import RESULTS, write

from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.problem import Limits, Problem
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.util.units import format_bytes

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

from helpers.clocks import CoreClock  # noqa: E402
from helpers.oracle import least_joules  # noqa: E402
from helpers.random_problems import mixed_problem, random_limits, with_homes  # noqa: E402
from small_ram import WEAK_POINTS  # noqa: E402
from workers import run  # noqa: E402

BUILD = ROOT / "build" / "other-searches"
PAGE = RESULTS / "other-searches.json"
INSTANCES = ROOT / "tests" / "instances"
DENSE_LAYERS = (12, 24, 40)
KINDS = ("published", "concats", "10,000 ops", "VGG-16 without paging", "random")
EQUAL = 1e-6
"""What counts as equal, relative."""
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


@dataclass(frozen=True, slots=True)
class Question:
    """One search: of a kind, a problem by name, a budget as a share, and whether anything may be paged."""

    kind: str
    problem: str
    share: float
    paging: bool = True


@dataclass(frozen=True, slots=True)
class Row:
    """One search; plan and bound are shares above running every op once, ``None``: there is no plan.

    Attributes:
        kind, problem, share, paging, ops, budget_bytes, limit_seconds: what was asked.
        status: of the answer.
        plan, bound: see above.
        gap, open_share: how far the plan may be above the best, as a share of its joules and of its overhead.
        seconds: of a core.
        first_seconds, plan_seconds, bound_seconds: until the first plan, the last one, and the last bound.
        bound_by: who found it.
        peak_bytes: the most that the search and its children held at once (`workers.run`).
    """

    kind: str
    problem: str
    share: float
    paging: bool
    ops: int
    budget_bytes: int
    limit_seconds: float
    status: str
    plan: float | None
    bound: float
    gap: float | None
    open_share: float | None
    seconds: float
    first_seconds: float
    plan_seconds: float
    bound_seconds: float
    bound_by: str
    peak_bytes: int = 0

    @property
    def asked(self) -> Question:
        """What was asked."""
        return Question(self.kind, self.problem, self.share, self.paging)

    @property
    def proven(self) -> bool:
        """Nothing is open: the plan is the best, or there is none."""
        return self.status in (Status.OPTIMAL.word, Status.INFEASIBLE.word)

    @property
    def still_open(self) -> float:
        """Of the joules."""
        return 0.0 if self.proven else 1.0 if self.gap is None else self.gap

    @property
    def overhead_open(self) -> float:
        """Of the overhead."""
        return 0.0 if self.proven else 1.0 if self.open_share is None else self.open_share


@dataclass(frozen=True, slots=True)
class RandomRow:
    """One random problem beside exhaustive search.

    Attributes:
        seed, limit_seconds: what was asked.
        background: whether transfers run beside compute.
        proven: within the limit.
        plan_above, bound_above: relative to the least joules there are; ``None``: exhaustive search did not
            end, or there is no plan. A plan that is missing, or should not be, is infinitely far off.
        compared: exhaustive search ended.
        seconds: of a core.
    """

    seed: int
    limit_seconds: float
    background: bool
    proven: bool
    plan_above: float | None
    bound_above: float | None
    compared: bool
    seconds: float

    @property
    def equal(self) -> bool:
        """To the optimum, the bound not above it."""
        return (self.plan_above or 0.0) <= EQUAL and (self.bound_above or 0.0) <= EQUAL


def questions(kinds: Sequence[str]) -> Iterator[Question]:
    """All searches of these kinds but those of random problems."""
    if "published" in kinds:
        for path in (*sorted(INSTANCES.glob("*.json")), *sorted((INSTANCES / "family").glob("*.json"))):
            name = str(path.relative_to(INSTANCES).with_suffix(""))
            yield from (
                Question("published", name, *asked) for asked in ((0.5, True), (0.2, True), (0.5, False))
            )
    if "concats" in kinds:
        for layers in DENSE_LAYERS:
            yield from (Question("concats", f"densenet-like-{layers}", share) for share in (0.2, 0.15, 0.1))
    if "10,000 ops" in kinds:
        yield from (Question("10,000 ops", "headwise-gpt-48", share) for share in (0.5, 0.3, 0.15))
    if "VGG-16 without paging" in kinds:
        yield Question("VGG-16 without paging", "family/vgg16.m4", 0.5, paging=False)


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


class _TooLong(Exception):
    """Exhaustive search has had its time."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises `_TooLong` after ``seconds`` of this process."""

    def stop(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


def problem_of(question: Question) -> Problem:
    """The published one, or the training step's, made once, in a process of its own: torch is large."""
    if question.kind in ("published", "VGG-16 without paging"):
        return Problem.load(INSTANCES / f"{question.problem}.json")
    path = BUILD / f"{question.problem}.{DEVICE}.json"
    if not path.exists():
        subprocess.run([sys.executable, __file__, "--make", question.problem], check=True)
    return Problem.load(path)


def _make_problem(name: str) -> None:
    import torch
    from search_nets import DenseNetLike, HeadwiseGPT

    from poet.api import prepare

    BUILD.mkdir(parents=True, exist_ok=True)
    kind, _, layers = name.rpartition("-")
    if kind == "densenet-like":
        prepared = prepare(DenseNetLike(int(layers)), torch.randn(8, 3, 32, 32), device=DEVICE)
    else:
        words = torch.randint(2000, (1, 64))
        prepared = prepare(HeadwiseGPT(int(layers)), words, device=DEVICE, targets=words)
    graph, profile = prepared.step.graph, load_profile(DEVICE)
    problem = build_problem(graph, profile, kernels_on(profile, graph, prepared.step.kernels))
    (BUILD / f"{name}.{DEVICE}.json").write_text(json.dumps(problem.to_json()))


def limits_of(question: Question, problem: Problem) -> Limits:
    """Shares are of the way from the least RAM that any schedule needs to what keeping everything takes, of
    published problems of the latter, as in their papers.
    """
    limits = Limits(paging=question.paging)
    least, most = minimum_ram_bytes(problem, limits).bytes, keep_everything_bytes(problem)
    if question.kind in ("published", "VGG-16 without paging"):
        budget = max(least, round(question.share * most))
    else:
        budget = budget_between(least, most, question.share)
    return Limits(ram_budget_bytes=budget, paging=question.paging)


def measured(question: Question, limit_seconds: float) -> Row:
    """One search in this process, whose memory is seen from outside."""
    problem = problem_of(question)
    limits = limits_of(question, problem)
    solution = solve(problem, limits, SolveOptions(limit_seconds, clock=CoreClock()))
    baseline, record = solution.baseline_joules, solution.record
    plans, bounds = record.plans, record.bounds
    return Row(
        kind=question.kind,
        problem=question.problem,
        share=question.share,
        paging=question.paging,
        ops=len(problem.ops),
        budget_bytes=limits.ram_budget_bytes or 0,
        limit_seconds=limit_seconds,
        status=solution.status.word,
        plan=None if solution.joules is None else solution.joules / baseline - 1.0,
        bound=solution.bound_joules / baseline - 1.0,
        gap=solution.gap,
        open_share=solution.overhead_gap,
        seconds=solution.solve_seconds,
        first_seconds=plans[0].seconds if plans else math.nan,
        plan_seconds=plans[-1].seconds if plans else math.nan,
        bound_seconds=bounds[-1].seconds if bounds else math.nan,
        bound_by=bounds[-1].by if bounds else "arithmetic",
    )


def random_row(seed: int, limit_seconds: float) -> RandomRow:
    """One random problem, every choice on: a third with a deadline, a fifth chooses homes as well."""
    problem = mixed_problem(seed)
    problem = with_homes(problem, seed) if seed % 5 == 0 else problem
    limits = random_limits(problem, seed, deadline=seed % 3 == 0)
    solution = solve(problem, limits, SolveOptions(limit_seconds, clock=CoreClock()))
    proven = solution.status in (Status.OPTIMAL, Status.INFEASIBLE)
    row = RandomRow(
        seed, limit_seconds, problem.background_storage, proven, None, None, False, solution.solve_seconds
    )
    try:
        with _at_most(EXHAUSTIVE_SECONDS):
            schedule = least_joules(problem, limits)
    except _TooLong:
        return row
    if schedule is None or solution.joules is None:
        apart = math.inf if solution.status is not Status.INFEASIBLE or schedule is not None else None
        return replace(row, plan_above=apart, compared=True)
    least = simulate(problem, schedule, limits).joules
    above = (joules - least for joules in (solution.joules, solution.bound_joules))
    plan, bound = (joules / least if least > 0.0 else joules for joules in above)
    return replace(row, plan_above=plan, bound_above=bound, compared=True)


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure what was asked for and is not known yet; write the page of all that is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--problem", default="", help="only those whose name contains this")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of a core for each search")
    parser.add_argument("--random", type=int, default=1000, help="how many random problems")
    parser.add_argument("--rows", type=Path, default=BUILD / "rows.jsonl", help="where searches are kept")
    parser.add_argument("--fresh", action="store_true", help="forget earlier searches")
    parser.add_argument("--make", help=argparse.SUPPRESS)  # the problem file alone
    parser.add_argument("--one", help=argparse.SUPPRESS)  # search here, print the row
    given = parser.parse_args(None if arguments is None else list(arguments))
    if given.make:
        _make_problem(given.make)
        return
    if given.one:
        print(json.dumps(asdict(measured(Question(**json.loads(given.one)), given.time_limit))))
        return
    BUILD.mkdir(parents=True, exist_ok=True)
    seeds = given.rows.with_name(f"random-{given.rows.name}")
    if given.fresh:
        given.rows.unlink(missing_ok=True)
        seeds.unlink(missing_ok=True)
    known = {row.asked: row for row in (Row(**kept) for kept in _kept(given.rows))}
    for question in questions(given.only):
        if given.problem in question.problem and (
            question not in known or known[question].limit_seconds != given.time_limit
        ):
            problem_of(question)
            known[question] = _in_a_process(question, given.time_limit)
            _keep(given.rows, known[question])
            print(line(known[question]), flush=True)
    randoms = {row.seed: row for row in (RandomRow(**kept) for kept in _kept(seeds))}
    for seed in range(given.random) if "random" in given.only else ():
        if seed not in randoms:
            randoms[seed] = random_row(seed, RANDOM_SECONDS)
            _keep(seeds, randoms[seed])
            if not (randoms[seed].proven and randoms[seed].equal):
                print(randoms[seed], flush=True)
    order = [known[question] for question in questions(KINDS) if question in known]
    write(PAGE, page(order, list(randoms.values())))
    print(f"wrote {PAGE.relative_to(ROOT)}")


def _kept(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _keep(path: Path, row: Row | RandomRow) -> None:
    with path.open("a") as file:
        file.write(json.dumps(asdict(row)) + "\n")


def _in_a_process(question: Question, limit_seconds: float) -> Row:
    asked = ["--one", json.dumps(asdict(question)), "--time-limit", str(limit_seconds)]
    ran = run([sys.executable, __file__, *asked])
    return replace(Row(**json.loads(ran.stdout.splitlines()[-1])), peak_bytes=ran.peak_bytes)


if __name__ == "__main__":
    main()
