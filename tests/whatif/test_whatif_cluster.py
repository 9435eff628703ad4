"""The same sweep on a Dask cluster: workers of their own processes, one of them killed in mid-sweep."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from poet.errors import InputError
from poet.planning.cache import Cache
from poet.problem import Problem
from poet.problem.solution import SolveOptions
from poet.whatif import workers
from poet.whatif.grid import Question
from poet.whatif.result import Origin, Verdict
from poet.whatif.run import what_if
from poet.whatif.settings import grid_of, setting_of
from poet.whatif.sweep import Sweep, SweepProgress
from poet.whatif.workers import Workers, working

INSTANCES = Path(__file__).parents[1] / "instances"
QUICK = SolveOptions(time_limit_seconds=1.0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A scheduler and three workers, each a process with one thread."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=3,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        host="127.0.0.1",
        silence_logs=50,
    ) as made:
        yield made


@pytest.mark.slow
def test_one_killed_worker_loses_nothing(cluster: Any, tmp_path: Path) -> None:
    setting = setting_of(Problem.load(INSTANCES / "resnet18_cifar.a72.json"))
    question = Question("test", "", (), "min..keep:6", ("1.2x", None), options=QUICK)
    sweep = Sweep([setting], [grid_of(setting, question)], QUICK, Cache(tmp_path), jobs=3)
    pids = [worker.process.process.pid for worker in cluster.workers.values()]
    killed: list[int] = []

    def kill_one(progress: SweepProgress) -> None:
        if len(sweep.searched) == 3 and not killed:
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])

    sweep.report = kill_one
    with working(Workers(cluster=cluster.scheduler_address)) as run:
        assert sweep.run(run)
    assert killed
    swept = sweep.swept()
    assert Verdict.UNSOLVED not in {point.verdict for point in swept.points}
    searched = [point for point in swept.points if point.origin is Origin.SEARCH]
    assert len(searched) > 5
    assert len(list((tmp_path / "answers").iterdir())) == len(searched)
    assert not any("killed" in point.message for point in swept.points)
    again = what_if(
        INSTANCES / "resnet18_cifar.a72.json",
        ram="min..keep:6", deadline="1.2x,none", options=QUICK, cache=tmp_path, marginal=False,
        cluster=cluster.scheduler_address,
    )  # fmt: skip
    assert again.searched == 0
    assert again.from_cache == len(searched)


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 1)
    with (
        pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"),
        working(Workers(cluster="tcp://127.0.0.1:9")),
    ):
        pass
