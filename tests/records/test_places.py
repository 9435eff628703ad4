"""The judge of moves within an arena, and the search for them."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from helpers import hand_net
from helpers.random_problems import random_problem
from helpers.schedules import keep_everything, random_schedule
from helpers.shuffled import movable, shuffled

from poet.errors import InvalidSchedule, PlanError
from poet.memory.compacting_pass import Pass
from poet.memory.compaction import compact
from poet.memory.demand import BEFORE, Demand, MemoryRequest, Move, demand_of, replayed
from poet.memory.layout import Block, Layout, check_layout, lay_out, lower_bound_bytes
from poet.plans.plan_parts import Arena
from poet.plans.training_plan import Plan
from poet.problem import Limits
from poet.problem.homes import decided
from poet.problem.simulator import judge


def demand(seed: int, *, share: float = 0.5) -> Demand:
    """Of a random schedule with tensors of uneven sizes."""
    problem = random_problem(
        seed, ops=8, features=("outputs", "workspace", "updates", "initially", "finally")
    )
    generator = random.Random(seed)
    problem = replace(
        problem, tensors=tuple(replace(item, bytes=generator.randint(1, 99)) for item in problem.tensors)
    )
    schedule = random_schedule(problem, seed, share=share)
    return demand_of(decided(problem, schedule), schedule)


def bytes_held(of: Demand, arena: Arena) -> None:
    """The plainest judge: a list with a cell for each byte of the arena, tick by tick."""
    cells: list[int | None] = [None] * arena.size_bytes
    now = list(arena.offsets_bytes)

    def held(number: int) -> range:
        return range(now[number], now[number] + of.blocks[number].size_bytes)

    def take(number: int) -> None:
        for cell in held(number):
            assert cells[cell] is None
            cells[cell] = number

    def give_up(number: int) -> None:
        for cell in held(number):
            assert cells[cell] == number
            cells[cell] = None

    for tick in range(of.begins[-1] + 1):
        for move in arena.moves:
            if of.begins[move.step] == tick:
                is_there = any(born < tick <= died for born, died in of.blocks[move.block].spans)
                if is_there:
                    give_up(move.block)
                now[move.block] = move.to_bytes
                if is_there:
                    take(move.block)
        for number, block in enumerate(of.blocks):
            if any(born == tick for born, _ in block.spans):
                take(number)
        for number, block in enumerate(of.blocks):
            if any(died == tick for _, died in block.spans):
                give_up(number)


# --- the judge ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_without_moves_both_judges_agree(seed: int) -> None:
    of, generator = demand(seed), random.Random(seed)
    layout = lay_out(of.blocks, time_limit_seconds=0.05)
    assert replayed(of, layout.offsets_bytes, layout.arena_bytes).moves == ()
    verdicts = set()
    for _ in range(60):
        offsets = list(layout.offsets_bytes)
        offsets[generator.randrange(len(offsets))] = generator.randrange(layout.arena_bytes)
        changed = Layout(layout.blocks, tuple(offsets), layout.arena_bytes, 0)
        found = [_passes(check_layout, changed), _passes(replayed, of, offsets, layout.arena_bytes)]
        assert found[0] == found[1]
        verdicts.add(found[0])
    assert False in verdicts


def _passes(check: Callable[..., object], *args: object) -> bool:
    try:
        check(*args)
    except InvalidSchedule:
        return False
    return True


@pytest.mark.parametrize("seed", range(6))
def test_every_byte_is_accounted_for(seed: int) -> None:
    of = demand(seed)
    arena = shuffled(of, seed)
    bytes_held(of, arena)
    places = replayed(of, arena.offsets_bytes, arena.size_bytes, arena.moves)
    assert places.moves
    assert len(places.requests_bytes) == len(of.requests)


@pytest.mark.parametrize("seed", range(6))
def test_a_move_that_is_left_out_or_changed_is_noticed_where_it_matters(seed: int) -> None:
    """Whatever the plain judge of bytes refuses, this one does, and the other way round."""
    of, generator = demand(seed), random.Random(seed)
    arena = shuffled(of, seed)
    found = []
    for _ in range(30):
        moves = list(arena.moves)
        place = generator.randrange(len(moves))
        if generator.random() < 0.5:
            del moves[place]
        else:
            moves[place] = replace(moves[place], to_bytes=generator.randrange(arena.size_bytes))
        try:
            replayed(of, arena.offsets_bytes, arena.size_bytes, moves)
            found.append(True)
        except InvalidSchedule as error:
            found.append(False)
            if "does not end the step" in str(error):
                continue
        try:
            bytes_held(of, replace(arena, moves=tuple(moves)))
        except (AssertionError, IndexError):
            assert not found[-1]
        else:
            assert found[-1]
    assert False in found


def _plan() -> Plan:
    what = hand_net.graph()
    of = movable(hand_net.problem(what))
    plan = hand_net.plan(of, what, keep_everything(of))
    arena = shuffled(plan.demand, 2)
    places = replayed(plan.demand, arena.offsets_bytes, arena.size_bytes, arena.moves)
    trace = judge(plan.problem, plan.schedule, Limits(), places.moved())
    told = replace(plan.prediction, seconds=trace.seconds, joules=trace.joules)
    limits = Limits(ram_budget_bytes=arena.size_bytes)
    return replace(plan, request=replace(plan.request, limits=limits), arena=arena, prediction=told)


def test_a_plan_with_moves_is_read_as_it_was_written() -> None:
    plan = _plan()
    assert plan.trace.moves > 5
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_strangers_moves_are_judged() -> None:
    plan = _plan()
    assert plan.arena is not None
    first = plan.arena.moves[0]
    temporary = len(plan.demand.blocks)
    standing = plan.demand.standing
    ends = [
        at + block.size_bytes for at, block in zip(plan.arena.offsets_bytes, plan.demand.blocks, strict=True)
    ]
    free = max(end for number, end in enumerate(ends) if number not in standing)
    away = Move(len(plan.schedule), standing[0], free)
    changes = {
        "a move stands before no step": [replace(first, step=1 << 40)],
        "not in the order": [*plan.arena.moves[::-1]],
        "of no block": [replace(first, block=temporary)],
        "leaves the arena": [replace(first, to_bytes=1 << 60)],
        "does not end the step where it began it": [*plan.arena.moves, away],
        "is not at a multiple of 64": [replace(first, to_bytes=first.to_bytes + 1)],
        "the predictions are not": plan.arena.moves[:0],
    }
    for complaint, moves in changes.items():
        data = json.loads(json.dumps(plan.to_json()))
        told = [{"step": item.step, "block": item.block, "to_bytes": item.to_bytes} for item in moves]
        data["arena"]["moves"] = told
        with pytest.raises(PlanError, match=complaint):
            Plan.from_json(data)


def test_what_is_no_tensor_must_stay_at_its_place() -> None:
    of = demand(1)
    arena = shuffled(of, 1)
    workspaces = [number for number, block in enumerate(of.blocks) if block.tensor is None]
    assert workspaces
    for number in workspaces:
        with pytest.raises(InvalidSchedule, match="must stay at its place"):
            replayed(of, arena.offsets_bytes, arena.size_bytes, [Move(0, number, 0)])


def test_what_stands_throughout_may_move_and_comes_back() -> None:
    of = _plan().demand
    arena = _plan().arena
    assert arena is not None
    number, steps = of.standing[0], len(of.begins) - 1
    ends = [at + block.size_bytes for at, block in zip(arena.offsets_bytes, of.blocks, strict=True)]
    free = max(end for other, end in enumerate(ends) if other not in of.standing)
    there, back = Move(steps, number, free), Move(steps, number, arena.offsets_bytes[number])
    moves = (*arena.moves, there, back)
    bytes_held(of, replace(arena, moves=moves))
    assert replayed(of, arena.offsets_bytes, arena.size_bytes, moves).moves[-1].to_bytes == back.to_bytes
    with pytest.raises(InvalidSchedule, match="does not end the step where it began it"):
        replayed(of, arena.offsets_bytes, arena.size_bytes, moves[:-1])


def test_what_has_no_price_must_stay_at_its_place() -> None:
    problem = random_problem(1, ops=8, features=("outputs",))
    schedule = random_schedule(problem, 1)
    of = demand_of(decided(problem, schedule), schedule)
    arena = shuffled(of, 1)
    moved = replayed(of, arena.offsets_bytes, arena.size_bytes, arena.moves).moved()
    with pytest.raises(InvalidSchedule, match="must stay at its place") as error:
        judge(decided(problem, schedule), schedule, moves=moved)
    assert error.value.rule == "move"
    with pytest.raises(InvalidSchedule, match="is moved but not in RAM"):
        judge(decided(movable(problem), schedule), schedule, moves={0: (problem.ops[-1].outputs[0],)})


# --- the search ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_an_arena_is_no_larger_than_the_peak(seed: int) -> None:
    """Also without a layout as a guide, and where nothing fits at first."""
    of = demand(seed, share=0.7)
    layout = lay_out(of.blocks, time_limit_seconds=0.05)
    least = layout.lower_bound_bytes
    for guide in (layout.offsets_bytes, ()):
        found = compact(of, least, guide_bytes=guide, time_limit_seconds=0.02, seed=seed)
        if found is None:  # what begins and ends in RAM leaves no room to bring it back
            assert any(len(block.spans) > 1 for block in of.blocks)
            continue
        assert found.arena_bytes <= least
        bytes_held(of, Arena(found.arena_bytes, found.offsets_bytes, found.moves))
    assert compact(of, least - 1, guide_bytes=layout.offsets_bytes, time_limit_seconds=0.02) is None


def in_blocks(seed: int) -> Demand:
    """Of random steps whose workspaces come one after the other, as those of an op in slices do."""
    generator = random.Random(seed)
    begins = [1]
    for _ in range(5):
        begins.append(begins[-1] + generator.choice([1, 6, 9]))
    blocks = []
    for number in range(14):
        first = generator.randrange(5)
        born = generator.randint(begins[first], begins[first + 1] - 1)
        died = begins[generator.randrange(first, 5) + 1] - 1
        name = f"tensor{number}"
        blocks.append(Block(name, name, generator.randint(1, 60), ((born, died),)))
    for begin, end in pairwise(begins):
        for _ in range(4 if end - begin > 1 else 0):
            born = generator.randrange(begin, end)
            died = min(end - 1, born + generator.randint(0, 3))
            blocks.append(Block(f"op at {begin}", None, generator.randint(1, 90), ((born, died),)))
    requests = tuple(MemoryRequest(0, block.size_bytes, number) for number, block in enumerate(blocks))
    return Demand(tuple(blocks), requests, (), tuple(begins))


@pytest.mark.parametrize("seed", [62, 85, 179, 183])
def test_workspaces_that_share_a_place_are_no_room(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """What one step needs one after the other may lie at one place, and is pushed against as a whole."""
    of = in_blocks(seed)
    least = lay_out(of.blocks, time_limit_seconds=0.0).lower_bound_bytes
    caplog.set_level(logging.INFO, "poet.memory.compaction")
    for more in range(0, 25, 5):
        found = compact(of, least + more, time_limit_seconds=0.0)
        if found is not None:
            bytes_held(of, Arena(found.arena_bytes, found.offsets_bytes, found.moves))
    assert not caplog.messages


def test_what_comes_back_finds_its_place_free_again() -> None:
    """Two tensors that each lie where the other is to end cannot change places in what is left of the RAM."""
    first = Block("", "first", 4, ((0, 1), (4, 7)))
    second = Block("", "second", 4, ((0, 1), (3, 7)))
    between = Block("", "between", 6, ((2, 3),))
    asked = ((BEFORE, 4, 0), (BEFORE, 4, 1), (1, 6, 2), (2, 4, 1), (3, 4, 0))
    requests = tuple(MemoryRequest(*request) for request in asked)
    of = Demand((first, second, between), requests, (), (1, 2, 3, 4, 5, 6, 7))
    wanted, costs = (0, 4, 4), (4.0, 4.0, 6.0)
    assert Pass(of, 10, costs, wanted, {}, None, clears_homes=False).run(math.inf) is None
    found = compact(of, 10, guide_bytes=wanted, time_limit_seconds=0.0)
    assert found is not None
    bytes_held(of, Arena(found.arena_bytes, found.offsets_bytes, found.moves))


def test_what_fits_at_fixed_places_is_not_moved() -> None:
    of = demand(3)
    layout = lay_out(of.blocks)
    found = compact(of, layout.arena_bytes, guide_bytes=layout.offsets_bytes)
    assert found is not None
    assert found.moves == ()


def test_what_must_not_be_moved_is_not() -> None:
    of = demand(5)
    least = lay_out(of.blocks).lower_bound_bytes
    found = compact(of, least, weights=lambda _: math.inf, time_limit_seconds=0.02)
    assert found is None or found.moves == ()


@pytest.mark.parametrize("seed", range(6))
def test_beside_another_step_what_lies_below_moves_and_comes_back(seed: int) -> None:
    """Some of what stands throughout lies among what changes, where the other step has left it."""
    of = demand(seed, share=0.3)
    begun = [n for n, block in enumerate(of.blocks) if min(block.spans)[0] == 0 and block.tensor is not None]
    kept = [n for n in begun if n in of.standing][::2]
    room = 2 * sum(block.size_bytes for block in of.blocks)
    fixed: dict[int, int] = {}
    above, at = room, 0
    for number in begun:
        size = of.blocks[number].size_bytes
        if number in kept:
            fixed[number], above = above, above + size
        else:
            fixed[number], at = at + 40, at + 40 + size  # gaps that are too small for most
    live = lower_bound_bytes(of.blocks) - (above - room)
    found = None
    for below in (max(at, live), max(at, live) + 20, room):
        shifted = {n: place - room + below if n in kept else place for n, place in fixed.items()}
        found = compact(of, below, fixed_bytes=shifted, time_limit_seconds=0.02, seed=seed)
        if found is None:
            continue
        size = below + above - room
        bytes_held(of, Arena(size, found.offsets_bytes, found.moves))
        replayed(of, found.offsets_bytes, size, found.moves)
        assert {n: found.offsets_bytes[n] for n in begun} == shifted
        assert not {move.block for move in found.moves}.intersection(kept)
        places = [*enumerate(found.offsets_bytes), *((move.block, move.to_bytes) for move in found.moves)]
        assert all(
            place + of.blocks[number].size_bytes <= below for number, place in places if number not in kept
        )
    assert found is not None
