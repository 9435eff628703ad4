"""Trained weights on their way back: into the ONNX file they came from, and into the module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from poet.cli.main import app
from safetensors.torch import load_file
from torch import Tensor, nn
from typer.testing import CliRunner
from zoo import export

from poet import api
from poet.errors import ModelError, PlanError
from poet.frontend.onnx import importer
from poet.planning.exported import export_onnx, export_state
from poet.runtime import Trainer
from poet.runtime.data.random_batches import random_batch


class Small(nn.Module):
    """Batch norm, dropout, and a matrix that exporters transpose."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(4 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.drop(self.features(x).flatten(1)))
        return y


def trained(
    folder: Path, model: str | Path | nn.Module, *inputs: Tensor, **options: Any
) -> dict[str, Tensor]:
    """Plan, make two steps, save; the trained state by name."""
    options |= {"device": "rpi4b", "ram": None, "optimizer": "adamw"}
    made = api.plan(model, *inputs, time_limit_seconds=1.0, **options)
    made.save(folder / "p.poet")
    with Trainer.open(folder / "p.poet", seed=0) as trainer:
        for number in range(2):
            trainer.step(*random_batch(trainer.plan, number))
        trainer.save(folder / "state.safetensors")
        return trainer.state_dict()


@pytest.fixture(scope="module", params=["legacy", pytest.param("dynamo", marks=pytest.mark.slow)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file, a plan that binds another batch size, and what two steps of training saved."""
    folder = tmp_path_factory.mktemp("exported")
    export(Small(), (torch.zeros(2, 2, 4, 4),), folder / "net.onnx", exporter=request.param)
    trained(folder, folder / "net.onnx", bind={"N": 3})
    return folder


def test_the_onnx_file_comes_back_with_trained_weights(folder: Path) -> None:
    out = folder / "trained.onnx"
    done = export_onnx(folder / "p.poet", out, state=folder / "state.safetensors")
    assert done.steps == 2
    assert done.check.startswith("checked by onnxruntime")
    module = Small()
    weights = load_file(folder / "state.safetensors")
    known = module.state_dict().keys() & weights.keys()
    module.load_state_dict({name: weights[name] for name in known}, strict=False)
    x = torch.randn(7, 2, 4, 4)
    session = onnxruntime.InferenceSession(out.read_bytes(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        expected = module.eval()(x)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)
    onnx.checker.check_model(onnx.load(out))


def test_without_a_state_it_has_the_first_weights(folder: Path) -> None:
    done = export_onnx(folder / "p.poet", folder / "first.onnx")
    assert done.steps == 0
    stored = {item.name: item for item in onnx.load(folder / "first.onnx").graph.initializer}
    first = Small().state_dict()
    for name in ("head.bias", "features.0.bias"):
        assert np.array_equal(onnx.numpy_helper.to_array(stored[name]), first[name].numpy())


def test_it_can_be_planned_again(folder: Path, tmp_path: Path) -> None:
    export_onnx(folder / "p.poet", tmp_path / "again.onnx", state=folder / "state.safetensors")
    trained(tmp_path, tmp_path / "again.onnx", bind={"N": 3})


def test_a_file_that_computes_something_else_is_not_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Weights that go astray between torch and the file: the check bites."""
    real = importer.filled

    def astray(structure: bytes, tensors: dict[str, Tensor]) -> tuple[bytes, int]:
        return real(structure, tensors | {"head.bias": tensors["head.bias"] + 1.0})

    monkeypatch.setattr(importer, "filled", astray)
    with pytest.raises(ModelError, match="differs in onnxruntime"):
        export_onnx(folder / "p.poet", tmp_path / "bad.onnx", state=folder / "state.safetensors")
    assert not (tmp_path / "bad.onnx").exists()


def test_a_modules_state_is_loaded_strictly(tmp_path: Path) -> None:
    module = Small()
    state = trained(tmp_path, module, torch.zeros(3, 2, 4, 4))
    done = export_state(tmp_path / "p.poet", tmp_path / "w.safetensors", state=tmp_path / "state.safetensors")
    assert (done.tensors, done.steps) == (len(module.state_dict()), 2)
    fresh = Small()
    fresh.load_state_dict(load_file(tmp_path / "w.safetensors"), strict=True)
    assert all(torch.equal(tensor, state[name]) for name, tensor in fresh.state_dict().items())
    with pytest.raises(PlanError, match="planned from a module"):
        export_onnx(tmp_path / "p.poet", tmp_path / "no.onnx")


def test_tied_weights_stand_under_each_name(tmp_path: Path) -> None:
    from helpers.nets import Tied

    torch.manual_seed(0)
    trained(tmp_path, Tied(), torch.zeros(3, 5, dtype=torch.int64), loss="cross-entropy:dim=-1")
    export_state(tmp_path / "p.poet", tmp_path / "w.safetensors", state=tmp_path / "state.safetensors")
    fresh = Tied()
    fresh.load_state_dict(load_file(tmp_path / "w.safetensors"), strict=True)
    assert torch.equal(fresh.words.weight, load_file(tmp_path / "state.safetensors")["words.weight"])


def test_the_commands_say_what_they_wrote(folder: Path, tmp_path: Path) -> None:
    state = str(folder / "state.safetensors")
    for what, out in (("onnx", tmp_path / "t.onnx"), ("state", tmp_path / "t.safetensors")):
        result = CliRunner().invoke(
            app, ["export", what, str(folder / "p.poet"), "--state", state, "-o", str(out)]
        )
        assert result.exit_code == 0, result.stderr
        assert "after 2 steps" in result.stdout
        assert out.exists()
    result = CliRunner().invoke(app, ["export", "onnx", str(folder / "p.poet"), "-o", str(folder / "p.poet")])
    assert result.exit_code == 2
    result = CliRunner().invoke(
        app, ["export", "state", str(folder / "p.poet"), "--state", str(folder / "p.poet"), "-o", "x"]
    )
    assert result.exit_code == 2
    assert "not a saved training state" in result.stderr
