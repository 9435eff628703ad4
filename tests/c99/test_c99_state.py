"""Saving and loading in C, with storage that fails, is cut off, or flips bits, at every write."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from helpers.c_build import COPY, SYNC, CStep, StorageRecord, build
from helpers.c_plans import CNet, traced
from helpers.pace import few_or_many
from torch import nn

from poet.c99.project import CProject
from poet.c99.vectors import given_tensors
from poet.optimizer import OptimizerSpec

OK, STORAGE_FAILED, NO_STATE = 0, 3, 4


class Flash:
    """Bytes behind the callbacks. The ``cut``-th write stores half of its bytes, and later ones nothing."""

    def __init__(self) -> None:
        self.data = bytearray(b"\xff" * 65536)
        self.writes, self.reads, self.cut, self.bad_read = 0, 0, -1, -1
        self.record = StorageRecord(None, COPY(self._read), COPY(self._write), SYNC(lambda _: self._ended()))

    def _ended(self) -> int:
        return int(0 <= self.cut < self.writes)

    def _read(self, _: int, offset: int, target: int, size: int) -> int:
        self.reads += 1
        if self.reads - 1 == self.bad_read:
            return 1
        ctypes.memmove(target, bytes(self.data[offset : offset + size]), size)
        return 0

    def _write(self, _: int, offset: int, source: int, size: int) -> int:
        kept = size if self.cut < 0 or self.writes < self.cut else size // 2 if self.writes == self.cut else 0
        self.data[offset : offset + kept] = ctypes.string_at(source, kept)
        self.writes += 1
        return self._ended()


class Saving(CStep):
    """A net with storage."""

    def save(self, flash: Flash) -> int:
        code: int = self.library.poet_save(self.net, ctypes.byref(flash.record))
        return code

    def load(self, flash: Flash) -> int:
        code: int = self.library.poet_load(self.net, ctypes.byref(flash.record))
        return code

    def train(self, number: int) -> float:
        self.fill(given_tensors(self.graph, self.project.interface, number))
        return self.step()

    def made(self, number: int) -> int:
        """The status of a step."""
        self.fill(given_tensors(self.graph, self.project.interface, number))
        code: int = self.library.poet_train_step(self.net, None)
        return code


@pytest.fixture(scope="module")
def net() -> CNet:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    return traced(module, torch.randn(3, 4), loss="mse", optimizer=OptimizerSpec("adamw", lr=0.05))


@pytest.fixture(scope="module")
def made(net: CNet, tmp_path_factory: pytest.TempPathFactory) -> tuple[CNet, Path, CProject]:
    folder = tmp_path_factory.mktemp("state") / "c"
    project = net.project(folder)
    return net, build(folder, "-O1", "-DPOET_ERASE_BYTES=256u"), project


def _new(made: tuple[CNet, Path, CProject]) -> Saving:
    net, library, project = made
    return Saving(project, library, graph=net.step.graph)


def test_training_goes_on_where_it_was_saved(made: tuple[CNet, Path, CProject]) -> None:
    one, flash = _new(made), Flash()
    losses = [one.train(number) for number in range(2)]
    assert one.save(flash) == OK
    losses += [one.train(number) for number in range(2, 4)]
    other = _new(made)
    assert other.load(flash) == OK
    assert [other.train(number) for number in range(2, 4)] == losses[2:]
    assert other.crc() == one.crc()
    assert other.save(flash) == OK
    third = _new(made)
    assert third.load(flash) == OK
    assert third.crc() == one.crc()


def test_without_a_saved_state_the_net_begins_anew(made: tuple[CNet, Path, CProject]) -> None:
    net, flash = _new(made), Flash()
    begins = net.crc()
    net.train(0)
    assert net.load(flash) == NO_STATE
    assert net.crc() == begins


def test_a_cut_at_any_write_leaves_the_last_whole_state(made: tuple[CNet, Path, CProject]) -> None:
    count = 0
    for cut in range(1000):
        net, flash = _new(made), Flash()
        net.train(0)
        assert net.save(flash) == OK
        first = net.crc()
        net.train(1)
        assert net.save(flash) == OK
        second = net.crc()
        net.train(2)
        flash.cut = flash.writes + cut
        writes = flash.writes
        code = net.save(flash)
        last = net.crc()
        flash.cut = -1
        after = _new(made)
        assert after.load(flash) == OK
        if code == OK:
            assert after.crc() == last
            assert flash.writes == writes + cut
            break
        assert code == STORAGE_FAILED
        assert after.crc() == second != first
        assert after.save(flash) == OK
        assert _new(made).load(flash) == OK
        count += 1
    assert count > 10


def test_a_flipped_bit_is_found_anywhere(made: tuple[CNet, Path, CProject]) -> None:
    net, flash = _new(made), Flash()
    net.train(0)
    assert net.save(flash) == OK
    first = net.crc()
    whole = bytes(flash.data)
    net.train(1)
    assert net.save(flash) == OK
    changed = [at for at, (a, b) in enumerate(zip(whole, flash.data, strict=True)) if a != b]
    after = _new(made)
    for at in changed[::7]:
        flash.data[at] ^= 1 << at % 8
        assert after.load(flash) == OK
        assert after.crc() == first
        flash.data[at] ^= 1 << at % 8
    assert after.load(flash) == OK
    assert after.crc() == net.crc()


def test_a_read_that_fails_is_told_and_the_next_load_succeeds(made: tuple[CNet, Path, CProject]) -> None:
    net, flash = _new(made), Flash()
    net.train(0)
    assert net.save(flash) == OK
    flash.reads = 0
    assert net.load(flash) == OK
    reads = flash.reads
    for bad in range(reads):
        flash.reads, flash.bad_read = 0, bad
        after = _new(made)
        assert after.load(flash) == STORAGE_FAILED
        flash.bad_read = -1
        assert after.load(flash) == OK
        assert after.crc() == net.crc()


def test_what_belongs_to_a_run_is_not_loaded(net: CNet, tmp_path: Path) -> None:
    """The arena, and the storage that a plan pages to."""
    project = net.project(tmp_path / "c", 3, pages=True)
    assert project.statements.page_bytes
    library = build(tmp_path / "c", "-O1")
    one, flash = Saving(project, library, graph=net.step.graph), Flash()
    one.train(0)
    assert one.save(flash) == OK
    last = one.train(1)
    other = Saving(project, library, graph=net.step.graph)
    assert other.load(flash) == OK
    assert other.train(1) == last
    assert other.load(Flash()) == NO_STATE
    assert other.train(0) > 0.0


class Committing(Saving):
    """A net whose parameters live in storage; its n-th transfer fails, is short, or the last before a cut."""

    fault = "fails"

    def is_cut(self) -> bool:
        """Counts a transfer; whether it is the one to fail, or comes after a cut."""
        self.transfers += 1
        late = self.fault == "cut" and self.transfers - 1 > self.failing
        return self.failing >= 0 and (self.transfers - 1 == self.failing or late)

    def _read(self, _: int, offset: int, target: int, size: int) -> int:
        is_bad = self.is_cut()
        kept = 0 if is_bad else size
        ctypes.memmove(target, bytes(self.pages[offset : offset + kept]), kept)
        return int(is_bad)

    def _write(self, _: int, offset: int, source: int, size: int) -> int:
        is_bad = self.is_cut()
        whole = not is_bad or (self.fault == "cut" and self.transfers - 1 > self.failing)
        kept = (0 if is_bad else size) if whole or self.fault == "fails" else size // 2
        self.pages[offset : offset + kept] = ctypes.string_at(source, kept)
        return int(is_bad)

    def commit(self) -> int:
        code: int = self.library.poet_commit(self.net)
        return code

    def recover(self) -> int:
        code: int = self.library.poet_recover(self.net, ctypes.byref(self.storage))
        return code

    def after_power_cut(self, library: Path) -> Committing:
        """A new start of the program on the same storage."""
        other = object.__new__(Committing)
        CStep.__init__(other, self.project, library, graph=self.graph)
        other.pages[:] = self.pages
        return other


@few_or_many("stride", 11, 1)
@pytest.mark.parametrize("fault", ["fails", "short", "cut"])
def test_whichever_transfer_of_steps_and_commits_fails_the_last_commit_is_there(
    net: CNet, tmp_path: Path, fault: str, stride: int
) -> None:
    """Each transfer of a step, of the next and of their commit: recovered, and the steps after are right."""
    project = net.project(tmp_path / "c", 3, homes=True)
    library = build(tmp_path / "c", "-O1")
    step = Committing(project, library, graph=net.step.graph)
    assert step.recover() == NO_STATE
    step = Committing(project, library, graph=net.step.graph)
    for number in range(2):
        step.train(number)
        assert step.commit() == OK
    begun, committed = bytes(step.pages), step.crc()
    step.transfers = 0
    losses = [step.train(number) for number in (2, 3)]
    assert step.commit() == OK
    count, after = step.transfers, step.crc()
    assert count > 20
    print(f"{count} transfers")
    for failing in range(0, count, stride):
        other = step.after_power_cut(library)
        other.pages[:] = begun
        assert other.recover() == OK
        other.transfers, other.failing, other.fault = 0, failing, fault
        codes = [other.made(number) for number in (2, 3)]
        codes.append(other.commit() if codes == [OK, OK] else STORAGE_FAILED)
        assert STORAGE_FAILED in codes, failing
        other.failing = -1
        restarted = other.after_power_cut(library)  # and the same run may go on as well
        for running in (restarted, other):
            assert running.recover() == OK
            assert running.crc() in (committed, after), (failing, codes)
            if running.crc() == committed:
                assert [running.train(number) for number in (2, 3)] == losses, failing
                assert running.commit() == OK
            assert running.crc() == after, failing


def test_a_flipped_bit_in_storage_is_never_taken_for_a_commit(net: CNet, tmp_path: Path) -> None:
    project = net.project(tmp_path / "c", 3, homes=True)
    library = build(tmp_path / "c", "-O1")
    step = Committing(project, library, graph=net.step.graph)
    found = []
    for number in range(2):
        step.train(number)
        assert step.commit() == OK
        found.append(step.crc())
    whole = bytes(step.pages)
    changed = [at for at in range(len(whole)) if whole[at]]
    results = set()
    for at in changed[::7]:
        other = step.after_power_cut(library)
        other.pages[:] = whole
        other.pages[at] ^= 1 << at % 8
        code = other.recover()
        assert code in (OK, NO_STATE)
        assert code == NO_STATE or other.crc() in found, at
        results.add((code, other.crc() if code == OK else 0))
    assert {(OK, found[0]), (OK, found[1])} <= results


@few_or_many("stride", 9, 1)
@pytest.mark.parametrize("kind", ["homes", "pages"])
def test_whichever_callback_of_a_step_fails_the_last_save_is_there(
    net: CNet, tmp_path: Path, kind: str, stride: int
) -> None:
    """A step cut off at its n-th transfer is told; the saved generation loads, and the next step is right."""
    project = net.project(tmp_path / "c", 3, pages=kind == "pages", homes=kind == "homes")
    library = build(tmp_path / "c", "-O1", "-DPOET_ERASE_BYTES=256u")
    step, flash = Saving(project, library, graph=net.step.graph), Flash()
    step.train(0)
    assert step.save(flash) == OK
    saved = step.crc()
    step.transfers = 0
    loss, transfers = step.train(1), step.transfers  # the sum below reads what is at home in storage
    after = loss, step.crc()
    assert transfers > 4
    for failing in range(0, transfers, stride):
        assert step.load(flash) == OK
        assert step.crc() == saved
        step.fill(given_tensors(step.graph, project.interface, 1))
        step.transfers, step.failing = 0, failing
        code = step.library.poet_train_step(step.net, None)
        step.failing = -1
        assert code == STORAGE_FAILED
        assert step.transfers == failing + 1, "nothing is tried after a failure"
        assert step.load(flash) == OK
        assert step.crc() == saved
        assert (step.train(1), step.crc()) == after, failing
