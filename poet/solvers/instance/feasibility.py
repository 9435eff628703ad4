"""The least RAM of any schedule, by arithmetic.

To `minimum_ram_bytes` whatever has a producer may be made again whenever that may run.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from poet.problem import Alternative, Limits, Problem
from poet.problem.alternatives import leanest, relaxed
from poet.problem.solution import LowerBound
from poet.solvers.instance.instance import Instance, instance_of


def minimum_ram_bytes(problem: Problem, limits: Limits | None = None) -> LowerBound:
    """RAM below which no schedule of ``problem`` exists, and the moment that needs it.

    At every op these are in RAM: what it reads, what it writes, its workspace, and every content
    that is used later and that nothing could bring back. Where everything can be paged, a schedule
    of exactly this size exists. The RAM budget of ``limits`` plays no part. Of a problem with alternatives it
    is the least over all choices; with more than `_MOST_TRIED` of them, where what cannot be brought back
    differs between choices, it may be below that.
    """
    if problem.alternatives:
        return _least_over_choices(problem, limits or Limits())
    return least_of(instance_of(problem, limits or Limits()))


def least_of(instance: Instance) -> LowerBound:
    """`minimum_ram_bytes` of a problem that is numbered."""
    sizes = [content.bytes for content in instance.contents]

    def taken_bytes(held: _Held) -> int:
        return sum(map(sizes.__getitem__, held[1])) + held[2]

    return _moment(instance, *max(_held(instance), key=taken_bytes))


def has_schedules(problem: Problem, limits: Limits) -> bool:
    """Whether `minimum_ram_bytes` is within the RAM budget, told by one choice of alternatives mostly."""
    budget_bytes = limits.ram_budget_bytes
    if budget_bytes is None:
        return True
    if problem.alternatives:
        lean = problem.resolved(leanest(problem))
        if minimum_ram_bytes(lean, limits).bytes <= budget_bytes:
            return True
    return minimum_ram_bytes(problem, limits).bytes <= budget_bytes


_Held = tuple[str | None, Collection[int], int]
"""An op, ``None`` for the two ends of the step; the contents that it needs; its workspace in bytes."""


def _held(instance: Instance) -> Iterator[_Held]:
    """What must be in RAM at each moment."""
    yield None, [content.number for content in instance.contents if content.starts_in_ram], 0
    begins, ends = _stuck(instance)
    stuck = set[int]()
    for task in instance.tasks:
        stuck.update(begins.get(task.number, ()))
        stuck.difference_update(ends.get(task.number, ()))
        yield task.name, stuck.union(task.reads, task.outputs), task.workspace_bytes
    yield None, [content.number for content in instance.contents if content.ends_in_ram], 0


def _stuck(instance: Instance) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """By op: contents used later that a pin keeps, or nothing could bring back from there on; until when."""
    last_needed = [len(instance.tasks) if content.ends_in_ram else -1 for content in instance.contents]
    for task in instance.tasks:
        for number in task.reads:
            last_needed[number] = task.number
    begins, ends = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for content in instance.contents:
        if not (content.starts_in_ram or content.birth >= 0) or (content.can_be_paged and not content.kept):
            continue
        first = content.birth + 1
        if content.producer is not None and not content.kept:  # absent before that, it may be made again
            first = max(first, instance.tasks[content.producer].last_rerun_stage)
        if first < last_needed[content.number]:
            begins[first].append(content.number)
            ends[last_needed[content.number]].append(content.number)
    return begins, ends


_MOST_TRIED = 10
"""Alternatives, all of whose choices are tried where sums alone do not tell the least."""


def _least_over_choices(problem: Problem, limits: Limits) -> LowerBound:
    """The lower bound that the leanest choice reaches; else that of all choices, or what holds for each."""
    reached = minimum_ram_bytes(problem.resolved(leanest(problem)), limits)
    below = relaxed(problem).problem
    of_forms = (_of_forms(problem, each, below) for each in problem.alternatives if each.ops)
    proven = max((minimum_ram_bytes(below, limits), *of_forms), key=_bytes)
    if proven.bytes >= reached.bytes:
        return reached
    names = [each.name for each in problem.alternatives]
    if len(names) > _MOST_TRIED:
        return proven
    choices = (
        itertools.compress(names, taken) for taken in itertools.product((False, True), repeat=len(names))
    )
    return min((minimum_ram_bytes(problem.resolved(set(choice)), limits) for choice in choices), key=_bytes)


def _of_forms(problem: Problem, alternative: Alternative, below: Problem) -> LowerBound:
    """What the neediest op of an alternative needs at once, in the form in which that is less.

    ``below`` is the problem relaxed over all choices.
    """
    least = {tensor.name: tensor for tensor in below.tensors}
    forms = []
    for taken in (set[str](), {alternative.name}):
        form = problem.resolved(taken)
        own = {tensor.name: tensor for tensor in form.tensors}
        changed = {tensor.name for tensor in alternative.tensors}
        sizes = {
            name: form.aligned_bytes((tensor if name in changed else least.get(name, tensor)).bytes)
            for name, tensor in own.items()
        }
        moments = []
        for op in form.ops:
            if op.name in alternative.touched:
                held = sorted({*op.inputs, *op.outputs}, key=lambda name: (-sizes[name], name))
                workspace_bytes = form.aligned_bytes(op.workspace_bytes)
                total_bytes = sum(map(sizes.__getitem__, held)) + workspace_bytes
                moments.append(LowerBound(total_bytes, op.name, tuple(held), workspace_bytes))
        forms.append(max(moments, key=_bytes))
    return min(forms, key=_bytes)


def _bytes(bound: LowerBound) -> int:
    return bound.bytes


def _moment(instance: Instance, op: str | None, held: Iterable[int], workspace_bytes: int) -> LowerBound:
    contents = map(instance.contents.__getitem__, held)
    largest_first = sorted(contents, key=lambda content: (-content.bytes, content.number))
    return LowerBound(
        bytes=sum(content.bytes for content in largest_first) + workspace_bytes,
        op=op,
        tensors=tuple(content.tensor for content in largest_first),
        workspace_bytes=workspace_bytes,
    )
