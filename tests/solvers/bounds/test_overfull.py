"""What a walked step has no room for; and that a step with room for all that it needs is a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from helpers.pace import few_or_many
from helpers.random_problems import random_limits, random_problem

from poet.errors import InvalidSchedule
from poet.problem import Limits, Problem
from poet.schedule import Compute, Free, PageIn, PageOut, Step
from poet.simulator import simulate
from poet.solvers.bounds.followed import Followed, bits
from poet.solvers.bounds.overfull import Overfull, overfull, to_follow, waits
from poet.solvers.bounds.ram_paths import Moved, Paid, RamPath, cheapest
from poet.solvers.bounds.ram_program import RamProgram
from poet.solvers.instance.instance import Instance, instance_of
from poet.tuning import DEFAULT

MOST_JOULES = 100.0


def walked(instance: Instance, followed_bytes: int) -> tuple[RamProgram, RamPath | None]:
    """The cheapest step that may page all that is followed, for nothing, and nothing else."""
    budget = instance.limits.ram_budget_bytes or 0
    program = RamProgram(
        Followed(instance, followed_bytes, budget),
        most_joules=MOST_JOULES,
        most_arcs=10**6,
        parts=DEFAULT.copies.parts,
        finished=lambda: False,
    )
    program.count_in_steps(1e-6, 0)  # joules for residents' page-outs: less than any takes
    return program, cheapest(program, Paid((1 << len(program.of.followed)) - 1, 0, frozenset()))


def as_plan(instance: Instance, program: RamProgram, path: RamPath) -> Iterator[Step]:
    """The moves of a path, with each content freed where nothing needs it until it comes back."""
    contents, tasks = instance.contents, instance.tasks
    moves, after = list[tuple[Moved, set[int], set[int]]](), {c.number for c in contents if c.ends_in_ram}
    for move in reversed(path.moves):
        moves.append((move, set(after), set()))
        if move.task is None:
            after.discard(move.content or 0)
            continue
        task, first = tasks[move.task], move.task == move.stage
        moves[-1][2].update(task.outputs, task.updated if first else ())
        after = (after - moves[-1][2]) | set(task.reads if first else task.rerun_reads)
    pages = {program.of.followed[place].number for place in bits(path.paged)}
    there = {c.number for c in contents if c.starts_in_ram}
    copied = {c.number for c in contents if c.starts_stored}
    for content in sorted(pages & there - copied):
        yield PageOut(contents[content].tensor)
        copied.add(content)
    for gone in sorted(there - after):
        yield Free(contents[gone].tensor)
    there &= after
    for move, needed, made in reversed(moves):
        if move.content is not None:
            yield PageIn(contents[move.content].tensor)
            there.add(move.content)
        else:
            for content in sorted(made & there):
                yield Free(contents[content].tensor)
            yield Compute(tasks[move.task or 0].name)
            there |= made
        for content in sorted(pages & made - copied):
            yield PageOut(contents[content].tensor)
            copied.add(content)
        for gone in sorted(there - needed):
            yield Free(contents[gone].tensor)
        there &= needed


def fits(problem: Problem, limits: Limits, plan: list[Step]) -> bool:
    try:
        simulate(problem, tuple(plan), limits)
    except InvalidSchedule:
        return False
    return True


@few_or_many("seeds", range(60), range(60, 800))
def test_a_step_is_a_plan_where_nothing_has_no_room(seeds: range) -> None:
    """And none where something has: what is followed alone is freed to make room."""
    plans = lacking = 0
    for seed in seeds:
        problem = random_problem(seed, ops=6, features=("outputs", "workspace"))
        limits = random_limits(problem, seed)
        limits = Limits(ram_budget_bytes=limits.ram_budget_bytes)
        for followed_bytes in (1, 4, 7):
            instance = instance_of(problem, limits)
            program, path = walked(instance, followed_bytes)
            if path is None:
                continue
            found = overfull(instance, program, path)
            assert not found or followed_bytes > 1
            assert fits(problem, limits, [*as_plan(instance, program, path)]) == (not found), seed
            plans += not found
            lacking += bool(found)
    assert plans > len(seeds) / 2
    assert lacking > len(seeds) / 20


def lacks(lacking_bytes: int, *contents: int) -> Overfull:
    return Overfull(Moved(2, 2, None, 0), lacking_bytes, contents, {0: 21, 1: 11, 2: 3})


@pytest.mark.parametrize(
    ("found", "groups"),
    [
        ([], []),
        ([lacks(5, 0, 1)], [[0]]),  # either would do
        ([lacks(9, 0, 1)], [[1, 0]]),  # it takes both
        ([lacks(7, 0, 1), lacks(5, 1, 2)], [[0]]),  # the largest first
        ([lacks(2, 1, 2), lacks(5, 1)], [[1]]),  # one for both
        ([lacks(9, 1, 2), lacks(2, 2), lacks(9, 0, 2)], [[2], [1], [0]]),  # what lives shortly comes first
        ([lacks(20, 0, 1, 2)], []),  # nothing does
    ],
)
def test_what_is_followed_is_large_and_lives_shortly(found: list[Overfull], groups: list[list[int]]) -> None:
    always = to_follow(found, sizes=(8, 6, 3), lives={0: 20, 1: 10, 2: 2})
    assert [[*group] for group in always] == groups


def test_what_need_not_be_followed_always_is_from_where_it_has_no_room_to_its_next_read() -> None:
    found = [lacks(9, 1, 2), lacks(2, 2), lacks(9, 0, 2)]
    window = {0: frozenset(range(2, 22)), 1: frozenset(range(2, 12)), 2: frozenset((2, 3))}
    groups = to_follow(found, sizes=(8, 6, 3), lives={})
    assert groups == [{2: window[2]}, {1: window[1]}, {0: window[0]}]
    later = found[2]._replace(move=found[2].move._replace(stage=5))
    assert to_follow([*found[:2], later], sizes=(8, 6, 3), lives={})[2] == {
        0: frozenset(range(5, 22)), 2: frozenset()
    }  # fmt: skip


def test_a_resident_that_is_paid_for_waits_in_ram_where_no_page_in_is_charged() -> None:
    """One page-in is: of the longest wait, here until op 3; where a home is chosen, of the one before it."""
    problem = random_problem(3, ops=6)
    instance = instance_of(problem, Limits(ram_budget_bytes=20))
    source = next(c.number for c in instance.contents if c.starts_in_ram)
    touched: list[tuple[set[int], set[int]]] = [
        ({source} if n in (3, 4, 7) else set(), set()) for n in range(9)
    ]
    assert waits(instance, touched, {source}) == {5: {source}, 6: {source}}
    contents = tuple(dataclasses.replace(c, home=source) for c in instance.contents)
    at_home = dataclasses.replace(instance, contents=contents)
    assert waits(at_home, touched[4:] + touched[:4], {source}) == {
        place: {source} for place in (1, 2, 4, 5, 6, 7)
    }
    assert waits(instance, touched, set()) == {}
