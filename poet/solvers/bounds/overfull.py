"""What a walked step has no room for: contents that its program does not follow, and that it needs in RAM.

A `poet.solvers.bounds.ram_program` counts a content that it does not follow beside the runs that read or make
it, and nowhere else. A step that it takes to be the cheapest may need more RAM than there is: from the run
that makes such a content to the last one that reads it, before it is made again, it is there as well. Where
that is too much, a program that follows some of these contents tells such steps from those that fit
(refinement by counterexamples: Clarke, Grumberg, Jha, Lu and Veith, CAV 2000).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from poet.solvers.bounds.ram_paths import Moved, RamPath
from poet.solvers.bounds.ram_program import RamProgram
from poet.solvers.instance.instance import Instance


class Overfull(NamedTuple):
    """A run or a page-in of a step for which RAM lacks ``lacking_bytes``.

    ``contents``: that are there beside it and are not counted, the largest first; ``until`` says for each the
    stage in which it is read next.
    """

    move: Moved
    lacking_bytes: int
    contents: tuple[int, ...]
    until: Mapping[int, int]

    def window(self, content: int) -> range:
        """The stages from the move to what reads a content next."""
        return range(self.move.stage, self.until[content] + 1)


def overfull(
    instance: Instance, program: RamProgram, path: RamPath, *, waiting: bool = False
) -> list[Overfull]:
    """All such moves of a step, from its start on.

    Args:
        instance: of the program.
        program: whose step it is.
        path: the step.
        waiting: residents that are paid for take RAM as well, where they wait for what reads them next and no
            page-in is charged.
    """
    contents, of = instance.contents, program.of
    until = dict[int, int]()
    paid = path.paid if waiting else frozenset[int]()
    touched = [_touched(instance, move) for move in path.moves]
    away = {c for one in paid for c in program.of.stands_for(one)}
    waiting_there = waits(instance, touched, away)
    after = {c.number for c in contents if c.ends_in_ram} - away
    found = list[Overfull]()
    for place in range(len(path.moves) - 1, -1, -1):
        move, (reads, makes) = path.moves[place], touched[place]
        beside = (after | waiting_there.get(place, set())) - reads - makes
        hidden = of.hidden_in(move.stage)
        there = {c for c in beside if c not in of.number or c in hidden}
        counted, counted_bytes = program.residents.counted_of(move.stage, there, reads, paid)
        in_vain = move.held - beside - reads - makes
        lacking_bytes = sum(contents[c].bytes for c in there) - counted_bytes - move.room_bytes
        lacking_bytes -= sum(contents[c].bytes for c in in_vain)
        if lacking_bytes > 0:
            largest_first = sorted(there - counted, key=lambda c: (-contents[c].bytes, c))
            able = tuple(c for c in largest_first if contents[c].bytes)
            found.append(Overfull(move, lacking_bytes, able, {c: until.get(c, of.end) for c in able}))
        after = ((after - makes) | reads) - away
        until.update(dict.fromkeys(reads, move.stage))
    return found[::-1]


def waits(
    instance: Instance, touched: Sequence[tuple[set[int], set[int]]], away: Set[int]
) -> dict[int, set[int]]:
    """By place in a step, residents among ``away`` that wait from one move that touches them to the next.

    A program takes what is paid for to be away whenever nothing reads it. That is one page-in, that which
    ends the longest wait; where a home is chosen, that which begins its stay. Others it does not charge.
    """
    places = dict[int, list[int]]()
    for place, (reads, makes) in enumerate(touched):
        for content in (reads | makes) & away:
            places.setdefault(content, []).append(place)
    found = dict[int, set[int]]()
    for content, there in places.items():
        gaps = [range(first + 1, last) for first, last in itertools.pairwise(there)]
        one = instance.contents[content]
        if one.home is None:
            begins = range(there[0]) if one.starts_in_ram else range(0)
            gaps = sorted([begins, *gaps], key=len)[:-1]
        for place in itertools.chain(*gaps):
            found.setdefault(place, set()).add(content)
    return found


def _touched(instance: Instance, move: Moved) -> tuple[set[int], set[int]]:
    """What it reads, and what is there after it whether it was there before or not."""
    if move.task is None:
        return set(), set() if move.content is None else {move.content}
    task = instance.tasks[move.task]
    if move.task == move.stage:
        return set(task.reads), {*task.outputs, *task.updated}
    return set(task.rerun_reads), set(task.outputs)


def to_follow(
    found: Sequence[Overfull], sizes: Sequence[int], lives: Mapping[int, int]
) -> list[dict[int, frozenset[int]]]:
    """Contents in groups: with the first, some move of a step has no room, with each that follows more have;
    of each the stages from that move to the one that reads it next.

    These are the largest with which any has none: what is large leaves few sets, and what has no room for it
    has none for much else.

    Args:
        found: the moves.
        sizes: bytes of all contents.
        lives: per content that is followed in all stages or in none, the stages in which it exists: the
            fewer, the fewer sets it makes to follow it. Others are followed from such a move to their next
            read.
    """
    for least_bytes in sorted({sizes[c] for one in found for c in one.contents}, reverse=True):
        large = [
            one._replace(contents=tuple(c for c in one.contents if sizes[c] >= least_bytes)) for one in found
        ]
        able = [one for one in large if sum(sizes[c] for c in one.contents) >= one.lacking_bytes]
        if able:
            return _groups(able, sizes, lives)
    return []


def _groups(
    found: Sequence[Overfull], sizes: Sequence[int], lives: Mapping[int, int]
) -> list[dict[int, frozenset[int]]]:
    """See `to_follow`: what lives shortly comes first."""
    groups, pending = list[dict[int, frozenset[int]]](), list(found)
    chosen = dict[int, frozenset[int]]()  # with the stages in which they are, unless in all
    while pending:
        covers = [_cover(one, chosen, sizes, lives) for one in pending]
        lasting = [
            sum(_life(one, c, lives) for c in cover) for one, cover in zip(pending, covers, strict=True)
        ]
        first = min(range(len(pending)), key=lambda place: (lasting[place], place))
        if covers[first]:
            window = {c: frozenset(pending[first].window(c)) for c in covers[first]}
            groups.append(window)
            chosen.update({c: chosen.get(c, frozenset()) | stages for c, stages in window.items()})
        del pending[first]
    return groups


def _life(one: Overfull, content: int, lives: Mapping[int, int]) -> int:
    return lives.get(content, len(one.window(content)))


def _cover(
    one: Overfull, chosen: Mapping[int, Set[int]], sizes: Sequence[int], lives: Mapping[int, int]
) -> list[int]:
    """What to follow beside ``chosen`` so that a move has no room, of short lives; all of it may not do."""
    followed = {c for c, stages in chosen.items() if c in lives or one.move.stage in stages}
    lacking_bytes = one.lacking_bytes - sum(sizes[c] for c in one.contents if c in followed)
    rest = [c for c in one.contents if c not in followed]
    cover, life = list[int](), {c: _life(one, c, lives) for c in rest}
    for c in sorted(rest, key=lambda c: (life[c] / min(sizes[c], max(lacking_bytes, 1)), c)):
        if lacking_bytes <= 0:
            break
        cover.append(c)
        lacking_bytes -= sizes[c]
    for c in sorted(cover, key=lambda c: (-life[c], c)):
        if lacking_bytes + sizes[c] <= 0:
            cover.remove(c)
            lacking_bytes += sizes[c]
    return cover
