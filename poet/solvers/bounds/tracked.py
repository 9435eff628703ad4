"""What a program over resident sets tracks, what runs do to sets of it, and what else takes RAM.

A set is an integer, whose bit i stands for content i of those that are tracked. Of the others, *residents*
such as weights count: what no rerun makes stays in RAM until the last first run that reads it, unless it is
paged. What page-outs of so many joules free at most, of those that are there in a stage, is a knapsack.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from poet.solvers.instance.candidates import last_use_stages, worth_rerunning
from poet.solvers.instance.instance import Content, Instance

ROUNDING = 1e-9  # of joules that are counted in units, by which they may be less
_UNITS, _STEP_UNITS = 2048, 128  # of the knapsacks: a page-out is rounded down by less than a percent


@dataclass(frozen=True, slots=True)
class Home:
    """Of a tensor of which the plan chooses whether it is in RAM or in storage between steps.

    In RAM it is there when the step begins and when it ends. In storage its last content is written, and its
    first one, which has a copy, is read before the first run that needs it: a *copy* of the last content
    stands for that. It is taken to be one more freedom: with it, the first content may be in RAM from the
    start as well, so that a tensor in RAM between steps may have it too, whose last content leaves and comes
    back for the end.

    Attributes:
        contents: of the tensor, in order; only one where no op updates it.
        stored_joules: of the copy of the last content: its page-out, where it is another than the first, and
            a page-in of the first one, which is free then up to its first use. Where something reads the
            last one besides, a plan may have the copy without that page-in, and it is not counted.
        first_use: stage of the first run that reads the first content.
    """

    contents: tuple[int, ...]
    stored_joules: float
    first_use: int


def homes(instance: Instance) -> dict[int, Home]:
    """By first content, those that the plan chooses."""
    contents, found = instance.contents, dict[int, Home]()
    read = {content for task in instance.tasks for content in (*task.reads, *task.rerun_reads)}
    for last in contents:
        if not last.comes_home or last.home is None:
            continue
        first = contents[last.home]
        use = min((task.number for task in instance.tasks if first.number in task.reads), default=-1)
        joules = 0.0 if last is first else page_out_joules(last)
        if use >= 0 and first.page_in is not None and (last is first or last.number not in read):
            joules += first.page_in.joules
        found[first.number] = Home(tuple(range(first.number, last.number + 1)), joules, use)
    return found


@dataclass(frozen=True, slots=True)
class Resident:
    """A content that is not tracked, and that stays in RAM until the last first run that reads it, unless it
    is paged, which costs something: no rerun makes it, or none does any more.

    The first content of a tensor whose home is chosen stands for all of them, until the end of the step.

    Attributes:
        bytes: that it takes.
        birth, last: it is in RAM in the stages after ``birth`` up to ``last``.
        away_joules: of a page-out and of the page-in that brings it back, as something needs it at last;
            ``None``: it can be paged in no plan. Where a tensor's home is chosen: the least joules with which
            one of its contents may leave RAM.
    """

    bytes: int
    birth: int
    last: int
    away_joules: float | None


def residents(instance: Instance, tracked: Collection[int] = ()) -> dict[int, Resident]:
    """By content, those that are not among ``tracked``.

    What a rerun makes is one from the last stage on in which that can run: predictions, once the weights of
    the last layer are updated.
    """
    worth, last, found = worth_rerunning(instance), _last_needs(instance), dict[int, Resident]()
    for first, home in homes(instance).items():
        left = [_left_joules(instance, instance.contents[content]) for content in home.contents[:-1]]
        joules = min(home.stored_joules, *left, math.inf)
        if first not in tracked and joules > 0.0:
            found[first] = Resident(instance.contents[first].bytes, -1, len(instance.tasks), joules)
    for content in instance.contents:
        if content.number in tracked or content.number not in last or content.home is not None:
            continue
        if _is_stored(content):
            continue
        since = content.birth
        if content.producer in worth:
            since = max(since, instance.tasks[content.producer or 0].last_rerun_stage)
        away_joules = _away_joules(content)
        if away_joules != 0.0 and since < last[content.number]:
            found[content.number] = Resident(content.bytes, since, last[content.number], away_joules)
    return found


def _left_joules(instance: Instance, content: Content) -> float:
    """Of a version that an update ends: of its page-out, and of its page-in where that update reads it."""
    returns = content.death < len(instance.tasks) and content.number in instance.tasks[content.death].reads
    page_in_joules = content.page_in.joules if returns and content.page_in is not None else 0.0
    return page_out_joules(content) + page_in_joules


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


def _away_joules(content: Content) -> float | None:
    """Of its page-out and of a page-in; 0 where that writes nothing; ``None``: it can be paged in no plan."""
    if content.page_in is None or content.page_out is None:
        return None
    page_out = page_out_joules(content)
    return page_out + content.page_in.joules if page_out > 0.0 else 0.0


def too_expensive(instance: Instance, below_joules: float) -> frozenset[int]:
    """Contents that stay in RAM from birth to their last read, in every plan of less overhead than this.

    Nothing makes them again, and a page-out and a page-in take ``below_joules`` or more. What a rerun may
    read after the last first run that does is not among them.
    """
    last_use = last_use_stages(instance, worth_rerunning(instance))
    return with_homes(
        instance,
        (
            number
            for number, one in residents(instance).items()
            if (one.away_joules is None or one.away_joules >= below_joules)
            and one.birth == instance.contents[number].birth
            and one.last >= min(last_use[number], instance.contents[number].death)
        ),
    )


def with_homes(instance: Instance, contents: Iterable[int]) -> frozenset[int]:
    """``contents``, and all others of each tensor among them whose home is chosen."""
    found, chosen = set(contents), homes(instance)
    for content in tuple(found):
        home = instance.contents[content].home
        if home is not None:
            found.update(chosen[home].contents)
    return frozenset(found)


def page_out_joules(content: Content) -> float:
    """Of a content's page-out; 0 where it needs none, or can have none."""
    return 0.0 if content.starts_stored or content.page_out is None else content.page_out.joules


