"""List scheduling with eviction over arrays, as machine code.

It is `poet.solvers.heuristics.list_scheduler` on arrays. What it has to drop, and how that comes back, is
said per gap: dropped first, by value, or last; by page-in, by recomputation, or by whichever costs less. So
every choice of gaps gives a schedule or none (random keys decoded by a list scheduler: Bean 1994). numba
compiles it once, in half a minute; the machine code is kept beside this module, or in the user's cache.
All functions work on one `Machine`: few arrays, as each array that is passed costs time to compile.
"""

from __future__ import annotations

import math

import numpy as np

# isort: off
from poet.solvers.heuristics.gap_arrays import (
    ABSENT, BASE_SECONDS, BIAS, BUDGET, CAPACITY, CHEAPER, CHOSEN, COMPUTE, DROP, END, ENDS_IN_RAM, FAILED,
    FIRST_GAP, FREE, HELD, HELD_UNTIL, HOME, HOPELESS, IN_COST, IN_RAM, INPUTS, INPUTS_END, KEEP, KEPT,
    KINDS, LAST_UPDATE, LEAVES, MARK, MAY_MOVE, METERED, MOST, MOST_CHAIN, MOST_METERED, MOST_SECONDS,
    MOVABLE, MUST_MOVE, NEVER, OPS, OPS_AGAIN, OUT_COST, OUTPUTS, OUTPUTS_END, OWED, OWES, PAGE, PAGE_IN,
    PAGE_OUT, PINNED, POSITION, PRESENT, PRICE, PRODUCER, PROTECTED, RAM, RAM_LIST, RAM_PLACE, RELEASE_HEAD,
    RELEASE_ITEM, RELEASE_NEXT, REMAKE, RERUN_LIMIT, RERUN_NEED, RERUNS, RERUNS_END, ROOM, SCORE, SECONDS,
    SEEN, SIZE, SPENT, STACK, START, STEPS, STORED, STORED_SIZE, TENSORS, UPDATES, UPDATES_END, USE, USES,
    USES_END, WALKS, WAY, WHATS, WORKSPACE, WRITABLE, Floats, Ints, Machine,
)  # fmt: skip
# isort: on


def next_need(m: Machine, t: int) -> int:
    """The next op for which ``t`` must be in RAM; `NEVER`: none."""
    position = m.n[POSITION]
    place = m.t[USE, t]
    stop = m.t[USES_END, t]
    while place < stop and m.flat[place] < position:
        place += 1
    m.t[USE, t] = place
    need = NEVER
    if place < stop and (m.flat[place] < m.n[OPS] or m.t[ENDS_IN_RAM, t]):
        need = m.flat[place]
    held = m.t[HELD_UNTIL, t]
    return min(need, held) if held >= position else need


def has_use(m: Machine, t: int) -> bool:
    """Whether a first run, or the end, needs ``t`` from here on."""
    next_need(m, t)
    place = m.t[USE, t]
    return bool(place < m.t[USES_END, t] and (m.flat[place] < m.n[OPS] or m.t[ENDS_IN_RAM, t] == 1))


def horizon(m: Machine, t: int) -> int:
    """The next use of ``t``; without one, the op until which it is held."""
    return int(m.flat[m.t[USE, t]] if has_use(m, t) else m.t[HELD_UNTIL, t])


def gap_of(m: Machine, t: int) -> int:
    """The gap in which ``t`` is."""
    next_need(m, t)
    return int(m.t[FIRST_GAP, t] + min(m.t[USE, t], m.t[USES_END, t]) - m.t[USES, t])


def readable(m: Machine, t: int) -> bool:
    """Whether it may be paged in with its present content."""
    return bool(m.t[STORED, t] == 1 and m.t[MOVABLE, t] == 1 and m.x[IN_COST, t] < math.inf)


def updates_ahead(m: Machine, t: int) -> bool:
    """Whether a later op overwrites ``t``."""
    return bool(m.t[LAST_UPDATE, t] >= m.n[POSITION])


def may_page_out(m: Machine, t: int) -> bool:
    """Whether ``t`` may be written, with room left for what must be written yet."""
    if m.t[STORED, t] == 1 or m.t[MOVABLE, t] == 0 or m.x[OUT_COST, t] == math.inf:
        return False
    owed = m.n[OWED]
    if m.t[OWES, t] == 1 and not updates_ahead(m, t):
        owed -= m.t[STORED_SIZE, t]
    return bool(m.n[ROOM] >= m.t[STORED_SIZE, t] + owed)


