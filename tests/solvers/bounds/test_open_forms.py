"""The windows relaxation with the forms of ops open, against the exhaustive oracle over all choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from helpers import forms
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem, random_limits
from helpers.relaxed import tightest_bound, whole_bound

from poet.problem import Alternative, Limits, Objective, Problem, ProblemOp, Tensor, Transfer
from poet.problem.alternatives import relaxed
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions
from poet.solvers.bounds.relaxation import bound_overhead
from poet.solvers.instance.instance import instance_of
from poet.solvers.instance.undecided import undecided
from poet.solvers.search.alternatives import form_guide

DEAR = Transfer(50.0, 50.0)


def two_layers(*, resized: bool = False) -> Problem:
    """x → a → b, then gradients that read b and a; that of a from a short form as well.

    ``resized``: the short form has the name of a tensor that only the gradient reads.
    """
    wide = ("a", "m") if resized else ("a",)
    reads = ("gb", "m") if resized else ("gb", "a")
    short = "m" if resized else "s"
    own = (
        ProblemOp("fa", ("x",), wide, 1.0, 1.0),
        ProblemOp("fb", ("a",), ("b",), 1.0, 1.0),
        ProblemOp("gb", ("b",), ("gb",), 1.0, 1.0),
        ProblemOp("ga", reads, ("ga",), 1.0, 1.0),
    )
    names = ("x", *wide, "b", "gb", "ga")
    made = (
        dataclasses.replace(own[0], outputs=("a", short), seconds=1.25, joules=1.25),
        dataclasses.replace(own[3], inputs=("gb", short)),
    )
    return Problem(
        "two layers",
        tuple(Tensor(name, 16, DEAR, DEAR) for name in names),
        own,
        alternatives=(Alternative("short", made, (), (Tensor(short, 2, DEAR, DEAR),)),),
    )


@pytest.mark.parametrize("resized", [False, True])
def test_a_form_is_paid_for_where_the_ram_is_too_little_for_the_other(*, resized: bool) -> None:
    """The long form needs 48 bytes at once, the short one 34, and nothing can run again or move."""
    of = two_layers(resized=resized)
    plenty = Limits(ram_budget_bytes=48, recompute=False, paging=False)
    tight = dataclasses.replace(plenty, ram_budget_bytes=40)
    best = forms.least_joules(of, tight)
    assert best is not None
    assert simulate(of, best, tight).joules == pytest.approx(4.25)
    open_forms = undecided(of, tight)
    fractional = open_forms.joules + bound_overhead(open_forms.instance).overhead_joules
    whole = open_forms.joules + whole_bound(open_forms.instance).overhead_joules
    assert 4.1 < fractional < whole == pytest.approx(4.25, rel=1e-5)
    assert whole <= 4.25
    easy = undecided(of, plenty)
    assert easy.joules + whole_bound(easy.instance).overhead_joules == pytest.approx(4.0)
    unweighed = relaxed(of)
    before = bound_overhead(instance_of(unweighed.problem, tight)).overhead_joules
    assert unweighed.problem.compute_joules + unweighed.joules + before == pytest.approx(4.0)


@pytest.mark.parametrize("objective", [Objective.ENERGY, Objective.TIME])
def test_the_guide_takes_what_is_cheaper(objective: Objective) -> None:
    options = SolveOptions(objective=objective)
    limits = Limits(ram_budget_bytes=40)
    taken = form_guide(two_layers(), limits, options)
    assert taken is not None
    assert taken.open == taken.taken == frozenset({"short"})
    assert 4.0 < taken.bound <= 4.25
    plenty = form_guide(two_layers(), Limits(ram_budget_bytes=48), options)
    assert plenty is not None
    assert plenty.bound == pytest.approx(4.0)
    assert not plenty.taken
    assert form_guide(two_layers(), Limits(), options) is None


def _judge(seed: int, make: Callable[[Problem, int], Problem] = forms.with_alternatives) -> None:
    of = make(mixed_problem(seed, largest=5), seed)
    limits = random_limits(of.resolved(forms.choices_of(of)[-1]), seed, deadline=seed % 3 == 0)
    best = forms.least_joules(of, limits)
    if best is None:
        return
    optimum = simulate(of, best, limits).joules
    each = undecided(of, limits)
    fractional = tightest_bound(each.instance, seconds=5.0)
    whole = whole_bound(each.instance, moments=range(len(of.ops)))
    for bound in (fractional, whole):
        assert each.joules + bound.overhead_joules <= optimum * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("seed", [2, 5, 7, 11])
def test_no_bound_is_above_the_optimum_of_all_choices(seed: int) -> None:
    _judge(seed)


@pytest.mark.parametrize("seed", range(1, 7))
def test_nor_where_the_forms_need_other_workspaces(seed: int) -> None:
    _judge(seed, forms.with_workspaces)


@pytest.mark.parametrize("seed", with_slow(range(1, 5), {3, 4}))
def test_nor_where_rows_are_updated_in_storage(seed: int) -> None:
    _judge(seed, forms.with_row_updates)


@pytest.mark.slow
@pytest.mark.parametrize("seed", with_slow(range(20, 30), range(24, 30)))
def test_no_bound_is_above_the_optimum_of_all_choices_of_more(seed: int) -> None:
    _judge(seed)
