"""Compile the planner's loops, once on a machine: ``python -m poet.solvers``."""

from __future__ import annotations

from poet.problem import Limits, Problem, ProblemOp, Tensor, Transfer
from poet.solvers.bounds import stages
from poet.solvers.bounds.compiled import mark_of
from poet.solvers.bounds.resident_sets import resident_sets_bounds
from poet.solvers.instance.instance import instance_of
from poet.solvers.portfolio.local_search import SOURCES, LocalSearch
from poet.util.clock import WALL


def main() -> None:
    """Run each search in compiled loops on a problem of four ops, and note that its machine code is kept."""
    instance = instance_of(*_crowded())
    search = LocalSearch(instance, 0)
    search.batch()
    search.batch()
    for _ in resident_sets_bounds(instance, below_joules=100.0, clock=WALL):
        pass
    for sources in (SOURCES, (stages,)):
        mark = mark_of(*sources)
        if mark is not None:
            mark.touch()


def _crowded() -> tuple[Problem, Limits]:
    """``a`` is read last; in between there is no room for it, so that it is paged or made again."""
    transfer = Transfer(1.0, 1.0)
    tensors = tuple(Tensor(name, 1, page_in=transfer, page_out=transfer) for name in "abc")
    ops = (
        ProblemOp("one", (), ("a",), 1.0, 1.0),
        ProblemOp("two", (), ("b",), 1.0, 1.0),
        ProblemOp("three", ("b",), ("c",), 1.0, 1.0),
        ProblemOp("four", ("a", "c"), (), 1.0, 1.0),
    )
    return Problem("crowded", tensors, ops), Limits(ram_budget_bytes=2)


if __name__ == "__main__":
    main()
