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
from poet.problem.units import on_units, with_units


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
        units=tuple(Unit(name, handing()) for name in names),
    )


def assignments(problem: Problem) -> Iterator[dict[str, str]]:
    """All choices of units."""
    ways = [("", *(each.unit for each in op.on)) for op in problem.ops]
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
