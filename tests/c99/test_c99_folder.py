"""The folder that is exported: what is written there, under which names, and its own test."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from helpers.c_build import build
from helpers.c_nets import net_of
from helpers.c_plans import traced
from poet.cli.main import app
from torch import Tensor, nn
from typer.testing import CliRunner

from poet.c99.interface import interface_of
from poet.c99.project import c_project
from poet.errors import InputError
from poet.plans.plan_file import PlanFile
from poet.problem.schedule import Compute


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    net = net_of("micro", "sgd")
    path = net.write(tmp_path / "net.poet", net.plan(1))
    texts = []
    for _ in range(2):
        with PlanFile(path) as file:
            texts.append(dict(c_project(file).files))
    assert texts[0] == texts[1]
    assert "arena" in texts[0]["README.md"]
    assert all(line == line.rstrip() for text in texts[0].values() for line in text.splitlines())


def test_what_is_there_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = net_of("micro", "sgd")
    project = net.project(tmp_path / "c")
    (tmp_path / "c" / "poet_step.c").write_text("mine")
    with pytest.raises(InputError, match="is there already and not empty"):
        project.write(tmp_path / "c")
    assert (tmp_path / "c" / "poet_step.c").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        project.write(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    project.write(tmp_path / "empty")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match="is the working folder"):
        project.write(Path())
    (tmp_path / "here").rmdir()
    assert {path.name for path in tmp_path.iterdir()} == {"c", "c.poet", "file", "empty"}


def test_the_command_writes_a_folder(tmp_path: Path) -> None:
    net = net_of("micro", "sgd")
    path = net.write(tmp_path / "net.poet", net.plan(1))
    arguments = ["export", "c", str(path), "-o", str(tmp_path / "a step")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert f"make -C '{tmp_path / 'a step'}' test" in result.stdout
    assert (tmp_path / "a step" / "poet_step.c").is_file()
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert again.stderr.count("\n") == 1
    assert "is there already" in again.stderr


def test_a_run_is_named_after_its_op(tmp_path: Path) -> None:
    net = net_of("micro", "sgd")
    plan = net.plan(4)
    with PlanFile(net.write(tmp_path / "net.poet", plan)) as file:
        text = c_project(file).files["poet_step.c"]
    for step in plan.schedule:
        if isinstance(step, Compute):
            assert f"/* {step.op} */" in text
    assert ", once more */" in text


def test_hostile_names_cannot_leave_their_comment(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential()
    module.add_module("x*/ int evil; /*\n#error", nn.Linear(3, 2))
    net = traced(module, torch.randn(2, 3), loss="mse")
    net.project(tmp_path / "c")
    build(tmp_path / "c", "-O0")


def test_a_class_for_each_word_whose_scores_are_last(tmp_path: Path) -> None:
    """The loss reads the targets as one row of all words."""
    net = traced(nn.Linear(4, 3), torch.randn(2, 5, 4), loss="cross-entropy:dim=-1")
    with PlanFile(net.write(tmp_path / "net.poet", net.plan())) as file:
        interface = interface_of(file.plan.graph, c_project(file).statements)
    assert interface.classes == 3
    assert interface.target is not None
    assert interface.target[1].type.shape == (2, 5)


class _Shares(nn.Module):
    """Wants inputs above 0: their root, and the loss of what it makes of them as chances."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy(torch.sigmoid(self.layer(x.sqrt())), x)


def test_inputs_are_from_0_to_1_where_torch_fails_below(tmp_path: Path) -> None:
    """The step in C gives PyTorch's losses for them."""
    torch.manual_seed(0)
    net = traced(_Shares(), torch.rand(2, 4), loss="output")
    with PlanFile(net.write(tmp_path / "net.poet", net.plan())) as file:
        c_project(file).write(tmp_path / "c")
    assert "0x1p-24f" in (tmp_path / "c" / "test" / "vectors.c").read_text()
    done = subprocess.run(
        ["make", "-C", str(tmp_path / "c"), "test"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_folders_test_passes_and_a_wrong_kernel_fails_it(tmp_path: Path) -> None:
    net_of("micro", "sgd").project(tmp_path / "c", 3)
    command = ["make", "-C", str(tmp_path / "c"), "test", "CFLAGS=-O0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    source = tmp_path / "c" / "poet_kernels.c"
    source.write_text(source.read_text().replace("s0 += v * a0", "s0 -= v * a0"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "differs from PyTorch's" in done.stdout
    assert "FAILED" in done.stdout
