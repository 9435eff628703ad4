"""A plan's ONNX structure with weights again, and what onnxruntime computes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from onnx import ModelProto
from torch import Tensor

from poet.errors import ModelError
from poet.frontend.onnx.importer import load_onnx_structure

_LARGEST_BYTES = 2**31 - 1  # of a protobuf message
_TOLERANCE = 1e-3  # of the largest number that comes out; kernels add in another order


def filled(structure: bytes, tensors: Mapping[str, Tensor]) -> tuple[bytes, int]:
    """The ONNX file of ``structure`` with ``tensors`` as its weights, and how many it has.

    Args:
        structure: what `strip_weights` made.
        tensors: by the names that they have in the imported module.

    Raises:
        ModelError: a weight is missing or of another shape, or the file would be above 2 GiB.
    """
    imported = load_onnx_structure(structure)
    model, count = ModelProto(), 0
    model.ParseFromString(structure)
    for initializer in model.graph.initializer:
        name = imported.names.get(initializer.name)
        if name is None:
            continue
        if name not in tensors:
            raise ModelError(f"the weight {name} is missing")
        tensor = tensors[name].detach().contiguous()
        if tuple(tensor.shape) != tuple(initializer.dims):
            raise ModelError(f"{name} is {list(tensor.shape)}, the ONNX file has {list(initializer.dims)}")
        initializer.raw_data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        count += 1
    _evaluating(model)
    if model.ByteSize() > _LARGEST_BYTES:
        raise ModelError("with its weights the ONNX file is above 2 GiB, which one file cannot be")
    written: bytes = model.SerializeToString(deterministic=True)
    return written, count


def checked_by_onnxruntime(model: bytes, structure: bytes, tensors: Mapping[str, Tensor]) -> str:
    """Hold the outputs of ``model`` against those of the trained module in evaluation mode; says how it went.

    Raises:
        ModelError: they differ by more than rounding, or onnxruntime does not run the file.
    """
    try:
        import onnxruntime
    except ImportError:
        return "not checked: onnxruntime is not installed"
    imported = load_onnx_structure(structure, dict(tensors))
    module = imported.module.eval()
    inputs = imported.example_inputs()
    with torch.no_grad():
        returned = module(*inputs)
    expected = [returned] if isinstance(returned, Tensor) else list(returned)
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # what it tidies up is of no interest here
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        given = {
            entry.name: _sized(tensor, entry.shape)
            for entry, tensor in zip(session.get_inputs(), inputs, strict=True)
        }
        found = session.run(None, {name: tensor.numpy() for name, tensor in given.items()})
    except Exception as error:  # whatever onnxruntime raises: its errors have no class of their own
        line = str(error).strip().splitlines()[0]
        raise ModelError(f"onnxruntime does not run the exported file: {line}") from None
    return _compared(expected, found)


def _compared(expected: Sequence[Tensor], found: Sequence[Any]) -> str:
    worst = 0.0
    for number, (theirs, ours) in enumerate(zip(expected, found, strict=True)):
        tensor = torch.as_tensor(ours)
        count = min(len(theirs), len(tensor)) if theirs.dim() and tensor.dim() else None
        theirs, tensor = (theirs, tensor) if count is None else (theirs[:count], tensor[:count])
        if theirs.shape != tensor.shape:
            raise ModelError(
                f"output {number} is {list(tensor.shape)} in onnxruntime, in torch {list(theirs.shape)}"
            )
        if not theirs.numel():
            continue
        scale = max(1e-6, float(theirs.double().abs().max()))
        difference = float((theirs.double() - tensor.double()).abs().max()) / scale
        if not difference <= _TOLERANCE:
            raise ModelError(
                f"output {number} of the exported file differs in onnxruntime by {difference:.2g} of its "
                "largest number; nothing is written"
            )
        worst = max(worst, difference)
    return f"checked by onnxruntime: outputs differ by at most {worst:.1g} of their largest"


def _sized(tensor: Tensor, declared: Sequence[object]) -> Tensor:
    """``tensor`` with the number of samples that the file is made for, where it fixes one."""
    batch = declared[0] if declared else None
    if not isinstance(batch, int) or not tensor.dim() or batch == len(tensor):
        return tensor
    return tensor[torch.arange(batch) % len(tensor)]


def _evaluating(model: ModelProto) -> None:
    """Take the training mode from the nodes that have one: they then run as in evaluation."""
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            kept = [item for item in node.attribute if item.name != "training_mode"]
            if len(kept) < len(node.attribute):
                del node.attribute[:]
                node.attribute.extend(kept)
                del node.output[1:]  # new statistics, which only training gives
        elif node.op_type == "Dropout":
            del node.input[2:]
