"""The enforced run: the kernel holds the plan's child to its budget, and refuses plain PyTorch the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import hand_net
from torch import nn
from zoo import export

import poet
from poet import enforce as enforcement
from poet.api import prepare
from poet.enforce import EnforcedRun, enforce
from poet.errors import InputError, ReplayError
from poet.planning.ram_survey import keep_everything_bytes
from poet.plans.plan_file import read_plan
from poet.plans.run_request import Epoch, RunRequest
from poet.report.run import enforced_data, plain_verdict, plan_verdict
from poet.runtime import Trainer
from poet.util import children

CLASSES, CHANNELS, SIDE, BATCH, STEPS = 5, 8, 48, 16, 3
POET = Path(sys.executable).with_name("poet")


def _net() -> nn.Module:
    """Activations outweigh everything else."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, CHANNELS, 3, padding=1), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, CLASSES)]
    return nn.Sequential(*layers).train()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for 60 % of what plain training needs, and data for three steps."""
    folder = tmp_path_factory.mktemp("enforced")
    example = torch.zeros(BATCH, 3, SIDE, SIDE)
    export(_net(), (example,), folder / "net.onnx", exporter="legacy")
    bind = {"N": BATCH}
    plain_bytes = keep_everything_bytes(prepare(folder / "net.onnx", device="rpi4b", bind=bind).problem)
    planned = poet.plan(
        folder / "net.onnx", device="rpi4b", bind=bind, ram=int(plain_bytes * 0.6), time_limit_seconds=0.5
    )
    planned.save(folder / "plan.poet")
    rng = np.random.default_rng(0)
    np.savez(
        folder / "data.npz",
        inputs=rng.standard_normal((STEPS * BATCH, 3, SIDE, SIDE), dtype=np.float32),
        targets=rng.integers(0, CLASSES, STEPS * BATCH),
    )
    return folder


@pytest.fixture(scope="module")
def request_(folder: Path) -> RunRequest:
    budget_bytes = read_plan(folder / "plan.poet").request.limits.ram_budget_bytes
    assert budget_bytes is not None
    return RunRequest(
        plan=str(folder / "plan.poet"), data=str(folder / "data.npz"), budget_bytes=budget_bytes, threads=1
    )


@pytest.mark.slow
def test_one_command_shows_both_halves(folder: Path) -> None:
    state, answer = folder / "state.safetensors", folder / "answer.json"
    given = ["run", folder / "plan.poet", "--data", folder / "data.npz", "--threads", "1", "--enforce"]
    arguments = [str(item) for item in [*given, "-o", state, "--json", answer]]
    code = f"""
import sys
from poet.cli.main import app
assert not app({arguments!r}, standalone_mode=False)
assert "torch" not in sys.modules, "the parent takes RAM that the child needs"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"the plan made {STEPS} steps inside idle + " in done.stdout
    assert "plain PyTorch was refused in step 1 at idle + " in done.stdout
    found = json.loads(answer.read_text())
    assert found["plan"]["refusal"] is None
    assert found["plain"]["peak_bytes"] > found["budget_bytes"]
    assert found["plan"]["peak_bytes"] < found["plain"]["peak_bytes"]
    with Trainer.open(folder / "plan.poet", resume=state) as trainer:
        assert trainer.steps == STEPS  # the training that was enforced is the one that was saved


@pytest.mark.slow
def test_the_limit_bites_the_plan_as_well(request_: RunRequest) -> None:
    """With a tenth less than its tensors need, the plan's own child is refused."""
    plan = read_plan(request_.plan)
    tight = replace(
        request_, threads=plan.kernels.threads, budget_bytes=int(plan.prediction.peak_ram_bytes * 0.9)
    )
    refused = r"step 1 failed at .*: a request for .* was refused; steps ran from the heap: an arena of .*"
    with pytest.raises(ReplayError, match=refused):
        enforce(tight, on_epoch=print)


@pytest.mark.slow
def test_plain_pytorch_passes_where_there_is_room(request_: RunRequest) -> None:
    """The plain half fails for want of memory and nothing else."""
    first = enforcement._try_plain(request_)[0]
    assert first is not None
    assert first.peak_bytes is not None
    enough = replace(request_, budget_bytes=first.peak_bytes + (1 << 20))
    half, why_not = enforcement._try_plain(enough)
    assert (half is not None, why_not) == (True, None)
    assert half is not None
    assert (half.steps, half.refusal) == (4, None)


