"""SIGTERM and SIGHUP end a command as Ctrl-C does; the library leaves them alone."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import numpy as np
import pytest
import torch
from helpers import hand_net, run_kills

from poet.__main__ import main
from poet.runtime import Trainer
from poet.runtime.runs.fit import fit, load_samples
from poet.runtime.training.trainer import StepResult
from poet.util import children, interrupts
from poet.whatif.workers import Workers, working

pytestmark = pytest.mark.usefixtures("one_thread")
POET = Path(sys.executable).with_name("poet")
HARD = Path(__file__).parents[1] / "instances" / "resnet18_cifar.m4.json"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
BATCHES = 5


@pytest.fixture
def run(tmp_path: Path) -> list[str]:
    """A training that pages and never ends by itself."""
    faults.write_net(tmp_path / "plan.poet", background=False)
    inputs, targets = zip(*(hand_net.batch(number) for number in range(BATCHES)), strict=True)
    np.savez(tmp_path / "data.npz", x=torch.cat(inputs).numpy(), y=torch.cat(targets).numpy())
    words = ["run", "plan.poet", "--data", "data.npz", "--page-file", "pages", "-o", "state"]
    return [*words, "--threads", "1", "--epochs", "1000000"]


def _steps(folder: Path) -> int:
    with Trainer.open(folder / "plan.poet", resume=folder / "state") as trainer:
        return trainer.steps


@pytest.mark.parametrize(
    "sent", [(number,) * times for number in CODES for times in (1, 2)] + [(signal.SIGTERM, signal.SIGHUP)]
)
def test_the_step_under_way_ends_and_is_saved(
    sent: tuple[signal.Signals, ...], run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service manager sends SIGTERM and SIGHUP, `timeout` two of one; only Ctrl-C twice is at once."""
    step = Trainer.step

    def interrupted(self: Trainer, *given: object, **named: object) -> StepResult:
        if self.steps == 7:
            assert (tmp_path / "pages").exists()
            for number in sent:
                os.kill(os.getpid(), number)
        return step(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Trainer, "step", interrupted)
    monkeypatch.setattr(sys, "argv", ["poet", *run])
    with pytest.raises(SystemExit) as ended:
        main()
    monkeypatch.undo()
    assert ended.value.code == CODES[sent[0]]
    at_once = sent == (signal.SIGINT, signal.SIGINT)
    assert _steps(tmp_path) == (BATCHES if at_once else 8)
    assert not (tmp_path / "pages").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_an_app_keeps_its_own_answer_to_sigterm(run: list[str], tmp_path: Path) -> None:
    heard: list[int] = []
    for handler in (signal.SIG_DFL, lambda number, frame: heard.append(number)):
        before = signal.signal(signal.SIGTERM, handler)
        try:
            with Trainer.open(tmp_path / "plan.poet") as trainer:
                samples = load_samples(tmp_path / "data.npz", trainer.plan)
                training = fit(trainer, samples, epochs=2)
                next(training)
                assert signal.getsignal(signal.SIGTERM) is handler
                if handler is not signal.SIG_DFL:
                    os.kill(os.getpid(), signal.SIGTERM)
                assert len(list(training)) == 1
        finally:
            signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    assert not interrupts.was_told()


def test_one_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with interrupts.listening():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_sweep_ends_whose_search_took_the_request_for_itself() -> None:
    """A search that notes Ctrl-C ends with its best plan: the sweep in this process is to end too."""
    made: list[int] = []

    def searching() -> bytes:
        made.append(1)
        with interrupts.answered(lambda number, frame: None):
            signal.raise_signal(signal.SIGINT)
        return b""

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with working(Workers(1)) as run_tasks, pytest.raises(KeyboardInterrupt):
            list(run_tasks([searching, searching]))
    finally:
        signal.signal(signal.SIGINT, before)
    assert made == [1]


def test_children_do_not_hear_what_the_one_that_started_them_answers() -> None:
    with children.undisturbed():
        child = subprocess.Popen(children.command_of("input()"), stdin=subprocess.PIPE)
    with child:
        for number in (signal.SIGTERM, signal.SIGHUP):
            child.send_signal(number)
        child.communicate(b"\n")
    assert child.returncode == 0


def _until_saved(folder: Path, process: subprocess.Popen[str]) -> None:
    while not (folder / "state").exists() and process.poll() is None:
        time.sleep(0.02)


@pytest.mark.slow
def test_a_closed_terminal_ends_a_run_whose_report_is_still_written(run: list[str], tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", POET, *run, "--json", "run.json"],
        stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path, text=True,
    )  # fmt: skip
    os.close(terminal)
    _until_saved(tmp_path, process)
    os.close(master)
    assert process.wait() == 129
    assert _steps(tmp_path) == sum(
        epoch["steps"] for epoch in json.loads((tmp_path / "run.json").read_text())["epochs"]
    )
    assert not (tmp_path / "pages").exists()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_search_keeps_its_best_plan(sent: signal.Signals, tmp_path: Path) -> None:
    command = [POET, "solve", HARD, "--ram", "300KiB", "--time-limit", "10h", "--json", tmp_path / "answer"]
    with subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        heard = ""
        while "gap" not in heard and (character := process.stderr.read(1)):
            heard += character
        process.send_signal(sent)
        process.communicate()
    assert process.returncode == 0
    answer = json.loads((tmp_path / "answer").read_text())
    assert answer["status"] == "feasible"
    assert answer["schedule"]


@pytest.mark.slow
@pytest.mark.parametrize("in_storage", run_kills.KINDS, ids=["in-ram", "in-storage"])
def test_runs_that_are_ended_and_resumed_have_every_byte(in_storage: bool, tmp_path: Path) -> None:
    outcome = run_kills.end_runs(tmp_path, 6, seed=3, in_storage=in_storage)
    assert not outcome.wrong
    assert outcome.kills == {"SIGTERM": 2, "SIGHUP": 2, "SIGKILL": 2}
    assert outcome.steps > 6
