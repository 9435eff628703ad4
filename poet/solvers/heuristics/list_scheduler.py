"""List scheduling with an eviction policy: first runs in the listed order, and exact memory.

All heuristics share it (compare DTR, Kirisame et al. 2021). Before each op the scheduler brings its inputs
into RAM, by page-in or by recomputing the ops that lead to them, and makes room by dropping other tensors.
A tensor is dropped only if it can come back: it is stored, or it is written first, or it is remade from
tensors that are then held until it is needed. So with paging allowed everywhere a schedule is found in every
budget in which the largest op fits. What to drop, and how that comes back, is said per gap: dropped first, by
value, or last; by page-in, by recomputation, or by whichever costs less. So every choice of gaps gives a
schedule or none (random keys decoded by a list scheduler: Bean 1994).

The functions run as Python on a machine of lists, where a policy decides as well
(`poet.solvers.heuristics.policies`), and as machine code on arrays for the local search, which has functions
of its own in the place of those that ask a policy (`poet.solvers.heuristics.gap_moves`).
The result is a proposal: the simulator judges it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# isort: off
from poet.solvers.heuristics.gap_arrays import (
    ABSENT, BIAS, BUDGET, CAPACITY, CHEAPER, CHOSEN, COMPUTE, DROP, END, ENDS_IN_RAM, FAILED, FIRST_GAP,
    FREE, HELD, HELD_UNTIL, HOME, HOPELESS, INPUTS, INPUTS_END, IN_COST, IN_RAM, IN_USE, KEEP, KINDS,
    LAST_UPDATE, LEAVES, MARK, MAY_MOVE, METERED, MOST, MOST_CHAIN, MOST_METERED, MOST_SECONDS, MOVABLE,
    MUST_MOVE, NEED, OPS, OPS_AGAIN, OUTPUTS, OUTPUTS_END, OUT_COST, OWED, OWES, PAGE, PAGE_IN, PAGE_OUT,
    PINNED, POSITION, PRESENT, PRODUCER, PROTECTED, RAM, RAM_LIST, RAM_PLACE, RELEASE_HEAD, RELEASE_ITEM,
    RELEASE_NEXT, REMAKE, RERUNS, RERUNS_END, RERUN_LIMIT, RERUN_NEED, ROOM, SECONDS, SEEN, SIZE, SPENT,
    STACK, START, STEPS, STORED, STORED_SIZE, TENSORS, UPDATES, UPDATES_END, USE, USED, USED_AT, USES,
    USES_END, WALKS, WAY, WHATS, WORKSPACE, WORTH, WRITABLE, Ints, Machine,
)  # fmt: skip
# isort: on


# --- what a policy decides: not in machine code ---


def victim(m: Machine) -> int:
    """The tensor to drop next, of those that may go; -1: none."""
    return int(m.policy.victim(m))  # type: ignore[attr-defined]


def is_dropped_at_once(m: Machine, t: int) -> bool:
    """Whether ``t``, just used or made and needed later, is dropped now."""
    return bool(m.policy.drops_at_once(m, t))  # type: ignore[attr-defined]


# --- what is ahead of a tensor ---


def look_ahead(m: Machine, t: int) -> None:
    """Find the gap in which ``t`` is, and the next op for which it must be in RAM."""
    position, stop = m.n[POSITION], m.t[USES_END][t]
    place = m.t[USE][t]
    while place < stop and m.flat[place] < position:
        place += 1
    m.t[USE][t] = place
    need = m.n[OPS] + 1
    if has_use(m, t):
        need = m.flat[place]
    held = m.t[HELD_UNTIL][t]
    m.t[NEED][t] = min(need, held) if held >= position else need


def has_use(m: Machine, t: int) -> bool:
    """Whether a first run, or the end, needs ``t`` from here on."""
    place = m.t[USE][t]
    return bool(place < m.t[USES_END][t] and (m.flat[place] < m.n[OPS] or m.t[ENDS_IN_RAM][t] == 1))


def horizon(m: Machine, t: int) -> int:
    """The next use of ``t``; without one, the op until which it is held."""
    return int(m.flat[m.t[USE][t]] if has_use(m, t) else m.t[HELD_UNTIL][t])


def gap_of(m: Machine, t: int) -> int:
    """The gap in which ``t`` is."""
    return int(m.t[FIRST_GAP][t] + m.t[USE][t] - m.t[USES][t])


# --- what may be done, and what it costs ---


def readable(m: Machine, t: int) -> bool:
    """Whether it may be paged in with its present content."""
    return bool(m.t[STORED][t] == 1 and m.t[MOVABLE][t] == 1 and m.x[IN_COST][t] < math.inf)


def updates_ahead(m: Machine, t: int) -> bool:
    """Whether a later op overwrites ``t``."""
    return bool(m.t[LAST_UPDATE][t] >= m.n[POSITION])


def may_page_out(m: Machine, t: int) -> bool:
    """Whether ``t`` may be written, with room left for what must be written yet."""
    if m.t[STORED][t] == 1 or m.t[MOVABLE][t] == 0 or m.x[OUT_COST][t] == math.inf:
        return False
    owed = m.n[OWED]
    if m.t[OWES][t] == 1 and not updates_ahead(m, t):
        owed -= m.t[STORED_SIZE][t]
    return bool(m.n[ROOM] >= m.t[STORED_SIZE][t] + owed)


def may_rerun(m: Machine, op: int, position: int) -> bool:
    """Whether it may run again before the first run of ``position``."""
    return op >= 0 and m.o[RERUN_LIMIT][op] >= position and m.o[RERUN_NEED][op] <= m.n[BUDGET]


def page_price(m: Machine, t: int) -> float:
    """Joules of writing ``t``, unless it has a copy, and reading it once."""
    if readable(m, t):
        return float(m.x[IN_COST][t])
    return m.x[IN_COST][t] + m.x[OUT_COST][t] if may_page_out(m, t) else math.inf


def last_use(m: Machine, t: int) -> int:
    """The last op that reads ``t`` first, or the end; -1: none does."""
    begin, stop = m.t[USES][t], m.t[USES_END][t]
    if stop > begin and m.flat[stop - 1] == m.n[OPS] and m.t[ENDS_IN_RAM][t] == 0:
        stop -= 1
    return int(m.flat[stop - 1]) if stop > begin else -1


def remake_price(m: Machine, t: int) -> float:
    """Joules of recomputing ``t`` for its next use, estimated.

    What is in RAM now counts as there then if it is used or held at least as long and not to be dropped.
    """
    need = horizon(m, t)
    m.n[WALKS] += 1
    walk = m.n[WALKS]
    price, ops, top = 0.0, 0, 1
    m.w[STACK][0] = t
    while top:
        top -= 1
        c = m.w[STACK][top]
        op = m.t[PRODUCER][c]
        if c != t:
            is_kept = m.t[PRESENT][c] == 1 and m.g[MARK][gap_of(m, c)] != DROP
            if is_kept and max(last_use(m, c), m.t[HELD_UNTIL][c]) >= need:
                continue
            if readable(m, c):
                price += m.x[IN_COST][c]
                continue
            if m.t[PRESENT][c] == 1 and not may_rerun(m, op, need):
                price += min(page_price(m, c), m.x[IN_COST][c])
                continue
        if not may_rerun(m, op, need) or ops > MOST_CHAIN:
            return math.inf
        if m.o[SEEN][op] != walk:
            ops += 1
            price += m.y[0][op]
            top = push_reads(m, op, walk, top)
    return price


def push_reads(m: Machine, op: int, walk: int, top: int) -> int:
    """Put what a rerun of ``op`` reads on the stack of this pass over producers; the new top."""
    m.o[SEEN][op] = walk
    for k in range(m.o[RERUNS][op], m.o[RERUNS_END][op]):
        m.w[STACK][top] = m.flat[k]
        top += 1
    return top


def spend(m: Machine, cost: Any, row: int, which: int) -> None:
    """Add a cost to what was spent; what exceeds a limit ends the schedule."""
    m.a[SPENT] += cost[row][which]
    m.a[SECONDS] += cost[row + 1][which]
    m.a[METERED] += cost[row + 2][which]
    over = m.a[SECONDS] > m.a[MOST_SECONDS] or m.a[METERED] > m.a[MOST_METERED]
    if over or m.a[SPENT] > m.a[MOST]:
        m.n[FAILED] = 1


def step(m: Machine, kind: int, what: int) -> None:
    """Write a step down."""
    k = m.n[STEPS]
    if k >= len(m.w[KINDS]):
        m.n[FAILED] = 1
        return
    m.w[KINDS][k] = kind
    m.w[WHATS][k] = what
    m.n[STEPS] = k + 1


def appear(m: Machine, t: int) -> None:
    """``t`` is in RAM from now on."""
    if m.t[PRESENT][t] == 0:
        m.t[PRESENT][t] = 1
        m.t[RAM_PLACE][t] = m.n[IN_RAM]
        m.t[RAM_LIST][m.n[IN_RAM]] = t
        m.n[IN_RAM] += 1
        m.n[RAM] += m.t[SIZE][t]


def free(m: Machine, t: int) -> None:
    """Give the RAM of ``t`` back."""
    step(m, FREE, t)
    m.t[PRESENT][t] = 0
    last = m.t[RAM_LIST][m.n[IN_RAM] - 1]
    m.t[RAM_LIST][m.t[RAM_PLACE][t]] = last
    m.t[RAM_PLACE][last] = m.t[RAM_PLACE][t]
    m.n[IN_RAM] -= 1
    m.n[RAM] -= m.t[SIZE][t]


def page_out(m: Machine, t: int) -> None:
    """Write ``t``."""
    if not may_page_out(m, t):
        m.n[FAILED] = 1
        return
    step(m, PAGE_OUT, t)
    spend(m, m.x, OUT_COST, t)
    m.t[STORED][t] = 1
    m.n[ROOM] -= m.t[STORED_SIZE][t]
    if m.t[OWES][t] == 1 and not updates_ahead(m, t):
        m.t[OWES][t] = 0
        m.n[OWED] -= m.t[STORED_SIZE][t]


def hold(m: Machine, t: int, need: int) -> None:
    """Keep ``t`` in RAM, or able to come back, until op ``need``."""
    if m.t[HELD_UNTIL][t] >= need:
        return
    m.t[HELD_UNTIL][t] = need
    look_ahead(m, t)
    if need < m.n[OPS]:
        k = m.n[HELD]
        if k >= len(m.w[KINDS]):
            m.n[FAILED] = 1
            return
        m.w[RELEASE_ITEM][k] = t
        m.w[RELEASE_NEXT][k] = m.o[RELEASE_HEAD][need]
        m.o[RELEASE_HEAD][need] = k
        m.n[HELD] = k + 1


def store(m: Machine, t: int) -> bool:
    """Write ``t`` so that it can come back; whether it may."""
    if not may_page_out(m, t) or m.x[IN_COST][t] == math.inf:
        return False
    page_out(m, t)
    return True


def rely(m: Machine, t: int) -> bool:
    """Hold what ``t`` can be remade from until its next use; whether it can be."""
    if m.t[PROTECTED][t] > 0 or (m.t[OWES][t] == 1 and not has_use(m, t)):
        return False
    need = horizon(m, t)
    m.n[WALKS] += 1
    walk = m.n[WALKS]
    top, leaves = 1, 0
    m.w[STACK][0] = t
    while top:
        top -= 1
        c = m.w[STACK][top]
        if c != t and (m.t[PRESENT][c] == 1 or readable(m, c)):
            m.w[LEAVES][leaves] = c
            leaves += 1
            continue
        op = m.t[PRODUCER][c]
        if not may_rerun(m, op, need):
            return False
        if m.o[SEEN][op] != walk:
            top = push_reads(m, op, walk, top)
    for k in range(leaves):
        hold(m, m.w[LEAVES][k], need)
    return True


def drop(m: Machine, t: int, way: int) -> bool:
    """Give the RAM of ``t`` back so that it can return; whether it can."""
    if not readable(m, t):
        if m.t[OWES][t] == 1 and not updates_ahead(m, t):
            way = PAGE
        if way == CHEAPER:
            way = PAGE if page_price(m, t) <= remake_price(m, t) else REMAKE
        done = (store(m, t) or rely(m, t)) if way == PAGE else (rely(m, t) or store(m, t))
        if not done:
            return False
    m.g[ABSENT][gap_of(m, t)] = 1
    free(m, t)
    return True


def worth(m: Machine, t: int) -> float:
    """Bytes of ``t`` per joule of coming back, by what its gap says; computed once after each use."""
    if math.isnan(m.x[WORTH][t]):
        gap = gap_of(m, t)
        way, price = m.g[WAY][gap], math.inf
        if way != REMAKE:
            price = page_price(m, t)
        if way != PAGE or price == math.inf:
            price = min(price, remake_price(m, t))
        found = m.t[SIZE][t] / (price ** m.a[BIAS] + 1e-30)
        if m.g[MARK][gap] == DROP:
            found *= 1e60
        elif m.g[MARK][gap] == KEEP:
            found *= 1e-60
        m.x[WORTH][t] = found
    return float(m.x[WORTH][t])


def make_room(m: Machine, new_bytes: int) -> None:
    """Drop tensors until ``new_bytes`` more fit."""
    if m.n[RAM] + new_bytes <= m.n[BUDGET] or m.n[FAILED] == 1:
        return
    m.t[HOPELESS][:] = 0
    while m.n[RAM] + new_bytes > m.n[BUDGET] and m.n[FAILED] == 0:
        t = victim(m)
        way = PAGE
        if t >= 0:
            way = m.g[WAY][gap_of(m, t)]
        else:  # what the recomputation under way needs again later
            for k in range(m.n[IN_RAM]):
                c = m.t[RAM_LIST][k]
                if m.t[PROTECTED][c] > 0 and m.t[PINNED][c] == 0 and m.t[HOPELESS][c] == 0:
                    t = c
                    break
        if t < 0:
            m.n[FAILED] = 1
        elif not drop(m, t, way):
            m.t[HOPELESS][t] = 1


def settle(m: Machine, t: int) -> None:
    """After a use: free ``t`` if nothing needs it any more, or drop it where that is the policy."""
    m.x[WORTH][t] = math.nan
    m.x[USED_AT][t] = m.a[SECONDS]
    look_ahead(m, t)
    if m.t[PRESENT][t] == 0 or m.t[PROTECTED][t] > 0 or m.t[PINNED][t] == 1:
        return
    if m.t[NEED][t] > m.n[OPS]:
        if m.t[OWES][t] == 1:
            page_out(m, t)
        free(m, t)
    elif is_dropped_at_once(m, t):
        drop(m, t, m.g[WAY][gap_of(m, t)])


def settle_each(m: Machine, begin: int, end: int) -> None:
    """`settle` those of a list."""
    for k in range(begin, end):
        settle(m, m.flat[k])


def page_in(m: Machine, t: int) -> None:
    """Read ``t``, unless it is in RAM."""
    if m.t[PRESENT][t] == 1 or m.n[FAILED] == 1:
        return
    if not readable(m, t):
        m.n[FAILED] = 1
        return
    make_room(m, m.t[SIZE][t])
    step(m, PAGE_IN, t)
    spend(m, m.x, IN_COST, t)
    appear(m, t)
    pin(m, t)


def pin(m: Machine, t: int) -> None:
    """``t`` is in use and stays."""
    if m.t[PINNED][t] == 0:
        m.t[PINNED][t] = 1
        m.w[IN_USE][m.n[USED]] = t
        m.n[USED] += 1


def unpin(m: Machine) -> None:
    """Nothing is in use any more."""
    for k in range(m.n[USED]):
        m.t[PINNED][m.w[IN_USE][k]] = 0
    m.n[USED] = 0


def run_outputs(m: Machine, op: int) -> None:
    """Make room for the outputs of ``op`` and run it."""
    new = m.o[WORKSPACE][op]
    for k in range(m.o[OUTPUTS][op], m.o[OUTPUTS_END][op]):
        new += m.t[SIZE][m.flat[k]]
    make_room(m, new)
    step(m, COMPUTE, op)
    for k in range(m.o[OUTPUTS][op], m.o[OUTPUTS_END][op]):
        appear(m, m.flat[k])


def rerun(m: Machine, op: int) -> None:
    """Run ``op`` again."""
    for k in range(m.o[RERUNS][op], m.o[RERUNS_END][op]):
        if m.t[PRESENT][m.flat[k]] == 1:
            pin(m, m.flat[k])
    for k in range(m.o[RERUNS][op], m.o[RERUNS_END][op]):
        page_in(m, m.flat[k])
    if m.n[FAILED] == 1:
        return
    for k in range(m.o[OUTPUTS][op], m.o[OUTPUTS_END][op]):
        if m.t[PRESENT][m.flat[k]] == 1:
            free(m, m.flat[k])
    run_outputs(m, op)
    spend(m, m.y, 0, op)
    unpin(m)
    for k in range(m.o[RERUNS][op], m.o[RERUNS_END][op]):
        m.t[PROTECTED][m.flat[k]] -= 1
    settle_each(m, m.o[RERUNS][op], m.o[RERUNS_END][op])
    settle_each(m, m.o[OUTPUTS][op], m.o[OUTPUTS_END][op])


def obtain(m: Machine, needed: Ints) -> None:
    """Bring ``needed`` into RAM, all at once, and pin them."""
    missing = 0
    for t in needed:
        missing += 1 - m.t[PRESENT][t]
    if missing:
        m.n[WALKS] += 1
        walk = m.n[WALKS]
        top, count = 0, 0
        for t in needed:
            m.w[STACK][top] = t
            top += 1
        while top:
            top -= 1
            c = m.w[STACK][top]
            op = m.t[PRODUCER][c]
            if m.t[PRESENT][c] == 1 or (op >= 0 and m.o[SEEN][op] == walk):
                continue
            if readable(m, c):
                is_cheap = may_rerun(m, op, m.n[POSITION]) and m.y[0][op] < m.x[IN_COST][c]
                for k in range(m.o[RERUNS][op], m.o[RERUNS_END][op]):
                    is_cheap = is_cheap and m.t[PRESENT][m.flat[k]] == 1
                if not is_cheap:
                    continue
            if not may_rerun(m, op, m.n[POSITION]):
                m.n[FAILED] = 1
                return
            m.o[OPS_AGAIN][count] = op
            count += 1
            top = push_reads(m, op, walk, top)
        again = np.sort(m.o[OPS_AGAIN][:count])
        for t in needed:
            m.t[PROTECTED][t] += 1
        for op in again:
            for k in range(m.o[RERUNS][op], m.o[RERUNS_END][op]):
                m.t[PROTECTED][m.flat[k]] += 1
        for op in again:
            rerun(m, op)
            if m.n[FAILED] == 1:
                return
        for t in needed:
            m.t[PROTECTED][t] = 0
    for t in needed:
        if m.t[PRESENT][t] == 1:
            pin(m, t)
    for t in needed:
        page_in(m, t)


def begin(m: Machine, most: float) -> None:
    """Set RAM and storage to the step's start, as the homes are chosen."""
    for k in range(POSITION, WALKS):
        m.n[k] = 0
    for k in range(BIAS):
        m.a[k] = 0.0
    for k in range(len(m.g[ABSENT])):
        m.g[ABSENT][k] = 0
    for k in range(m.n[OPS]):
        m.o[RELEASE_HEAD][k] = -1
    m.a[MOST] = most
    in_storage = 0
    for t in range(m.n[TENSORS]):
        for row in (PRESENT, STORED, OWES, PINNED, PROTECTED):
            m.t[row][t] = 0
        m.t[HELD_UNTIL][t], m.t[USE][t] = -1, m.t[USES][t]
        m.x[WORTH][t], m.x[USED_AT][t] = math.nan, 0.0
        start, end, must = m.t[START][t], m.t[END][t], m.t[MUST_MOVE][t]
        if m.t[CHOSEN][t] > 0:
            changes = m.t[CHOSEN][t] == 2
            if m.t[HOME][t] == 1:
                start, end, must = 2, (2 if changes else 0), 1
            else:
                start, end, must = (1 if changes else 3), 1, 0
        m.t[ENDS_IN_RAM][t] = end & 1
        look_ahead(m, t)
        m.t[MOVABLE][t] = 1 if must else m.t[MAY_MOVE][t]
        if start & 1:
            appear(m, t)
        if start & 2:
            m.t[STORED][t] = 1
            in_storage += m.t[STORED_SIZE][t]
        if end & 2:
            m.t[OWES][t] = 1 if m.t[STORED][t] == 0 or m.t[LAST_UPDATE][t] >= 0 else 0
            m.n[OWED] += m.t[STORED_SIZE][t] * m.t[OWES][t]
    m.n[ROOM] = min(m.n[WRITABLE], m.n[CAPACITY] - in_storage)
    if m.n[RAM] > m.n[BUDGET]:
        m.n[FAILED] = 1


