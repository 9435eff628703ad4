"""Rows of what is largest or smallest along dimensions, of where that is, and of variances."""

from __future__ import annotations

from collections.abc import Sequence

from poet.c99.calls import CCall, OpRun, pointwise
from poet.c99.rules.folds import aligned, folded
from poet.c99.rules.rule import Rule
from poet.c99.rules.selection import mask_of, whole_numbers


def extreme(sign: int) -> Rule:
    """The largest, or with ``sign`` -1 the smallest, over some dimensions."""

    def rule(run: OpRun) -> list[CCall]:
        (x, out), sizes = aligned(run, run.wholes(1, ()), run.tensor(0), run.made()[0])
        pointers = (run.checked(out).pointer(), run.checked(x).pointer())
        return [CCall("poet_extreme", (*pointers, f"{sign}.0f", *map(str, sizes)))]

    return rule


def extreme_at(sign: int) -> Rule:
    """Likewise over one dimension, and where it is."""

    def rule(run: OpRun) -> list[CCall]:
        (x, out, places), sizes = aligned(run, (run.whole(1),), run.tensor(0), *run.made()[:2])
        numbers = whole_numbers(run, places, out.type.elements)
        pointers = (run.checked(out).pointer(), numbers.pointer(), run.checked(x).pointer())
        return [CCall("poet_extreme_at", (*pointers, f"{sign}.0f", *map(str, sizes)))]

    return rule


def log_sum_exp(run: OpRun) -> list[CCall]:
    """The logarithm of a sum of exponentials, over some dimensions."""
    (x, out), sizes = aligned(run, run.wholes(1), run.tensor(0), run.made()[0])
    pointers = (run.checked(out).pointer(), run.checked(x).pointer())
    return [CCall("poet_log_sum_exp", (*pointers, *map(str, sizes)))]


def count_set(run: OpRun, dims: Sequence[int]) -> list[CCall]:
    """How many bytes of a mask are set, over some dimensions."""
    (x, out), sizes = aligned(run, dims, run.tensor(0), run.made()[0])
    numbers = whole_numbers(run, out, out.type.elements)
    return [CCall("poet_count_set", (numbers.pointer(), mask_of(run, x).pointer(), *map(str, sizes)))]


def scatter_at(run: OpRun) -> list[CCall]:
    """A tensor, with elements of another in the places that whole numbers give along a dimension."""
    out, base, source = run.output(), run.tensor(0), run.dense(3)
    shape, other, rank = out.type.shape, source.type.shape, len(out.type.shape)
    dim = run.whole(1)
    if not -rank <= dim < rank or base.type.shape != shape:
        raise run.refuse(f"for dimension {dim} of {base.type}")
    dim %= rank
    places = whole_numbers(run, run.tensor(2), source.type.elements)
    kept = [[size for at, size in enumerate(sizes) if at != dim] for sizes in (shape, other)]
    if places.type.shape != other or kept[0] != kept[1]:
        raise run.refuse(f"for {source.type} by numbers {places.type} in {out.type}")
    outer, n, inner = folded(run, (dim,), out.type)
    whole = [] if out == base else pointwise(run, "poet_copy", [out], [base])
    pointers = (out.pointer(), places.pointer(), source.pointer())
    sizes_given = (outer, other[dim], inner, n)
    return [*whole, CCall("poet_scatter_at", (*pointers, *map(str, sizes_given)))]


def variance(*, is_root: bool) -> Rule:
    """The mean square from the mean, or the root of that; a correction is taken off the count."""

    def rule(run: OpRun) -> list[CCall]:
        dims = run.wholes(1, ()) if run.argument(1) is not None else ()
        (x, out), sizes = aligned(run, dims, run.tensor(0), run.made()[0])
        given = run.argument(2, None, name="correction")
        correction = 1.0 if given is None else run.number(2, name="correction")
        if sizes[1] <= correction:
            raise run.refuse(f"of {sizes[1]} elements less {correction:g}")
        numbers = (run.float_text(sizes[1] - correction), str(int(is_root)), *map(str, sizes))
        pointers = (run.checked(out).pointer(), run.checked(x).pointer())
        return [CCall("poet_variance", (*pointers, *numbers))]

    return rule