class ResidentBytes:
    """How much RAM residents take at least in each stage.

    Args:
        of: the residents, by content.
        end: the last stage.
        most_joules: what no plan that is looked for spends.
    """

    def __init__(self, of: Mapping[int, Resident], end: int, most_joules: float) -> None:
        self.most_joules = most_joules
        self._there = [{c: r for c, r in of.items() if r.birth < n <= r.last} for n in range(end + 1)]
        self.count_in_steps(most_joules, 0)

    def at(self, stage: int) -> Mapping[int, Resident]:
        """Those of a stage, by content."""
        return self._there[stage]

    def count_in_steps(self, joules: float, most: int) -> None:
        """Count joules of page-outs in steps of so many, up to ``most`` of them."""
        self._step_joules, self._most_steps = joules, most
        self._freed = dict[tuple[tuple[tuple[int, float], ...], bool], npt.NDArray[np.int64]]()
        self._least = dict[tuple[int, int | None], int]()

    def least(self, stage: int, steps: int | None) -> int:
        """Bytes where page-outs take less than a step more than ``steps``; ``None``: less than all joules."""
        if (stage, steps) not in self._least:
            there = self._there[stage].values()
            pageable = tuple((one.bytes, one.away_joules) for one in there if one.away_joules is not None)
            taken = sum(one.bytes for one in there)
            if steps is None:
                found = taken - int(self._freed_bytes(pageable, whole=True)[-1])
            else:  # all joules are counted more finely, so that fewer may seem to leave then
                freed = self._freed_bytes(pageable, whole=False)[(steps + 1) * _STEP_UNITS - 1]
                found = max(taken - int(freed), self.least(stage, None))
            self._least[stage, steps] = found
        return self._least[stage, steps]

    def _freed_bytes(self, items: tuple[tuple[int, float], ...], *, whole: bool) -> npt.NDArray[np.int64]:
        if (items, whole) not in self._freed:
            if whole:
                unit_joules, units = self.most_joules / _UNITS, _UNITS
            else:
                unit_joules, units = self._step_joules / _STEP_UNITS, (self._most_steps + 1) * _STEP_UNITS
            self._freed[items, whole] = most_bytes(items, unit_joules, units - 1)
        return self._freed[items, whole]


