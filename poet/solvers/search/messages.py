"""What the search has to say in words: what binds, what conflicts, what more time may bring."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from poet.problem import Limits, Problem
from poet.problem.alternatives import leanest
from poet.problem.solution import LowerBound
from poet.solvers.engines.proof import Confirmation
from poet.solvers.instance.feasibility import has_schedules, least_of, minimum_ram_bytes
from poet.solvers.instance.instance import Instance
from poet.util.units import IN_ORDER, format_above, format_bytes, format_joules, format_seconds

STOPPED = "Stopped by the user."
_TIME_UP = "The time limit passed. "

T = TypeVar("T")

exact_bytes, exact_seconds, exact_joules = (
    partial(show, exact=True) for show in (format_bytes, format_seconds, format_joules)
)
"""Limits and what they are held against: rounded, either may seem to be within the other."""


def floor_sentence(problem: Problem, floor: LowerBound, *, named: int = 4) -> str:
    """What binds: the moment that needs the most RAM, and who holds it, ``named`` tensors by name."""
    sizes = {tensor.name: problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors}
    largest = [f"{name} ({format_bytes(sizes[name])})" for name in floor.tensors[:named]]
    more = len(floor.tensors) - len(largest)
    held = ", ".join(largest) + (f" and {more} more" if more > 0 else "")
    workspace = f", and works in {format_bytes(floor.workspace_bytes)}" if floor.workspace_bytes else ""
    where = f"op {floor.op}" if floor.op is not None else "the start or the end of the step"
    needs = f"{problem.name} needs at least {floor.bytes} bytes ({format_bytes(floor.bytes)}) {IN_ORDER}"
    return f"{needs}: {where} holds {held}{workspace}."


def budget_sentence(problem: Problem, limits: Limits) -> str:
    """Where the RAM budget stands against the least that any schedule needs; empty without a budget."""
    budget = limits.ram_budget_bytes
    if budget is None:
        return ""
    floor = minimum_ram_bytes(problem, limits)
    where = f"op {floor.op} needs" if floor.op is not None else "the start and the end of the step need"
    least = f"the least that {where} {IN_ORDER}"
    above = format_above(budget / floor.bytes - 1.0, least) if floor.bytes else f"above {least}"
    return f"The budget of {format_bytes(budget)} is {f'at {least}' if floor.bytes == budget else above}."


def conflict_sentence(problem: Problem, limits: Limits, confirmation: Confirmation) -> str:
    """Which limits no plan keeps together, and what proves it."""
    allowed = (
        _said("the RAM budget of {}", limits.ram_budget_bytes, exact_bytes),
        _said("the deadline of {}", limits.deadline_seconds, exact_seconds),
        _said("the write budget of {} per step", limits.written_budget_bytes, exact_bytes),
        _said("the storage of {}", problem.storage_capacity_bytes if limits.paging else None, exact_bytes),
        _said("the energy budget of {}", limits.joules_budget, exact_joules),
    )
    limiting = [said for said in allowed if said]
    if len(limiting) <= 1:
        what = f"Paging and recomputation as allowed cannot keep it inside {''.join(limiting)} {IN_ORDER}"
    else:
        what = f"No plan {IN_ORDER} keeps {', '.join(limiting[:-1])} and {limiting[-1]} together"
    return f"{what}: {confirmation.words}."


def _said(text: str, amount: T | None, show: Callable[[T], str]) -> str:
    return "" if amount is None else text.format(show(amount))


def impossible_sentence(instance: Instance) -> str:
    """Why no plan can exist, by arithmetic alone; empty where it does not say."""
    problem, limits = instance.problem, instance.limits
    budget, allowed = limits.ram_budget_bytes, limits.deadline_seconds
    floor = None if budget is None else least_of(instance)
    if budget is not None and floor is not None and floor.bytes > budget:
        return floor_sentence(problem, floor)
    return _too_slow_sentence(problem, allowed)


def _too_slow_sentence(problem: Problem, allowed: float | None) -> str:
    """That running every op once takes longer than ``allowed`` seconds; empty where it does not."""
    least, forms = problem.compute_seconds, _fastest(problem)
    if allowed is None or least <= allowed * (1 + 1e-9):
        return ""
    return (
        f"Running every op once takes {exact_seconds(least)}{forms}, longer than the deadline of "
        f"{exact_seconds(allowed)} by {format_seconds(least - allowed)}."
    )


def _fastest(problem: Problem) -> str:
    if problem.alternatives:
        return " in the fastest forms"
    return " on the fastest units" if problem.chooses_units else ""


def impossible_in_all_forms(problem: Problem, limits: Limits) -> str:
    """`impossible_sentence` of a problem with alternatives: true whichever are taken."""
    if has_schedules(problem, limits):
        return _too_slow_sentence(problem, limits.deadline_seconds)
    floor, lean = minimum_ram_bytes(problem, limits), problem.resolved(leanest(problem))
    reached = minimum_ram_bytes(lean, limits)
    if reached.bytes == floor.bytes:
        return floor_sentence(lean, reached)
    needs = f"{problem.name} needs at least {floor.bytes} bytes ({format_bytes(floor.bytes)}) {IN_ORDER}"
    return f"{needs}, in whatever forms its ops run."


def untried_sentence(tried: int, what: str, *, in_time: bool) -> str:
    """How many choices of ``what`` have no plan so far; ``in_time``: the search came to its end."""
    searched = f"{tried} choices of {what} were searched; with another, or in longer, there may be a plan"
    return f"{_TIME_UP * (not in_time)}{searched}."


def no_plan_sentence(problem: Problem, limits: Limits, *, in_time: bool) -> str:
    """Whether the time limit passed, and where the budget stands; ``in_time``: the search came to its end."""
    return f"{_TIME_UP * (not in_time)}{budget_sentence(problem, limits)}".rstrip()


def time_up_sentence(engine: str, *, plan_seconds: float, bound_seconds: float) -> str:
    """What more time may bring, judged by when plan and bound last became better."""
    plan, bound = format_seconds(plan_seconds), format_seconds(bound_seconds)
    more = "a longer time limit may close the gap"
    if "+" not in engine:
        more += ", and so may two threads with CP-SAT installed"
    return f"The plan was last improved after {plan}, the bound after {bound}: {more}."
