"""Columns for the units of ops, beside those of a program whose ops take the least of all their units.

========== ====================================================================================
y[k,u]     op k runs on unit u; one of its units
d[e,u]     the reads e of one op by another cross the border of u: |y[reader,u] - y[maker,u]|
V[x,u]     the rerun x happens on u: Σ V[x,u] over u ≥ x, V[x,u] ≤ y[k,u]
D[x,e,u]   in the rerun x, the reads e cross the border of u: ≥ x + d[e,u] - 1
========== ====================================================================================

Each costs what a run takes more on its unit than at least, or what the hand-over takes. In whole numbers that
is what the plan pays, whatever the columns of the program are otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from poet.problem import Problem
from poet.problem.units import edges, handing_of
from poet.solvers.engines.program import NOUGHT, ONE, MatrixBuilder, Term

Extra = tuple[float, float]
"""Seconds, and joules with idle power, above the least that an op takes."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Reads of what one op makes by another, at the border of ``unit``; ops by number."""

    maker: int
    reader: int
    unit: str
    cost: Extra


class UnitCosts:
    """What ops take on their units, above `Problem.at_least`.

    Attributes:
        least: the problem on one unit.
        forms: by op, in the order of the problem, what each unit adds; the main unit is ``""``.
        crossings: hand-overs that cost something.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.least = problem, problem.at_least()
        offers, watts = problem.offers(), problem.idle_watts
        numbers = {op.name: index for index, op in enumerate(problem.ops)}
        self.forms: list[dict[str, Extra]] = []
        for op, least in zip(problem.ops, self.least.ops, strict=True):
            costs = {each.unit: (each.seconds, each.joules) for each in offers(op)}
            least_joules = least.joules + watts * least.seconds
            self.forms.append(
                {
                    unit: (seconds - least.seconds, joules + watts * seconds - least_joules)
                    for unit, (seconds, joules) in ({"": (op.seconds, op.joules)} | costs).items()
                }
            )
        self.crossings: list[Crossing] = []
        for edge in edges(problem):
            maker, reader = numbers[edge.maker], numbers[edge.reader]
            for unit in self.forms[maker].keys() ^ {""} | self.forms[reader].keys():
                cost = handing_of(problem, unit, edge) if unit else None
                if cost is not None and (cost.seconds or cost.joules):
                    extra = cost.seconds, cost.joules + watts * cost.seconds
                    self.crossings.append(Crossing(maker, reader, unit, extra))


@dataclass(slots=True)
class UnitColumns:
    """The columns of `UnitCosts` in a program, and what they take.

    Attributes:
        chosen: y by op and unit, a column or a constant.
        crossed: d by crossing.
        seconds, joules: what the columns take more, where that is limited.
    """

    costs: UnitCosts
    program: MatrixBuilder
    by_time: bool = False
    chosen: dict[tuple[int, str], int] = field(default_factory=dict)
    crossed: list[int] = field(default_factory=list)
    seconds: list[Term] = field(default_factory=list)
    joules: list[Term] = field(default_factory=list)

    def add_first_runs(self, runs: Sequence[int]) -> None:
        """Y and d, where op k runs ``runs[k]`` times."""
        for number, forms in enumerate(self.costs.forms):
            for unit, extra in forms.items():
                column = ONE if len(forms) == 1 else self._column(extra, runs[number], integer=True)
                self.chosen[number, unit] = column
            if len(forms) > 1:
                each = [(1.0, self.chosen[number, unit]) for unit in forms]
                self.program.row(each, 1.0)
                self.program.row([(-factor, column) for factor, column in each], -1.0)
        for crossing in self.costs.crossings:
            ends = (crossing.reader, crossing.unit), (crossing.maker, crossing.unit)
            here, there = (self.chosen.get(end, NOUGHT) for end in ends)
            column = self._column(crossing.cost, runs[crossing.reader])
            self.crossed.append(column)
            for one, other in ((here, there), (there, here)):
                self.program.row([(1.0, one), (-1.0, other), (-1.0, column)], 0.0)

    def add_reruns(self, run: Mapping[int, Sequence[int]]) -> None:
        """V and D for the columns of reruns of each op."""
        for number, columns in run.items():
            for again in columns:
                if again == NOUGHT:
                    continue
                forms = self.costs.forms[number]
                there = {unit: self._column(extra, 1) for unit, extra in forms.items() if len(forms) > 1}
                if there:
                    self.program.row([(1.0, again), *((-1.0, column) for column in there.values())], 0.0)
                for unit, column in there.items():
                    self.program.row([(1.0, column), (-1.0, self.chosen[number, unit])], 0.0)
                for crossing, crossed in zip(self.costs.crossings, self.crossed, strict=True):
                    if crossing.reader == number:
                        column = self._column(crossing.cost, 1)
                        self.program.row([(1.0, again), (1.0, crossed), (-1.0, column)], 1.0)

    def _column(self, extra: Extra, runs: int, *, integer: bool = False) -> int:
        seconds, joules = (runs * amount for amount in extra)
        column = self.program.column(seconds if self.by_time else joules, integer=integer)
        self.seconds.append((seconds, column))
        self.joules.append((joules, column))
        return column

    def assignment(self, values: Sequence[float]) -> dict[str, str]:
        """The unit of each op that is not on the main one, in a solution in whole numbers."""
        ops = self.costs.problem.ops
        return {
            ops[number].name: unit
            for (number, unit), column in self.chosen.items()
            if unit and column >= 0 and values[column] > 0.5
        }
