"""Child processes: nothing in the current folder is ever run, and none outlives the one that started it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.layers import ROOT
from helpers.pace import with_slow
from poet.cli.main import app
from test_layers import HOMES
from torch import nn
from typer.main import get_command
from zoo import export

import poet
from poet.util import children
from poet.whatif.workers import Workers, working

POET = Path(sys.executable).with_name("poet")
INSTANCES = ROOT / "tests" / "instances"
PLANTED = """\
import os, pathlib
(pathlib.Path({mark!r}) / {name!r}).touch()
os._exit(99)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, and a plan that keeps everything."""
    folder = tmp_path_factory.mktemp("files")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)).train()
    export(net, (torch.zeros(8, 64),), folder / "net.onnx", exporter="legacy")
    planned = poet.plan(folder / "net.onnx", device="rpi4b", bind={"N": 8}, ram=None, time_limit_seconds=1)
    planned.save(folder / "plan.poet")
    (folder / "problem.json").write_text(json.dumps(planned.prepared.problem.to_json()))
    inputs = np.zeros((16, 64), dtype=np.float32)
    np.savez(folder / "data.npz", inputs=inputs, targets=np.zeros(16, dtype=np.int64))
    return folder


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module of a stranger for each of Python's own, of our packages and of poet."""
    folder, mark = tmp_path_factory.mktemp("hostile"), tmp_path_factory.mktemp("executed")
    names = {*sys.stdlib_module_names, *HOMES, "dask", "jinja2", "scipy", "sitecustomize", "usercustomize"}
    for name in names:
        (folder / f"{name}.py").write_text(PLANTED.format(mark=str(mark), name=name))
    for package in ("poet", "cli"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text(PLANTED.format(mark=str(mark), name=package))
    (folder / "mark").symlink_to(mark)
    return folder


def executed(hostile: Path) -> list[str]:
    """Names of the planted modules that were run since the last call."""
    marks = sorted((hostile / "mark").iterdir())
    for mark in marks:
        mark.unlink()
    return [mark.name for mark in marks]


SHORT = ("--time-limit", "1s")
COMMANDS = {
    "check": ("check", "{net}"),
    "contributions": (
        "contributions", "{net}", "--data", "{data}", "--bind", "N=8", "--batches", "1", "-o", "{made}.toml",
    ),
    "solve a problem": ("solve", "{problem}", "--ram", "1MiB", *SHORT),
    "solve beside another engine": (
        "solve", str(INSTANCES / "resnet18_cifar.a72.json"), "--ram", "1472256B", "--threads", "2", *SHORT,
    ),
    "solve": (
        "solve", "{net}", "--device", "rpi4b", "--bind", "N=8", "--ram", "1MiB", "-o", "{made}", *SHORT,
    ),
    "fit": ("fit", "{net}", "--device", "rpi4b", "--ram", "64KiB", *SHORT),
    "explain": ("explain", "{plan}", "--html", "{made}.html"),
    "diff": ("diff", "{plan}", "{plan}", "--html", "{made}.html"),
    "run": ("run", "{plan}", "--data", "{data}", "-o", "{made}.safetensors"),
    "run --enforce": ("run", "{plan}", "--data", "{data}", "--enforce", "--threads", "1"),
    "verify": ("verify", "{plan}", "--steps", "1"),
    "what-if": (
        "what-if", "{net}", "--device", "rpi4b", "--batch", "8", "--ram", "keep", "--cache", "{made}",
        "--jobs", "2", "--no-marginal", "-o", "{made}.html", *SHORT,
    ),
    "devices": ("devices", "list"),
    "export": ("export", "trace", "{plan}", "-o", "{made}.json"),
}  # fmt: skip
LOCAL = {"solve beside another engine": "ortools"}


def test_the_table_has_every_command() -> None:
    assert {arguments[0] for arguments in COMMANDS.values()} == {*get_command(app).commands}  # type: ignore[attr-defined]


@pytest.mark.parametrize("what", with_slow(COMMANDS, COMMANDS.keys() - {"run"}))
def test_nothing_in_the_current_folder_is_run(what: str, files: Path, hostile: Path, tmp_path: Path) -> None:
    if what in LOCAL:
        pytest.importorskip(LOCAL[what])
    places = {
        "net": files / "net.onnx", "plan": files / "plan.poet", "problem": files / "problem.json",
        "data": files / "data.npz", "made": tmp_path / "made",
    }  # fmt: skip
    done = subprocess.run(
        [POET, *(argument.format(**places) for argument in COMMANDS[what])],
        cwd=hostile, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert executed(hostile) == []
    assert done.returncode == 0, done.stderr


def test_the_planted_modules_bite(hostile: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "poet.solvers.engines"], cwd=hostile, check=False)
    assert done.returncode == 99
    assert executed(hostile) != []


def test_a_child_takes_nothing_from_the_current_folder(hostile: Path) -> None:
    done = subprocess.run(
        children.command("poet.solvers.engines"),
        env=children.environment(),
        cwd=hostile,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert executed(hostile) == []
    assert done.returncode != 99


# --- the end of a parent ----------------------------------------------------------------------


def descendants(pid: int) -> set[int]:
    """Process numbers of the children of ``pid``, and theirs."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has just ended
            continue
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return found - {pid}


def is_running(pid: int) -> bool:
    """Not even as a zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(holds: Callable[[], object], *, seconds: float = 60) -> None:
    """Fails only where what should come does not come at all."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


SWEEPS = """
import functools, sys
sys.path.insert(0, sys.argv[1])
from helpers import worker_tasks
from poet.whatif.workers import Workers, working
with working(Workers(jobs=2)) as run:
    list(run([functools.partial(worker_tasks.stay, mark) for mark in sys.argv[2:]]))
"""


@pytest.mark.slow
def test_the_workers_of_a_killed_sweep_end_with_it(tmp_path: Path) -> None:
    """Killed while both are at tasks that would last for minutes."""
    marks = [tmp_path / "one", tmp_path / "two"]
    command = [sys.executable, "-c", SWEEPS, *map(str, (ROOT / "tests", *marks))]
    with subprocess.Popen(command) as sweep:
        wait_until(lambda: all(mark.exists() for mark in marks))
        started = descendants(sweep.pid)
        sweep.send_signal(signal.SIGKILL)
    workers = {int(mark.read_text()) for mark in marks}
    assert len(workers) == 2
    assert workers <= started
    try:
        wait_until(lambda: not any(map(is_running, started)))
    finally:
        for pid in filter(is_running, started):
            os.kill(pid, signal.SIGKILL)


WAITS = """
import sys, time
from poet.util import children
children.end_with_parent()
print("here", flush=True)
time.sleep(600)
"""


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    """The parent starts it and is killed; with a pipe to nobody the child would sleep on."""
    starts = f"""
import subprocess, sys, time
from poet.util import children
child = subprocess.Popen([sys.executable, "-P", "-c", {WAITS!r}], env=children.environment())
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", starts], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        said = [parent.stdout.readline().strip() for _ in range(2)]
        child = next(int(line) for line in said if line.isdigit())
        assert "here" in said
        assert is_running(child)
        parent.kill()
    wait_until(lambda: not is_running(child))


def test_a_child_whose_parent_was_gone_before_does_not_begin() -> None:
    """What `environment` says of the parent is not true any more when the child looks."""
    environment = {**children.environment(), "POET_PARENT": "1"}
    done = subprocess.run(children.command("poet.solvers.engines"), env=environment, check=False)
    assert done.returncode == -signal.SIGKILL


def test_the_environment_is_as_it_was_after_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with working(Workers(jobs=2)):
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert "PYTHONSAFEPATH" not in os.environ


# --- a cluster --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cluster_whose_workers_are_started_as_documented_runs_nothing_from_there(
    files: Path, hostile: Path, tmp_path: Path
) -> None:
    """The line of docs/what-if.md, and the command that asks such a cluster, both in the hostile folder."""
    distributed = pytest.importorskip("distributed")
    text = (ROOT / "docs" / "what-if.md").read_text()
    found = re.search(r"`(PYTHONSAFEPATH=1 dask worker) tcp://host:8786`", text)
    assert found is not None
    path = f"{POET.parent}{os.pathsep}{os.environ['PATH']}"
    local = {"n_workers": 0, "processes": True, "dashboard_address": None, "host": "127.0.0.1"}
    with distributed.LocalCluster(**local, silence_logs=50) as cluster:
        address = cluster.scheduler_address
        with subprocess.Popen(
            ["sh", "-c", f"{found[1]} {address}"], cwd=hostile, env={**os.environ, "PATH": path},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        ) as worker:  # fmt: skip
            try:
                with distributed.Client(cluster, set_as_default=False) as client:
                    client.wait_for_workers(1, timeout=300)
                command = ["what-if", files / "problem.json", "--ram", "1MiB", "--cluster", address, *SHORT]
                done = subprocess.run(
                    [POET, *command, "--no-marginal", "--cache", tmp_path],
                    cwd=hostile, capture_output=True, text=True, check=False,
                )  # fmt: skip
            finally:
                os.killpg(worker.pid, signal.SIGKILL)
    assert executed(hostile) == []
    assert done.returncode == 0, done.stderr