def may_rerun(m: Machine, op: int, position: int) -> bool:
    """Whether it may run again before the first run of ``position``."""
    return op >= 0 and m.o[RERUN_LIMIT, op] >= position and m.o[RERUN_NEED, op] <= m.n[BUDGET]


def page_price(m: Machine, t: int) -> float:
    """Joules of writing ``t``, unless it has a copy, and reading it once."""
    if readable(m, t):
        return float(m.x[IN_COST, t])
    return m.x[IN_COST, t] + m.x[OUT_COST, t] if may_page_out(m, t) else math.inf


def remake_price(m: Machine, t: int) -> float:
    """Joules of recomputing ``t`` for its next use, as far as it can be told now."""
    need = horizon(m, t)
    m.n[WALKS] += 1
    walk = m.n[WALKS]
    price, ops, top = 0.0, 0, 1
    m.w[STACK, 0] = t
    while top:
        top -= 1
        c = m.w[STACK, top]
        op = m.t[PRODUCER, c]
        if c != t:
            if m.t[PRESENT, c] == 1 and m.g[MARK, gap_of(m, c)] != DROP:
                last = -1
                stop = m.t[USES_END, c]
                while stop > m.t[USES, c]:
                    stop -= 1
                    if m.flat[stop] < m.n[OPS] or m.t[ENDS_IN_RAM, c] == 1:
                        last = m.flat[stop]
                        break
                if max(last, m.t[HELD_UNTIL, c]) >= need:
                    continue
            if readable(m, c):
                price += m.x[IN_COST, c]
                continue
            if m.t[PRESENT, c] == 1 and not may_rerun(m, op, need):
                price += min(page_price(m, c), m.x[IN_COST, c])
                continue
        if not may_rerun(m, op, need) or ops > MOST_CHAIN:
            return math.inf
        if m.o[SEEN, op] != walk:
            m.o[SEEN, op] = walk
            ops += 1
            price += m.y[0, op]
            for k in range(m.o[RERUNS, op], m.o[RERUNS_END, op]):
                m.w[STACK, top] = m.flat[k]
                top += 1
    return price


def spend(m: Machine, cost: Floats, row: int, which: int) -> None:
    """Add a cost to what was spent; what exceeds a limit ends the schedule."""
    m.a[SPENT] += cost[row, which]
    m.a[SECONDS] += cost[row + 1, which]
    m.a[METERED] += cost[row + 2, which]
    over = m.a[SECONDS] > m.a[MOST_SECONDS] or m.a[METERED] > m.a[MOST_METERED]
    if over or m.a[SPENT] > m.a[MOST]:
        m.n[FAILED] = 1


def step(m: Machine, kind: int, what: int) -> None:
    """Write a step down."""
    k = m.n[STEPS]
    if k >= m.w.shape[1]:
        m.n[FAILED] = 1
        return
    m.w[KINDS, k] = kind
    m.w[WHATS, k] = what
    m.n[STEPS] = k + 1


def appear(m: Machine, t: int) -> None:
    """``t`` is in RAM from now on."""
    if m.t[PRESENT, t] == 0:
        m.t[PRESENT, t] = 1
        m.t[RAM_PLACE, t] = m.n[IN_RAM]
        m.t[RAM_LIST, m.n[IN_RAM]] = t
        m.n[IN_RAM] += 1
        m.n[RAM] += m.t[SIZE, t]


def free(m: Machine, t: int) -> None:
    """Give the RAM of ``t`` back."""
    step(m, FREE, t)
    m.t[PRESENT, t] = 0
    last = m.t[RAM_LIST, m.n[IN_RAM] - 1]
    m.t[RAM_LIST, m.t[RAM_PLACE, t]] = last
    m.t[RAM_PLACE, last] = m.t[RAM_PLACE, t]
    m.n[IN_RAM] -= 1
    m.n[RAM] -= m.t[SIZE, t]


def page_out(m: Machine, t: int) -> None:
    """Write ``t``."""
    if not may_page_out(m, t):
        m.n[FAILED] = 1
        return
    step(m, PAGE_OUT, t)
    spend(m, m.x, OUT_COST, t)
    m.t[STORED, t] = 1
    m.n[ROOM] -= m.t[STORED_SIZE, t]
    if m.t[OWES, t] == 1 and not updates_ahead(m, t):
        m.t[OWES, t] = 0
        m.n[OWED] -= m.t[STORED_SIZE, t]


