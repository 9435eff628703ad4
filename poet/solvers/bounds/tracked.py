"""What a program over resident sets tracks, what runs do to sets of it, and what else takes RAM.

A set is an integer, whose bit i stands for content i of those that are tracked. Of the others, *residents*
such as weights count: what no rerun makes stays in RAM until the last first run that reads it, unless it is
paged. What page-outs free at most that cost less than a plan may, of those that are there, is a knapsack.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from poet.solvers.instance.candidates import last_use_stages, worth_rerunning
from poet.solvers.instance.instance import Content, Instance


@dataclass(frozen=True, slots=True)
class Resident:
    """A content that is not tracked, and that stays in RAM until the last first run that reads it, unless it
    is paged, which costs something: no rerun makes it, or none does any more.

    The first content of a tensor whose home is chosen stands for all of them, until the end of the step.

    Attributes:
        bytes: that it takes.
        birth, last: it is in RAM in the stages after ``birth`` up to ``last``.
        away_joules: with which it may leave at least: of a page-out and of the page-in that brings it back;
            infinite where it can be paged in no plan.
    """

    bytes: int
    birth: int
    last: int
    away_joules: float


def residents(instance: Instance, tracked: Collection[int] = ()) -> dict[int, Resident]:
    """By content, those that are not among ``tracked``.

    What a rerun makes is one from the last stage on in which that can run: predictions, once the weights of
    the last layer are updated.
    """
    worth, last, end = worth_rerunning(instance), _last_needs(instance), len(instance.tasks)
    found = dict[int, Resident]()
    for content in instance.contents:
        number, since = content.number, content.birth
        if content.producer in worth:
            since = max(since, instance.tasks[content.producer or 0].last_rerun_stage)
        if content.home is not None and content.comes_home:
            found[content.home] = Resident(content.bytes, -1, end, _home_joules(instance, content))
        elif content.home is None and number not in tracked and not _is_stored(content):
            found[number] = Resident(content.bytes, since, last.get(number, -1), _away_joules(content))
    return {
        c: one for c, one in found.items() if one.bytes and one.birth < one.last and one.away_joules > 0.0
    }


def _last_needs(instance: Instance) -> dict[int, int]:
    """By content, the last first run that reads it, or the end of the step where it is to be in RAM then."""
    end = len(instance.tasks)
    last = {content.number: end for content in instance.contents if content.ends_in_ram}
    for task in instance.tasks:
        last.update((c, task.number) for c in task.reads if last.get(c, -1) < task.number)
    return last


def _is_stored(content: Content) -> bool:
    """Whether it has a copy in storage, or must have one, for nothing."""
    appears = content.birth < 0 and not content.starts_in_ram
    return content.ends_stored or content.starts_stored or appears


def _away_joules(content: Content) -> float:
    """Of its page-out and of a page-in; 0 where that writes nothing."""
    if content.page_in is None or content.page_out is None:
        return math.inf
    page_out = page_out_joules(content)
    return page_out + content.page_in.joules if page_out > 0.0 else 0.0


def _home_joules(instance: Instance, last: Content) -> float:
    """The least with which a tensor may leave RAM whose home is chosen, and whose last content is ``last``.

    In storage between steps the last content is written, where it is another than the first, and the first is
    read, before the first run that needs it; where something else reads the last one, that page-in may be
    spared. In between, a content that an update ends leaves by a page-out, and comes back where the update
    reads it.
    """
    contents = instance.contents
    first = contents[last.number if last.home is None else last.home]
    is_read = any(first.number in task.reads for task in instance.tasks)
    read_again = any(last.number in (*task.reads, *task.rerun_reads) for task in instance.tasks)
    stored = 0.0 if last is first else page_out_joules(last)
    if is_read and first.page_in is not None and (last is first or not read_again):
        stored += first.page_in.joules
    ways = [stored]
    for content in contents[first.number : last.number]:
        returns = (
            content.death < len(instance.tasks) and content.number in instance.tasks[content.death].reads
        )
        back = content.page_in.joules if returns and content.page_in is not None else 0.0
        ways.append(page_out_joules(content) + back)
    return min(ways)


def too_expensive(instance: Instance, below_joules: float) -> frozenset[int]:
    """Contents that stay in RAM from birth to their last read, in every plan of less overhead than this.

    Nothing makes them again, and a page-out and a page-in take ``below_joules`` or more. What a rerun may
    read after the last first run that does is not among them.
    """
    last_use, contents = last_use_stages(instance, worth_rerunning(instance)), instance.contents
    return frozenset(
        number
        for number, one in residents(instance).items()
        if one.away_joules >= below_joules
        and one.birth == contents[number].birth
        and one.last >= min(last_use[number], contents[number].death)
    )


def page_out_joules(content: Content) -> float:
    """Of a content's page-out; 0 where it needs none, or can have none."""
    return 0.0 if content.starts_stored or content.page_out is None else content.page_out.joules