@pytest.mark.slow
def test_a_plan_of_a_module_says_why_plain_is_not_tried(tmp_path: Path) -> None:
    plan = hand_net.write(tmp_path / "plan.poet")
    x, y = hand_net.batch(0)
    np.savez(tmp_path / "data.npz", x=x.numpy(), y=y.numpy())
    request = RunRequest(
        plan=str(tmp_path / "plan.poet"),
        data=str(tmp_path / "data.npz"),
        budget_bytes=plan.prediction.peak_ram_bytes + (4 << 20),
        threads=1,
    )
    epochs: list[Epoch] = []
    done = enforce(request, on_epoch=epochs.append)
    assert done.epochs == tuple(epochs)
    assert plan_verdict(done).startswith("the plan made 1 steps inside idle + 4.")
    assert "carries no ONNX structure" in plain_verdict(done)
    assert enforced_data(done)["plain"] is None


@pytest.mark.slow
def test_plain_pytorch_trains_the_module_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from torch import nn\n\n\ndef net():\n    return nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))\n"
    )
    (tmp_path / "own_net.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    poet.plan(net, torch.zeros(3, 4), device="rpi4b", ram="8MiB", time_limit_seconds=1.0).save("plan.poet")
    np.savez("data.npz", inputs=np.zeros((6, 4), np.float32), targets=np.zeros(6, np.int64))
    asked = RunRequest(
        plan="plan.poet", data="data.npz", budget_bytes=8 << 20, threads=1, module="own_net:net"
    )
    done = enforce(asked, on_epoch=lambda epoch: None)
    assert done.plain is not None
    assert (done.plain.steps, done.plain.refusal) == (4, None)


@pytest.mark.slow
def test_bad_data_is_told_like_everywhere(request_: RunRequest, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.npz: cannot be opened \(No such file or directory\)"):
        enforce(replace(request_, data=str(tmp_path / "none.npz")), on_epoch=print)


def test_a_child_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enforcement, "PLAN_CHILD", "poet.no_such_module")
    with pytest.raises(ReplayError, match="the process was ended with 1"):
        enforce(RunRequest("plan.poet", "data.npz", 1 << 20), on_epoch=print)


@pytest.mark.parametrize("mode", [pytest.param("--enforce", marks=pytest.mark.slow), "--save-every=1"])
@pytest.mark.slow
def test_a_real_ctrl_c_ends_after_the_step_and_saves(mode: str, folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    command: list[str | Path] = [
        POET,
        "run",
        folder / "plan.poet",
        "--data",
        folder / "data.npz",
        "-o",
        state,
    ]
    command += ["--threads", "1", "--epochs", "1000000", mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        assert first.startswith("epoch 1: ")
        process.send_signal(signal.SIGINT)
        told, errors = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130
    assert errors == "poet: interrupted\n"
    last = [line for line in (first, *told.splitlines()) if line.startswith("epoch ")][-1]
    complete, steps = int(last.split()[1].rstrip(":")) - 1, int(last.split(" steps ")[0].split()[-1])
    with Trainer.open(folder / "plan.poet", resume=state) as trainer:
        assert trainer.steps == complete * STEPS + steps


def test_the_verdicts() -> None:
    plan = enforcement.Half(100 << 20, 9 << 20, steps=8)
    plain = enforcement.Half(200 << 20, 15 << 20, steps=0, refusal="a request for 1 MiB was refused")
    run = EnforcedRun(10 << 20, (), was_interrupted=False, plan=plan, plain=plain)
    assert plan_verdict(run) == "the plan made 8 steps inside idle + 10 MiB"
    assert plain_verdict(run) == (
        "plain PyTorch was refused in step 1 at idle + 10 MiB: it needs 5 MiB more "
        "(a request for 1 MiB was refused)"
    )
    fits = replace(run, plain=replace(plain, steps=4, refusal=None))
    assert plain_verdict(fits).endswith("4 steps inside idle + 10 MiB too: this budget needs no plan")


@pytest.mark.slow
def test_a_refusal_does_not_strike_the_small_things_of_libraries() -> None:
    """Nothing is free at the heap's end just before the limit; small requests are still served after it."""
    code = """
import ctypes
from poet.runtime.system.confinement import Confinement, Rehearsal
from poet.runtime.system.memory import return_freed_memory, use_one_heap

assert return_freed_memory()
use_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

class Info(ctypes.Structure):
    _fields_ = [("others", ctypes.c_size_t * 9), ("free_end_bytes", ctypes.c_size_t)]

libc.mallinfo2.restype = Info
while libc.mallinfo2().free_end_bytes > 4096:
    libc.malloc(1024)
with Rehearsal() as rehearsal:
    pass
Confinement(rehearsal.idle_bytes(0), budget_bytes=0).enforce()
served = [libc.malloc(4096) for _ in range(24)]
kept = [bytes(400) for _ in range(400)]
assert all(served), f"{served.index(None)} of 24 requests of 4 KiB were served"
assert not libc.malloc(1 << 20), "there is no limit"
"""
    environment = {**os.environ, **enforcement._ENVIRONMENT}
    command = children.command_of(code)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
