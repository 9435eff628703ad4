"""Schedules that follow another plan of the problem as far as less memory allows.

A plan whose arena lacks a few bytes is mostly right: what it has out of RAM, when, and how that comes back,
is kept. The list scheduler, which counts memory exactly, drops that first, and of what remains what frees
most bytes × ops until the next use per joule of coming back.
"""

from __future__ import annotations

from collections.abc import Iterable

from poet.homes import decided
from poet.problem import Limits, Problem
from poet.schedule import Compute, Free, PageIn, Schedule
from poet.solvers.heuristics.judged import cheapest_walk
from poet.solvers.heuristics.list_scheduler import Way
from poet.solvers.heuristics.lp_guided import Absence, AsRelaxed
from poet.solvers.instance.instance import Facts


def followed(
    problem: Problem, schedule: Schedule, limits: Limits, price_exponents: Iterable[float]
) -> Schedule | None:
    """The plan of least energy within ``limits`` that has absent what ``schedule`` has absent, and more.

    Args:
        problem: of ``schedule``.
        schedule: a plan that is not within ``limits``: it takes more RAM.
        limits: of the result.
        price_exponents: of the joules of coming back, a plan for each: the best is taken.

    Returns:
        ``None`` where list schedules get stuck. Tensors are at home where ``schedule`` has them.
    """
    problem = decided(problem, schedule)
    facts = Facts(problem)
    absences, wanted = _absences(facts, schedule), _wanted(facts, schedule)
    return cheapest_walk(problem, limits, (AsRelaxed(absences, wanted, bias) for bias in price_exponents))


def _absences(facts: Facts, schedule: Schedule) -> tuple[tuple[Absence, ...], ...]:
    """Per tensor, between which ops it is out of RAM, and how it comes back."""
    number = {tensor.name: index for index, tensor in enumerate(facts.problem.tensors)}
    ops = {op.name: index for index, op in enumerate(facts.problem.ops)}
    absences: list[list[Absence]] = [[] for _ in number]
    away: dict[int, int] = {}  # tensors that were there and are not, with the op before
    position = 0
    for step in schedule:
        match step:
            case Free(tensor):
                away[number[tensor]] = position - 1
            case PageIn(tensor):
                index = number[tensor]
                absences[index].append(Absence(away.pop(index, -1), position, Way.PAGE))
            case Compute(op):
                for index in facts.outputs[ops[op]]:
                    if index in away:
                        absences[index].append(Absence(away.pop(index), position, Way.REMAKE))
                position = max(position, ops[op] + 1)
            case _:
                pass
    return tuple(map(tuple, absences))


def _wanted(facts: Facts, schedule: Schedule) -> tuple[int, ...]:
    """Per tensor, the last op before which ``schedule`` remakes something from it; -1: none."""
    ops = {op.name: index for index, op in enumerate(facts.problem.ops)}
    wanted, position = [-1] * facts.tensor_count, 0
    for step in schedule:
        if isinstance(step, Compute):
            if ops[step.op] < position:
                for index in facts.rerun_inputs[ops[step.op]]:
                    wanted[index] = position
            position = max(position, ops[step.op] + 1)
    return tuple(wanted)
