"""Stages that a program over sets in RAM need not tell apart, because nothing it follows is touched there.

In a long part of a step that only reads and makes what is not followed, the same contents exist and the
same reruns are open from stage to stage. Two stages stand for such a part: that before its fullest first run,
whose room is looked at, and the last one. What happens in any stage of the part may happen in one of these
two, in the same order; the other first runs are taken to find room, and residents are those that are there in
all stages that are joined. So a least path over the stages that are left takes no more than one over all.
No window of a content (`poet.solvers.bounds.followed`) begins or ends in such a part.
"""

from __future__ import annotations

from poet.solvers.bounds.followed import Followed, Run


def joined_stages(of: Followed) -> list[tuple[int, int]]:
    """The stages in order, as the first and last of each that one stands for: the last."""
    found, begin = list[tuple[int, int]](), 0
    for number in range(of.end + 1):
        if number < of.end and _alike(of, number):
            continue
        if number > begin:
            fullest = max(range(begin, number), key=lambda stage: (_taken_bytes(of, stage), stage))
            found.append((begin, fullest))
            begin = fullest + 1
        found.append((begin, number))
        begin = number + 1
    return found


def _alike(of: Followed, number: int) -> bool:
    """Whether a stage and the next one have the same contents and reruns, and nothing followed is touched."""
    run = of.first[number]
    touched = run.needs | run.makes | run.updates
    return not touched and _contents(of, number) == _contents(of, number + 1)


def _contents(of: Followed, number: int) -> tuple[int, int, list[Run]]:
    """Those that exist in a stage, as far as they are followed and not, and the reruns that make them."""
    return of.alive[number], of.hidden[number], _open(of, number)


def _open(of: Followed, number: int) -> list[Run]:
    """The reruns of a stage that make what exists there."""
    alive = of.alive[number]
    return [run for run in of.again if run.task < number <= run.last_stage and run.makes & alive]


def _taken_bytes(of: Followed, number: int) -> int:
    """Beside followed contents, by a stage's first run and by residents that it does not read."""
    run = of.first[number]
    there = (
        one.bytes for c, one in of.residents.items() if one.birth < number <= one.last and c not in run.small
    )
    return run.beside_bytes + sum(there)
