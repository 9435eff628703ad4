"""Identical blocks decided alike: who is a twin, and plans that are those of the whole program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from helpers.clocks import Ticking
from helpers.pace import with_slow
from helpers.random_problems import training_like

from poet.problem import Limits, Problem, ProblemOp, Tensor, Transfer
from poet.ram_survey import budget_between, keep_everything_bytes
from poet.simulator import simulate
from poet.solution import SolveOptions, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.engines.highs_process import HighsProcess
from poet.solvers.engines.matrix import Numbers
from poet.solvers.event_model.emit import schedule_of
from poet.solvers.event_model.start import values_of
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.instance.candidates import candidates
from poet.solvers.instance.instance import instance_of
from poet.solvers.search.gap_matrix import GapMatrix
from poet.solvers.search.neighbourhood import offering
from poet.solvers.search.symmetry import Tied, colours, repeats, tied


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


def test_alike_are_the_ops_of_identical_blocks_away_from_the_ends() -> None:
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


def excess(arrays: GapMatrix, values: Numbers) -> float:
    """By how much the rows of a matrix are broken, at most."""
    matrix = arrays.matrix
    used = np.bincount(
        matrix.rows, weights=matrix.factors * values[matrix.columns], minlength=len(matrix.at_most)
    )
    return float((used - matrix.at_most).max(initial=0.0))


def solved(child: HighsProcess, tie: Tied) -> Numbers:
    """Of the tied program, as values of the whole."""
    child.begin(tie.matrix, 30.0, relative_gap=1e-6)
    while not child.news.ended:
        child.listen(0.1)
    assert child.news.values is not None
    return tie.whole(child.news.values)


@pytest.fixture(scope="module")
def child() -> Iterator[HighsProcess]:
    with HighsProcess() as started:
        yield started


@pytest.mark.parametrize("blocks", with_slow([6, 9, 12], {9, 12}))
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_what_solves_the_tied_program_solves_the_whole(
    child: HighsProcess, blocks: int, share: float
) -> None:
    problem = stacked(blocks)
    limits = within(problem, share)
    instance = instance_of(problem, limits)
    arrays = offering(instance, candidates(instance, 1))
    for plan in (greedy(problem, replace(limits, recompute=False)), greedy(problem, limits)):
        assert plan is not None
        values = np.array(values_of(arrays.model, plan))
        tie = tied(arrays, values)
        start = tie.matrix.start
        assert start is not None
        assert len(start) < len(values)
        assert tie.whole(start) == pytest.approx(values)
        found = solved(child, tie)
        assert excess(arrays, found) < 1e-6
        together = [
            found[decided].max() - found[decided].min()
            for decided in (np.flatnonzero(tie.column == column) for column in range(len(start)))
        ]
        assert max(together) < 1e-6
        joules = simulate(problem, schedule_of(arrays.model, found.tolist()), limits).joules
        assert joules - problem.compute_joules == pytest.approx(arrays.matrix.joules(found))
        assert arrays.matrix.joules(found) <= arrays.matrix.joules(values) + 1e-6


def test_what_is_treated_differently_stays_apart() -> None:
    instance = instance_of(stacked(12), within(stacked(12), 0.3))
    arrays = offering(instance, candidates(instance, 1))
    columns = []
    for share in (0.0, 0.1, 0.5):
        values = (np.random.default_rng(0).random(len(arrays.decided)) < share).astype(np.float64)
        tie = tied(arrays, values)
        assert tie.matrix.start is not None
        assert (tie.whole(tie.matrix.start) == values).all()
        columns.append(len(tie.matrix.costs))
    assert columns[0] < columns[1] < columns[2] < len(arrays.decided)


@pytest.mark.slow
def test_one_block_is_solved_for_all(child: HighsProcess) -> None:
    """Every wide content is remade at one joule, where the plan to begin with pages all of them."""
    problem = stacked(24)
    limits = within(problem, 0.3)
    instance = instance_of(problem, limits)
    paging = greedy(problem, replace(limits, recompute=False))
    assert paging is not None
    arrays = offering(instance, candidates(instance, 1))
    values = np.array(values_of(arrays.model, paging))
    tie = tied(arrays, values)
    assert int(tie.matrix.whole.sum()) < 0.7 * int(arrays.decided.sum())
    optimum = solve(problem, limits, SolveOptions(time_limit_seconds=None))
    assert optimum.status is Status.OPTIMAL
    assert optimum.joules is not None
    least = optimum.joules - problem.compute_joules
    assert arrays.matrix.joules(values) > 10.0 * least
    assert arrays.matrix.joules(solved(child, tie)) == pytest.approx(least)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", with_slow([1.0, 3.0], {3.0}))
def test_a_search_on_identical_blocks_keeps_to_its_clock(seconds: float) -> None:
    problem, seen = stacked(120), list[float]()
    limits = within(problem, 0.1)
    clock = Ticking(0.01)
    heard = SolveOptions(seconds, clock=clock, progress=lambda joules, *_: seen.append(joules or 0.0))
    found = solve(problem, limits, heard)
    clock.assert_kept(seconds)
    assert found.joules is not None
    assert found.bound_joules <= found.joules
    assert seen[-1] == found.joules
