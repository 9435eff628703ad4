"""The search over alternatives against the exhaustive oracle: valid plans, and no bound above the optimum."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
from helpers import forms
from helpers.clocks import counted
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem, random_limits

from poet.problem import Alternative, Limits, Objective, Pins, Problem, ProblemOp, Tensor, Transfer
from poet.problem.alternatives import taken_by, with_names, without_names
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, SolveOptions, Start, Status, amount_of
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.search import alternatives, objectives

DEAR = Transfer(50.0, 50.0)
SHORT_SEARCH = SolveOptions(time_limit_seconds=4.0)


def solve_few(of: Problem, limits: Limits, options: SolveOptions = SHORT_SEARCH) -> Solution:
    """As of very many alternatives, of which not all choices can be searched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alternatives, "MOST_CHOICES", 1)
        return solve(of, limits, options)


def chain(layers: int) -> Problem:
    """Layers forward and back: each backward op reads its layer's output, or a bit for each byte of it."""
    tensors = [Tensor("x", 16, DEAR, DEAR)]
    ops, back, alternatives = [], [], []
    for layer in range(layers):
        reads, made = tensors[-1].name if layer else "x", f"a{layer}"
        tensors.append(Tensor(made, 16, DEAR, DEAR))
        ops.append(ProblemOp(f"f{layer}", (reads,), (made,), 1.0, 1.0))
        gradient = f"g{layer + 1}" if layer < layers - 1 else made
        back.append(ProblemOp(f"b{layer}", tuple({gradient: 0, made: 0}), (f"g{layer}",), 1.0, 1.0))
        if gradient == made:
            continue
        short = f"s{layer}"
        extra = 0.01 * (layer + 1)
        changed = (
            dataclasses.replace(ops[-1], outputs=(made, short), seconds=1.0 + extra, joules=1.0 + extra),
            dataclasses.replace(back[-1], inputs=(gradient, short)),
        )
        alternatives.append(Alternative(f"short{layer}", changed, (), (Tensor(short, 2, DEAR, DEAR),)))
    tensors += [Tensor(f"g{layer}", 16, DEAR, DEAR) for layer in reversed(range(layers))]
    return Problem("chain", tuple(tensors), (*ops, *reversed(back)), alternatives=tuple(alternatives))


def keep_bytes(of: Problem) -> int:
    schedule = keep_everything(of, Limits())
    assert schedule is not None
    return simulate(of, schedule).peak_ram_bytes


def taken(of: Problem, found: Solution) -> frozenset[str]:
    assert found.schedule is not None
    return taken_by(of, found.schedule)


def test_where_ram_is_plenty_nothing_is_taken() -> None:
    of = chain(6)
    found = solve(of, Limits(ram_budget_bytes=keep_bytes(of.resolved(()))), SHORT_SEARCH)
    assert (found.status, taken(of, found)) == (Status.OPTIMAL, frozenset())
    assert found.joules == of.compute_joules == 12.0


def test_where_any_plan_is_enough_one_is_searched() -> None:
    any_plan = dataclasses.replace(SHORT_SEARCH, enough_joules=math.inf)
    assert solve(chain(6), Limits(), any_plan).schedule is not None


def test_as_few_as_fit_are_taken_those_that_cost_least_first() -> None:
    of = chain(6)
    limits = Limits(ram_budget_bytes=keep_bytes(of.resolved(())) - 20)
    found, few = solve(of, limits, counted(20.0)), solve_few(of, limits)
    assert taken(of, found) == taken(of, few) == {"short0", "short1"}
    assert found.joules == few.joules == pytest.approx(12.03)
    assert few.baseline_joules == 12.0 <= few.bound_joules < 12.03
    assert (few.status, found.status) == (Status.FEASIBLE, Status.OPTIMAL)
    for missing in taken(of, found):
        assert keep_everything(of.resolved(taken(of, found) - {missing}), limits) is None


def test_with_all_of_them_too_large_the_rest_is_searched() -> None:
    of = chain(6)
    names = [each.name for each in of.alternatives]
    packed = of.resolved(names)
    limits = Limits(ram_budget_bytes=keep_bytes(packed) - 1)
    found, alone = solve(of, limits, SHORT_SEARCH), solve(packed, limits, SHORT_SEARCH)
    plain = solve(of.resolved(()), limits, SHORT_SEARCH)
    assert found.joules is not None
    assert found.joules <= min(each.joules or 1e9 for each in (alone, plain)) + 1e-9
    assert 12.0 <= found.bound_joules <= min(found.joules, alone.joules or 1e9)


