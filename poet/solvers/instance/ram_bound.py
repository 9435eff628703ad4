"""The least RAM of any schedule: a lower bound that needs no engine, and the op at which it is reached."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from poet.alternatives import leanest, relaxed
from poet.problem import Alternative, Limits, Problem
from poet.solution import LowerBound
from poet.solvers.instance.instance import Content, Instance, instance_of


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
    return max(least_moments(problem, limits or Limits()), key=_bytes)


def least_moments(problem: Problem, limits: Limits) -> Iterator[LowerBound]:
    """What must be in RAM before the first op, at each op and after the last; no alternatives."""
    instance = instance_of(problem, limits)
    last_needed = [len(instance.tasks) if content.ends_in_ram else -1 for content in instance.contents]
    for task in instance.tasks:
        for content in task.reads:
            last_needed[content] = task.number
    yield _moment(instance, (c for c in instance.contents if c.starts_in_ram), None, 0)
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
        yield _moment(instance, held, task.name, task.workspace_bytes)
    yield _moment(instance, (c for c in instance.contents if c.ends_in_ram), None, 0)


_MOST_TRIED = 10
"""Alternatives, all of whose choices are tried where sums alone do not tell the least."""


def _least_over_choices(problem: Problem, limits: Limits) -> LowerBound:
    """The lower bound that the leanest choice reaches; else that of all choices, or what holds for each."""
    reached = minimum_ram_bytes(problem.resolved(leanest(problem)), limits)
    proven = max(
        minimum_ram_bytes(relaxed(problem).problem, limits),
        *(_of_forms(problem, each) for each in problem.alternatives),
        key=_bytes,
    )
    if proven.bytes >= reached.bytes:
        return reached
    names = [each.name for each in problem.alternatives]
    if len(names) > _MOST_TRIED:
        return proven
    choices = (
        itertools.compress(names, taken) for taken in itertools.product((False, True), repeat=len(names))
    )
    return min((minimum_ram_bytes(problem.resolved(set(choice)), limits) for choice in choices), key=_bytes)


def _of_forms(problem: Problem, alternative: Alternative) -> LowerBound:
    """What the neediest op of an alternative needs at once, in the form in which that is less."""
    least = {tensor.name: tensor for tensor in relaxed(problem).problem.tensors}
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
