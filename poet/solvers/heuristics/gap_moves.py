"""Moves of the local search over gaps, as machine code: neighbours of a choice, and which of them to go to.

A neighbour differs in a few gaps; slightly more expensive ones are accepted (threshold accepting: Dueck and
Scheuer 1990). What is made of a choice is `poet.solvers.heuristics.list_scheduler`'s, here without a policy.
"""

from __future__ import annotations

import math

import numpy as np

# isort: off
from poet.solvers.heuristics.gap_arrays import (
    ABSENT, BIAS, DROP, HOME, HOPELESS, IN_RAM, KEEP, KEPT, MARK, NEED, PINNED, POSITION, PROTECTED, RAM_LIST,
    SIZE, WAY, WORTH, Floats, Ints, Machine,
)  # fmt: skip

# isort: on
from poet.solvers.heuristics.list_scheduler import decode, worth


def victim(m: Machine) -> int:
    """The tensor to drop next, of most bytes × ops to its next need per joule of coming back; -1: none."""
    best, most = -1, -1.0
    for k in range(m.n[IN_RAM]):
        t = m.t[RAM_LIST][k]
        is_barred = m.t[HOPELESS][t] or m.t[PINNED][t] or m.t[PROTECTED][t] > 0 or m.t[KEPT][t]
        if is_barred or m.t[SIZE][t] == 0:
            continue
        if math.isnan(m.x[WORTH][t]):
            worth(m, t)
        rank = m.x[WORTH][t] * (m.t[NEED][t] - m.n[POSITION] + 1)
        if rank > most:
            best, most = t, rank
    return best


def is_dropped_at_once(m: Machine, t: int) -> bool:
    """No tensor is dropped before room is needed."""
    return False


def changed(m: Machine, gaps: Ints, weights: Floats, owners: Ints, homes: Ints) -> None:
    """Change one home, the gaps that begin at about one time, the weight of prices, one gap, or two.

    Half of the gaps are ones in which something is absent, as these are what the schedule pays for.
    """
    draw = np.random.random()
    g = gaps[min(np.searchsorted(weights, np.random.random() * weights[-1]), len(gaps) - 1)]
    if np.random.random() < 0.6:
        for _ in range(32):
            if m.g[ABSENT][g]:
                break
            g = gaps[np.random.randint(len(gaps))]
    if len(homes) and draw < 0.12:
        t = homes[np.random.randint(len(homes))]
        m.t[HOME][t] = 1 - m.t[HOME][t]
    elif draw < 0.20:
        first = np.random.randint(len(gaps))
        stop = min(first + 2 + np.random.randint(24), len(gaps))
        mark, way = np.random.randint(3), np.random.randint(3)
        for k in range(first, stop):
            if np.random.random() < 0.8:
                m.g[MARK][gaps[k]], m.g[WAY][gaps[k]] = mark, way
    elif draw < 0.23:
        m.a[BIAS] = min(max(m.a[BIAS] + 0.3 * np.random.standard_normal(), 0.1), 1.5)
    elif draw < 0.42:
        m.g[WAY][g] = (m.g[WAY][g] + 1 + np.random.randint(2)) % 3
    elif draw < 0.70:
        m.g[MARK][g] = (m.g[MARK][g] + 1 + np.random.randint(2)) % 3
    else:  # one is kept in the place of another that is there at the same time
        h = gaps[np.random.randint(len(gaps))]
        for _ in range(16):
            overlap = owners[1][h] < owners[2][g] and owners[1][g] < owners[2][h]
            if overlap and h != g and not m.g[ABSENT][h]:
                break
            h = gaps[np.random.randint(len(gaps))]
        m.g[MARK][g], m.g[MARK][h] = KEEP, DROP


def improve(
    m: Machine, b: Machine, gaps: Ints, weights: Floats, owners: Ints, homes: Ints,
    here: float, best: float, slack: float, tries: int, seed: int,
) -> tuple[float, float, int]:  # fmt: skip
    """Go from the choice of gaps in ``m``, of ``here`` joules, to ``tries`` neighbours one by one.

    ``b`` gets the steps and the choice of each one below ``best`` joules. ``gaps`` may change, as often as
    the running sum ``weights`` says; ``owners`` are tensor, begin and end of each. ``homes`` are tensors
    whose home may change. The next choice may take more than the last by the part ``slack`` of its joules.

    Returns:
        joules of the last choice and of the best, and after how many tries that was found; 0: never.
    """
    np.random.seed(seed)
    choice, home, bias, found = m.g.copy(), m.t[HOME].copy(), m.a[BIAS], 0
    for number in range(1, tries + 1):
        changed(m, gaps, weights, owners, homes)
        while np.random.random() < 0.4:
            changed(m, gaps, weights, owners, homes)
        most = here * (1.0 + slack * np.random.random())
        joules = decode(m, most)
        if joules <= most and joules < math.inf:
            here = joules
            choice[:], home[:], bias = m.g, m.t[HOME], m.a[BIAS]
            if joules < best * (1.0 - 1e-9):
                best, found = joules, number
                b.w[:], b.g[:], b.n[:] = m.w, m.g, m.n
                b.t[HOME][:], b.a[BIAS] = home, bias
        else:
            m.g[:] = choice
            m.t[HOME][:], m.a[BIAS] = home, bias
    return here, best, found
