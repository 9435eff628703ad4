"""Which tensors to write: the windows relaxation's answer in whole tensors, found by diving.

The relaxation (`poet.solvers.bounds.relaxation`) writes halves of tensors. One tensor after the other is
decided, the one of which it writes most first: it is written, unless that costs more than a little, then it
is not; and the linear program is solved again (diving: Berthold, "Primal heuristics for mixed integer
programs", 2006). That takes a second where the program in whole numbers takes several.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from poet.clock import Clock
from poet.solvers.bounds.refinement import priced_bound
from poet.solvers.bounds.relaxation import laid_out
from poet.solvers.engines.linear import Diving
from poet.solvers.engines.matrix import Numbers
from poet.solvers.instance.instance import Instance
from poet.tuning.search import FewCopiesTuning


def rounded_copies(
    instance: Instance, less_ram_share: float, *, clock: Clock, end: float, finished: Callable[[], bool]
) -> frozenset[str]:
    """Tensors that a cheap solution writes, or has at home in storage, where it has so much less RAM.

    What must be written in any case is none of them. Empty where the relaxation has no solution, or not
    before ``end``.

    Args:
        instance: with a budget of RAM.
        less_ram_share: of the budget, that is not there.
        clock: of the search.
        end: of the time, by the clock.
        finished: asked before each program; whether to stop.
    """
    budget = instance.limits.ram_budget_bytes
    if budget is None:
        return frozenset()
    less = replace(instance.limits, ram_budget_bytes=int((1.0 - less_ram_share) * budget))
    lacking = replace(instance, limits=less)
    bound = priced_bound(lacking, seconds=end - clock.now(), clock=clock, finished=finished)
    if bound.answer.values is None:
        return frozenset()
    layout = laid_out(lacking, bound.moments)
    copies: dict[str, list[int]] = {}
    for content, column in zip(instance.contents, layout.stored, strict=True):
        if column >= 0:
            copies.setdefault(content.tensor, []).append(column)
    sizes = {content.tensor: content.bytes for content in instance.contents}
    dive = _Dive(Diving(layout.program.matrix(), clock=clock), copies, sizes, instance.tuning.few_copies)
    going = True
    while going and clock.now() < end and not finished():
        going = dive.decide(end - clock.now())
    return frozenset(dive.written)


class _Dive:
    """What was decided so far.

    Args:
        program: of the relaxation.
        copies: per tensor, the columns that say that a version of it has a copy.
        sizes: in bytes.
        tuning: what counts as written, and what as a little more.
    """

    def __init__(
        self, program: Diving, copies: dict[str, list[int]], sizes: dict[str, int], tuning: FewCopiesTuning
    ) -> None:
        self.program, self.copies, self.sizes, self.tuning = program, copies, sizes, tuning
        self.written = set[str]()
        self._decided = set[str]()
        self._solution: tuple[float, Numbers] | None = None

    def decide(self, seconds: float) -> bool:
        """One tensor more, in so many seconds for each program; false where nothing is left to decide."""
        self._solution = self._solution or self.program.solve(seconds=seconds)
        if self._solution is None:
            return False
        values = self._solution[1]
        shares = {
            name: max(float(values[column]) for column in columns)
            for name, columns in self.copies.items()
            if name not in self._decided
        }
        whole = {name for name, share in shares.items() if share > 1.0 - self.tuning.least_share}
        self.written |= whole
        self._decided |= whole
        left = [n for n, share in shares.items() if n not in whole and share > self.tuning.least_share]
        if not left:
            return False
        name = max(left, key=lambda name: (shares[name], self.sizes[name], name))
        self._decided.add(name)
        with_it = self._solved(name, 1.0, seconds)
        if with_it is None or self._dearer(with_it[0]):
            without = self._solved(name, 0.0, seconds)
            if without is not None and (with_it is None or without[0] < with_it[0]):
                self._solution = without
                return True
            self.program.fix(self.copies[name], 1.0)
        self.written.add(name)
        self._solution = with_it
        return with_it is not None

    def _dearer(self, joules: float) -> bool:
        """Than the last solution, by more than a little."""
        return self._solution is not None and joules > (1.0 + self.tuning.dearer_share) * self._solution[0]

    def _solved(self, name: str, copy: float, seconds: float) -> tuple[float, Numbers] | None:
        self.program.fix(self.copies[name], copy)
        return self.program.solve(seconds=seconds)
