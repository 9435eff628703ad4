"""Saving and loading in C, with storage that fails, is cut off, or flips bits, at every write."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
import torch
from helpers.c_build import COPY, EXACT, STRICT, SYNC, CStep, StorageRecord, build, needs_cortex_m
from helpers.c_plans import CNet, traced
from helpers.pace import few_or_many
from torch import nn

from poet.c99.project import CProject
from poet.c99.vectors import given_tensors
from poet.ir.optimizer import OptimizerSpec

OK, BAD_ARGUMENT, STORAGE_FAILED, NO_STATE = 0, 1, 3, 4


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


@pytest.fixture(scope="module")
def homes(net: CNet, tmp_path_factory: pytest.TempPathFactory) -> tuple[CProject, Path]:
    """The same net with its parameters in storage."""
    folder = tmp_path_factory.mktemp("homes") / "c"
    return net.project(folder, 3, homes=True), build(folder, "-O1")


def test_a_step_made_in_part_is_neither_committed_nor_saved(net: CNet, homes: tuple[CProject, Path]) -> None:
    project, library = homes
    step, flash = Committing(project, library, graph=net.step.graph), Flash()
    step.train(0)
    assert step.commit() == OK
    committed, step.failing = step.crc(), step.transfers + 3
    assert step.made(1) == STORAGE_FAILED
    step.failing, pages = -1, bytes(step.pages)
    assert [step.commit(), step.save(flash), step.made(1)] == [STORAGE_FAILED] * 3
    assert (bytes(step.pages), flash.writes) == (pages, 0)
    assert (step.recover(), step.crc()) == (OK, committed)
    loss, after = step.train(1), step.crc()
    assert (step.commit(), step.save(flash)) == (OK, OK)
    step.failing = step.transfers
    assert step.made(2) == STORAGE_FAILED
    step.failing = -1
    assert (step.load(flash), step.crc(), step.commit()) == (OK, after, OK)
    step.begin()  # anew, likewise
    assert (step.train(0), step.train(1))[1] == loss


def test_a_load_whose_reads_fail_leaves_the_net_or_what_was_committed(
    net: CNet, homes: tuple[CProject, Path]
) -> None:
    """Before a generation is found the net is as it was; after that it makes no step, and recovers."""
    project, library = homes
    step, flash = Committing(project, library, graph=net.step.graph), Flash()
    step.train(0)
    assert (step.commit(), step.save(flash)) == (OK, OK)
    committed = step.crc()
    step.train(1)
    flash.reads, crc = 0, step.crc()
    step.after_power_cut(library).load(flash)
    reads, left = flash.reads, []
    for bad in range(reads):
        before, flash.reads, flash.bad_read = bytes(step.net), 0, bad
        assert step.load(flash) == STORAGE_FAILED
        left.append(bytes(step.net) == before)
        flash.bad_read = -1
        if left[-1]:
            assert step.crc() == crc
        else:
            assert [step.made(1), step.commit()] == [STORAGE_FAILED] * 2
            assert (step.recover(), step.crc()) == (OK, committed)
            step.train(1)
    assert (left[0], left[-1]) == (True, False)
    assert (step.load(flash), step.crc()) == (OK, committed)


def test_homes_written_in_part_make_no_step(net: CNet, homes: tuple[CProject, Path]) -> None:
    project, library = homes
    step = Committing(project, library, graph=net.step.graph)
    count, begins = step.transfers, step.crc()
    for failing in range(0, count, 5):
        step.transfers, step.failing = 0, failing
        assert step.library.poet_set_storage(step.net, ctypes.byref(step.storage)) == STORAGE_FAILED
        step.failing = -1
        assert step.made(0) == BAD_ARGUMENT
    step.begin()
    assert step.crc() == begins


def test_larger_erases_are_refused_where_steps_are_committed(
    net: CNet, homes: tuple[CProject, Path], made: tuple[CNet, Path, CProject]
) -> None:
    for library, size, is_right in [(homes[1], 8192, False), (homes[1], 4096, True), (made[1], 8192, True)]:
        command = ["gcc", "-std=c99", "-fsyntax-only", f"-DPOET_ERASE_BYTES={size}u", "poet_state.c"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=library.parent)
        assert (done.returncode == 0) is is_right, done.stderr
        assert is_right or "plan with --home ram" in done.stderr


@needs_cortex_m
def test_the_readme_says_the_size_of_a_net(
    homes: tuple[CProject, Path], made: tuple[CNet, Path, CProject]
) -> None:
    for project, library in (homes, (made[2], made[1])):
        said = re.search(r"`poet_net` \((\d+) bytes\)", project.files["README.md"])
        assert said
        text = f'#include "poet_step.h"\nchar is_right[sizeof(poet_net) == {said[1]} ? 1 : -1];\n'
        command = ["arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb", "-fsyntax-only", "-x", "c", "-I.", "-"]
        subprocess.run(command, input=text, text=True, check=True, cwd=library.parent)


_AROUND = """
#include "poet_state.h"
#include <string.h>
static unsigned char bytes[POET_PAGE_BYTES];
static int transfers, failing = -1, tries, began, commits;
static float arena[POET_ARENA_FLOATS], loss;
static poet_net net;
static int get(void *c, uint32_t at, void *to, uint32_t size)
{ (void)c; memcpy(to, bytes + at, size); return transfers++ == failing; }
static int put(void *c, uint32_t at, const void *from, uint32_t size)
{ (void)c; memcpy(bytes + at, from, size); return transfers++ == failing; }
static int sync(void *c) { (void)c; return 0; }
static const poet_storage pages = {0, get, put, sync};
static int tries_left(poet_status status)
{ (void)status; return tries++ < 6; }
static poet_status begun(poet_net *n, const poet_storage *s) { ++began; return poet_set_storage(n, s); }
static poet_status done(poet_net *n) { poet_status s = poet_commit(n); commits += s == POET_OK; return s; }
#define poet_set_storage begun
#define poet_commit done
"""


def test_the_pages_sample_goes_on_after_any_failure_and_never_erases_a_commit(
    homes: tuple[CProject, Path], tmp_path: Path
) -> None:
    """A transfer of the first run fails, or of the second, which begins nothing anew."""
    page = (Path(__file__).parents[2] / "docs" / "microcontroller.md").read_text()
    sample = next(block for block in re.findall(r"```c\n(.*?)```", page, re.DOTALL) if "resume" in block)
    function, body = sample.split("\n}\n", 1)
    run = f"static void run(void)\n{{\ntries = began = commits = transfers = 0;\n{body}}}\n"
    main = """
int main(void)
{
    run();
    const int first = transfers;
    if (began != 1 || commits != 6) return 1;
    run();
    const int second = transfers;
    if (began != 0 || commits != 6) return 2;
    for (failing = 0; failing < second; ++failing) { run(); if (began || commits < 4) return 3; }
    for (failing = 0; failing < first; ++failing) {
        memset(bytes, 0, sizeof bytes);
        run();
        if (!began || commits < 4) return 4;
    }
    return 0;
}
"""
    (tmp_path / "main.c").write_text(_AROUND + function + "\n}\n" + run + main)
    folder = homes[1].parent
    sources = [str(folder / f"poet_{name}.c") for name in ("step", "state", "kernels", "weights")]
    command = [
        "gcc",
        *STRICT,
        "-Wno-unused-result",
        "-O1",
        "-I",
        str(folder),
        str(tmp_path / "main.c"),
        *sources,
    ]
    subprocess.run([*command, *EXACT, "-o", str(tmp_path / "run")], check=True)
    assert subprocess.run([tmp_path / "run"], check=False, timeout=60).returncode == 0
