"""Exported steps as shared libraries: driven by numpy without torch, and held against PyTorch."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.c_build import CStep, build
from helpers.c_plans import CNet, traced
from poet.cli.main import app
from torch import nn
from typer.testing import CliRunner

from poet.c99.library import LibraryError, Step
from poet.c99.library_check import _share, check_library
from poet.c99.project import CProject
from poet.errors import InputError, PlanError
from poet.ir.optimizer import OptimizerSpec

ROOT = Path(__file__).parents[2]
ROWS, SAMPLES = 16, 160
Made = tuple[CNet, Path, CProject]


@pytest.fixture(scope="module")
def net() -> CNet:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
    return traced(module, torch.randn(ROWS, 1, 8, 8), optimizer=OptimizerSpec("momentum", lr=0.05))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sklearn.datasets import load_digits  # takes longer to import than torch

    images, classes = load_digits(return_X_y=True)
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    inputs = (images[:SAMPLES] / 8 - 1).astype(np.float32).reshape(-1, 1, 8, 8)
    np.savez(path, inputs=inputs, targets=classes[:SAMPLES])
    return path


@pytest.fixture(scope="module")
def made(net: CNet, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A plan that recomputes, its library built by the folder's own Makefile."""
    folder = tmp_path_factory.mktemp("library") / "step"
    project = net.project(folder, 3)
    command = ["make", "-C", str(folder), "lib", "CFLAGS=-O1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return net, folder, project


def _library(made: Made) -> Path:
    return made[1] / "build" / "libpoet_step.so"


def _epochs(step: Step, data: Path, epochs: int) -> list[float]:
    with np.load(data) as samples:
        inputs, targets = samples["inputs"], samples["targets"]
    losses = []
    for first in [*range(0, SAMPLES, ROWS)] * epochs:
        step.inputs[0][:] = inputs[first : first + ROWS].ravel()
        step.set_classes(targets[first : first + ROWS])
        losses.append(step.train())
    return losses


def test_the_example_trains_without_torch(made: Made, digits: Path, tmp_path: Path) -> None:
    """In a process that never loads torch; the state has the bits of a plan that keeps everything."""
    program = ROOT / "examples" / "c_library.py"
    command = [sys.executable, str(program), str(made[1]), str(digits), "--epochs", "3"]
    command += ["--save", str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torch: False" in done.stdout
    losses = [float(loss) for loss in re.findall(r"loss ([\d.e-]+),", done.stdout)]
    assert losses[2] < 0.8 * losses[0]
    net, _, _ = made
    kept = net.project(tmp_path / "kept")
    plain = CStep(kept, build(tmp_path / "kept", "-O2"), graph=net.step.graph)
    with np.load(digits) as samples:
        inputs, targets = torch.from_numpy(samples["inputs"]), torch.from_numpy(samples["targets"])
    for first in [*range(0, SAMPLES, ROWS)] * 3:
        given = (inputs[first : first + ROWS], targets[first : first + ROWS])
        plain.fill(dict(zip(net.step.graph.inputs, given, strict=True)))
        plain.step()
    assert f"state {plain.crc():08x}" in done.stdout
    again = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert again.stdout.startswith("goes on from")
    assert float(re.findall(r"loss ([\d.e-]+),", again.stdout)[0]) < losses[2]


def test_a_library_is_held_against_pytorch_on_the_same_data(made: Made, digits: Path) -> None:
    arguments = ["verify", str(made[1].with_suffix(".poet")), "--c-library", str(_library(made))]
    result = CliRunner().invoke(app, [*arguments, "--data", str(digits)])
    assert result.exit_code == 0, result.output
    assert "within 8 times PyTorch's own float32 error: yes" in result.stdout
    result = CliRunner().invoke(app, [*arguments, "--data", str(digits), "--steps", "11"])
    assert result.exit_code == 2
    assert "160 samples are too few for 11 steps of 16" in result.stderr
    result = CliRunner().invoke(app, [*arguments, "--threads", "1"])
    assert result.exit_code == 2


def test_a_run_holds_a_library_against_pytorch_and_trains_nothing(made: Made, digits: Path) -> None:
    plan = str(made[1].with_suffix(".poet"))
    arguments = ["run", plan, "--data", str(digits), "--c-library", str(_library(made))]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "10 steps in C and in PyTorch" in result.stdout
    assert "within 8 times PyTorch's own float32 error: yes" in result.stdout
    result = CliRunner().invoke(app, [*arguments, "--epochs", "2"])
    assert result.exit_code == 2
    assert "--epochs cannot be with --c-library" in result.stderr


def test_a_wrong_kernel_is_found(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "step"
    shutil.copytree(made[1], folder, ignore=shutil.ignore_patterns("build"))
    source = folder / "poet_kernels.c"
    wrong = source.read_text().replace("s0 += v * a0", "s0 -= v * a0").replace("t0[j] += p0", "t0[j] -= p0")
    assert wrong != source.read_text()
    source.write_text(wrong)
    library = build(folder, "-O0")
    plan = made[1].with_suffix(".poet")
    result = CliRunner().invoke(app, ["verify", str(plan), "--c-library", str(library), "--json", "-"])
    assert result.exit_code == 1
    assert "times as far from float64 as the library may be" in result.stderr
    assert '"right": false' in result.stdout


def test_a_library_of_another_plan_is_refused(made: Made, tmp_path: Path) -> None:
    net, _, _ = made
    other = net.write(tmp_path / "other.poet", net.plan(7))
    with pytest.raises(InputError, match="was made from another plan"):
        check_library(other, _library(made))
    with pytest.raises(InputError, match="is not a shared library"):
        check_library(other, other)
    with pytest.raises(InputError, match=r"none\.so: cannot be read"):
        check_library(other, tmp_path / "none.so")


@pytest.mark.parametrize("homes", [False, True], ids=["pages", "homes"])
def test_pages_and_homes_in_a_file(made: Made, digits: Path, tmp_path: Path, homes: bool) -> None:
    """The bits of the step that keeps all in RAM; a saved state is loaded by another process's arena."""
    net, _, _ = made
    net.project(tmp_path / "step", 5, pages=not homes, homes=homes)
    library = build(tmp_path / "step", "-O1")
    pages = tmp_path / "pages"
    with pytest.raises(LibraryError, match="it needs a file of"):
        Step(library)
    with pytest.raises(LibraryError, match="cannot be opened, is in use, or holds something else than pages"):
        Step(library, pages=tmp_path)
    one, kept = Step(library, pages=pages), Step(_library(made))
    with pytest.raises(LibraryError, match="pages: cannot be opened, is in use"):
        Step(library, pages=pages)
    assert _epochs(one, digits, 1) == _epochs(kept, digits, 1)
    assert pages.stat().st_size == 4096 + one.facts.page_bytes
    one.save(tmp_path / "state")
    rest = _epochs(one, digits, 1)
    with pytest.raises(LibraryError, match="holds something else than pages"):
        Step(library, pages=tmp_path / "state")
    other = Step(library, pages=tmp_path / "others")
    assert other.load(tmp_path / "state")
    assert _epochs(other, digits, 1) == rest == _epochs(kept, digits, 1)
    assert other.state_crc() == one.state_crc() == kept.state_crc()
    assert not kept.load(tmp_path / "state"), "that of another plan is none"
    if homes:
        one.commit()
        committed = one.state_crc()
        one.train()
        one.close()
        with Step(library, pages=pages, recover=True) as again:
            assert again.state_crc() == committed
        with Step(library, pages=tmp_path / "empty") as anew:
            begins = anew.state_crc()
            anew.train()
            assert not anew.recover(), "nothing was committed: begun anew, and no storage is missing"
            assert anew.state_crc() == begins
            anew.train()
    else:
        with pytest.raises(LibraryError, match="nothing that this step changes lives in storage"):
            one.commit()
    one.close()
    assert check_library(tmp_path / "step.poet", library, steps=2, page_file=pages).is_right


def test_files_of_others_stay_as_they_are(made: Made, tmp_path: Path) -> None:
    with Step(_library(made)) as step:
        for contents in (b"x", b"years of work" * 1000):
            mine = tmp_path / "mine"
            mine.write_bytes(contents)
            for use in (step.save, step.load):
                with pytest.raises(LibraryError, match="holds something else than a saved state"):
                    use(mine)
            assert mine.read_bytes() == contents
        assert not step.load(tmp_path / "none")
        assert not (tmp_path / "none").exists(), "to load makes no file"
        (tmp_path / "empty").touch()
        assert not step.load(tmp_path / "empty")
        assert not (tmp_path / "empty").stat().st_size
        step.save(tmp_path / "empty")
        assert step.load(tmp_path / "empty")
        os.truncate(tmp_path / "empty", 5000)
        assert not step.load(tmp_path / "empty"), "what was cut off is no state"


def test_the_example_writes_over_no_data(made: Made, digits: Path, tmp_path: Path) -> None:
    data, program = tmp_path / "digits.npz", ROOT / "examples" / "c_library.py"
    shutil.copy(digits, data)
    for arguments, why in (
        (["--save", str(data)], "holds something else than a saved state"),
        (["--pages", "x"], "2 inputs and 2 classes; a step takes 16 of each"),
    ):
        command = [sys.executable, str(program), str(made[1]), str(data), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 1
        assert why in done.stderr
        assert "Traceback" not in done.stderr
        assert data.read_bytes() == digits.read_bytes() or "2 inputs" in why
        np.savez(data, inputs=np.zeros((2, 1, 8, 8), np.float32), targets=np.zeros(2, np.int64))


def test_calls_stay_inside_a_library(made: Made, tmp_path: Path) -> None:
    """Another library, loaded before for all to see, has a function of the same name."""
    source = tmp_path / "other.c"
    source.write_text("unsigned poet_crc(unsigned c, const void *b, unsigned long n) { return 7; }\n")
    subprocess.run(
        ["gcc", "-w", "-fPIC", "-shared", str(source), "-o", str(tmp_path / "other.so")], check=True
    )
    program = (
        "import ctypes, sys; sys.path.insert(0, sys.argv[1]); from poet_library import Step\n"
        "ctypes.CDLL(sys.argv[3], mode=ctypes.RTLD_GLOBAL); print(Step(sys.argv[2]).state_crc())"
    )
    command = [sys.executable, "-c", program, str(made[1]), str(_library(made)), str(tmp_path / "other.so")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == Step(_library(made)).state_crc()


def test_wrong_updates_of_adamw_are_found(tmp_path: Path) -> None:
    """Parameters and both moments; the bias before batch norm has a gradient of noise alone."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    net = traced(module, torch.randn(6, 4), optimizer=OptimizerSpec("adamw", lr=0.01))
    net.project(tmp_path / "step")
    source = tmp_path / "step" / "poet_kernels.c"
    right = source.read_text()
    for number, (old, new, parts) in enumerate(
        (
            ("", "", ()),
            ("p[i] -= step * (m[i]", "p[i] -= 0.0f * step * (m[i]", ("weight", "bias")),
            (
                "s->beta2_rest * gradient * gradient",
                "1.5f * s->beta2_rest * gradient * gradient",
                ("exp_avg_sq",),
            ),
        )
    ):
        assert old in right
        source.write_text(right.replace(old, new))
        library = build(tmp_path / "step", "-O0", name=f"step{number}")
        report = check_library(tmp_path / "step.poet", library, steps=2)
        assert report.tensors >= 3 * 6
        assert report.is_right is not bool(parts), [step.farthest for step in report.steps]
        assert not parts or any(part in report.steps[0].farthest for part in parts)


def test_what_is_not_a_number_is_never_near() -> None:
    for error, allowed in ((math.nan, 1.0), (0.5, math.nan), (0.5, math.inf), (math.inf, math.inf)):
        assert _share(error, allowed) == math.inf
    assert (_share(0.5, 1.0), _share(0.0, 0.0), _share(1.0, 0.0)) == (0.5, 0.0, math.inf)


def test_predictions_and_learning_rates(made: Made, digits: Path) -> None:
    one, other = Step(_library(made)), Step(_library(made))
    _epochs(one, digits, 1)
    other.set_learning_rate(0.0)
    begins = other.state_crc()
    _epochs(other, digits, 1)
    with np.load(digits) as samples:
        one.inputs[0][:] = samples["inputs"][:ROWS].ravel()
    before = one.state_crc()
    found = one.predict()[0]
    assert found.shape == (ROWS * 10,)
    assert one.state_crc() == before != begins
    with pytest.raises(LibraryError, match="15 classes were given, and the step takes 16"):
        one.set_classes(range(15))
    with pytest.raises(LibraryError, match="input 0 of 1 floats was given, and the step takes 1024"):
        one.set_input(0, np.ones(1, np.float32))
    for wrong in (2**32, 0.9, float("nan"), "1"):
        with pytest.raises(LibraryError, match="of row 0 is no whole number"):
            one.set_classes([wrong] * ROWS)
    with pytest.raises(LibraryError, match="poet_set_class: bad argument"):
        one.set_classes([10] * ROWS)
    with pytest.raises(LibraryError, match="this step has no floats as target"):
        one.set_target(found)


def test_masks_that_are_not_pytorchs_are_not_compared(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = traced(nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2)), torch.randn(3, 4))
    path = net.write(tmp_path / "net.poet", net.plan())
    with pytest.raises(PlanError, match="draws other masks in C than in PyTorch"):
        check_library(path, tmp_path / "none.so")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
def test_cmake_builds_the_library_and_runs_the_test(made: Made, tmp_path: Path) -> None:
    for command in (["cmake", "-S", str(made[1]), "-B", "."], ["cmake", "--build", "."], ["ctest"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "100% tests passed" in done.stdout
    assert Step(tmp_path / "libpoet_step.so").state_crc() == Step(_library(made)).state_crc()
