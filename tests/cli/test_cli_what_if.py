"""``poet what-if`` as people run it: models, plans and problems in; reports of three kinds out."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from poet.cli.main import app
from zoo import NETS, export

import poet
from poet.problem.solution import SolveOptions
from poet.whatif import workers
from poet.whatif.grid import Duty

TRANSFORMER = str(Path(__file__).parents[1] / "instances" / "transformer.m4.json")
HARD = str(Path(__file__).parents[1] / "instances" / "resnet18_cifar.m4.json")
QUICK = ("--time-limit", "1s", "--jobs", "1")


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = app(["what-if", *arguments], standalone_mode=False)
    captured = capsys.readouterr()
    return int(code or 0), captured.out, captured.err


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("what-if") / "resnet18.onnx"
    small = NETS["resnet18"].small
    export(small.build(), small.inputs(2), path)
    return path


@pytest.mark.slow
def test_a_problem_in_three_kinds_of_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    grid = ("--ram", "min..keep:3", "--deadline", "1.2x,none", "--cache", str(tmp_path / "cache"))
    for suffix in ("json", "csv", "html"):
        if suffix == "html":
            pytest.importorskip("jinja2")
        code, out, err = _run(capsys, TRANSFORMER, *grid, *QUICK, "-o", str(tmp_path / f"r.{suffix}"))
        assert code == 0
        assert out.startswith("headline")
        assert "6 of 6 points" in err
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["question"]["command"].startswith(f"poet what-if {TRANSFORMER} --ram min..keep:3")
    assert (
        len(data["points"]) == len(list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))) == 6
    )
    assert data["answers"][0]["sentence"].split()[:2] == ["transformer.m4", "trains"]
    assert "transformer.m4 trains" in (tmp_path / "r.html").read_text()
    code, out, _ = _run(capsys, TRANSFORMER, *grid, *QUICK, "--json", "-")
    assert json.loads(out)["searched"] == 0


@pytest.mark.slow
def test_a_model_over_devices_batches_and_optimizers(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    code, out, _ = _run(
        capsys, str(model), "--device", "stm32h743,nrf52840", "--batch", "2,4", "--optimizer", "sgd,adamw",
        "--ram", "min..keep:2", "--battery", "3000mAh@3.7V", "--energy-budget", "500J/day",
        "--samples", "100",
        "--grid", "300g/kWh", "--data-bytes", "3KiB", "--prepare-seconds", "1e-4", "--largest", "batch",
        "--cache", str(tmp_path), "-o", str(tmp_path / "r.json"), *QUICK,
    )  # fmt: skip
    assert code == 0
    for label in (
        "which device", "least ram", "energy budget", "battery", "flash life", "wall time", "carbon",
        "data stalls", "marginal value", "largest batch",
    ):  # fmt: skip
        assert f"\n{label}" in out
    data = json.loads((tmp_path / "r.json").read_text())
    assert len(data["settings"]) == 8
    assert len(data["points"]) == 16
    assert {(item["batch"], item["optimizer"]) for item in data["settings"]} == {
        (2, "sgd"), (2, "adamw"), (4, "sgd"), (4, "adamw"),
    }  # fmt: skip
    sizes = {answer["sentence"].split()[6]: answer["figures"]["size"] for answer in data["answers"][-2:]}
    assert set(sizes) == {"stm32h743", "nrf52840"}
    nordic = next(
        a for a in data["answers"] if a["question"] == "largest-batch" and "nrf52840" in a["sentence"]
    )
    assert (
        f"{nordic['figures']['size'] + 1:.0f} has no plan: no schedule in the listed order needs less than"
        in nordic["sentence"]
    )


class _Pictures(torch.nn.Module):
    """Images of any height and width to a class."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 16, 3, stride=2)
        self.norm, self.decide = torch.nn.BatchNorm2d(8), torch.nn.Linear(16, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        seen = torch.relu(self.second(torch.relu(self.norm(self.first(image)))))
        result: torch.Tensor = self.decide(seen.mean((2, 3)))
        return result


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolutional net whose batch, height and width are open."""
    path = tmp_path_factory.mktemp("pictures") / "pictures.onnx"
    sizes = torch.export.Dim("N", min=1), torch.export.Dim("H", min=8), torch.export.Dim("W", min=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Pictures(), (torch.randn(2, 3, 32, 32),), str(path), dynamo=True, optimize=False,
            external_data=False, verbose=False, input_names=["image"],
            dynamic_shapes=({0: sizes[0], 2: sizes[1], 3: sizes[2]},),
        )  # fmt: skip
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("device", "ram"), [("rp2040", "192KiB"), ("nrf52840", "128KiB")])
def test_the_largest_resolution_that_fits(
    device: str, ram: str, capsys: pytest.CaptureFixture[str], pictures: Path, tmp_path: Path
) -> None:
    """Height and width grow together in the step asked for, and the next step is known not to fit."""
    code, _, _ = _run(
        capsys, str(pictures), "--device", device, "--batch", "2", "--bind", "H=16", "--bind", "W=16",
        "--ram", ram, "--largest", "H+W:8", "--largest", "resolution:8", "--no-marginal",
        "--cache", str(tmp_path),
        "-o", str(tmp_path / "r.json"), *QUICK,
    )  # fmt: skip
    assert code == 0
    by_names, by_word = json.loads((tmp_path / "r.json").read_text())["answers"][-2:]
    size = int(by_names["figures"]["size"])
    assert size % 8 == 0
    assert size >= 16
    assert by_word["figures"] == by_names["figures"]
    for answer, both in ((by_names, "H = W = {0}"), (by_word, "{0} x {0}")):
        assert f"of RAM is {both.format(size)}, at " in answer["sentence"]
        assert (
            f"{both.format(size + 8)} has no plan: no schedule in the listed order needs less than"
            in answer["sentence"]
        )
    limits = {"device": device, "ram": ram, "time_limit_seconds": 1.0}
    poet.plan(pictures, bind={"N": 2, "H": size, "W": size}, **limits)  # type: ignore[arg-type]
    with pytest.raises(poet.errors.Infeasible):
        poet.plan(pictures, bind={"N": 2, "H": size + 8, "W": size + 8}, **limits)  # type: ignore[arg-type]


class _Reader(torch.nn.Module):
    """Words to a class, at any length."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.decide = (
            torch.nn.Embedding(20, 16), torch.nn.Linear(16, 32), torch.nn.Linear(32, 4),
        )  # fmt: skip

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.decide(torch.relu(self.mix(self.embed(words))).mean(1))
        return result


