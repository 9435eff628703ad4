"""What a search did and when: the record that comes with every answer and stands in the plan.

Amounts are of the objective that was asked for: joules, seconds or bytes. Seconds count from the start
of the search. A record is bounded in length, however long the search took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from poet.errors import InputError
from poet.util.brief import brief

MOST_ENTRIES = 200
"""Phases, plans and bounds of one record, each."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a search.

    Attributes:
        name: what was tried.
        begin_seconds, end_seconds: when.
        plans: how many times the best plan was replaced by a better one.
        saved: by how much the best plan at the end is below the best before; 0 where there was none before.
        raised: by how much the bound rose.
    """

    name: str
    begin_seconds: float
    end_seconds: float
    plans: int = 0
    saved: float = 0.0
    raised: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.begin_seconds <= self.end_seconds:
            raise InputError(
                f"phase {self.name!r} begins at {self.begin_seconds} s and ends at {self.end_seconds} s"
            )


@dataclass(frozen=True, slots=True)
class Advance:
    """A plan that was the best, or a bound that was the highest, from then on.

    Attributes:
        seconds: when.
        amount: of the objective.
        by: who found it.
    """

    seconds: float
    amount: float
    by: str

    def __post_init__(self) -> None:
        if self.seconds < 0.0:
            raise InputError(f"{self.by!r} found something {-self.seconds} s before the search began")


@dataclass(frozen=True, slots=True)
class Rejected:
    """Schedules that the simulator rejected by one rule.

    Attributes:
        rule: of the simulator.
        schedules: how many.
        faults: how many of them by makers that look after the rule: each is a bug or a rounding error.
    """

    rule: str
    schedules: int
    faults: int = 0


@dataclass(frozen=True, slots=True)
class SearchRecord:
    """What a search did; empty where nothing was searched.

    Attributes:
        phases: in order of their end.
        plans: each plan that was the best, in order of time. Where a plan had to be searched again with
            less RAM, for the gaps between its tensors, those plans follow and may take more.
        bounds: each bound that was the highest, in order of time; one that a plan refuted falls back.
        rejected: by rule.
    """

    phases: tuple[Phase, ...] = ()
    plans: tuple[Advance, ...] = ()
    bounds: tuple[Advance, ...] = ()
    rejected: tuple[Rejected, ...] = ()

    def __post_init__(self) -> None:
        for name in ("phases", "plans", "bounds", "rejected"):
            if len(getattr(self, name)) > MOST_ENTRIES:
                raise InputError(f"a search record holds at most {MOST_ENTRIES} {name}")

    __repr__ = brief


NO_SEARCH = SearchRecord()
"""Of an answer that no search found."""


def joined(first: SearchRecord, second: SearchRecord, *, after_seconds: float) -> SearchRecord:
    """The record of two searches of which the second began ``after_seconds`` of the first."""
    phases = [
        replace(
            phase,
            begin_seconds=phase.begin_seconds + after_seconds,
            end_seconds=phase.end_seconds + after_seconds,
        )
        for phase in second.phases
    ]
    return SearchRecord(
        phases=shortened_phases([*first.phases, *phases]),
        plans=thinned([*first.plans, *_later(second.plans, after_seconds)]),
        bounds=thinned([*first.bounds, *_later(second.bounds, after_seconds)]),
        rejected=_added(first.rejected, second.rejected),
    )


def _later(advances: Sequence[Advance], seconds: float) -> list[Advance]:
    return [replace(advance, seconds=advance.seconds + seconds) for advance in advances]


def _added(first: Sequence[Rejected], second: Sequence[Rejected]) -> tuple[Rejected, ...]:
    by_rule = {one.rule: one for one in first}
    for one in second:
        before = by_rule.get(one.rule, Rejected(one.rule, 0))
        by_rule[one.rule] = Rejected(one.rule, before.schedules + one.schedules, before.faults + one.faults)
    return tuple(by_rule[rule] for rule in sorted(by_rule))


Entry = TypeVar("Entry")


def thinned(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """At most `MOST_ENTRIES` of ``entries``, evenly chosen, the first and the last among them."""
    if len(entries) <= MOST_ENTRIES:
        return tuple(entries)
    step = (len(entries) - 1) / (MOST_ENTRIES - 1)
    return tuple(entries[round(number * step)] for number in range(MOST_ENTRIES))


def shortened_phases(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """At most `MOST_ENTRIES` phases: from the last place on all are told as one."""
    if len(phases) <= MOST_ENTRIES:
        return tuple(phases)
    kept, rest = phases[: MOST_ENTRIES - 1], phases[MOST_ENTRIES - 1 :]
    together = Phase(
        f"{len(rest)} more phases",
        rest[0].begin_seconds,
        max(phase.end_seconds for phase in rest),
        plans=sum(phase.plans for phase in rest),
        saved=math.fsum(phase.saved for phase in rest),
        raised=math.fsum(phase.raised for phase in rest),
    )
    return (*kept, together)
