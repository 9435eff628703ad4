"""The oracle against a search so plain that it hardly can be wrong, on problems of two to four ops."""

from __future__ import annotations

import dataclasses
import heapq
import itertools

import pytest
from helpers.oracle import least_joules, least_ram_bytes
from helpers.pace import with_slow
from helpers.random_problems import (
    FEATURES,
    floor_bytes,
    keep_bytes,
    mixed_problem,
    random_limits,
    random_pins,
    random_problem,
)

from poet.errors import InvalidSchedule
from poet.problem import Limits, Pins, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.pins import permitted
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule, Step
from poet.problem.simulator import simulate


def by_trying(of: Problem, limits: Limits, *, most_reruns: int = 2, longest: int = 14) -> float | None:
    """Least joules over all schedules up to a length, by asking the judge about every prefix.

    The problem's end conditions are stripped for the prefixes and asked for of whole schedules.
    """
    steps: list[Step] = [Compute(op.name) for op in of.ops]
    steps += [kind(tensor.name) for tensor in of.tensors for kind in (Free, PageOut, PageIn)]
    order = itertools.count()
    waiting: list[tuple[float, int, Schedule]] = [(0.0, next(order), ())]
    seen: set[tuple[object, ...]] = set()
    while waiting:
        joules, _, schedule = heapq.heappop(waiting)
        if complete(of, schedule, limits):
            return joules
        for step in steps:
            extended = (*schedule, step)
            runs = [s.op for s in extended if isinstance(s, Compute)]
            firsts = list(dict.fromkeys(runs))
            if len(extended) > longest or len(runs) > len(firsts) + most_reruns:
                continue
            if firsts != [op.name for op in of.ops[: len(firsts)]]:
                continue
            cost = prefix_joules(of, extended, limits) if keeps_pins(of, extended, limits) else None
            state = (*what_is_where(of, extended), held_idle(of, extended, limits))
            if cost is not None and state not in seen:
                seen.add(state)
                heapq.heappush(waiting, (cost, next(order), extended))
    return None


def complete(of: Problem, schedule: Schedule, limits: Limits) -> bool:
    try:
        simulate(of, schedule, limits)
    except InvalidSchedule:
        return False
    return True


def prefix_joules(of: Problem, schedule: Schedule, limits: Limits) -> float | None:
    ran = {step.op for step in schedule if isinstance(step, Compute)}
    tensors = []
    for tensor in of.tensors:  # without its end a tensor loses the right to move that the end gives it
        moves = limits.paging or Place.STORAGE in (tensor.initially, tensor.finally_)
        free = dataclasses.replace(tensor, finally_=None)
        tensors.append(free if moves else dataclasses.replace(free, page_in=None, page_out=None))
    limits = dataclasses.replace(limits, paging=True, pins=Pins())
    ops = tuple(op for op in of.ops if op.name in ran)
    stub = dataclasses.replace(of, ops=ops, tensors=tuple(tensors))
    produced = {name for op in of.ops for name in op.outputs}
    absent = produced - {name for op in stub.ops for name in op.outputs}
    kept = tuple(tensor for tensor in stub.tensors if tensor.name not in absent)
    if any(not isinstance(step, Compute) and step.tensor in absent for step in schedule):
        return None
    try:
        return simulate(dataclasses.replace(stub, tensors=kept), schedule, limits).joules
    except InvalidSchedule:
        return None


def keeps_pins(of: Problem, schedule: Schedule, limits: Limits) -> bool:
    """Whether a prefix breaks no pin yet."""
    try:
        simulate(of, schedule, Limits(pins=limits.pins))
    except InvalidSchedule as verdict:
        return verdict.rule != "pin"
    return True


def held_idle(of: Problem, schedule: Schedule, limits: Limits) -> frozenset[tuple[str, bool]]:
    """The pinned tensors used since they came to RAM, and whether a first run left them alone since."""
    dropped = {*limits.pins.page, *limits.pins.recompute}
    touches = {op.name: {*op.inputs, *op.rerun_inputs, *op.outputs} for op in of.ops}
    produced = {name for op in of.ops for name in op.outputs}
    sources = [tensor for tensor in of.tensors if tensor.name not in produced]
    state = {t.name: False for t in sources if t.initially is not Place.STORAGE and t.name in dropped}
    ran: set[str] = set()
    for step in schedule:
        if isinstance(step, Compute):
            touched = touches[step.op] & dropped
            if step.op not in ran:
                state.update(dict.fromkeys(state.keys() - touched, True))
            state.update(dict.fromkeys(touched, False))
            ran.add(step.op)
        elif isinstance(step, Free):
            state.pop(step.tensor, None)
    return frozenset(state.items())


