"""Before the search over alternatives: a bound for all choices of them, and the choice that it suggests.

The windows relaxation with open forms (`poet.solvers.instance.undecided`) is solved as a linear program, with
more and more moments on its grids. What it costs is a bound for every choice; the forms that its solution
takes for more than half are a choice, by what each costs and the RAM that it frees, moment by moment.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from poet.interrupts import was_told
from poet.problem import Limits, Objective, Problem
from poet.solution import SolveOptions
from poet.solvers.bounds.refinement import refined_bounds
from poet.solvers.bounds.relaxation import Bound
from poet.solvers.engines.program import value
from poet.solvers.instance.undecided import undecided
from poet.solvers.search.objectives import priced

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FormGuide:
    """What the relaxation says of all choices.

    Attributes:
        bound: of the objective, in its unit, for every choice.
        open: alternatives whose forms it weighed; ``taken``: those of them that it takes.
    """

    bound: float
    open: frozenset[str]
    taken: frozenset[str]


def form_guide(
    problem: Problem, limits: Limits, options: SolveOptions, *, seconds: float
) -> FormGuide | None:
    """The guide of ``problem``, in ``seconds``; ``None``: nothing is to be weighed, or time was too short.

    For least energy, time or writes, within ``limits`` without pins.
    """
    if options.objective is not Objective.ENERGY:
        problem = priced(problem, options.objective)
    of = undecided(problem, limits, tuning=options.tuning)
    if not of.names or limits.ram_budget_bytes is None or seconds <= 0.0:
        return None
    solved, bound_joules, end = list[Bound](), 0.0, options.clock.now() + seconds

    def left() -> float:
        return max(end - options.clock.now(), 0.0)

    for bound in refined_bounds(of.instance, left, clock=options.clock):
        bound_joules = max(bound_joules, bound.overhead_joules)
        if bound.answer.values is not None:
            solved.append(bound)
        if not left() or was_told():
            break
    if not solved:
        return None
    last = max(solved, key=lambda bound: bound.overhead_joules)
    assert last.answer.values is not None
    columns = last.relaxation.forms[1::2]
    shares = [value(column, last.answer.values) for column in columns]
    least = options.tuning.alternatives.taken_share
    taken = frozenset(name for name, share in zip(of.names, shares, strict=True) if share > least)
    least_amount = of.joules + bound_joules
    _log.info("open forms: at least %g, %d of %d alternatives taken", least_amount, len(taken), len(of.names))
    return FormGuide(least_amount, frozenset(of.names), taken)
