"""The exported step as a library of four ecosystems, and as an image for each machine that QEMU has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.c_build import EXACT, STRICT
from helpers.c_nets import net_of
from helpers.pace import with_slow
from poet.cli.main import app
from typer.testing import CliRunner

from poet.c99.ecosystems import for_ecosystem
from poet.c99.project import CProject, c_project
from poet.c99.targets import Ecosystem, compilers
from poet.errors import InputError
from poet.plans.plan_file import PlanFile
from poet.problem.schedule import Compute

MAIN = """#include "train.h"
#include <stdio.h>
static int calls;
static void say(const char *line) { puts(line); }
static void between(void *context) { (void)context; ++calls; }
int main(void) { const int code = train_example(say, between); printf("%d calls\\n", calls); return code; }
"""
EXAMPLES = {
    Ecosystem.ESP_IDF: "examples/train/main/main.c",
    Ecosystem.ZEPHYR: "samples/train/src/main.c",
    Ecosystem.ARDUINO: "examples/train/train.ino",
    Ecosystem.PLATFORMIO: "examples/train/src/main.cpp",
}


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, check=False, cwd=cwd, timeout=500,
        env={**os.environ, "HOME": str(cwd or Path.cwd())},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _crc(text: str) -> str:
    found = re.search(r"state, its CRC 0x([0-9a-f]{8})", text)
    assert found is not None, text
    return found.group(1)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CProject, str]:
    """A plan that recomputes, its folder's project, and the CRC that the folder's own test prints."""
    folder = tmp_path_factory.mktemp("plain")
    project = net_of("micro", "adamw").project(folder / "step", 3)
    return folder / "step.poet", project, _crc(_run("make", "-s", "-C", folder / "step", "test"))


def _library(plain: tuple[Path, CProject, str], ecosystem: Ecosystem, folder: Path) -> Path:
    made = for_ecosystem(plain[1], ecosystem, name="gesture_step", model='net "x"\n*/ name')
    folder.mkdir(exist_ok=True)
    made.write(folder / "gesture_step")
    return folder / "gesture_step"


def _example(library: Path, ecosystem: Ecosystem, *flags: str) -> str:
    """What the example prints on this machine, with a main of ours in place of the board's."""
    sources = (library / EXAMPLES[ecosystem]).parent
    (library / "host.c").write_text(MAIN)
    files = [
        *sorted((library / "src").glob("*.c")),
        sources / "train.c",
        sources / "vectors.c",
        library / "host.c",
    ]
    command: list[str | Path] = [
        "gcc",
        *flags,
        f"-I{library / 'src'}",
        f"-I{sources}",
        *files,
        "-o",
        library / "host",
        "-lm",
    ]
    _run(*command)
    return _run(library / "host")


@pytest.mark.parametrize("ecosystem", with_slow(list(Ecosystem), set(Ecosystem) - {Ecosystem.ZEPHYR}))
def test_the_example_trains_to_the_same_bits(
    plain: tuple[Path, CProject, str], ecosystem: Ecosystem, tmp_path: Path
) -> None:
    """It says losses, RAM and CRC, and calls what feeds the watchdog after each op of each step."""
    library = _library(plain, ecosystem, tmp_path)
    said = _example(library, ecosystem, "-O1", *STRICT, *EXACT)
    assert _crc(said) == plain[2]
    with PlanFile(plain[0]) as file:
        runs = sum(isinstance(step, Compute) for step in file.plan.schedule)
    calls = re.search(r"(\d+) calls", said)
    assert calls is not None
    assert int(calls.group(1)) >= 3 * runs
    assert re.search(r"^loss \d+\.\d{6}, PyTorch's \d+\.\d{6}$", said, re.MULTILINE)
    assert re.search(r"^RAM, bytes: arena \d+, beside it \d+, in place of flash 0$", said, re.MULTILINE)
    assert "train_example(say, between)" in (library / EXAMPLES[ecosystem]).read_text()
    for header in library.rglob("*.h"):
        assert 'extern "C"' in header.read_text(), header
    assert (library / "LICENSE").read_text() == (Path(__file__).parents[2] / "LICENSE").read_text()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("arm-linux-gnueabihf-gcc") is None, reason="needs gcc-arm-linux-gnueabihf")
def test_arduino_needs_no_flags_for_the_same_bits(plain: tuple[Path, CProject, str], tmp_path: Path) -> None:
    """Where products and sums are contracted by default, the sources ask for none; others would have it."""
    for ecosystem in (Ecosystem.ARDUINO, Ecosystem.ZEPHYR):
        source = _library(plain, ecosystem, tmp_path / ecosystem.value) / "src" / "poet_kernels.c"
        flags = ("-O2", "-std=gnu11", "-mfpu=neon-vfpv4", "-S", "-o", "-")
        fused = "vfma" in _run("arm-linux-gnueabihf-gcc", *flags, source)
        assert fused == (ecosystem is Ecosystem.ZEPHYR)