def what_is_where(of: Problem, schedule: Schedule) -> tuple[object, ...]:
    """All that matters of a prefix besides its joules; contents are counted by the updates so far."""
    outputs = {op.name: op.outputs for op in of.ops}
    updates = {op.name: op.updates for op in of.ops}
    produced = {name for op in of.ops for name in op.outputs}
    sources = [tensor for tensor in of.tensors if tensor.name not in produced]
    ram = {tensor.name for tensor in sources if tensor.initially is not Place.STORAGE}
    written: list[tuple[str, int]] = []
    version = {tensor.name: 0 for tensor in of.tensors}
    ran: set[str] = set()
    for step in schedule:
        if isinstance(step, Compute):
            ram |= set(outputs[step.op])
            for name in updates[step.op] if step.op not in ran else ():
                version[name] += 1
            ran.add(step.op)
        elif isinstance(step, Free):
            ram.discard(step.tensor)
        elif isinstance(step, PageIn):
            ram.add(step.tensor)
        else:
            written.append((step.tensor, version[step.tensor]))
    return (frozenset(ran), frozenset(ram), frozenset(written))


@pytest.mark.parametrize("seed", with_slow(range(8), {0, 2}))
def test_with_pins_it_equals_the_plain_search(seed: int) -> None:
    features = [name for index, name in enumerate(TIMELESS) if (seed * 7 + index * 5) % 11 < 3]
    of = random_problem(seed, ops=3, features=features)
    limits = dataclasses.replace(random_limits(of, seed), written_budget_bytes=None)
    pinned = random_pins(of, limits, seed)
    allowed = permitted(of, pinned)
    found, expected = least_joules(allowed, pinned), by_trying(allowed, pinned, longest=13)
    if found is None or expected is None:
        assert found is None
        assert expected is None
        return
    judged = simulate(of, found, pinned)
    assert judged.joules == pytest.approx(expected, rel=1e-9)
    free = least_joules(of, limits)
    assert free is not None
    assert simulate(of, free).joules <= judged.joules * (1 + 1e-12)


# A deadline and background transfers make time part of what matters; the plain search knows none.
TIMELESS = [name for name in FEATURES if name not in ("background",)]


@pytest.mark.parametrize("seed", with_slow(range(60), {11, 13, 15, *range(20, 60)}))
def test_equals_the_plain_search(seed: int) -> None:
    features = [name for index, name in enumerate(TIMELESS) if (seed * 7 + index * 5) % 11 < 4]
    of = random_problem(seed, ops=2 + seed % 2, features=features)
    limits = dataclasses.replace(random_limits(of, seed), written_budget_bytes=None)
    found = least_joules(of, limits)
    expected = by_trying(of, limits)
    if found is None:
        assert expected is None
    else:
        assert expected == pytest.approx(simulate(of, found, limits).joules, rel=1e-9)


def chain() -> Problem:
    """x → a → b → s → c, where c is made of a, b and s; nobody reads y."""
    cheap, dear = Transfer(1.0, 0.1), Transfer(10.0, 3.0)
    sizes = {"x": 3, "a": 4, "b": 8, "s": 4, "c": 4}
    tensors = [Tensor(name, size, cheap, dear) for name, size in sizes.items()]
    reads = {"a": "x", "b": "a", "s": "b", "c": "abs"}
    ops = [ProblemOp(name.upper(), tuple(read), (name,), 1.0, 1.0) for name, read in reads.items()]
    return Problem("chain", (*tensors, Tensor("y", 4, cheap, cheap)), tuple(ops))


def test_the_least_ram_is_that_of_the_largest_op() -> None:
    assert least_ram_bytes(chain(), Limits()) == 20  # a, b, s and c
    kept = least_joules(chain(), Limits(ram_budget_bytes=20))
    assert kept is not None
    assert simulate(chain(), kept).joules == 4.0
    assert least_joules(chain(), Limits(ram_budget_bytes=19)) is None


def test_chooses_by_price() -> None:
    """A workspace of 9 bytes pushes a out while S runs: recomputed for 1 J, or for 0.05 J paged."""
    of = chain()
    ops = tuple(dataclasses.replace(op, workspace_bytes=9 * (op.name == "S")) for op in of.ops)
    squeezed = dataclasses.replace(of, ops=ops)
    limits = Limits(ram_budget_bytes=24)
    remade = least_joules(squeezed, limits)
    assert remade is not None
    assert simulate(squeezed, remade).recomputed_runs == 1
    assert simulate(squeezed, remade).joules == pytest.approx(5.0)
    flat = tuple(
        dataclasses.replace(t, page_in=Transfer(1, 0.02), page_out=Transfer(1, 0.03)) for t in of.tensors
    )
    paged = least_joules(dataclasses.replace(squeezed, tensors=flat), limits)
    assert paged is not None
    assert simulate(dataclasses.replace(squeezed, tensors=flat), paged).joules == pytest.approx(4.05)


