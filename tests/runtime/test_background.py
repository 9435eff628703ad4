"""Transfers in the background: the same bits, waits only where data is needed, no error lost."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import hand_net
from helpers.failing_pages import fail_write
from helpers.schedules import random_schedule

from poet.errors import PageFileError, ReplayError
from poet.plans.plan_file import write_plan
from poet.plans.plan_parts import PageSlot
from poet.plans.training_plan import Plan
from poet.problem import Problem
from poet.problem.schedule import Compute, PageOut, Schedule
from poet.problem.simulator import simulate
from poet.runtime import Trainer
from poet.runtime.storage.background import Pager
from poet.runtime.storage.page_file import PageFile
from poet.solvers.instance.incumbent import overlap

PATIENCE_SECONDS = 20.0


def _early(of: Problem, seed: int, share: float) -> Schedule:
    """A random schedule whose transfers are issued as early as its own peak allows."""
    drawn = random_schedule(of, seed, share=share)
    return overlap(of, drawn, simulate(of, drawn).peak_ram_bytes)


def write_hand_net(path: Path, seed: int, *, in_storage: bool = False) -> Plan:
    what = hand_net.graph()
    of = replace(hand_net.problem(what, parameters_in_storage=in_storage), background_storage=True)
    plan = hand_net.plan(of, what, _early(of, seed, 0.7))
    write_plan(path, plan, hand_net.stored(hand_net.net()))
    return plan


# --- waits only where data is needed ----------------------------------------------------------


def _first_overlapped(plan: Plan) -> tuple[PageOut, Compute]:
    """A page-out, and an op after it that runs before anything waits for it."""
    for index, step in enumerate(plan.schedule[:-1]):
        after = plan.schedule[index + 1]
        if isinstance(step, PageOut) and isinstance(after, Compute):
            op = next(op for op in plan.graph.ops if op.name == after.op)
            if step.tensor not in op.updates:
                return step, after
    raise AssertionError("no such pair")


def test_ops_run_while_a_transfer_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that ends only after a later op has begun would block a replay that waits for it."""
    plan = write_hand_net(tmp_path / "p", 3)
    held, following = _first_overlapped(plan)
    op_has_run = threading.Event()
    with Trainer.open(tmp_path / "p") as trainer:
        trainer.step(*hand_net.batch(0))  # the second program is the one that is replayed from here on
        pages = trainer.page_file
        assert pages is not None
        write = pages.write
        in_time: list[bool] = []

        def held_back(tensor: str, data: memoryview) -> None:
            if tensor == held.tensor and not in_time:
                in_time.append(op_has_run.wait(PATIENCE_SECONDS))
            write(tensor, data)

        monkeypatch.setattr(pages, "write", held_back)
        at = plan.schedule.index(following, plan.schedule.index(held))

        def noted(index: int) -> None:
            if index > at:
                op_has_run.set()

        trainer.step(*hand_net.batch(1), on_instruction=noted)
        assert in_time == [True]


def test_a_blocking_profile_keeps_the_order(tmp_path: Path) -> None:
    of = hand_net.problem(hand_net.graph())
    hand_net.write(tmp_path / "p", random_schedule(of, 3))
    with Trainer.open(tmp_path / "p") as trainer:
        trainer.step(*hand_net.batch(0))
        assert not any(thread.name == "poet transfers" for thread in threading.enumerate())


def test_the_thread_ends_with_the_trainer(tmp_path: Path) -> None:
    write_hand_net(tmp_path / "p", 3)
    with Trainer.open(tmp_path / "p") as trainer:
        trainer.step(*hand_net.batch(0))
        assert any(thread.name == "poet transfers" for thread in threading.enumerate())
    assert not any(thread.name == "poet transfers" for thread in threading.enumerate())
    with pytest.raises(ReplayError, match="it is closed"):
        trainer.step(*hand_net.batch(0))


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize("in_storage", [False, True])
def test_an_error_in_the_background_reaches_the_step_that_asked(
    in_storage: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it strikes: the trainer goes on from the last step, or says that it cannot."""
    plan = write_hand_net(tmp_path / "p", 5, in_storage=in_storage)
    with Trainer.open(tmp_path / "p") as trainer:
        trainer.step(*hand_net.batch(0))
        committed = trainer.parameters()
        trainer.step(*hand_net.batch(1))
        expected = trainer.parameters()
    intact = 0
    for number in range(sum(isinstance(step, PageOut) for step in plan.schedule)):
        with Trainer.open(tmp_path / "p") as trainer, monkeypatch.context() as patched:
            trainer.step(*hand_net.batch(0))
            fail_write(trainer, number, patched)
            with pytest.raises(PageFileError, match="Input/output error"):
                trainer.step(*hand_net.batch(1))
            patched.undo()
            try:
                found = trainer.parameters()
            except ReplayError:  # it struck after the first update
                continue
            intact += 1
            assert all(torch.equal(found[name], tensor) for name, tensor in committed.items())
            trainer.step(*hand_net.batch(1))
            found = trainer.parameters()
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert intact >= 2


def test_memory_is_let_go_before_a_wait_ends(tmp_path: Path) -> None:
    """Else a buffer would outlive its `Free` for a moment, and its place would not be free."""
    pages = PageFile((PageSlot("a", 0, 4096),), path=None, folder=tmp_path, buffer_bytes=0)
    background = Pager(pages, is_background=True)
    for _ in range(200):
        memory = memoryview(bytearray(4096))
        background.write("a", memory)
        background.wait("a")
        memory.release()  # a BufferError if a view of it were still alive
    background.close()
    background.close()
    with pytest.raises(PageFileError, match="it is closed"):
        background.write("a", memoryview(b""))
    pages.close()


def test_targets_that_were_not_filled_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their buffers hold anything, and must not be taken for what was stored."""
    pages = PageFile(
        (PageSlot("a", 0, 10), PageSlot("b", 4096, 10)), path=None, folder=tmp_path, buffer_bytes=0
    )
    background, asked = Pager(pages, is_background=True), threading.Event()
    background.write("b", memoryview(bytes(10)))
    background.drain()

    def failing(tensor: str, data: memoryview) -> None:
        assert asked.wait(PATIENCE_SECONDS)
        raise PageFileError(f"{tensor} cannot be written")

    monkeypatch.setattr(pages, "write", failing)
    background.write("a", memoryview(bytes(10)))
    background.read_into("b", memoryview(bytearray(10)))  # was asked for in time, and is not served
    asked.set()
    with pytest.raises(PageFileError, match="a cannot be written"):
        background.wait("b")
    assert background.give_up() == {"b"}
    assert background.give_up() == frozenset()
    background.close()
    pages.close()


def test_the_first_of_several_errors_is_told(tmp_path: Path) -> None:
    pages = PageFile(
        (PageSlot("a", 0, 10), PageSlot("b", 4096, 10)), path=None, folder=tmp_path, buffer_bytes=0
    )
    background = Pager(pages, is_background=True)
    background.read_into("a", memoryview(bytearray(10)))
    with pytest.raises(PageFileError, match="a was never written"):
        background.wait("a")
    with pytest.raises(PageFileError, match="a was never written"):
        background.drain()
    assert background.give_up() == {"a"}
    background.write("b", memoryview(bytes(10)))  # a step later all is well
    background.drain()
    background.close()
    pages.close()
