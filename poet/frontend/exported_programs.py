"""Programs of ``torch.export`` as models: the objects. `poet.frontend.program_file` reads files of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from poet.errors import ModelError

Inputs = Tensor | Sequence[Tensor]


def as_module(
    model: nn.Module | torch.export.ExportedProgram, example_inputs: Inputs | None
) -> tuple[nn.Module, Inputs | None]:
    """The module of an exported program, and the inputs that it was exported with where none are given.

    A module comes back as it is. A program runs in the mode, train or eval, in which it was exported.

    Raises:
        ModelError: it is neither, or was exported with named arguments.
    """
    if isinstance(model, nn.Module):
        return model, example_inputs
    if not isinstance(model, torch.export.ExportedProgram):
        raise ModelError(
            "a model is the path of an ONNX file, a module or an exported program, not "
            f"{type(model).__name__}"
        )
    args, kwargs = model.example_inputs or ((), {})
    if kwargs:
        raise ModelError(
            f"the program was exported with named arguments ({', '.join(kwargs)}); export it with positional "
            "ones, in the order of forward()"
        )
    module = model.module()
    assert isinstance(module, nn.Module)
    return module, tuple(args) if example_inputs is None else example_inputs
