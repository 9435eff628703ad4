"""Contents that are followed in some stages alone: what a program knows lies between all stages and none."""

from __future__ import annotations

import random
from collections.abc import Mapping, Set

from helpers.pace import few_or_many
from helpers.random_problems import random_limits, random_problem

from poet.problem import Limits
from poet.solvers.bounds.followed import Followed
from poet.solvers.bounds.ram_program import RamProgram
from poet.solvers.bounds.residents import residents
from poet.solvers.instance.instance import Instance, instance_of
from poet.tuning import DEFAULT


def program(
    instance: Instance, left_out: frozenset[int] = frozenset(), windows: Mapping[int, Set[int]] | None = None
) -> RamProgram:
    return RamProgram(
        Followed(instance, 1, instance.limits.ram_budget_bytes or 0, left_out=left_out, windows=windows),
        most_joules=1000.0,
        most_arcs=10**6,
        parts=DEFAULT.copies.parts,
        finished=lambda: False,
    )


def least(of: RamProgram, copies: list[frozenset[int]]) -> list[float]:
    return of.least([of.of.bits_of(some) for some in copies])


@few_or_many("seeds", range(60), range(60, 1500))
def test_no_window_tells_more_than_all_stages_or_less_than_none(seeds: range) -> None:
    more = less = 0
    for seed in seeds:
        chance = random.Random(seed)
        problem = random_problem(seed, ops=7, features=("outputs", "workspace"))
        limits = Limits(ram_budget_bytes=random_limits(problem, seed).ram_budget_bytes)
        instance = instance_of(problem, limits)
        able = [c.number for c in instance.contents if c.bytes and c.number not in residents(instance)]
        if not able:
            continue
        some = frozenset(chance.sample(able, min(len(able), 3)))
        stages = range(len(instance.tasks) + 1)
        windows = {c: frozenset(chance.sample(stages, chance.randrange(len(stages)))) for c in some}
        numbers = [c.number for c in instance.contents]
        copies = [frozenset(chance.sample(numbers, chance.randrange(len(numbers)))) for _ in range(6)]
        found = [
            least(program(instance, some), copies),
            least(program(instance, windows={c: frozenset() for c in some}), copies),
            least(program(instance, windows=windows), copies),
            least(program(instance), copies),
        ]
        assert all(abs(first - second) < 1e-4 for first, second in zip(*found[:2], strict=True)), seed
        for none, within, everywhere in zip(*found[1:], strict=True):
            assert none <= within + 1e-4, seed
            assert within <= everywhere + 1e-4, seed
            more += within > none + 1e-4
            less += within < everywhere - 1e-4
    assert more > len(seeds) / 20
    assert less > len(seeds) / 20
