"""Layers whose weights no rerun makes again, in so little RAM that some leave for a while."""

from __future__ import annotations

import random

from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.solvers import minimum_ram_bytes


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


def weights_in_turn(seed: int, layers: int | None = None) -> tuple[Problem, Limits]:
    """Two or three layers of random weights, or so many, in RAM at most a few bytes above the least."""
    draw = random.Random(seed)
    numbers = range(layers or draw.choice([2, 3, 3]))

    def transfers() -> tuple[Transfer, Transfer]:
        write, read = draw.uniform(0.5, 1.5), draw.uniform(0.05, 0.15)
        return Transfer(write, write), Transfer(read, read)

    sizes = {f"w{n}": draw.randint(1, 6) for n in numbers} | {"bias": 1}
    tensors = [
        Tensor(name, size, *transfers(), initially=Place.RAM, finally_=Place.RAM)
        for name, size in sizes.items()
    ]
    tensors += [Tensor(f"a{n}", draw.randint(6, 9), *transfers()) for n in numbers]
    inputs = ["bias", *(f"a{n}" for n in numbers)]
    ops = [ProblemOp(f"f{n}", (f"w{n}", inputs[n]), (f"a{n}",), draw.uniform(0.5, 2.0), 0.5) for n in numbers]
    for n in reversed(numbers):
        reads = tuple(dict.fromkeys((inputs[-1], f"w{n}", inputs[n])))
        updates = (f"w{n}",) if n else ("w0", "bias")
        ops.append(ProblemOp(f"u{n}", reads, (), draw.uniform(0.5, 2.0), 0.5, updates=updates))
    problem = Problem(f"weights in turn {seed}", tuple(tensors), tuple(ops))
    least = minimum_ram_bytes(problem, Limits()).bytes
    return problem, Limits(ram_budget_bytes=least + draw.randint(0, 3))