def hold(m: Machine, t: int, need: int) -> None:
    """Keep ``t`` in RAM, or able to come back, until op ``need``."""
    if m.t[HELD_UNTIL, t] < need and need < m.n[OPS]:
        k = m.n[HELD]
        if k >= m.w.shape[1]:
            m.n[FAILED] = 1
            return
        m.t[HELD_UNTIL, t] = need
        m.w[RELEASE_ITEM, k] = t
        m.w[RELEASE_NEXT, k] = m.o[RELEASE_HEAD, need]
        m.o[RELEASE_HEAD, need] = k
        m.n[HELD] = k + 1


def store(m: Machine, t: int) -> bool:
    """Write ``t`` so that it can come back; whether it may."""
    if not may_page_out(m, t) or m.x[IN_COST, t] == math.inf:
        return False
    page_out(m, t)
    return True


def rely(m: Machine, t: int) -> bool:
    """Hold what ``t`` can be remade from until its next use; whether it can be."""
    if m.t[PROTECTED, t] > 0 or (m.t[OWES, t] == 1 and not has_use(m, t)):
        return False
    need = horizon(m, t)
    m.n[WALKS] += 1
    walk = m.n[WALKS]
    top, leaves = 1, 0
    m.w[STACK, 0] = t
    while top:
        top -= 1
        c = m.w[STACK, top]
        if c != t and (m.t[PRESENT, c] == 1 or readable(m, c)):
            m.w[LEAVES, leaves] = c
            leaves += 1
            continue
        op = m.t[PRODUCER, c]
        if not may_rerun(m, op, need):
            return False
        if m.o[SEEN, op] != walk:
            m.o[SEEN, op] = walk
            for k in range(m.o[RERUNS, op], m.o[RERUNS_END, op]):
                m.w[STACK, top] = m.flat[k]
                top += 1
    for k in range(leaves):
        hold(m, m.w[LEAVES, k], need)
    return True


def drop(m: Machine, t: int, way: int) -> bool:
    """Give the RAM of ``t`` back so that it can return; whether it can."""
    if not readable(m, t):
        if m.t[OWES, t] == 1 and not updates_ahead(m, t):
            way = PAGE
        if way == CHEAPER:
            way = PAGE if page_price(m, t) <= remake_price(m, t) else REMAKE
        done = (store(m, t) or rely(m, t)) if way == PAGE else (rely(m, t) or store(m, t))
        if not done:
            return False
    m.g[ABSENT, gap_of(m, t)] = 1
    free(m, t)
    return True


def value(m: Machine, t: int) -> float:
    """Priority of dropping ``t``: bytes times ops to its next need per joule of coming back, by class."""
    need = next_need(m, t)
    n = m.n[OPS]
    until = float(min(need, n + 1) - m.n[POSITION] + 1)
    gap = gap_of(m, t)
    if math.isnan(m.x[PRICE, t]):
        way, price = m.g[WAY, gap], math.inf
        if way != REMAKE:
            price = page_price(m, t)
        if way != PAGE or price == math.inf:
            price = min(price, remake_price(m, t))
        m.x[PRICE, t] = price
    worth = m.t[SIZE, t] * until / (m.x[PRICE, t] ** m.a[BIAS] + 1e-30)
    if m.g[MARK, gap] == DROP:
        return float(worth * 1e60)
    return float(worth * 1e-60 if m.g[MARK, gap] == KEEP else worth)


def make_room(m: Machine, new_bytes: int) -> None:
    """Drop tensors until ``new_bytes`` more fit."""
    if m.n[RAM] + new_bytes <= m.n[BUDGET] or m.n[FAILED] == 1:
        return
    for k in range(m.n[IN_RAM]):
        m.t[HOPELESS, m.t[RAM_LIST, k]] = 0
        m.x[SCORE, m.t[RAM_LIST, k]] = math.nan
    while m.n[RAM] + new_bytes > m.n[BUDGET]:
        best, most = -1, -1.0
        for k in range(m.n[IN_RAM]):
            t = m.t[RAM_LIST, k]
            barred = m.t[HOPELESS, t] or m.t[PINNED, t] or m.t[PROTECTED, t] > 0 or m.t[KEPT, t]
            if m.t[SIZE, t] == 0 or barred:
                continue
            if math.isnan(m.x[SCORE, t]):
                m.x[SCORE, t] = value(m, t)
            if m.x[SCORE, t] > most:
                best, most = t, m.x[SCORE, t]
        way = CHEAPER
        if best >= 0:
            way = m.g[WAY, gap_of(m, best)]
        else:  # what the recomputation under way needs again later
            for k in range(m.n[IN_RAM]):
                t = m.t[RAM_LIST, k]
                if m.t[PROTECTED, t] > 0 and not m.t[PINNED, t] and not m.t[HOPELESS, t]:
                    best, way = t, PAGE
                    break
        if best < 0:
            m.n[FAILED] = 1
            return
        if not drop(m, best, way):
            m.t[HOPELESS, best] = 1
        if m.n[FAILED] == 1:
            return


