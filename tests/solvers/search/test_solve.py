"""solve(): proven optima on the published instances, the oracle's on random ones, honest statuses."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest
from helpers.clocks import counted
from helpers.oracle import least_joules, least_ram_bytes
from helpers.pace import few_or_many
from helpers.random_problems import mixed_problem, random_limits, training_like

from poet.errors import InputError
from poet.problem import Limits, Place, Problem, ProblemOp, Tensor, Transfer
from poet.problem.simulator import simulate
from poet.problem.solution import Solution, SolveOptions, Status, solution_to_json
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.engines import available_engines
from poet.solvers.heuristics.policies import keep_everything

INSTANCES = Path(__file__).parents[2] / "instances"


def instance(name: str) -> Problem:
    return Problem.load(INSTANCES / f"{name}.json")


def keep_peak_bytes(problem: Problem) -> int:
    schedule = keep_everything(problem, Limits())
    assert schedule is not None
    return simulate(problem, schedule).peak_ram_bytes


def budget_bytes(problem: Problem, share: float | None) -> int:
    """A share of the keep-everything peak; ``None``: the lower bound."""
    if share is None:
        return minimum_ram_bytes(problem).bytes
    return int(share * keep_peak_bytes(problem))


def assert_honest(problem: Problem, limits: Limits, solution: Solution) -> None:
    """What a solution says of itself is so."""
    if solution.schedule is None:
        assert solution.trace is None
        assert solution.status in (Status.INFEASIBLE, Status.TIMEOUT)
        return
    trace = simulate(problem, solution.schedule, limits)
    assert trace == solution.trace
    assert solution.bound_joules <= trace.joules
    assert solution.status is not Status.OPTIMAL or (solution.gap or 0.0) <= 1e-6


@pytest.mark.parametrize(
    ("name", "share", "overhead_percent"),
    [
        ("linear.m4", 0.8, 0.0),
        pytest.param("linear.m4", 0.5, 1.0895, marks=pytest.mark.slow),
        ("linear.m4", None, 1.1311),
        ("transformer.m4", None, 4.3353),
        pytest.param("resnet18_cifar.m4", 0.8, 0.0388, marks=pytest.mark.slow),
        pytest.param("resnet18_cifar.a72", 0.8, 0.0388, marks=pytest.mark.slow),
        pytest.param("resnet18_cifar.a72", 0.5, 0.1112, marks=pytest.mark.slow),
        pytest.param("resnet18_cifar.a72", None, 0.2464, marks=pytest.mark.slow),
        pytest.param("resnet18_cifar.m4", 0.5, 0.1242, marks=pytest.mark.slow),
    ],
)
def test_published_instances_are_solved_to_proven_optimum(
    name: str, share: float | None, overhead_percent: float
) -> None:
    check_optimum(name, share, overhead_percent)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "share", "overhead_percent"),
    [
        ("resnet18_cifar.a72", 0.2, 0.2025),
        ("resnet18_cifar.m4", 0.3, 1.3847),
        ("resnet18_cifar.m4", None, 27.1030),
    ],
)
def test_deep_recomputation_is_solved_to_proven_optimum(
    name: str, share: float | None, overhead_percent: float
) -> None:
    check_optimum(name, share, overhead_percent)


def check_optimum(name: str, share: float | None, overhead_percent: float) -> None:
    problem = instance(name)
    limits = Limits(ram_budget_bytes=budget_bytes(problem, share))
    solution = solve(problem, limits, counted(120.0))
    assert solution.status is Status.OPTIMAL
    assert solution.overhead_joules is not None
    assert 100 * solution.overhead_joules / problem.compute_joules == pytest.approx(
        overhead_percent, abs=6e-5
    )
    assert_honest(problem, limits, solution)


def against_oracle(seeds: range, *, smallest: int, largest: int) -> tuple[int, int]:
    """Solve each seed and compare; how many there were, and how many were proven."""
    proven = 0
    for seed in seeds:
        problem = mixed_problem(seed, smallest=smallest, largest=largest)
        limits = random_limits(problem, seed, deadline=seed % 3 == 0)
        best = least_joules(problem, limits)
        solution = solve(problem, limits, counted(1.0))
        assert_honest(problem, limits, solution)
        proven += solution.status in (Status.OPTIMAL, Status.INFEASIBLE)
        if best is None:
            assert solution.joules is None, seed
            continue
        assert solution.joules is not None, seed
        joules = simulate(problem, best, limits).joules
        assert solution.bound_joules <= joules * (1 + 1e-6) + 1e-9, seed
        assert solution.joules >= joules * (1 - 1e-6), seed
        if not problem.background_storage:
            assert solution.joules <= joules * (1 + 1e-6) + 1e-9, seed
    return len(seeds), proven


@few_or_many("seeds", range(12), range(12, 120))
def test_small_random_problems_equal_the_oracle(seeds: range) -> None:
    count, proven = against_oracle(seeds, smallest=3, largest=5)
    assert proven >= 0.8 * count


@pytest.mark.slow
def test_many_random_problems_equal_the_oracle() -> None:
    count, proven = against_oracle(range(1000, 2000), smallest=4, largest=6)
    assert proven >= 0.9 * count


def test_storage_beside_compute_that_nothing_may_use_is_as_good_as_none() -> None:
    """Small sets in RAM are searched as where storage blocks, so the gap is closed by proof."""
    mixed = mixed_problem(59, largest=7)
    in_ram = tuple(
        dataclasses.replace(
            tensor,
            initially=None if tensor.initially is None else Place.RAM,
            finally_=None if tensor.finally_ is None else Place.RAM,
        )
        for tensor in mixed.tensors
    )
    problem = dataclasses.replace(mixed, tensors=in_ram, background_storage=True)
    limits = dataclasses.replace(random_limits(problem, 59), paging=False)
    found = solve(problem, limits, counted(5.0))
    blocking = solve(dataclasses.replace(problem, background_storage=False), limits, counted(5.0))
    assert found.status is blocking.status is Status.OPTIMAL
    assert found.joules is not None
    assert found.joules > problem.compute_joules
    assert found.joules == blocking.joules


@pytest.mark.slow
def test_deep_recomputation_is_planned_and_bounded() -> None:
    problem = instance("resnet18_cifar.m4")
    limits = Limits(ram_budget_bytes=budget_bytes(problem, 0.2))
    solution = solve(problem, limits, counted(60.0))
    assert solution.overhead_joules is not None
    assert solution.overhead_joules <= 0.0786 * problem.compute_joules
    assert solution.bound_joules >= 1.0640 * problem.compute_joules
    assert_honest(problem, limits, solution)


def test_the_lower_bound_on_ram_is_reached_where_everything_can_be_paged() -> None:
    for seed in range(30):
        problem = mixed_problem(seed, smallest=3, largest=5)
        bound = minimum_ram_bytes(problem)
        least = least_ram_bytes(problem, Limits())
        assert least is None or bound.bytes <= least, seed
        storage_is_endless = problem.storage_capacity_bytes is None
        if storage_is_endless and all(tensor.page_in and tensor.page_out for tensor in problem.tensors):
            assert bound.bytes == least, seed


def chain(budget: int, **limits: object) -> tuple[Problem, Limits]:
    page = Transfer(0.1, 1.0)
    tensors = tuple(Tensor(f"t{i}", 10 + i, page, page) for i in range(4))
    ops = (
        ProblemOp("first", ("t0",), ("t1",), 1.0, 5.0),
        ProblemOp("second", ("t1",), ("t2",), 1.0, 5.0, workspace_bytes=5),
        ProblemOp("third", ("t0", "t2"), ("t3",), 1.0, 5.0),
    )
    return Problem("chain", tensors, ops), dataclasses.replace(Limits(ram_budget_bytes=budget), **limits)  # type: ignore[arg-type]


def test_an_infeasible_answer_names_what_binds_and_a_budget_that_works() -> None:
    problem, limits = chain(34)
    solution = solve(problem, limits)
    assert solution.status is Status.INFEASIBLE
    assert solution.schedule is None
    assert "op third holds t3 (13 B), t2 (12 B), t0 (10 B)" in solution.message
    assert solve(problem, Limits(ram_budget_bytes=35)).status is Status.OPTIMAL


def test_a_deadline_below_the_compute_time_is_infeasible_by_arithmetic() -> None:
    problem, limits = chain(100, deadline_seconds=2.9)
    solution = solve(problem, limits)
    assert solution.status is Status.INFEASIBLE
    assert "deadline of 2.9 s by 100 ms" in solution.message


def test_a_deadline_that_leaves_no_time_to_page_is_infeasible_by_proof() -> None:
    problem, limits = chain(35, deadline_seconds=3.1)
    assert least_joules(problem, limits) is None
    solution = solve(problem, limits)
    assert solution.status is Status.INFEASIBLE
    assert "deadline" in solution.message


def test_data_that_lives_in_storage_is_brought_and_written_back() -> None:
    page = Transfer(0.1, 1.0)
    tensors = (
        Tensor("weight", 10, page, page, initially=Place.STORAGE, finally_=Place.STORAGE),
        Tensor("x", 10),
        Tensor("gradient", 10),
    )
    ops = (
        ProblemOp("backward", ("weight", "x"), ("gradient",), 1.0, 1.0),
        ProblemOp("update", ("weight", "gradient"), (), 1.0, 1.0, updates=("weight",), recomputable=False),
    )
    problem = Problem("stored", tensors, ops)
    limits = Limits(ram_budget_bytes=30, paging=False)
    solution = solve(problem, limits)
    assert solution.status is Status.OPTIMAL
    assert solution.trace is not None
    assert solution.joules == pytest.approx(4.0)
    assert solution.trace.written_bytes == solution.trace.read_bytes == 10


def test_every_engine_finds_the_same_optimum() -> None:
    problem = instance("transformer.m4")
    limits = Limits(ram_budget_bytes=budget_bytes(problem, None))
    found = {
        engine: solve(problem, limits, SolveOptions(time_limit_seconds=None, engine=engine))
        for engine in available_engines()
    }
    assert {"highs", "cbc"} <= set(found)
    for solution in found.values():
        assert solution.status is Status.OPTIMAL
        assert solution.joules == pytest.approx(found["highs"].joules, rel=1e-6)


def test_an_engine_that_is_not_there_is_named() -> None:
    problem, limits = chain(40)
    with pytest.raises(
        InputError, match=r"engine 'hihgs' does not exist; installed are highs.*did you mean 'highs'"
    ):
        solve(problem, limits, SolveOptions(engine="hihgs"))


def test_interrupted_by_time_the_bound_still_holds() -> None:
    problem = training_like(10)
    floor = minimum_ram_bytes(problem).bytes
    limits = Limits(ram_budget_bytes=int(floor + 0.3 * (keep_peak_bytes(problem) - floor)))
    reports: list[tuple[float | None, float, float | None, float]] = []
    short = solve(problem, limits, counted(0.1, progress=lambda *report: reports.append(report)))
    assert_honest(problem, limits, short)
    assert short.status in (Status.FEASIBLE, Status.OPTIMAL)
    bounds = [bound for _, bound, _, _ in reports]
    assert bounds == sorted(bounds)
    plans = [joules for joules, _, _, _ in reports if joules is not None]
    assert plans == sorted(plans, reverse=True)
    longer = solve(problem, limits, counted(0.2))
    assert longer.joules is not None
    assert short.bound_joules <= longer.joules


@pytest.mark.parametrize("at_work", [False, True])
def test_ctrl_c_keeps_the_best_plan(at_work: bool) -> None:
    """As soon as there is a plan, or when an engine has told a bound; nothing else would end this search."""
    problem = training_like(30)
    floor = minimum_ram_bytes(problem).bytes
    limits = Limits(ram_budget_bytes=int(floor + 0.3 * (keep_peak_bytes(problem) - floor)))
    pressed = list[float]()

    def press(joules: float | None, bound: float, gap: float | None, seconds: float) -> None:
        if not pressed and joules is not None and (bound > problem.compute_joules or not at_work):
            pressed.append(bound)
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:  # whoever started the tests may ignore the signal
        solution = solve(problem, limits, SolveOptions(time_limit_seconds=None, progress=press))
    finally:
        signal.signal(signal.SIGINT, before)
    assert pressed
    assert solution.was_interrupted
    assert solution.message == "Stopped by the user."
    assert solution.schedule is not None
    assert_honest(problem, limits, solution)


def test_the_json_answer_has_the_fields_of_the_format() -> None:
    problem, limits = chain(35)
    solution = solve(problem, limits)
    answer = solution_to_json(problem, solution)
    promised = "status joules bound_joules gap seconds peak_ram_bytes solve_seconds solver schedule"
    assert set(promised.split()) <= set(answer)
    assert answer["status"] == "optimal"
    assert answer["schedule"][0].keys() == {"do", "what"}
    failed = solution_to_json(problem, solve(*chain(20)))
    assert failed["status"] == "infeasible"
    assert failed["schedule"] is failed["joules"] is None


def test_statuses_are_sentences_and_words() -> None:
    assert [status.word for status in Status] == ["optimal", "feasible", "infeasible", "timeout"]
    assert all(status.value.endswith(".") for status in Status)