@pytest.mark.slow
def test_the_longest_sequence_that_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "reader.onnx"
    sizes = ({0: torch.export.Dim("N", min=1), 1: torch.export.Dim("L", min=2)},)
    words = torch.randint(20, (2, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Reader(), (words,), str(path), dynamo=True, optimize=False, external_data=False, verbose=False,
            input_names=["words"], dynamic_shapes=sizes,
        )  # fmt: skip
    code, out, _ = _run(
        capsys, str(path), "--device", "nrf52840", "--batch", "4", "--bind", "L=8,16", "--ram", "64KiB",
        "--largest", "sequence:16", "--no-marginal", "--cache", str(tmp_path / "cache"),
        "-o", str(tmp_path / "r.json"), *QUICK,
    )  # fmt: skip
    assert code == 0
    assert "\nlargest sequence" in out
    data = json.loads((tmp_path / "r.json").read_text())
    assert [setting["binding"] for setting in data["settings"]] == [{"N": 4, "L": 8}, {"N": 4, "L": 16}]
    answer = data["answers"][-1]
    length = int(answer["figures"]["size"])
    assert length >= 16
    assert f"{length + 16} has no plan: no schedule in the listed order needs less than" in answer["sentence"]


@pytest.mark.slow
def test_a_saved_plan_on_other_devices(
    capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    plan = str(tmp_path / "plan.poet")
    poet.plan(model, device="rpi4b", ram="1MiB", bind={"N": 2}, time_limit_seconds=1.0).save(plan)
    for device, expected in (((), "rpi4b"), (("--device", "stm32h743"), "stm32h743")):
        code, out, _ = _run(capsys, plan, *device, "--ram", "keep", "--cache", str(tmp_path), *QUICK)
        assert code == 0
        assert f"trains on {expected}, N=2, sgd" in " ".join(out.split())


@pytest.mark.slow
def test_a_module_whose_sizes_are_a_function_of_the_batch() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    result = poet.what_if(
        module, lambda batch: torch.randn(batch, 8), device=["rpi4b"], batch=[2, 8], ram="min..keep:2",
        optimizer=["sgd", "adamw"], duty=Duty(steps_per_session=5),
        options=SolveOptions(time_limit_seconds=0.2), jobs=1, cache=None, largest=(),
    )  # fmt: skip
    assert {(setting.batch, setting.optimizer) for setting in result.settings} == {
        (2, "sgd"), (2, "adamw"), (8, "sgd"), (8, "adamw"),
    }  # fmt: skip
    assert result.chosen is not None
    with pytest.raises(poet.errors.ModelError, match="function of the batch size"):
        poet.what_if(module, torch.randn(2, 8), device="rpi4b", batch="2", cache=None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("model.onnx",), "needs a device"),
        (("model.onnx", "--device", "rpi4c"), "did you mean 'rpi4b'"),
        ((TRANSFORMER, "--device", "rpi4b"), "leave device out"),
        ((TRANSFORMER, "--batch", "4"), "leave batch and bind out"),
        ((TRANSFORMER, "--ram", "lots"), "a size"),
        ((TRANSFORMER, "-o", "report.pdf"), ".html, .json or .csv"),
        ((TRANSFORMER, "--home", "cloud"), "'cloud' is not one of"),
        ((TRANSFORMER, "--energy-budget", "2J"), "500J/day"),
        ((TRANSFORMER, "--data-cache", "1MiB"), "--data-bytes"),
        ((TRANSFORMER, "--largest", "batch:0"), "NAME:STEP"),
        ((TRANSFORMER, "--cluster", "nowhere"), "'nowhere' names no Dask scheduler"),
        ((TRANSFORMER, "--cluster", "morse://ship:1"), "unknown address scheme 'morse'"),
        ((TRANSFORMER, "--cluster", "tcp://127.0.0.1:1"), "no Dask scheduler answers"),
        ((TRANSFORMER, "--ram", "2MiB..1MiB:3"), "begins above its end"),
        ((TRANSFORMER, "--deadline", "2.0x..1.0x"), "begins above its end"),
        ((TRANSFORMER, "--deadline", "1.0x..20ms"), "mixes a factor and a time"),
        ((TRANSFORMER, "--optimizer", "adamw"), "leave optimizer out"),
        ((TRANSFORMER, "--loss", "mse"), "leave loss out"),
        ((TRANSFORMER, "--train", "a*"), "leave train out"),
        ((TRANSFORMER, "--home", "storage"), "leave home out"),
        ((TRANSFORMER, "--energy-budget", "0J/step"), "buys nothing"),
        ((TRANSFORMER, "--battery", "3000mAh"), "3000mAh@3.7V"),
        ((TRANSFORMER, "--battery", "0Wh"), "'0Wh' is not a battery"),
        ((TRANSFORMER, "--grid", "300"), "300g/kWh"),
        ((TRANSFORMER, "--data-bytes", "3KiB"), "no storage to fetch data from"),
        ((TRANSFORMER, "--prepare-seconds", "1", "--data-cache", "1MiB"), "--dataset-bytes"),
        ((TRANSFORMER, "--measure-data", "nothing.npz"), "nothing.npz: no data"),
        ((TRANSFORMER, "--largest", "batch"), "needs an ONNX model"),
        ((TRANSFORMER, "-o", "no-folder/report.html"), "its folder does not exist"),
        ((TRANSFORMER, "--json", "no-folder/points.json"), "its folder does not exist"),
        ((TRANSFORMER, "-o", "same.json", "--json", "./same.json"), "name the same file"),
    ],
)
def test_what_cannot_be_asked_gets_one_line(
    arguments: tuple[str, ...],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 0.2)
    code, out, err = _run(capsys, *arguments, "--cache", str(tmp_path), *QUICK)
    assert code == 2
    assert out == ""
    assert err.startswith("poet: "), "nothing was begun: no progress stands before it"
    assert says in err
    assert err.count("\n") == 1