def settle(m: Machine, t: int) -> None:
    """After a use: free ``t`` if nothing needs it any more."""
    m.x[PRICE, t] = math.nan
    if m.t[PRESENT, t] == 0 or m.t[PROTECTED, t] > 0 or m.t[PINNED, t]:
        return
    if next_need(m, t) == NEVER:
        if m.t[OWES, t] == 1:
            page_out(m, t)
        free(m, t)


def page_in(m: Machine, t: int) -> None:
    """Read ``t``, unless it is in RAM."""
    if m.t[PRESENT, t] == 1 or m.n[FAILED] == 1:
        return
    if not readable(m, t):
        m.n[FAILED] = 1
        return
    make_room(m, m.t[SIZE, t])
    step(m, PAGE_IN, t)
    spend(m, m.x, IN_COST, t)
    appear(m, t)
    m.t[PINNED, t] = 1


def unpin(m: Machine) -> None:
    """Nothing is in use any more."""
    for k in range(m.n[IN_RAM]):
        m.t[PINNED, m.t[RAM_LIST, k]] = 0


def run_outputs(m: Machine, op: int) -> None:
    """Make room for the outputs of ``op`` and run it."""
    new = m.o[WORKSPACE, op]
    for k in range(m.o[OUTPUTS, op], m.o[OUTPUTS_END, op]):
        new += m.t[SIZE, m.flat[k]]
    make_room(m, new)
    step(m, COMPUTE, op)
    for k in range(m.o[OUTPUTS, op], m.o[OUTPUTS_END, op]):
        appear(m, m.flat[k])


def rerun(m: Machine, op: int) -> None:
    """Run ``op`` again."""
    for k in range(m.o[RERUNS, op], m.o[RERUNS_END, op]):
        if m.t[PRESENT, m.flat[k]] == 1:
            m.t[PINNED, m.flat[k]] = 1
    for k in range(m.o[RERUNS, op], m.o[RERUNS_END, op]):
        page_in(m, m.flat[k])
    if m.n[FAILED] == 1:
        return
    for k in range(m.o[OUTPUTS, op], m.o[OUTPUTS_END, op]):
        if m.t[PRESENT, m.flat[k]] == 1:
            free(m, m.flat[k])
    run_outputs(m, op)
    spend(m, m.y, 0, op)
    unpin(m)
    for k in range(m.o[RERUNS, op], m.o[RERUNS_END, op]):
        m.t[PROTECTED, m.flat[k]] -= 1
    for k in range(m.o[RERUNS, op], m.o[RERUNS_END, op]):
        settle(m, m.flat[k])
    for k in range(m.o[OUTPUTS, op], m.o[OUTPUTS_END, op]):
        settle(m, m.flat[k])


def obtain(m: Machine, needed: Ints) -> None:
    """Bring ``needed`` into RAM, all at once, and pin them."""
    missing = 0
    for t in needed:
        missing += 1 - m.t[PRESENT, t]
    if missing:
        m.n[WALKS] += 1
        walk = m.n[WALKS]
        top, count = 0, 0
        for t in needed:
            m.w[STACK, top] = t
            top += 1
        while top:
            top -= 1
            c = m.w[STACK, top]
            op = m.t[PRODUCER, c]
            if m.t[PRESENT, c] == 1 or (op >= 0 and m.o[SEEN, op] == walk):
                continue
            if readable(m, c):
                cheap = may_rerun(m, op, m.n[POSITION]) and m.y[0, op] < m.x[IN_COST, c]
                if cheap:
                    for k in range(m.o[RERUNS, op], m.o[RERUNS_END, op]):
                        cheap = cheap and m.t[PRESENT, m.flat[k]] == 1
                if not cheap:
                    continue
            if not may_rerun(m, op, m.n[POSITION]):
                m.n[FAILED] = 1
                return
            m.o[SEEN, op] = walk
            m.o[OPS_AGAIN, count] = op
            count += 1
            for k in range(m.o[RERUNS, op], m.o[RERUNS_END, op]):
                m.w[STACK, top] = m.flat[k]
                top += 1
        again = np.sort(m.o[OPS_AGAIN, :count])
        for t in needed:
            m.t[PROTECTED, t] += 1
        for op in again:
            for k in range(m.o[RERUNS, op], m.o[RERUNS_END, op]):
                m.t[PROTECTED, m.flat[k]] += 1
        for op in again:
            rerun(m, op)
            if m.n[FAILED] == 1:
                return
        for t in needed:
            m.t[PROTECTED, t] = 0
    for t in needed:
        if m.t[PRESENT, t] == 1:
            m.t[PINNED, t] = 1
    for t in needed:
        page_in(m, t)


