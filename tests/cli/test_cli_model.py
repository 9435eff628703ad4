"""From an ONNX file to a verified, trained plan, by commands alone."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from poet.cli.main import app
from typer.testing import CliRunner
from zoo import NETS, export

import poet
from poet.files.tensorfile import TensorFile
from poet.passes import in_place
from poet.plans.plan_file import read_plan
from poet.problem import progress
from poet.runtime.kernels import overwriting
from poet.runtime.system.process import torch_threads

BATCH = 4
DEVICE = ("--device", "rpi4b", "--bind", f"N={BATCH}")


def invoke(*arguments: str | Path) -> str:
    """What a command that must succeed prints to stdout."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def fail(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and stderr of a command that must fail, in one line."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.stderr.count("\n") == 1, result.stderr
    return result.exit_code, result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small ResNet, data for it, and a plan that recomputes and pages."""
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    net = NETS["resnet18"].small
    export(net.build(), net.inputs(2), folder / "net.onnx", exporter="legacy")
    rng = np.random.default_rng(0)
    np.savez(
        folder / "data.npz",
        inputs=rng.standard_normal((10, *net.input_shape), dtype=np.float32),
        targets=rng.integers(0, 10, 10),
    )
    return folder


@pytest.fixture(scope="module")
def plan(folder: Path) -> Path:
    survey = folder / "survey.json"
    invoke("solve", folder / "net.onnx", *DEVICE, "--time-limit", "0.3s", "--json", survey)
    least_bytes = json.loads(survey.read_text())["lower_bound_bytes"]
    plan = folder / "plan.poet"
    options = ("--ram", str(least_bytes), "--no-recompute", "--time-limit", "2s", "-o", plan)
    invoke("solve", folder / "net.onnx", *DEVICE, *options, "--json", folder / "answer.json")
    return plan


@pytest.mark.slow
def test_results_are_copied_over_operands_only_where_ram_is_dear(
    folder: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "LEAST_COPIED_BYTES", 1024)

    def copied(ram: str) -> int:
        path = folder / f"copied-{ram}.poet"
        invoke("solve", folder / "net.onnx", *DEVICE, "--ram", ram, "--time-limit", "1s", "-o", path)
        strips = [
            op.strip for op in read_plan(path).graph.ops if op.strip is not None and op.strip.overwritten
        ]
        return sum(strip.links[0].call.target in overwriting.COPIED for strip in strips)

    least_bytes = json.loads((folder / "survey.json").read_text())["lower_bound_bytes"]
    assert copied("1GiB") == 0
    assert copied(str(round(1.05 * least_bytes))) > 0


def test_check_lists_ops_and_parameters(folder: Path) -> None:
    text = invoke("check", folder / "net.onnx", "--parameters")
    assert re.search(r"^Conv +\d+ +\d+", text, re.MULTILINE)
    assert "conv1.weight" in text
    assert text.endswith("it can be trained\n")
    data = json.loads(invoke("check", folder / "net.onnx", "--json", "-"))
    assert data["can_train"] is True


def test_a_survey_lies_between_the_bound_and_keeping_everything(folder: Path, plan: Path) -> None:
    survey = json.loads((folder / "survey.json").read_text())
    most, least = survey["keep_everything_bytes"], survey["lower_bound_bytes"]
    budgets = [point["ram_budget_bytes"] for point in survey["points"]]
    assert budgets == sorted(budgets, reverse=True)
    assert least == budgets[-1] < budgets[0] < most
    for point in survey["points"]:
        assert point["peak_ram_bytes"] <= point["ram_budget_bytes"]


def test_the_answer_and_the_explanation_agree(folder: Path, plan: Path) -> None:
    told = json.loads((folder / "answer.json").read_text())
    explained = json.loads(invoke("explain", plan, "--json", "-"))
    assert told["status"] in ("optimal", "feasible")
    assert told["written_bytes"] > 0
    for key in (
        "joules", "seconds", "peak_ram_bytes", "schedule", "proof", "bound_joules", "bound_scope",
    ):  # fmt: skip
        assert explained[key] == told[key]
    assert explained["prediction"]["range"] == told["range"]
    assert told["range"]["good_joules"] < told["joules"] < told["range"]["bad_joules"]
    assert told["range"]["good_seconds"] < told["seconds"] < told["range"]["bad_seconds"]
    assert sum(explained["peak"]["by_role"].values()) == told["peak_ram_bytes"]
    text = invoke("explain", plan, "--tensors", "--ops")
    assert "paged out" in text
    assert "Raspberry Pi 4" in text
    for name in ("conv1.weight", "native_batch_norm"):
        assert name in text


def test_running_trains_pages_and_saves(folder: Path, plan: Path) -> None:
    saved, pages = folder / "trained.safetensors", folder / "pages"
    data = ("--data", folder / "data.npz", "--page-file", pages, "--lr", "0.1")
    text = invoke("run", plan, *data, "--epochs", "2", "-o", saved, "--json", folder / "run.json")
    assert re.search(r"^epoch 2: loss \d+\.\d+, accuracy [\d.]+ %, 2 steps of ", text, re.MULTILINE)
    report = json.loads((folder / "run.json").read_text())
    assert [epoch["steps"] for epoch in report["epochs"]] == [2, 2]
    assert report["measured_host_step_seconds"] > 0
    with TensorFile(saved) as file:
        assert "conv1.weight" in file.entries
    again = invoke("run", plan, *data, "--resume", saved)
    assert again.startswith("epoch 3: loss")  # it goes on


def test_a_run_takes_the_threads_of_its_plan_unless_told(folder: Path, plan: Path) -> None:
    measured = read_plan(plan).replayed_kernels.threads
    assert measured is not None
    arguments = ["run", str(plan), "--data", str(folder / "data.npz"), "--page-file", str(folder / "pages")]
    with torch_threads(measured + 1):
        told = CliRunner().invoke(app, arguments)
        assert told.exit_code == 0
        assert "as the plan was measured with; --threads takes another number" in told.stderr
        assert torch.get_num_threads() == measured
    with torch_threads(measured):
        asked = CliRunner().invoke(app, [*arguments, "--threads", str(measured + 1)])
        assert "as the plan was measured with" not in asked.stderr
        assert torch.get_num_threads() == measured + 1


@pytest.mark.slow
def test_running_validates_keeps_the_best_and_ends_early(folder: Path, plan: Path) -> None:
    data, best = ("--data", folder / "data.npz", "--page-file", folder / "pages"), folder / "best.safetensors"
    asked = ("--validate", folder / "data.npz", "--metric", "accuracy", "--metric", "top-5", "--best", best)
    options = ("--epochs", "9", "--lr", "0.0", "--patience", "2", "-o", folder / "last.safetensors")
    text = invoke("run", plan, *data, *asked, *options, "--json", folder / "run.json")
    epochs = json.loads((folder / "run.json").read_text())["epochs"]
    losses = [epoch["validation"]["loss"] for epoch in epochs]
    assert [epoch["validation"]["samples"] for epoch in epochs] == [10] * len(epochs)
    improved = [number for number, loss in enumerate(losses) if loss < min(losses[:number], default=math.inf)]
    assert [epoch["validation"]["is_best"] for epoch in epochs] == [n in improved for n in range(len(losses))]
    assert len(epochs) == min(9, improved[-1] + 3)
    assert re.search(r"epoch 1: .*; validation: loss \d\.\d+, accuracy [\d.]+ %, top-5 ", text)
    with TensorFile(best) as kept, TensorFile(folder / "last.safetensors") as last:
        assert int(kept.metadata["poet.steps"]) == 2 * (improved[-1] + 1)
        assert int(last.metadata["poet.steps"]) == 2 * len(epochs)
    code, line = fail("run", plan, *data, "--patience", "2")
    assert code == 2
    assert "--patience is of --validate" in line
    code, line = fail("run", plan, *data, "--validate", folder / "data.npz", "--metric", "mae")
    assert code == 2
    assert "mae" in line


def test_verifying_compares_bits(plan: Path) -> None:
    text = invoke("verify", plan, "--steps", "1", "--threads", "1")
    assert text.endswith("bitwise equal to plain PyTorch: yes\n")
    assert "all equal by torch.equal" in text


@pytest.mark.slow
def test_running_is_lean(folder: Path, plan: Path) -> None:
    arguments = ["run", str(plan), "--data", str(folder / "data.npz")]
    code = (
        "import sys\nfrom poet.cli.main import app\n"
        f"assert not app({arguments!r}, standalone_mode=False)\n"
        "heavy = {'onnx', 'pulp', 'highspy', 'google', 'torch._dynamo', 'sympy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_more_ram_than_the_device_has_is_planned_with_a_warning(folder: Path) -> None:
    net, board = folder / "net.onnx", folder / "board.toml"
    table = '[memory.ram_bytes]\nvalue = 65536\nkind = "assumed"\nsource = "a test"\n'
    board.write_text(f'version = 1\nextends = "rpi4b"\nname = "board"\n{table}')
    asked = ("--device", str(board), "--bind", "N=2", "--time-limit", "1s")
    above = CliRunner().invoke(app, ["solve", str(net), *asked, "--ram", "4MiB", "--no-kept-plans"])
    assert above.exit_code == 0
    assert "poet: the budget of 4 MiB is more than board has: 64 KiB of RAM\n" in above.stderr
    with pytest.warns(UserWarning, match="the budget of 4 MiB is more than board has: 64 KiB of RAM"):
        poet.plan(net, device=board, ram="4MiB", bind={"N": 2}, time_limit_seconds=1.0)


def test_what_cannot_be_is_one_line_with_its_exit_code(
    folder: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", math.inf)  # on a slow machine stages are shown as well
    net = folder / "net.onnx"
    (folder / "cut.onnx").write_bytes(net.read_bytes()[:1000])
    (folder / "cut.poet").write_bytes(plan.read_bytes()[:1000])
    np.savez(folder / "wrong.npz", inputs=np.zeros((8, 3), np.float32), targets=np.zeros(8, np.int64))
    code, line = fail("solve", net, *DEVICE, "--ram", "1KiB", "--time-limit", "1s")
    assert code == 3
    assert line.startswith("poet: No plan in the listed order exists inside the limits.")
    assert line.endswith("or poet fit, which finds the largest batch that fits.\n")
    for arguments, word in (
        (("solve", net, "--device", "rpi4", "--ram", "1MiB"), "rpi4b"),
        (("solve", folder / "cut.onnx", *DEVICE), "cut.onnx"),
        (("solve", net, *DEVICE, "--ram", "much"), "'much' is not a size"),
        (("check", folder / "cut.onnx"), "cut.onnx"),
        (("explain", folder / "cut.poet"), "cut.poet"),
        (("explain", net), "net.onnx"),
        (("run", plan, "--data", folder / "wrong.npz"), "wrong.npz"),
        (("run", plan, "--data", plan), "plan.poet"),
        (("verify", folder / "absent.poet"), "absent.poet"),
    ):
        code, line = fail(*arguments)
        assert (code, word in line) == (2, True), line


def test_a_model_that_cannot_be_trained_is_exit_code_2(tmp_path: Path) -> None:
    class Identity(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    export(Identity(), (torch.zeros(1, 2),), tmp_path / "identity.onnx", exporter="legacy", training=False)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "identity.onnx")])
    assert result.exit_code == 2
    assert "it cannot be trained" in result.stdout
