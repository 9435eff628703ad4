"""Writes down what a search does while it does it: for its record, and for who listens to the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from poet.clock import WALL
from poet.problem import Objective
from poet.search_record import Advance, Phase, Rejected, SearchRecord, shortened_phases, thinned
from poet.solvers.instance.incumbent import Rejections

_log = logging.getLogger(__name__)

_UNITS = {Objective.ENERGY: "J", Objective.TIME: "s", Objective.RAM: "B", Objective.WRITES: "B"}


class Recorder:
    """Keeps phases, best plans, highest bounds and rejections of one search.

    Args:
        objective: whose amounts are kept.
        clock: seconds of the search's clock.
    """

    def __init__(
        self, objective: Objective = Objective.ENERGY, *, clock: Callable[[], float] = WALL.now
    ) -> None:
        self.rejections = Rejections()
        self._unit, self._clock, self._began = _UNITS[objective], clock, clock()
        self._phases: list[Phase] = []
        self._plans: list[Advance] = []
        self._bounds: list[Advance] = []

    def plan(self, amount: float, by: str) -> None:
        """A plan is the best from now on."""
        self._plans.append(Advance(self._seconds(), amount, by))
        _log.info("plan %.9g %s, by %s", amount, self._unit, by)

    def bound(self, amount: float, by: str) -> None:
        """The bound that holds from now on; passed over where it is the one that holds already."""
        if not self._bounds or amount != self._bounds[-1].amount:
            self._bounds.append(Advance(self._seconds(), amount, by))
            _log.info("bound %.9g %s, by %s", amount, self._unit, by)

    def count(self, rejected: Iterable[Rejected]) -> None:
        """Add what the simulator rejected in a search within this one."""
        for one in rejected:
            self.rejections.schedules[one.rule] += one.schedules
            self.rejections.faults[one.rule] += one.faults

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The block is a phase of the search."""
        begin, plans, bounds = self._seconds(), len(self._plans), len(self._bounds)
        _log.info("begins: %s", name)
        try:
            yield
        finally:
            end, found = self._seconds(), len(self._plans) - plans
            saved = self._plans[plans - 1].amount - self._plans[-1].amount if plans and found else 0.0
            raised = self._bounds[-1].amount - self._bounds[bounds - 1].amount if bounds else 0.0
            self._phases.append(Phase(name, begin, end, found, saved, raised))
            _log.info(
                "ends: %s; %.3f s, %d better plans, %.6g %s less, bound %+.6g %s",
                name, end - begin, found, saved, self._unit, raised, self._unit,
            )  # fmt: skip

    def record(self) -> SearchRecord:
        """What was written down so far."""
        return SearchRecord(
            phases=shortened_phases(self._phases),
            plans=thinned(self._plans),
            bounds=thinned(self._bounds),
            rejected=tuple(
                Rejected(rule, self.rejections.schedules[rule], self.rejections.faults[rule])
                for rule in sorted(self.rejections.schedules)
            ),
        )

    def _seconds(self) -> float:
        return self._clock() - self._began
