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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from poet.devices.device_problem import build_problem, kernels_on
from poet.devices.load import load_profile
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.problem import Limits, Problem
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Status
from poet.solvers import minimum_ram_bytes, solve

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

from held_memory import run  # noqa: E402
from helpers.clocks import CoreClock  # noqa: E402
from helpers.oracle import least_joules  # noqa: E402
from helpers.random_problems import mixed_problem, random_limits, with_homes  # noqa: E402
from other_searches_page import DEVICE, EXHAUSTIVE_SECONDS, RANDOM_SECONDS, line, page  # noqa: E402
from other_searches_rows import INSTANCES, KINDS, Question, RandomRow, Row, questions  # noqa: E402

BUILD = ROOT / "build" / "other-searches"
PAGE = ROOT / "benchmarks" / "results" / "other-searches.md"


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
    PAGE.write_text(page(order, list(randoms.values())))
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
