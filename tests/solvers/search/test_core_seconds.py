"""Time limits in seconds of a core's work, and memory: each search in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

INSTANCES = Path(__file__).parents[2] / "instances"
SOLVE = """
import json, resource, sys
from pathlib import Path
from helpers.clocks import CoreClock
from poet.problem import Limits, Problem
from poet.planning.ram_survey import budget_between, keep_everything_bytes
from poet.problem.solution import SolveOptions
from poet.solvers import minimum_ram_bytes
from poet.solvers.search.explain import answered
path, share, limit_seconds = json.loads(sys.argv[1])
problem = Problem.load(Path(path))
least, most = minimum_ram_bytes(problem).bytes, keep_everything_bytes(problem)
limits = Limits(ram_budget_bytes=budget_between(least, most, share))
clock = CoreClock()
began = clock.now()
solution = answered(problem, limits, SolveOptions(limit_seconds, clock=clock))
spent = clock.now() - began
# ru_maxrss of this process would count the one that began it
status = Path("/proc/self/status").read_text().splitlines()
own = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
kilobytes = own + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(json.dumps([solution.status.word, spent, kilobytes * 1024, solution.message]))
"""


def searched(name: str, share: float, limit_seconds: float) -> list[object]:
    """Status, seconds of a core, bytes at the peak of the process and of its largest child, message."""
    asked = json.dumps([str(INSTANCES / name), share, limit_seconds])
    done = subprocess.run(
        [sys.executable, "-c", SOLVE, asked],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    found: list[object] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("limit_seconds", [1.0, 4.0])
@pytest.mark.parametrize("name", ["transformer.m4.json", "family/bert.m4.json", "family/resnet50.m4.json"])
def test_a_limit_is_kept_in_seconds_of_a_core(name: str, limit_seconds: float) -> None:
    """Within 5 % and half a second, however loaded the machine is; in less than 500 MB."""
    status, spent, peak_bytes, _ = searched(name, 0.15, limit_seconds)
    assert status in ("optimal", "feasible")
    assert isinstance(spent, float)
    assert isinstance(peak_bytes, int)
    assert spent <= 1.05 * limit_seconds + 0.5
    assert peak_bytes < 500e6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer.m4.json", "family/bert.m4.json", "family/resnet50.m4.json"])
def test_that_there_is_no_plan_is_explained_within_two_seconds(name: str) -> None:
    """A budget below what one op needs, with all the time in the world: what binds, and what would help."""
    status, spent, _, message = searched(name, -0.05, 600.0)
    assert status == "infeasible"
    assert isinstance(spent, float)
    assert isinstance(message, str)
    assert "needs at least" in message
    assert " works" in message
    assert spent <= 2.5
