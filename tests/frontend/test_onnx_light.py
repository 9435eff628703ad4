"""The nine ``light_*`` models that ship in the onnx package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from helpers.onnx_tools import run_onnxruntime, save
from helpers.pace import with_slow
from onnx import ModelProto, numpy_helper

from poet.frontend.onnx.check import check_model
from poet.frontend.onnx.importer import load_onnx

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = sorted(path.stem for path in FOLDER.glob("light_*.onnx"))
QUICK = {"light_squeezenet", "light_shufflenet", "light_inception_v1"}
"""The others have more ops of the same kinds, or hundreds of megabytes of weights."""

ALL = with_slow(NAMES, set(NAMES) - QUICK)


def _with_random_weights(path: Path) -> ModelProto:
    """The files give all weights as one number, which hides mistakes: the same net with random ones."""
    model = onnx.load(path)
    shapes = {tensor.name: tensor for tensor in model.graph.initializer}
    generator = np.random.default_rng(0)
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = numpy_helper.to_array(shapes[node.input[0]])
        matrix = len(shape) > 1
        scale = np.sqrt(2 / np.prod(shape[1:])) if matrix else 0.1
        content = generator.standard_normal(shape) * scale
        content = content if matrix else np.abs(content) + 0.5  # variances among them
        tensor = numpy_helper.from_array(content.astype(np.float32), node.output[0])
        model.graph.initializer.append(tensor)
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def test_there_are_nine() -> None:
    assert len(NAMES) == 9


@pytest.mark.parametrize("name", ALL)
def test_forward_is_that_of_onnxruntime(name: str, tmp_path: Path) -> None:
    """Up to the rounding of two libraries.

    The widest found: 2.6e-5 between them in VGG-19, whose float64 answer is 2.2e-5 from
    torch's and 0.5e-5 from ONNX Runtime's, of scores up to 0.6.
    """
    file = _with_random_weights(FOLDER / f"{name}.onnx")
    torch.manual_seed(0)
    x = torch.randn(1, 3, 224, 224)
    model = load_onnx(save(file, tmp_path / "m.onnx"))
    with torch.no_grad():
        found = model.module.eval()(x)
    assert (found - found.mean()).abs().max() > 1e-4
    torch.testing.assert_close(found, run_onnxruntime(file, [x])[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_everything_trains(name: str) -> None:
    report = check_model(FOLDER / f"{name}.onnx", {"N": 2})
    assert report.can_train
    assert report.not_imported == report.gradient_stops == ()
    assert all(parameter.trainable for parameter in report.parameters)
