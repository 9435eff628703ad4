"""The least RAM of any schedule: a lower bound that needs no engine, and the op at which it is reached."""

from __future__ import annotations

from collections.abc import Iterable

from poet.problem import Limits, Problem
from poet.solution import LowerBound
from poet.solvers.instance.instance import Content, Instance, instance_of


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