def test_below_the_least_of_all_choices_there_is_no_plan() -> None:
    of = chain(3)
    least = minimum_ram_bytes(of).bytes
    assert solve(of, Limits(ram_budget_bytes=least), SHORT_SEARCH).schedule is not None
    assert solve(of, Limits(ram_budget_bytes=least - 1), SHORT_SEARCH).status is Status.INFEASIBLE


def test_least_time_is_of_all_choices_too() -> None:
    of = chain(3)
    options = dataclasses.replace(SHORT_SEARCH, objective=Objective.TIME)
    limits = Limits(ram_budget_bytes=keep_bytes(of.resolved(())) - 4)
    found = solve(of, limits, options)
    assert found.trace is not None
    assert taken(of, found)
    assert found.objective_bound is not None
    assert of.compute_seconds <= found.objective_bound <= found.trace.seconds


def test_a_plan_to_start_from_says_what_is_taken() -> None:
    of = chain(6)
    names = [each.name for each in of.alternatives]
    limits = Limits(ram_budget_bytes=keep_bytes(of.resolved(names)) - 1)
    first = solve(of, limits, SHORT_SEARCH)
    again = solve(of, limits, SolveOptions(0.5, start=Start(first.schedule)))
    assert again.joules is not None
    assert first.joules is not None
    assert again.joules <= first.joules + 1e-9


