"""What a cheapest step has no room for; and that a step with room for all that it needs is a plan."""

from __future__ import annotations

from collections.abc import Iterator

from helpers.pace import few_or_many
from helpers.random_problems import random_limits, random_problem

from poet.errors import InvalidSchedule
from poet.problem import Limits, Problem
from poet.schedule import Compute, Free, PageIn, PageOut, Step
from poet.simulator import simulate
from poet.solvers.bounds.ram_program import CheapestStep, Moved, RamProgram, cheapest_step
from poet.solvers.bounds.resident_sets import over_capacity, to_track
from poet.solvers.bounds.tracked import Tracked
from poet.solvers.instance.instance import Instance, instance_of

MOST_JOULES = 100.0


def walked(instance: Instance, tracked_bytes: int) -> tuple[RamProgram, CheapestStep | None]:
    """The cheapest step that may page all that is tracked, for nothing, and nothing else."""
    tracked = Tracked(instance, {c.number for c in instance.contents if c.bytes >= tracked_bytes})
    program = RamProgram(tracked, most_joules=MOST_JOULES, most_arcs=10**6, finished=lambda: False)
    program.residents.count_in_steps(1e-6, 0)  # joules for residents' page-outs: less than any takes
    return program, cheapest_step(program, (1 << len(tracked.contents)) - 1, 0)


def as_plan(instance: Instance, path: CheapestStep) -> Iterator[Step]:
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
    pages = {move.content for move in path.moves if move.content is not None}
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
    """And none where something has: what is tracked alone is freed to make room."""
    plans = lacking = 0
    for seed in seeds:
        problem = random_problem(seed, ops=6, features=("outputs", "workspace"))
        limits = random_limits(problem, seed)
        limits = Limits(ram_budget_bytes=limits.ram_budget_bytes)
        for tracked_bytes in (1, 4, 7):
            instance = instance_of(problem, limits)
            program, path = walked(instance, tracked_bytes)
            if path is None:
                continue
            found = over_capacity(program, path)
            assert not found or tracked_bytes > 1
            assert fits(problem, limits, [*as_plan(instance, path)]) == (not found), seed
            plans += not found
            lacking += bool(found)
            for one in found:
                assert sum(instance.contents[c].bytes for c in one.contents) >= one.lacking_bytes
            groups = to_track(found, program.of.size_of)
            assert bool(groups) == bool(found)
            assert len({c for group in groups for c in group}) == sum(map(len, groups))
    assert plans > len(seeds) / 2
    assert lacking > len(seeds) / 20
