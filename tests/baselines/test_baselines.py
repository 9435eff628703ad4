"""Tests over the registry of baselines, and what greedy promises as a first answer."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import pytest
from helpers.clocks import counted
from helpers.oracle import least_joules
from helpers.pace import few_or_many, with_slow
from helpers.random_problems import (
    floor_bytes,
    keep_bytes,
    mixed_problem,
    random_limits,
    random_problem,
    training_like,
)

from poet.baselines.chain import chain_of, schedule_of_runs
from poet.baselines.chen import chen
from poet.baselines.comparison import BASELINES, EXACT_BASELINES
from poet.baselines.nothing_kept import page_everything, recompute_all
from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.schedule import Compute, Free, PageIn, PageOut, Schedule
from poet.problem.simulator import simulate
from poet.solvers.heuristics.greedy import greedy
from poet.solvers.heuristics.policies import keep_everything
from poet.solvers.instance.incumbent import overlap
from poet.solvers.instance.instance import Facts
from poet.util.clock import WorkClock

INSTANCES = sorted((Path(__file__).parents[1] / "instances").glob("*.json"))


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("block", with_slow(range(3), {1, 2}))
def test_whatever_a_baseline_returns_is_valid(name: str, block: int) -> None:
    answered = 0
    for seed in range(block * 20, block * 20 + 20):
        of = mixed_problem(seed, largest=12)
        limits = random_limits(of, seed, deadline=seed % 4 == 3)
        for within in (limits, dataclasses.replace(limits, ram_budget_bytes=keep_bytes(of))):
            schedule = BASELINES[name](of, within)
            if schedule is not None:
                simulate(of, schedule, within)
                answered += 1
    assert answered > 5


@functools.cache
def with_the_best(seed: int) -> tuple[Problem, Limits, Schedule | None]:
    """A small problem and its best schedule by the oracle, the same for every baseline."""
    of = mixed_problem(seed, largest=5)
    limits = random_limits(of, seed, deadline=seed % 5 == 0)
    return of, limits, least_joules(of, limits)


@few_or_many("seeds", range(25), range(25, 80))
@pytest.mark.parametrize("name", BASELINES)
def test_no_baseline_is_better_than_the_best(name: str, seeds: range) -> None:
    for seed in seeds:
        of, limits, best = with_the_best(seed)
        schedule = BASELINES[name](of, limits)
        if best is None:
            assert schedule is None
        elif schedule is not None:
            least = simulate(of, best, limits).joules
            assert simulate(of, schedule, limits).joules >= least * (1 - 1e-12)


def test_greedy_finds_a_plan_in_the_least_budget_where_paging_is_allowed() -> None:
    """Where all may move, the largest op is all that counts (DESIGN: section "Choosing")."""
    features = (
        "outputs",
        "workspace",
        "updates",
        "initially",
        "finally",
        "once",
        "recompute_inputs",
        "random",
    )
    for seed in range(250):
        chosen = [name for index, name in enumerate(features) if (seed + index * 3) % 5 < 2]
        of = random_problem(seed, ops=4 + seed % 12, features=chosen)
        limits = Limits(ram_budget_bytes=floor_bytes(of), recompute=seed % 3 > 0)
        schedule = greedy(of, limits, seconds=0.0)
        assert schedule is not None
        simulate(of, schedule, limits)


@pytest.mark.slow
def test_greedy_is_near_the_best_on_small_problems() -> None:
    optimal = compared = 0
    for seed in range(100):
        of = mixed_problem(seed, largest=6)
        limits = random_limits(of, seed)
        best = least_joules(of, limits)
        schedule = greedy(of, limits)
        if best is not None and schedule is not None:
            compared += 1
            least = simulate(of, best, limits).joules
            optimal += simulate(of, schedule, limits).joules <= least * (1 + 1e-9)
    assert compared > 70
    assert optimal > 0.85 * compared


@pytest.mark.parametrize("place", with_slow([Place.RAM, Place.STORAGE], {Place.RAM}))
@pytest.mark.slow
def test_greedy_is_quick_on_two_thousand_ops(place: Place) -> None:
    of = training_like(220, parameters=place, momentum=True)
    assert len(of.ops) > 1800
    keep = keep_everything(of, Limits())
    assert keep is not None
    low, high = floor_bytes(of), simulate(of, keep).peak_ram_bytes
    for share in (0.5, 0.0):
        limits = Limits(ram_budget_bytes=low + int(share * (high - low)))
        clock = WorkClock(schedule_seconds=1.0)
        schedule = greedy(of, limits, clock=clock)
        assert schedule is not None
        overhead = simulate(of, schedule, limits).joules / of.compute_joules - 1
        paged = page_everything(of, limits)
        assert paged is not None
        assert overhead < 0.6 * (simulate(of, paged, limits).joules / of.compute_joules - 1)
        assert clock.now() <= 20.0  # schedules made and judged; hundreds for ten ops


@pytest.mark.slow
def test_greedy_heeds_a_deadline() -> None:
    of = training_like(12)
    keep = keep_everything(of, Limits())
    assert keep is not None
    budget = (floor_bytes(of) + simulate(of, keep).peak_ram_bytes) // 2
    relaxed = greedy(of, Limits(ram_budget_bytes=budget))
    assert relaxed is not None
    assert greedy(of, Limits(ram_budget_bytes=budget, deadline_seconds=of.compute_seconds)) is None
    seconds = simulate(of, relaxed).seconds
    limits = Limits(ram_budget_bytes=budget, deadline_seconds=1.01 * seconds)
    hasty = greedy(of, limits)
    assert hasty is not None
    simulate(of, hasty, limits)


@pytest.mark.parametrize("path", with_slow(INSTANCES, INSTANCES[:-1]), ids=lambda path: path.stem)
def test_baselines_in_order_on_the_published_instances(path: Path) -> None:
    of = Problem.load(path)
    keep = keep_everything(of, Limits())
    assert keep is not None
    trace = simulate(of, keep)
    assert trace.joules == pytest.approx(of.compute_joules)
    low, high = floor_bytes(of), trace.peak_ram_bytes
    assert keep_everything(of, Limits(ram_budget_bytes=high - 1)) is None
    overheads = []
    for share in (0.8, 0.5, 0.2, 0.0):
        limits = Limits(ram_budget_bytes=max(low, int(high * share)))
        results = {name: baseline(of, limits) for name, baseline in BASELINES.items()}
        joules = {name: simulate(of, s, limits).joules for name, s in results.items() if s is not None}
        assert joules["greedy"] <= min(joules.values()) * (1 + 1e-12)
        assert "page-everything" in joules
        overheads.append(joules["greedy"] - of.compute_joules)
    assert overheads == sorted(overheads)


@pytest.mark.parametrize("name", EXACT_BASELINES)
def test_exact_baselines_are_best_within_their_restriction(name: str) -> None:
    answered = 0
    for seed in range(25):
        of = mixed_problem(seed, largest=5)
        limits = random_limits(of, seed)
        without = {"checkmate": "paging", "optimal-paging": "recompute"}[name]
        allowed = dataclasses.replace(
            limits,
            paging=limits.paging and without != "paging",
            recompute=limits.recompute and without != "recompute",
        )
        best = least_joules(of, allowed)
        schedule = EXACT_BASELINES[name](of, limits, counted(1.0)).schedule
        assert (schedule is None) == (best is None)
        if schedule is not None and best is not None:
            answered += 1
            least = simulate(of, best, allowed).joules
            assert simulate(of, schedule, allowed).joules == pytest.approx(least, rel=1e-6)
    assert answered > 10


# --- each baseline on a chain of eight layers, worked by hand ------------------------------------


def chain(layers: int = 8) -> Problem:
    """a0 → a1 → … → a8, then backward ops that read a gradient and the activation, 1 byte each."""
    move = Transfer(0.5, 0.5)
    names = [f"a{i}" for i in range(layers + 1)] + [f"g{i}" for i in range(layers)]
    ops = [ProblemOp(f"F{i}", (f"a{i - 1}",), (f"a{i}",), 1.0, 1.0) for i in range(1, layers + 1)]
    ops.append(ProblemOp(f"B{layers - 1}", (f"a{layers}", f"a{layers - 1}"), (f"g{layers - 1}",), 1.0, 1.0))
    back = reversed(range(layers - 1))
    ops += [ProblemOp(f"B{i}", (f"g{i + 1}", f"a{i}"), (f"g{i}",), 1.0, 1.0) for i in back]
    return Problem("chain", tuple(Tensor(name, 1, move, move) for name in names), tuple(ops))


def test_keep_everything_runs_each_op_once_and_moves_nothing() -> None:
    schedule = keep_everything(chain(), Limits())
    assert schedule is not None
    assert [step.op for step in schedule if isinstance(step, Compute)] == [op.name for op in chain().ops]
    assert not [step for step in schedule if isinstance(step, PageIn | PageOut)]
    assert simulate(chain(), schedule).peak_ram_bytes == 10
    for index, step in enumerate(schedule):  # freed at once: the step before last used it
        if isinstance(step, Free):
            before = [s for s in schedule[:index] if isinstance(s, Compute)][-1]
            op = next(op for op in chain().ops if op.name == before.op)
            assert step.tensor in (*op.inputs, *op.outputs)


def test_recompute_all_keeps_only_the_source() -> None:
    once = recompute_all(chain(), Limits())
    assert once is not None
    assert simulate(chain(), once).recomputed_runs == 6  # a1 to a6 once more; a7 and a8 are still there
    least = min(
        budget
        for budget in range(1, 20)
        if recompute_all(chain(), Limits(ram_budget_bytes=budget)) is not None
    )
    tight = recompute_all(chain(), Limits(ram_budget_bytes=least))
    assert tight is not None
    assert least == 4  # a0, the gradient, and two neighbours while one is made of the other
    assert simulate(chain(), tight).recomputed_runs == 6 + 5 + 4 + 3 + 2 + 1


def test_chen_recomputes_each_op_at_most_once_in_less_ram() -> None:
    deep = chain(64)
    kept, checkpointed = keep_everything(deep, Limits()), None
    assert kept is not None
    for budget in range(1, 70):
        checkpointed = checkpointed or chen(deep, Limits(ram_budget_bytes=budget))
    assert checkpointed is not None
    trace = simulate(deep, checkpointed)
    assert simulate(deep, kept).peak_ram_bytes == 66
    assert trace.peak_ram_bytes <= 2 * 8 + 5  # about two square roots of 64
    runs = [step.op for step in checkpointed if isinstance(step, Compute)]
    assert max(runs.count(op) for op in runs) == 2


def test_vdnn_pages_what_is_read_far_ahead() -> None:
    schedule = BASELINES["vdnn"](chain(), Limits(ram_budget_bytes=6))
    assert schedule is not None
    trace = simulate(chain(), schedule)
    assert trace.recomputed_runs == 0
    paged = {step.tensor for step in schedule if isinstance(step, PageOut)}
    assert {"a1", "a2"} <= paged
    assert "a7" not in paged  # read again at once


def test_capuchin_pages_where_it_hides_and_recomputes_where_that_delays_less() -> None:
    swift = BASELINES["capuchin"](chain(), Limits(ram_budget_bytes=7))
    assert swift is not None
    assert simulate(chain(), swift).recomputed_runs == 0
    slow = Transfer(50.0, 5.0)
    tensors = tuple(dataclasses.replace(t, page_in=slow, page_out=slow) for t in chain().tensors)
    of = dataclasses.replace(chain(), tensors=tensors)
    remade = BASELINES["capuchin"](of, Limits(ram_budget_bytes=7))
    assert remade is not None
    assert simulate(of, remade).recomputed_runs > 0


def test_dtr_drops_the_stalest_and_never_pages() -> None:
    schedule = BASELINES["dtr"](chain(), Limits(ram_budget_bytes=9))
    assert schedule is not None
    trace = simulate(chain(), schedule)
    assert (trace.written_bytes, trace.recomputed_runs) == (0, 1)


def test_delta_takes_the_cheaper_way() -> None:
    for share in (0.1, 5.0):
        move = Transfer(share, share)
        tensors = tuple(dataclasses.replace(t, page_in=move, page_out=move) for t in chain().tensors)
        of = dataclasses.replace(chain(), tensors=tensors)
        schedule = BASELINES["delta"](of, Limits(ram_budget_bytes=8))
        assert schedule is not None
        assert (simulate(of, schedule).recomputed_runs == 0) == (share < 1.0)


def test_overlap_hides_transfers_inside_the_same_ram() -> None:
    of = dataclasses.replace(chain(16), background_storage=True)
    plain = page_everything(chain(16), Limits(ram_budget_bytes=8))
    assert plain is not None
    before, moved = simulate(of, plain), overlap(of, plain, 8)
    after = simulate(of, moved, Limits(ram_budget_bytes=8))
    assert sorted(map(repr, moved)) == sorted(map(repr, plain))
    assert after.joules == before.joules
    assert after.seconds == of.compute_seconds  # every transfer runs beside an op
    assert before.seconds > 1.2 * after.seconds
    tight = simulate(of, overlap(of, plain, before.peak_ram_bytes))
    assert tight.peak_ram_bytes == before.peak_ram_bytes


def test_page_everything_needs_what_the_largest_op_needs() -> None:
    schedule = page_everything(chain(), Limits(ram_budget_bytes=3))
    assert schedule is not None
    trace = simulate(chain(), schedule)
    assert (trace.peak_ram_bytes, trace.recomputed_runs) == (3, 0)
    assert trace.written_bytes == trace.read_bytes == 7  # a0 to a6
    assert page_everything(chain(), Limits(ram_budget_bytes=2)) is None


def test_greedy_takes_the_cheaper_way() -> None:
    limits = Limits(ram_budget_bytes=9)
    cheap_paging = greedy(chain(), limits)
    assert cheap_paging is not None
    assert simulate(chain(), cheap_paging, limits).joules == pytest.approx(16 + 1)
    dear = Transfer(0.5, 1.5)
    tensors = tuple(dataclasses.replace(t, page_in=dear, page_out=dear) for t in chain().tensors)
    remade = greedy(dataclasses.replace(chain(), tensors=tensors), limits)
    assert remade is not None
    assert simulate(chain(), remade, limits).recomputed_runs == 1


def test_rotor_leaves_out_reruns_whose_result_can_stay() -> None:
    """The input is made for nothing and dropped; everything else is small enough to stay."""
    of = Problem.load(INSTANCES[0])
    limits = Limits(ram_budget_bytes=3700)
    schedule, best = BASELINES["rotor"](of, limits), EXACT_BASELINES["checkmate"](of, limits, None)
    assert schedule is not None
    assert best.joules is not None
    assert simulate(of, schedule, limits).joules <= best.joules * 1.01


def test_stages_of_a_chain_hold_every_op_once() -> None:
    for of in (chain(), training_like(8), *(Problem.load(path) for path in INSTANCES)):
        stages = chain_of(Facts(of))
        ops = [op for stage in stages for op in (*stage.forward, *stage.backward)]
        assert sorted(ops) == list(range(len(of.ops)))
        order = [op for stage in stages for op in stage.forward]
        order += [op for stage in reversed(stages) for op in stage.backward]
        assert order == sorted(order)
        schedule = schedule_of_runs(Facts(of), order, frozenset())
        keep = keep_everything(of, Limits())
        assert schedule is not None
        assert keep is not None
        assert simulate(of, schedule).peak_ram_bytes == simulate(of, keep).peak_ram_bytes
