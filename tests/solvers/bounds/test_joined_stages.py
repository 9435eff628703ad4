"""Stages that stand for others: all are covered in order, and nothing followed is touched where they join."""

from __future__ import annotations

import dataclasses

import pytest
from helpers.random_problems import mixed_problem, random_limits, random_problem

from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.joined_stages import joined_stages
from poet.solvers.bounds.ram_program import RamProgram
from poet.solvers.instance.instance import instance_of


def followed(problem: Problem, size: int, budget_bytes: int) -> Followed:
    return Followed(instance_of(problem, Limits(ram_budget_bytes=budget_bytes)), size, budget_bytes)


@pytest.mark.parametrize("seed", range(20))
def test_every_stage_is_in_one_part_and_nothing_followed_changes_within(seed: int) -> None:
    problem = dataclasses.replace(random_problem(seed, ops=12), background_storage=False)
    for size in (1, 6, 9, 12):
        of = followed(problem, size, random_limits(problem, seed).ram_budget_bytes or 0)
        parts = joined_stages(of)
        assert [n for begin, last in parts for n in range(begin, last + 1)] == list(range(of.end + 1))
        for begin, last in parts:
            for number in range(begin, last):
                run = of.first[number]
                assert not run.needs | run.makes | run.updates
                assert of.alive[number] == of.alive[last]


def between(workspaces: tuple[int, ...]) -> Problem:
    """A large result waits for its reader, over ops on small ones that work in so much memory."""
    cost, names = Transfer(1.0, 1.0), [f"s{n}" for n in range(len(workspaces) + 1)]
    tensors = (
        Tensor("source", 1, cost, cost, initially=Place.RAM),
        Tensor("large", 10, cost, cost),
        *(Tensor(name, 1, cost, cost) for name in names),
    )
    ops = [ProblemOp("make", ("source",), ("large",), 1.0, 3.0)]
    ops.append(ProblemOp("begin", ("source",), (names[0],), 1.0, 1.0))
    for number, size in enumerate(workspaces):
        read, write = (names[number],), (names[number + 1],)
        ops.append(ProblemOp(f"small{number}", read, write, 1.0, 1.0, workspace_bytes=size))
    ops.append(ProblemOp("read", ("large", names[-1]), (), 1.0, 1.0))
    return Problem("between", tensors, tuple(ops))


def test_the_fullest_of_the_joined_first_runs_still_asks_for_room() -> None:
    """The large result is gone by then, so it is paged or made again, once."""
    for workspaces, overhead in (((2, 3, 2, 1), 0.0), ((2, 9, 2, 1), 2.0), ((9, 1, 1, 9), 2.0)):
        of = followed(between(workspaces), 10, 16)
        program = RamProgram(of, most_joules=100.0, most_arcs=10_000, parts=(64, 8), finished=lambda: False)
        assert len(program.passed) >= 2
        out = of.page_out[0]
        paged = program.least([1])[0] + out
        assert min(paged, program.least([0])[0]) == pytest.approx(overhead, abs=1e-5)


def test_random_problems_have_stages_that_join() -> None:
    joined = 0
    for seed in range(30):
        problem = mixed_problem(seed)
        of = followed(problem, 9, random_limits(problem, seed).ram_budget_bytes or 0)
        joined += len(joined_stages(of)) < of.end + 1
    assert joined > 5
