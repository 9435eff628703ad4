"""Sweeps: monotone where they must be, judged, cached by content, continued, and pruned without loss."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
from itertools import product
from pathlib import Path

import pytest
import torch
from helpers.pace import with_slow
from helpers.random_problems import mixed_problem
from helpers.worker_tasks import die, die_once, echo, hold, torch_threads
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from poet.errors import InputError
from poet.planning.cache import Cache, cell_key, digest_of
from poet.planning.prepared import prepare
from poet.planning.ram_survey import keep_everything_bytes
from poet.problem import Limits, Place, Problem
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Start, Status
from poet.solvers import solve
from poet.util import children
from poet.whatif import workers
from poet.whatif.grid import Question
from poet.whatif.models import TrainedAs
from poet.whatif.result import Origin, Verdict
from poet.whatif.settings import Asked, grid_of, profiles_of, setting_of, specs_of
from poet.whatif.sweep import Sweep, SweepProgress, Swept
from poet.whatif.workers import Task, Workers, working

TRANSFORMER = Path(__file__).parents[1] / "instances" / "transformer.m4.json"
QUICK = SolveOptions(time_limit_seconds=2.0)


def _sweep(
    problem: Problem, *, ram: str = "min..keep:4", cache: Cache | None = None, options: SolveOptions = QUICK
) -> Sweep:
    setting = setting_of(problem)
    question = Question("test", "", (), ram, ("1.1x", "1.5x", None), options=options)
    return Sweep([setting], [grid_of(setting, question)], options, cache or Cache(None))


def _swept(sweep: Sweep) -> Swept:
    with working(Workers()) as run:
        assert sweep.run(run)
    return sweep.swept()


def _least(swept: Swept, index: int) -> float:
    plan = swept.points[index].plan
    return float("inf") if plan is None else swept.plans[plan].joules


def _looser(one: Limits, other: Limits) -> bool:
    assert one.ram_budget_bytes is not None
    assert other.ram_budget_bytes is not None
    inf = float("inf")
    return one.ram_budget_bytes >= other.ram_budget_bytes and (one.deadline_seconds or inf) >= (
        other.deadline_seconds or inf
    )


def _check_monotone(swept: Swept) -> None:
    for one, other in product(range(len(swept.points)), repeat=2):
        loose, tight = swept.points[one], swept.points[other]
        if not _looser(loose.limits, tight.limits):
            continue
        assert _least(swept, one) <= _least(swept, other), "more RAM or time cost energy"
        assert loose.bound_joules <= tight.bound_joules or tight.verdict is Verdict.INFEASIBLE
        if loose.verdict is Verdict.INFEASIBLE:
            assert tight.verdict is Verdict.INFEASIBLE


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000))
def test_more_ram_and_later_deadlines_never_cost_energy(seed: int) -> None:
    _check_law(mixed_problem(seed, largest=6))


def _check_law(problem: Problem) -> None:
    try:
        keep_everything_bytes(problem)
    except InputError:  # storage too small for any plan
        return
    swept = _swept(_sweep(problem))
    _check_monotone(swept)
    for point in swept.points:
        if point.plan is None:
            continue
        trace = simulate(problem, swept.plans[point.plan].schedule, point.limits)
        assert trace.joules == swept.plans[point.plan].joules
        assert point.bound_joules <= trace.joules


@pytest.mark.parametrize("seed", with_slow(range(3), {1, 2}))
def test_pruned_points_are_what_their_own_search_would_find(seed: int) -> None:
    """A point decided by its neighbours has the optimum of a search of its own, or neither has a plan."""
    problem = mixed_problem(900 + seed)
    swept = _swept(_sweep(problem))
    for point in swept.points:
        if point.origin not in (Origin.NEIGHBOUR, Origin.ARITHMETIC):
            continue
        alone = solve(problem, point.limits, SolveOptions(time_limit_seconds=10.0))
        assert (alone.status is Status.INFEASIBLE) == (point.verdict is Verdict.INFEASIBLE)
        if point.verdict is Verdict.OPTIMAL:
            assert point.plan is not None
            assert alone.joules is not None
            assert swept.plans[point.plan].joules <= alone.joules * (1 + 1e-6)


@pytest.mark.slow
def test_pruning_spares_searches_and_warm_starts_name_where_they_come_from() -> None:
    swept = _swept(_sweep(Problem.load(TRANSFORMER), ram="min..keep:8"))
    origins = [point.origin for point in swept.points]
    assert origins.count(Origin.SEARCH) < len(origins)
    assert {Origin.SEARCH, Origin.NEIGHBOUR} <= set(origins)
    begun = [point for point in swept.points if point.warm_start is not None]
    assert begun
    for point in begun:
        assert point.warm_start is not None
        donor = swept.points[point.warm_start]
        assert donor.plan is not None
        assert donor.limits.ram_budget_bytes is not None
        assert point.limits.ram_budget_bytes is not None


@pytest.mark.slow
def test_a_repeated_sweep_searches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.load(TRANSFORMER)
    first = _swept(_sweep(problem, cache=Cache(tmp_path)))

    def no_search(*arguments: object) -> bytes:
        raise AssertionError("searched again")

    monkeypatch.setattr(workers, "solve", no_search)
    second = _swept(_sweep(problem, cache=Cache(tmp_path)))
    assert Origin.SEARCH not in {point.origin for point in second.points}
    assert [_least(first, index) for index in range(len(first.points))] == [
        _least(second, index) for index in range(len(second.points))
    ]
    with pytest.raises(AssertionError, match="searched again"):
        _swept(_sweep(problem, cache=Cache(tmp_path), options=dataclasses.replace(QUICK, seed=1)))


@pytest.mark.slow
def test_an_interrupted_sweep_keeps_what_is_there_and_goes_on(tmp_path: Path) -> None:
    problem = Problem.load(TRANSFORMER)
    sweep = _sweep(problem, cache=Cache(tmp_path))

    def interrupt(progress: SweepProgress) -> None:
        if len(sweep.searched) == 2:
            raise KeyboardInterrupt

    sweep.report = interrupt
    with working(Workers()) as run:
        assert not sweep.run(run)
    partial = sweep.swept()
    assert sum(point.origin is Origin.SEARCH for point in partial.points) == 2
    assert any(point.plan is not None for point in partial.points)
    assert any(point.verdict in (Verdict.UNSOLVED, Verdict.FEASIBLE) for point in partial.points)

    whole = _swept(_sweep(problem, cache=Cache(tmp_path)))
    assert sum(point.origin is Origin.CACHE for point in whole.points) == 2
    assert Verdict.UNSOLVED not in {point.verdict for point in whole.points}
    fresh = _swept(_sweep(problem))
    for index in range(len(fresh.points)):
        assert _least(whole, index) == pytest.approx(_least(fresh, index), rel=1e-6)


@pytest.mark.slow
def test_the_time_left_ends_at_nothing() -> None:
    said: list[SweepProgress] = []
    sweep = _sweep(Problem.load(TRANSFORMER))
    sweep.report = said.append
    _swept(sweep)
    assert said[-1].done == said[-1].total
    assert said[-1].seconds_left == 0.0
    assert said[0].seconds_left is None
    assert any(now.seconds_left for now in said)


# --- the cache --------------------------------------------------------------------------------


def test_keys_tell_problems_limits_and_options_apart() -> None:
    digests = [digest_of(mixed_problem(seed).to_json()) for seed in (1, 2)]
    limits = [Limits(), Limits(ram_budget_bytes=100), Limits(deadline_seconds=2.0), Limits(paging=False)]
    options = [QUICK, dataclasses.replace(QUICK, time_limit_seconds=3.0), dataclasses.replace(QUICK, seed=1)]
    keys = {cell_key(*parts) for parts in product(digests, limits, options)}
    assert len(keys) == len(digests) * len(limits) * len(options)
    started = dataclasses.replace(QUICK, start=Start(()))
    assert cell_key(digests[0], limits[0], started) == cell_key(digests[0], limits[0], QUICK)


def test_a_cache_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="--cache"):
        Cache(tmp_path / "file").write("answers", "key", b"")


# --- workers ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_nothing_with_it(tmp_path: Path) -> None:
    """The first run of one task kills its worker: every task is answered all the same."""
    tasks: list[Task] = [functools.partial(echo, index) for index in range(6)]
    tasks[2] = functools.partial(die_once, str(tmp_path / "died"), 2)
    with working(Workers(jobs=2)) as run:
        answers = dict(run(tasks))
    assert answers == {index: str(index).encode() for index in range(6)}
    assert (tmp_path / "died").exists()


@pytest.mark.slow
@pytest.mark.parametrize("asked", [None, "1"])
def test_workers_measure_kernels_with_the_threads_of_a_plan(
    asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """joblib gives each of its workers a part of the processors; kernels of fewer threads need less RAM."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    code = children.command_of("import torch; print(torch.get_num_threads())")
    alone = subprocess.run(code, env=children.environment(), capture_output=True, check=True, timeout=60)
    with working(Workers(jobs=2)) as run:
        answers = dict(run([functools.partial(torch_threads)]))
    assert answers == {0: alone.stdout.strip()}