def certain_joules(instance: Instance) -> float:
    """Of page-outs that every plan makes."""
    return math.fsum(page_out_joules(content) for content in instance.contents if content.ends_stored)


def least_bytes(there: Collection[Resident], most_joules: float) -> int:
    """RAM that residents take at least where what leaves costs less than ``most_joules`` together.

    What leaves is a knapsack, of which the last item may leave in part: those with most bytes per joule go,
    and none that alone costs too much.
    """
    left_joules, able = most_joules, [one for one in there if one.away_joules < most_joules]
    held_bytes = sum(one.bytes for one in there)
    for one in sorted(able, key=lambda one: one.away_joules / one.bytes):
        leaves = left_joules >= one.away_joules
        held_bytes -= one.bytes if leaves else math.ceil(one.bytes * left_joules / one.away_joules)
        left_joules -= one.away_joules if leaves else left_joules
    return held_bytes


@dataclass(frozen=True, slots=True)
class Run:
    """A first run or a rerun, and which tracked contents it needs, makes and updates, as bits.

    ``beside_bytes``: its outputs, its workspace, and what it reads that is not tracked, which is ``small``.
    """

    task: int
    needs: int
    makes: int
    updates: int
    beside_bytes: int
    small: frozenset[int]
    joules: float
    last_stage: int


class Tracked:
    """Some contents of an instance, the runs, and which of the contents exist when.

    Args:
        instance: what they are of.
        contents: their numbers, none of a tensor whose home is chosen.

    Attributes:
        contents, number: the contents, and the number of each content among them.
        bytes, page_in, page_out: of each; joules, a page-in infinite where it can never be.
        first, again: the first runs in order, and the reruns that may pay.
        alive: per stage, the contents that exist and that something may still read.
        ends: those that must end in RAM; ``starts``: those that are there at the start.
        residents: by content, of those that are not tracked.
    """

    def __init__(self, instance: Instance, contents: Collection[int]) -> None:
        self.instance, self.end = instance, len(instance.tasks)
        self.budget_bytes = instance.limits.ram_budget_bytes or 0
        self.contents = [c for c in instance.contents if c.number in contents]
        self.number = {content.number: number for number, content in enumerate(self.contents)}
        self.bytes = [content.bytes for content in self.contents]
        self.page_in = [_page_in_joules(content) for content in self.contents]
        self.page_out = [0.0 if c.ends_stored else page_out_joules(c) for c in self.contents]
        self.residents = residents(instance, self.number.keys())
        worth = worth_rerunning(instance)
        last_use = last_use_stages(instance, worth)
        self.first = [self._run(task.number, again=False) for task in instance.tasks]
        runs = (self._run(number, again=True) for number in sorted(worth))
        self.again = [run for run in runs if run.makes]
        self.alive = [
            self.bits_of(
                c.number for c in self.contents if c.birth < stage <= min(last_use[c.number], c.death)
            )
            for stage in range(self.end + 1)
        ]
        self.ends = self.bits_of(content.number for content in self.contents if content.ends_in_ram)
        self.starts = self.bits_of(content.number for content in self.contents if content.starts_in_ram)

    def bits_of(self, contents: Iterable[int]) -> int:
        """The set of those of ``contents`` that are tracked."""
        return sum(1 << self.number[content] for content in set(contents) if content in self.number)

    def _run(self, number: int, *, again: bool) -> Run:
        task, contents = self.instance.tasks[number], self.instance.contents
        reads = task.rerun_reads if again else task.reads
        # of a tensor whose home is chosen, the first content stands for all
        homes = ((c, contents[c].home) for c in reads if c not in self.number)
        small = {c if home is None else home for c, home in homes} - set(task.outputs)
        return Run(
            task=number,
            needs=self.bits_of(reads),
            makes=self.bits_of(task.outputs),
            updates=0 if again else self.bits_of(task.updated),
            beside_bytes=task.workspace_bytes + sum(contents[c].bytes for c in (*small, *task.outputs)),
            small=frozenset(small),
            joules=task.cost.joules,
            last_stage=task.last_rerun_stage,
        )


def _page_in_joules(content: Content) -> float:
    """Infinite where it can never be paged in."""
    there = content.starts_stored or content.page_out is not None
    return content.page_in.joules if content.page_in is not None and there else math.inf


def bits(mask: int) -> Iterator[int]:
    """The numbers of the members of a set, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
