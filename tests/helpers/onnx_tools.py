"""What the ONNX tests share: exports of the zoo made once, onnxruntime, small hand-made models."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import NETS, export

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": F.cross_entropy,
    "bce-with-logits": F.binary_cross_entropy_with_logits,
}
BATCH = 3


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="poet-onnx-")


@functools.cache
def zoo_module(name: str) -> nn.Module:
    """The small net ``name`` with seeded weights; callers copy it before they change it."""
    torch.manual_seed(0)
    return NETS[name].small.build()


def zoo_batch(name: str) -> tuple[tuple[Tensor, ...], Tensor]:
    """Inputs and targets for the small net ``name``."""
    torch.manual_seed(1)
    return NETS[name].small.inputs(BATCH), NETS[name].small.targets(BATCH)


@functools.cache
def zoo_export(name: str, exporter: str, training: bool) -> Path:
    """The ONNX file of the small net ``name``, made once per test run."""
    path = Path(_folder().name) / f"{name}.{exporter}.{training}.onnx"
    export(zoo_module(name), zoo_batch(name)[0], path, exporter=exporter, training=training)
    return path


def in_evaluation(model: ModelProto) -> ModelProto:
    """``model`` with batch norm and dropout as at inference, which is all that onnxruntime runs."""
    constants = {node.output[0]: node for node in model.graph.node if node.op_type == "Constant"}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            kept = [attribute for attribute in node.attribute if attribute.name != "training_mode"]
            del node.attribute[:]
            node.attribute.extend(kept)
            del node.output[1:]
        if node.op_type == "Dropout" and len(node.input) == 3:
            assert node.input[2] in constants
            node.input[2] = ""
    return model


def run_onnxruntime(model: ModelProto, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs that onnxruntime gives, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {entry.name: x.numpy() for entry, x in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.from_numpy(output) for output in session.run(None, feeds)]


def make_model(
    nodes: Sequence[NodeProto],
    inputs: dict[str, Sequence[int | str]],
    outputs: Sequence[str],
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 18,
) -> ModelProto:
    """A model of float32 inputs; shapes of outputs are left out."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(s)) for name, s in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(content, name) for name, content in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def save(model: ModelProto, path: Path) -> Path:
    """Writes ``model`` to ``path``."""
    onnx.save(model, path)
    return path
