"""``--robust`` and ``--sensitivity``: the plan where the device's figures are off."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from poet.planning.fit_layout import Fitted, fit_alone, searching
from poet.planning.prepared import Prepared
from poet.problem import Limits
from poet.schedule import Schedule
from poet.simulator import judge
from poet.solution import Solution, Status
from poet.streams import say
from poet.whatif.cache import Cache, users_cache
from poet.whatif.robust import Robust, robust
from poet.whatif.searches import Solver
from poet.whatif.sensitivity import Sensitivity, sensitivity
from poet.whatif.workers import Workers, working

from .ask import Ask
from .search import search_options

SOLVED_BY = "the search for the least largest regret"


@dataclasses.dataclass(frozen=True, slots=True)
class Doubt:
    """What asks both questions of one prepared model, with the solver and the cache of ``what-if``."""

    prepared: Prepared
    limits: Limits
    ask: Ask
    solver: Solver

    def robust(self, fitted: Fitted, nominal_seconds: float) -> tuple[Fitted, Robust | None]:
        """The robust plan in place of the ``fitted`` one: the best found that has a layout in the budget."""
        if not self.ask.robust:
            return fitted, None
        nominal = fitted.solution.schedule
        assert nominal is not None
        laid: list[Fitted] = []

        def lies_in_the_budget(schedule: Schedule) -> bool:
            solution = _answer(fitted, schedule)
            options, kernels = search_options(self.ask), self.prepared.kernels
            made = fit_alone(fitted.problem, self.limits, solution, options, kernels=kernels)
            fits = not made.missing_bytes
            laid.extend([dataclasses.replace(made, reserved_bytes=fitted.reserved_bytes)] * fits)
            return fits

        found = robust(
            fitted.problem,
            self.prepared.step.graph,
            self.prepared.profile,
            self._held(fitted),
            nominal,
            self.solver,
            nominal_seconds=nominal_seconds,
            accepts=lies_in_the_budget,
            report=self._tell,
        )
        return (laid[0] if laid else fitted), found

    def sensitivity(self, fitted: Fitted) -> Sensitivity | None:
        """Which figures decide about ``fitted``'s plan."""
        if not self.ask.sensitivity:
            return None
        schedule = fitted.solution.schedule
        assert schedule is not None
        graph, profile = self.prepared.step.graph, self.prepared.profile
        held = self._held(fitted)
        return sensitivity(fitted.problem, graph, profile, held, schedule, self.solver, report=self._tell)

    def _held(self, fitted: Fitted) -> Limits:
        """The limits without what is reserved for gaps between tensors."""
        budget_bytes = self.limits.ram_budget_bytes
        assert budget_bytes is not None
        return dataclasses.replace(self.limits, ram_budget_bytes=budget_bytes - fitted.reserved_bytes)

    def _tell(self, what: str) -> None:
        if not self.ask.verbose:
            say(f"poet: searching for {what}", err=True)


@contextmanager
def figures_doubted(prepared: Prepared, limits: Limits, ask: Ask) -> Iterator[Doubt]:
    """What asks, while the context is open; searches run one after the other in this process."""
    cache = users_cache() if ask.robust or ask.sensitivity else Cache(None)
    with working(Workers(1)) as run:
        yield Doubt(
            prepared,
            limits,
            ask,
            Solver(searching(search_options(ask), limits), cache, run),
        )


def _answer(fitted: Fitted, schedule: Schedule) -> Solution:
    """The answer with another schedule: the bound stays, the proof does not."""
    if schedule == fitted.solution.schedule:
        return fitted.solution
    return dataclasses.replace(
        fitted.solution,
        schedule=schedule,
        trace=judge(fitted.problem, schedule),
        status=Status.FEASIBLE,
        solver=SOLVED_BY,
        proof="",
    )
