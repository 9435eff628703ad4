"""In a forked child every call returns: with the bits of the parent, or with one sentence."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from helpers import hand_net
from helpers.native_steps import run_python

PARENT = """
import os, signal, sys
import torch
torch.set_num_threads(2)
torch.relu(torch.randn(1_000_000))  # torch's threads are there now
from helpers import hand_net
from poet.errors import ReplayError
from poet.runtime import Trainer

def in_a_fork(work):
    \"\"\"What the work says, printed here; a child that hangs is ended.\"\"\"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, str(said).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        said = told.read().decode()
    print(said or f"it hung and was ended: {os.waitpid(child, 0)[1]}", flush=True)
"""


def said(source: str, *arguments: Path) -> list[str]:
    """Lines that forked children of a process said, whose torch had used two threads before."""
    return run_python(PARENT + textwrap.dedent(source), *map(str, arguments)).splitlines()


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    hand_net.write(tmp_path / "plan.poet")
    return tmp_path / "plan.poet"


@pytest.mark.slow
def test_a_step_in_a_fork_says_that_it_would_hang(plan: Path) -> None:
    lines = said(
        """
        plan = sys.argv[1]
        def train():
            with Trainer.open(plan) as trainer:
                return trainer.step(*hand_net.batch(0)).loss
        def on_one_thread():
            torch.set_num_threads(1)
            return train()
        in_a_fork(train)
        in_a_fork(on_one_thread)
        with Trainer.open(plan) as trainer:
            in_a_fork(lambda: trainer.step(*hand_net.batch(0)))
            print(trainer.step(*hand_net.batch(0)).loss)
        """,
        plan,
    )
    for refused in (lines[0], lines[2]):
        assert refused.startswith("ReplayError: process ")
        assert "torch.set_num_threads(1)" in refused
        assert "spawn" in refused
    assert lines[1] == lines[3]


@pytest.mark.slow
def test_planning_in_a_fork_says_that_it_would_hang() -> None:
    lines = said(
        """
        import poet
        from torch import nn
        def planned():
            return poet.plan(nn.Linear(4, 2), torch.zeros(3, 4), device="rpi4b", ram=None, loss="mse")
        in_a_fork(planned)
        """
    )
    assert lines[0].startswith("ReplayError: process ")


@pytest.mark.slow
def test_a_fork_does_not_page_into_its_parents_file(tmp_path: Path) -> None:
    plan = tmp_path / "plan.poet"
    hand_net.write(plan, parameters_in_storage=True)
    lines = said(
        """
        def on_one_thread():
            torch.set_num_threads(1)
            return trainer.step(*hand_net.batch(0))
        with Trainer.open(sys.argv[1]) as trainer:
            in_a_fork(on_one_thread)
            trainer.step(*hand_net.batch(0))
            print(trainer.steps)
        """,
        plan,
    )
    assert lines[0].startswith("ReplayError: the trainer's page file belongs to process ")
    assert lines[1] == "1"
