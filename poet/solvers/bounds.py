"""Lower bounds that need no engine, and what binds in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from poet.problem import Limits, Problem
from poet.solution import LowerBound
from poet.solvers.events import Content, Instance, instance_of
from poet.units import format_bytes, format_joules, format_seconds, format_share

if TYPE_CHECKING:
    from poet.solvers.confirm import Confirmation

T = TypeVar("T")

_NAMED = 4  # of the tensors at the fullest moment


def minimum_ram_bytes(problem: Problem, limits: Limits | None = None) -> LowerBound:
    """RAM below which no schedule of ``problem`` exists, and the moment that needs it.

    At every op these are in RAM: what it reads, what it writes, its workspace, and every content
    that is used later and that nothing could bring back. Where everything can be paged, a schedule
    of exactly this size exists. The RAM budget of ``limits`` plays no part.
    """
    instance = instance_of(problem, limits or Limits())
    last_needed = [len(instance.tasks) if content.ends_in_ram else -1 for content in instance.contents]
    for task in instance.tasks:
        for content in task.reads:
            last_needed[content] = task.number
    best = _moment(instance, (c for c in instance.contents if c.starts_in_ram), None, 0)
    unpageable = [content for content in instance.contents if not _pageable(content)]
    for task in instance.tasks:
        touched = {*task.reads, *task.outputs}
        stuck = (
            content.number
            for content in unpageable
            if content.birth < task.number < last_needed[content.number]
            if content.starts_in_ram or content.birth >= 0
            if not _may_be_remade(instance, content, task.number)
        )
        held = (instance.contents[c] for c in touched.union(stuck))
        best = max(best, _moment(instance, held, task.name, task.workspace_bytes), key=_bytes)
    return max(best, _moment(instance, (c for c in instance.contents if c.ends_in_ram), None, 0), key=_bytes)


def _bytes(bound: LowerBound) -> int:
    return bound.bytes


def _moment(instance: Instance, held: Iterable[Content], op: str | None, workspace_bytes: int) -> LowerBound:
    largest_first = sorted(held, key=lambda content: (-content.bytes, content.number))
    return LowerBound(
        bytes=sum(content.bytes for content in largest_first) + workspace_bytes,
        op=op,
        tensors=tuple(content.tensor for content in largest_first),
        workspace_bytes=workspace_bytes,
    )


def _pageable(content: Content) -> bool:
    return content.page_in is not None and (content.starts_stored or content.page_out is not None)


def _may_be_remade(instance: Instance, content: Content, stage: int) -> bool:
    """Whether ``content``, absent while the op of ``stage`` runs, may be made again later."""
    return content.producer is not None and instance.tasks[content.producer].last_rerun_stage > stage


def floor_sentence(problem: Problem, floor: LowerBound) -> str:
    """What binds: the moment that needs the most RAM, and who holds it."""
    sizes = {tensor.name: problem.aligned_bytes(tensor.bytes) for tensor in problem.tensors}
    largest = [f"{name} ({format_bytes(sizes[name])})" for name in floor.tensors[:_NAMED]]
    more = len(floor.tensors) - len(largest)
    held = ", ".join(largest) + (f" and {more} more" if more > 0 else "")
    workspace = f", and works in {format_bytes(floor.workspace_bytes)}" if floor.workspace_bytes else ""
    where = f"op {floor.op}" if floor.op is not None else "the start or the end of the step"
    needs = f"{problem.name} needs at least {floor.bytes} bytes ({format_bytes(floor.bytes)})"
    return f"{needs}: {where} holds {held}{workspace}."


def budget_sentence(problem: Problem, limits: Limits) -> str:
    """Where the RAM budget stands against the least that any schedule needs; empty without a budget."""
    budget = limits.ram_budget_bytes
    if budget is None:
        return ""
    floor = minimum_ram_bytes(problem, limits)
    above = f"{format_share(budget / floor.bytes - 1.0)} above" if floor.bytes else "above"
    at = "at" if floor.bytes == budget else above
    where = f"op {floor.op} needs" if floor.op is not None else "the start and the end of the step need"
    return f"The budget of {format_bytes(budget)} is {at} the least that {where}."


def conflict_sentence(problem: Problem, limits: Limits, confirmation: Confirmation) -> str:
    """Which limits no plan keeps together, and who says so."""
    allowed = {
        "memory": _said("the RAM budget of {}", limits.ram_budget_bytes, format_bytes),
        "deadline": _said("the deadline of {}", limits.deadline_seconds, format_seconds),
        "wear": _said("the write budget of {} per step", limits.written_budget_bytes, format_bytes),
        "capacity": _said("the storage of {}", problem.storage_capacity_bytes, format_bytes),
        "energy": _said("the energy budget of {}", limits.joules_budget, format_joules),
    }
    rests_on = set(confirmation.families) or set(allowed)
    if "packing" in rests_on:  # cuts that follow from memory rows
        rests_on.add("memory")
    limiting = [said for family, said in allowed.items() if said and family in rests_on]
    if len(limiting) <= 1:
        what = f"Paging and recomputation as allowed cannot keep the step inside {''.join(limiting)}"
    else:
        what = f"No plan keeps {', '.join(limiting[:-1])} and {limiting[-1]} together"
    return f"{what}: {confirmation.words}."


def _said(text: str, amount: T | None, show: Callable[[T], str]) -> str:
    return "" if amount is None else text.format(show(amount))


def impossible_sentence(problem: Problem, limits: Limits) -> str:
    """Why no plan can exist, by arithmetic alone; empty where it does not say."""
    budget, allowed = limits.ram_budget_bytes, limits.deadline_seconds
    floor = minimum_ram_bytes(problem, limits)
    if budget is not None and floor.bytes > budget:
        return floor_sentence(problem, floor)
    least = problem.compute_seconds
    if allowed is not None and least > allowed * (1 + 1e-9):
        return (
            f"Running every op once takes {format_seconds(least)}, longer than the deadline of "
            f"{format_seconds(allowed)} by {format_seconds(least - allowed)}."
        )
    return ""


def minimum_seconds(problem: Problem) -> float:
    """Seconds below which no step ends: every op runs once, compute being one engine."""
    return problem.compute_seconds
