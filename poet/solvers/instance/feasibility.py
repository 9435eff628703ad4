"""Whether there are schedules inside a RAM budget, by arithmetic: the least RAM of any, and what can come
back.

To `minimum_ram_bytes` whatever has a producer may be made again whenever that may run. `conflict_in` looks at
the stages in which contents can come back at all, where little is paged. There a rerun takes RAM too, beside
what must be held meanwhile, and what it reads must have been held so far or be able to come back itself. What
can come back in fewer stages must be held for longer, so that fewer reruns fit: in turn, until nothing
changes (constraint propagation, as Mackworth 1977), or until some op cannot run, which proves that there is
no schedule inside the budget.

*Stage* s lies between the first runs of ops s - 1 and s. Of a content that op u needs, let b be the last
stage up to u in which it can come back, or its birth. It is in RAM from the first run of op b on (from its
birth on) until op u has run. A content may be in RAM in stage s if it may be in stage s - 1, or op s - 1
makes it, and it fits beside what must be there as op s - 1 runs; or if it can come back: its producer may run
again, all that it reads may be in RAM in stage s, and what it touches fits beside what must be held through
the stage; or it can be paged and fits.

*Proposition.* Every schedule inside the budget that keeps the order of first runs brings contents back only
in stages that are left. *Proof*: the first rerun or page-in in a stage that was struck out would meet, at its
moment, all conditions for which it was struck out.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poet.problem import Alternative, Limits, Problem
from poet.problem.alternatives import leanest, relaxed
from poet.problem.solution import LowerBound
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


def least_moments(problem: Problem, limits: Limits) -> Iterator[LowerBound]:
    """What must be in RAM before the first op, at each op and after the last; no alternatives."""
    instance = instance_of(problem, limits)
    for held in _held(instance):
        yield _moment(instance, *held)


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
    proven = max(
        minimum_ram_bytes(below, limits),
        *(_of_forms(problem, each, below) for each in problem.alternatives),
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


# --- what can come back ---

_MOST_FLAGS = 10_000_000
"""Stages times contents of a step that is looked at: more than these take hundreds of megabytes."""

_Bools = npt.NDArray[np.bool_]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why no schedule is inside the RAM budget.

    Attributes:
        task: the op that cannot run; the number of ops: the end of the step.
        content: what it needs and what can neither be held until then nor come back; ``None``: what must be
            held as it runs takes ``held_bytes``, its workspace included.
    """

    task: int
    content: int | None
    held_bytes: int


def conflict_in(instance: Instance, finished: Callable[[], bool] = lambda: False) -> Conflict | None:
    """A proof that no schedule is inside the RAM budget; ``None``: there is none that is found so.

    Where everything can be paged, what the neediest op takes is enough, and nothing is looked for.
    ``finished`` is asked in each stage; whether to stop.
    """
    budget_bytes, contents = instance.limits.ram_budget_bytes, instance.contents
    many = (len(instance.tasks) + 1) * len(contents) > _MOST_FLAGS
    all_bytes = sum(each.bytes for each in contents) + sum(each.workspace_bytes for each in instance.tasks)
    many |= all_bytes >= 1 << 62  # a file's alignment may be anything; sums are of 64 bits
    if budget_bytes is None or instance.forms or many or all(each.can_be_paged for each in contents):
        return None
    return _Propagation(instance, budget_bytes).conflict(finished)


