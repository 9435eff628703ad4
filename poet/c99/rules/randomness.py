"""Rows of what is drawn from a counter."""

from __future__ import annotations

from poet.c99.calls import CCall, OpRun


def bernoulli(run: OpRun) -> list[CCall]:
    """A mask of which each element is 1 with a probability."""
    y, p = run.output(), run.float_text(run.number(3))
    return [CCall("poet_bernoulli", (y.pointer(), p, str(y.type.elements), "net->seed", "&net->drawn"))]


def random_place(run: OpRun) -> list[CCall]:
    """Where the counter stands."""
    place = run.made()[0]
    return [CCall("poet_random_place", (place.pointer(), "&net->drawn"))]


def again(run: OpRun) -> list[CCall]:
    """What was drawn at a place, once more."""
    if run.argument(1) != "poet.bernoulli":
        raise run.refuse(f"to repeat {run.argument(1)}")
    place, y, p = run.tensor(0), run.output(), run.float_text(run.number(5))
    arguments = (y.pointer(), p, str(y.type.elements), "net->seed", place.pointer())
    return [CCall("poet_bernoulli_again", arguments)]