def trade() -> Problem:
    """Paging a is cheaper in joules than recomputing it, but slower."""
    page = Transfer(5.0, 0.1)
    return Problem(
        "trade",
        (Tensor("x", 1), Tensor("a", 6, page, page), Tensor("b", 6), Tensor("c", 1)),
        (
            ProblemOp("A", ("x",), ("a",), 1.0, 1.0),
            ProblemOp("B", ("x",), ("b",), 1.0, 1.0),
            ProblemOp("C", ("b", "x"), ("c",), 1.0, 1.0, workspace_bytes=1),
            ProblemOp("D", ("a", "c"), (), 1.0, 1.0),
        ),
    )


def test_a_deadline_decides_between_joules_and_seconds() -> None:
    of = trade()
    patient = least_joules(of, Limits(ram_budget_bytes=10))
    hasty = least_joules(of, Limits(ram_budget_bytes=10, deadline_seconds=6.0))
    assert patient is not None
    assert hasty is not None
    assert simulate(of, patient).joules == pytest.approx(4.2)
    assert simulate(of, patient).seconds == pytest.approx(14.0)
    assert simulate(of, hasty).joules == pytest.approx(5.0)
    assert simulate(of, hasty).seconds == pytest.approx(5.0)
    assert least_joules(of, Limits(ram_budget_bytes=10, deadline_seconds=4.9)) is None


def test_background_storage_hides_what_memory_lets_it() -> None:
    """With room for a and b together, a is written while B runs: 13 s instead of 14 s."""
    of = trade()
    beside = dataclasses.replace(of, background_storage=True)
    limits = Limits(ram_budget_bytes=13, deadline_seconds=13.0)
    blocking, hidden = least_joules(of, limits), least_joules(beside, limits)
    assert blocking is not None
    assert hidden is not None
    assert simulate(of, blocking).joules == pytest.approx(5.0)
    assert simulate(beside, hidden).joules == pytest.approx(4.2)
    assert simulate(beside, hidden).seconds == pytest.approx(13.0)
    narrow = least_joules(beside, dataclasses.replace(limits, ram_budget_bytes=12))
    assert narrow is not None  # a must be gone before B begins
    assert simulate(beside, narrow).joules == pytest.approx(5.0)


@pytest.mark.parametrize("seed", with_slow(range(150), range(40, 150)))
def test_answers_are_valid_and_tight(seed: int) -> None:
    of = mixed_problem(seed, largest=5 if seed % 3 == 0 else 6)
    limits = random_limits(of, seed, deadline=seed % 3 == 0)
    found = least_joules(of, limits)
    if found is None:
        return
    trace = simulate(of, found, limits)
    assert trace.joules >= of.compute_joules * (1 - 1e-12)
    more = dataclasses.replace(limits, ram_budget_bytes=keep_bytes(of))
    roomy = least_joules(of, more)
    assert roomy is not None
    assert simulate(of, roomy, more).joules <= trace.joules * (1 + 1e-12)


@pytest.mark.parametrize("seed", with_slow(range(40), range(28, 40)))
def test_least_ram(seed: int) -> None:
    of = mixed_problem(seed, largest=5)
    least = least_ram_bytes(of, Limits())
    if least is None:
        assert least_joules(of, Limits()) is None
        return
    assert least >= floor_bytes(of)
    if all(t.page_in and t.page_out for t in of.tensors) and of.storage_capacity_bytes is None:
        assert least == floor_bytes(of)  # with paging, the largest op is all that counts
    assert least_joules(of, Limits(ram_budget_bytes=least)) is not None
    assert least_joules(of, Limits(ram_budget_bytes=least - 1)) is None


def test_a_tensor_not_to_be_held_idle_may_come_back_before_it_would_be() -> None:
    """x is there at the start and A leaves it alone; read back while A runs, it is there in time."""
    quick, slow = Transfer(0.25, 1.0), Transfer(1.0, 1.0)
    tensors = (Tensor("x", 4, slow, quick), Tensor("a", 4, slow, quick), Tensor("b", 4, slow, quick))
    ops = (ProblemOp("A", (), ("a",), 1.5, 1.0), ProblemOp("B", ("x", "a"), ("b",), 1.0, 1.0))
    of = Problem("early", tensors, ops, background_storage=True)
    limits = Limits(deadline_seconds=2.75, pins=Pins(page=("x",)))
    found = least_joules(of, limits)
    assert found is not None
    assert simulate(of, found, limits).joules == 4.0
    assert least_joules(of, dataclasses.replace(limits, deadline_seconds=2.5)) is None
