"""Layers whose weights no rerun makes again, in so little RAM that some leave for a while."""

from __future__ import annotations

from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer


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
