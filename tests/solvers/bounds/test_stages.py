"""Least values over moves within a stage, beside arcs gone along one by one."""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from poet.solvers.bounds import stages
from poet.solvers.bounds.compiled import loaded
from poet.solvers.bounds.stages import CAP, FirstRun, FittingSets, Move, Pairs, Stage, Values

SIZES, BUDGET, COLUMNS = (3, 5, 2, 7, 4), 13, 11


def stage_of(rng: random.Random) -> tuple[Stage, FittingSets, Values]:
    """Page-ins, reruns of one result and of two, and frees, some not allowed in some columns: their units."""
    sets = FittingSets.of(SIZES, BUDGET)
    assert sets is not None
    ends = np.cumsum([0, *map(len, sets.without)]).tolist()
    of_bit = [range(first, last) for first, last in itertools.pairwise(ends)]
    low, high, moves = [*sets.without], [*sets.having], list[Move]()
    for _ in range(4):
        made = rng.sample(range(len(SIZES)), rng.choice((1, 1, 2)))
        needs = sum(1 << bit for bit in range(len(SIZES)) if bit not in made and rng.random() < 0.3)
        most_bytes, pairs = rng.randrange(6, BUDGET + 1), of_bit[made[0]]
        if len(made) > 1:
            makes = sum(1 << bit for bit in made)
            there = dict(zip(sets.masks.tolist(), range(len(sets.masks)), strict=True))
            both = [(there[m], there[m | makes]) for m in there if m & makes != makes and m | makes in there]
            pairs = range(sum(map(len, low)), sum(map(len, low)) + len(both))
            low.append(np.array([begin for begin, _ in both], dtype=np.int32))
            high.append(np.array([end for _, end in both], dtype=np.int32))
        room = rng.randrange(most_bytes, most_bytes + 4)
        moves.append(Move(pairs, needs=needs, most_bytes=most_bytes, room_bytes=room))
    moves += [Move(of_bit[bit], content=bit, room_bytes=BUDGET - size) for bit, size in enumerate(SIZES)]
    frees = [Move(pairs, frees=True) for pairs in of_bit]
    units = np.array(
        [[rng.choice((0, 1, 7, 40, CAP)) for _ in range(COLUMNS)] for _ in moves], dtype=np.int32
    )
    asked = np.vstack([units, np.zeros((len(frees), COLUMNS), dtype=np.int32)])
    nowhere = np.zeros(0, dtype=np.int32)
    of_all, first = (
        Pairs(np.concatenate(low), np.concatenate(high)),
        FirstRun(nowhere, nowhere, sets.masks[:0]),
    )
    return Stage(sets, of_all, [*moves, *frees], first), sets, asked


def arcs(
    stage: Stage, sets: FittingSets, units: Values, held: int, column: int
) -> list[tuple[int, int, int]]:
    """Begin, end and units of all that is allowed, said once more."""
    found, pairs = [], stage._pairs
    for number, move in enumerate(stage.moves):
        for pair in move.pairs:
            begin, end = int(pairs.low[pair]), int(pairs.high[pair])
            begin, end = (end, begin) if move.frees else (begin, end)
            has = int(sets.masks[begin]) & move.needs == move.needs
            fits = sets.bytes[begin] <= min(move.most_bytes, move.room_bytes - held)
            if has and fits and units[number, column] < CAP:
                found.append((begin, end, int(units[number, column])))
    return found


def test_as_python_the_loops_say_the_same() -> None:
    stage, sets, units = stage_of(random.Random(99))
    values = np.full((len(sets.masks), COLUMNS), CAP, dtype=np.int32)
    values[::3] = 5
    others = values.copy()
    loaded(stages)
    stage.relax(values, units, 0)
    code: Any = stages.relax
    limits = np.array([min(move.most_bytes, move.room_bytes) for move in stage.moves])
    code.py_func(others, units, limits, sets.masks, sets.bytes, stage._pairs, stage._rules)
    assert (values == others).all()


def test_where_no_folder_may_be_written_loops_are_compiled_all_the_same(tmp_path: Path) -> None:
    """The module's own and the user's are files here, which no folder can be made in."""
    shutil.copy(Path(stages.__file__).with_name("compiled.py"), tmp_path / "compiled.py")
    (tmp_path / "loops.py").write_text("def double(number):\n    return 2 * number\n")
    (tmp_path / "__pycache__").write_text("")
    code = (
        "import loops; from compiled import *; "
        "print([starts_within(seconds, loops) for seconds in (0.5, 2.0, 9.0)]); "
        "print(loaded(loops).double(21))"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"HOME": "/dev/null", "PATH": "/usr/bin", "NUMBA_CACHE_DIR": ""},
    )  # fmt: skip
    assert done.stdout.splitlines() == ["[False, False, True]", "42"]