def test_what_cannot_be_asked_leaves_an_older_report_alone(
    capsys: pytest.CaptureFixture[str], pictures: Path, tmp_path: Path
) -> None:
    older = tmp_path / "report.json"
    older.write_text("older")
    for asked, says in (
        (("--batch", "2", "--largest", "depth"), "'depth' is not an open dimension; open are: H, N, W"),
        (("--batch", "2", "--largest", "H+X"), "'X' is not an open dimension"),
        (("--batch", "0"), "a whole number from 1 up"),
        (("--batch", "2", "--bind", "N=4"), "the dimension 'N' is given twice"),
    ):
        code, _, err = _run(
            capsys, str(pictures), "--device", "stm32h743", "--bind", "H=16", "--bind", "W=16", *asked,
            "--cache", str(tmp_path / "cache"), "-o", str(older), *QUICK,
        )  # fmt: skip
        assert code == 2
        assert says in err
        assert err.count("\n") == 1
    assert older.read_text() == "older"


@pytest.mark.parametrize("content", [b"x", b"PK\x03\x04" + bytes(60), b""], ids=["text", "half", "empty"])
def test_data_that_cannot_be_read_get_one_line(
    content: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    code, out, err = _run(capsys, TRANSFORMER, "--measure-data", str(tmp_path / "data.npz"), *QUICK)
    assert (code, out) == (2, "")
    assert "data.npz: not a readable .npz file" in err
    assert "pickle" not in err
    assert err.count("\n") == 1


def test_an_address_of_no_scheduler_leaves_no_complaint_behind() -> None:
    """In a process of its own: what a client that failed says when the interpreter ends counts too."""
    command = [str(Path(sys.executable).with_name("poet")), "what-if", TRANSFORMER, "--cluster", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_reports_what_is_there_and_the_sweep_goes_on(jobs: str, tmp_path: Path) -> None:
    """Interrupted by a real signal after some answers; the repeated sweep takes them from the cache."""
    answers, report = tmp_path / "cache" / "answers", tmp_path / "report.json"
    command = [
        str(Path(sys.executable).with_name("poet")), "what-if", HARD, "--ram", "min..keep:4", "--deadline",
        "1.5x,none", "--time-limit", "0.5s", "--jobs", jobs, "--cache", str(tmp_path / "cache"),
        "--no-marginal", "-o", str(report),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and len(list(answers.glob("*.json.gz"))) < 3:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "The sweep was stopped" in out
    data = json.loads(report.read_text())
    assert not data["complete"]
    assert data["searched"] >= 2
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    assert "The sweep was stopped" not in again.stdout
    data = json.loads(report.read_text())
    assert data["complete"]
    assert data["from_cache"] >= 2
