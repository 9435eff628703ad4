"""Random problems whose ops run on several units, and the exhaustive oracle over all choices of them."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator

from helpers import forms, oracle
from helpers.random_problems import mixed_problem, random_limits, random_pins
from poet.problem import Handing, Limits, OnUnit, Problem, ProblemOp, Unit
from poet.problem.alternatives import with_names
from poet.problem.schedule import Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Status
from poet.problem.units import on_units, with_units
from poet.solvers import solve


def with_random_units(problem: Problem, seed: int) -> Problem:
    """``problem`` with one or two units more, which run some of its ops, and hand-overs between them."""
    rng = random.Random(f"units {problem.name} {seed}")
    names = ["one", "two"][: rng.choice([1, 1, 2])]

    def handing() -> Handing:
        if rng.random() < 0.3:
            return Handing()
        return Handing(rng.choice([0.0, 0.1]), rng.choice([0.05, 0.3]), 0.0, rng.choice([0.0, 0.02]))

    def on(op: ProblemOp) -> ProblemOp:
        able = [name for name in names if rng.random() < 0.8]
        factors = [(rng.choice([0.4, 0.8, 1.5]), rng.choice([0.5, 0.9, 1.3])) for _ in able]
        costs = [(round(op.seconds * s, 3), round(op.joules * j, 3)) for s, j in factors]
        return dataclasses.replace(
            op, on=tuple(OnUnit(name, *cost) for name, cost in zip(able, costs, strict=True))
        )

    return dataclasses.replace(
        problem,
        ops=tuple(map(on, problem.ops)),
        alternatives=tuple(
            dataclasses.replace(each, ops=tuple(map(on, each.ops))) for each in problem.alternatives
        ),
        units=tuple(
            Unit(name, handing(), ram_bytes=rng.choice([None, None, 12, 20]) if seed % 3 == 0 else None)
            for name in names
        ),
    )


def assignments(problem: Problem) -> Iterator[dict[str, str]]:
    """All choices of units."""
    offers = problem.offers()
    ways = [("", *(each.unit for each in offers(op))) for op in problem.ops]
    for units in itertools.product(*ways):
        yield {op.name: unit for op, unit in zip(problem.ops, units, strict=True) if unit}


def least_joules(problem: Problem, limits: Limits) -> Schedule | None:
    """`helpers.oracle.least_joules` over all choices of alternatives and units."""
    found: list[tuple[float, Schedule]] = []
    for taken in forms.choices_of(problem):
        resolved = problem.resolved(taken)
        for assignment in assignments(resolved):
            placed = on_units(resolved, assignment)
            if found and placed.compute_joules >= min(joules for joules, _ in found):
                continue
            schedule = oracle.least_joules(placed, limits)
            if schedule is not None:
                named = with_names(problem, taken, with_units(schedule, assignment))
                found.append((simulate(placed, schedule, limits).joules, named))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def small_on_units(seed: int) -> tuple[Problem, Limits]:
    """A step of 3 to 5 ops on up to three units, in tight RAM, perhaps with a deadline and pins."""
    rng = random.Random(f"small on units {seed}")
    problem = mixed_problem(seed, smallest=3, largest=rng.choice([3, 4, 4, 5]))
    if rng.random() < 0.15:
        problem = forms.with_alternatives(problem, seed, most=1)
    problem = with_random_units(problem, seed)
    limits = random_limits(problem.resolved(()), seed, deadline=False)
    if rng.random() < 0.4:
        slack = rng.choice([1.0, 1.2, 1.6, 2.5])
        limits = dataclasses.replace(limits, deadline_seconds=slack * problem.compute_seconds)
    if rng.random() < 0.2:
        limits = random_pins(problem.resolved(()), limits, seed)
    return problem, limits


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """A search over units beside exhaustive search.

    Attributes:
        has_plan: there is one within the limits.
        is_equal: the search found none where there is none, and else one that takes as little as the best.
        is_optimal: it says that its plan is optimal, which holds.
        holds: its bound and its plan are valid.
    """

    has_plan: bool
    is_equal: bool
    is_optimal: bool
    holds: bool


def judged(seed: int, options: SolveOptions) -> Verdict:
    """The search of `small_on_units` of ``seed``."""
    problem, limits = small_on_units(seed)
    best, found = least_joules(problem, limits), solve(problem, limits, options)
    if best is None:
        return Verdict(False, found.schedule is None, False, found.schedule is None)
    optimum, bound = simulate(problem, best, limits).joules, found.bound_joules
    holds = found.status is not Status.INFEASIBLE and bound <= optimum * (1 + 1e-9) + 1e-9
    if found.schedule is None:
        return Verdict(True, False, False, holds)
    joules = simulate(problem, found.schedule, limits).joules
    is_equal, says = joules <= optimum * (1 + 1e-5) + 1e-9, found.status is Status.OPTIMAL
    holds = holds and found.joules == joules >= optimum - 1e-9 and (is_equal or not says)
    return Verdict(True, is_equal, says and is_equal, holds)


def every_other(problem: Problem) -> Problem:
    """``problem`` with every other op on a unit of one thread; the main unit has as many as torch."""
    ops = tuple(dataclasses.replace(op, on=(OnUnit("alone", op.seconds, op.joules),)) for op in problem.ops)
    given = dataclasses.replace(problem, ops=ops, units=(Unit("alone", threads=1),))
    return on_units(given, {op.name: "alone" for op in problem.ops[::2]})
