"""Sets of groups by local search, where the relaxation of what to train is too large to be solved in time.

What a set takes is the joules of its ops, each run once: a first guess, made in microseconds, that leaves
out what smaller RAM adds. From each group alone, the one with the most share per joule is added while it
fits; the best set then exchanges groups for better ones (greedy construction and 1-exchange, as for knapsack
problems).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from poet.solvers.bounds.optional_ops import Groups, OptionalOps

LeftOut = Callable[[Groups], bool]


class Climber:
    """Finds sets in one step."""

    def __init__(self, step: OptionalOps) -> None:
        """Sum up the joules of ops that the same groups need."""
        self._step, self._shares = step, np.array(step.shares)
        joules: dict[Groups, float] = {}
        self._base = 0.0
        for op in step.problem.ops:
            each, _ = step.cost(op)
            if op.name in step.needs:
                joules[step.needs[op.name]] = joules.get(step.needs[op.name], 0.0) + each
            else:
                self._base += each
        self._joules = np.array([*joules.values()])
        self._needs = np.array([[g in groups for g in range(len(step.shares))] for groups in joules])

    @property
    def joules(self) -> float:
        """Of all ops."""
        return self._base + float(self._joules.sum())

    def fits(self, groups: Groups, joules: float) -> bool:
        """Whether ops of ``groups``, each run once, take no more."""
        needed = self._needs[:, sorted(groups)].any(axis=1)
        return self._base + float(self._joules @ needed) <= joules * (1 + 1e-9)

    def climbed(self, joules: float, start: Groups, is_left_out: LeftOut) -> Groups:
        """A set that takes at most ``joules``; one that ``is_left_out`` is passed over."""
        every = range(len(self._shares))
        sets = [self._grown(frozenset(s), joules, is_left_out) for s in (start, *([g] for g in every))]
        best = max(sets, key=self._step.share)
        while True:
            swaps = (self._grown(best - {group}, joules, is_left_out, besides=group) for group in best)
            better = max(swaps, key=self._step.share, default=best)
            if self._step.share(better) <= self._step.share(best) + 1e-9:
                return best
            best = better

    def _grown(
        self,
        groups: Groups,
        joules: float,
        is_left_out: LeftOut,
        *,
        besides: int | None = None,
    ) -> Groups:
        """``groups`` with more, but not ``besides``; nothing where these take too much or are left out."""
        left = self._joules * ~self._needs[:, sorted(groups)].any(axis=1)
        spent = self.joules - float(left.sum())
        if spent > joules or is_left_out(groups):
            return frozenset()
        tried = {*groups, *([] if besides is None else [besides])}
        while True:
            more = left @ self._needs
            worth = np.where(spent + more <= joules, self._shares / np.maximum(more, 1e-3 * joules), -1.0)
            worth[sorted(tried)] = -1.0
            group = int(worth.argmax())
            if worth[group] <= 0:
                return groups
            tried.add(group)
            if not is_left_out(groups | {group}):
                groups, spent = groups | {group}, spent + float(more[group])
                left = left * ~self._needs[:, group]