def most_bytes(items: Sequence[tuple[int, float]], unit_joules: float, units: int) -> npt.NDArray[np.int64]:
    """Per number of units, up to ``units``: bytes of ``items`` that together take less than one unit more.

    Items are (bytes, joules); joules are rounded down to units, so no number is too small.
    """
    most = np.zeros(units + 1, dtype=np.int64)
    for size, joules in items:
        cost = int(min(joules / unit_joules * (1.0 + ROUNDING), units + 1))
        if cost == 0:
            most += size
        elif cost <= units:
            np.maximum(most[cost:], most[:-cost] + size, out=most[cost:])
    return most


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
    small: tuple[int, ...]
    joules: float
    last_stage: int


class Tracked:
    """Some contents of an instance, the runs, and which of the contents exist when.

    Args:
        instance: what they are of.
        contents: their numbers; of a tensor whose home is chosen all or none (`with_homes`).

    Attributes:
        contents, number: the contents, and the number of each content among them.
        bytes, page_in, page_out: of each; joules, a page-in infinite where it can never be, a page-out of the
            last content of a tensor whose home is chosen with what else storage between steps takes.
        size_of: bytes of all contents, tracked or not.
        first, again: the first runs in order, and the reruns that may pay.
        alive: per stage, the contents that exist and that something may still read.
        ends: those that must end in RAM; ``starts``: those that are there at the start.
        residents: by content, of those that are not tracked.
        homes: first and last of the tracked contents of each tensor whose home is chosen, and the stage up
            to which page-ins of the first take nothing where the last has a copy.
    """

    def __init__(self, instance: Instance, contents: Collection[int]) -> None:
        self.instance, self.end = instance, len(instance.tasks)
        self.budget_bytes = instance.limits.ram_budget_bytes or 0
        self.contents = [c for c in instance.contents if c.number in contents]
        self.number = {content.number: number for number, content in enumerate(self.contents)}
        self.bytes = [content.bytes for content in self.contents]
        self.size_of = [content.bytes for content in instance.contents]
        self.page_in = [_page_in_joules(content) for content in self.contents]
        self.page_out = [0.0 if c.ends_stored else page_out_joules(c) for c in self.contents]
        worth = worth_rerunning(instance)
        last_use = last_use_stages(instance, worth)
        self.homes = list[tuple[int, int, int]]()
        for number, home in homes(instance).items():
            last_use[home.contents[-1]] = self.end
            if number in self.number:
                last = self.number[home.contents[-1]]
                self.homes.append((self.number[number], last, home.first_use))
                self.page_out[last] = home.stored_joules
        self.residents = residents(instance, self.number.keys())
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

    def stands_for(self, content: int) -> int:
        """What stands for a content that is not tracked among the residents: the first one of its tensor
        where the home of that is chosen.
        """
        home = self.instance.contents[content].home
        return content if home is None or home not in self.residents else home

    def _run(self, number: int, *, again: bool) -> Run:
        task = self.instance.tasks[number]
        reads = task.rerun_reads if again else task.reads
        small = {self.stands_for(c) for c in reads if c not in self.number} - set(task.outputs)
        return Run(
            task=number,
            needs=self.bits_of(reads),
            makes=self.bits_of(task.outputs),
            updates=0 if again else self.bits_of(task.updated),
            beside_bytes=task.workspace_bytes + sum(self.size_of[c] for c in (*small, *task.outputs)),
            small=tuple(small),
            joules=task.cost.joules,
            last_stage=task.last_rerun_stage,
        )


def certain_joules(instance: Instance) -> float:
    """Of page-outs that every plan makes."""
    return math.fsum(page_out_joules(content) for content in instance.contents if content.ends_stored)


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