class _Propagation:
    """Stages in which each content can come back, struck out one after the other.

    ``returns[s, c]``: content c may come back in stage s. ``at_op[s, c]``: it must be in RAM as op s runs
    first, the last row being the end of the step; ``through[s, c]``: all through stage s.
    """

    def __init__(self, instance: Instance, budget_bytes: int) -> None:
        self.tasks, self.contents, self.budget_bytes = instance.tasks, instance.contents, budget_bytes
        self.end = len(instance.tasks)
        self.bytes = _ints(content.bytes for content in instance.contents)
        self.birth = _ints(content.birth for content in instance.contents)
        self.death = _ints(content.death for content in instance.contents)
        self.paged = np.array([content.can_be_paged for content in instance.contents])
        self.workspace_bytes = _ints([*(task.workspace_bytes for task in instance.tasks), 0])
        self.last_stage = _ints(task.last_rerun_stage for task in instance.tasks)
        self.reads = [sum(1 << number for number in set(task.rerun_reads)) for task in instance.tasks]
        self.makes = [sum(1 << number for number in task.outputs) for task in instance.tasks]
        touched = [sorted({*task.rerun_reads, *task.outputs}) for task in instance.tasks]
        self.touched = _ints(number for each in touched for number in each)
        self.touching = _ints(task for task, each in enumerate(touched) for _ in each)
        self.needs = [(number, task.number) for task in instance.tasks for number in task.reads]
        self.needs += [(content.number, self.end) for content in instance.contents if content.ends_in_ram]
        stages = np.arange(self.end + 1)[:, np.newaxis]
        self.returns: _Bools = (stages > self.birth) & (stages <= self.death)
        self.at_op: _Bools = np.zeros_like(self.returns)
        self.through: _Bools = np.zeros_like(self.returns)

    def conflict(self, finished: Callable[[], bool]) -> Conflict | None:
        """Strike out until nothing changes, an op cannot run, or the time is over."""
        while not finished():
            self._hold()
            held_bytes = self.at_op @ self.bytes + self.workspace_bytes
            fullest = int(np.argmax(held_bytes))
            if held_bytes[fullest] > self.budget_bytes:
                return Conflict(fullest, None, int(held_bytes[fullest]))
            before = int(np.count_nonzero(self.returns))
            missing = self._strike(held_bytes, finished)
            if missing is not None:
                return Conflict(*missing, 0)
            if int(np.count_nonzero(self.returns)) == before:
                break
        return None

    def _hold(self) -> None:
        """What must be in RAM at each op and through each stage, by the stages that are left."""
        self.at_op[:], self.through[:] = False, False
        for task in self.tasks:
            self.at_op[task.number, [*task.reads, *task.outputs]] = True
        rows = np.arange(self.end + 1, dtype=np.int32)[:, np.newaxis]
        latest = np.maximum.accumulate(np.where(self.returns, rows, np.int32(-1)), axis=0)
        for number, user in self.needs:
            birth, back = int(self.birth[number]), int(latest[user, number])
            self.at_op[max(back, birth + 1) : user + (user == self.end), number] = True
            self.through[max(back, birth) + 1 : user + 1, number] = True

    def _strike(self, held_bytes: _Ints, finished: Callable[[], bool]) -> tuple[int, int] | None:
        """Go through all stages once; an op and what it reads, if that cannot be there."""
        may: _Bools = np.array([_begins_in_ram(content) for content in self.contents])
        for stage in range(self.end + 1):
            if finished():
                return None
            free_bytes = self.budget_bytes - int(self.bytes @ self.through[stage])
            back = self.paged & self.returns[stage] & (self.through[stage] | (self.bytes <= free_bytes))
            there, open_ = _bits(may | back), _bits(self.returns[stage])
            for number in self._fitting(stage, free_bytes):
                if self.makes[number] & open_ and not self.reads[number] & ~there:
                    there |= self.makes[number]
                    back[list(self.tasks[number].outputs)] = True
            self.returns[stage] &= back
            may |= back
            for number in self._needed(stage):
                if not may[number]:
                    return stage, number
            if stage < self.end:
                task = self.tasks[stage]
                may &= self.at_op[stage] | (self.bytes + held_bytes[stage] <= self.budget_bytes)
                may &= self.death > stage
                may[[*task.outputs, *task.updated]] = True
        return None

    def _fitting(self, stage: int, free_bytes: int) -> list[int]:
        """Ops that may run again in ``stage`` and have room there, in order."""
        room = np.where(self.through[stage], 0, self.bytes)
        taken_bytes = self.workspace_bytes[: self.end] + np.bincount(
            self.touching, weights=room[self.touched], minlength=self.end
        ).astype(np.int64)
        fits = (taken_bytes <= free_bytes) & (self.last_stage >= stage) & (np.arange(self.end) < stage)
        numbers: list[int] = np.flatnonzero(fits).tolist()
        return numbers

    def _needed(self, stage: int) -> tuple[int, ...]:
        if stage < self.end:
            return self.tasks[stage].reads
        return tuple(number for number, user in self.needs if user == self.end)


def _begins_in_ram(content: Content) -> bool:
    """Or may, as chosen by the planner."""
    return content.starts_in_ram or (content.birth < 0 and content.home is not None)


def _ints(numbers: Iterable[int]) -> _Ints:
    return np.fromiter(numbers, dtype=np.int64)


def _bits(flags: _Bools) -> int:
    """Bit c is flag c."""
    return int.from_bytes(np.packbits(flags, bitorder="little").tobytes(), "little")
