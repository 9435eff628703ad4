"""Weights of a GGUF file for the parameters of a module, by their names."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from poet.errors import ModelError
from poet.files.gguf import GgufFile
from poet.frontend.onnx.reader import from_bytes
from poet.ir.packed import BLOCK_BYTES, Packed
from poet.passes.base import Weights

_LISTED = 3


def gguf_weights(path: str | Path, module: nn.Module) -> tuple[Weights, str]:
    """What the file has for parameters of ``module``, and a line about what does not match, or nothing.

    Names are those of the module's state dict. Those of a module that ``peft`` wrapped may be given as they
    were before it was.

    Raises:
        InputError: the file is damaged, or of a type that is not read.
        ModelError: a shape differs, or no name matches.
    """
    path = Path(path)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    names = {_before_peft(name): name for name in parameters} | {name: name for name in parameters}
    found: dict[str, tuple[Tensor, Packed | None]] = {}
    with GgufFile(path) as file:
        for stored, tensor in file.tensors.items():
            name = names.get(stored)
            if name is None:
                continue
            if tuple(parameters[name].shape) != tensor.shape:
                wanted = list(parameters[name].shape)
                raise ModelError(f"{path.name}: {stored} is {list(tensor.shape)}, the model's is {wanted}")
            content = file.read(stored)
            if tensor.type in BLOCK_BYTES:
                how = Packed(tensor.type, tensor.shape)
                found[name] = torch.frombuffer(content, dtype=torch.uint8).view(how.packed_shape), how
            else:
                plain = from_bytes(content, getattr(torch, tensor.type), tensor.shape)
                found[name] = plain.to(parameters[name].dtype), None
        unread = [name for name in file.tensors if name not in names]
    if not found:
        raise ModelError(
            f"{path.name}: none of its tensors ({', '.join(unread[:_LISTED])}, ...) is called as a parameter "
            f"of the model ({', '.join([*parameters][:_LISTED])}, ...)"
        )
    return found, f"{path.name}: the model has no {_in_words(unread)}" if unread else ""


def _before_peft(name: str) -> str:
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def _in_words(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
