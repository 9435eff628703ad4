"""On which unit each op runs, as a schedule has it, and the problem in which that is decided.

A problem names the units that run ops beside the main one, and each op what a run takes on those that run it.
An op runs on one of them in all its runs, so that they give the same bits. Ops run one after the other, so
that units change costs alone. An op pays for handing over each tensor that it reads and that another unit
made: the `Handing` of the one and of the other, where the main unit has none. What is there when the step
begins was made by no unit. A unit with RAM of its own keeps nothing there from run to run: its ops pay for
all that they read and make, and run there only if that fits. Judged and reported is the problem that
`on_units` gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from poet.errors import InvalidSchedule
from poet.problem.parts import ProblemOp, Transfer
from poet.problem.problem import Problem
from poet.problem.schedule import Compute, Schedule

Assignment = Mapping[str, str]
"""The unit of each op that does not run on the main one."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Tensors that op ``reader`` reads and op ``maker`` makes, by their names."""

    maker: str
    reader: str
    bytes: tuple[int, ...]


def edges(problem: Problem) -> Iterator[Edge]:
    """What ops read of each other in first runs and in later ones."""
    sizes = {tensor.name: tensor.bytes for tensor in problem.tensors}
    makers = {name: op.name for op in problem.ops for name in op.outputs}
    for op in problem.ops:
        read: dict[str, list[int]] = {}
        for name in dict.fromkeys((*op.inputs, *op.rerun_inputs)):
            if name in makers:
                read.setdefault(makers[name], []).append(sizes[name])
        yield from (Edge(maker, op.name, tuple(each)) for maker, each in read.items())


def handing_of(problem: Problem, unit: str, edge: Edge) -> Transfer:
    """What ``unit`` adds to a run that reads the tensors of ``edge`` across its border."""
    costs = [
        each.handing.of(size)
        for each in problem.units
        if each.name == unit and each.handing is not None and each.ram_bytes is None
        for size in edge.bytes
    ]
    return Transfer(math.fsum(cost.seconds for cost in costs), math.fsum(cost.joules for cost in costs))


def assigned_by(problem: Problem, schedule: Schedule) -> dict[str, str]:
    """The units on which ``schedule`` runs the ops of ``problem``, which has no alternatives.

    Raises:
        InvalidSchedule: an op runs on a unit that does not run it, or on two (rule ``unit``).
    """
    offers = problem.offers()
    able = {op.name: {"", *(each.unit for each in offers(op))} for op in problem.ops}
    found: dict[str, str] = {}
    for index, step in enumerate(schedule):
        if not isinstance(step, Compute) or step.op not in able:
            continue
        unit = step.unit or ""
        if unit not in able[step.op]:
            message = f"step {index}: op {step.op} does not run on unit {unit!r}"
            raise InvalidSchedule(message, rule="unit", step=index)
        if found.setdefault(step.op, unit) != unit:
            message = f"step {index}: op {step.op} runs on unit {unit!r}, and before on {found[step.op]!r}"
            raise InvalidSchedule(message, rule="unit", step=index)
    return {op: unit for op, unit in found.items() if unit}


def on_units(problem: Problem, assignment: Assignment) -> Problem:
    """``problem`` in which each op runs where ``assignment`` says, at what that takes with hand-overs."""
    if not problem.chooses_units:
        return problem
    crossing: dict[str, list[Transfer]] = {}
    for edge in edges(problem):
        here, there = assignment.get(edge.reader, ""), assignment.get(edge.maker, "")
        if here != there:
            costs = [handing_of(problem, unit, edge) for unit in (here, there)]
            crossing.setdefault(edge.reader, []).extend(costs)

    offers = problem.offers()

    def decided(op: ProblemOp) -> ProblemOp:
        unit, handed = assignment.get(op.name, ""), crossing.get(op.name, [])
        if not (op.on or handed):
            return op
        cost = next((each for each in offers(op) if each.unit == unit), op)
        return replace(
            op,
            seconds=math.fsum((cost.seconds, *(each.seconds for each in handed))),
            joules=math.fsum((cost.joules, *(each.joules for each in handed))),
            on=(),
            unit=unit or op.unit,
        )

    return replace(problem, ops=tuple(map(decided, problem.ops)))


def placed_by(problem: Problem, schedule: Schedule) -> tuple[Problem, Schedule]:
    """The problem on the units of ``schedule``, and the schedule for it, which names none.

    Raises:
        InvalidSchedule: see `assigned_by`.
    """
    assignment = assigned_by(problem, schedule)
    if not problem.chooses_units:
        return problem, schedule
    return on_units(problem, assignment), without_units(schedule)


def without_units(schedule: Schedule) -> Schedule:
    """``schedule`` of the problem in which the units are decided."""
    return tuple(
        replace(step, unit=None) if isinstance(step, Compute) and step.unit else step for step in schedule
    )


def with_units(schedule: Schedule, assignment: Assignment) -> Schedule:
    """``schedule`` with the unit of each run."""
    return tuple(
        replace(step, unit=assignment.get(step.op) or None) if isinstance(step, Compute) else step
        for step in schedule
    )
