"""The search on large problems: bounds that hold whenever it is stopped, judged plans, its clock, Ctrl-C."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.clocks import Ticking
from helpers.pace import with_slow
from helpers.random_problems import training_like

from poet.problem import Limits, Place, Problem
from poet.problem.schedule import Schedule
from poet.problem.simulator import simulate
from poet.problem.solution import SolveOptions, Status
from poet.solvers import minimum_ram_bytes, solve
from poet.solvers.engines import Effort, run_engine
from poet.solvers.engines import process as process_module
from poet.solvers.engines.process import EngineProcess
from poet.solvers.engines.program import Matrix
from poet.solvers.heuristics.greedy import greedy
from poet.util.children import held_bytes

LARGE = training_like(220, seed=5, momentum=True)
HEARS_SIGINT = (  # even where whoever started the tests ignores it, as shells do for jobs in the background
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from poet.cli.main import app; app()"
)
LIMITS_BYTES = ("HELD_BYTES", "COLUMN_BYTES", "CHILD_BYTES")
HANGS_SECONDS = 500.0  # a child that does not end by then never does


def tight(problem: Problem, share: float) -> Limits:
    least = minimum_ram_bytes(problem, Limits()).bytes
    most = sum(tensor.bytes for tensor in problem.tensors)
    return Limits(ram_budget_bytes=least + round(share * (most - least)))


def market_split() -> Matrix:
    """What no engine proves in any time."""
    rng = np.random.default_rng(0)
    rows, columns = 6, 60
    factors = rng.integers(0, 100, (rows, columns)).astype(np.float64)
    half = np.floor(factors.sum(axis=1) / 2)
    entries = np.concatenate([factors, -factors]).ravel()
    return Matrix(
        costs=rng.random(columns), offset=0.0, rows=np.repeat(np.arange(2 * rows), columns),
        columns=np.tile(np.arange(columns), 2 * rows), factors=entries,
        at_most=np.concatenate([half, -half]), integer=np.ones(columns, dtype=np.bool_),
        whole=np.ones(columns, dtype=np.bool_),
    )  # fmt: skip


def solved(child: EngineProcess, matrix: Matrix, seconds: float) -> float | None:
    """What the best solution costs that the child finds in ``seconds``, by a clock that stands."""
    child.begin(matrix, Effort(seconds, clock=Ticking()))
    while not child.ended:
        child.listen(0.1)
    values = child.known.values
    return None if values is None else matrix.joules(values)


def test_a_child_is_not_waited_for_beyond_its_time() -> None:
    clock = Ticking()
    with EngineProcess("highs") as child:
        child.begin(market_split(), Effort(1000.0, clock=clock))
        child.listen(0.1)
        before = child.ended
        clock.seconds += 1001.0 + process_module.GRACE_SECONDS
        child.listen(0.0)
        assert (before, child.ended) == (False, True)
        assert child.child.is_running
    assert not child.child.is_running


def test_a_child_solves_one_program_after_the_other() -> None:
    """Also after one that it was told to give up; by a clock that stands, so only the child ends any."""
    three = Matrix(
        costs=np.array([3.0, 1.0, 2.0]), offset=0.0, rows=np.zeros(3, dtype=np.int64),
        columns=np.arange(3), factors=-np.ones(3), at_most=np.array([-2.0]),
        integer=np.ones(3, dtype=np.bool_), whole=np.ones(3, dtype=np.bool_),
    )  # fmt: skip
    with EngineProcess("highs") as child:
        first = child.child.pid
        assert [solved(child, three, 10.0) for _ in range(3)] == [3.0, 3.0, 3.0]
        assert child.child.pid == first
        child.begin(market_split(), Effort(1000.0, clock=Ticking()))
        child.listen(0.5)
        assert solved(child, three, 10.0) == 3.0
        assert child.child.pid != first
        child.begin(market_split(), Effort(1000.0, clock=Ticking()))
        os.kill(child.child.pid, signal.SIGKILL)
        while not child.ended:
            child.listen(0.1)
        assert not child.known.done
        assert solved(child, three, 10.0) == 3.0


@pytest.mark.skipif(not held_bytes(), reason="the system does not tell what a process holds")
def test_a_child_ends_a_program_that_takes_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """And solves the next one; by a clock that stands."""
    for name in LIMITS_BYTES:
        monkeypatch.setattr(process_module, name, 1)
    with EngineProcess("highs") as child:
        first = child.child.pid
        for _ in range(2):
            assert solved(child, market_split(), 1000.0) is None
            assert not child.known.done
            assert (child.child.is_running, child.child.pid) == (True, first)


@pytest.mark.skipif(not held_bytes(), reason="the system does not tell what a process holds")
def test_cpsat_ends_a_program_that_takes_too_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LIMITS_BYTES:
        monkeypatch.setattr(process_module, name, 1)
    effort = Effort(
        seconds=1000.0, threads=1, seed=0, absolute_joules=0.0, most_seconds=1000.0,
        clock=Ticking(),
    )  # fmt: skip
    outcome = run_engine("cpsat", market_split(), effort)
    assert (outcome.values, outcome.done, outcome.infeasible) == (None, False, False)


@pytest.mark.parametrize("seconds", with_slow([1.0, 3.0], {3.0}))
@pytest.mark.slow
def test_a_large_search_keeps_to_its_clock_and_has_a_plan(seconds: float) -> None:
    assert len(LARGE.ops) > 1500
    clock = Ticking(0.02)
    solution = solve(LARGE, tight(LARGE, 0.1), SolveOptions(time_limit_seconds=seconds, clock=clock))
    clock.assert_kept(seconds)
    assert solution.status is Status.FEASIBLE
    assert solution.joules is not None
    assert LARGE.compute_joules <= solution.bound_joules <= solution.joules


def test_the_planner_takes_less_than_four_gigabytes() -> None:
    assert max(
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ) < (4 * 1024 * 1024)


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_plan(tmp_path: Path) -> None:
    """A process of the command line, a signal, an exit code and a plan in a file."""
    model, answer = tmp_path / "problem.json", tmp_path / "answer.json"
    model.write_text(json.dumps(LARGE.to_json()))
    budget = tight(LARGE, 0.1).ram_budget_bytes
    process = subprocess.Popen(
        [
            sys.executable, "-c", HEARS_SIGINT, "solve", str(model),
            "--ram", f"{budget}B", "--time-limit", "10h", "--json", str(answer),
        ],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    killer = threading.Timer(HANGS_SECONDS, process.kill)
    killer.start()
    assert process.stderr is not None
    heard = ""
    while "gap" not in heard and (character := process.stderr.read(1)):
        heard += character
    process.send_signal(signal.SIGINT)
    process.communicate()
    killer.cancel()
    assert process.returncode == 0, heard
    said = json.loads(answer.read_text())
    assert said["status"] == "feasible"
    assert said["schedule"]
    assert said["bound_joules"] <= said["joules"]


def test_the_first_greedy_plan_is_told_before_planning_ahead() -> None:
    problem = training_like(12, seed=2, momentum=True)
    limits = Limits(ram_budget_bytes=minimum_ram_bytes(problem, Limits()).bytes * 2)
    told: list[Schedule] = []
    best = greedy(problem, limits, found=told.append)
    assert best is not None
    assert len(told) == 1
    assert simulate(problem, told[0], limits).joules >= simulate(problem, best, limits).joules
    in_no_time = greedy(problem, limits, seconds=0.0, found=told.append)
    assert in_no_time == told[0] == told[1]


@pytest.mark.slow
def test_the_first_greedy_plan_is_told_once_where_homes_are_a_choice() -> None:
    plain = training_like(12, seed=2, momentum=True)
    made = {name for op in plain.ops for name in op.outputs}
    tensors = tuple(
        tensor
        if tensor.name in made or tensor.page_in is None
        else replace(tensor, initially=Place.EITHER, finally_=None)
        for tensor in plain.tensors
    )
    problem = replace(plain, tensors=tensors)
    limits = Limits(ram_budget_bytes=minimum_ram_bytes(problem, Limits()).bytes * 2)
    told: list[Schedule] = []
    assert greedy(problem, limits, found=told.append) is not None
    assert len(told) == 1
    simulate(problem, told[0], limits)
