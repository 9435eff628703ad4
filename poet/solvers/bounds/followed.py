"""The contents of at least some bytes, and what runs do to sets of them: what searches over states share.

A set is an integer, whose bit i stands for content i of those that are followed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from poet.solvers.bounds.residents import homes, page_out_joules, residents, substitutes
from poet.solvers.instance.candidates import last_use_stages, worth_rerunning
from poet.solvers.instance.instance import Content, Instance


@dataclass(frozen=True, slots=True)
class Run:
    """A first run or a rerun, and which contents it needs, makes and updates, as bits.

    ``beside_bytes``: its outputs, its workspace, and what it reads that is not followed; the latter is
    ``small``, with the residents in whose place it may be.
    """

    task: int
    needs: int
    makes: int
    updates: int
    beside_bytes: int
    small: tuple[int, ...]
    joules: float
    last_stage: int


class Followed:
    """The contents of ``instance`` of at least ``followed_bytes``, the runs, and which contents exist when.

    Args:
        instance: what they are of.
        followed_bytes: of the smallest.
        budget_bytes: of RAM.
        left_out: contents of that size that are not followed all the same.
        windows: of contents that are no residents, the stages in which they are followed; others always are.

    Attributes:
        followed, number: the contents, and the number of each content among them.
        bytes, page_in, page_out: of each; joules, a page-in infinite where it can never be, a page-out of the
            last content of a tensor whose home is chosen with what else being at home in storage takes.
        fixed_joules: of page-outs that every plan makes; these contents' own are free.
        first, again: the first runs in order, and the reruns that may pay.
        maker: of a content, the rerun that makes it.
        alive: per stage, the contents that exist, that something may still read, and that are followed there.
        hidden: per stage, those that exist, that something may still read, and that are not followed there.
        appear: per stage with which a window begins, what may have been in RAM before it, uncounted.
        ends: those that must end in RAM.
        starts: those that are there at the start.
        wanted: per stage, those alive that first runs from it on read, or that must end in RAM.
        residents: by content, of those that are not followed.
        size_of: bytes of all contents, followed or not.
        windows: as given.
        homes: first and last of the followed contents of each tensor whose home is chosen, and the stage up
            to which page-ins of the first take nothing where the last has a copy.
    """

    def __init__(
        self,
        instance: Instance,
        followed_bytes: int,
        budget_bytes: int,
        *,
        left_out: frozenset[int] = frozenset(),
        windows: Mapping[int, Set[int]] | None = None,
    ) -> None:
        self.followed_bytes, self.budget_bytes, self.end = followed_bytes, budget_bytes, len(instance.tasks)
        self.followed = [
            c for c in instance.contents if c.bytes >= followed_bytes and c.number not in left_out
        ]
        self.number = {content.number: number for number, content in enumerate(self.followed)}
        self.bytes = [content.bytes for content in self.followed]
        self.size_of = [content.bytes for content in instance.contents]
        self.page_in = [_page_in_joules(content) for content in self.followed]
        self.page_out = [page_out_joules(content) for content in self.followed]
        stored = [number for number, content in enumerate(self.followed) if content.ends_stored]
        self.fixed_joules = sum(self.page_out[number] for number in stored)
        for number in stored:
            self.page_out[number] = 0.0
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
        self.residents |= substitutes(instance, self.number.keys(), self.residents)
        self._in_place_of = {c: number for number, one in self.residents.items() for c in one.stands_for}
        self.first = [self._run(instance, task.number, again=False) for task in instance.tasks]
        runs = (self._run(instance, number, again=True) for number in sorted(worth))
        self.again = [run for run in runs if run.makes]
        self.maker = {number: run for run in self.again for number in bits(run.makes)}
        exist = [
            self.bits_of(
                c.number for c in self.followed if c.birth < stage <= min(last_use[c.number], c.death)
            )
            for stage in range(self.end + 1)
        ]
        self.windows: Mapping[int, Set[int]] = dict(windows or {})
        seen = [self._seen(stage) for stage in range(self.end + 1)]
        self.alive = [there & some for there, some in zip(exist, seen, strict=True)]
        self.hidden = [there & ~some for there, some in zip(exist, seen, strict=True)]
        self.appear = [0, *(now & before for now, before in zip(self.alive[1:], self.hidden, strict=False))]
        self.ends = self.bits_of(content.number for content in self.followed if content.ends_in_ram)
        self.starts = self.bits_of(content.number for content in self.followed if content.starts_in_ram)
        wanted = [self.ends] * (self.end + 1)
        for stage in range(self.end - 1, -1, -1):
            wanted[stage] = wanted[stage + 1] | self.first[stage].needs
        self.wanted = [bits & alive for bits, alive in zip(wanted, self.alive, strict=True)]
        self._unfollowed = {first: home for first, home in homes(instance).items() if first in self.residents}
        self._sizes: dict[int, int] = {}
        self._ahead: dict[tuple[int, int, int], float] = {}

    def _seen(self, stage: int) -> int:
        """Those that are followed in a stage."""
        return self.bits_of(c for c in self.number if c not in self.windows or stage in self.windows[c])

    def in_stage(self, run: Run, stage: int) -> Run:
        """A run where what it reads outside its window is not followed."""
        hidden = run.needs & self.hidden[stage]
        if not hidden:
            return run
        more_bytes = self.held_bytes(hidden)
        return replace(run, needs=run.needs & ~hidden, beside_bytes=run.beside_bytes + more_bytes)

    def hidden_in(self, stage: int) -> frozenset[int]:
        """The contents that are followed elsewhere, and exist in a stage."""
        return frozenset(self.followed[place].number for place in bits(self.hidden[stage]))

    def bits_of(self, contents: Iterable[int]) -> int:
        """The set of those of ``contents`` that are followed."""
        bits = 0
        for content in contents:
            if content in self.number:
                bits |= 1 << self.number[content]
        return bits

    def left(self, held: int, needed: int, room_bytes: int, look: Callable[[], None]) -> Iterator[int]:
        """What may be left of ``held`` within ``room_bytes``: no set is freed if a part of it will do.

        ``look`` is called for each set that is looked at; ``needed`` stays.
        """
        over = self.held_bytes(held) - room_bytes
        if over <= 0:
            yield held
            return
        items = sorted(((self.bytes[number], 1 << number) for number in bits(held & ~needed)), reverse=True)
        left = [0] * (len(items) + 1)
        for place in range(len(items) - 1, -1, -1):
            left[place] = left[place + 1] + items[place][0]
        pending = [(0, over, held)]
        while pending:
            look()
            place, over, kept = pending.pop()
            if over <= 0:
                yield kept
            elif left[place] >= over:
                size, bit = items[place]
                pending.append((place + 1, over, kept))
                pending.append((place + 1, over - size, kept & ~bit))

    def ahead(self, stage: int, held: int, stored: int) -> float:
        """Joules that a state has to spend at least, of what it holds and has stored; idle power of reruns
        included: each absent content that a first run reads is paged in, or made again, at its producer's
        cost and that of those inputs of it, absent as well, that no other of these contents is charged for.
        """
        missing = self.wanted[stage] & ~held
        if not missing:
            return 0.0
        key = stage, held, stored & ~held
        if key not in self._ahead:
            self._ahead[key] = self._charged(stage, missing, held, stored, [missing])
        return self._ahead[key]

    def _charged(self, stage: int, missing: int, held: int, stored: int, charged: list[int]) -> float:
        total, pages = 0.0, dict[int, float]()
        makers: dict[int, Run] = {}
        for number in bits(missing):
            run, joules = self.maker.get(number), self.page_joules(number, stored)
            if run is None or run.last_stage < stage:
                total += joules
            else:
                makers[run.task] = run
                pages[run.task] = pages.get(run.task, 0.0) + joules
        for task in sorted(makers, reverse=True):
            run = makers[task]
            joules = run.joules
            if joules < pages[task]:
                inputs = run.needs & ~held & ~charged[0]
                charged[0] |= inputs
                joules += self._charged(stage, inputs, held, stored, charged)
            total += min(joules, pages[task])
        return total

    def page_joules(self, number: int, stored: int) -> float:
        """Of a page-in, with the page-out that is not paid for yet."""
        return self.page_in[number] + (0.0 if stored >> number & 1 else self.page_out[number])

    def held_bytes(self, held: int) -> int:
        """Of RAM, that a set takes."""
        if held not in self._sizes:
            self._sizes[held] = sum(self.bytes[number] for number in bits(held))
        return self._sizes[held]

    def _run(self, instance: Instance, number: int, *, again: bool) -> Run:
        task = instance.tasks[number]
        reads = task.rerun_reads if again else task.reads
        beside = {self._key(instance, c) for c in reads if c not in self.number} | set(task.outputs)
        return Run(
            task=number,
            needs=self.bits_of(reads),
            makes=self.bits_of(task.outputs),
            updates=0 if again else self.bits_of(task.updated),
            beside_bytes=task.workspace_bytes + sum(instance.contents[c].bytes for c in beside),
            small=tuple((beside - set(task.outputs)) | self._in_place(reads)),
            joules=task.cost.joules,
            last_stage=task.last_rerun_stage,
        )

    def _in_place(self, reads: Iterable[int]) -> set[int]:
        """Residents in whose place something of ``reads`` may be."""
        return {self._in_place_of[c] for c in reads if c in self._in_place_of}

    def by_content(self, copies: Iterable[int]) -> frozenset[int] | None:
        """Copies among which a resident stands for several contents, with each of those.

        ``None``: what no op updates is among the residents. It takes a page-in that it is not in RAM, which
        is no copy where it is followed.
        """
        some, copies = self._unfollowed, tuple(copies)
        if any(copy in some and len(some[copy].contents) == 1 for copy in copies):
            return None
        return frozenset(one for copy in copies for one in self.stands_for(copy))

    def stands_for(self, copy: int) -> tuple[int, ...]:
        """The contents that a copy is of, one or the other of which may be there where it is a resident."""
        if copy in self._unfollowed:
            return self._unfollowed[copy].contents
        return (copy, *self.residents[copy].stands_for) if copy in self.residents else (copy,)

    def _key(self, instance: Instance, content: int) -> int:
        """What stands for a content that is not followed among the residents."""
        home = instance.contents[content].home
        return content if home is None or home not in self.residents else home


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
