"""The event model: which tensor versions stay in RAM through which gaps, as a mixed-integer program."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poet.solvers.engines.program import Matrix
from poet.solvers.event_model.affine import Affine, Column, Row
from poet.solvers.event_model.decisions import Decisions
from poet.solvers.event_model.families import (
    CUTS,
    FAMILIES,
    RELAXATION,
    Family,
    spent_on_runs,
    spent_on_transfers,
)
from poet.solvers.event_model.implicit_residency import add_stays
from poet.solvers.event_model.knapsack_cuts import packing
from poet.solvers.instance.instance import Meter
from poet.solvers.instance.timeline import Timeline

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventModel:
    """The program: columns, rows, and what to minimise.

    Attributes:
        keep: K by (content, event).
        run: r by slot.
        arrive: a by (content, event), for uses.
        stored: O by content.
        eager: e by (content, event), for the gap before the event.
        held: columns H with what they are the value of, in order.
        overhead_joules: the objective, in joules above running every op once.
    """

    timeline: Timeline
    columns: tuple[Column, ...]
    keep: dict[tuple[int, int], Affine]
    run: dict[int, Affine]
    arrive: dict[tuple[int, int], Affine]
    stored: tuple[Affine, ...]
    eager: dict[tuple[int, int], Affine]
    held: tuple[tuple[int, Affine], ...]
    overhead_joules: Affine
    rows: tuple[Row, ...]


def build(
    timeline: Timeline, *, families: tuple[Family, ...] = FAMILIES + RELAXATION + CUTS, relaxed: bool = False
) -> EventModel:
    """The program over ``timeline``, made of ``families``.

    With ``relaxed`` the optimum is a lower bound for every schedule whose first runs keep the
    listed order, whichever reruns the timeline offers: neither the order of reruns within a stage
    nor how often an op reruns there makes a difference, and a rerun at a moment for which there is
    no slot costs its joules and needs its inputs some time since the last event, but holds no RAM.
    An input may stay for it past its own last event (`poet.solvers.event_model.implicit_residency`).
    """
    decisions = Decisions(timeline, relaxed=relaxed)
    add_stays(decisions)
    rows = [
        Row(family.__name__, expression)
        for family in families
        for expression in family(decisions)
        if expression.terms or expression.constant > 0.0
    ]
    if decisions.tight and not decisions.held:
        memory_rows = [row.expression for row in rows if row.family == "memory"]
        sizes = timeline.instance.tuning.model.cut_sizes
        rows += [Row("packing", cut) for cut in packing(memory_rows, sizes=sizes)]
    slots, kind = sum(not slot.mandatory for slot in timeline.slots), "relaxed" if relaxed else "exact"
    _log.info(
        "%s model: %d slots for reruns, %d columns, %d rows", kind, slots, len(decisions.columns), len(rows)
    )
    return EventModel(
        timeline=timeline,
        columns=tuple(decisions.columns),
        keep=decisions.keep,
        run=decisions.run,
        arrive=decisions.arrive,
        stored=decisions.stored,
        eager=decisions.eager,
        held=tuple(decisions.held),
        overhead_joules=spent_on_runs(decisions, Meter.JOULES).add(
            spent_on_transfers(decisions, Meter.JOULES)
        ),
        rows=tuple(rows),
    )


def matrix_of(model: EventModel, start: Sequence[float] | None = None) -> Matrix:
    """``model`` as engines see it, its objective in joules above running every op once.

    Args:
        model: the program.
        start: values of its columns to begin with.
    """
    count = len(model.columns)
    expressions = [row.expression for row in model.rows]
    sizes = [len(expression.terms) for expression in expressions]
    costs = np.zeros(count)
    for column, joules in model.overhead_joules.terms.items():
        costs[column] = joules
    return Matrix(
        costs=costs,
        offset=model.overhead_joules.constant,
        rows=np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
        columns=np.array([c for expression in expressions for c in expression.terms], dtype=np.int64),
        factors=np.array(
            [f for expression in expressions for f in expression.terms.values()], dtype=np.float64
        ),
        at_most=np.array([-expression.constant for expression in expressions], dtype=np.float64),
        integer=np.array([column.integer for column in model.columns], dtype=np.bool_),
        whole=np.array([column.whole for column in model.columns], dtype=np.bool_),
        families=tuple(row.family for row in model.rows),
        start=None if start is None else np.array(start, dtype=np.float64),
    )