def begin(m: Machine, most: float) -> None:
    """Set RAM and storage to the step's start, as the homes are chosen."""
    for row in (PRESENT, STORED, OWES, PINNED, PROTECTED):
        m.t[row, :] = 0
    m.t[HELD_UNTIL, :] = -1
    m.g[ABSENT, :] = 0
    m.x[PRICE, :] = math.nan
    m.o[RELEASE_HEAD, :] = -1
    m.n[POSITION:WALKS] = 0
    m.a[:BIAS] = 0.0
    m.a[MOST] = most
    m.a[SECONDS] = m.a[BASE_SECONDS]
    in_storage = 0
    for t in range(m.n[TENSORS]):
        m.t[USE, t] = m.t[USES, t]
        start, end, must = m.t[START, t], m.t[END, t], m.t[MUST_MOVE, t]
        if m.t[CHOSEN, t] > 0:
            changes = m.t[CHOSEN, t] == 2
            if m.t[HOME, t] == 1:
                start, end, must = 2, (2 if changes else 0), 1
            else:
                start, end, must = (1 if changes else 3), 1, 0
        m.t[ENDS_IN_RAM, t] = end & 1
        m.t[MOVABLE, t] = 1 if must else m.t[MAY_MOVE, t]
        if start & 1:
            appear(m, t)
        if start & 2:
            m.t[STORED, t] = 1
            in_storage += m.t[STORED_SIZE, t]
        if end & 2:
            m.t[OWES, t] = 1 if m.t[STORED, t] == 0 or m.t[LAST_UPDATE, t] >= 0 else 0
            m.n[OWED] += m.t[STORED_SIZE, t] * m.t[OWES, t]
    m.n[ROOM] = min(m.n[WRITABLE], m.n[CAPACITY] - in_storage)
    if m.n[RAM] > m.n[BUDGET]:
        m.n[FAILED] = 1


def decode(m: Machine, most: float) -> float:
    """Joules above running every op once, of the schedule of all gaps; infinite: none below ``most``."""
    begin(m, most)
    n = m.n[OPS]
    for t in range(m.n[TENSORS]):
        if m.t[PRESENT, t] == 1 and m.n[FAILED] == 0:
            settle(m, t)
    for op in range(n):
        if m.n[FAILED] == 1:
            return math.inf
        obtain(m, m.flat[m.o[INPUTS, op] : m.o[INPUTS_END, op]])
        run_outputs(m, op)
        if m.n[FAILED] == 1:
            return math.inf
        m.n[POSITION] = op + 1
        for k in range(m.o[UPDATES, op], m.o[UPDATES_END, op]):
            m.t[STORED, m.flat[k]] = 0
        unpin(m)
        for k in range(m.o[INPUTS, op], m.o[INPUTS_END, op]):
            settle(m, m.flat[k])
        for k in range(m.o[OUTPUTS, op], m.o[OUTPUTS_END, op]):
            settle(m, m.flat[k])
        k = m.o[RELEASE_HEAD, op]
        while k >= 0:
            settle(m, m.w[RELEASE_ITEM, k])
            k = m.w[RELEASE_NEXT, k]
    if m.n[FAILED] == 0:
        at_end = np.flatnonzero(m.t[ENDS_IN_RAM])
        obtain(m, at_end)
        for t in range(m.n[TENSORS]):
            if m.t[OWES, t] == 1 and m.n[FAILED] == 0:
                page_out(m, t)
    return math.inf if m.n[FAILED] == 1 else m.a[SPENT]
