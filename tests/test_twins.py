"""Identical blocks decided alike: who is a twin, and plans that are those of the whole program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_problems import mixed_problem, random_limits, training_like

from poet.budgets import budget_between, keep_everything_bytes
from poet.problem import Limits, Problem, ProblemOp, Tensor, Transfer
from poet.simulator import simulate
from poet.solution import SolveOptions, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.candidates import candidates
from poet.solvers.events import instance_of
from poet.solvers.greedy import greedy
from poet.solvers.judged import Cheapest
from poet.solvers.linear import Numbers
from poet.solvers.matrix import Arrays
from poet.solvers.neighbourhood import Rounds, offering
from poet.solvers.refine import priced_bound
from poet.solvers.start import values_of
from poet.solvers.twins import colours, repeats, tied


def stacked(blocks: int, *, wide_joules: float = 1.0, apart: int | None = None) -> Problem:
    """Blocks that widen and narrow, forward and backward; block ``apart`` costs more than the others."""
    tensors, ops = [Tensor("x0", 2)], list[ProblemOp]()

    def add(name: str, reads: tuple[str, ...], bytes_: int, joules: float) -> None:
        tensors.append(Tensor(name, bytes_, Transfer(0.0, 4.0 * bytes_), Transfer(0.0, 4.0 * bytes_)))
        ops.append(ProblemOp(f"make {name}", reads, (name,), 0.0, joules))

    for i in range(blocks):
        add(f"wide{i}", (f"x{i}",), 8, wide_joules + (i == apart))
        add(f"x{i + 1}", (f"wide{i}",), 2, 5.0)
    add(f"d{blocks}", (f"x{blocks}",), 2, 1.0)
    for i in reversed(range(blocks)):
        add(f"e{i}", (f"d{i + 1}", f"wide{i}"), 8, 10.0)
        add(f"d{i}", (f"e{i}", f"x{i}"), 2, 2.0)
    return Problem(f"{blocks} blocks", tuple(tensors), tuple(ops))


def within(problem: Problem, share: float) -> Limits:
    least, most = minimum_ram_bytes(problem, Limits()).bytes, keep_everything_bytes(problem)
    return Limits(ram_budget_bytes=budget_between(least, most, share))


def numbered(problem: Problem) -> dict[str, int]:
    found = colours(instance_of(problem, Limits()))
    return {op.outputs[0]: colour for op, colour in zip(problem.ops, found, strict=True)}


def test_twins_are_the_ops_of_identical_blocks_away_from_the_ends() -> None:
    colour = numbered(stacked(12))
    for name in ("wide{}", "x{}", "e{}", "d{}"):
        assert len({colour[name.format(i)] for i in range(4, 8)}) == 1
    assert len({colour["wide5"], colour["x5"], colour["e5"], colour["d5"]}) == 4
    assert colour["wide0"] != colour["wide5"]
    assert colour["d12"] not in {colour[f"d{i}"] for i in range(12)}


def test_what_costs_more_is_no_twin_nor_are_its_neighbours() -> None:
    colour = numbered(stacked(20, apart=10))
    assert colour["wide10"] not in {colour[f"wide{i}"] for i in range(20) if i != 10}
    assert colour["x11"] != colour["x5"]
    assert colour["wide5"] == colour["wide15"]


def test_steps_of_many_blocks_repeat_themselves_and_others_do_not() -> None:
    assert repeats(instance_of(stacked(16), Limits()))
    assert not repeats(instance_of(stacked(3), Limits()))
    assert not repeats(instance_of(training_like(12, seed=1), Limits()))


def excess(arrays: Arrays, values: Numbers) -> float:
    """By how much the rows of a matrix are broken, at most."""
    matrix = arrays.matrix
    used = np.bincount(
        matrix.rows, weights=matrix.factors * values[matrix.columns], minlength=len(matrix.at_most)
    )
    return float((used - matrix.at_most).max(initial=0.0))


@pytest.mark.parametrize("seed", range(40))
def test_what_solves_the_tied_program_solves_the_whole(seed: int) -> None:
    problem = (
        stacked(3 + seed % 4, wide_joules=0.5 + seed % 3) if seed % 2 else mixed_problem(seed, largest=6)
    )
    limits = within(problem, 0.3) if seed % 2 else random_limits(problem, seed)
    instance, plan = instance_of(problem, limits), greedy(problem, limits)
    if plan is None:
        return
    arrays = offering(instance, candidates(instance, 2))
    values = values_of(arrays.model, plan)
    if values is None:  # it reruns what is not offered
        return
    whole = np.array(values)
    tie = tied(arrays, whole)
    assert len(tie.matrix.costs) <= len(whole)
    start = tie.matrix.start
    assert start is not None
    assert tie.whole(start) == pytest.approx(whole)
    assert float(tie.matrix.costs @ start) == pytest.approx(float(arrays.matrix.costs @ whole))
    best = Cheapest(problem, limits)
    best.consider(plan)
    before = best.trace
    rounds = Rounds(arrays, priced_bound(instance), best)
    assert rounds.begin(1e9)
    better = rounds.alike(10.0)
    assert excess(arrays, rounds.values) < 1e-6
    assert best.trace is not None
    assert before is not None
    assert (best.trace.joules < before.joules) == better
    assert simulate(problem, best.schedule or (), limits).joules == best.trace.joules


def test_one_block_is_solved_for_all() -> None:
    """Every wide content is remade at one joule, where the plan to begin with pages all of them."""
    problem = stacked(24)
    limits = within(problem, 0.3)
    instance = instance_of(problem, limits)
    paging = greedy(problem, replace(limits, recompute=False))
    best = Cheapest(problem, limits)
    best.consider(paging)
    assert best.trace is not None
    arrays = offering(instance, candidates(instance, 1))
    rounds = Rounds(arrays, priced_bound(instance), best)
    assert rounds.begin(1e9)
    decided = int(tied(arrays, rounds.values).matrix.whole.sum())
    assert decided < 0.7 * int(arrays.decided.sum())
    assert rounds.alike(30.0)
    optimum = solve(problem, limits, SolveOptions(time_limit_seconds=30.0))
    assert optimum.status is Status.OPTIMAL
    assert best.trace.joules == pytest.approx(optimum.joules)