def test_the_best_plan_that_is_told_never_gets_worse_from_choice_to_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the search of each choice tells is replaced by amounts that rise."""
    told, amounts = list[float | None](), iter((20.0, 30.0, 40.0, 50.0))
    whole = objectives.solve

    def solving(problem: Problem, limits: Limits, options: SolveOptions) -> Solution:
        found = whole(problem, limits, dataclasses.replace(options, progress=None))
        if options.progress is not None and found.trace is not None:
            amount = next(amounts, 60.0)
            options.progress(amount, 0.0, None, 0.0)
            return dataclasses.replace(found, trace=dataclasses.replace(found.trace, joules=amount))
        return found

    monkeypatch.setattr(objectives, "solve", solving)
    of = chain(4)
    limits = Limits(ram_budget_bytes=keep_bytes(of.resolved(())) - 20)
    monkeypatch.setattr(alternatives.Choices, "keeps", lambda *_: False)  # else that ends the search
    options = counted(1e4)
    solve(of, limits, dataclasses.replace(options, progress=lambda amount, *_: told.append(amount)))
    assert len(told) > 1
    assert set(told) == {20.0}


def test_pins_name_what_has_to_be_there() -> None:
    of = chain(3)
    found = solve(of, Limits(ram_budget_bytes=1000, pins=Pins(keep=("s0",))), SHORT_SEARCH)
    assert found.status is Status.OPTIMAL
    assert taken(of, found) == {"short0"}


def keep_all_fits_with_two() -> tuple[Problem, Limits]:
    """Six layers; the RAM needs two short forms, and five of them take longer than the deadline."""
    of = chain(6)
    return of, Limits(ram_budget_bytes=keep_bytes(of.resolved(())) - 20, deadline_seconds=12.035)


def test_forms_that_all_together_are_too_slow_are_taken_as_far_as_the_deadline_allows() -> None:
    of, limits = keep_all_fits_with_two()
    assert keep_everything(of.resolved([each.name for each in of.alternatives]), limits) is None
    found = solve(of, limits, SHORT_SEARCH)
    assert taken(of, found) == {"short0", "short1"}
    assert found.joules == pytest.approx(12.03)


def test_what_is_limited_is_weighed_where_the_objective_does_not_count_it() -> None:
    of, limits = keep_all_fits_with_two()
    cheap_are_slow = tuple(
        dataclasses.replace(
            each,
            ops=tuple(
                dataclasses.replace(op, joules=1.5 - op.seconds / 4 if op.seconds > 1.0 else op.joules)
                for op in each.ops
            ),
        )
        for each in of.alternatives
    )
    of = dataclasses.replace(of, alternatives=cheap_are_slow)
    found = solve(of, limits, SHORT_SEARCH)
    assert taken(of, found) == {"short0", "short1"}
    with_budget = dataclasses.replace(limits, joules_budget=12.53, deadline_seconds=None)
    found = solve(of, with_budget, dataclasses.replace(SHORT_SEARCH, objective=Objective.TIME))
    assert found.joules is not None
    assert found.joules <= 12.53


def test_one_choice_that_has_no_plan_does_not_speak_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    of = chain(6)
    budget_bytes = keep_bytes(of.resolved([each.name for each in of.alternatives])) - 1
    limits = Limits(ram_budget_bytes=budget_bytes, deadline_seconds=12.05)
    found = solve(of, limits, dataclasses.replace(SHORT_SEARCH, time_limit_seconds=0.0))
    assert (found.status, found.schedule, found.proof) == (Status.TIMEOUT, None, "")
    assert found.message.startswith("The time limit passed. ")
    assert " choices of forms of the ops were searched; with another, or in longer, " in found.message


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(deadline_seconds=11.0), "Running every op once takes 12 s in the fastest forms"),
        (Limits(ram_budget_bytes=31), "chain needs at least 34 bytes (34 B)"),
        (Limits(ram_budget_bytes=31, pins=Pins(keep=("s1",))), "chain needs at least 34 bytes (34 B)"),
    ],
)
def test_what_no_choice_allows_is_said_of_all(limits: Limits, said: str) -> None:
    found = solve(chain(6), limits, SHORT_SEARCH)
    assert found.status is Status.INFEASIBLE
    assert found.message.startswith(said)


def test_pins_are_not_searched_in_choices_without_what_they_name() -> None:
    of = chain(4)
    least = minimum_ram_bytes(of).bytes
    limits = Limits(ram_budget_bytes=least, pins=Pins(keep=("s1", "a0")))
    found = solve(of, limits, SHORT_SEARCH)
    assert (found.status, found.schedule) == (Status.INFEASIBLE, None)
    assert "names no tensor" not in found.message
    few = solve_few(of, limits)
    assert (few.status, few.schedule) == (Status.TIMEOUT, None)
    assert "The time limit passed" not in few.why_no_plan
    of_ram = dataclasses.replace(SHORT_SEARCH, objective=Objective.RAM, time_limit_seconds=0.2)
    assert solve(of, Limits(pins=Pins(keep=("s1",))), of_ram).schedule is not None


@pytest.mark.parametrize("layers", [3, 6])
@pytest.mark.parametrize("objective", [Objective.RAM, Objective.WRITES])
def test_a_plan_to_start_from_does_not_fix_the_choice(layers: int, objective: Objective) -> None:
    of = chain(layers)
    options = dataclasses.replace(SHORT_SEARCH, objective=objective, time_limit_seconds=0.5)
    wasteful = keep_everything(of.resolved(()), Limits())
    limits = Limits(paging=False, recompute=False)
    fresh = solve(of, limits, options)
    again = solve(of, limits, dataclasses.replace(options, start=Start(wasteful)))
    assert fresh.amount is not None
    assert again.amount is not None
    assert again.amount <= fresh.amount
    assert again.status is fresh.status


@pytest.mark.parametrize("layers", [3, 6])
@pytest.mark.parametrize("objective", list(Objective))
def test_no_answer_is_above_a_valid_plan_to_start_from(layers: int, objective: Objective) -> None:
    of = chain(layers)
    budget_bytes = keep_bytes(of.resolved([each.name for each in of.alternatives])) - 1
    limits = Limits(ram_budget_bytes=budget_bytes)
    start = solve(of, limits, dataclasses.replace(SHORT_SEARCH, time_limit_seconds=0.2)).schedule
    assert start is not None
    options = SolveOptions(0.0, objective=objective, start=Start(start))
    found = solve(of, limits, options)
    assert found.schedule is not None
    assert found.amount is not None
    assert found.amount <= amount_of(objective, simulate(of, start, limits))
    assert simulate(of, found.schedule, limits) == found.trace
    assert found.bound is not None
    assert found.bound <= found.amount


def test_a_start_outside_the_limits_does_not_say_what_is_taken() -> None:
    of, limits = keep_all_fits_with_two()
    all_taken = frozenset(each.name for each in of.alternatives)
    keeping = keep_everything(of.resolved(all_taken), Limits())
    assert keeping is not None
    tight = dataclasses.replace(limits, ram_budget_bytes=(limits.ram_budget_bytes or 0) - 16)
    start = with_names(of, all_taken, keeping)
    found = solve(of, tight, dataclasses.replace(SHORT_SEARCH, time_limit_seconds=0.5, start=Start(start)))
    fresh = solve(of, tight, dataclasses.replace(SHORT_SEARCH, time_limit_seconds=0.5))
    assert (found.schedule is None) == (fresh.schedule is None)


def _judge_against_the_oracle(
    seed: int, *, tries_all: bool, make: Callable[[Problem, int], Problem] = forms.with_alternatives
) -> None:
    of = make(mixed_problem(seed, largest=5), seed)
    limits = random_limits(of.resolved(forms.choices_of(of)[-1]), seed, deadline=seed % 3 == 0)
    best = forms.least_joules(of, limits)
    found = (solve if tries_all else solve_few)(of, limits, SHORT_SEARCH)
    if best is None:
        assert found.schedule is None
        return
    optimum = simulate(of, best, limits).joules
    assert found.status is not Status.INFEASIBLE
    assert found.bound_joules <= optimum * (1 + 1e-9) + 1e-9
    assert limits.ram_budget_bytes is not None
    assert minimum_ram_bytes(of, limits).bytes <= limits.ram_budget_bytes
    if found.schedule is not None:
        joules = simulate(of, found.schedule, limits).joules
        assert found.joules == joules >= optimum - 1e-9
        assert found.status is not Status.OPTIMAL or joules <= optimum * (1 + 1e-5) + 1e-9


@pytest.mark.parametrize("seed", [2, 5, 7, 11])
@pytest.mark.parametrize("tries_all", [True, False])
def test_no_bound_is_above_the_optimum(seed: int, *, tries_all: bool) -> None:
    _judge_against_the_oracle(seed, tries_all=tries_all)


@pytest.mark.parametrize("seed", with_slow(range(1, 13), {2, 3, 5, 6, 8, 9, 11, 12}))
def test_nor_where_the_forms_need_other_workspaces(seed: int) -> None:
    _judge_against_the_oracle(seed, tries_all=seed % 2 == 0, make=forms.with_workspaces)


@pytest.mark.parametrize("seed", with_slow(range(1, 17), {3, 6}))
def test_nor_where_rows_are_updated_in_storage(seed: int) -> None:
    _judge_against_the_oracle(seed, tries_all=seed % 2 == 0, make=forms.with_row_updates)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 30))
@pytest.mark.parametrize("tries_all", [True, False])
def test_no_bound_is_above_the_optimum_of_more(seed: int, *, tries_all: bool) -> None:
    _judge_against_the_oracle(seed, tries_all=tries_all)


@pytest.mark.parametrize("objective", [Objective.ENERGY, Objective.TIME, Objective.WRITES])
def test_ctrl_c_while_forms_are_weighed_keeps_the_best_plan(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = chain(6)
    options = dataclasses.replace(SHORT_SEARCH, objective=objective)
    names = [each.name for each in of.alternatives]
    kept = Limits(ram_budget_bytes=keep_bytes(of.resolved(())) - 20)
    low = Limits(ram_budget_bytes=keep_bytes(of.resolved(names)) - 1)
    start = solve_few(of, low, dataclasses.replace(SHORT_SEARCH, time_limit_seconds=0.3)).schedule
    assert start is not None

    def press(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(alternatives, "refined_bounds", press)
    none = solve(of, low, options)
    assert (none.status, none.schedule) == (Status.TIMEOUT, None)
    from_start = solve(of, low, dataclasses.replace(options, start=Start(start)))
    assert from_start.schedule == start
    assert from_start.status is Status.FEASIBLE or objective is Objective.WRITES
    every = solve(of, kept, options)
    if objective is not Objective.WRITES:  # of which keeping everything takes none, and is not looked for
        assert every.schedule is not None
        assert simulate(of.resolved(taken(of, every)), without_names(every.schedule), kept) == every.trace
        assert every.status is Status.FEASIBLE
    for found in (none, from_start, every):
        assert found.was_interrupted
        assert found.objective is objective
        assert found.message == ("" if found.status is Status.OPTIMAL else "Stopped by the user.")
