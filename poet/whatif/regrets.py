"""Plans, what each takes at each corner of a device's figures, and the game between plans and corners."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from poet.homes import DecidedProblem
from poet.problem import Problem
from poet.schedule import Schedule
from poet.simulator import judge

Numbers = npt.NDArray[np.float64]

_GAME_ROUNDS = 4000


class Regrets:
    """Plans that are known, and what each takes at each corner.

    The regret of a plan at a corner is the share that it takes more there than the best plan known.

    Attributes:
        problems: the step, priced at each corner.
        plans: in the order in which they were found.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        self.plans: list[Schedule] = []
        self._joules: list[list[float]] = []

    def add(self, plan: Schedule) -> bool:
        """Take a plan in; whether it is a new one."""
        if plan in self.plans:
            return False
        self.plans.append(plan)
        self._joules.append(self.joules(plan))
        return True

    def joules(self, plan: Schedule) -> list[float]:
        """What any plan takes at each corner."""
        return [judge(DecidedProblem(problem), plan).joules for problem in self.problems]

    def best_joules(self) -> list[float]:
        """Of the best plan known for each corner."""
        return [min(column) for column in zip(*self._joules, strict=True)]

    def table(self) -> Numbers:
        """Regrets, a row for each plan, a column for each corner."""
        return np.asarray(np.array(self._joules) / np.array(self.best_joules()) - 1.0, dtype=np.float64)

    def least_largest(self) -> float:
        """The largest regret of the plan whose largest is least."""
        return float(self.table().max(axis=1).min())

    def best_at(self, corner: int) -> Schedule | None:
        """The best plan known for a corner."""
        known = [row[corner] for row in self._joules]
        return self.plans[known.index(min(known))] if known else None


def hardest_weights(regrets: Numbers) -> Numbers:
    """Weights of corners in the game in which plans may be mixed: multiplicative weights, averaged.

    Any weights give a valid bound; these are within a few per cent of the best.
    """
    corners = regrets.shape[1]
    scale = float(regrets.max()) or 1.0
    rate = math.sqrt(8.0 * math.log(max(corners, 2)) / _GAME_ROUNDS)
    score, mean = np.zeros(corners), np.zeros(corners)
    for _ in range(_GAME_ROUNDS):
        weights = np.exp(rate * (score - score.max()))
        weights /= weights.sum()
        mean += weights
        score += regrets[int(np.argmin(regrets @ weights))] / scale
    return np.asarray(mean / mean.sum(), dtype=np.float64)
