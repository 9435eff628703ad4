"""Bounds by resident sets where what no rerun makes takes RAM, and where a loss is needed at the end."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
from helpers.oracle import least_joules
from helpers.pace import few_or_many
from helpers.resident_sets_bounds import TOLERANCE, bounds

from poet.planning.ram_survey import keep_everything_bytes
from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.simulator import simulate
from poet.solvers import minimum_ram_bytes
from poet.solvers.bounds.tracked import residents, too_expensive
from poet.solvers.instance.instance import instance_of


def tight_weights() -> tuple[Problem, Limits]:
    """Three layers whose weights, no rerun makes them, must leave for a while in turn, in little RAM."""
    write, read = Transfer(1.0, 1.0), Transfer(0.1, 0.1)
    sizes = {"w1": 5, "w2": 4, "w3": 3, "bias": 1}
    tensors = [
        Tensor(name, size, read, write, initially=Place.RAM, finally_=Place.RAM)
        for name, size in sizes.items()
    ]
    tensors += [Tensor(name, 8, read, write) for name in ("a", "b", "c")]
    ops = (
        ProblemOp("f1", ("w1", "bias"), ("a",), 1.0, 0.5),
        ProblemOp("f2", ("w2", "a"), ("b",), 1.0, 0.5),
        ProblemOp("f3", ("w3", "b"), ("c",), 1.0, 0.5),
        ProblemOp("u3", ("c", "b", "w3"), (), 1.0, 0.5, updates=("w3",)),
        ProblemOp("u2", ("c", "a", "w2"), (), 1.0, 0.5, updates=("w2",)),
        ProblemOp("u1", ("c", "a", "w1", "bias"), (), 1.0, 0.5, updates=("w1", "bias")),
    )
    return Problem("tight weights", tuple(tensors), ops), Limits(ram_budget_bytes=23)


def test_what_is_dearer_to_write_than_the_plan_takes_its_ram_without_being_followed() -> None:
    """In sets with and without it, a weight that stays would be too much to follow."""
    problem, limits = tight_weights()
    dear = Transfer(100.0, 100.0)
    stays = [
        dataclasses.replace(tensor, page_out=dear) if tensor.name == "w1" else tensor
        for tensor in problem.tensors
    ]
    problem, limits = dataclasses.replace(problem, tensors=tuple(stays)), Limits(ram_budget_bytes=25)
    best = least_joules(problem, limits)
    assert best is not None
    overhead = simulate(problem, best, limits).joules - problem.compute_joules
    instance = instance_of(problem, limits)
    assert {instance.contents[number].tensor for number in too_expensive(instance, 1.5 * overhead)} == {"w1"}
    assert not too_expensive(instance, 1e3)
    assert bounds(instance, 1.5 * overhead)[-1] == pytest.approx(overhead, rel=1e-5)


def _with_a_loss() -> tuple[Problem, Limits]:
    """Predictions and a loss are to be there at the end; a layer's result is made again on the way back."""
    dear = Transfer(3.0, 3.0)
    sizes = {
        "x": 6,
        "w": 4,
        "targets": 2,
        "a": 8,
        "b": 8,
        "predictions": 2,
        "loss": 2,
        "g": 2,
        "c": 8,
        "d": 8,
    }
    tensors = tuple(
        Tensor(name, size, dear, dear, finally_=Place.RAM if name in ("w", "predictions", "loss") else None)
        for name, size in sizes.items()
    )
    ops = (
        ProblemOp("first", ("x",), ("a",), 1.0, 1.0),
        ProblemOp("second", ("a",), ("b",), 1.0, 1.0),
        ProblemOp("last", ("b", "w"), ("predictions",), 1.0, 0.1),
        ProblemOp("loss", ("predictions", "targets"), ("loss",), 1.0, 0.1),
        ProblemOp("start", ("predictions", "targets"), ("g",), 1.0, 0.1),
        ProblemOp("update", ("b", "g", "w"), (), 1.0, 0.1, updates=("w",)),
        ProblemOp("back", ("b", "g"), ("c",), 1.0, 1.0),
        ProblemOp("back again", ("a", "c"), ("d",), 1.0, 1.0),
    )
    return Problem("loss", tensors, ops), Limits(ram_budget_bytes=32)


def test_what_can_no_more_be_made_again_takes_its_ram() -> None:
    """Predictions once the weight is another."""
    problem, limits = _with_a_loss()
    instance = instance_of(problem, limits)
    number = {(content.tensor, content.version): content.number for content in instance.contents}
    predictions = residents(instance)[number["predictions", 0]]
    assert (predictions.birth, predictions.last, predictions.bytes) == (5, 8, 2)
    best = least_joules(problem, limits)
    assert best is not None
    overhead = simulate(problem, best, limits).joules - problem.compute_joules
    assert bounds(instance, 2.0 * overhead)[-1] == pytest.approx(overhead, rel=1e-5)


def _with_any_loss(seed: int) -> tuple[Problem, Limits]:
    """The same step with other sizes, costs and RAM: targets may leave early or late, or the loss may."""
    draw, (problem, _) = random.Random(seed), _with_a_loss()
    page_in, page_out = Transfer(0.1, draw.choice([0.05, 1.0])), Transfer(3.0, draw.choice([3.0, 6.0, 20.0]))
    targets = draw.randint(1, 3)
    sizes = {"x": draw.randint(5, 8), "w": draw.randint(1, 4), "targets": targets}
    sizes |= {name: draw.randint(6, 9) for name in ("a", "b")} | {"predictions": draw.randint(1, 3)}
    sizes |= {"loss": draw.choice([targets, draw.randint(1, 3)]), "g": draw.randint(1, 3)}
    sizes |= {name: draw.randint(6, 9) for name in ("c", "d")}
    tensors = tuple(
        dataclasses.replace(tensor, bytes=sizes[tensor.name], page_in=page_in, page_out=page_out)
        for tensor in problem.tensors
    )
    joules = {"second": draw.choice([0.2, 1.0])}
    ops = tuple(dataclasses.replace(op, joules=joules.get(op.name, op.joules)) for op in problem.ops)
    problem = dataclasses.replace(problem, tensors=tensors, ops=ops)
    least, most = minimum_ram_bytes(problem).bytes, keep_everything_bytes(problem)
    return problem, Limits(ram_budget_bytes=draw.randint(least, max(least, most - 1)))


@few_or_many("seeds", (34, 45), range(100, 180))
def test_where_a_loss_is_needed_no_bound_is_above_the_optimum(seeds: Sequence[int]) -> None:
    """Whichever of the two is paged is paid for once, and what an op reads in its place counts once."""
    checked = 0
    for seed in seeds:
        problem, limits = _with_any_loss(seed)
        best = least_joules(problem, limits)
        assert best is not None
        overhead = simulate(problem, best, limits).joules - problem.compute_joules
        instance = instance_of(problem, limits)
        for below in (3.0 * overhead, 1.05 * overhead):
            joules = bounds(instance, below)
            assert max(joules, default=0.0) <= overhead + TOLERANCE * problem.compute_joules, seed
            checked += bool(joules)
    assert checked