def decode(m: Machine, most: float) -> float:
    """Write down the schedule of all gaps.

    Returns:
        joules above running every op once; infinite: the schedule got stuck, or takes more than ``most``.
    """
    begin(m, most)
    n = m.n[OPS]
    for t in range(m.n[TENSORS]):
        if m.t[PRESENT][t] == 1 and m.n[FAILED] == 0:
            settle(m, t)
    for op in range(n):
        if m.n[FAILED] == 1:
            return math.inf
        obtain(m, m.flat[m.o[INPUTS][op] : m.o[INPUTS_END][op]])
        run_outputs(m, op)
        if m.n[FAILED] == 1:
            return math.inf
        m.a[SECONDS] += m.y[1][op]
        m.n[POSITION] = op + 1
        for k in range(m.o[UPDATES][op], m.o[UPDATES_END][op]):
            m.t[STORED][m.flat[k]] = 0
        unpin(m)
        settle_each(m, m.o[INPUTS][op], m.o[INPUTS_END][op])
        settle_each(m, m.o[OUTPUTS][op], m.o[OUTPUTS_END][op])
        k = m.o[RELEASE_HEAD][op]
        while k >= 0:
            settle(m, m.w[RELEASE_ITEM][k])
            k = m.w[RELEASE_NEXT][k]
    if m.n[FAILED] == 0:
        at_end = np.flatnonzero(m.t[ENDS_IN_RAM])
        obtain(m, at_end)
        for t in range(m.n[TENSORS]):
            if m.t[OWES][t] == 1 and m.n[FAILED] == 0:
                page_out(m, t)
    is_late = m.a[SECONDS] > m.a[MOST_SECONDS]
    return math.inf if is_late or m.n[FAILED] == 1 else m.a[SPENT]
