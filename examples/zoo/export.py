"""From a torch module to an ONNX file, by either of torch's exporters, in training or evaluation mode."""

from __future__ import annotations

import copy
import logging
import warnings
from os import PathLike

import torch
from torch import Tensor, nn

EXPORTERS = ("legacy", "dynamo")


def export(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    path: str | PathLike[str],
    *,
    exporter: str = "dynamo",
    training: bool = True,
    opset: int = 18,
) -> None:
    """Writes ``module`` to ``path`` with a dynamic batch dimension called ``N``.

    Training mode keeps dropout and batch norm as they train. The exporters are told to leave the graph
    alone: ``optimize=False`` because the dynamo exporter else folds batch norm and merges equal weights.
    The module is left as it was.
    """
    module = copy.deepcopy(module).train(training)
    names = [f"input{index}" for index in range(len(inputs))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            # these nets need no torchvision; do not let the exporter report four times that it is missing
            logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
            batch = torch.export.Dim("N", min=1)
            torch.onnx.export(
                module,
                inputs,
                str(path),
                dynamo=True,
                optimize=False,
                opset_version=opset,
                input_names=names,
                output_names=["output"],
                dynamic_shapes=({0: batch},) * len(inputs),
                external_data=False,
                verbose=False,
            )
        else:
            torch.onnx.export(
                module,
                inputs,
                str(path),
                dynamo=False,
                opset_version=opset,
                input_names=names,
                output_names=["output"],
                dynamic_axes={name: {0: "N"} for name in [*names, "output"]},
                training=torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL,
                do_constant_folding=not training,
            )
