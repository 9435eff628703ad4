"""A watcher makes room when the system needs memory: the bits stay those of an undisturbed training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.budgeted import LARGE, MIB, SMALL, batch, plan_that_fits, planned
from torch import Tensor, nn

from poet.api import plan as plan_module
from poet.errors import Infeasible, InputError, PageFileError, PoetError, ReplayError
from poet.runtime import Trainer
from poet.runtime.runs.fit import Allowance, Spending, fit, load_samples
from poet.runtime.runs.watching import MemoryWatcher, SystemMemory
from poet.runtime.training import open_plan as pages_module

HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    planned().save(tmp_path / "p.poet")
    return tmp_path / "p.poet"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """One batch."""
    inputs, targets = batch(0)
    np.savez(tmp_path / "d.npz", inputs=inputs.numpy(), targets=targets.numpy())
    return tmp_path / "d.npz"


class System:
    """Folders that look like those of a system with one control group."""

    def __init__(self, root: Path) -> None:
        self.now = 0.0
        self.proc, self.sys = root / "proc", root / "sys"
        self.group = self.sys / "fs" / "cgroup" / "app"
        for folder in (self.proc / "self", self.proc / "pressure", self.group):
            folder.mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text("0::/app\n")
        self.available(1 << 30)
        (self.group / "memory.max").write_text("max\n")
        (self.group / "memory.high").write_text("max\n")
        self.used(10 * MIB)

    def available(self, size_bytes: int) -> None:
        (self.proc / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {size_bytes // 1024} kB\n")

    def used(self, size_bytes: int) -> None:
        (self.group / "memory.current").write_text(f"{size_bytes}\n")

    def limit(self, size_bytes: int, name: str = "memory.max") -> None:
        (self.group / name).write_text(f"{size_bytes}\n")

    def pressure(self, share: float) -> None:
        figures = f"avg10={100 * share:.2f} avg60=0.00 avg300=0.00 total=0"
        (self.group / "memory.pressure").write_text(f"some {figures}\nfull {figures}\n")

    @property
    def memory(self) -> SystemMemory:
        return SystemMemory(self.proc, self.sys)

    def watcher(self, trainer: Trainer, *, reserve: int = 0, **options: Any) -> MemoryWatcher:
        """Whose clock is `now`."""
        return MemoryWatcher(trainer, reserve=reserve, system=self.memory, clock=lambda: self.now, **options)


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


def test_a_limit_that_falls_and_rises_changes_no_bit(path: Path, system: System) -> None:
    def run(watched: bool) -> tuple[list[float], dict[str, Tensor], list[tuple[int, int]]]:
        losses, changes = [], []
        with Trainer.open(path, seed=5) as trainer:
            watcher = system.watcher(trainer, reserve=MIB, calm_seconds=2.5)
            for number in range(10):
                system.now += 1.0
                system.used(10 * MIB + trainer.held_bytes)
                if number == 2:
                    system.limit(11 * MIB + SMALL)
                if number == 5:
                    system.limit(1 << 30)
                if watched and (change := watcher.look()):
                    changes.append((number, change.after_bytes))
                    assert trainer.plan.held_bytes <= change.after_bytes
                losses.append(trainer.step(*batch(number)).loss)
            return losses, trainer.state_dict(), changes

    losses, state, _ = run(watched=False)
    system.limit(1 << 30)
    disturbed, disturbed_state, changes = run(watched=True)
    assert changes == [(2, SMALL), (8, LARGE)]
    assert disturbed == losses
    assert all(torch.equal(tensor, disturbed_state[name]) for name, tensor in state.items())


def test_tasks_that_stand_still_get_room(path: Path, system: System) -> None:
    with Trainer.open(path) as trainer:
        watcher = system.watcher(trainer, every_seconds=1.0, calm_seconds=0.0)
        assert watcher.look() is None
        system.pressure(0.5)
        system.now = 0.5
        assert watcher.look() is None  # it looked half a second ago
        system.now = 1.0
        change = watcher.look()
        assert change is not None
        assert (change.before_bytes, change.after_bytes) == (LARGE, SMALL)
        assert "stood still for memory for 50% of the time" in change.why
        system.now = 2.0
        assert watcher.look() is None  # there is no smaller one
        system.pressure(0.0)
        system.now = 3.0
        assert watcher.look() is None  # the average that it acted on is of ten seconds
        system.now = 12.0
        change = watcher.look()
        assert change is not None
        assert change.after_bytes == LARGE


def test_one_burst_of_stalls_takes_one_smaller_budget(path: Path, system: System) -> None:
    with Trainer.open(path) as trainer:
        trainer.set_budget(half := (LARGE + SMALL) // 2)
        watcher = system.watcher(trainer, planner=plan_that_fits)
        taken = []
        for second in range(1, 25):
            system.now = float(second)
            system.pressure(0.5)
            if change := watcher.look():
                taken.append((second, change.before_bytes))
    assert taken[0] == (1, half)
    assert [second for second, _ in taken] == [1, 11, 21]


def test_a_watcher_made_after_a_change_knows_every_budget(path: Path, system: System) -> None:
    with Trainer.open(path) as trainer:
        trainer.set_budget(SMALL)
        watcher = system.watcher(trainer, calm_seconds=0.0)
        change = watcher.look()
        assert change is not None
        assert (change.before_bytes, change.after_bytes) == (SMALL, LARGE)
        trainer.set_budget(SMALL)  # somebody else did
        system.now = 2.0
        change = watcher.look()
        assert change is not None
        assert change.before_bytes == SMALL


def test_a_change_that_need_not_be_may_fail(
    path: Path, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trainer.open(path, seed=5) as trainer:
        trainer.set_budget(SMALL)
        watcher = system.watcher(trainer, calm_seconds=4.0)
        opened, attempts = pages_module.open_pages, []

        def fails_at_first(*args: object) -> object:
            attempts.append(system.now)
            if len(attempts) == 1:
                raise PageFileError("the card is full")
            return opened(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(pages_module, "open_pages", fails_at_first)
        changes = []
        for second in range(11):
            system.now = float(second)
            changes.append(watcher.look())
            assert trainer.may_go_on
    assert [second for second, change in enumerate(changes) if change] == [9]
    assert attempts == [4.0, 4.0, 9.0]  # to the larger one, back, and to the larger one


def test_what_was_trained_is_saved_where_a_change_fails_altogether(
    path: Path, system: System, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trainer.open(path, seed=5) as trainer:
        samples = load_samples(data, trainer.plan)
        watcher = system.watcher(trainer, every_seconds=0.0)
        stepped, wanted = trainer.step, []

        def step(*given: object) -> object:
            result = stepped(*given)  # type: ignore[arg-type]
            if trainer.steps == 2:
                wanted.append(trainer.state_dict())
                system.available(SMALL - trainer.held_bytes + 4096)
                monkeypatch.setattr(pages_module, "open_pages", no_pages)
            return result

        def no_pages(*_: object) -> object:
            raise PageFileError("the card is full")

        monkeypatch.setattr(trainer, "step", step)
        with pytest.raises(ReplayError, match="card is full"):
            list(fit(trainer, samples, epochs=4, save_path=tmp_path / "s", watcher=watcher))
        assert not trainer.may_go_on
    monkeypatch.undo()
    with Trainer.open(path, resume=tmp_path / "s") as resumed:
        assert resumed.steps == 2
        assert all(torch.equal(tensor, wanted[0][name]) for name, tensor in resumed.state_dict().items())


def test_spending_follows_the_plan_that_runs(path: Path, system: System, data: Path) -> None:
    plan = planned().plan
    large, small = plan.step_joules, plan.budgets[0].step_joules
    assert small > large
    with Trainer.open(path, seed=5) as trainer:
        samples = load_samples(data, trainer.plan)
        system.available(SMALL - trainer.held_bytes + 4096)
        watcher = system.watcher(trainer)
        spending = Spending(plan, Allowance(joules=2.5 * small))
        done = list(fit(trainer, samples, epochs=9, spending=spending, watcher=watcher))
        assert trainer.steps == 2
        assert spending.joules == pytest.approx(2 * small)
        assert "are allowed" in done[-1].stopped
    with Trainer.open(path, seed=5) as trainer:
        watcher = system.watcher(trainer)
        spending = Spending(plan, Allowance(joules=(small + large) / 2))
        with pytest.raises(InputError, match="no step can be made"):
            list(fit(trainer, samples, epochs=1, spending=spending, watcher=watcher))
        assert trainer.steps == 0


def test_where_nothing_fits_the_state_is_saved_and_that_is_said(
    path: Path, system: System, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trainer.open(path, seed=5) as trainer:
        samples = load_samples(data, trainer.plan)
        stepped = trainer.step

        def step(*given: object) -> object:
            system.available(0)
            return stepped(*given)  # type: ignore[arg-type]

        list(fit(trainer, samples, epochs=1, save_path=tmp_path / "s"))
        list(fit(trainer, samples, epochs=1))
        (tmp_path / "other").write_bytes(b"of somebody else")
        system.available(0)
        watcher = MemoryWatcher(trainer, reserve="1GiB", every_seconds=0.0, system=system.memory)
        with pytest.raises(Infeasible, match="no plan fits"):
            list(fit(trainer, samples, epochs=1, save_path=tmp_path / "other", watcher=watcher))
        assert (tmp_path / "other").read_bytes() == b"of somebody else"  # nothing was trained
        system.available(1 << 31)
        monkeypatch.setattr(trainer, "step", step)
        with pytest.raises(
            Infeasible, match=r"no plan fits into what the system leaves this training, 0 B beside a reserve"
        ):
            list(fit(trainer, samples, epochs=2, save_path=tmp_path / "s", watcher=watcher))
        assert trainer.step(*batch(0)).loss > 0  # it may go on as it was
    with Trainer.open(path, resume=tmp_path / "s") as resumed:
        assert resumed.steps == 3


def test_the_tightest_limit_counts(system: System) -> None:
    assert system.memory.read().room_bytes == 1 << 30
    system.limit(30 * MIB)
    system.limit(20 * MIB, "memory.high")
    found = system.memory.read()
    assert (found.room_bytes, found.bound_by) == (10 * MIB, "memory.high of control group app")
    (system.group / "memory.stat").write_text(f"anon 5\ninactive_file {2 * MIB}\n")
    assert system.memory.read().room_bytes == 12 * MIB
    system.available(3 * MIB)
    found = system.memory.read()
    assert (found.room_bytes, found.bound_by) == (3 * MIB, "the system's available memory")
    assert found.stalled_share is None


def test_this_system_is_read_and_grows_tighter_with_what_is_taken(path: Path) -> None:
    before = SystemMemory().read()
    assert before.room_bytes > 0
    taken = torch.ones(128 * MIB, dtype=torch.uint8)
    after = SystemMemory().read()
    assert taken[-1] == 1
    assert after.room_bytes < before.room_bytes + 1024 * MIB  # others run as well
    with Trainer.open(path) as trainer:
        assert MemoryWatcher(trainer, reserve=0).look() is None
        with pytest.raises(Infeasible, match="save it and go on when there is more"):
            MemoryWatcher(trainer, reserve=1 << 62).look()


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(PoetError, match="watching needs Linux"):
        SystemMemory(tmp_path, tmp_path).read()


def test_a_plan_without_a_budget_is_not_watched(tmp_path: Path) -> None:
    made = plan_module(nn.Linear(4, 3), torch.zeros(4, 4), device="x86-host", ram=None, evaluation=False)
    made.save(tmp_path / "p.poet")
    with Trainer.open(tmp_path / "p.poet") as trainer, pytest.raises(InputError, match="no RAM budget"):
        MemoryWatcher(trainer)


# --- a real limit -----------------------------------------------------------------------------


def test_control_groups_of_the_first_version_are_read(tmp_path: Path) -> None:
    inner = tmp_path / "sys" / "fs" / "cgroup" / "memory" / "app" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:cpu,memory:/app/inner\n2:cpuset:/\n0::/\n")
    for folder, limit in ((inner, 2**63 - 4096), (inner.parent, 100 * MIB)):
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{80 * MIB}\n")
        (folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {5 * MIB}\n")
    reading = SystemMemory(tmp_path / "proc", tmp_path / "sys").read()
    assert reading.room_bytes == 25 * MIB
    assert reading.bound_by == "memory.limit_in_bytes of control group app"


WIDE_LARGE, WIDE_SMALL = 64 * MIB, 28 * MIB


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of our own, inside the one that the tests run in."""
    own = next(
        (
            line.split(":", 2)[2]
            for line in Path("/proc/self/cgroup").read_text().splitlines()
            if ":memory:" in line
        ),
        None,
    )
    if own is None:
        pytest.skip("needs cgroup v1's memory controller")
    folder = Path("/sys/fs/cgroup/memory") / own.strip("/") / f"poet-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield folder
    folder.rmdir()


@pytest.mark.slow
def test_a_real_limit_that_falls_and_rises_is_followed(group: Path, tmp_path: Path) -> None:
    """Nothing stands for the system: the kernel counts, the limit is that of a control group."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.Tanh())]
    path = tmp_path / "wide.poet"
    plan_module(
        nn.Sequential(*layers, nn.Linear(256, 5)),
        torch.zeros(4096, 256),
        device="x86-host",
        ram=WIDE_LARGE,
        budgets=[WIDE_SMALL],
        evaluation=False,
        time_limit_seconds=2.0,
    ).save(path)
    done = subprocess.run(
        [sys.executable, HELPERS / "watched_child.py", path, group],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    (fell, rose) = said["changes"]
    assert fell[:3] == [2, WIDE_LARGE, WIDE_SMALL]
    assert fell[3].startswith(f"memory.limit_in_bytes of control group {group.name} leaves")
    assert rose[:3] == [4, WIDE_SMALL, WIDE_LARGE]
    assert said["losses"] == said["alone"]
