"""Bounds by resident sets of random problems, beside exhaustive search."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

from helpers.oracle import least_joules
from helpers.random_problems import mixed_problem, random_limits, with_homes
from poet.problem import Limits, Problem
from poet.problem.simulator import simulate
from poet.solvers.bounds.resident_sets import resident_sets_bounds
from poet.solvers.instance.instance import Instance, instance_of
from poet.util.clock import WALL

TOLERANCE = 1e-6  # of a step's joules; costs are rounded down to 2^-28 of what is asked for


def case(seed: int, *, homes: bool = False) -> tuple[Instance, float | None]:
    """A random instance, perhaps with homes to choose, and the least overhead by exhaustive search."""
    problem = dataclasses.replace(mixed_problem(seed, largest=5), background_storage=False)
    problem = with_homes(problem, seed) if homes else problem
    limits = random_limits(problem, seed, deadline=seed % 3 == 0)
    best = least_joules(problem, limits)
    overhead = None if best is None else simulate(problem, best, limits).joules - problem.compute_joules
    return instance_of(problem, limits), overhead


def bounds(instance: Instance, below_joules: float) -> list[float]:
    return list(resident_sets_bounds(instance, below_joules=below_joules, clock=WALL))


def only_ram(problem: Problem, limits: Limits) -> bool:
    alone = Limits(limits.ram_budget_bytes, recompute=limits.recompute, paging=limits.paging)
    return problem.storage_capacity_bytes is None and limits == alone


def check(seeds: range, *, homes: bool = False, must_reach: bool = True) -> int:
    """How many problems whose least overhead the last bound must equal, and equals, unless it need not."""
    reached = 0
    for seed in seeds:
        instance, overhead = case(seed, homes=homes)
        if overhead is None:
            continue
        scale = instance.problem.compute_joules
        for below in (100.0 * scale + 2.0 * overhead, 1.01 * overhead + 1e-3 * scale):
            joules = bounds(instance, below)
            assert max(joules, default=0.0) <= overhead + TOLERANCE * scale, seed
            assert all(after >= before - TOLERANCE * scale for before, after in pairwise(joules)), seed
            if must_reach and joules and not homes and only_ram(instance.problem, instance.limits):
                assert joules[-1] >= overhead - TOLERANCE * max(scale, below), seed
                reached += 1
    return reached
