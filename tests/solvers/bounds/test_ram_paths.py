"""Walked steps, and what they say of sets of copies: as programs of their own do."""

from __future__ import annotations

import random

import pytest
from helpers.weights import tight_weights, weights_in_turn

from poet.problem import Limits, Problem
from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.ram_paths import KnownPaths, Paid, cheapest
from poet.solvers.bounds.ram_program import RamProgram
from poet.solvers.instance.instance import instance_of
from poet.tuning import DEFAULT

PROBLEMS = [tight_weights(), *map(weights_in_turn, range(6))]
STEPS = 2


class Case:
    """A program that follows the results of the layers; the largest residents are listed, others in steps.

    Args:
        problem: what it is of.
        limits: its RAM.
    """

    def __init__(self, problem: Problem, limits: Limits) -> None:
        instance, tuning = instance_of(problem, limits), DEFAULT.copies
        assert limits.ram_budget_bytes is not None
        of = Followed(instance, 6, limits.ram_budget_bytes)
        self.of, most_joules = of, 20.0
        self.program = RamProgram(
            of, most_joules=most_joules, most_arcs=10**6, parts=tuning.parts, finished=lambda: False
        )
        listed = [c for c, one in of.residents.items() if one.away_joules is not None and one.bytes >= 3]
        self.program.count_in_steps(1.0, STEPS, listed)
        followed = {c.number: of.page_out[n] for n, c in enumerate(of.followed) if of.page_out[n] > 0.0}
        leave = {c: of.residents[c].away_joules or 0.0 for c in listed}
        self.joules = followed | leave | {-1 - n: 1.0 for n in range(STEPS)}

    def column(self, copies: set[int]) -> Paid:
        """As the program takes the set."""
        free = sum(1 << self.of.number[c] for c in copies if c in self.of.number)
        free |= sum(1 << n for c, n in self.of.number.items() if c not in self.joules)
        steps = next((n for n in range(STEPS) if -1 - n not in copies), None)
        return Paid(free, steps, frozenset(c for c in self.program.listed if c in copies))

    def some(self, draw: random.Random) -> set[int]:
        """A random set of copies."""
        share = draw.random()
        return {c for c in self.joules if draw.random() < share}

    def known(self, draw: random.Random, tries: int = 12) -> KnownPaths:
        """The paths of random sets."""
        paths = KnownPaths(self.program, self.joules, 64)
        for _ in range(tries):
            path = cheapest(self.program, self.column(self.some(draw)))
            if path is not None:
                paths.add(path)
        return paths


@pytest.mark.parametrize("number", range(len(PROBLEMS)))
def test_a_walked_step_takes_what_its_program_says_and_is_open_to_its_own_set(number: int) -> None:
    case, draw, found = Case(*PROBLEMS[number]), random.Random(number), 0
    for _ in range(20):
        copies = case.some(draw) | case.some(draw)
        column = case.column(copies)
        (joules,) = case.program.least([column.free], [column.steps], [column.paid])
        path = cheapest(case.program, column)
        assert (path is None) == (joules >= case.program.most_joules)
        if path is None:
            continue
        paths = KnownPaths(case.program, case.joules, 64)
        paths.add(path)
        assert path.joules == joules
        assert list(paths.open_to(copies, joules + 1.0)) == [0]
        assert not len(paths.open_to(copies, joules))
        found += 1
    assert found


@pytest.mark.parametrize("number", range(len(PROBLEMS)))
def test_no_set_takes_more_than_a_known_path_that_is_open_to_it(number: int) -> None:
    case, draw, told = Case(*PROBLEMS[number]), random.Random(number), 0
    paths = case.known(draw)
    for _ in range(20):
        copies = case.some(draw) | case.some(draw)
        column = case.column(copies)
        (joules,) = case.program.least([column.free], [column.steps], [column.paid])
        for place in paths.open_to(copies, 1e9):
            assert joules <= paths.joules[place]
            told += 1
    assert told


def test_what_opens_a_path_by_itself_and_what_closes_all() -> None:
    opening = closing = 0
    for number, problem in enumerate(PROBLEMS):
        case, draw = Case(*problem), random.Random(number)
        paths = case.known(draw)
        for _ in range(20):
            copies, below = case.some(draw), draw.choice(list(paths.joules)) + 1e-6
            if len(paths.open_to(copies, below)):
                assert not paths.blocked(copies, below)
                continue
            alone = {c for c in case.joules.keys() - copies if len(paths.open_to(copies | {c}, below))}
            assert paths.missing_one(copies, below) == alone
            without = paths.blocked(copies, below)
            left = case.joules.keys() - without
            assert copies <= left
            assert not len(paths.open_to(left, below))
            assert all(len(paths.open_to(left | {c}, below)) for c in without)
            opening, closing = opening + bool(alone), closing + 1
    assert opening > 10
    assert closing > 20