@pytest.mark.slow
def test_a_task_that_always_takes_its_worker_down_is_given_up_alone() -> None:
    tasks: list[Task] = [functools.partial(echo, 0), functools.partial(die), functools.partial(echo, 2)]
    with working(Workers(jobs=2)) as run:
        assert dict(run(tasks)) == {0: b"0", 1: None, 2: b"2"}


@pytest.mark.slow
def test_the_memory_of_a_worker_is_bounded() -> None:
    bound = 512 * 2**20
    tasks: list[Task] = [functools.partial(hold, 16 * 2**20), functools.partial(hold, 2 * bound)]
    with working(Workers(jobs=1, memory_bytes=bound)) as run:
        answers = dict(run(tasks))
    assert answers[0] is not None
    assert answers[1] is None


@pytest.mark.parametrize("home", [Place.RAM, Place.EITHER])
def test_each_device_has_its_own_graph(home: Place) -> None:
    net = nn.Sequential(nn.Linear(600, 400), nn.ReLU(), nn.Linear(400, 4))
    inputs = torch.randn(2, 600)
    devices = ("rpi4b", "nrf52840", "rpi3b-plus")
    asked = Asked(
        model=net,
        example_inputs=inputs,
        profiles=profiles_of(",".join(devices)),
        specs=specs_of("sgd"),
        how=TrainedAs(),
        batch=None,
        bind=(),
        axes=(),
        home=home,
        cache=Cache(None),
        workers=Workers(1),
    )
    settings = asked.settings()
    assert [setting.device for setting in settings] == list(devices)
    for setting in settings:
        alone = prepare(net, inputs, device=setting.device, home=home).problem
        assert setting.problem.ops == alone.ops
        assert setting.problem.tensors == alone.tensors
    least_bytes = {setting.device: setting.lower_bound.bytes for setting in settings}
    assert least_bytes["nrf52840"] < least_bytes["rpi4b"], "an update beside its gradient needs less"
