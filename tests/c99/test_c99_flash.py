"""Storage as boards have it: no wrong byte and no NaN is kept, pieces are programmed once, wear as said."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers.c_build import EXACT, STRICT, build
from helpers.c_plans import CNet, traced
from helpers.pace import few_or_many, with_slow
from test_c99_state import Committing, Flash, Saving
from torch import Tensor, nn

from poet.c99.library import LibraryError, Step
from poet.c99.project import CProject, c_project
from poet.ir.optimizer import OptimizerSpec
from poet.plans.page_slots import life_steps
from poet.plans.plan_file import PlanFile
from poet.plans.plan_parts import Device

HARNESS = Path(__file__).with_name("flash_model.c")
OK, BAD_ARGUMENT, NOT_FINITE, STORAGE_FAILED, NO_STATE, OTHER_BUILD = range(6)
CYCLES = 100_000
KINDS = ("kept", "recomputed", "pages", "homes")


class _Net(nn.Module):
    """With what is trained and what is not: a frozen bias, running statistics, a mask of minus infinity."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(12, 40), nn.BatchNorm1d(40)
        self.second, self.last = nn.Linear(40, 30), nn.Linear(30, 4)
        self.first.bias.requires_grad_(False)
        self.floor: Tensor
        self.register_buffer("floor", torch.full((40,), -torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.maximum(torch.relu(self.norm(self.first(x))), self.floor)
        made: Tensor = self.last(torch.tanh(self.second(y)))
        return made


@cache
def _net(optimizer: str = "momentum") -> CNet:
    torch.manual_seed(0)
    return traced(_Net(), torch.randn(3, 12), optimizer=OptimizerSpec(optimizer, lr=0.01))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[CProject, Path]]:
    """A folder for each kind of plan, for a device with raw flash."""
    device = Device("board", endurance_cycles=CYCLES, erase_block_bytes=4096)
    _net()

    @cache
    def of(kind: str, optimizer: str = "momentum") -> tuple[CProject, Path]:
        folder, net = tmp_path_factory.mktemp("flash"), _net(optimizer)
        seed = None if kind == "kept" else 3
        plan = net.plan(seed, pages=kind == "pages", homes=kind == "homes")
        with PlanFile(net.write(folder / "net.poet", replace(plan, device=device))) as file:
            project = c_project(file)
        project.write(folder / "c")
        return project, folder / "c"

    return of


def _run(folder: Path, mode: str, *flags: str, is_save: int = 0, stride: int = 1) -> dict[str, int]:
    """What the harness counts in a mode."""
    sources = [str(folder / f"poet_{name}.c") for name in ("step", "state", "kernels", "weights")]
    program = folder / f"run{abs(hash(flags))}"
    if not program.exists():
        command = ["gcc", *STRICT, *EXACT, "-O0", *flags, "-I", str(folder), str(HARNESS), *sources]
        subprocess.run([*command, str(folder / "test" / "vectors.c"), "-o", str(program)], check=True)
    done = subprocess.run(
        [program, mode, str(is_save), str(stride)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-2000:]
    print(done.stdout)
    return {name: int(count) for name, count in re.findall(r"(\w+) (\d+)", done.stdout)}


WAYS = [(kind, optimizer, save) for kind in KINDS for optimizer in ("momentum", "adamw") for save in (0, 1)]
FAST = {("homes", "momentum", 0), ("pages", "momentum", 1)}


@few_or_many("stride", 29, 1)
@pytest.mark.parametrize(("kind", "optimizer", "is_save"), with_slow(WAYS, set(WAYS) - FAST))
def test_a_transfer_that_goes_wrong_without_a_word_is_told(
    kind: str, optimizer: str, is_save: int, stride: int, made: Callable[..., tuple[CProject, Path]]
) -> None:
    """Each write of a step and of keeping it flipped or dropped, each read flipped, all with status 0.

    What was said to be kept is there; else the state comes back that was kept before.
    """
    found = _run(made(kind, optimizer)[1], "spoil", is_save=is_save, stride=stride)
    tried = -(-found["writes"] // stride)
    assert found["writes"] > 4
    assert found["older"] + found["newer"] == 2 * tried
    assert found["told"] > found["older"] >= tried


@pytest.mark.parametrize(("kind", "optimizer", "is_save"), with_slow(WAYS, set(WAYS) - FAST))
def test_a_wrong_read_while_the_state_goes_back_makes_no_state_of_its_own(
    kind: str, optimizer: str, is_save: int, made: Callable[..., tuple[CProject, Path]]
) -> None:
    found = _run(made(kind, optimizer)[1], "back", is_save=is_save)
    assert found["reads"] > found["wrong"] > 10


PIECES = [(kind, piece) for kind in KINDS for piece in (1, 4, 8, 16, 32, 256, 4096)]


@few_or_many("stride", 29, 1)
@pytest.mark.parametrize(("kind", "piece"), with_slow(PIECES, set(PIECES) - {("homes", 256), ("kept", 8)}))
def test_whole_pieces_are_programmed_once_since_they_were_erased(
    kind: str, piece: int, stride: int, made: Callable[..., tuple[CProject, Path]]
) -> None:
    """Pages, homes, commits and saves, by both rules when a block is erased; wrong bytes are found too."""
    folder = made(kind)[1]
    for rule in ((), ("-DENTERED",))[: 2 if stride == 1 else 1]:
        for is_save in (0, 1):
            found = _run(folder, "wear", f"-DPOET_WRITE_BYTES={piece}", *rule, is_save=is_save)
            assert (found["misaligned"], found["twice"]) == (0, 0)
    assert _run(folder, "spoil", f"-DPOET_WRITE_BYTES={piece}", stride=stride)["told"]


def test_sizes_that_no_flash_has_are_refused(made: Callable[..., tuple[CProject, Path]]) -> None:
    folder = made("kept")[1]
    for flags, why in (
        (["-DPOET_WRITE_BYTES=12"], "is a power of two up to 4,096"),
        (["-DPOET_WRITE_BYTES=8192"], "is a power of two up to 4,096"),
        (["-DPOET_WRITE_BYTES=256", "-DPOET_ERASE_BYTES=1000"], "is a multiple of the other"),
    ):
        assert why in _refused(folder, "poet_state.c", *flags)
    assert not _refused(folder, "poet_state.c", "-DPOET_WRITE_BYTES=256", "-DPOET_ERASE_BYTES=1")


def _refused(folder: Path, source: str, *flags: str, compiler: str = "gcc") -> str:
    """What the compiler says of a file that it does not take; empty where it does."""
    command = [compiler, "-std=c99", "-fsyntax-only", *flags, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("kind", with_slow(KINDS, {"kept", "recomputed"}))
def test_the_life_that_is_said_is_that_of_the_busiest_block(
    kind: str, made: Callable[..., tuple[CProject, Path]]
) -> None:
    """As the model of flash wears in 200 steps; with commits, whose places take turns, no more."""
    project, folder = made(kind)
    text = project.files["README.md"]
    bare, kept = _run(folder, "wear", is_save=-1), _run(folder, "wear")
    with PlanFile(folder.parent / "net.poet") as file:
        foreseen = life_steps(file.plan.device.endurance, file.plan.step_wear)
    if not bare["most"]:
        assert "life of that storage | not worn" in text
        assert foreseen == float("inf")
        assert kept["saved"] == 100, "two generations take turns"
        return
    life = CYCLES * 200 / bare["most"]
    line = r"life of that storage \| ([\d,]+) steps; each erases its busiest block (\d+) time"
    said = re.search(line, text)
    assert said
    assert int(said[1].replace(",", "")) == pytest.approx(life, abs=1)
    assert foreseen is not None
    assert foreseen <= life
    assert kept["most"] <= bare["most"] == 200 * int(said[2])


WHERE = [(kind, optimizer, save) for kind in KINDS for optimizer in ("momentum", "adamw") for save in (0, 1)]


@pytest.mark.parametrize(
    ("kind", "optimizer", "is_save"), with_slow(WHERE, set(WHERE) - {("homes", "momentum", 0)})
)
def test_what_is_not_finite_is_not_kept_wherever_it_is(
    kind: str, optimizer: str, is_save: int, made: Callable[..., tuple[CProject, Path]]
) -> None:
    """First, middle and last word of each tensor, but not of counters, masks and what is frozen."""
    project, folder = made(kind, optimizer)
    found = _run(folder, "poison", is_save=is_save)
    refused = {span.name: found[f"tensor{index}"] for index, span in enumerate(project.spans)}
    free = {name for name, count in refused.items() if count == 0}
    assert set(refused.values()) == {0, 12}
    assert free == {name for name in refused if re.search(r"floor|first\.bias|num_batches", name)}, refused


@pytest.mark.parametrize("kind", with_slow(KINDS, {"recomputed", "kept"}))
def test_a_sample_with_nan_loses_no_state(kind: str, made: Callable[..., tuple[CProject, Path]]) -> None:
    for is_save in (0, 1):
        _run(made(kind)[1], "nan", is_save=is_save)


def test_a_library_saves_no_nan(tmp_path: Path) -> None:
    """Through ctypes: the file stays as it was, and the message says why."""
    _net().project(tmp_path / "c", 3)
    with Step(build(tmp_path / "c", "-O0")) as step:
        step.set_input(0, torch.ones(36).numpy())
        step.set_classes([0, 1, 2])
        step.train()
        step.save(tmp_path / "state")
        before, crc = (tmp_path / "state").read_bytes(), step.state_crc()
        step.set_input(0, torch.full((36,), torch.nan).numpy())
        step.set_classes([0, 1, 2])
        assert step.train() != step.train()
        with pytest.raises(LibraryError, match="poet_save: what was trained is not finite"):
            step.save(tmp_path / "state")
        assert (tmp_path / "state").read_bytes() == before
        assert step.load(tmp_path / "state")
        assert step.state_crc() == crc
        (tmp_path / "state").write_bytes(before.replace(b"poet state 2", b"poet state 1", 1))
        with pytest.raises(LibraryError, match="or one of an older poet"):
            step.load(tmp_path / "state")


def _build_of(net: Saving, pointers: int) -> int:
    """The member of a `poet_net` that says which build saved what was loaded."""
    return int.from_bytes(bytes(net.net)[8 * pointers : 8 * pointers + 4], "little")


def test_a_state_says_by_which_build_it_was_written(made: Callable[..., tuple[CProject, Path]]) -> None:
    project, folder = made("kept")
    graph = _net().step.graph
    own = int(re.findall(r"define POET_BUILD UINT32_C\((\w+)\)", project.files["poet_step.h"])[0], 16)
    one = Saving(project, build(folder, "-O0", name="one"), graph=graph)
    other = Saving(project, build(folder, "-O0", "-DPOET_BUILD=7u", name="other"), graph=graph)
    flash = Flash()
    other.train(0)
    assert other.save(flash) == OK
    assert _build_of(one, 3) == own != 7
    assert one.load(flash) == OK
    assert (_build_of(one, 3), one.crc()) == (7, other.crc())
    one.train(1)
    assert one.save(flash) == OK
    assert other.load(flash) == OK
    assert (_build_of(other, 3), other.crc()) == (own, one.crc())


@pytest.mark.parametrize("kind", ["kept", "homes"])
def test_what_an_older_form_saved_is_told_and_not_written_over(
    kind: str, made: Callable[..., tuple[CProject, Path]]
) -> None:
    """Its records began with the plan; those of another plan are none, as before."""
    project, folder = made(kind)
    plan = int(re.findall(r"define POET_PLAN UINT32_C\((\w+)\)", project.files["poet_step.h"])[0], 16)
    net = Committing(project, build(folder, "-O0"), graph=_net().step.graph)
    net.train(0)
    crc, flash = net.crc(), Flash()
    older = plan.to_bytes(4, "little") + bytes(range(60))
    newer = (0x706F6503).to_bytes(4, "little") + bytes(4) + older
    for record in (older, newer):
        flash.data[: len(record)] = record
        before = bytes(flash.data)
        assert (net.load(flash), net.save(flash), net.crc()) == (OTHER_BUILD, OTHER_BUILD, crc)
        assert bytes(flash.data) == before
    flash.data[: len(older)] = bytes(4) + older[4:]
    assert net.load(flash) == NO_STATE
    if kind == "homes":
        at = int(re.findall(r"define POET_COMMIT_AT (\d+)u", project.files["poet_step.h"])[0])
        net.pages[at : at + len(older)] = older
        assert net.recover() == OTHER_BUILD
        assert net.made(0) == BAD_ARGUMENT, "no step before set_storage begins anew"


def test_a_commit_that_is_damaged_is_not_said_to_be_none(made: Callable[..., tuple[CProject, Path]]) -> None:
    """Where it was the only one: whoever begins anew on POET_NO_STATE would write over it."""
    project, folder = made("homes")
    net = Committing(project, build(folder, "-O0"), graph=_net().step.graph)
    net.train(0)
    assert net.commit() == OK
    crc, home = net.crc(), next(span.home for span in project.spans if span.home is not None)
    for place in home:
        net.pages[place] ^= 4
    assert net.recover() == STORAGE_FAILED
    assert net.made(1) == BAD_ARGUMENT
    for place in home:
        net.pages[place] ^= 4
    assert (net.recover(), net.crc()) == (OK, crc)


_CPP = """
#include "poet_step.h"
#include "poet_state.h"
#include "poet_kernels.h"
#include "poet_weights.h"
#include "poet_file_storage.h"
#include "poet_library.h"
#include "test/vectors.h"
#include <cstring>

static poet_net net;
static float whole[POET_ARENA_FLOATS + 2];

int main()
{
    unsigned char *const raw = reinterpret_cast<unsigned char *>(whole);
    for (int shift = 1; shift < 4; ++shift) {
        if (poet_init(&net, reinterpret_cast<float *>(raw + shift), 1u) != POET_BAD_ARGUMENT || net.arena) {
            return 1;
        }
    }
    for (int words = 0; words < 2; ++words) {
        if (poet_init(&net, whole + words, 1u) != POET_OK) {
            return 2;
        }
        poet_test_fill(&net, 0);
        if (poet_train_step(&net, 0) != POET_OK || poet_library.kept != POET_KEPT || poet_weights[0] == 1u) {
            return 3;
        }
    }
    poet_file_storage file;
    std::memset(&file, 0, sizeof file);
    return poet_file_close(&file) == POET_BAD_ARGUMENT && poet_save(&net, 0) == POET_BAD_ARGUMENT ? 0 : 4;
}
"""


def test_a_program_in_cpp_calls_it_and_an_arena_between_words_is_refused(
    made: Callable[..., tuple[CProject, Path]], tmp_path: Path
) -> None:
    folder = made("kept")[1]
    objects = []
    for source in (*sorted(folder.glob("*.c")), folder / "test" / "vectors.c"):
        objects.append(str(tmp_path / f"{source.stem}.o"))
        command = ["gcc", *STRICT, *EXACT, "-O0", "-I", str(folder), "-c", str(source), "-o", objects[-1]]
        subprocess.run(command, check=True)
    (tmp_path / "main.cpp").write_text(_CPP)
    flags = ["-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror", "-I", str(folder)]
    command = ["g++", *flags, str(tmp_path / "main.cpp"), *objects, "-o", str(tmp_path / "main")]
    subprocess.run(command, check=True)
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0
    for header in (*folder.glob("*.h"), folder / "test" / "vectors.h"):
        assert 'extern "C" {' in header.read_text(), header.name


def test_flags_that_hide_nan_are_refused(made: Callable[..., tuple[CProject, Path]]) -> None:
    folder = made("kept")[1]
    for source in ("poet_step.c", "poet_kernels.c"):
        for flag in ("-ffast-math", "-Ofast", "-ffinite-math-only", "-funsafe-math-optimizations"):
            assert "compile without -ffast-math" in _refused(folder, source, flag), (source, flag)
        assert not _refused(folder, source, "-O3", *EXACT)


_SYNCS = """
#include "poet_file_storage.h"
#include "poet_state.h"
static int syncs;
int fsync(int descriptor);
int fsync(int descriptor) { (void)descriptor; ++syncs; return 0; }
int main(int count, char **words)
{
    poet_file_storage file;
    const uint32_t word = 7u;
    const uint32_t end = POET_STORAGE_BYTES;
    if (count < 2 || poet_file_open(&file, words[1], end, POET_FILE_TO_SAVE) != POET_OK) return 1;
    syncs = 0;
    if (file.storage.sync(&file) || syncs != 0) return 2;
    if (file.storage.write(&file, 0u, &word, 4u) || file.storage.sync(&file) || syncs != 1) return 3;
    if (file.storage.sync(&file) || syncs != 1) return 4;
    if (file.storage.write(&file, end, &word, 4u) != 1 || file.storage.sync(&file) || syncs != 1) return 5;
    return poet_file_close(&file) != POET_OK;
}
"""


def test_a_file_is_synced_where_something_was_written(
    made: Callable[..., tuple[CProject, Path]], tmp_path: Path
) -> None:
    folder = made("kept")[1]
    (tmp_path / "main.c").write_text(_SYNCS)
    sources = [str(folder / "poet_file_storage.c"), str(tmp_path / "main.c")]
    subprocess.run(["gcc", "-w", "-I", str(folder), *sources, "-o", str(tmp_path / "main")], check=True)
    assert subprocess.run([tmp_path / "main", tmp_path / "state"], check=False).returncode == 0


def test_the_record_of_a_net_has_no_gaps(made: Callable[..., tuple[CProject, Path]]) -> None:
    """What is saved of it is the same on machines with pointers of 4 and of 8 bytes."""
    assert ctypes.sizeof(ctypes.c_double) == 8
    for kind, optimizer in (("kept", "adamw"), ("homes", "momentum")):
        folder = made(kind, optimizer)[1]
        text = (
            '#include "poet_step.h"\nchar is_right[offsetof(poet_net, seed) + 4u'
            " - offsetof(poet_net, drawn) == POET_NUMBERS_BYTES ? 1 : -1];\n"
        )
        subprocess.run(
            ["gcc", "-fsyntax-only", "-x", "c", "-I.", "-"], input=text, text=True, check=True, cwd=folder
        )