def test_wider_floats_are_refused(plain: tuple[Path, CProject, str], tmp_path: Path) -> None:
    source = _library(plain, Ecosystem.ZEPHYR, tmp_path) / "src" / "poet_kernels.c"
    command = ["gcc", "-fsyntax-only", "-mfpmath=387", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "is not supported" in done.stderr or "unrecognized" in done.stderr:
        pytest.skip("no x86 here")
    assert done.returncode != 0
    assert "compile with -msse2 -mfpmath=sse" in done.stderr


def test_manifests_have_the_documented_fields(plain: tuple[Path, CProject, str], tmp_path: Path) -> None:
    """As the ecosystems' own pages name them; what a packer checks besides is below."""
    of = {item: _library(plain, item, tmp_path / item.value) for item in Ecosystem}
    text = (of[Ecosystem.ARDUINO] / "library.properties").read_text()
    fields = dict(line.split("=", 1) for line in text.splitlines())
    wanted = "name version author maintainer sentence paragraph category url architectures"
    assert fields.keys() >= {*wanted.split()}
    assert fields["category"] == "Data Processing"
    assert re.fullmatch(r"\d+\.\d+\.\d+", fields["version"])
    assert fields["name"] == "gesture_step"
    assert "net _x__" in fields["sentence"]
    record = json.loads((of[Ecosystem.PLATFORMIO] / "library.json").read_text())
    assert record["license"] == "Apache-2.0"
    assert record["build"]["flags"] == ["-O2", *EXACT]
    for example in record["examples"]:
        base = of[Ecosystem.PLATFORMIO] / example["base"]
        assert all((base / name).is_file() for name in example["files"])
    yaml = pytest.importorskip("yaml")
    manifest = yaml.safe_load((of[Ecosystem.ESP_IDF] / "idf_component.yml").read_text())
    assert manifest.keys() <= {"version", "description", "license", "dependencies"}
    main = of[Ecosystem.ESP_IDF] / "examples/train/main"
    needed = yaml.safe_load((main / "idf_component.yml").read_text())["dependencies"]["gesture_step"]
    assert (main / needed["override_path"]).resolve() == of[Ecosystem.ESP_IDF].resolve()
    module = yaml.safe_load((of[Ecosystem.ZEPHYR] / "zephyr/module.yml").read_text())
    assert module.keys() <= {"name", "build", "samples"}
    assert (of[Ecosystem.ZEPHYR] / module["build"]["kconfig"]).is_file()
    assert (of[Ecosystem.ZEPHYR] / module["build"]["cmake"] / "CMakeLists.txt").is_file()
    sample = yaml.safe_load((of[Ecosystem.ZEPHYR] / "samples/train/sample.yaml").read_text())
    assert sample.keys() == {"sample", "tests"}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("compote") is None, reason="needs idf-component-manager")
def test_the_component_manager_packs_it(plain: tuple[Path, CProject, str], tmp_path: Path) -> None:
    library = _library(plain, Ecosystem.ESP_IDF, tmp_path)
    _run("compote", "-W", "component", "pack", "--name", "gesture_step", "--dest-dir", tmp_path, cwd=library)
    assert (tmp_path / "gesture_step_1.0.0.tgz").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("west") is None, reason="needs west")
def test_west_makes_a_workspace_of_it(plain: tuple[Path, CProject, str], tmp_path: Path) -> None:
    library = _library(plain, Ecosystem.ZEPHYR, tmp_path)
    _run("west", "init", "-l", library, cwd=tmp_path)
    assert _run("west", "config", "manifest.path", cwd=tmp_path).strip() == "gesture_step"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pio") is None, reason="needs platformio")
@pytest.mark.parametrize("ecosystem", [Ecosystem.PLATFORMIO, Ecosystem.ARDUINO])
def test_platformio_packs_it(plain: tuple[Path, CProject, str], ecosystem: Ecosystem, tmp_path: Path) -> None:
    """Without the licence, whose list of names it would fetch; it reads Arduino's manifests as well."""
    library = _library(plain, ecosystem, tmp_path)
    if ecosystem is Ecosystem.PLATFORMIO:
        record = json.loads((library / "library.json").read_text())
        del record["license"]
        (library / "library.json").write_text(json.dumps(record))
    _run("pio", "pkg", "pack", library, "-o", tmp_path / "packed.tar.gz", cwd=tmp_path)
    assert (tmp_path / "packed.tar.gz").stat().st_size > 10_000


EMULATORS = {"i386": "qemu-i386", "aarch64": "qemu-aarch64", "armhf": "qemu-arm"}


@pytest.mark.parametrize("target", with_slow(list(compilers()), {*compilers()}))
def test_the_same_state_on_every_machine(
    plain: tuple[Path, CProject, str], target: str, tmp_path: Path
) -> None:
    """One command from plan to image; three steps end with the CRC of this machine."""
    bare = "qemu-system-riscv32" if target.startswith("rv32") else "qemu-system-arm"
    for tool in (compilers()[target], EMULATORS.get(target, bare)):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    arguments = ["export", "c", str(plain[0]), "-o", str(tmp_path / "step"), "--image", target]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert f"the image for {target} is linked" in result.stdout
    said = _run("make", "-s", "-C", tmp_path / "step", "run", f"TARGET={target}")
    assert _crc(said) == plain[2]
    assert "passed" in said


def test_what_cannot_be_written_is_refused(plain: tuple[Path, CProject, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'gesture step' is none: up to 63 letters"):
        for_ecosystem(plain[1], Ecosystem.ARDUINO, name="gesture step", model="net")
    for more, message in (
        (["--image", "cortex-m9"], "is no target; there are cortex-m0plus, cortex-m4,"),
        (["--image", "cortex-m4", "--for", "zephyr"], "leave --image out"),
    ):
        arguments = ["export", "c", str(plain[0]), "-o", str(tmp_path / "x"), *more]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_a_missing_compiler_is_named(
    plain: tuple[Path, CProject, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ["export", "c", str(plain[0]), "-o", str(tmp_path / "x"), "--image", "rv32imac"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "--image rv32imac needs make, which is not here" in result.stderr
    assert not (tmp_path / "x").exists()


def test_the_same_plan_gives_the_same_library(plain: tuple[Path, CProject, str]) -> None:
    with PlanFile(plain[0]) as file:
        again = c_project(file)
    made = [for_ecosystem(item, Ecosystem.ESP_IDF, name="a", model="b").files for item in (plain[1], again)]
    assert dict(made[0]) == dict(made[1])
