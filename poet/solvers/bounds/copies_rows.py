"""What residents take beside each op's first run, as a master program over copies is told at once.

Residents without a copy stay in RAM, and must fit beside each op that runs and what it reads and makes. A row
for each op (a knapsack) says what many cuts would (`poet.solvers.bounds.copies_master`). Small residents are
counted in steps of joules, each of which frees so many bytes at most.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from poet.solvers.bounds.ram_program import RamProgram


def rows_of_ram(
    program: RamProgram, copies: Collection[int]
) -> list[tuple[tuple[tuple[int, int], ...], int]]:
    """Per op whose RAM asks for copies: bytes that each resident's copy frees, and that must be free.

    No row asks for more than `RamProgram.least` does at the op's first run; alike rows are one.

    Args:
        program: that counts residents as the master program does.
        copies: by content, and steps of joules that other residents are counted in, below 0.
    """
    residents, of = program.residents, program.of
    steps = sorted((c for c in copies if c < 0), reverse=True)
    rows = dict[tuple[tuple[int, int], ...], int]()
    for number in range(of.end):
        read, room = program.beside_first_run(number)
        others = [(c, of.residents[c].bytes) for c in residents.at(number) if c in copies and c not in read]
        unlisted = [residents.unlisted(number, k) for k in (*range(len(steps)), None)]
        freed = [more - less for more, less in pairwise(unlisted)]
        over = unlisted[0] + sum(size for _, size in others) - room
        if over > 0:
            terms = tuple((c, size) for c, size in (*others, *zip(steps, freed, strict=True)) if size)
            rows[terms] = max(over, rows.get(terms, 0))
    return [(tuple((c, min(size, over)) for c, size in terms), over) for terms, over in rows.items()]


def step_bytes(program: RamProgram, step: int, steps: int) -> int:
    """That one of so many steps of joules frees in a stage, at most, after those before it."""
    unlisted, following = program.residents.unlisted, None if step + 1 == steps else step + 1
    return max(unlisted(number, step) - unlisted(number, following) for number in range(program.of.end + 1))
