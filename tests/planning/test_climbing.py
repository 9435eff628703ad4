"""Local search for what to train: sets stay inside the joules, and come near the best of small steps."""

from __future__ import annotations

import itertools

from helpers.random_problems import mixed_problem

from poet.planning.climbing import Climber
from poet.solvers.bounds.optional_ops import Groups, OptionalOps


def _step(seed: int) -> OptionalOps:
    problem = mixed_problem(seed, smallest=6, largest=8)
    last = [op.name for op in problem.ops[2:]]
    needs = {name: frozenset(range(place // 2, 3)) for place, name in enumerate(last)}
    return OptionalOps(problem, [0.5, 0.3, 0.2], {name: groups for name, groups in needs.items() if groups})


def test_climbed_sets_fit_and_are_the_best_of_three_groups() -> None:
    for seed in range(20):
        step = _step(seed)
        climber = Climber(step)
        subsets = [Groups(s) for n in range(4) for s in itertools.combinations(range(3), n)]
        for share in (0.5, 0.8, 1.0):
            joules = share * climber.joules
            found = climber.climbed(joules, Groups(), lambda groups: False)
            fitting = [groups for groups in subsets if climber.fits(groups, joules)]
            assert found in fitting or not found
            assert step.share(found) >= max(map(step.share, fitting), default=0.0) - 1e-9, f"seed {seed}"
            without = climber.climbed(joules, Groups(), found.issubset)
            assert not found or without != found
